//! Breaks the network under holders and waiters: calls end within their limits, holders learn of the loss before the
//! server grants the lock to another client, and everything recovers when the network does.

use crate::support;
use std::time::{Duration, Instant};

use crate::support::eventually;
use crate::support::scene::{Scene, patient, runs_out_in_time, take};
use redlatch::{ClientBuilder, ErrorKind, ReentrantLock};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout, timeout_at};

const NAME: &str = "invoice";
/// The command timeout, that is, the limit of one request.
const COMMAND: Duration = Duration::from_millis(300);
/// The time that a busy machine may add to a limit.
const SLACK: Duration = Duration::from_secs(1);

fn leased(lease: Duration) -> impl Fn(ClientBuilder) -> ClientBuilder {
    move |builder| {
        patient(builder)
            .command_timeout(COMMAND)
            .watchdog_lease(lease)
    }
}

/// Runs a call that must fail within its limit, and returns the error kind.
async fn fails<T>(
    within: Duration,
    call: impl Future<Output = Result<T, redlatch::Error>>,
) -> ErrorKind {
    let started = Instant::now();
    let failed = timeout(within + SLACK, call).await;
    let failed = failed.unwrap_or_else(|_| panic!("not within {:?}", started.elapsed()));
    failed
        .map(drop)
        .expect_err("no answer can have come")
        .kind()
}

fn spawn_lock(lock: &ReentrantLock) -> JoinHandle<Result<(), ErrorKind>> {
    let lock = lock.clone();
    tokio::spawn(async move {
        let guard = lock.lock().await.map_err(|error| error.kind())?;
        guard.unlock().await.map_err(|error| error.kind())
    })
}

/// Kills the subscriber connections on the server, which otherwise keeps the subscriptions of a half-open connection
/// until it learns of the end, whenever that is.
async fn bury_half_open(scene: &Scene) {
    support::eventually_idle(&scene.client).await;
    let mut connection = scene.server.connection();
    assert!(
        connection
            .command(&["CLIENT", "KILL", "TYPE", "pubsub"])
            .int()
            > 0
    );
}

// fault: S25
#[tokio::test(flavor = "multi_thread")]
async fn holder_in_a_black_hole_is_lost_before_its_key_and_the_next_gets_in() {
    let lease = Duration::from_secs(6);
    let scene = Scene::open(leased(lease)).await;
    let guard = take(&scene.client.lock(NAME)).await;
    let waiter = spawn_lock(&scene.other.lock(NAME));
    scene.proxy.black_hole(true);
    runs_out_in_time(&guard, scene.end_of_key(NAME)).await;
    assert!(
        Instant::now() < scene.end_of_key(NAME),
        "lost after the server gave the lock away"
    );
    let served = timeout(lease / 10 + SLACK, waiter)
        .await
        .expect("in when the key ends");
    assert_eq!(served.expect("the waiter is sound"), Ok(()));

    scene.proxy.black_hole(false);
    assert_eq!(fails(COMMAND, guard.unlock()).await, ErrorKind::LeaseLost);
    let lock = scene.client.lock(NAME);
    take(&lock).await.unlock().await.expect("held until now");
    scene.ends_clean().await;
}

// fault: S25
#[tokio::test(flavor = "multi_thread")]
async fn calls_into_a_black_hole_end_by_their_limits() {
    let scene = Scene::open(leased(Duration::from_secs(60))).await;
    let lock = scene.client.lock(NAME);
    let guard = take(&scene.client.lock("held")).await;
    let wait = Duration::from_millis(700);
    scene.proxy.black_hole(true);
    // The first call has to time out; later ones may find that the connection was already given up.
    assert_eq!(fails(COMMAND, lock.try_lock()).await, ErrorKind::Timeout);
    let late = |kind| matches!(kind, ErrorKind::Timeout | ErrorKind::Backend);
    assert!(late(fails(wait + COMMAND, lock.try_lock_for(wait)).await));
    assert!(late(
        fails(COMMAND, lock.try_lock_for(Duration::ZERO)).await
    ));
    assert!(late(fails(COMMAND, lock.is_locked()).await));
    assert!(late(fails(COMMAND, lock.hold_count()).await));
    assert!(late(fails(COMMAND, lock.force_unlock()).await));
    assert!(late(fails(COMMAND, guard.verify()).await));
    assert!(late(
        fails(COMMAND, guard.extend(Duration::from_secs(60))).await
    ));
    assert!(late(fails(COMMAND, guard.reenter()).await));
    assert!(!guard.is_lost(), "its lease has not passed");
    assert!(late(fails(COMMAND, guard.unlock()).await));
    let closing = timeout(
        COMMAND + Duration::from_secs(2) + SLACK,
        scene.client.close(),
    )
    .await;
    closing.expect("close ends by its limit");
}

