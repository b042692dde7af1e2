//! Redisson in a JVM of its own, driven by a test.
#![allow(dead_code, reason = "each test file uses its own part")]

mod kit;

use std::collections::HashMap;
use std::io::{self, BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread;
use std::time::Duration;

use redlatch::{Client, Owner};
use redlatch_testkit::{Cluster, Server, skip};
use tokio::sync::oneshot;

use crate::support::{eventually, probe};

/// The result of a call: its value, or the exception.
type Answer = Result<String, String>;

/// The calls that wait for an answer, by number. `None` once the JVM has ended.
type Calls = Arc<Mutex<Option<HashMap<u64, oneshot::Sender<Answer>>>>>;

/// A JVM with Redisson. Killed when the last of its handles is dropped.
#[derive(Clone, Debug)]
pub(crate) struct Jvm(Arc<Process>);

#[derive(Debug)]
struct Process {
    child: Mutex<Child>,
    input: Mutex<ChildStdin>,
    calls: Calls,
    last_call: AtomicU64,
}

impl Jvm {
    /// Connects Redisson to this server, with a watchdog of this lease. Returns `None` if Redisson cannot be run: then
    /// the test is skipped.
    pub(crate) async fn start(server: &Server, watchdog: Duration) -> Option<Self> {
        Self::start_at(server.url(), watchdog, None).await
    }

    /// Does the same as [`start`](Self::start), with `fair_wait` as Redisson's `fairLockWaitTimeout`. Also returns
    /// `None` if that cannot be set.
    pub(crate) async fn start_fair(
        server: &Server,
        watchdog: Duration,
        fair_wait: Duration,
    ) -> Option<Self> {
        let jvm = Self::start_at(server.url(), watchdog, Some(fair_wait)).await?;
        jvm.has("setFairLockWaitTimeout").await.then_some(jvm)
    }

    /// Connects Redisson to a cluster. With `sharded` as `AUTO`, Redisson publishes on sharded channels if the cluster
    /// knows them; with `OFF` it never does.
    pub(crate) async fn start_in(
        cluster: &Cluster,
        sharded: &str,
        watchdog: Duration,
    ) -> Option<Self> {
        let servers: Vec<String> = cluster.nodes().iter().map(Server::url).collect();
        Self::start_at(format!("{sharded},{}", servers.join(",")), watchdog, None).await
    }

    async fn start_at(
        servers: String,
        watchdog: Duration,
        fair_wait: Option<Duration>,
    ) -> Option<Self> {
        static CLASS_PATH: OnceLock<Result<String, String>> = OnceLock::new();
        let class_path = CLASS_PATH
            .get_or_init(kit::class_path)
            .as_ref()
            .map_err(|reason| skip("java", reason))
            .ok()?;
        let mut child = Command::new("java")
            // The JVM lives for seconds, so only a fast start matters.
            .args([
                "-XX:TieredStopAtLevel=1",
                "-XX:+UseSerialGC",
                "-XX:-UsePerfData",
            ])
            .args(["-cp", class_path, "redlatch.interop.Peer"])
            .arg(servers)
            .arg(watchdog.as_millis().to_string())
            .args(fair_wait.map(|wait| wait.as_millis().to_string()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a JDK has a java");
        let input = child.stdin.take().expect("a pipe");
        let output = child.stdout.take().expect("a pipe");
        let (sender, ready) = oneshot::channel();
        let calls: Calls = Arc::new(Mutex::new(Some([(0, sender)].into())));
        let answers = calls.clone();
        thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                answered(&answers, &line);
            }
            answers.lock().unwrap().take();
        });
        let jvm = Self(Arc::new(Process {
            child: Mutex::new(child),
            input: Mutex::new(input),
            calls,
            last_call: AtomicU64::new(0),
        }));
        ready.await.expect("Redisson starts").expect("its id");
        Some(jvm)
    }

    /// Returns whether this version of Redisson has a method of its client or configuration. If not, the test is
    /// skipped.
    pub(crate) async fn has(&self, method: &str) -> bool {
        let found = self.call(&format!("0 has {method}")).await;
        let found = found.expect("no exception") == "true";
        if !found {
            skip("redisson", &format!("this Redisson has no {method}"));
        }
        found
    }

    /// Waits until this number of threads sleep: from then on each message wakes them. A thread that has just asked and
    /// is about to sleep misses the message of a writer.
    pub(crate) async fn asleep(&self, threads: u64) {
        eventually("Java's threads sleep", async || {
            self.call("0 asleep").await.as_deref() == Ok(&threads.to_string())
        })
        .await;
    }

    /// Returns Redisson's `RLock` of this name, as used by one of the JVM's threads.
    pub(crate) fn lock(&self, name: &str, thread: u32) -> JavaLock {
        self.lock_of("reentrant", name, thread)
    }

    pub(crate) fn fenced_lock(&self, name: &str, thread: u32) -> JavaLock {
        self.lock_of("fenced", name, thread)
    }

    pub(crate) fn spin_lock(&self, name: &str, thread: u32) -> JavaLock {
        self.lock_of("spin", name, thread)
    }

    pub(crate) fn fair_lock(&self, name: &str, thread: u32) -> JavaLock {
        self.lock_of("fair", name, thread)
    }

    pub(crate) fn read_lock(&self, name: &str, thread: u32) -> JavaLock {
        self.lock_of("read", name, thread)
    }

    pub(crate) fn write_lock(&self, name: &str, thread: u32) -> JavaLock {
        self.lock_of("write", name, thread)
    }

    /// Returns Redisson's multi lock of the reentrant locks of these names, in this order.
    pub(crate) fn multi_lock(&self, names: &[&str], thread: u32) -> JavaLock {
        self.lock_of("multi", &names.join(","), thread)
    }

    /// Returns Redisson's `RCountDownLatch` of this name, as used by one of the JVM's threads.
    pub(crate) fn latch(&self, name: &str, thread: u32) -> JavaCounter {
        JavaCounter(self.lock_of("latch", name, thread))
    }

    pub(crate) fn semaphore(&self, name: &str, thread: u32) -> JavaCounter {
        JavaCounter(self.lock_of("semaphore", name, thread))
    }

    pub(crate) fn expirable_semaphore(&self, name: &str, thread: u32) -> JavaCounter {
        JavaCounter(self.lock_of("expirable", name, thread))
    }

    fn lock_of(&self, kind: &str, name: &str, thread: u32) -> JavaLock {
        JavaLock {
            jvm: self.clone(),
            thread,
            lock: format!("{kind} {name}"),
        }
    }

    /// Kills the JVM, as in a crash.
    pub(crate) fn kill(&self) {
        self.0.kill();
    }

    /// Sends a call at once. The future only waits for the answer.
    fn call(&self, line: &str) -> impl Future<Output = Answer> + use<> {
        let Process {
            input,
            calls,
            last_call,
            ..
        } = &*self.0;
        let call = last_call.fetch_add(1, Ordering::Relaxed) + 1;
        let (sender, answer) = oneshot::channel();
        let mut calls = calls.lock().unwrap();
        calls.as_mut().expect("the JVM runs").insert(call, sender);
        drop(calls);
        writeln!(input.lock().unwrap(), "{call} {line}").expect("the JVM listens");
        async { answer.await.expect("the JVM goes on") }
    }
}

