//! A simulated server: a server in memory, on its own machine, behind links.

use std::sync::Arc;

use redlatch_memory::Server as MemoryServer;
use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

use crate::front::{Front, Gate, write};
use crate::judge::judge;
use crate::machine::Machine;
use crate::network::{Network, door};

/// The port of all servers.
pub const PORT: u16 = 6379;

/// The data of a server that is back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Memory {
    /// Everything.
    All,
    /// The data of an earlier time.
    Earlier,
    Nothing,
}

pub struct Server {
    pub machine: Machine,
    memory: MemoryServer,
    number: usize,
    network: Network,
    /// The gate in front of it, if it is one of several.
    gate: Option<Arc<dyn Gate>>,
    earlier: Option<MemoryServer>,
    hangs: bool,
}

impl Server {
    pub fn start(
        number: usize,
        faster: i64,
        network: &Network,
        gate: Option<Arc<dyn Gate>>,
    ) -> Self {
        let machine = Machine::start(faster);
        let memory = machine.block_on(async { MemoryServer::new() });
        let server = Self {
            machine,
            memory,
            number,
            network: network.clone(),
            gate,
            earlier: None,
            hangs: false,
        };
        server.open();
        server
    }

    /// Has the judge see all that the server carries out.
    pub fn show(&self) -> MemoryServer {
        let number = self.number;
        self.memory
            .watch(move |seen| judge(|judge| judge.saw(number, seen)));
        self.memory.clone()
    }

    fn open(&self) {
        let (door, mut ends) = door();
        self.network.set_door(self.number, Some(door));
        let (memory, gate) = (self.memory.clone(), self.gate.clone());
        self.machine.handle().spawn(async move {
            while let Some(end) = ends.recv().await {
                let (memory, gate) = (memory.clone(), gate.clone());
                tokio::spawn(async move {
                    match gate {
                        Some(gate) => memory.serve(Front::new(end, gate)).await,
                        None => memory.serve(end).await,
                    }
                });
            }
        });
    }

    pub fn stop(&self, bytes: usize) {
        self.network.set_door(self.number, None);
        self.network.cut(None, Some(self.number), bytes);
        self.memory.stop();
    }

    /// Saves the server's present data for a later restart.
    pub fn keep(&mut self) {
        self.earlier = Some(self.copied());
    }

    /// Returns a copy of the server's present data.
    pub fn copied(&self) -> MemoryServer {
        let memory = &self.memory;
        self.machine.block_on(async { memory.with_same_data() })
    }

    pub fn restart(&mut self, knows: Memory) {
        match (knows, self.earlier.take()) {
            (Memory::All, _) => {
                self.begin_again(|memory| memory.restart_with(&memory.with_same_data()));
            }
            (Memory::Earlier, Some(earlier)) => self.restart_with(&earlier),
            _ => self.begin_again(MemoryServer::restart_empty),
        }
    }

    /// Restarts with the data of another server.
    pub fn restart_with(&mut self, data: &MemoryServer) {
        self.begin_again(|memory| memory.restart_with(data));
    }

    fn begin_again(&mut self, restart: impl FnOnce(&MemoryServer)) {
        self.hangs = false;
        self.machine.block_on(async { restart(&self.memory) });
        self.open();
    }

    /// Whether it takes part in moves and failovers.
    pub fn is_well(&self) -> bool {
        !self.hangs && self.network.has_door(self.number)
    }

    /// Moves the keys for which `is_meant` returns `true` to another server.
    pub fn hand_over(&self, to: &Self, is_meant: impl Fn(&str) -> bool) {
        self.memory.hand_over(&to.memory, is_meant);
    }

    /// Deletes the keys for which `is_meant` returns `true`.
    pub fn delete(&self, is_meant: impl Fn(&str) -> bool) {
        let nobody = self.machine.block_on(async { MemoryServer::new() });
        self.memory.hand_over(&nobody, is_meant);
    }

    /// Ends subscriptions to sharded channels for which `is_meant` returns `true`.
    pub fn unsubscribe(&self, is_meant: impl Fn(&str) -> bool) {
        self.memory.unsubscribe(is_meant);
    }

    pub fn hang(&mut self) {
        self.hangs = true;
        self.memory.stop_answering();
    }

    pub fn go_on(&mut self) {
        self.hangs = false;
        self.machine.block_on(async { self.memory.resume() });
    }

    /// Moves its clock by this many milliseconds. A negative number sets it back.
    pub fn set_clock(&self, by: i64) {
        self.memory.set_clock(by);
    }

    pub fn refuse(&self, text: Option<&str>) {
        self.memory.refuse(text);
    }

    /// Carries out a command at once. Returns the words of the answer without their nesting, or none if the server
    /// hangs.
    pub fn ask(&self, words: &[&str]) -> Vec<String> {
        if self.hangs {
            return Vec::new();
        }
        self.machine.jump();
        let mut request = Vec::new();
        write(words, &mut request);
        write(&["PING"], &mut request);
        let answer = self.machine.block_on(async {
            let (mut near, far) = duplex(1 << 22);
            let asked = async {
                let mut answer = Vec::new();
                near.write_all(&request).await?;
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
