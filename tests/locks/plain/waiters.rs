//! Those that wait: by pauses, in this process and in others, and next to a reentrant lock.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use crate::support::probe::{
    NEVER, acquiring, calls_of, kind, millis, nothing_left, reset_calls, secs, soon, stranger,
    subscribers,
};
use crate::support::{builder, client, eventually, start, start_two};
use redlatch::{Client, ErrorKind, Owner};
use redlatch_testkit::Server;

use super::{BOTH, NAME, scriptless, take, waiting};

#[tokio::test]
async fn foreign_holder_is_waited_for_by_pauses_without_a_message() {
    let (server, client) = start().await;
    let mut probe = server.connection();
    for by in BOTH {
        let lock = client.plain_lock(NAME).release_by(by);
        probe.command(&["SET", NAME, "token", "PX", "600000"]);
        assert!(lock.try_lock().await.unwrap().is_none());
        assert_eq!(lock.holder().await.unwrap().unwrap().owner(), "token");
        reset_calls(&mut probe);
        let waiter = tokio::spawn({
            let lock = lock.clone();
            async move { lock.lock().await }
        });
        eventually("it asked often", async || calls_of(&mut probe, "get") > 8).await;
        assert!(probe.channels().is_empty());
        let freed = Instant::now();
        probe.command(&["DEL", NAME]);
        let guard = soon(waiter).await.unwrap().unwrap();
        // The longest pause, and some slack for a busy machine.
        let took = freed.elapsed();
        assert!(took < millis(128) + millis(150), "{took:?}");
        guard.unlock().await.unwrap();

        // The lease ends long before the next pause would.
        probe.command(&["SET", NAME, "token", "PX", "300"]);
        take(&lock).await.unlock().await.unwrap();
        // A key without a TTL leaves only the caller's limit to end the wait. It is one of redis-py.
        probe.command(&["SET", NAME, "f4a1c2d03b4e11ef9c1a0242ac120002"]);
        assert!(lock.try_lock_for(millis(100)).await.unwrap().is_none());
        assert_eq!(lock.remaining_lease().await.unwrap(), None);
        assert!(lock.force_unlock().await.unwrap());
        assert!(!probe.exists(NAME));
    }
    assert_eq!(calls_of(&mut probe, "publish"), 0);
    nothing_left(&server, [&client]).await;
}

#[tokio::test]
async fn waiters_here_and_those_of_a_reentrant_lock_take_nothing_from_each_other() {
    let (server, client) = start().await;
    let (plain, reentrant) = (client.plain_lock(NAME), client.lock(NAME));

    let held = take(&plain).await;
    let next = acquiring(&reentrant);
    eventually("it stands in line", async || waiting(&client, 1)).await;
    held.unlock().await.unwrap();
    let held = soon(next).await.unwrap().unwrap();

    let front = tokio::spawn({
        let plain = stranger(&plain);
        async move { plain.lock().await }
    });
    eventually("it stands in line", async || waiting(&client, 1)).await;
    let next = acquiring(&reentrant);
    eventually("both stand in line", async || waiting(&client, 2)).await;
    held.unlock().await.unwrap();
    let first = soon(front).await.unwrap();
    if let Ok(guard) = first {
        guard.unlock().await.unwrap();
    } else {
        assert_eq!(kind(first), ErrorKind::WrongKind);
    }
    soon(next).await.unwrap().unwrap().unlock().await.unwrap();

    let held = reentrant.lock().await.unwrap();
    assert_eq!(
        kind(stranger(&plain).try_lock().await),
        ErrorKind::WrongKind
    );
    let held_as_plain = {
        held.unlock().await.unwrap();
        take(&plain).await
    };
    let busy = reentrant
        .clone()
        .owned_by(&Owner::unique())
        .try_lock()
        .await;
    assert_eq!(kind(busy), ErrorKind::WrongKind);
    assert_eq!(kind(reentrant.try_lock().await), ErrorKind::WrongKind);
    held_as_plain.unlock().await.unwrap();
    assert_eq!(subscribers(&mut server.connection(), NAME), 0);
    nothing_left(&server, [&client]).await;
}

