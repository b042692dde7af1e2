//! The count-down latch: waiters wait until its count is zero, and each call counts down once, in Redisson's format.

use crate::support;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::support::polls::Polls;
use crate::support::probe::{
    NEVER, calls, eventually_listening, kind, millis, nothing_left, reset_calls, secs, soon,
};
use crate::support::scene::{Scene, patient};
use crate::support::{builder, eventually, sha, start};
use redlatch::config::PubSub;
use redlatch::{ErrorKind, Latch};
use redlatch_testkit::{Cluster, Reply, Server, Subscriber};

const CHANNEL: &str = "redisson_countdownlatch__channel__{l}";

async fn set(latch: &Latch, count: u32) {
    assert!(latch.try_set_count(count).await.unwrap());
}

fn message(subscriber: &mut Subscriber) -> Option<String> {
    let message = subscriber.next(millis(500));
    message.map(|(channel, text)| {
        assert_eq!(channel, CHANNEL);
        text
    })
}

#[tokio::test]
async fn it_is_redissons_string_and_tells_on_its_channel() {
    let (server, client) = start().await;
    let mut probe = server.connection();
    let mut heard = server.connection().into_subscriber(&[CHANNEL]);
    let latch = client.latch("l");
    assert_eq!(latch.count().await.unwrap(), 0);

    set(&latch, 2).await;
    assert_eq!(message(&mut heard).as_deref(), Some("1"));
    assert_eq!(probe.command(&["GET", "l"]), Reply::Text(b"2".into()));
    assert_eq!(probe.pttl("l"), -1);
    assert!(!latch.try_set_count(3).await.unwrap());
    assert_eq!(latch.count().await.unwrap(), 2);

    latch.count_down().await.unwrap();
    assert_eq!(message(&mut heard), None);
    assert_eq!(latch.count().await.unwrap(), 1);
    latch.count_down().await.unwrap();
    assert_eq!(message(&mut heard).as_deref(), Some("0"));
    assert!(!probe.exists("l"));
    latch.count_down().await.unwrap();
    assert!(!probe.exists("l"), "an open latch stays open");
    assert_eq!(message(&mut heard), None);

    assert!(!latch.delete().await.unwrap());
    set(&latch, 1).await;
    assert_eq!(message(&mut heard).as_deref(), Some("1"));
    assert!(latch.delete().await.unwrap());
    assert_eq!(message(&mut heard).as_deref(), Some("0"));
    drop(heard);
    nothing_left(&server, [&client]).await;
}

#[tokio::test]
async fn channel_always_has_the_whole_name_as_its_tag() {
    let (server, client) = start().await;
    let channel = "redisson_countdownlatch__channel__{{t}:x}";
    let mut heard = server.connection().into_subscriber(&[channel]);
    set(&client.latch("{t}:x"), 1).await;
    let told = heard.next(secs(5)).unwrap();
    assert_eq!(told, (channel.to_owned(), "1".to_owned()));
    client.latch("{t}:x").delete().await.unwrap();
    drop(heard);
    nothing_left(&server, [&client]).await;
}

/// No wait here ends by the poll cap.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_opens_once_for_all_that_wait_and_not_before() {
    const PARTS: u32 = 40;
    let server = Server::start();
    let unpolled = async || {
        let unpolled = builder(server.url()).poll_cap(NEVER / 2).build().await;
        unpolled.unwrap()
    };
    let clients = [unpolled().await, unpolled().await];
    for _ in 0..5 {
        set(&clients[0].latch("l"), PARTS).await;
        let begun = Arc::new(AtomicU32::new(0));
        let mut waiting = Vec::new();
        for n in 0..40 {
            let (latch, begun) = (clients[n % 2].latch("l"), begun.clone());
            waiting.push(tokio::spawn(async move {
                latch.wait().await.unwrap();
                assert_eq!(begun.load(Ordering::SeqCst), PARTS, "open too early");
            }));
        }
        eventually_listening(&server, CHANNEL, 2).await;
        let count_down = |n: usize| {
            let (latch, begun) = (clients[n % 2].latch("l"), begun.clone());
            tokio::spawn(async move {
                begun.fetch_add(1, Ordering::SeqCst);
                latch.count_down().await.unwrap();
            })
        };
        let all_but_one: Vec<_> = (1..PARTS as usize).map(count_down).collect();
        for done in all_but_one {
            soon(done).await.unwrap();
        }
        assert!(!clients[0].latch("l").wait_for(millis(20)).await.unwrap());
        for done in [count_down(0)].into_iter().chain(waiting) {
            soon(done).await.unwrap();
        }
    }
    nothing_left(&server, [&clients[0], &clients[1]]).await;
}

