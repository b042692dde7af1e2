//! The read-write lock of both sides: readers share it, a writer excludes all, and each release wakes the other side.

use std::time::{Duration, Instant};

use super::{Both, JAVA_THREADS, LONG, MACHINE, RUST_TASKS, churn_java, churn_rust};
use crate::jvm::{Jvm, keys, nothing_left, tell};
use crate::support::probe::{kind, millis, secs, soon};
use crate::support::{client, eventually, eventually_idle};
use redlatch::{Client, ErrorKind, Owner};
use redlatch_testkit::{Server, skip};

#[tokio::test]
async fn readers_of_both_sides_share_and_writers_exclude_all() {
    let Some(both) = Both::start(LONG).await else {
        return;
    };
    let ours = both.client.read_write_lock("k").owned_by(&Owner::unique());
    let (reads, writes) = (both.jvm.read_lock("k", 1), both.jvm.write_lock("k", 2));

    // Either side acquires first, and either side releases last.
    for java_first in [true, false] {
        for java_stays in [true, false] {
            if java_first {
                assert!(reads.lock().await);
            }
            let guard = ours.read().await.unwrap();
            if !java_first {
                assert!(reads.lock().await);
            }
            assert!(!writes.try_lock().await && ours.writer().is_held().await.is_ok());
            if java_stays {
                guard.unlock().await.unwrap();
                assert!(!writes.try_lock().await, "Java reads");
                assert!(reads.unlock().await);
            } else {
                assert!(reads.unlock().await);
                assert!(!writes.try_lock().await, "we read");
                guard.verify().await.unwrap();
                guard.unlock().await.unwrap();
            }
            assert_eq!(keys(&both.server), [""; 0]);
        }
    }
    let guard = ours.write().await.unwrap();
    assert!(!reads.try_lock().await && !writes.try_lock().await);
    guard.unlock().await.unwrap();
    assert!(writes.lock().await);
    assert!(ours.try_read().await.unwrap().is_none());
    assert!(ours.try_write().await.unwrap().is_none());
    assert!(writes.unlock().await);
    both.nothing_left().await;
}

#[tokio::test]
async fn releases_of_both_sides_wake_readers_and_writers_of_the_other() {
    let Some(both) = Both::start(LONG).await else {
        return;
    };
    let ours = both.client.read_write_lock("k").owned_by(&Owner::unique());
    let (reads, writes) = (both.jvm.read_lock("k", 1), both.jvm.write_lock("k", 2));

    // A writer that goes on reading after its write level is released lets Java's readers in; Redisson's own does not.
    let write = ours.write().await.unwrap();
    let read = ours.read().await.unwrap();
    let reader = both.parked(1, || reads.lock()).await;
    write.unlock().await.unwrap();
    assert!(soon(reader).await);
    assert!(reads.unlock().await);
    let writer = both.parked(1, || writes.lock()).await;
    read.unlock().await.unwrap();
    assert!(soon(writer).await);

    let lock = ours.clone();
    let reader = both
        .parked_ours(|| tokio::spawn(async move { lock.read().await }))
        .await;
    assert!(writes.unlock().await);
    let guard = soon(reader).await.unwrap().unwrap();
    guard.unlock().await.unwrap();

    assert!(reads.lock().await);
    let lock = ours.clone();
    let writer = both
        .parked_ours(|| tokio::spawn(async move { lock.write().await }))
        .await;
    assert!(reads.unlock().await);
    let guard = soon(writer).await.unwrap().unwrap();
    let other = both.jvm.read_lock("k", 3);
    let (reader, next) = both.parked(2, || (reads.lock(), other.lock())).await;
    guard.unlock().await.unwrap();
    assert!(soon(reader).await && soon(next).await, "all are woken");
    assert!(reads.unlock().await && other.unlock().await);
    let guard = ours.write().await.unwrap();
    let writer = both.parked(1, || writes.lock()).await;
    guard.unlock().await.unwrap();
    assert!(soon(writer).await && writes.unlock().await);
    both.nothing_left().await;
}

#[tokio::test]
async fn java_reader_that_renews_and_dies_leaves_a_long_lease_of_ours_standing() {
    let Some(both) = Both::start_mortal(secs(3)).await else {
        return;
    };
    let ours = both.client.read_write_lock("k").owned_by(&Owner::unique());
    let guard = ours.clone().lease(LONG).read().await.unwrap();
    let mut probe = both.server.connection();
    let known = probe.keys();
    let level = known.iter().find(|key| *key != "k").expect("a level's");
    assert!(probe.pttl(level) > 50_000);
    assert!(both.jvm.read_lock("k", 1).lock().await);
    eventually("its renewal cuts the hash down", async || {
        probe.pttl("k") <= 3_000
    })
    .await;
    let cut = probe.pttl(level) <= 3_000;
    both.jvm.kill();
    tokio::time::sleep(secs(4)).await;
    if cut {
        assert_eq!(kind(guard.verify().await), ErrorKind::LeaseLost);
        skip(
            "redisson",
            "here a reader's renewal cuts other readers' leases",
        );
        return;
    }
    guard.verify().await.unwrap();
    assert!(probe.pttl("k") > 50_000);
    let stranger = ours.owned_by(&Owner::unique());
    assert!(stranger.try_write().await.unwrap().is_none());
    guard.unlock().await.unwrap();
    let guard = stranger.try_write().await.unwrap();
    guard.expect("nobody lives").unlock().await.unwrap();
    both.nothing_left().await;
}

