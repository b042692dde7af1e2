//! One sharp test for each rule that a patch in `tests/mutants` breaks.

use crate::support;
use std::time::Duration;

use crate::support::probe::scripts_run;
use crate::support::{eventually, eventually_idle, sha, start};
use redlatch::{Client, ErrorKind, Owner};
use redlatch_testkit::{Proxy, Server};
use tokio::time::{sleep, timeout};

const MINUTE: Duration = Duration::from_secs(60);

/// Starts a server and a client that reaches it through a proxy.
///
/// The server knows the scripts that acquire and release a lock: each is one round trip.
async fn proxied() -> (Server, Proxy, Client) {
    let server = Server::start();
    let proxy = Proxy::start(server.port()).await;
    let client = Client::connect(proxy.url()).await.unwrap();
    let guard = client.lock("known").lock().await.unwrap();
    guard.unlock().await.unwrap();
    (server, proxy, client)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn late_release_leaves_the_next_hold_of_the_same_owner_alone() {
    let (server, proxy, client) = proxied().await;
    let lock = client.lock("door").owned_by(&Owner::named("guest"));

    let first = lock.lock().await.unwrap();
    let mut late = proxy.hold_request(sha("lock_release"));
    let (unlocked, ()) = tokio::join!(first.unlock(), late.caught());
    unlocked.unwrap();

    let second = lock.lock().await.unwrap();
    late.deliver().await;
    assert!(server.connection().exists("door"));
    second.verify().await.unwrap();
    second.unlock().await.unwrap();
}

// fault: S60
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_sent_about_a_hold_after_its_release() {
    let server = Server::start();
    let lease = Duration::from_secs(2);
    let client = Client::builder()
        .url(server.url())
        .watchdog_lease(lease)
        .build()
        .await
        .unwrap();
    let mut connection = server.connection();

    // Renewals are counted here, so that their absence can be seen below.
    let guard = client.lock("long").lock().await.unwrap();
    let granted = scripts_run(&mut connection);
    // The first renewal is sent twice, since the server does not know the script.
    eventually("two renewals", async || {
        scripts_run(&mut connection) > granted + 2
    })
    .await;
    guard.unlock().await.unwrap();

    let guard = client.lock("short").lock().await.unwrap();
    guard.unlock().await.unwrap();
    let released = scripts_run(&mut connection);
    // Any renewal that could be due is due within a third of the lease.
    sleep(lease / 2).await;
    assert_eq!(scripts_run(&mut connection), released);
    eventually_idle(&client).await;
}

// fault: S28
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn promise_counts_from_before_the_request_however_late_the_reply() {
    let (server, proxy, client) = proxied().await;
    let mut connection = server.connection();
    proxy.delay(Duration::from_millis(400));

    let fixed = client.lock("fixed").lease(MINUTE).lock().await.unwrap();
    // The server is read first: the time between the two readings can only shorten the promise.
    let server_keeps = connection.pttl("fixed");
    let promised = fixed.remaining();
    // 400 ms for the way to the server, and the margin of 602 ms.
    assert!(
        promised + Duration::from_millis(1_000) <= millis(server_keeps),
        "{promised:?} of {server_keeps} ms"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn promise_ends_a_margin_before_the_servers_key() {
    let (server, client) = start().await;
    let mut connection = server.connection();
    let lease = Duration::from_secs(1_000);

    let guard = client.lock("a").lease(lease).lock().await.unwrap();
    let server_keeps = connection.pttl("a");
    let promised = guard.remaining();
    assert!(
        promised + lease / 100 <= millis(server_keeps),
        "{promised:?} of {server_keeps} ms"
    );
}

/// Of a semaphore: whoever waits for a lock asks each second as long as it is not subscribed.
// fault: S32
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiter_asks_again_once_it_is_subscribed() {
    let (server, proxy, client) = proxied().await;
    let elsewhere = support::client(&server).await.semaphore("gate");
    elsewhere.try_set_permits(1).await.unwrap();
    let held = elsewhere.acquire().await.unwrap();

    // The release falls between the waiter's last try and its SUBSCRIBE, so the message reaches nobody.
    let mut subscribe = proxy.stop("SUBSCRIBE\r\n");
    let semaphore = client.semaphore("gate");
    let waiter = tokio::spawn(async move { semaphore.acquire().await });
    subscribe.reached().await;
    held.release().await.unwrap();
    assert_eq!(server.connection().channels(), Vec::<String>::new());
    subscribe.open();

    // The next reason to ask would be the poll cap, after 4.5 seconds.
    let granted = timeout(Duration::from_secs(3), waiter).await;
    let permit = granted.expect("asks again").unwrap().unwrap();
    permit.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dropped_acquisition_is_undone_long_before_its_lease() {
    let (server, proxy, client) = proxied().await;
    let mut connection = server.connection();
    proxy.hold_replies();
    let lock = client.lock("seat").lease(MINUTE);
    let attempt = tokio::spawn(async move { lock.try_lock().await });
    eventually("the grant", async || connection.exists("seat")).await;
    attempt.abort();
    assert!(attempt.await.unwrap_err().is_cancelled());

    proxy.release_replies();
    eventually("the undo", async || !connection.exists("seat")).await;
    eventually_idle(&client).await;
}

// fault: S9
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_fires_at_the_deadline_and_when_the_key_is_gone() {
    let server = Server::start();
    let client = Client::builder()
        .url(server.url())
        .watchdog_lease(Duration::from_secs(1))
        .build()
        .await
        .unwrap();

    let expiring = client.lock("expiring").lease(Duration::from_millis(100));
    let expiring = expiring.lock().await.unwrap();
    let renewed = client.lock("renewed").lock().await.unwrap();
    server.connection().command(&["DEL", "renewed"]);
    for guard in [expiring, renewed] {
        let lost = timeout(Duration::from_secs(5), guard.lost()).await;
        lost.expect("lost() fires");
        assert!(guard.is_lost());
        let error = guard.unlock().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::LeaseLost);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hold_is_checked_after_a_reconnect_long_before_its_renewal() {
    let (server, proxy, client) = proxied().await;
    let guard = client.lock("a").lock().await.unwrap();
    server.connection().command(&["DEL", "a"]);
    proxy.cut();
    // The renewal is due after eight seconds at the earliest.
    let lost = timeout(Duration::from_secs(5), guard.lost()).await;
    lost.expect("the new connection shows the loss");
}

#[tokio::test(flavor = "current_thread")]
async fn unlock_is_not_told_lost_because_the_drop_of_another_guard_released_for_it() {
    let (server, proxy, client) = proxied().await;
    let mut connection = server.connection();
    let lock = client.lock("a").owned_by(&Owner::unique());
    let dropped = lock.lock().await.unwrap();
    let extended = lock.lock().await.unwrap();
    extended.extend(MINUTE).await.unwrap();

    // While one request about the hold is unanswered, two releases queue behind it. The first is that of the drop: it
    // is sent when no level is left, and so releases both.
    proxy.hold_replies();
    let extend = tokio::spawn(async move { extended.extend(2 * MINUTE).await.map(|()| extended) });
    eventually("the request", async || connection.pttl("a") > 60_000).await;
    drop(dropped);
    // On one thread, this lets every task run until it waits for the server.
    let settled = async || {
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
    };
    settled().await;
    let unlock = tokio::spawn(async move { lock.unlock().await });
    settled().await;
    proxy.release_replies();
    unlock.await.unwrap().unwrap();
    assert!(!connection.exists("a"));
    let extended = extend.await.unwrap().unwrap();
    assert!(extended.is_lost());
}

fn millis(pttl: i64) -> Duration {
    Duration::from_millis(pttl.try_into().expect("a key with a lease"))
}
