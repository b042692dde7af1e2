//! What the server shows past the library, and futures driven by hand.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

use redlatch::{Client, Error, ErrorKind, LockGuard, Owner, ReentrantLock};
use redlatch_testkit::{Connection, Reply, Server};
use tokio::task::JoinHandle;

use super::{eventually, eventually_idle};

/// Longer than any wait in these tests: nothing that ends by it was a poll.
pub const NEVER: Duration = Duration::from_secs(3600);

pub fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

pub fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// The same lock for somebody else.
pub fn stranger(lock: &ReentrantLock) -> ReentrantLock {
    lock.clone().owned_by(&Owner::unique())
}

/// The kind of an error that a call must have given.
#[track_caller]
pub fn kind<T: std::fmt::Debug>(result: Result<T, Error>) -> ErrorKind {
    result.expect_err("an error").kind()
}

/// What must come soon, and would else hang the test.
pub async fn soon<F: Future>(future: F) -> F::Output {
    tokio::time::timeout(secs(10), future)
        .await
        .expect("within ten seconds")
}

/// Polls a future once, so that whatever it does before its first wait is done, and it stands in line.
#[track_caller]
pub fn begin<F: Future>(future: F) -> Pin<Box<F>> {
    let mut future = Box::pin(future);
    let mut context = Context::from_waker(Waker::noop());
    assert!(
        future.as_mut().poll(&mut context).is_pending(),
        "it had to wait"
    );
    future
}

/// A task that acquires for its own owner, and gives the guard.
pub fn acquiring(lock: &ReentrantLock) -> JoinHandle<Result<LockGuard, Error>> {
    let lock = stranger(lock);
    tokio::spawn(async move { lock.lock().await })
}

/// One that waits gets in, and goes.
pub async fn passes(call: JoinHandle<Result<LockGuard, Error>>) {
    let guard = soon(call).await.expect("no panic").expect("granted");
    guard.unlock().await.expect("held until now");
}

/// Takes a lock, finds it excluded for another owner, has the other woken by the unlock. How long that took.
pub async fn take_turns(client: &Client) -> Duration {
    let lock = client.lock("turns");
    let other = lock.clone().owned_by(&Owner::unique());
    let guard = soon(lock.lock()).await.expect("granted");
    assert!(other.try_lock().await.expect("answered").is_none());
    let waiter = tokio::spawn(async move { other.lock().await });
    eventually("the waiter listens", async || {
        format!("{client:?}").contains("channels: 1")
    })
    .await;
    let freed = Instant::now();
    guard.unlock().await.expect("held until now");
    passes(waiter).await;
    freed.elapsed()
}

/// The channel that a lock of this name, without a hash tag, publishes on.
pub fn channel(name: &str) -> String {
    format!("redisson_lock__channel:{{{name}}}")
}

/// How many connections listen to a channel, or to those of clients that stand in line behind it: the first of them may listen
/// to both.
pub fn subscribers(probe: &mut Connection, channel: &str) -> i64 {
    subscribers_by(probe, ["CHANNELS", "NUMSUB"], channel)
}

/// The same by other subcommands of `PUBSUB`: one that lists channels, and one that counts.
pub fn subscribers_by(probe: &mut Connection, [list, count]: [&str; 2], channel: &str) -> i64 {
    let pattern = format!("{channel}:????????-????-*");
    let own = probe.command(&["PUBSUB", list, &pattern]).texts();
    let mut words = vec!["PUBSUB", count, channel];
    words.extend(own.iter().map(String::as_str));
    let counts = probe.command(&words).array();
    let mut counts = counts.iter().skip(1).step_by(2).map(Reply::int);
    let common = counts.next().unwrap_or(0);
    common.max(counts.sum())
}

/// Waits until so many connections listen for the unlocks of this lock.
pub async fn eventually_heard(server: &Server, name: &str, connections: i64) {
    eventually_listening(server, &channel(name), connections).await;
}

/// Waits until so many connections listen to this channel.
pub async fn eventually_listening(server: &Server, channel: &str, connections: i64) {
    let mut probe = server.connection();
    eventually("waiters listen", async || {
        subscribers(&mut probe, channel) == connections
    })
    .await;
}

/// Waits until so many calls of this client stand in line and the one at the front is parked.
pub async fn eventually_waiting(client: &Client, calls: usize) {
    let waiting = format!("waiting: {calls}, channels: 1,");
    eventually(&waiting, async || format!("{client:?}").contains(&waiting)).await;
}

pub async fn eventually_free(server: &Server, name: &str) {
    let mut probe = server.connection();
    eventually("the key is gone", async || !probe.exists(name)).await;
}

/// How often each command ran since [`reset_calls`], those inside scripts too; without `CONFIG`, which reset them.
pub fn calls(probe: &mut Connection) -> BTreeMap<String, u64> {
    let info = probe.command(&["INFO", "commandstats"]).text();
    let line = |line: &str| {
        let (name, rest) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
        let calls = rest.split(',').next()?.parse().ok()?;
        (!name.starts_with("config")).then(|| (name.to_owned(), calls))
    };
    info.lines().filter_map(line).collect()
}

pub fn calls_of(probe: &mut Connection, command: &str) -> u64 {
    calls(probe).get(command).copied().unwrap_or(0)
}

/// How many script calls the server has answered, whatever the answer.
pub fn scripts_run(probe: &mut Connection) -> u64 {
    calls_of(probe, "eval") + calls_of(probe, "evalsha")
}

pub fn reset_calls(probe: &mut Connection) {
    probe.command(&["CONFIG", "RESETSTAT"]);
}

/// Nothing is left of anybody: no key, no channel, no entry in the clients' maps.
pub async fn nothing_left<const N: usize>(server: &Server, clients: [&Client; N]) {
    for client in clients {
        eventually_idle(client).await;
    }
    let mut probe = server.connection();
    eventually("no channel is left", async || probe.channels().is_empty()).await;
    eventually("no key is left", async || probe.keys().is_empty()).await;
}