/// Java's readers pass every waiter, and keep a writer out as long as more of them arrive.
#[tokio::test]
async fn reader_waits_a_second_at_most_behind_a_writer_whom_javas_readers_pass() {
    let Some(both) = Both::start(LONG).await else {
        return;
    };
    let somebody = |client: &Client| client.read_write_lock("k").owned_by(&Owner::unique());
    let other = client(&both.server).await;
    let threads = [1, 2].map(|thread| both.jvm.read_lock("k", thread));
    assert!(threads[0].lock().await);
    let (stop, mut stopped) = tokio::sync::oneshot::channel();
    // One or the other thread holds the lock at any time.
    let stream = tokio::spawn(async move {
        let mut turns = 0;
        while stopped.try_recv().is_err() {
            let [reads, next] = [0, 1].map(|n| &threads[(turns + n) % 2]);
            assert!(next.lock().await && reads.unlock().await);
            turns += 1;
        }
        assert!(threads[turns % 2].unlock().await);
        turns
    });
    let writer = somebody(&other);
    let writer = tokio::spawn(async move { writer.write().await });
    let mut probe = both.server.connection();
    eventually("the writer waits", async || {
        probe.exists("redlatch_rwlock_writer:{k}")
    })
    .await;
    let mut waits = Vec::new();
    // Readers outside the writer's process, and in it.
    for client in [&both.client, &other, &both.client, &other] {
        let asked = Instant::now();
        let guard = somebody(client).try_read_for(secs(4)).await.unwrap();
        waits.push(asked.elapsed());
        guard.expect("in its turn").unlock().await.unwrap();
    }
    assert!(!writer.is_finished(), "Java has read all the time");
    stop.send(()).unwrap();
    let turns = stream.await.unwrap();
    tell(&format!(
        "readers behind a writer waited {waits:.0?} beside {turns} turns of Java's"
    ));
    for waited in waits {
        // A reader respects the writer's mark for a second; the upper limit leaves room for a loaded machine.
        assert!((millis(900)..millis(2_000)).contains(&waited), "{waited:?}");
    }
    soon(writer).await.unwrap().unwrap().unlock().await.unwrap();
    both.nothing_left().await;
}

#[tokio::test]
async fn levels_of_a_write_lock_that_java_forced_go_with_our_next_call() {
    let Some(both) = Both::start(LONG).await else {
        return;
    };
    let ours = both.client.read_write_lock("k").owned_by(&Owner::unique());
    let other = ours.clone().owned_by(&Owner::unique());
    let java = both.jvm.write_lock("k", 1);
    for call in [
        "unlock",
        "drop",
        "verify",
        "extend",
        "reenter",
        "write",
        "write by another",
        "read",
    ] {
        let guard = ours.write().await.unwrap();
        let inner = ours.write().await.unwrap();
        assert!(java.force_unlock().await);
        assert_eq!(keys(&both.server).len(), 2, "one for each level");
        let lost = match call {
            "unlock" => inner.unlock().await,
            "drop" => {
                drop(inner);
                guard.verify().await
            }
            "verify" => guard.verify().await,
            "extend" => guard.extend(LONG).await,
            "reenter" => guard.reenter().await.map(drop),
            "write" => {
                ours.write().await.unwrap().unlock().await.unwrap();
                guard.verify().await
            }
            "read" => {
                other.read().await.unwrap().unlock().await.unwrap();
                soon(guard.lost()).await;
                guard.verify().await
            }
            _ => {
                other.write().await.unwrap().unlock().await.unwrap();
                guard.verify().await
            }
        };
        assert_eq!(kind(lost), ErrorKind::LeaseLost, "{call}");
        eventually("nothing stays", async || keys(&both.server).is_empty()).await;
    }
    both.nothing_left().await;
}

/// Measures how many grants each side gets of a lock that both want to write all the time.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn writers_of_both_sides_share_a_counter() {
    const LASTS: Duration = Duration::from_secs(4);
    let _machine = MACHINE.write().await;
    let server = Server::start();
    let Some(jvm) = Jvm::start(&server, secs(30)).await else {
        return;
    };
    let mut probe = server.connection();
    probe.command(&["SET", "counter", "0"]);
    let client = client(&server).await;
    let lock = client.read_write_lock("k").writer();
    let (ours, java) = tokio::join!(
        churn_rust(&lock, &server, LASTS),
        churn_java(|thread| jvm.write_lock("k", thread), LASTS)
    );
    tell(&format!(
        "{RUST_TASKS} tasks write: {} grants, longest wait {:.0?}; {JAVA_THREADS} Java threads write: {} grants, longest \
         wait {:.0?}",
        ours.grants, ours.longest_wait, java.grants, java.longest_wait
    ));
    let counted = probe.command(&["GET", "counter"]).text();
    assert_eq!(
        counted,
        (ours.grants + java.grants).to_string(),
        "no update is lost"
    );
    assert!(ours.grants > 0 && java.grants > 0);
    eventually_idle(&client).await;
    probe.command(&["DEL", "counter"]);
    nothing_left(&server, []).await;
}