#[tokio::test]
async fn streak_of_this_process_ends_with_a_pause_of_the_next_in_line() {
    let server = Server::start();
    for streak in [0, u32::MAX] {
        let client = builder(server.url())
            .local_handoff_limit(streak)
            .build()
            .await
            .unwrap();
        let lock = client.plain_lock(NAME);
        let mut held = take(&lock).await;
        let (mut from_release, mut from_its_reply) = (NEVER, NEVER);
        for _ in 0..40 {
            let next = tokio::spawn({
                let lock = stranger(&lock);
                async move { lock.lock().await }
            });
            eventually("it waits", async || waiting(&client, 1)).await;
            let released = Instant::now();
            held.unlock().await.unwrap();
            let replied = Instant::now();
            held = soon(next).await.unwrap().unwrap();
            from_release = from_release.min(released.elapsed());
            from_its_reply = from_its_reply.min(replied.elapsed());
        }
        held.unlock().await.unwrap();
        // The shortest pause is 1 ms; without one, the grant takes a round trip.
        if streak == 0 {
            assert!(from_release >= millis(1), "no pause: {from_release:?}");
        } else {
            assert!(from_its_reply < millis(1), "paused: {from_its_reply:?}");
        }
        nothing_left(&server, [&client]).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_of_another_process_get_in_beside_many_here() {
    let server = scriptless();
    let many = Client::builder()
        .url(server.url())
        .local_handoff_limit(2)
        .build()
        .await
        .unwrap();
    let one = client(&server).await;
    let done = Arc::new(AtomicBool::new(false));
    let crowd: Vec<_> = (0..4)
        .map(|_| {
            let (lock, done) = (stranger(&many.plain_lock(NAME)), done.clone());
            tokio::spawn(async move {
                while !done.load(Ordering::SeqCst) {
                    lock.lock().await.unwrap().unlock().await.unwrap();
                }
            })
        })
        .collect();
    let lock = one.plain_lock(NAME);
    for _ in 0..5 {
        soon(lock.lock()).await.unwrap().unlock().await.unwrap();
    }
    done.store(true, Ordering::SeqCst);
    for task in crowd {
        soon(task).await.unwrap();
    }
    nothing_left(&server, [&many, &one]).await;
}

#[tokio::test]
async fn lock_that_is_freed_by_force_elsewhere_is_found_by_a_pause_here() {
    let (server, client, other) = start_two().await;
    for by in BOTH {
        let fixed = client.plain_lock(NAME).release_by(by).lease(secs(60));
        let held = take(&fixed).await;
        let waiter = stranger(&fixed);
        let waiter = tokio::spawn(async move { waiter.lock().await });
        eventually("it waits", async || waiting(&client, 1)).await;
        assert!(
            other
                .plain_lock(NAME)
                .release_by(by)
                .force_unlock()
                .await
                .unwrap()
        );
        soon(waiter).await.unwrap().unwrap().unlock().await.unwrap();
        assert_eq!(kind(held.unlock().await), ErrorKind::LeaseLost);
    }
    nothing_left(&server, [&client, &other]).await;
}

/// The guard is renewed, and the next renewal is far away.
#[tokio::test]
async fn lock_that_the_server_has_lost_is_found_by_the_poll_cap_though_a_hold_here_stands() {
    let server = Server::start();
    let builder = builder(server.url()).watchdog_lease(secs(600));
    let client = builder.poll_cap(millis(200)).build().await.unwrap();
    let lock = client.plain_lock(NAME);
    let held = stranger(&lock).lock().await.unwrap();
    let waiter = stranger(&lock);
    let waiter = tokio::spawn(async move { waiter.lock().await });
    eventually("it waits", async || {
        format!("{client:?}").contains("waiting: 1,")
    })
    .await;
    server.connection().command(&["DEL", NAME]);
    let next = soon(waiter).await.unwrap().unwrap();
    assert_eq!(kind(held.unlock().await), ErrorKind::LeaseLost);
    next.unlock().await.unwrap();
}
