//! A fair lock's server queue with Redisson's waiters, live in a JVM, and ours: a waiter dies in it, and the tests
//! measure what that costs the others. Skipped where there is no JDK or Maven.

use std::env;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::jvm::{JavaLock, Jvm, nothing_left, tell};
use crate::support::probe::{millis, secs};
use crate::support::{builder, eventually};
use redlatch::{Client, Owner};
use redlatch_testkit::{Connection, Server};
use tokio::task::JoinHandle;
use tokio::time::timeout;

const QUEUE: &str = "redisson_lock_queue:{k}";
const SCORES: &str = "redisson_lock_timeout:{k}";

/// The wait timeout that either side is set to: how long a dead waiter holds up a Java waiter behind it.
const WAIT: Duration = Duration::from_secs(4);
const LEASE: Duration = Duration::from_secs(3);
/// The time that we allow in addition to what Java alone pays.
const SLACK: Duration = Duration::from_secs(5);

/// The variable that tells this program that it is a worker: the server's port and the number of waiters.
const PART: &str = "REDLATCH_TEST_INTEROP_FAIR";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a process of its own, started by the other tests here"]
async fn worker() {
    let part = env::var(PART).expect("started by a test");
    let (port, waiters) = part.split_once(' ').unwrap();
    let client = connect(&format!("redis://127.0.0.1:{port}"), LEASE, WAIT).await;
    let waiters = (0..waiters.parse().unwrap()).map(|_| ours(&client, &Log::default(), 0));
    for waiter in waiters.collect::<Vec<_>>() {
        waiter.await.unwrap();
    }
}

/// A process of ours whose tasks wait for the lock; killed on drop.
struct Worker(Child);