impl Process {
    fn kill(&self) {
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

/// A Redisson lock as used by one Java thread. Its calls begin when they are made, not when they are awaited.
#[derive(Clone, Debug)]
pub(crate) struct JavaLock {
    jvm: Jvm,
    thread: u32,
    /// The kind and the name of the lock.
    lock: String,
}

/// The results of a thread that locked in a loop.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Churned {
    pub(crate) grants: u64,
    pub(crate) longest_wait: Duration,
}

impl JavaLock {
    /// Returns the thread as an owner, so that a lock of ours can have the same owner.
    pub(crate) async fn owner(&self) -> Owner {
        Owner::named(self.ask::<String>("owner").await)
    }

    /// Acquires the lock, waiting until it is available. The watchdog then renews it.
    pub(crate) fn lock(&self) -> impl Future<Output = bool> + use<> {
        self.ask("lock")
    }

    /// Acquires the lock for `lease`, waiting until it is available.
    pub(crate) fn lock_with(&self, lease: Duration) -> impl Future<Output = bool> + use<> {
        self.ask(&format!("lease {}", lease.as_millis()))
    }

    pub(crate) fn try_lock(&self) -> impl Future<Output = bool> + use<> {
        self.ask("try")
    }

    pub(crate) fn try_lock_for(&self, wait: Duration) -> impl Future<Output = bool> + use<> {
        self.ask(&format!("tryfor {}", wait.as_millis()))
    }

