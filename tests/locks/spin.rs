//! The spin lock: pauses instead of messages, and never longer than the caller wants.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use crate::support::probe::{
    NEVER, calls_of, eventually_attending, kind, millis, reset_calls, secs, soon, stranger,
};
use crate::support::{builder, client, eventually, start, start_two};
use redlatch::config::Backoff;
use redlatch::{Client, ErrorKind};
use redlatch_testkit::Server;

const NAME: &str = "k";

#[tokio::test]
async fn nothing_is_published_and_nothing_subscribed_to() {
    let (server, client, other) = start_two().await;
    let mut probe = server.connection();
    reset_calls(&mut probe);
    let guard = client.spin_lock(NAME).lock().await.unwrap();
    let lock = other.spin_lock(NAME).backoff(Backoff::fixed(millis(20)));
    let waiter = tokio::spawn(async move { lock.lock().await });
    eventually("the waiter asks", async || {
        calls_of(&mut probe, "evalsha") > 3
    })
    .await;
    assert_eq!(probe.channels(), Vec::<String>::new());
    guard.unlock().await.unwrap();
    let guard = soon(waiter).await.unwrap().unwrap();
    guard.unlock().await.unwrap();
    for command in ["subscribe", "publish", "spublish", "ssubscribe"] {
        assert_eq!(calls_of(&mut probe, command), 0, "{command}");
    }
}

#[tokio::test]
async fn wait_ends_after_its_attempts_or_at_its_limit_whichever_comes_first() {
    let (server, client) = start().await;
    let mut probe = server.connection();
    // Held by a client that sends nothing meanwhile.
    probe.command(&["HSET", NAME, "java:1", "1"]);
    let lock = client.spin_lock(NAME).backoff(Backoff::fixed(millis(5)));
    // From here on the server knows the script by its hash.
    assert!(lock.try_lock().await.unwrap().is_none());

    reset_calls(&mut probe);
    let limited = lock.clone().max_attempts(7);
    assert!(soon(limited.try_lock_for(NEVER)).await.unwrap().is_none());
    assert_eq!(calls_of(&mut probe, "evalsha"), 7);

    let many = lock.clone().max_attempts(u32::MAX);
    let started = Instant::now();
    assert!(many.try_lock_for(millis(100)).await.unwrap().is_none());
    assert!(started.elapsed() >= millis(100));

    reset_calls(&mut probe);
    assert!(limited.try_lock().await.unwrap().is_none());
    assert_eq!(calls_of(&mut probe, "evalsha"), 1);
    probe.command(&["DEL", NAME]);
    let guard = limited.try_lock_for(secs(1)).await.unwrap();
    guard.expect("free").unlock().await.unwrap();
}

#[tokio::test]
async fn what_cannot_work_is_refused_before_anything_is_sent() {
    let (server, client) = start().await;
    let lock = client.spin_lock(NAME);
    let mut probe = server.connection();
    reset_calls(&mut probe);
    let hot = lock.clone().backoff(Backoff::fixed(millis(0)));
    for error in [
        kind(lock.clone().max_attempts(3).lock().await),
        kind(lock.clone().max_attempts(0).try_lock().await),
        kind(lock.clone().max_attempts(0).try_lock_for(secs(1)).await),
        kind(hot.lock().await),
        kind(hot.try_lock().await),
    ] {
        assert_eq!(error, ErrorKind::InvalidInput);
    }
    assert_eq!(
        calls_of(&mut probe, "evalsha") + calls_of(&mut probe, "eval"),
        0
    );
}

#[tokio::test]
async fn pause_ends_with_the_limit_the_holders_lease_and_a_release_here() {
    let (_server, client, other) = start_two().await;
    let lock = client.spin_lock(NAME).backoff(Backoff::fixed(NEVER));

    let held = other.spin_lock(NAME).lock().await.unwrap();
    let started = Instant::now();
    assert!(lock.try_lock_for(millis(200)).await.unwrap().is_none());
    let took = started.elapsed();
    assert!(took >= millis(200) && took < secs(1), "{took:?}");
    held.unlock().await.unwrap();

    let dying = other.spin_lock(NAME).lease(millis(300));
    let held = dying.lock().await.unwrap();
    soon(lock.lock()).await.unwrap().unlock().await.unwrap();
    drop(held);

    let held = lock.lock().await.unwrap();
    let waiter = stranger(&lock);
    let waiter = tokio::spawn(async move { waiter.lock().await });
    eventually("it waits", async || {
        format!("{client:?}").contains("waiting: 1,")
    })
    .await;
    held.unlock().await.unwrap();
    let next = soon(waiter).await.unwrap().unwrap();
    next.unlock().await.unwrap();
}

