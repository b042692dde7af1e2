//! What is particular to the semaphore without leases: its key and messages in Redisson's form, and forgotten permits.
//! Requests that come late take nothing, from either semaphore.

use crate::support::probe::{kind, millis, nothing_left, secs};
use crate::support::scene::{Scene, patient};
use crate::support::{eventually, sha, start, start_two};
use redlatch::ErrorKind;
use redlatch_testkit::{Reply, Server, Subscriber, script};

const DAY: i64 = 24 * 60 * 60 * 1_000;

pub(super) fn told(subscriber: &mut Subscriber) -> Vec<String> {
    let message = |_| subscriber.next(millis(300)).map(|(_, text)| text);
    (0..).map_while(message).collect()
}

#[tokio::test]
async fn semaphore_is_redissons_string_with_a_mark_for_each_call_that_has_permits() {
    let (server, client) = start().await;
    let mut probe = server.connection();
    let mut heard = server.connection().into_subscriber(&["redisson_sc:{s}"]);
    let semaphore = client.semaphore("s");
    assert!(semaphore.try_set_permits(5).await.unwrap());
    assert_eq!(told(&mut heard), ["5"]);
    assert_eq!(probe.pttl("s"), -1);

    let permit = semaphore.acquire_many(2).await.unwrap();
    assert_eq!(probe.command(&["GET", "s"]), Reply::Text(b"3".into()));
    let mut keys = probe.keys();
    keys.retain(|key| key != "s");
    let [mark] = &keys[..] else {
        panic!("one mark: {keys:?}")
    };
    let number = mark.strip_prefix("redlatch_permit:{s}:").unwrap();
    assert!(number.len() == 16 && number.bytes().all(|digit| digit.is_ascii_hexdigit()));
    assert!((1..=DAY).contains(&probe.pttl(mark)));
    permit.release().await.unwrap();
    assert_eq!(told(&mut heard), ["5"]);

    semaphore.add_permits(3).await.unwrap();
    semaphore.add_permits(-2).await.unwrap();
    semaphore.add_permits(0).await.unwrap();
    // A removal frees nothing, so no message is published. Java cannot handle a message with a number below zero.
    assert_eq!(told(&mut heard), ["8"]);
    assert_eq!(semaphore.drain_permits().await.unwrap(), 6);
    semaphore.add_permits(-4).await.unwrap();
    semaphore.release(3).await.unwrap();
    assert_eq!(semaphore.available_permits().await.unwrap(), -1);
    semaphore.release(2).await.unwrap();
    assert_eq!(told(&mut heard), ["1"]);
    eventually("the marks go", async || probe.keys() == ["s"]).await;

    probe.command(&["DEL", "s"]);
    semaphore.release(2).await.unwrap();
    assert_eq!(semaphore.available_permits().await.unwrap(), 2);
    probe.command(&["DEL", "s"]);
    drop(heard);
    nothing_left(&server, [&client]).await;
}

#[tokio::test]
async fn forgotten_permits_stay_taken_until_somebody_gives_as_many_back() {
    let (server, one, two) = start_two().await;
    let semaphore = one.semaphore("s");
    semaphore.try_set_permits(3).await.unwrap();
    semaphore.acquire_many(2).await.unwrap().forget();
    let mut probe = server.connection();
    eventually("the mark goes", async || probe.keys() == ["s"]).await;
    one.close().await;
    let semaphore = two.semaphore("s");
    assert_eq!(semaphore.available_permits().await.unwrap(), 1);
    semaphore.release(2).await.unwrap();
    assert_eq!(semaphore.available_permits().await.unwrap(), 3);
    assert_eq!(kind(semaphore.release(0).await), ErrorKind::InvalidInput);
    probe.command(&["DEL", "s"]);
    nothing_left(&server, [&two]).await;
}

/// The request of `forget` is lost, as is everything sent instead for as long as the network is down.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mark_of_forgotten_permits_goes_once_the_network_is_back() {
    let scene = Scene::open(|builder| builder.command_timeout(secs(1))).await;
    let semaphore = scene.client.semaphore("s");
    semaphore.try_set_permits(2).await.unwrap();
    let permit = semaphore.acquire().await.unwrap();
    let mut probe = scene.server.connection();
    eventually("other marks go", async || probe.keys().len() == 2).await;
    scene.proxy.black_hole(true);
    permit.forget();
    // By the time two later requests have timed out, that request has timed out too.
    for _ in 0..2 {
        semaphore.available_permits().await.unwrap_err();
    }
    scene.proxy.black_hole(false);
    scene.proxy.cut();
    eventually("the mark goes", async || probe.keys() == ["s"]).await;
    assert_eq!(semaphore.available_permits().await.unwrap(), 1);
}