impl Worker {
    fn start(server: &Server, waiters: u32) -> Self {
        let child = Command::new(env::current_exe().unwrap())
            .args(["fair::worker", "--exact", "--ignored"])
            .env(PART, format!("{} {waiters}", server.port()))
            .stdout(Stdio::null())
            .spawn();
        Self(child.unwrap())
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

async fn connect(url: &str, lease: Duration, wait: Duration) -> Client {
    let builder = builder(url).command_timeout(secs(5)).watchdog_lease(lease);
    builder.fair_wait_timeout(wait).build().await.unwrap()
}

/// The waiters that were granted the lock, and when.
type Log = Arc<Mutex<Vec<(u32, Instant)>>>;

const SECTION: Duration = Duration::from_millis(100);

/// Spawns a waiter of ours: it waits for the lock, holds it for a while and releases it.
fn ours(client: &Client, log: &Log, number: u32) -> JoinHandle<()> {
    let lock = client.fair_lock("k").owned_by(&Owner::unique());
    let log = log.clone();
    tokio::spawn(async move {
        let guard = lock.lock().await.unwrap();
        log.lock().unwrap().push((number, Instant::now()));
        tokio::time::sleep(SECTION).await;
        guard.unlock().await.unwrap();
    })
}

/// Spawns a waiter of Redisson's, which does the same.
fn javas(lock: &JavaLock, log: &Log, number: u32) -> JoinHandle<()> {
    let (lock, log) = (lock.clone(), log.clone());
    let locked = lock.lock();
    tokio::spawn(async move {
        assert!(locked.await);
        log.lock().unwrap().push((number, Instant::now()));
        tokio::time::sleep(SECTION).await;
        assert!(lock.unlock().await);
    })
}

async fn queued(probe: &mut Connection, waiters: i64) {
    eventually("they have their places", async || {
        probe.command(&["LLEN", QUEUE]).int() == waiters
    })
    .await;
}

/// Returns how many seconds from now the server regards a waiter as alive, in Redisson's view.
fn left(probe: &mut Connection, field: &str) -> f64 {
    let score: f64 = probe
        .command(&["ZSCORE", SCORES, field])
        .text()
        .parse()
        .unwrap();
    let time = probe.command(&["TIME"]).array();
    score / 1_000.0 - time[0].text().parse::<f64>().unwrap()
}

/// Waits for the end of a wait that dead waiters prolong, prints how long it took and checks the limit.
async fn within(limit: Duration, what: &str, waiter: JoinHandle<()>) {
    let began = Instant::now();
    let ended = timeout(limit + secs(20), waiter).await;
    let took = began.elapsed();
    tell(&format!("{what}: {took:.1?}, {limit:?} at the most"));
    ended.expect("it ends").unwrap();
    assert!(took <= limit + SECTION, "{what}: {took:?}");
}

/// Queues four waiters of ours, a Java process that dies behind them, and a live waiter behind that process.
async fn java_dies_behind_ours(java_is_next: bool) {
    let server = Server::start();
    let Some(mortal) = Jvm::start_mortal(&server, LEASE, Some(WAIT)).await else {
        return;
    };
    let alive = match java_is_next {
        true => Jvm::start_fair(&server, LEASE, WAIT).await,
        false => None,
    };
    let client = connect(&server.url(), LEASE, WAIT).await;
    let mut probe = server.connection();
    let log = Log::default();
    let held = client.fair_lock("k").lock().await.unwrap();
    let mut before = Vec::new();
    for number in 1..=4 {
        before.push(ours(&client, &log, number));
        queued(&mut probe, number.into()).await;
    }
    let dead = mortal.fair_lock("k", 1);
    let field = dead.owner().await.to_string();
    drop(dead.lock());
    queued(&mut probe, 5).await;
    let next = match &alive {
        Some(jvm) => javas(&jvm.fair_lock("k", 1), &log, 6),
        None => ours(&client, &log, 6),
    };
    queued(&mut probe, 6).await;
    mortal.kill();
    held.unlock().await.unwrap();
    for waiter in before {
        timeout(secs(10), waiter)
            .await
            .expect("it is alive")
            .unwrap();
    }
    let javas_alone = LEASE + WAIT;
    let left = left(&mut probe, &field);
    assert!(
        left < (javas_alone + SLACK).as_secs_f64(),
        "{left} s are left"
    );
    let what = if java_is_next { "Java's" } else { "ours" };
    within(
        javas_alone + SLACK,
        &format!("{what} behind a dead Java"),
        next,
    )
    .await;
    let order: Vec<_> = log
        .lock()
        .unwrap()
        .iter()
        .map(|(number, _)| *number)
        .collect();
    assert_eq!(order, [1, 2, 3, 4, 6]);
    nothing_left(&server, [&client]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn java_process_that_dies_behind_ours_costs_java_what_java_alone_would_pay() {
    java_dies_behind_ours(true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn java_process_that_dies_behind_ours_costs_ours_what_java_alone_would_pay() {
    java_dies_behind_ours(false).await;
}

/// No process of ours is left that would notice the death.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn process_of_ours_that_dies_before_java_costs_what_a_java_process_would() {
    const DEAD: u32 = 3;
    let server = Server::start();
    let Some(jvm) = Jvm::start_fair(&server, LEASE, WAIT).await else {
        return;
    };
    let mut probe = server.connection();
    let holder = jvm.fair_lock("k", 1);
    assert!(holder.lock().await);
    let worker = Worker::start(&server, DEAD);
    queued(&mut probe, DEAD.into()).await;
    let log = Log::default();
    let next = javas(&jvm.fair_lock("k", 2), &log, 1);
    queued(&mut probe, i64::from(DEAD) + 1).await;
    drop(worker);
    assert!(holder.unlock().await);
    let javas_alone = LEASE + WAIT * DEAD;
    within(javas_alone + SLACK, "Java's behind our dead", next).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn java_behind_a_holder_of_ours_that_renewed_and_died_has_its_turn() {
    let server = Server::start();
    let Some(jvm) = Jvm::start(&server, LEASE).await else {
        return;
    };
    let client = connect(&server.url(), LEASE, WAIT).await;
    let held = client.fair_lock("k").lock().await.unwrap();
    let next = javas(&jvm.fair_lock("k", 1), &Log::default(), 1);
    queued(&mut server.connection(), 1).await;
    // The lease that the Java waiter found ends, and some of the next one passes.
    tokio::time::sleep(LEASE * 3 / 2).await;
    let _owner = held.detach();
    within(LEASE + SLACK, "Java's behind our dead holder", next).await;
    nothing_left(&server, [&client]).await;
}

/// Checks that no live waiter loses its place, whatever the order of the two sides' waiters, and whether their wait
/// timeouts are the same or differ.
async fn order_is_kept(our_wait: Duration, javas_wait: Duration) {
    let server = Server::start();
    // A grant by either side subtracts from the scores what a place of that side is worth.
    let Some(jvm) = Jvm::start_fair(&server, secs(30), javas_wait).await else {
        return;
    };
    let client = connect(&server.url(), secs(30), our_wait).await;
    let mut probe = server.connection();
    let log = Log::default();
    let held = client.fair_lock("k").lock().await.unwrap();
    let mut waiters = Vec::new();
    let sides = "jjooojjojooojjojoo";
    for (number, side) in (0..).zip(sides.chars()) {
        waiters.push(match side {
            'o' => ours(&client, &log, number),
            _ => javas(&jvm.fair_lock("k", number), &log, number),
        });
        queued(&mut probe, i64::from(number) + 1).await;
    }
    // Long enough for each waiter of ours to ask for its place a few times.
    tokio::time::sleep(millis(2_500)).await;
    held.unlock().await.unwrap();
    for waiter in waiters {
        timeout(secs(30), waiter)
            .await
            .expect("it is alive")
            .unwrap();
    }
    let order: Vec<_> = log
        .lock()
        .unwrap()
        .iter()
        .map(|(number, _)| *number)
        .collect();
    assert_eq!(order, (0..sides.len() as u32).collect::<Vec<_>>());
    nothing_left(&server, [&client]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn order_is_kept_where_both_sides_wait_alike() {
    order_is_kept(WAIT, WAIT).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn order_is_kept_where_ours_stand_for_longer_than_javas() {
    order_is_kept(secs(300), WAIT).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn order_is_kept_where_javas_stand_for_longer_than_ours() {
    order_is_kept(WAIT, secs(300)).await;
}
