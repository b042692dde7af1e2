//! The queue of a fair lock on the server, in which waiters of both sides stand.

use std::sync::{Arc, Mutex};

use super::{Both, LONG};
use crate::support::eventually;
use crate::support::probe::{millis, soon};
use redlatch::Owner;
use redlatch_testkit::Server;

/// Waits until `waiters` stand in the server queue of the fair lock `k`.
async fn eventually_queued(server: &Server, waiters: i64) {
    let mut probe = server.connection();
    eventually("they have their places", async || {
        let queue = probe.command(&["LLEN", "redisson_lock_queue:{k}"]);
        queue.int() == waiters
    })
    .await;
}

/// Java's grants take five minutes off every score, so that Java would regard a waiter with a small score as dead.
#[tokio::test]
async fn fair_queue_of_both_is_served_in_order_of_arrival() {
    let Some(both) = Both::start(LONG).await else {
        return;
    };
    let order = Arc::new(Mutex::new(Vec::new()));
    let first = both.jvm.fair_lock("k", 0);
    assert!(first.lock().await);
    let mut waiters = Vec::new();
    for number in 0..8 {
        let order = order.clone();
        let waiter = if number % 3 == 0 {
            let ours = both.client.fair_lock("k").owned_by(&Owner::unique());
            tokio::spawn(async move {
                let guard = ours.lock().await.unwrap();
                order.lock().unwrap().push(number);
                guard.unlock().await.unwrap();
            })
        } else {
            let java = both.jvm.fair_lock("k", number + 1);
            tokio::spawn(async move {
                assert!(java.lock().await);
                order.lock().unwrap().push(number);
                assert!(java.unlock().await);
            })
        };
        waiters.push(waiter);
        eventually_queued(&both.server, i64::from(number) + 1).await;
    }
    assert!(first.unlock().await);
    for waiter in waiters {
        soon(waiter).await.unwrap();
    }
    assert_eq!(*order.lock().unwrap(), (0..8).collect::<Vec<_>>());
    both.nothing_left().await;
}

/// Java has no priorities: its waiters go to the end, and waiters of ours that arrive later see them as priority 0.
#[tokio::test]
async fn priorities_of_ours_go_ahead_of_java_and_arrival_decides_between_equals() {
    let Some(both) = Both::start(LONG).await else {
        return;
    };
    let arrivals: [(&str, i32); 12] = [
        ("java", 0),
        ("ours", -1),
        ("ours", 1),
        ("ours", 0),
        ("java", 0),
        ("ours", 1),
        ("ours", -1),
        ("ours", 0),
        ("java", 0),
        ("ours", 1),
        ("java", 0),
        ("ours", -1),
    ];
    let mut expected: Vec<usize> = Vec::new();
    let order = Arc::new(Mutex::new(Vec::new()));
    let first = both.client.fair_lock("k").lock().await.unwrap();
    let mut waiters = Vec::new();
    for (number, (side, priority)) in arrivals.into_iter().enumerate() {
        let order = order.clone();
        let mut place = expected.len();
        let waiter = if side == "ours" {
            while place > 0 && arrivals[expected[place - 1]].1 < priority {
                place -= 1;
            }
            let ours = both.client.fair_lock("k").priority(priority);
            let ours = ours.owned_by(&Owner::unique());
            tokio::spawn(async move {
                let guard = ours.lock().await.unwrap();
                order.lock().unwrap().push(number);
                guard.unlock().await.unwrap();
            })
        } else {
            let java = both.jvm.fair_lock("k", number as u32 + 1);
            tokio::spawn(async move {
                assert!(java.lock().await);
                order.lock().unwrap().push(number);
                assert!(java.unlock().await);
            })
        };
        expected.insert(place, number);
        waiters.push(waiter);
        eventually_queued(&both.server, expected.len() as i64).await;
    }
    first.unlock().await.unwrap();
    for waiter in waiters {
        soon(waiter).await.unwrap();
    }
    assert_eq!(*order.lock().unwrap(), expected);
    both.nothing_left().await;
}

#[tokio::test]
async fn fair_lock_of_one_side_is_held_and_waited_for_on_the_other() {
    let Some(both) = Both::start(LONG).await else {
        return;
    };
    let (ours, java) = (both.client.fair_lock("k"), both.jvm.fair_lock("k", 1));
    for _ in 0..5 {
        let guard = ours.lock().await.unwrap();
        assert!(!java.try_lock().await);
        assert!(!java.try_lock_for(millis(100)).await);
        let waiting = tokio::spawn(java.lock());
        eventually_queued(&both.server, 1).await;
        let other = ours.clone().owned_by(&Owner::unique());
        assert!(other.try_lock().await.unwrap().is_none());
        guard.unlock().await.unwrap();
        assert!(soon(waiting).await.unwrap());

        // A waiter of ours that gives up leaves Java's queue as it was.
        assert!(ours.try_lock_for(millis(100)).await.unwrap().is_none());
        eventually_queued(&both.server, 0).await;
        let task = tokio::spawn({
            let ours = ours.clone();
            async move { ours.lock().await.unwrap().unlock().await.unwrap() }
        });
        eventually_queued(&both.server, 1).await;
        java.unlock().await;
        soon(task).await.unwrap();
    }
    both.nothing_left().await;
}
