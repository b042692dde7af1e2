//! Failovers of a real set: a primary, two replicas, three sentinels.
#![allow(
    clippy::expect_used,
    clippy::unwrap_used,
    reason = "a test fails by panicking"
)]
#![allow(unreachable_pub, reason = "shared with other test files")]

#[path = "support/family.rs"]
mod family;
mod support;

use std::time::{Duration, Instant};

use family::{Guard, Lock};
use redlatch::{Client, ErrorKind, FairLock, ReentrantLock};
use redlatch_testkit::{Sentinels, Server};
use support::probe::{kind, secs};
use support::{builder, eventually};

/// What is promised beside the time of the failover itself.
const NOTICE: Duration = Duration::from_secs(2);

async fn client(set: &Sentinels) -> Client {
    let builder = builder(set.url()).poll_cap(secs(60));
    builder.build().await.unwrap()
}

async fn replicated(set: &Sentinels, keys: &[&str]) {
    for replica in set.replicas() {
        let mut copy = replica.connection();
        eventually("the hold is replicated", async || {
            keys.iter().all(|key| copy.exists(key))
        })
        .await;
    }
}

/// Kills the primary; when the sentinels have agreed on another.
async fn fail_over(set: &Sentinels) -> (&Server, Instant) {
    set.primary().kill();
    let end = Instant::now() + secs(30);
    loop {
        if let Some(server) = set.promoted() {
            return (server, Instant::now());
        }
        assert!(Instant::now() < end, "no failover");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// A hold that was replicated goes on, and who waits for it gets in when it ends.
async fn waits_through_a_failover<L: Lock>() {
    let set = Sentinels::start();
    let (holder, other) = (client(&set).await, client(&set).await);
    let guard = L::of(&holder, "k").lease(secs(60)).lock().await.unwrap();
    let kept = L::of(&holder, "kept").lock().await.unwrap();
    replicated(&set, &["k", "kept"]).await;
    let lock = L::of(&other, "k");
    let waiter = tokio::spawn(async move { lock.try_lock_for(secs(60)).await });
    eventually("the waiter listens", async || {
        format!("{other:?}").contains("channels: 1")
    })
    .await;

    let (server, _) = fail_over(&set).await;
    eventually("the hold is confirmed", async || {
        guard.verify().await.is_ok()
    })
    .await;
    assert!(!guard.is_lost() && !kept.is_lost());
    assert!(server.connection().exists("k"));
    eventually("the waiter listens there", async || {
        let channels = server.connection().channels();
        channels
            .iter()
            .any(|channel| channel.starts_with("redisson_lock__channel:{k}"))
    })
    .await;
    guard.unlock().await.unwrap();
    let released = Instant::now();
    let next = waiter.await.unwrap().unwrap().expect("granted in time");
    // Long before the poll cap, and before the lease.
    assert!(released.elapsed() < NOTICE, "{:?}", released.elapsed());
    next.unlock().await.unwrap();
    kept.unlock().await.unwrap();
    holder.close().await;
    other.close().await;
}

/// A hold that was not replicated is lost, its holder learns of it, and who waits for it gets in.
async fn holds_through_a_failover<L: Lock>() {
    let set = Sentinels::start();
    let (holder, other) = (client(&set).await, client(&set).await);
    let fixed = L::of(&holder, "fixed")
        .lease(secs(60))
        .lock()
        .await
        .unwrap();
    let renewed = L::of(&holder, "renewed").lock().await.unwrap();
    let lock = L::of(&other, "fixed");
    let waiter = tokio::spawn(async move { lock.try_lock_for(secs(60)).await });
    eventually("the waiter listens", async || {
        format!("{other:?}").contains("channels: 1")
    })
    .await;
    replicated(&set, &["fixed", "renewed"]).await;
    // As if the replicas had lagged behind: asynchronous replication promises nothing else.
    for replica in set.replicas() {
        replica.connection().command(&["FLUSHALL"]);
    }
    let (_, promoted) = fail_over(&set).await;
    for guard in [&fixed, &renewed] {
        let lost = tokio::time::timeout(secs(10), guard.lost());
        lost.await.expect("lost() fires");
    }
    assert!(promoted.elapsed() < NOTICE, "{:?}", promoted.elapsed());
    let next = waiter.await.unwrap().unwrap().expect("granted in time");
    assert!(promoted.elapsed() < NOTICE * 2, "{:?}", promoted.elapsed());
    assert_eq!(kind(fixed.unlock().await), ErrorKind::LeaseLost);
    next.verify().await.unwrap();
    next.unlock().await.unwrap();
    holder.close().await;
    other.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reentrant_lock_is_waited_for_through_a_failover() {
    waits_through_a_failover::<ReentrantLock>().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fair_lock_is_waited_for_through_a_failover() {
    waits_through_a_failover::<FairLock>().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reentrant_lock_that_a_failover_loses_is_told_of() {
    holds_through_a_failover::<ReentrantLock>().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fair_lock_that_a_failover_loses_is_told_of() {
    holds_through_a_failover::<FairLock>().await;
}
