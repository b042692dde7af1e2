//! Looks at the server past the library, and drives futures by hand.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

use redlatch::{Client, Error, ErrorKind, LockGuard, NamedLock, Owner, ReentrantLock};
use redlatch_testkit::{Connection, Reply, Server};
use tokio::task::JoinHandle;

use super::{eventually, eventually_idle};

/// Longer than any wait in these tests: with this poll interval, nothing that happens was caused by a poll.
pub const NEVER: Duration = Duration::from_secs(3600);

pub fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

pub fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// Returns the same lock for another owner.
pub fn stranger<L: NamedLock>(lock: &L) -> L {
    lock.clone().owned_by(&Owner::unique())
}

/// Returns the kind of the error that a call must have returned.
#[track_caller]
pub fn kind<T: std::fmt::Debug>(result: Result<T, Error>) -> ErrorKind {
    result.expect_err("an error").kind()
}

/// Waits for a future that must complete soon, and fails instead of hanging the test.
pub async fn soon<F: Future>(future: F) -> F::Output {
    tokio::time::timeout(secs(10), future)
        .await
        .expect("within ten seconds")
}

/// Polls a future once, so that everything before its first wait is done, and the call stands in the local queue.
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

/// Starts a task that acquires the lock for an owner of its own, and returns the guard.
pub fn acquiring(lock: &ReentrantLock) -> JoinHandle<Result<LockGuard, Error>> {
    let lock = stranger(lock);
    tokio::spawn(async move { lock.lock().await })
}

/// Waits until a call has acquired the lock, and releases it.
pub async fn passes(call: JoinHandle<Result<LockGuard, Error>>) {
    let guard = soon(call).await.expect("no panic").expect("granted");
    guard.unlock().await.expect("held until now");
}

/// Acquires a lock, checks that another owner is excluded, and wakes that owner's waiter by the unlock. Returns the
/// time from before the unlock until the waiter has acquired and released the lock.
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

/// Returns the channel of a lock of this name, which has no hash tag.
pub fn channel(name: &str) -> String {
    format!("redisson_lock__channel:{{{name}}}")
}

/// Returns how many connections listen to a lock's channel, or to the channels that clients in the turn order have next
/// to it. The first of these clients may listen to both.
pub fn subscribers(probe: &mut Connection, channel: &str) -> i64 {
    subscribers_by(probe, ["CHANNELS", "NUMSUB"], channel)
}

/// Returns the same, by other subcommands of `PUBSUB`: the first lists channels, and the second counts subscribers.
pub fn subscribers_by(probe: &mut Connection, [list, count]: [&str; 2], channel: &str) -> i64 {
    let pattern = format!("{channel}:*/????????-????-*");
    let mut own = probe.command(&["PUBSUB", list, &pattern]).texts();
    // Those of a lock whose name goes on with a colon are another lock's.
    own.retain(|own| !own[channel.len() + 1..].contains(':'));
    let mut words = vec!["PUBSUB", count, channel];
    words.extend(own.iter().map(String::as_str));
    let counts = probe.command(&words).array();
    let mut counts = counts.iter().skip(1).step_by(2).map(Reply::int);
    let common = counts.next().unwrap_or(0);
    common.max(counts.sum())
}

/// Returns the name of a client in turn orders, acquisition fields and channels.
pub fn name_of(client: &Client) -> String {
    format!("{}/{}", client.label(), client.id())
}

/// Returns the channel on which a client that holds a lock for longer is told that it was released by force.
pub fn own_channel(client: &Client) -> String {
    format!("redlatch:{}", name_of(client))
}

/// Waits until a client that holds a lock listens there, and has checked whether its lock was released before.
pub async fn eventually_attending(probe: &mut Connection, client: &Client) {
    eventually("it listens, and has checked", async || {
        let count = probe.command(&["PUBSUB", "NUMSUB", &own_channel(client)]);
        count.array()[1].int() == 1 && calls_of(probe, "hget") > 0
    })
    .await;
}

/// Waits until this number of connections listen for the unlocks of this lock.
pub async fn eventually_heard(server: &Server, name: &str, connections: i64) {
    eventually_listening(server, &channel(name), connections).await;
}

/// Waits until this number of connections listen to this channel.
pub async fn eventually_listening(server: &Server, channel: &str, connections: i64) {
    let mut probe = server.connection();
    eventually("waiters listen", async || {
        subscribers(&mut probe, channel) == connections
    })
    .await;
}

/// Waits until this number of the client's calls stand in the local queue, and the call at the front is parked.
pub async fn eventually_waiting(client: &Client, calls: usize) {
    let waiting = format!("waiting: {calls}, channels: 1,");
    eventually(&waiting, async || format!("{client:?}").contains(&waiting)).await;
}

pub async fn eventually_free(server: &Server, name: &str) {
    let mut probe = server.connection();
    let what = format!("{name} is gone");
    eventually(&what, async || !probe.exists(name)).await;
}

/// Returns how often each command ran since [`reset_calls`], inside scripts too. Leaves out `CONFIG`, which resets the
/// counts.
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

/// Returns how many script calls the server has answered, whatever the answer.
pub fn scripts_run(probe: &mut Connection) -> u64 {
    calls_of(probe, "eval") + calls_of(probe, "evalsha")
}

pub fn reset_calls(probe: &mut Connection) {
    probe.command(&["CONFIG", "RESETSTAT"]);
}

/// Whether the server is older than Redis 7.
pub fn is_before_7(server: &Server) -> bool {
    let asked = server.connection().command(&["PUBSUB", "SHARDNUMSUB"]);
    matches!(asked, Reply::Error(_))
}

/// Waits until no client has left anything: no key, no channel, no entry in the clients' maps.
pub async fn nothing_left<const N: usize>(server: &Server, clients: [&Client; N]) {
    for client in clients {
        eventually_idle(client).await;
    }
    let mut probe = server.connection();
    eventually("no channel is left", async || probe.channels().is_empty()).await;
    eventually("no key is left", async || probe.keys().is_empty()).await;
}
