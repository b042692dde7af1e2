//! A simulated server: one in memory, on a machine of its own, behind links.

use redlatch::MemoryServer;
use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

use crate::machine::Machine;
use crate::network::{Network, door};

/// What a server knows when it is back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Memory {
    /// Everything.
    All,
    /// What it knew at an earlier time.
    Earlier,
    Nothing,
}

pub struct Server {
    pub machine: Machine,
    memory: MemoryServer,
    number: usize,
    network: Network,
    earlier: Option<MemoryServer>,
    hangs: bool,
}

impl Server {
    pub fn start(number: usize, faster: i64, network: &Network) -> Self {
        let machine = Machine::start(faster);
        let memory = machine.block_on(async { MemoryServer::new() });
        let server = Self {
            machine,
            memory,
            number,
            network: network.clone(),
            earlier: None,
            hangs: false,
        };
        server.open();
        server
    }

    fn open(&self) {
        let (door, mut ends) = door();
        self.network.set_door(self.number, Some(door));
        let memory = self.memory.clone();
        self.machine.handle().spawn(async move {
            while let Some(end) = ends.recv().await {
                let memory = memory.clone();
                tokio::spawn(async move { memory.serve(end).await });
            }
        });
    }

    pub fn stop(&self, bytes: usize) {
        self.network.set_door(self.number, None);
        self.network.cut(None, Some(self.number), bytes);
        self.memory.stop();
    }

    /// Keeps what the server knows now, for a restart later.
    pub fn keep(&mut self) {
        let memory = &self.memory;
        self.earlier = Some(self.machine.block_on(async { memory.with_same_data() }));
    }

    pub fn restart(&mut self, knows: Memory) {
        let memory = &self.memory;
        let earlier = self.earlier.take();
        self.hangs = false;
        self.machine.block_on(async {
            match (knows, earlier) {
                (Memory::All, _) => memory.restart_with(&memory.with_same_data()),
                (Memory::Earlier, Some(earlier)) => memory.restart_with(&earlier),
                _ => memory.restart_empty(),
            }
        });
        self.open();
    }

    pub fn hang(&mut self) {
        self.hangs = true;
        self.memory.stop_answering();
    }

    pub fn go_on(&mut self) {
        self.hangs = false;
        self.machine.block_on(async { self.memory.resume() });
    }

    pub fn refuse(&self, text: Option<&str>) {
        self.memory.refuse(text);
    }

    /// Carries out a command at once. Returns the words of the answer, however they are nested; none from a server that
    /// hangs.
    pub fn ask(&self, words: &[&str]) -> Vec<String> {
        if self.hangs {
            return Vec::new();
        }
        self.machine.jump();
        let mut request = format!("*{}\r\n", words.len());
        for word in words {
            request += &format!("${}\r\n{word}\r\n", word.len());
        }
        request += "*1\r\n$4\r\nPING\r\n";
        let answer = self.machine.block_on(async {
            let (mut near, far) = duplex(1 << 22);
            let asked = async {
                let mut answer = Vec::new();
                near.write_all(request.as_bytes()).await?;
                while !answer.ends_with(b"+PONG\r\n") {
                    near.read_buf(&mut answer).await?;
                }
                Ok::<_, std::io::Error>(answer)
            };
            tokio::select! {
                biased;
                answer = asked => answer,
                _ = self.memory.serve(far) => Ok(Vec::new()),
            }
        });
        let answer = String::from_utf8_lossy(&answer.unwrap_or_default()).into_owned();
        let lines = answer.strip_suffix("+PONG\r\n").unwrap_or_default().lines();
        let lines = lines.filter(|line| !line.starts_with(['*', '$']));
        lines
            .map(|line| line.trim_start_matches([':', '+']).to_owned())
            .collect()
    }
}
