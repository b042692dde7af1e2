//! The warning of a call that waits for a lock whose holder may be waiting for that call.

use std::sync::Arc;
use std::time::Duration;

use redlatch::{Client, DistributedGuard, DistributedLock, MultiLock, Owner};
use redlatch_testkit::Server;
use tempfile::NamedTempFile;
use tokio::time::{Instant, sleep};
use tracing::subscriber::DefaultGuard;
use tracing_subscriber::util::SubscriberInitExt;

use crate::support::probe::{acquiring, eventually_waiting, passes, soon, stranger};
use crate::support::{builder, eventually};

const LEASE: Duration = Duration::from_millis(300);
const MAY_NEVER_END: &str = "Owner::current().scope(..)";

/// The warnings of the tasks on this thread, which are all those of a test.
struct Log {
    file: NamedTempFile,
    _subscriber: DefaultGuard,
}

impl Log {
    fn begin() -> Self {
        let file = NamedTempFile::new().unwrap();
        let subscriber = tracing_subscriber::fmt()
            .with_max_level(tracing_subscriber::filter::LevelFilter::WARN)
            .with_ansi(false)
            .with_writer(Arc::new(file.reopen().unwrap()));
        let _subscriber = subscriber.set_default();
        Self { file, _subscriber }
    }

    /// Returns the warnings of waits that have these words.
    fn lines(&self, words: &[&str]) -> Vec<String> {
        let text = std::fs::read_to_string(self.file.path()).unwrap();
        let words = ["WARN", "redlatch::session::watchdog::report"]
            .iter()
            .chain(words);
        let told = |line: &&str| words.clone().all(|word| line.contains(word));
        text.lines().filter(told).map(str::to_owned).collect()
    }

    async fn tells(&self, words: &[&str]) -> String {
        let shown = format!("the log has a line with {words:?}");
        eventually(&shown, async || !self.lines(words).is_empty()).await;
        self.lines(words).remove(0)
    }
}

async fn client_of(server: &Server) -> Client {
    let builder = builder(server.url()).watchdog_lease(LEASE);
    builder.build().await.unwrap()
}

#[tokio::test]
async fn child_that_waits_for_its_parent_is_told_of_once_with_what_to_do() {
    let (server, log) = (Server::start(), Log::begin());
    let client = client_of(&server).await;
    let (orders, stock) = (client.lock("orders"), client.lock("stock"));
    let began = Instant::now();
    let parents = [orders.lock().await.unwrap(), stock.lock().await.unwrap()];
    let parent = Owner::current();
    let lock = orders.clone();
    let child = tokio::spawn(async move { (Owner::current(), lock.lock().await) });
    eventually_waiting(&client, 1).await;

    let told = log.tells(&["orders", MAY_NEVER_END]).await;
    assert!(began.elapsed() >= LEASE, "{:?}", began.elapsed());
    for words in [
        "lock=\"orders\"",
        &format!("holder={} {parent}", client.label()),
        "waited=",
        "redlatch::pitfalls",
    ] {
        assert!(told.contains(words), "{words} in {told}");
    }
    // Neither of the same hold nor, within a minute, of another one.
    let other = acquiring(&stock);
    eventually("it waits", async || {
        format!("{client:?}").contains("waiting: 2,")
    })
    .await;
    sleep(LEASE * 4).await;
    let all = log.lines(&[]);
    assert_eq!(all.len(), 1, "{all:#?}");

    drop(parents);
    let (owner, guard) = soon(child).await.unwrap();
    assert!(
        told.contains(&format!("owner={} {owner} ", client.label())),
        "{owner} in {told}"
    );
    drop(guard);
    passes(other).await;
    client.close().await;
}