#[tokio::test]
async fn waiter_that_listens_finds_the_spin_lock_free_by_its_poll_cap() {
    let (server, client) = start().await;
    let other = Client::builder()
        .url(server.url())
        .poll_cap(millis(200))
        .build()
        .await
        .unwrap();
    let held = client.spin_lock(NAME).lock().await.unwrap();
    let lock = other.lock(NAME);
    let waiter = tokio::spawn(async move { lock.lock().await });
    eventually("it waits", async || {
        format!("{other:?}").contains("channels: 1,")
    })
    .await;
    held.unlock().await.unwrap();
    let next = soon(waiter).await.unwrap().unwrap();
    next.unlock().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_elsewhere_get_in_beside_many_here() {
    let server = Server::start();
    let many = Client::builder()
        .url(server.url())
        .local_handoff_limit(4)
        .build()
        .await
        .unwrap();
    let one = client(&server).await;
    let done = Arc::new(AtomicBool::new(false));
    let crowd: Vec<_> = (0..8)
        .map(|_| {
            let (lock, done) = (stranger(&many.spin_lock(NAME)), done.clone());
            tokio::spawn(async move {
                while !done.load(Ordering::SeqCst) {
                    lock.lock().await.unwrap().unlock().await.unwrap();
                }
            })
        })
        .collect();
    let lock = one
        .spin_lock(NAME)
        .backoff(Backoff::fixed(millis(1)).jitter(millis(1)));
    for _ in 0..10 {
        soon(lock.lock()).await.unwrap().unlock().await.unwrap();
    }
    done.store(true, Ordering::SeqCst);
    for task in crowd {
        soon(task).await.unwrap();
    }
}

#[tokio::test]
async fn lock_that_is_freed_by_force_elsewhere_is_found_by_a_pause_here() {
    let (_server, client, other) = start_two().await;
    let fixed = client.spin_lock(NAME).lease(secs(60));
    let held = fixed.lock().await.unwrap();
    let waiter = stranger(&fixed);
    let waiter = tokio::spawn(async move { waiter.lock().await });
    eventually("it waits", async || {
        format!("{client:?}").contains("waiting: 1,")
    })
    .await;
    assert!(other.spin_lock(NAME).force_unlock().await.unwrap());
    let next = soon(waiter).await.unwrap().unwrap();
    next.unlock().await.unwrap();
    assert_eq!(kind(held.unlock().await), ErrorKind::LeaseLost);
}

#[tokio::test]
async fn nothing_is_asked_behind_a_hold_that_is_renewed_here() {
    let (server, client) = start().await;
    let lock = client.spin_lock(NAME).backoff(Backoff::fixed(millis(2)));
    let mut probe = server.connection();
    let held = lock.lock().await.unwrap();
    eventually_attending(&mut probe, &client).await;
    reset_calls(&mut probe);
    let waiter = stranger(&lock);
    assert!(waiter.try_lock_for(millis(300)).await.unwrap().is_none());
    let asked = calls_of(&mut probe, "evalsha") + calls_of(&mut probe, "eval");
    assert_eq!(asked, 0, "its end is told here");
    held.unlock().await.unwrap();
}

/// The guard is renewed, and the next renewal is far away.
#[tokio::test]
async fn lock_that_the_server_has_lost_is_found_by_the_poll_cap_though_a_hold_here_stands() {
    let server = Server::start();
    let builder = builder(server.url()).watchdog_lease(secs(600));
    let client = builder.poll_cap(millis(200)).build().await.unwrap();
    let lock = client.spin_lock(NAME);
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