/// A copy of the call that acquired the permit is in flight when the permit is forgotten and released elsewhere.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn copy_that_comes_after_the_permit_was_given_back_elsewhere_takes_nothing() {
    let scene = Scene::open(patient).await;
    let mut probe = scene.server.connection();
    let (semaphore, elsewhere) = (
        scene.client.expirable_semaphore("e"),
        scene.other.expirable_semaphore("e"),
    );
    semaphore.try_set_permits(2).await.unwrap();
    for forgotten in [true, false] {
        let mut late = scene.proxy.hold_request(sha("permit_acquire"));
        let (permit, ()) = tokio::join!(semaphore.acquire(), late.caught());
        let permit = permit.unwrap();
        let id = permit.id();
        let mark = format!("redlatch_permit:{{e}}:{id}");
        if forgotten {
            permit.forget();
            eventually("it is left", async || probe.exists(&mark)).await;
        } else {
            permit.release().await.unwrap();
        }
        assert_eq!(elsewhere.release_permit(&id).await.unwrap(), forgotten);
        late.deliver().await;
        assert_eq!(semaphore.available_permits().await.unwrap(), 2);
        assert!((1..=120_000).contains(&probe.pttl(&mark)));
    }

    // Without leases, as many permits are given back as are out. The copy takes nothing then, either.
    let semaphore = scene.client.semaphore("s");
    semaphore.try_set_permits(2).await.unwrap();
    let mut late = scene.proxy.hold_request(sha("semaphore_acquire"));
    let (permit, ()) = tokio::join!(semaphore.acquire(), late.caught());
    permit.unwrap().forget();
    eventually("the mark has an end soon", async || {
        let mut keys = probe.keys();
        keys.retain(|key| key.starts_with("redlatch_permit:{s}:"));
        keys.len() == 1 && probe.pttl(&keys[0]) <= 120_000
    })
    .await;
    semaphore.release(1).await.unwrap();
    late.deliver().await;
    assert_eq!(semaphore.available_permits().await.unwrap(), 2);
}

/// The request is still in flight when its caller gives up, and arrives after the one that undoes it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn request_that_comes_after_its_undo_takes_nothing() {
    let scene = Scene::open(patient).await;
    let mut probe = scene.server.connection();
    for script in ["semaphore_acquire", "permit_acquire"] {
        let (semaphore, expirable) = (
            scene.client.semaphore(script),
            scene.client.expirable_semaphore(script),
        );
        semaphore.try_set_permits(2).await.unwrap();
        let mut late = scene.proxy.hold_request(sha(script));
        tokio::select! {
            biased;
            () = late.caught() => {}
            _ = async {
                match script {
                    "permit_acquire" => expirable.acquire().await.map(drop),
                    _ => semaphore.acquire().await.map(drop),
                }
            } => panic!("it was caught"),
        }
        let beside = format!("redlatch_permit:{{{script}}}:");
        eventually("the undo", async || {
            let marks = probe.keys().into_iter();
            marks.filter(|key| key.starts_with(&beside)).count() == 1
        })
        .await;
        late.deliver().await;
        assert_eq!(semaphore.available_permits().await.unwrap(), 2, "{script}");
        assert!(!probe.exists(&format!("{{{script}}}:timeout")));
    }
}

#[test]
fn permits_that_nobody_remembers_are_given_back_once() {
    let server = Server::start();
    let mut probe = server.connection();
    let source = script("semaphore_return");
    let mut give_back = |kept: &str, marked: &str| {
        let call = [
            "EVAL", source, "3", "s", "channel", "mark", "2", "PUBLISH", kept, marked,
        ];
        probe.command(&call).array()[0].text()
    };
    assert_eq!(give_back("0", "lapsed"), "absent", "no such semaphore");
    server.connection().command(&["SET", "s", "1"]);
    assert_eq!(give_back("0", "marked"), "absent");
    assert_eq!(give_back("60000", "lapsed"), "returned");
    assert_eq!(give_back("60000", "lapsed"), "absent");
    assert_eq!(server.connection().command(&["GET", "s"]).text(), "3");
    server.connection().command(&["SET", "s", "2147483646"]);
    server.connection().command(&["DEL", "mark"]);
    assert_eq!(give_back("60000", "lapsed"), "returned");
    let most = server.connection().command(&["GET", "s"]).text();
    assert_eq!(most, i32::MAX.to_string(), "Java can count no more");
    // The counter may still be above that maximum, and then nothing is taken away.
    let mut heard = server.connection().into_subscriber(&["channel"]);
    server.connection().command(&["SET", "s", "2147483650"]);
    server.connection().command(&["DEL", "mark"]);
    assert_eq!(give_back("60000", "lapsed"), "returned");
    let more = server.connection().command(&["GET", "s"]).text();
    assert_eq!(more, "2147483650");
    assert_eq!(told(&mut heard), [i32::MAX.to_string()]);
    let source = script("semaphore_acquire");
    let take = ["EVAL", source, "2", "s", "mark", "2", "60000"];
    let answer = server.connection().command(&take).array();
    assert_eq!(answer[0].text(), "returned");
}
