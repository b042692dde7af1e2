//! Processes that no message reaches, or that are far away, beside a process that always wants the lock.

use crate::support::probe::{NEVER, millis, secs, soon, stranger};
use crate::support::{self, builder};
use redlatch::{Client, DistributedGuard, NamedLock};
use redlatch_testkit::{Proxy, Reply, Server};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

/// How many sections the process has to get, one after the other.
const SECTIONS: usize = 3;

/// Makes a client pass the lock on among eight tasks, until they are dropped.
fn busy(lock: &impl NamedLock) -> JoinSet<()> {
    let mut tasks = JoinSet::new();
    for _ in 0..8 {
        let lock = stranger(lock);
        tasks.spawn(async move {
            loop {
                let guard = lock.lock().await.unwrap();
                sleep(millis(1)).await;
                guard.unlock().await.unwrap();
            }
        });
    }
    tasks
}

async fn has_its_sections(lock: impl NamedLock, which: &str) {
    for section in 0..SECTIONS {
        let lock = stranger(&lock);
        let taken = timeout(secs(10), lock.lock()).await;
        let guard = taken.unwrap_or_else(|_| panic!("{which}: section {section}"));
        soon(guard.unwrap().unlock()).await.unwrap();
        // The others have it again.
        sleep(millis(50)).await;
    }
}

/// Returns a client of a user that lacks some permissions.
async fn limited(server: &Server, rules: &[&str]) -> Client {
    let user = ["ACL", "SETUSER", "app", "on", ">pw", "~*", "&*", "+@all"];
    let done = server.connection().command(&[&user[..], rules].concat());
    assert_eq!(done, Reply::Status("OK".to_owned()));
    let url = format!("redis://app:pw@127.0.0.1:{}", server.port());
    patient(url).await
}

/// Returns a client that never polls because of `poll_cap`.
async fn patient(url: String) -> Client {
    let builder = builder(url).watchdog_lease(secs(600)).poll_cap(NEVER / 2);
    builder.command_timeout(secs(5)).build().await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn process_that_may_not_subscribe_has_its_turn() {
    let server = Server::start();
    let many = patient(server.url()).await;
    let _busy = busy(&many.lock("k"));
    let one = limited(&server, &["-subscribe", "-ssubscribe"]).await;
    has_its_sections(one.lock("k"), "no SUBSCRIBE").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn process_whose_subscription_is_not_answered_has_its_turn() {
    let server = Server::start();
    let proxy = Proxy::start(server.port()).await;
    let many = patient(server.url()).await;
    let _busy = busy(&many.lock("k"));
    let one = patient(proxy.url()).await;
    // One for each connection that tries.
    let _gates: Vec<_> = (0..50).map(|_| proxy.stop("SUBSCRIBE")).collect();
    has_its_sections(one.fenced_lock("k"), "unanswered").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn process_that_may_not_publish_has_its_turn() {
    for both in [false, true] {
        let server = Server::start();
        let rules = ["-publish", "-spublish"];
        let one = limited(&server, &rules).await;
        let many = match both {
            true => limited(&server, &rules).await,
            false => patient(server.url()).await,
        };
        let _busy = busy(&many.lock("k"));
        has_its_sections(one.lock("k"), &format!("no PUBLISH, of both: {both}")).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn process_that_spins_has_its_turn() {
    let server = Server::start();
    let many = patient(server.url()).await;
    let _busy = busy(&many.lock("k"));
    let one = patient(server.url()).await;
    has_its_sections(one.spin_lock("k"), "spins").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn process_beside_one_that_spins_has_its_turn() {
    let server = Server::start();
    let many = patient(server.url()).await;
    let _busy = busy(&many.spin_lock("k"));
    let one = patient(server.url()).await;
    has_its_sections(one.lock("k"), "is told").await;
    has_its_sections(one.spin_lock("k"), "spins too").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn process_that_is_far_away_has_its_turn() {
    let server = Server::start();
    let proxy = Proxy::start(server.port()).await;
    let many = patient(server.url()).await;
    let _busy = busy(&many.lock("k"));
    let one = patient(proxy.url()).await;
    proxy.delay(millis(200));
    has_its_sections(one.lock("k"), "far away").await;
}

#[tokio::test]
async fn channels_that_nobody_waits_on_are_left_though_new_ones_come_without_a_pause() {
    let server = Server::start();
    let proxy = Proxy::start(server.port()).await;
    let holder = support::client(&server).await;
    let client = builder(proxy.url()).build().await.unwrap();
    // While one subscription is under way, there is always another call that needs the next.
    proxy.delay(millis(20));
    let mut guards = Vec::new();
    let mut calls = JoinSet::new();
    let everything = async {
        for number in 0.. {
            let name = number.to_string();
            guards.push(holder.lock(&name).lock().await.unwrap());
            let lock = client.lock(&name);
            calls.spawn(async move { lock.try_lock_for(millis(100)).await });
            sleep(millis(5)).await;
            let listened = format!("{client:?}");
            let (_, channels) = listened.split_once("channels: ").unwrap();
            let channels: usize = channels.split(',').next().unwrap().parse().unwrap();
            if number > 300 && channels < number / 2 {
                break;
            }
        }
    };
    soon(everything).await;
    calls.shutdown().await;
    client.close().await;
}
