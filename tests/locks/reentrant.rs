//! What each method and query of the reentrant lock does to the caller and to the lock.

use std::time::Instant;

use crate::support::probe::{
    NEVER, acquiring, begin, calls_of, channel, eventually_free, eventually_heard, kind, millis,
    nothing_left, reset_calls, secs, soon, stranger, subscribers,
};
use crate::support::{builder, client, eventually, start, start_two};
use redlatch::{Client, ErrorKind, LockGuard, Owner};
use redlatch_testkit::Server;

#[tokio::test]
async fn queries_tell_of_a_held_lock_and_of_a_free_one() {
    let (server, client, other) = start_two().await;
    let (lock, seen) = (client.lock("k").lease(secs(20)), other.lock("k"));
    assert!(!lock.is_locked().await.unwrap());
    assert!(!lock.is_held().await.unwrap());
    assert_eq!(lock.hold_count().await.unwrap(), 0);
    assert_eq!(lock.remaining_lease().await.unwrap(), None);
    assert_eq!(lock.holder().await.unwrap(), None);

    let outer = lock.lock().await.unwrap();
    let inner = lock.lock().await.unwrap();
    for (handle, count) in [(&lock, 2), (&seen, 0), (&stranger(&lock), 0)] {
        assert!(handle.is_locked().await.unwrap());
        assert_eq!(handle.is_held().await.unwrap(), count > 0);
        assert_eq!(handle.hold_count().await.unwrap(), count);
        let left = handle.remaining_lease().await.unwrap().unwrap();
        assert!(left > secs(10) && left <= secs(20), "{left:?}");
        let holder = handle.holder().await.unwrap().unwrap();
        assert_eq!(holder.owner(), client.owner_field(outer.owner()));
        assert_eq!(holder.hold_count(), 2);
        assert!(holder.remaining_lease().unwrap() > secs(10));
    }

    inner.unlock().await.unwrap();
    assert_eq!(lock.hold_count().await.unwrap(), 1);
    outer.unlock().await.unwrap();
    assert!(!seen.is_locked().await.unwrap());
    nothing_left(&server, [&client, &other]).await;
}

#[tokio::test]
async fn try_lock_answers_none_to_everybody_but_the_owner() {
    let (server, client, other) = start_two().await;
    let lock = client.lock("k");
    let guard = lock.try_lock().await.unwrap().unwrap();
    assert!(stranger(&lock).try_lock().await.unwrap().is_none());
    assert!(other.lock("k").try_lock().await.unwrap().is_none());
    let again = lock.try_lock().await.unwrap().unwrap();
    assert_eq!(lock.hold_count().await.unwrap(), 2);
    guard.unlock().await.unwrap();
    again.unlock().await.unwrap();
    let guard = other.lock("k").try_lock().await.unwrap().unwrap();
    guard.unlock().await.unwrap();
    nothing_left(&server, [&client, &other]).await;
}

#[tokio::test]
async fn one_attempt_asks_once_and_subscribes_to_nothing() {
    let (server, client) = start().await;
    let lock = client.lock("k");
    let guard = lock.lock().await.unwrap();
    let busy = stranger(&lock);
    let mut probe = server.connection();
    reset_calls(&mut probe);
    assert!(busy.try_lock().await.unwrap().is_none());
    assert!(busy.try_lock_for(millis(0)).await.unwrap().is_none());
    assert_eq!(calls_of(&mut probe, "evalsha"), 2);
    assert_eq!(calls_of(&mut probe, "subscribe"), 0);
    guard.unlock().await.unwrap();
    let guard = busy.try_lock_for(millis(0)).await.unwrap().unwrap();
    drop(guard);
    nothing_left(&server, [&client]).await;
}

#[tokio::test]
async fn single_attempts_stand_in_no_line() {
    let (server, client, other) = start_two().await;
    let held = other.lock("k").lock().await.unwrap();
    let lock = client.lock("k");
    let front = acquiring(&lock);
    eventually_heard(&server, "k", 1).await;
    let started = Instant::now();
    assert!(soon(stranger(&lock).try_lock()).await.unwrap().is_none());
    assert!(started.elapsed() < secs(5));
    held.unlock().await.unwrap();
    soon(front).await.unwrap().unwrap().unlock().await.unwrap();
    nothing_left(&server, [&client, &other]).await;
}