#[tokio::test(flavor = "multi_thread")]
async fn release_that_found_no_way_is_repeated_until_it_arrives() {
    let scene = Scene::open(leased(Duration::from_secs(60))).await;
    let unlocked = take(&scene.client.lock("unlocked")).await;
    let dropped = take(&scene.client.lock("dropped")).await;
    scene.proxy.black_hole(true);
    drop(dropped);
    assert_eq!(fails(COMMAND, unlocked.unlock()).await, ErrorKind::Timeout);
    // By now both releases have been tried without success.
    sleep(2 * COMMAND).await;
    scene.proxy.black_hole(false);
    for name in ["unlocked", "dropped"] {
        scene.lets_the_next_in(name).await;
    }
    scene.ends_clean().await;
}

// fault: S26
#[tokio::test(flavor = "multi_thread")]
async fn half_open_connections_are_replaced() {
    let scene = Scene::open(leased(Duration::from_secs(60))).await;
    let held = take(&scene.client.lock("held")).await;
    let holder = take(&scene.other.lock(NAME)).await;
    let waiter = spawn_lock(&scene.client.lock(NAME));
    let mut connection = scene.server.connection();
    eventually("the waiter listens", async || {
        connection.channels().len() == 1
    })
    .await;
    scene.proxy.black_hole(true);
    let lock = scene.client.lock("another");
    assert_eq!(fails(COMMAND, lock.try_lock()).await, ErrorKind::Timeout);
    // Long enough for the connection for messages to lose a PING too, of which it sends one a second.
    sleep(Duration::from_millis(1_500)).await;
    scene.proxy.black_hole(false);

    let healed = Instant::now();
    let handshake = Duration::from_secs(1);
    while lock.try_lock().await.is_err() {
        assert!(
            healed.elapsed() < 2 * COMMAND + handshake + SLACK,
            "still no new connection"
        );
    }
    holder.unlock().await.expect("held until now");
    let served = timeout(Duration::from_secs(10), waiter)
        .await
        .expect("the waiter hears again");
    assert_eq!(served.expect("the waiter is sound"), Ok(()));
    held.unlock().await.expect("never lost");
    bury_half_open(&scene).await;
    scene.ends_clean().await;
}

// fault: S23 S27
#[tokio::test(flavor = "multi_thread")]
async fn renewals_without_answers_are_worth_nothing() {
    let lease = Duration::from_secs(3);
    let scene = Scene::open(leased(lease)).await;
    let guard = take(&scene.client.lock(NAME)).await;
    let end = scene.end_of_key(NAME);
    scene.proxy.hold_replies();
    eventually("a renewal runs on the server", async || {
        scene.end_of_key(NAME) > end + Duration::from_millis(200)
    })
    .await;
    runs_out_in_time(&guard, end).await;
    scene.proxy.release_replies();
    eventually("what it held is given back", async || {
        scene.levels(NAME) == 0
    })
    .await;
    assert!(
        guard.is_lost(),
        "an answer that comes too late revives nothing"
    );
    assert_eq!(fails(COMMAND, guard.unlock()).await, ErrorKind::LeaseLost);
    scene.lets_the_next_in(NAME).await;
    scene.ends_clean().await;
}

// fault: S28 S42
#[tokio::test(flavor = "multi_thread")]
async fn grant_that_comes_too_late_is_given_back() {
    let lease = Duration::from_secs(60);
    let settings =
        |builder: ClientBuilder| patient(builder).min_validity(lease - Duration::from_millis(800));
    let scene = Scene::open(settings).await;
    let lock = scene.client.lock(NAME);
    for fixed in [false, true] {
        let lock = if fixed {
            lock.clone().lease(lease)
        } else {
            lock.clone()
        };
        scene.proxy.delay(Duration::from_millis(150));
        assert_eq!(fails(SLACK, lock.lock()).await, ErrorKind::LeaseLost);
        assert_eq!(fails(SLACK, lock.try_lock()).await, ErrorKind::LeaseLost);
        scene.proxy.delay(Duration::ZERO);
        scene.lets_the_next_in(NAME).await;
    }
    scene.ends_clean().await;
}

// fault: S29
#[tokio::test(flavor = "multi_thread")]
async fn grant_after_the_limit_of_its_caller_is_given_back() {
    let scene = Scene::open(leased(Duration::from_secs(60))).await;
    let lock = scene.client.lock(NAME);
    let wait = Duration::from_millis(100);
    scene.proxy.hold_replies();
    let (late, ()) = tokio::join!(
        fails(wait + COMMAND, lock.try_lock_for(wait)),
        eventually("the server grants it", async || scene.levels(NAME) == 1),
    );
    assert!(
        matches!(late, ErrorKind::Timeout | ErrorKind::Backend),
        "{late:?}"
    );
    scene.proxy.release_replies();
    scene.lets_the_next_in(NAME).await;
    scene.ends_clean().await;
}

