//! A JVM, in which any number of Redisson's clients run.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread;

use redlatch_testkit::skip;
use tokio::sync::oneshot;

use super::kit;

/// The result of a call: its value, or the exception.
pub(super) type Answer = Result<String, String>;

/// The calls that wait for an answer, by number. `None` once the JVM has ended.
type Calls = Arc<Mutex<Option<HashMap<u64, oneshot::Sender<Answer>>>>>;

/// A JVM. Killed on drop; it also ends with this process.
#[derive(Debug)]
pub(super) struct Process {
    child: Mutex<Child>,
    input: Mutex<ChildStdin>,
    calls: Calls,
    last: AtomicU64,
}

impl Process {
    /// Starts a JVM. Returns `None` if Redisson cannot be run: then the test is skipped.
    pub(super) fn start() -> Option<Self> {
        static CLASS_PATH: OnceLock<Result<String, String>> = OnceLock::new();
        let class_path = CLASS_PATH
            .get_or_init(kit::class_path)
            .as_ref()
            .map_err(|reason| skip("java", reason))
            .ok()?;
        let mut child = Command::new("java")
            // The JVM lives for a minute, so only a fast start matters.
            .args([
                "-XX:TieredStopAtLevel=1",
                "-XX:+UseSerialGC",
                "-XX:-UsePerfData",
            ])
            .args(["-cp", class_path, "redlatch.interop.Peer"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a JDK has a java");
        let input = child.stdin.take().expect("a pipe");
        let output = child.stdout.take().expect("a pipe");
        let calls: Calls = Arc::new(Mutex::new(Some(HashMap::new())));
        let answers = calls.clone();
        thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                answered(&answers, &line);
            }
            answers.lock().unwrap().take();
        });
        Some(Self {
            child: Mutex::new(child),
            input: Mutex::new(input),
            calls,
            last: AtomicU64::new(0),
        })
    }

    /// Returns the JVM that tests share unless they kill theirs: most of what a start takes is the first use of Redisson.
    pub(super) fn shared() -> Option<Arc<Self>> {
        static SHARED: Mutex<Option<Arc<Process>>> = Mutex::new(None);
        let mut shared = SHARED.lock().unwrap();
        if shared.is_none() {
            *shared = Self::start().map(Arc::new);
        }
        shared.clone()
    }

    /// Returns a number that no call and no peer has.
    pub(super) fn number(&self) -> u64 {
        self.last.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Sends a call to a peer at once. The future only waits for the answer.
    pub(super) fn call(&self, peer: u64, line: &str) -> impl Future<Output = Answer> + use<> {
        let call = self.number();
        let (sender, answer) = oneshot::channel();
        let mut calls = self.calls.lock().unwrap();
        calls.as_mut().expect("the JVM runs").insert(call, sender);
        drop(calls);
        self.tell(peer, &format!("{call} {line}"))
            .expect("the JVM listens");
        async { answer.await.expect("the JVM goes on") }
    }

    /// Sends a peer a line to which there may be no answer.
    pub(super) fn tell(&self, peer: u64, line: &str) -> std::io::Result<()> {
        writeln!(self.input.lock().unwrap(), "{peer} {line}")
    }

    /// Kills the JVM, as in a crash.
    pub(super) fn kill(&self) {
        let mut child = self.child.lock().unwrap();
        child.kill().ok();
        child.wait().ok();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

fn answered(calls: &Calls, line: &str) {
    let mut words = line.splitn(3, ' ');
    let mut word = || words.next().unwrap_or_default();
    let call = word()
        .parse::<u64>()
        .expect("an answer begins with its call");
    let answer = match word() {
        "ok" => Ok(word().to_owned()),
        _ => Err(word().to_owned()),
    };
    let sender = calls
        .lock()
        .unwrap()
        .as_mut()
        .and_then(|calls| calls.remove(&call));
    // A test may have dropped the future of the answer.
    sender.expect("an answer to a call").send(answer).ok();
}
