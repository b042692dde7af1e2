//! Redisson in a JVM, driven by tests.
#![allow(dead_code, reason = "each test file uses its own part")]

mod kit;
mod process;

use std::io::{self, Write};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use redlatch::{Client, Owner};
use redlatch_testkit::{Cluster, Server, skip};

use crate::support::{eventually, probe};
use process::{Answer, Process};

/// A client of Redisson in a JVM. Closed when the last of its handles is dropped.
#[derive(Clone, Debug)]
pub(crate) struct Jvm(Arc<Peer>);

#[derive(Debug)]
struct Peer {
    process: Arc<Process>,
    number: u64,
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

    /// Does the same as [`start`](Self::start), or [`start_fair`](Self::start_fair), in a JVM that can be killed.
    pub(crate) async fn start_mortal(
        server: &Server,
        watchdog: Duration,
        fair_wait: Option<Duration>,
    ) -> Option<Self> {
        let process = Arc::new(Process::start()?);
        let jvm = Self::open(process, server.url(), watchdog, fair_wait).await;
        let can = fair_wait.is_none() || jvm.has("setFairLockWaitTimeout").await;
        can.then_some(jvm)
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
        let process = Process::shared()?;
        Some(Self::open(process, servers, watchdog, fair_wait).await)
    }

    async fn open(
        process: Arc<Process>,
        servers: String,
        watchdog: Duration,
        fair_wait: Option<Duration>,
    ) -> Self {
        let number = process.number();
        let jvm = Self(Arc::new(Peer { process, number }));
        let fair_wait = fair_wait.map(|wait| wait.as_millis().to_string());
        let (watchdog, fair_wait) = (watchdog.as_millis(), fair_wait.unwrap_or_default());
        let opened = jvm.call(&format!("0 open {servers} {watchdog} {fair_wait}"));
        opened.await.expect("Redisson starts");
        jvm
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

    /// Kills the JVM, as in a crash. It must be a mortal one.
    pub(crate) fn kill(&self) {
        self.0.process.kill();
    }

    /// Sends a call at once. The future only waits for the answer.
    fn call(&self, line: &str) -> impl Future<Output = Answer> + use<> {
        let Peer { process, number } = &*self.0;
        process.call(*number, line)
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // A mortal JVM may have been killed.
        self.process.tell(self.number, "0 0 close").ok();
    }
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

    /// Unlocks. Returns `false` if Redisson does not know yet which server has the slot, or fails on the way from one to
    /// the other.
    pub(crate) async fn unlock_where_it_is(&self) -> bool {
        match self.send("unlock").await {
            Ok(_) => true,
            Err(exception) => {
                let of_the_move = [
                    "discovered",
                    "Unexpected exception while processing command",
                ];
                let is_of_the_move = of_the_move.iter().any(|text| exception.contains(text));
                assert!(is_of_the_move, "{exception}");
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