// fault: S29
#[tokio::test(flavor = "multi_thread")]
async fn request_that_arrives_after_its_caller_left_blocks_others_for_one_lease_at_the_most() {
    let lease = Duration::from_secs(3);
    let scene = Scene::open(leased(lease)).await;
    let lock = scene.client.lock(NAME);
    scene.proxy.delay(4 * COMMAND);
    let late = fails(COMMAND, lock.try_lock()).await;
    assert_eq!(late, ErrorKind::Timeout);
    assert_eq!(scene.levels(NAME), 0);
    eventually("the request arrives", async || scene.levels(NAME) == 1).await;
    let arrived = Instant::now();
    scene.proxy.delay(Duration::ZERO);
    scene.lets_the_next_in(NAME).await;
    assert!(arrived.elapsed() < lease + SLACK);
    scene.ends_clean().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn lock_gives_up_after_one_watchdog_lease_without_any_answer() {
    let patience = Duration::from_millis(1_500);
    let settings = |builder| leased(patience)(builder).poll_cap(Duration::from_millis(200));
    let scene = Scene::open(settings).await;
    let holders = [NAME, "other"].map(|name| scene.other.lock(name));
    let holders = [take(&holders[0]).await, take(&holders[1]).await];
    // The call at the front of the local queue has more patience than those behind it.
    let endless = scene.client.clone().watchdog_lease(Duration::from_secs(60));
    let first = spawn_lock(&endless.lock(NAME));
    let front = spawn_lock(&scene.client.lock("other"));
    let mut connection = scene.server.connection();
    eventually("both at a front listen", async || {
        connection.channels().len() == 2
    })
    .await;
    let behind = [(); 3].map(|()| spawn_lock(&scene.client.lock(NAME)));

    scene.proxy.black_hole(true);
    let started = Instant::now();
    // A lock with a lease of its own still has the patience of its client.
    let fresh = spawn_lock(&scene.client.lock("free").lease(Duration::from_secs(60)));
    let limit = started + patience + 2 * SLACK + 2 * COMMAND;
    for waiter in behind.into_iter().chain([front, fresh]) {
        let failed = timeout_at(limit.into(), waiter)
            .await
            .expect("no answer, no wait");
        let kind = failed.expect("sound").expect_err("no answer can have come");
        assert!(
            matches!(kind, ErrorKind::Timeout | ErrorKind::Backend),
            "{kind:?}"
        );
        assert!(
            started.elapsed() >= patience,
            "gave up after {:?}",
            started.elapsed()
        );
    }
    assert!(!first.is_finished());
    scene.proxy.black_hole(false);
    for holder in holders {
        holder.unlock().await.expect("held until now");
    }
    let served = timeout(Duration::from_secs(10), first)
        .await
        .expect("in when all is well");
    assert_eq!(served.expect("the waiter is sound"), Ok(()));
    bury_half_open(&scene).await;
    scene.ends_clean().await;
}

// fault: S4
#[tokio::test(flavor = "multi_thread")]
async fn server_that_was_killed_is_an_error_and_no_busy_loop() {
    let scene = Scene::open(leased(Duration::from_secs(2))).await;
    let lock = scene.client.lock(NAME);
    let guard = take(&lock).await;
    let deadline = Instant::now() + guard.remaining();
    scene.server.kill();
    let waiter = spawn_lock(&scene.client.lock("another").lease(Duration::from_secs(60)));
    let before = scene.proxy.accepted();
    let started = Instant::now();
    sleep(Duration::from_secs(3)).await;
    let connects = scene.proxy.accepted() - before;
    let limit = 20 * started.elapsed().as_secs() as usize;
    assert!(
        connects <= limit,
        "{connects} connections in {:?}",
        started.elapsed()
    );
    assert!(guard.is_lost() && deadline < Instant::now());

    assert_eq!(fails(COMMAND, lock.try_lock()).await, ErrorKind::Backend);
    let wait = Duration::from_millis(400);
    assert_eq!(
        fails(wait + COMMAND, lock.try_lock_for(wait)).await,
        ErrorKind::Backend
    );
    assert_eq!(fails(COMMAND, lock.is_locked()).await, ErrorKind::Backend);
    let waited = timeout(4 * SLACK, waiter).await.expect("gives up");
    assert_eq!(waited.expect("sound"), Err(ErrorKind::Backend));

    scene.server.restart();
    eventually("the client is connected again", async || {
        lock.try_lock().await.is_ok()
    })
    .await;
    take(&lock).await.unlock().await.expect("held until now");
    scene.ends_clean().await;
}
