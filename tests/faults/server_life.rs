//! Stops, empties, restarts and occupies the server under holders and waiters.

use std::net::TcpStream;
use std::time::{Duration, Instant};

use crate::support::probe::calls_of;
use crate::support::scene::{Scene, give_back, patient, runs_out_in_time, take};
use crate::support::{builder, eventually};
use redlatch::{Client, ClientBuilder, ErrorKind, LockGuard};
use redlatch_testkit::{Reply, Server};
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::{Interval, interval, sleep, timeout};

const NAME: &str = "invoice";
const LEASE: Duration = Duration::from_secs(60);
/// The command timeout: the limit of one request.
const COMMAND: Duration = Duration::from_millis(300);
/// Far above the time of a wake-up, far below a park or lease of `patient`.
const PROMPT: Duration = Duration::from_secs(5);

fn leased(lease: Duration) -> impl Fn(ClientBuilder) -> ClientBuilder {
    move |builder| {
        patient(builder)
            .command_timeout(COMMAND)
            .watchdog_lease(lease)
    }
}

fn spawn_waiter(client: &Client) -> JoinHandle<()> {
    let lock = client.lock(NAME);
    tokio::spawn(async move { give_back(take(&lock).await).await })
}

async fn is_served(waiter: JoinHandle<()>, within: Duration) {
    let served = timeout(within, waiter).await.expect("served in time");
    served.expect("the waiter is sound");
}

async fn listen(scene: &Scene, clients: i64) {
    let mut connection = scene.server.connection();
    eventually("the waiters listen", async || {
        let channels = connection.channels();
        let count =
            |channel: &String| connection.command(&["PUBSUB", "NUMSUB", channel]).array()[1].int();
        channels.iter().map(count).sum::<i64>() == clients
    })
    .await;
}

async fn is_lost_within(guard: LockGuard, limit: Duration) {
    timeout(limit, guard.lost())
        .await
        .expect("learns of the loss in time");
    let stale = guard.unlock().await.map_err(|error| error.kind());
    assert_eq!(stale, Err(ErrorKind::LeaseLost));
}

/// Closes the connections of a kind. Returns how many the server closed.
fn kill_connections(scene: &Scene, kind: &str) -> i64 {
    scene
        .server
        .connection()
        .command(&["CLIENT", "KILL", "TYPE", kind])
        .int()
}

// fault: S10
#[tokio::test(flavor = "multi_thread")]
async fn forgotten_scripts_are_sent_anew() {
    let scene = Scene::open(patient).await;
    let mut connection = scene.server.connection();
    let mut forget = || assert_eq!(connection.command(&["SCRIPT", "FLUSH"]).text(), "OK");
    let lock = scene.client.lock(NAME);
    for _ in 0..12 {
        forget();
        let outer = take(&lock).await;
        forget();
        let inner = outer.reenter().await.expect("the hold stands");
        forget();
        inner.extend(LEASE).await.expect("the hold stands");
        forget();
        inner.verify().await.expect("the hold stands");
        forget();
        assert_eq!(lock.hold_count().await.expect("an answer"), 2);
        forget();
        give_back(inner).await;
        forget();
        give_back(outer).await;
        forget();
        assert!(!lock.force_unlock().await.expect("an answer"));
    }
    scene.ends_clean().await;
}