    pub(crate) fn unlock(&self) -> impl Future<Output = bool> + use<> {
        self.ask("unlock")
    }

    /// Unlocks. Returns `false` if Redisson does not know yet which server has the slot.
    pub(crate) async fn unlock_where_it_is(&self) -> bool {
        match self.send("unlock").await {
            Ok(_) => true,
            Err(exception) => {
                assert!(exception.contains("discovered"), "{exception}");
                false
            }
        }
    }

    /// Unlocks a lock that this thread does not hold. Returns the exception.
    pub(crate) async fn unlock_in_vain(&self) -> String {
        self.send("unlock")
            .await
            .expect_err("not held by this thread")
    }

    pub(crate) fn force_unlock(&self) -> impl Future<Output = bool> + use<> {
        self.ask("force")
    }

    pub(crate) fn hold_count(&self) -> impl Future<Output = u64> + use<> {
        self.ask("count")
    }

    pub(crate) fn is_held(&self) -> impl Future<Output = bool> + use<> {
        self.ask("held")
    }

    pub(crate) fn is_locked(&self) -> impl Future<Output = bool> + use<> {
        self.ask("locked")
    }

    /// Returns the last fencing token of a fenced lock.
    pub(crate) fn token(&self) -> impl Future<Output = u64> + use<> {
        self.ask("token")
    }

    /// Increments a key under the lock with `GET` and `SET`, in a loop that lasts for `lasts`.
    pub(crate) fn churn(
        &self,
        counter: &str,
        lasts: Duration,
    ) -> impl Future<Output = Churned> + use<> {
        let answer = self.ask::<String>(&format!("churn {counter} {}", lasts.as_millis()));
        async {
            let answer = answer.await;
            let (grants, longest) = answer.split_once(' ').expect("two numbers");
            Churned {
                grants: grants.parse().expect("a number"),
                longest_wait: Duration::from_micros(longest.parse().expect("a number")),
            }
        }
    }

    /// Sends a verb with its arguments, and returns the value of the answer.
    fn ask<T: FromStr>(&self, verb: &str) -> impl Future<Output = T> + use<T> {
        let answer = self.send(verb);
        async {
            let value = answer.await.expect("no exception");
            value.parse().ok().expect("a value of this type")
        }
    }

    fn send(&self, verb: &str) -> impl Future<Output = Answer> + use<> {
        let (verb, arguments) = verb.split_once(' ').unwrap_or((verb, ""));
        let Self { jvm, thread, lock } = self;
        jvm.call(&format!("{thread} {verb} {lock} {arguments}"))
    }
}

/// A Redisson semaphore or latch as used by one Java thread. Its calls begin when they are made, like those of a lock.
#[derive(Clone, Debug)]
pub(crate) struct JavaCounter(JavaLock);

impl JavaCounter {
    /// Sends a verb with its arguments, and returns the value of the answer.
    pub(crate) fn ask<T: FromStr>(&self, verb: &str) -> impl Future<Output = T> + use<T> {
        self.0.ask(verb)
    }
}

/// Returns the keys on the server, except for the latches of Redisson's unlocks, which some versions leave to their
/// TTL. Deletes those latches.
pub(crate) fn keys(server: &Server) -> Vec<String> {
    let mut probe = server.connection();
    let (latches, keys) = probe
        .keys()
        .into_iter()
        .partition::<Vec<_>, _>(|key| key.starts_with("redisson_unlock_latch:"));
    for latch in latches {
        probe.command(&["DEL", &latch]);
    }
    keys
}

/// Waits until no client has left anything, except for those latches.
pub(crate) async fn nothing_left<const N: usize>(server: &Server, clients: [&Client; N]) {
    eventually("no key is left", async || keys(server).is_empty()).await;
    probe::nothing_left(server, clients).await;
}

/// Prints a text even if the test harness captures the output of tests.
pub(crate) fn tell(text: &str) {
    writeln!(io::stderr(), "interop with Redisson: {text}").ok();
}