#[tokio::test]
async fn wait_ends_at_its_limit() {
    let (server, client) = start().await;
    let latch = client.latch("l");
    assert!(latch.wait_for(Duration::ZERO).await.unwrap(), "never set");
    set(&latch, 1).await;
    assert!(!latch.wait_for(Duration::ZERO).await.unwrap());
    let started = Instant::now();
    assert!(!latch.wait_for(millis(300)).await.unwrap());
    let took = started.elapsed();
    // The documented slack is one command timeout.
    assert!(took >= millis(300) && took < millis(1_300), "{took:?}");
    latch.delete().await.unwrap();
    nothing_left(&server, [&client]).await;
}

#[tokio::test]
async fn opening_that_nobody_told_of_is_found_out_within_the_poll_cap() {
    let server = Server::start();
    let polling = builder(server.url()).poll_cap(millis(300)).build().await;
    let client = polling.unwrap();
    let latch = client.latch("l");
    set(&latch, 1).await;
    let waiter = latch.clone();
    let waiting = tokio::spawn(async move { waiter.wait_for(secs(60)).await });
    eventually_listening(&server, CHANNEL, 1).await;
    server.connection().command(&["DEL", "l"]);
    assert!(soon(waiting).await.unwrap().unwrap());
    nothing_left(&server, [&client]).await;
}

