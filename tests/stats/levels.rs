//! What is held and who waits: back at zero whatever happens.

use redlatch::{Client, ErrorKind};
use redlatch_testkit::{Proxy, Server};

use crate::page::Page;
use crate::support::polls::Polls;
use crate::support::probe::{
    acquiring, begin, eventually_attending, kind, millis, secs, soon, stranger,
};
use crate::support::{builder, eventually};

#[tokio::test]
async fn guard_of_a_task_that_panics_is_not_held_any_more() {
    let server = Server::start();
    let (client, page) = Page::open(builder(server.url())).await;
    let lock = client.lock("job");
    let task = tokio::spawn(async move {
        let _guard = lock.lock().await.unwrap();
        panic!("on purpose");
    });
    assert!(task.await.unwrap_err().is_panic());
    page.eventually_at_rest().await;
    assert_eq!(page.of("reentrant").granted, 1);
}

#[tokio::test]
async fn call_that_is_dropped_at_any_poll_leaves_nothing_counted_as_there() {
    let server = Server::start();
    let proxy = Proxy::start(server.port()).await;
    let (client, page) = Page::open(builder(proxy.url())).await;
    let calls = std::cell::Cell::new(0);
    Polls::sweep(&proxy, "lock", async |_, polls| {
        let lock = stranger(&client.lock("job"));
        let guard = polls.run(lock.lock()).await;
        calls.set(calls.get() + 1);
        drop(guard);
        page.eventually_at_rest().await;
        let numbers = page.of("reentrant");
        let ended = numbers.granted + numbers.cancelled + numbers.failed;
        assert_eq!(ended, calls.get(), "{numbers:?}");
    })
    .await;
    let numbers = page.of("reentrant");
    assert!(numbers.granted > 0 && numbers.cancelled > 0, "{numbers:?}");
}

#[tokio::test]
async fn hold_that_is_lost_counts_once_with_its_reason() {
    let server = Server::start();
    let lease = millis(1_500);
    let (client, page) = Page::open(builder(server.url()).watchdog_lease(lease)).await;
    let lock = client.lock("job");

    let guard = lock.lock().await.unwrap();
    assert!(lock.force_unlock().await.unwrap());
    page.eventually_at_rest().await;
    assert_eq!(page.stats().lost.forced, 1);
    assert_eq!(kind(guard.unlock().await), ErrorKind::LeaseLost);

    let guard = lock.lock().await.unwrap();
    let again = guard.reenter().await.unwrap();
    let mut probe = server.connection();
    eventually_attending(&mut probe, &client).await;
    probe.command(&["DEL", "job"]);
    soon(guard.lost()).await;
    assert_eq!(page.stats().lost.gone, 1, "by the renewal, for both levels");
    assert_eq!(page.stats().renewals.gone, 1);
    drop((guard, again));

    let fixed = lock.clone().lease(millis(100)).lock().await.unwrap();
    soon(fixed.lost()).await;
    assert_eq!(page.stats().lost.expired, 1);
    drop(fixed);

    // What was left to its owner ends by itself, and nobody has lost it.
    let left = lock
        .clone()
        .lease(millis(100))
        .lock()
        .await
        .unwrap()
        .detach();
    assert_eq!(page.of("reentrant").held, 1);
    page.eventually_at_rest().await;
    drop(left);

    let guard = lock.lock().await.unwrap();
    client.close().await;
    soon(guard.lost()).await;
    page.eventually_at_rest().await;
    drop(guard);
    let lost = page.stats().lost;
    assert_eq!(
        (
            lost.gone,
            lost.expired,
            lost.displaced,
            lost.forced,
            lost.closed
        ),
        (1, 1, 0, 1, 1)
    );
}

#[tokio::test]
async fn client_that_closes_counts_nothing_as_there() {
    let server = Server::start();
    let (client, page) = Page::open(builder(server.url())).await;
    let lock = client.lock("job");
    let guard = lock.lock().await.unwrap();
    let waiting = acquiring(&lock);
    let other = client.fair_lock("other");
    let unpolled = begin(other.lock());
    let semaphore = client.semaphore("seats");
    assert!(semaphore.try_set_permits(2).await.unwrap());
    let permits = semaphore.acquire_many(2).await.unwrap();
    eventually("the other call waits", async || {
        page.of("reentrant").waiting == 1
    })
    .await;
    assert_eq!(page.stats().total().held, 3);
    assert_eq!(page.stats().connections.open, 1);
    client.close().await;
    let stats = page.stats();
    assert_eq!((stats.total().held, stats.connections.open), (0, 0));
    assert_eq!(kind(soon(waiting).await.unwrap()), ErrorKind::Closed);
    drop(unpolled);
    page.eventually_at_rest().await;
    drop((guard, permits));
    page.eventually_at_rest().await;
}

#[tokio::test]
async fn renewals_and_connections_are_counted() {
    let server = Server::start();
    let proxy = Proxy::start(server.port()).await;
    let settings = builder(proxy.url()).watchdog_lease(secs(3));
    let (client, page) = Page::open(settings).await;
    let before = page.stats();
    assert_eq!(
        (before.connections.open, before.connections.reconnects),
        (1, 0)
    );
    let guard = client.lock("job").lock().await.unwrap();
    let second = client.lock("other").lock().await.unwrap();
    eventually(
        "both are renewed twice, and nothing is under way",
        async || {
            let renewals = page.stats().renewals;
            renewals.renewed >= 4 && renewals.requests <= renewals.renewed
        },
    )
    .await;
    let stats = page.stats();
    assert!(stats.renewals.worst_lag > millis(0) && stats.renewals.worst_lag < secs(1));
    assert_eq!((stats.renewals.failed, stats.renewals.gone), (0, 0));
    assert!(stats.traffic.requests > before.traffic.requests);
    assert!(stats.traffic.bytes_sent > before.traffic.bytes_sent);
    assert!(stats.traffic.bytes_received > before.traffic.bytes_received);

    proxy.cut();
    eventually("it has connected again", async || {
        let connections = page.stats().connections;
        (connections.open, connections.reconnects) == (1, 1)
    })
    .await;
    guard.unlock().await.unwrap();
    second.unlock().await.unwrap();
    page.eventually_at_rest().await;
}

#[tokio::test]
async fn messages_of_releases_are_counted() {
    let server = Server::start();
    let (client, page) = Page::open(builder(server.url())).await;
    let other = Client::connect(server.url()).await.unwrap();
    let guard = other.lock("job").lock().await.unwrap();
    let waiting = acquiring(&client.lock("job"));
    // In the turn order it asks no more, so that only a message tells it of the release.
    let mut probe = server.connection();
    eventually("it has its place", async || {
        probe.command(&["ZCARD", "redlatch_turns:{job}"]).int() == 1
    })
    .await;
    assert_eq!(page.stats().messages, 0);
    guard.unlock().await.unwrap();
    drop(soon(waiting).await.unwrap().unwrap());
    eventually("the message is counted", async || {
        page.stats().messages >= 1
    })
    .await;
    page.eventually_at_rest().await;
}