#[tokio::test]
async fn wait_ends_at_its_limit_and_not_before() {
    let server = Server::start();
    let waiting = builder(server.url()).build().await.unwrap();
    let other = client(&server).await;
    let (here, there) = (waiting.lock("here"), other.lock("there"));
    let held = [here.lock().await.unwrap(), there.lock().await.unwrap()];
    let front = acquiring(&waiting.lock("there"));
    eventually_heard(&server, "there", 1).await;

    let limit = millis(700);
    for name in ["here", "there", "foreign"] {
        if name == "foreign" {
            server.connection().command(&["HSET", name, "java:1", "1"]);
        }
        let started = Instant::now();
        let answer = stranger(&waiting.lock(name)).try_lock_for(limit).await;
        let took = started.elapsed();
        assert!(answer.unwrap().is_none(), "{name}");
        assert!(took >= limit, "{name}: {took:?}");
        // The limit, one command, and what a busy machine may add.
        assert!(took < limit + millis(300) + secs(1), "{name}: {took:?}");
    }
    drop(held);
    soon(front).await.unwrap().unwrap().unlock().await.unwrap();
    server.connection().command(&["DEL", "foreign"]);
    nothing_left(&server, [&waiting, &other]).await;
}

#[tokio::test]
async fn wait_without_end_ends_with_the_lock() {
    let (server, client) = start().await;
    let lock = client.lock("k");
    let guard = lock.lock().await.unwrap();
    let patient = stranger(&lock);
    let waiting = tokio::spawn(async move { patient.try_lock_for(std::time::Duration::MAX).await });
    eventually_heard(&server, "k", 1).await;
    guard.unlock().await.unwrap();
    let granted = soon(waiting).await.unwrap().unwrap().unwrap();
    granted.unlock().await.unwrap();
    nothing_left(&server, [&client]).await;
}

#[tokio::test]
async fn wait_of_the_owner_itself_is_a_reentry() {
    let (server, client) = start().await;
    let lock = client.lock("k");
    let guard = lock.lock().await.unwrap();
    for wait in [millis(0), millis(1), secs(60), std::time::Duration::MAX] {
        let inner = soon(lock.try_lock_for(wait)).await.unwrap().unwrap();
        assert_eq!(lock.hold_count().await.unwrap(), 2, "{wait:?}");
        inner.unlock().await.unwrap();
    }
    guard.unlock().await.unwrap();
    nothing_left(&server, [&client]).await;
}

#[tokio::test]
async fn handle_unlock_gives_back_one_level_and_loses_the_guard_with_the_last() {
    let (server, client) = start().await;
    let lock = client.lock("k");
    let outer = lock.lock().await.unwrap();
    let inner = lock.lock().await.unwrap();
    lock.unlock().await.unwrap();
    assert_eq!(lock.hold_count().await.unwrap(), 1);
    assert!(!outer.is_lost() && !inner.is_lost());
    lock.unlock().await.unwrap();
    assert!(!lock.is_locked().await.unwrap());
    for guard in [outer, inner] {
        soon(guard.lost()).await;
        assert!(guard.is_lost());
        assert_eq!(guard.remaining(), millis(0));
        assert_eq!(kind(guard.verify().await), ErrorKind::LeaseLost);
        assert_eq!(kind(guard.extend(secs(9)).await), ErrorKind::LeaseLost);
        assert_eq!(kind(guard.reenter().await), ErrorKind::LeaseLost);
        assert_eq!(kind(guard.unlock().await), ErrorKind::LeaseLost);
    }
    nothing_left(&server, [&client]).await;
}

#[tokio::test]
async fn lost_guard_leaves_the_next_hold_of_its_owner_alone() {
    let (server, client) = start().await;
    let lock = client.lock("k");
    let old = lock.lock().await.unwrap();
    lock.unlock().await.unwrap();
    let new = lock.lock().await.unwrap();
    assert_eq!(kind(old.unlock().await), ErrorKind::LeaseLost);
    new.verify().await.unwrap();
    assert_eq!(lock.hold_count().await.unwrap(), 1);
    new.unlock().await.unwrap();
    nothing_left(&server, [&client]).await;
}