#[tokio::test]
async fn deleted_latch_lets_all_go_that_wait() {
    let server = Server::start();
    let unpolled = builder(server.url()).poll_cap(NEVER / 2).build().await;
    let client = unpolled.unwrap();
    let latch = client.latch("l");
    set(&latch, 7).await;
    let waiting = [(); 3].map(|()| {
        let latch = latch.clone();
        tokio::spawn(async move { latch.wait_for(NEVER).await })
    });
    eventually_listening(&server, CHANNEL, 1).await;
    assert!(latch.delete().await.unwrap());
    for waiting in waiting {
        assert!(soon(waiting).await.unwrap().unwrap());
    }
    nothing_left(&server, [&client]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn call_without_its_reply_counts_once() {
    let scene = Scene::open(patient).await;
    let latch = scene.client.latch("l");
    let cut = |script| scene.proxy.cut_reply_to(sha(script));
    cut("counter_set");
    set(&latch, 3).await;
    cut("latch_count_down");
    latch.count_down().await.unwrap();
    assert_eq!(latch.count().await.unwrap(), 2);
    cut("latch_delete");
    assert!(latch.delete().await.unwrap());
    assert!(!scene.proxy.cut_reply_armed());
    set(&latch, 1).await;
    cut("latch_count_down");
    latch.count_down().await.unwrap();
    assert_eq!(latch.count().await.unwrap(), 0);
    // Each call that was sent twice leaves a request mark, which expires.
    let mut probe = scene.server.connection();
    for key in probe.keys() {
        assert!(key.starts_with("redlatch_call:{l}:"), "{key}");
        assert!((1..=120_000).contains(&probe.pttl(&key)), "{key}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn late_copy_of_a_call_changes_nothing() {
    let scene = Scene::open(patient).await;
    let latch = scene.client.latch("l");
    set(&latch, 3).await;

    let mut late = scene.proxy.hold_request(sha("latch_count_down"));
    let (counted, ()) = tokio::join!(latch.count_down(), late.caught());
    counted.unwrap();
    late.deliver().await;
    assert_eq!(latch.count().await.unwrap(), 2);

    let mut late = scene.proxy.hold_request(sha("latch_delete"));
    let (deleted, ()) = tokio::join!(latch.delete(), late.caught());
    assert!(deleted.unwrap());
    set(&latch, 5).await;
    late.deliver().await;
    assert_eq!(latch.count().await.unwrap(), 5);

    // A call that found nothing to do has been answered too.
    let mut late = scene.proxy.hold_request(sha("counter_set"));
    let (present, ()) = tokio::join!(latch.try_set_count(7), late.caught());
    assert!(!present.unwrap());
    latch.delete().await.unwrap();
    late.deliver().await;
    assert_eq!(latch.count().await.unwrap(), 0);

    let mut late = scene.proxy.hold_request(sha("latch_count_down"));
    let (counted, ()) = tokio::join!(latch.count_down(), late.caught());
    counted.unwrap();
    set(&latch, 3).await;
    late.deliver().await;
    assert_eq!(latch.count().await.unwrap(), 3);
}

// fault: S11
#[tokio::test]
async fn full_server_answers_calls_that_change_nothing() {
    let (server, client) = start().await;
    let (latch, closed) = (client.latch("l"), client.latch("closed"));
    set(&closed, 2).await;
    server
        .connection()
        .command(&["CONFIG", "SET", "maxmemory", "1"]);
    latch.count_down().await.unwrap();
    assert!(!latch.delete().await.unwrap());
    assert!(!closed.try_set_count(3).await.unwrap());
    closed.count_down().await.unwrap();
    assert_eq!(closed.count().await.unwrap(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn dropped_call_counts_once_or_not_at_all() {
    let scene = Scene::open(patient).await;
    Polls::sweep(&scene.proxy, "count_down", async |name, polls| {
        let latch = scene.client.latch(name);
        set(&latch, 9).await;
        let done = polls.run(latch.count_down()).await;
        scene.requests_have_run().await;
        let left = latch.count().await.unwrap();
        assert!(left == 8 || done.is_none() && left == 9, "{left}: {name}");
        latch.delete().await.unwrap();
    })
    .await;
    Polls::sweep(&scene.proxy, "wait", async |name, polls| {
        let latch = scene.client.latch(name);
        set(&latch, 1).await;
        let open = async { scene.other.latch(name).count_down().await.unwrap() };
        polls.run_until(latch.wait(), open).await;
        assert_eq!(latch.count().await.unwrap(), 0);
    })
    .await;
    support::eventually_idle(&scene.client).await;
    let mut probe = scene.server.connection();
    eventually("no channel is left", async || probe.channels().is_empty()).await;
    let keys = probe.keys();
    let marks = keys.iter().all(|key| key.starts_with("redlatch_call:"));
    assert!(marks, "{keys:?}");
}

#[tokio::test]
async fn name_in_use_by_something_else_is_the_wrong_kind_and_stays_untouched() {
    let (server, client) = start().await;
    let mut probe = server.connection();
    let latch = client.latch("l");
    for command in [
        &["SET", "l", "text"][..],
        &["SET", "l", "12345678901234"],
        &["SET", "l", "007"],
        &["RPUSH", "l", "a"],
        &["HSET", "l", "f", "1"],
    ] {
        probe.command(command);
        let before = probe.command(&["DUMP", "l"]);
        let kinds = [
            kind(latch.try_set_count(1).await),
            kind(latch.count().await),
            kind(latch.count_down().await),
            kind(soon(latch.wait()).await),
            kind(soon(latch.wait_for(NEVER)).await),
            kind(latch.delete().await),
        ];
        assert_eq!(kinds, [ErrorKind::WrongKind; 6], "{command:?}");
        assert_eq!(probe.command(&["DUMP", "l"]), before);
        probe.command(&["DEL", "l"]);
    }
    set(&latch, 1).await;
    assert_eq!(
        kind(client.lock("l").try_lock().await),
        ErrorKind::WrongKind
    );
    latch.delete().await.unwrap();
    nothing_left(&server, [&client]).await;
}

#[tokio::test]
async fn input_that_cannot_work_is_refused_before_anything_is_sent() {
    let (server, client) = start().await;
    let mut probe = server.connection();
    reset_calls(&mut probe);
    let latch = client.latch("l");
    for count in [0, 1 << 31, u32::MAX] {
        let error = kind(latch.try_set_count(count).await);
        assert_eq!(error, ErrorKind::InvalidInput, "{count}");
    }
    let nameless = client.latch("");
    let kinds = [
        kind(nameless.try_set_count(1).await),
        kind(nameless.count().await),
        kind(nameless.count_down().await),
        kind(nameless.wait().await),
        kind(nameless.delete().await),
    ];
    assert_eq!(kinds, [ErrorKind::InvalidInput; 5]);
    assert!(!calls(&mut probe).contains_key("evalsha"));
    assert!(latch.try_set_count(i32::MAX as u32).await.unwrap());
    latch.delete().await.unwrap();
    nothing_left(&server, [&client]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn latch_of_a_cluster_opens_by_its_message() {
    let cluster = Cluster::start();
    for pubsub in [PubSub::Auto, PubSub::Plain] {
        let unpolled = builder(cluster.url()).poll_cap(NEVER / 2).pubsub(pubsub);
        let client = unpolled.command_timeout(secs(5)).build().await.unwrap();
        for name in ["a", "b", "c", "d"] {
            let latch = client.latch(format!("{name}{pubsub:?}"));
            set(&latch, 2).await;
            let waiter = latch.clone();
            let waiting = tokio::spawn(async move { waiter.wait().await });
            eventually("it listens", async || {
                format!("{client:?}").contains("channels: 1,")
            })
            .await;
            latch.count_down().await.unwrap();
            latch.count_down().await.unwrap();
            soon(waiting).await.unwrap().unwrap();
            support::eventually_idle(&client).await;
        }
        let parted = client.latch("{t}:x").try_set_count(1).await;
        assert_eq!(kind(parted), ErrorKind::InvalidInput);
        client.close().await;
    }
}

#[tokio::test]
async fn wait_ends_when_the_client_closes() {
    let (server, client) = start().await;
    let latch = client.latch("l");
    set(&latch, 1).await;
    let waiter = latch.clone();
    let waiting = tokio::spawn(async move { waiter.wait().await });
    eventually_listening(&server, CHANNEL, 1).await;
    client.close().await;
    assert_eq!(kind(soon(waiting).await.unwrap()), ErrorKind::Closed);
    assert_eq!(kind(latch.count_down().await), ErrorKind::Closed);
    assert_eq!(kind(latch.wait_for(secs(1)).await), ErrorKind::Closed);
}