#[tokio::test]
async fn wait_for_locks_that_were_acquired_in_two_orders_is_told_of_once() {
    let (server, log) = (Server::start(), Log::begin());
    let client = client_of(&server).await;
    let [left, right] = ["left", "right"].map(Owner::named);
    let [a, b] = ["a", "b"].map(|name| client.lock(name));
    let a_held = a.clone().owned_by(&left).lock().await.unwrap();
    let b_held = b.clone().owned_by(&right).lock().await.unwrap();
    let lefts = tokio::spawn({
        let b = b.owned_by(&left);
        async move { b.lock().await }
    });
    let rights = tokio::spawn({
        let a = a.owned_by(&right);
        async move { a.lock().await }
    });
    let told = log.tells(&["acquire its locks in one order"]).await;
    let (lock, waits, holds) = match told.contains("lock=\"a\"") {
        true => ("a", "right", "left"),
        false => ("b", "left", "right"),
    };
    let label = client.label();
    let words = format!("lock=\"{lock}\" owner={label} {waits} holder={label} {holds} waited=");
    assert!(told.contains(&words), "{words} in {told}");
    sleep(LEASE * 2).await;
    assert_eq!(log.lines(&[]).len(), 1);
    drop((a_held, b_held));
    for waiter in [lefts, rights] {
        passes(waiter).await;
    }
    client.close().await;
}

/// Has one task wait for what another one holds, and expects that to be told.
async fn is_told<H: DistributedLock, W: DistributedLock>(
    (server, log): (&Server, &Log),
    name: &'static str,
    holds: impl Fn(&Client, &'static str) -> H,
    waits: impl Fn(&Client, &'static str) -> W,
) {
    let client = client_of(server).await;
    let held = holds(&client, name).lock().await.unwrap();
    let waits = waits(&client, name);
    let waiting = tokio::spawn(async move { waits.lock().await });
    let lock = format!("lock=\"{name}\"");
    log.tells(&[&lock, MAY_NEVER_END]).await;
    held.unlock().await.unwrap();
    drop(soon(waiting).await.unwrap());
    client.close().await;
}

#[tokio::test]
async fn wait_for_a_lock_of_any_kind_is_told_of() {
    let (server, log) = (Server::start(), Log::begin());
    let at = (&server, &log);
    is_told(at, "fair", Client::fair_lock, Client::fair_lock).await;
    is_told(at, "fenced", Client::fenced_lock, Client::fenced_lock).await;
    is_told(at, "plain", Client::plain_lock, Client::plain_lock).await;
    is_told(at, "spin", Client::spin_lock, Client::spin_lock).await;
    let reader = |client: &Client, name: &'static str| client.read_write_lock(name).reader();
    let writer = |client: &Client, name: &'static str| client.read_write_lock(name).writer();
    is_told(at, "rw", reader, writer).await;
    is_told(at, "wr", writer, reader).await;
    is_told(at, "ww", writer, writer).await;
    let set =
        |client: &Client, name: &'static str| MultiLock::new([client.lock(name), client.lock("b")]);
    is_told(at, "set", Client::lock, set).await;
    is_told(at, "part", set, Client::lock).await;
}

#[tokio::test]
async fn long_contention_of_short_holds_and_other_waits_are_not_told_of() {
    let (server, log) = (Server::start(), Log::begin());
    let (client, other) = (client_of(&server).await, client_of(&server).await);
    let lock = client.lock("k");
    let mut waiters = Vec::new();
    for _ in 0..8 {
        let lock = stranger(&lock);
        waiters.push(tokio::spawn(async move {
            let guard = lock.lock().await.unwrap();
            sleep(LEASE / 2).await;
            guard.unlock().await.unwrap();
        }));
    }
    // Nor of a hold whose lease ends, nor of one that only another process waits for.
    let fixed = client.lock("fixed").lease(LEASE * 4).lock().await.unwrap();
    let fixed_waiter = acquiring(&client.lock("fixed"));
    let held = client.lock("held").lock().await.unwrap();
    let elsewhere = acquiring(&other.lock("held"));
    // Nor of a candidate that waits for a leader.
    let term = client.leader("leader").campaign().await.unwrap();
    let election = client.leader("leader");
    let candidate = tokio::spawn(async move { election.campaign().await });
    for waiter in waiters {
        soon(waiter).await.unwrap();
    }
    assert_eq!(log.lines(&[]), [""; 0]);

    // This client tells of the next that waits for long.
    let waiter = acquiring(&client.lock("held"));
    log.tells(&["lock=\"held\"", MAY_NEVER_END]).await;
    drop((fixed, held, term));
    drop(soon(candidate).await.unwrap());
    tokio::join!(passes(fixed_waiter), passes(elsewhere), passes(waiter));
    for client in [client, other] {
        client.close().await;
    }
}