// fault: S64
#[tokio::test]
async fn unlock_by_one_who_holds_nothing_is_an_error_and_changes_nothing() {
    let (server, client, other) = start_two().await;
    let lock = client.lock("k");
    assert_eq!(kind(lock.unlock().await), ErrorKind::NotHeld, "free");
    let guard = lock.lock().await.unwrap();
    let before = server.connection().hgetall("k");
    let named = Owner::named("somebody");
    for handle in [
        stranger(&lock),
        other.lock("k"),
        lock.clone().owned_by(&named),
        other.lock("k").owned_by(&named),
        // A named owner is another owner even if its name spells the holder's id.
        lock.clone()
            .owned_by(&Owner::named(guard.owner().to_string())),
    ] {
        assert_eq!(kind(handle.unlock().await), ErrorKind::NotHeld);
        assert!(handle.adopt().await.unwrap().is_none());
    }
    assert_eq!(server.connection().hgetall("k"), before);
    lock.unlock().await.unwrap();
    assert_eq!(kind(lock.unlock().await), ErrorKind::NotHeld, "twice");
    drop(guard);
    nothing_left(&server, [&client, &other]).await;
}

// fault: S64
#[tokio::test]
async fn unlock_after_expiry_is_an_error() {
    let (server, client) = start().await;
    for owner in [Owner::unique(), Owner::named("req")] {
        let lock = client.lock("k").lease(millis(200)).owned_by(&owner);
        let guard = lock.lock().await.unwrap();
        eventually_free(&server, "k").await;
        assert_eq!(kind(lock.unlock().await), ErrorKind::NotHeld);
        assert!(lock.adopt().await.unwrap().is_none());
        assert_eq!(kind(guard.unlock().await), ErrorKind::LeaseLost);
    }
    nothing_left(&server, [&client]).await;
}

#[tokio::test]
async fn dropped_guards_give_their_levels_back() {
    let (server, client) = start().await;
    let lock = client.lock("k");
    let outer = lock.lock().await.unwrap();
    let inner = lock.lock().await.unwrap();
    drop(outer);
    eventually("one level is left", async || {
        lock.hold_count().await.unwrap() == 1
    })
    .await;
    inner.verify().await.unwrap();
    drop(inner);
    eventually_free(&server, "k").await;
    nothing_left(&server, [&client]).await;
}

#[tokio::test]
async fn guard_dropped_and_lock_taken_again_at_once_is_never_busy_with_itself() {
    let (server, client) = start().await;
    let lock = client.lock("k");
    for round in 0..50 {
        let owner = stranger(&lock);
        let guard = owner.try_lock().await.unwrap();
        assert!(guard.is_some(), "round {round}");
    }
    nothing_left(&server, [&client]).await;
}

// fault: S58
#[tokio::test]
async fn panic_in_the_critical_section_releases() {
    let (server, client) = start().await;
    let lock = client.lock("k");
    let section = lock.clone();
    let ended = tokio::spawn(async move {
        let _guard = section.lock().await.unwrap();
        let _again = section.lock().await.unwrap();
        panic!("as the test wants it");
    });
    assert!(ended.await.unwrap_err().is_panic());
    soon(lock.lock()).await.unwrap().unlock().await.unwrap();
    nothing_left(&server, [&client]).await;
}

#[tokio::test]
async fn force_unlock_frees_whoever_holds_the_lock() {
    let (server, client, other) = start_two().await;
    let lock = client.lock("k");
    assert!(!lock.force_unlock().await.unwrap(), "it was free");

    let guard = lock.lock().await.unwrap();
    let again = lock.lock().await.unwrap();
    assert!(stranger(&lock).force_unlock().await.unwrap());
    assert!(
        guard.is_lost() && again.is_lost(),
        "at once, in the same process"
    );
    assert!(!lock.is_locked().await.unwrap());
    assert_eq!(kind(guard.unlock().await), ErrorKind::LeaseLost);
    drop(again);

    let guard = lock.lock().await.unwrap();
    assert!(other.lock("k").force_unlock().await.unwrap());
    assert_eq!(kind(guard.verify().await), ErrorKind::LeaseLost);
    assert!(guard.is_lost(), "since the server said so");
    assert!(!other.lock("k").force_unlock().await.unwrap());
    drop(guard);
    nothing_left(&server, [&client, &other]).await;
}

/// A way to end a hold.
type Ending = fn(LockGuard, Client) -> std::pin::Pin<Box<dyn Future<Output = ()> + Send>>;