// fault: S31
#[tokio::test(flavor = "multi_thread")]
async fn waiters_whose_subscription_was_killed_are_all_served() {
    let scene = Scene::open(patient).await;
    let holder = take(&scene.other.lock(NAME)).await;
    let waiters: Vec<_> = (0..100).map(|_| spawn_waiter(&scene.client)).collect();
    listen(&scene, 1).await;
    assert!(kill_connections(&scene, "pubsub") > 0);
    give_back(holder).await;
    for waiter in waiters {
        is_served(waiter, PROMPT).await;
        // A process without a place in the turn order listens to the common channel besides its own.
        eventually("one channel serves all", async || {
            scene.server.connection().channels().len() <= 1
        })
        .await;
    }
    scene.ends_clean().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn hold_outlives_its_connection() {
    let lease = Duration::from_secs(3);
    let scene = Scene::open(leased(lease)).await;
    let guard = take(&scene.client.lock(NAME)).await;
    let mut pace = interval(lease / 6);
    for _ in 0..12 {
        pace.tick().await;
        assert!(kill_connections(&scene, "normal") > 0);
        assert!(!guard.is_lost());
        assert_eq!(scene.levels(NAME), 1);
        scene.keeps_promise(NAME, &guard);
    }
    guard.verify().await.expect("the hold stands");
    give_back(guard).await;
    scene.lets_the_next_in(NAME).await;
    scene.ends_clean().await;
}

// fault: S6
#[tokio::test(flavor = "multi_thread")]
async fn hold_outlives_a_short_freeze_of_the_server() {
    let lease = Duration::from_secs(3);
    let scene = Scene::open(leased(lease)).await;
    let guard = take(&scene.client.lock(NAME)).await;
    for _ in 0..2 {
        // Shortly before a renewal is due, so that it goes unanswered and must be repeated.
        eventually("half of the period passes", async || {
            guard.remaining() < lease * 4 / 5
        })
        .await;
        scene.server.freeze();
        sleep(lease / 3).await;
        scene.server.thaw();
        eventually("a renewal is confirmed", async || {
            guard.remaining() > lease * 4 / 5
        })
        .await;
    }
    assert!(
        timeout(lease, guard.lost()).await.is_err(),
        "lost to a short freeze"
    );
    assert_eq!(scene.levels(NAME), 1);
    give_back(guard).await;
    scene.lets_the_next_in(NAME).await;
    scene.ends_clean().await;
}

// fault: S5
#[tokio::test(flavor = "multi_thread")]
async fn nothing_revives_a_hold_after_a_long_freeze_of_the_server() {
    let lease = Duration::from_millis(1_500);
    let scene = Scene::open(leased(lease)).await;
    let guard = take(&scene.client.lock(NAME)).await;
    let end = scene.end_of_key(NAME);
    let frozen = Instant::now();
    scene.server.freeze();
    runs_out_in_time(&guard, end).await;
    sleep((2 * lease).saturating_sub(frozen.elapsed())).await;
    scene.server.thaw();
    scene.lets_the_next_in(NAME).await;
    assert!(guard.is_lost());
    is_lost_within(guard, Duration::ZERO).await;
    scene.ends_clean().await;
}

// fault: S1
#[tokio::test(flavor = "multi_thread")]
async fn server_that_restarts_empty_is_noticed_at_once() {
    let scene = Scene::open(patient).await;
    let held = scene.client.lock(NAME);
    let everywhere = [&scene.client, &scene.other];
    for lock in [held.clone(), held.lease(LEASE)] {
        for clients in [&everywhere[..1], &everywhere[1..], &everywhere[..]] {
            let guard = take(&lock).await;
            let waiters: Vec<_> = clients.iter().map(|client| spawn_waiter(client)).collect();
            listen(&scene, clients.len().try_into().expect("a few")).await;
            scene.server.restart();
            is_lost_within(guard, PROMPT).await;
            for waiter in waiters {
                is_served(waiter, PROMPT).await;
            }
            eventually("nobody listens", async || {
                scene.server.connection().channels().is_empty()
            })
            .await;
        }
    }
    scene.ends_clean().await;
}

// fault: S3
#[tokio::test(flavor = "multi_thread")]
async fn hold_outlives_a_restart_that_keeps_the_data() {
    let lease = Duration::from_secs(9);
    // The server answers once it has written to its disk, which may be busy.
    let settings = |builder| leased(lease)(builder).command_timeout(Duration::from_secs(1));
    let scene = Scene::around(Server::builder().persistent().start(), settings).await;
    let guard = take(&scene.client.lock(NAME)).await;
    let waiters = [spawn_waiter(&scene.client), spawn_waiter(&scene.other)];
    listen(&scene, 2).await;
    scene.server.restart();
    assert!(
        timeout(lease, guard.lost()).await.is_err(),
        "lost though the data was kept"
    );
    guard.verify().await.expect("the hold stands");
    assert_eq!(scene.levels(NAME), 1);
    assert!(waiters.iter().all(|waiter| !waiter.is_finished()));
    give_back(guard).await;
    for waiter in waiters {
        is_served(waiter, PROMPT).await;
    }
    scene.ends_clean().await;
}

// fault: S8 S9
#[tokio::test(flavor = "multi_thread")]
async fn renewal_that_finds_its_hold_wiped_out_ends_it() {
    let lease = Duration::from_secs(9);
    let settings = |builder| leased(lease)(builder).poll_cap(Duration::from_secs(1));
    let scene = Scene::open(settings).await;
    let commands: [&[&str]; 2] = [&["FLUSHALL"], &["DEL", NAME]];
    for command in commands {
        let guard = take(&scene.client.lock(NAME)).await;
        let waiter = spawn_waiter(&scene.other);
        listen(&scene, 1).await;
        scene.server.connection().command(command);
        // Well before the lease would have ended.
        is_lost_within(guard, lease / 3 + COMMAND + Duration::from_secs(1)).await;
        is_served(waiter, PROMPT).await;
        eventually("nobody listens", async || {
            scene.server.connection().channels().is_empty()
        })
        .await;
    }
    scene.ends_clean().await;
}

// fault: S33
#[tokio::test(flavor = "multi_thread")]
async fn waiter_asks_at_each_poll_cap_though_no_message_comes() {
    let cap = Duration::from_millis(300);
    let settings = |builder: ClientBuilder| patient(builder).command_timeout(COMMAND).poll_cap(cap);
    let scene = Scene::open(settings).await;
    for clients in [
        vec![&scene.client],
        vec![&scene.other],
        vec![&scene.client, &scene.other],
    ] {
        let guard = take(&scene.client.lock(NAME).lease(LEASE)).await;
        let waiters: Vec<_> = clients.iter().map(|client| spawn_waiter(client)).collect();
        listen(&scene, clients.len().try_into().expect("a few")).await;
        scene.server.connection().command(&["DEL", NAME]);
        for waiter in waiters {
            // The first park may have begun just before; the second follows it.
            is_served(waiter, 2 * cap + COMMAND + Duration::from_secs(1)).await;
        }
        let stale = guard.unlock().await.map_err(|error| error.kind());
        assert_eq!(stale, Err(ErrorKind::LeaseLost));
        eventually("nobody listens", async || {
            scene.server.connection().channels().is_empty()
        })
        .await;
    }
    scene.ends_clean().await;
}

// fault: S33
#[tokio::test(flavor = "multi_thread")]
async fn waiter_to_whom_no_message_ever_comes_asks_at_each_poll_cap() {
    let cap = Duration::from_millis(500);
    let settings = |builder: ClientBuilder| patient(builder).poll_cap(cap);
    let scene = Scene::open(settings).await;
    // The server answers this user's PINGs, so nothing tells the client that it gets no messages.
    let user = [
        "ACL",
        "SETUSER",
        "deaf",
        "on",
        ">secret",
        "~*",
        "&*",
        "+@all",
        "-subscribe",
    ];
    let mut connection = scene.server.connection();
    assert_eq!(connection.command(&user).text(), "OK");
    let url = format!("redis://deaf:secret@127.0.0.1:{}", scene.proxy.port());
    let deaf = settings(builder(url))
        .build()
        .await
        .expect("the server is up");
    let before = scene.proxy.accepted();
    for _ in 0..3 {
        let holder = take(&scene.other.lock(NAME)).await;
        let asked = evaluations(&scene);
        let waiter = spawn_waiter(&deaf);
        eventually("it asked again", async || evaluations(&scene) > asked + 1).await;
        give_back(holder).await;
        is_served(waiter, cap + Duration::from_secs(2)).await;
        assert_eq!(connection.channels(), [""; 0]);
    }
    assert_eq!(scene.proxy.accepted(), before, "it reconnects for nothing");
    deaf.close().await;
    scene.ends_clean().await;
}

/// Returns how many scripts the server ran by their hash.
fn evaluations(scene: &Scene) -> u64 {
    calls_of(&mut scene.server.connection(), "evalsha")
}

// fault: S31
#[tokio::test(flavor = "multi_thread")]
async fn waiters_are_served_though_their_subscription_is_killed_again_and_again() {
    let scene = Scene::open(patient).await;
    let holder = take(&scene.other.lock(NAME)).await;
    let waiters: Vec<_> = (0..20).map(|_| spawn_waiter(&scene.client)).collect();
    listen(&scene, 1).await;
    let kill = async |pace: &mut Interval| {
        for _ in 0..20 {
            pace.tick().await;
            kill_connections(&scene, "pubsub");
        }
    };
    let mut pace = interval(Duration::from_millis(50));
    kill(&mut pace).await;
    give_back(holder).await;
    kill(&mut pace).await;
    for waiter in waiters {
        is_served(waiter, PROMPT).await;
    }
    scene.ends_clean().await;
}

// fault: S32
#[tokio::test(flavor = "multi_thread")]
async fn release_before_the_subscription_is_not_missed() {
    let scene = Scene::open(patient).await;
    // The connection breaks: the server never sees the SUBSCRIBE in time.
    let holder = take(&scene.other.lock(NAME)).await;
    let mut parcel = scene.proxy.hold_request("SUBSCRIBE");
    let waiter = spawn_waiter(&scene.client);
    parcel.caught().await;
    give_back(holder).await;
    is_served(waiter, PROMPT).await;
    drop(parcel);
    scene.ends_clean().await;
}

// fault: S32
#[tokio::test(flavor = "multi_thread")]
async fn release_before_a_slow_subscription_is_not_missed() {
    let scene = Scene::open(patient).await;
    let holder = take(&scene.other.lock(NAME)).await;
    let before = evaluations(&scene);
    let delay = Duration::from_millis(500);
    scene.proxy.delay(delay);
    let waiter = spawn_waiter(&scene.client);
    eventually("it was told that the lock is busy", async || {
        evaluations(&scene) > before
    })
    .await;
    give_back(holder).await;
    assert_eq!(
        scene.server.connection().channels(),
        [""; 0],
        "it listened too early"
    );
    // Two round trips to subscribe, one to acquire the lock, one to release it.
    is_served(waiter, 10 * delay + PROMPT).await;
    scene.proxy.delay(Duration::ZERO);
    scene.ends_clean().await;
}

/// Waits until the server, which is starting or up, answers with nothing but this error.
async fn answers_with(server: &Server, code: &str) {
    eventually(code, async || {
        TcpStream::connect(("127.0.0.1", server.port())).is_ok()
            && matches!(server.connection().command(&["PING"]), Reply::Error(text) if text.starts_with(code))
    })
    .await;
}

// fault: S7
#[tokio::test(flavor = "multi_thread")]
async fn server_that_loads_its_data_is_waited_for_and_counts_nothing_as_free() {
    let server = Server::builder()
        .arg("key-load-delay", 1_000)
        .arg("rdbcompression", "no");
    let scene = Scene::around(server.start(), patient).await;
    let guard = take(&scene.other.lock(NAME).lease(LEASE)).await;
    let mut connection = scene.server.connection();
    // While loading, the server answers once per 2 MB, or 200 keys: often enough to reconnect and be refused.
    for n in 0..5_000 {
        connection.command(&["SET", &format!("ballast:{n}"), &"x".repeat(10_000)]);
    }
    assert_eq!(connection.command(&["SAVE"]).text(), "OK");
    scene.server.kill();
    let server = scene.server.clone();
    let restart = spawn_blocking(move || server.restart());
    answers_with(&scene.server, "LOADING").await;

    let (free, held) = (scene.client.lock("free"), scene.client.lock(NAME));
    let refused = held
        .try_lock()
        .await
        .map(drop)
        .map_err(|error| error.kind());
    assert_eq!(refused, Err(ErrorKind::Backend));
    let waiter = spawn_waiter(&scene.client);
    give_back(free.lock().await.expect("waits until the data is loaded")).await;
    restart.await.expect("the server is up");
    guard.verify().await.expect("the hold stands");
    assert!(!waiter.is_finished(), "taken from its holder");
    give_back(guard).await;
    is_served(waiter, PROMPT).await;
    scene.server.connection().command(&["FLUSHALL"]);
    scene.ends_clean().await;
}

// fault: S15
#[tokio::test(flavor = "multi_thread")]
async fn server_that_is_busy_with_a_script_is_waited_for() {
    let lease = Duration::from_secs(6);
    let server = Server::builder().arg("lua-time-limit", 100).start();
    let scene = Scene::around(server, leased(lease)).await;
    let guard = take(&scene.client.lock(NAME)).await;
    let mut connection = scene.server.connection();
    let script = spawn_blocking(move || connection.command(&["EVAL", "while true do end", "0"]));
    answers_with(&scene.server, "BUSY").await;
    let waiting = tokio::spawn({
        let lock = scene.client.lock("another");
        async move { lock.try_lock_for(PROMPT).await }
    });
    sleep(lease / 3).await;
    assert!(!waiting.is_finished());
    assert_eq!(
        scene
            .server
            .connection()
            .command(&["SCRIPT", "KILL"])
            .text(),
        "OK"
    );
    assert!(matches!(script.await.expect("sound"), Reply::Error(_)));
    let another = waiting
        .await
        .expect("sound")
        .expect("the script ended within the limit");
    give_back(another.expect("free")).await;
    assert!(
        timeout(lease, guard.lost()).await.is_err(),
        "lost to a busy server"
    );
    give_back(guard).await;
    scene.ends_clean().await;
}
