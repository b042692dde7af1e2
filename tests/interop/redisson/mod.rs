//! Locks shared by this crate and Redisson, which runs live in a JVM. Skipped where there is no JDK or Maven.

mod counters;
mod exclusion;
mod queue;
mod read_write;

use std::time::{Duration, Instant};

use crate::family::Lock;
use crate::jvm::{Churned, JavaLock, Jvm, nothing_left};
use crate::support::probe::{NEVER, acquiring, calls_of, reset_calls, secs, stranger};
use crate::support::{builder, eventually};
use redlatch::{Client, DistributedGuard, Error, LockGuard, ReentrantLock};
use redlatch_testkit::Server;
use tokio::sync::{RwLock, RwLockReadGuard};
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// Held in write mode while something is measured, so that no other test loads the machine.
static MACHINE: RwLock<()> = RwLock::const_new(());

/// The watchdog lease of both sides in tests where no lease is meant to end.
const LONG: Duration = Duration::from_secs(60);

const JAVA_THREADS: u32 = 8;
const RUST_TASKS: usize = 16;

/// Redisson and a client of this crate on one server.
struct Both {
    jvm: Jvm,
    client: Client,
    server: Server,
    _machine: RwLockReadGuard<'static, ()>,
}

impl Both {
    /// Starts both with this watchdog lease, and our client without polling. Returns `None` where there is no Redisson.
    async fn start(watchdog: Duration) -> Option<Self> {
        let machine = MACHINE.read().await;
        let server = Server::start();
        let jvm = Jvm::start(&server, watchdog).await?;
        Some(Self::around(jvm, server, watchdog, machine).await)
    }

    /// Starts both, with a Redisson that can be killed.
    async fn start_mortal(watchdog: Duration) -> Option<Self> {
        let machine = MACHINE.read().await;
        let server = Server::start();
        let jvm = Jvm::start_mortal(&server, watchdog, None).await?;
        Some(Self::around(jvm, server, watchdog, machine).await)
    }

    async fn around(
        jvm: Jvm,
        server: Server,
        watchdog: Duration,
        machine: RwLockReadGuard<'static, ()>,
    ) -> Self {
        let client = builder(server.url())
            .command_timeout(secs(5))
            .watchdog_lease(watchdog)
            .poll_cap(NEVER / 2)
            .build()
            .await
            .unwrap();
        // From now on the server knows the scripts, and each attempt is one call.
        let guard = client.lock("known").lock().await.unwrap();
        guard.unlock().await.unwrap();
        Self {
            jvm,
            client,
            server,
            _machine: machine,
        }
    }

    /// Runs `begin`, which starts the waits of `threads` Java threads, and returns once they sleep: only a message ends
    /// such a wait soon.
    async fn parked<T>(&self, threads: u64, begin: impl FnOnce() -> T) -> T {
        let waiting = begin();
        self.jvm.asleep(threads).await;
        waiting
    }

    /// Like [`parked`](Self::parked), with one call of ours. It asks again after it has subscribed, unless this process
    /// listened before: then it asks once.
    async fn parked_ours<T>(&self, begin: impl FnOnce() -> T) -> T {
        let listens = !format!("{:?}", self.client).contains("channels: 0,");
        let times = if listens { 1 } else { 2 };
        let mut probe = self.server.connection();
        reset_calls(&mut probe);
        let waiting = begin();
        eventually("they wait", async || {
            calls_of(&mut probe, "evalsha") >= times
        })
        .await;
        waiting
    }

    /// Like [`parked_ours`](Self::parked_ours), with a call for a lock that Java holds.
    async fn parked_here(&self, lock: &ReentrantLock) -> JoinHandle<Result<LockGuard, Error>> {
        // A process that has just released the lock lets others go first: it subscribes before it asks, and asks once.
        // That would break the count, so wait until the client has forgotten the lock.
        eventually("no courtesy is left", async || {
            format!("{:?}", self.client).contains("locks: 0,")
        })
        .await;
        self.parked_ours(|| acquiring(lock)).await
    }

    async fn nothing_left(&self) {
        nothing_left(&self.server, [&self.client]).await;
    }
}

/// Counts up with several of Java's threads.
async fn churn_java(lock: impl Fn(u32) -> JavaLock, lasts: Duration) -> Churned {
    let threads: Vec<_> = (1..=JAVA_THREADS)
        .map(|thread| lock(thread).churn("counter", lasts))
        .collect();
    let mut all = Churned::default();
    for thread in threads {
        all.add(soon_after(lasts, thread).await);
    }
    all
}

/// Counts up with our tasks.
async fn churn_rust<L: Lock>(lock: &L, server: &Server, lasts: Duration) -> Churned {
    let tasks: Vec<_> = (0..RUST_TASKS)
        .map(|_| {
            let (lock, mut connection) = (stranger(lock), server.connection());
            tokio::spawn(async move {
                let end = Instant::now() + lasts;
                let mut churned = Churned::default();
                while Instant::now() < end {
                    let asked = Instant::now();
                    let guard = lock.lock().await.unwrap();
                    churned.longest_wait = churned.longest_wait.max(asked.elapsed());
                    let count: u64 = connection
                        .command(&["GET", "counter"])
                        .text()
                        .parse()
                        .unwrap();
                    connection.command(&["SET", "counter", &(count + 1).to_string()]);
                    guard.unlock().await.unwrap();
                    churned.grants += 1;
                }
                churned
            })
        })
        .collect();
    let mut all = Churned::default();
    for task in tasks {
        all.add(soon_after(lasts, task).await.unwrap());
    }
    all
}

impl Churned {
    fn add(&mut self, other: Self) {
        self.grants += other.grants;
        self.longest_wait = self.longest_wait.max(other.longest_wait);
    }
}

/// Awaits a future that ends after `lasts`, and panics 30 seconds later instead of hanging the test.
async fn soon_after<F: Future>(lasts: Duration, future: F) -> F::Output {
    timeout(lasts + secs(30), future).await.expect("it ends")
}

#[test]
fn pages_name_the_redisson_that_is_run() {
    let file = |path: &str| {
        let path = format!("{}/{path}", env!("CARGO_MANIFEST_DIR"));
        std::fs::read_to_string(path).unwrap()
    };
    let pom = file("tests/interop/java/pom.xml");
    let (_, version) = pom.split_once("<redisson.version>").unwrap();
    let (version, _) = version.split_once('<').unwrap();
    assert!(file("README.md").contains(&format!("Redisson {version}")));
    let row = format!("| {version} | everything works");
    assert!(file("docs/from-redisson.md").contains(&row));
}