#[tokio::test]
async fn waiter_wakes_when_the_hold_ends_however_it_ends() {
    let endings: [(&str, Ending); 4] = [
        ("unlock", |guard, _| {
            Box::pin(async move { guard.unlock().await.unwrap() })
        }),
        ("drop", |guard, _| Box::pin(async move { drop(guard) })),
        ("force_unlock", |guard, client| {
            Box::pin(async move {
                assert!(client.lock("k").force_unlock().await.unwrap());
                drop(guard);
            })
        }),
        ("handle unlock", |guard, client| {
            let lock = client.lock("k").owned_by(guard.owner());
            Box::pin(async move {
                lock.unlock().await.unwrap();
                drop(guard);
            })
        }),
    ];
    let server = Server::start();
    let quiet = async || {
        builder(server.url())
            .poll_cap(NEVER / 2)
            .build()
            .await
            .unwrap()
    };
    let (client, other, third) = (quiet().await, quiet().await, quiet().await);
    for (holder, waiter) in [(&client, &client), (&client, &other)] {
        for (name, end) in endings {
            let guard = stranger(&holder.lock("k")).lock().await.unwrap();
            let waiting = acquiring(&waiter.lock("k"));
            eventually_heard(&server, "k", 1).await;
            end(guard, holder.clone()).await;
            let granted = soon(waiting).await.unwrap();
            granted.expect(name).unlock().await.expect(name);
            eventually("the waiter has left", async || {
                subscribers(&mut server.connection(), &channel("k")) == 0
            })
            .await;
        }
        let guard = stranger(&holder.lock("k")).lock().await.unwrap();
        let waiting = acquiring(&waiter.lock("k"));
        eventually_heard(&server, "k", 1).await;
        assert!(third.lock("k").force_unlock().await.unwrap());
        let granted = soon(waiting).await.unwrap().unwrap();
        eventually("the old guard learns of it", async || {
            guard.verify().await.is_err() && guard.is_lost()
        })
        .await;
        granted.verify().await.unwrap();
        granted.unlock().await.unwrap();
        eventually_free(&server, "k").await;
        nothing_left(&server, [&client, &other, &third]).await;
    }
}

#[tokio::test]
async fn waiters_of_one_process_are_served_in_the_order_they_came() {
    let (server, client) = start().await;
    let lock = client.lock("k");
    let guard = lock.lock().await.unwrap();
    let (served, mut order) = tokio::sync::mpsc::unbounded_channel();
    let mut waiting = Vec::new();
    for number in 0..12 {
        let (lock, served) = (stranger(&lock), served.clone());
        let section = begin(async move {
            let guard = lock.lock().await.unwrap();
            served.send(number).unwrap();
            // Some release at once, some in the background.
            if number % 2 == 0 {
                guard.unlock().await.unwrap();
            }
        });
        waiting.push(section);
    }
    // The tasks start in a different order than their calls came.
    let running: Vec<_> = waiting.into_iter().rev().map(tokio::spawn).collect();
    guard.unlock().await.unwrap();
    for task in running {
        soon(task).await.unwrap();
    }
    drop(served);
    let mut seen = Vec::new();
    while let Some(number) = order.recv().await {
        seen.push(number);
    }
    assert_eq!(seen, (0..12).collect::<Vec<_>>());
    nothing_left(&server, [&client]).await;
}

#[tokio::test]
async fn cancelled_waiters_do_not_block_those_behind() {
    let (server, client) = start().await;
    let lock = client.lock("k");
    let guard = lock.lock().await.unwrap();
    let start = || {
        let lock = stranger(&lock);
        begin(async move { lock.lock().await })
    };
    let (front, second, third) = (start(), start(), start());
    let (fourth, last) = (start(), start());
    let fourth = tokio::spawn(fourth);
    drop(second);
    drop(front);
    drop(third);
    drop(last);
    eventually_heard(&server, "k", 1).await;
    guard.unlock().await.unwrap();
    let granted = soon(fourth).await.unwrap().unwrap();
    granted.unlock().await.unwrap();
    nothing_left(&server, [&client]).await;
}

// fault: S35
#[tokio::test]
async fn cancelled_front_hands_on_a_wake_up_that_reached_it() {
    let server = Server::start();
    let client = builder(server.url())
        .poll_cap(NEVER / 2)
        .build()
        .await
        .unwrap();
    let lock = client.lock("k");
    let guard = lock.lock().await.unwrap();
    let start = || {
        let lock = stranger(&lock);
        begin(async move { lock.lock().await })
    };
    let (front, behind) = (start(), start());
    guard.unlock().await.unwrap();
    // The front waiter received the wake-up, and is dropped before it acts on it.
    drop(front);
    soon(behind).await.unwrap().unlock().await.unwrap();
    nothing_left(&server, [&client]).await;
}
