//! Latches and semaphores that both sides count.

use std::time::{Duration, Instant};

use super::{Both, LONG};
use crate::support::eventually;
use crate::support::probe::{NEVER, kind, millis, reset_calls, secs, soon, subscribers};
use redlatch::ErrorKind;
use redlatch::semaphore::PermitId;
use tokio::time::timeout;

#[tokio::test]
async fn latch_is_counted_down_by_both_and_wakes_both() {
    let Some(both) = Both::start(LONG).await else {
        return;
    };
    for name in ["l", "{t}:l"] {
        let (ours, java) = (both.client.latch(name), both.jvm.latch(name, 1));
        let waiter = both.jvm.latch(name, 2);
        let begin_waiting = async || {
            let mut probe = both.server.connection();
            reset_calls(&mut probe);
            let channel = format!("redisson_countdownlatch__channel__{{{name}}}");
            let latch = ours.clone();
            let here = tokio::spawn(async move { latch.wait_for(NEVER).await });
            let there = tokio::spawn(waiter.ask::<bool>("wait"));
            eventually("both listen", async || {
                subscribers(&mut probe, &channel) == 2
            })
            .await;
            // Each side looks once more after it has subscribed.
            tokio::time::sleep(millis(200)).await;
            (here, there)
        };
        for java_is_last in [true, false] {
            assert!(ours.try_set_count(2).await.unwrap());
            assert!(!java.ask::<bool>("set 5").await);
            assert_eq!(java.ask::<u32>("count").await, 2);
            let (here, there) = begin_waiting().await;
            if java_is_last {
                ours.count_down().await.unwrap();
                assert!(!here.is_finished() && !there.is_finished());
                java.ask::<bool>("down").await;
            } else {
                java.ask::<bool>("down").await;
                assert_eq!(ours.count().await.unwrap(), 1);
                ours.count_down().await.unwrap();
            }
            assert!(soon(here).await.unwrap().unwrap() && soon(there).await.unwrap());
        }
        // Our `delete` opens the latch for Java's waiters too; Java's own leaves Java's waiters waiting, but not ours.
        assert!(java.ask::<bool>("set 7").await);
        let (here, there) = begin_waiting().await;
        assert!(ours.delete().await.unwrap());
        assert!(soon(here).await.unwrap().unwrap() && soon(there).await.unwrap());
        assert!(java.ask::<bool>("set 7").await);
        let latch = ours.clone();
        let here = tokio::spawn(async move { latch.wait_for(NEVER).await });
        let mut probe = both.server.connection();
        let channel = format!("redisson_countdownlatch__channel__{{{name}}}");
        eventually("we listen", async || subscribers(&mut probe, &channel) >= 1).await;
        assert!(java.ask::<bool>("delete").await);
        assert!(soon(here).await.unwrap().unwrap());
    }
}

/// All waits here end by a message, or not in time.
#[tokio::test]
async fn permits_of_a_semaphore_go_to_and_fro() {
    let Some(both) = Both::start(LONG).await else {
        return;
    };
    for name in ["s", "{t}:s"] {
        let (ours, java) = (both.client.semaphore(name), both.jvm.semaphore(name, 1));
        assert!(java.ask::<bool>("set 3").await);
        assert!(!ours.try_set_permits(9).await.unwrap());
        let two = ours.acquire_many(2).await.unwrap();
        assert_eq!(java.ask::<i32>("available").await, 1);
        assert!(!java.ask::<bool>("try 2").await);
        assert!(java.ask::<bool>("acquire 1").await);
        assert!(ours.try_acquire().await.unwrap().is_none());

        let waiter = both.jvm.semaphore(name, 2);
        let waiting = both.parked(1, || tokio::spawn(waiter.ask::<bool>("acquire 2")));
        let waiting = waiting.await;
        two.release().await.unwrap();
        assert!(soon(waiting).await.unwrap());

        let here = ours.clone();
        let waiting = both.parked_ours(|| tokio::spawn(async move { here.acquire_many(3).await }));
        let waiting = waiting.await;
        assert!(java.ask::<bool>("release 1").await);
        assert!(java.ask::<bool>("release 2").await);
        let three = soon(waiting).await.unwrap().unwrap();

        // Taking permits away wakes nobody, and breaks nobody's wait.
        let waiter = both.jvm.semaphore(name, 2);
        let waiting = both.parked(1, || tokio::spawn(waiter.ask::<bool>("acquire 1")));
        let waiting = waiting.await;
        ours.add_permits(-2).await.unwrap();
        assert_eq!(java.ask::<i32>("available").await, -2);
        drop(three);
        assert!(soon(waiting).await.unwrap());
        assert!(java.ask::<bool>("add 4").await);
        assert_eq!(ours.available_permits().await.unwrap(), 4);
        assert_eq!(java.ask::<u32>("drain").await, 4);
        ours.release(2).await.unwrap();
        assert_eq!(ours.drain_permits().await.unwrap(), 2);
        assert_eq!(java.ask::<i32>("available").await, 0);
        both.server.connection().command(&["DEL", name]);
    }
    both.nothing_left().await;
}

#[tokio::test]
async fn ids_of_permits_cross_over_and_their_leases_count_for_both() {
    let Some(both) = Both::start(LONG).await else {
        return;
    };
    for name in ["e", "{t}:e"] {
        let ours = both.client.expirable_semaphore(name);
        let java = both.jvm.expirable_semaphore(name, 1);
        assert!(ours.try_set_permits(2).await.unwrap());
        let permit = ours.clone().lease(secs(60)).acquire().await.unwrap();
        let theirs: String = java.ask("acquire").await;
        let id: PermitId = theirs.parse().unwrap();
        assert_eq!(id.to_string(), theirs);
        assert!(ours.try_acquire().await.unwrap().is_none());
        assert_eq!(java.ask::<String>("try").await, "null");
        assert_eq!(java.ask::<u32>("available").await, 0);

        // Each side returns the other's permits.
        assert!(
            java.ask::<bool>(&format!("extend {} 50000", permit.id()))
                .await
        );
        assert!(java.ask::<bool>(&format!("release {}", permit.id())).await);
        assert_eq!(kind(permit.release().await), ErrorKind::LeaseLost);
        assert!(ours.release_permit(&id).await.unwrap());
        assert!(!java.ask::<bool>(&format!("release {theirs}")).await);
        assert_eq!(ours.available_permits().await.unwrap(), 2);

        // Each side wakes the other.
        let all = ours.acquire_many(2).await.unwrap();
        let waiter = both.jvm.expirable_semaphore(name, 2);
        let waiting = both.parked(1, || tokio::spawn(waiter.ask::<String>("acquire")));
        let waiting = waiting.await;
        all.release().await.unwrap();
        let theirs = soon(waiting).await.unwrap();
        let here = ours.clone();
        let waiting = both.parked_ours(|| tokio::spawn(async move { here.acquire_many(2).await }));
        let waiting = waiting.await;
        assert!(java.ask::<bool>(&format!("release {theirs}")).await);
        soon(waiting)
            .await
            .unwrap()
            .unwrap()
            .release()
            .await
            .unwrap();

        // A permit that is never returned becomes free for the other side when its lease ends, without a message.
        let brief = ours.clone().lease(millis(700));
        brief.acquire_many(2).await.unwrap().forget();
        let theirs: String = soon(java.ask("lease 700")).await;
        let theirs_too: String = soon(java.ask("lease 700")).await;
        assert_ne!(theirs, theirs_too);
        let both_back = soon(ours.acquire_many(2)).await.unwrap();
        both_back.release().await.unwrap();
        assert_eq!(java.ask::<u32>("available").await, 2);
        both.server.connection().command(&["DEL", name]);
    }
    both.nothing_left().await;
}

/// Java takes the number in a message for how many of its waiters to wake, and throws at a number below zero.
#[tokio::test]
async fn permits_that_come_back_below_none_tell_java_nothing_and_those_above_wake_it() {
    let Some(both) = Both::start(LONG).await else {
        return;
    };
    let ours = both.client.expirable_semaphore("e").lease(secs(600));
    assert!(ours.try_set_permits(2).await.unwrap());
    let mut heard = both
        .server
        .connection()
        .into_subscriber(&["redisson_sc:{e}"]);
    let all = ours.acquire_many(2).await.unwrap();
    let waiter = both.jvm.expirable_semaphore("e", 1);
    let waiting = both.parked(1, || tokio::spawn(waiter.ask::<String>("acquire")));
    let mut waiting = waiting.await;
    ours.add_permits(-3).await.unwrap();
    all.extend(millis(50)).await.unwrap();
    eventually("they come back", async || {
        ours.available_permits().await.unwrap() == -1
    })
    .await;
    assert!(heard.next(millis(300)).is_none());
    assert!(timeout(Duration::ZERO, &mut waiting).await.is_err());

    ours.add_permits(1).await.unwrap();
    assert!(heard.next(millis(300)).is_none());
    ours.add_permits(1).await.unwrap();
    let id: PermitId = soon(waiting).await.unwrap().parse().unwrap();
    assert_eq!(heard.next(secs(5)).unwrap().1, "1");
    assert!(ours.release_permit(&id).await.unwrap());
    assert_eq!(kind(all.release().await), ErrorKind::LeaseLost);
    both.server.connection().command(&["DEL", "e"]);
    drop(heard);
    eventually("no mark is left but with an end", async || {
        let mut probe = both.server.connection();
        probe.keys().iter().all(|key| probe.pttl(key) > 0)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_more_permits_are_out_than_there_are_on_both_sides_together() {
    const ALL: i64 = 3;
    const LASTS: Duration = Duration::from_secs(2);
    let Some(both) = Both::start(LONG).await else {
        return;
    };
    let ours = both.client.semaphore("s");
    assert!(ours.try_set_permits(ALL as u32).await.unwrap());
    let churn = format!("churn out {}", LASTS.as_millis());
    let javas: Vec<_> = (1..=4)
        .map(|thread| tokio::spawn(both.jvm.semaphore("s", thread).ask::<i64>(&churn)))
        .collect();
    let end = Instant::now() + LASTS;
    let tasks: Vec<_> = (0..8)
        .map(|_| {
            let (semaphore, mut probe) = (ours.clone(), both.server.connection());
            tokio::spawn(async move {
                let (mut most, mut grants) = (0, 0);
                while Instant::now() < end {
                    let permit = semaphore.acquire().await.unwrap();
                    most = most.max(probe.command(&["INCR", "out"]).int());
                    tokio::task::yield_now().await;
                    probe.command(&["DECR", "out"]);
                    drop(permit);
                    grants += 1;
                }
                assert!(grants > 0, "nothing was granted here");
                most
            })
        })
        .collect();
    let mut most = 0;
    for out in tasks.into_iter().chain(javas) {
        most = most.max(timeout(secs(30), out).await.unwrap().unwrap());
    }
    assert!((2..=ALL).contains(&most), "{most} were out");
    eventually("all are back", async || {
        ours.available_permits().await.unwrap() == ALL as i32
    })
    .await;
    both.server.connection().command(&["DEL", "s", "out"]);
    both.nothing_left().await;
}
