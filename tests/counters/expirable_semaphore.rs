//! What is particular to the semaphore with leases: its keys and messages in Redisson's form, and permits that come
//! back, are extended or are lost.

use std::env;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant, SystemTime};

use crate::support::probe::{
    NEVER, calls_of, eventually_listening, kind, millis, nothing_left, reset_calls, secs, soon,
};
use crate::support::scene::{Scene, patient};
use crate::support::{builder, client, eventually, eventually_idle, sha, start, start_two};
use redlatch::semaphore::{ExpirablePermit, ExpirableSemaphore, PermitId};
use redlatch::{Client, ErrorKind};
use redlatch_testkit::{Connection, Proxy, Reply, Server, script};

use super::semaphore::told;

/// What Redisson writes for a permit without a lease.
const NEVER_ENDS: &str = "922337203685477";

async fn unpolled(server: &Server) -> Client {
    let unpolled = builder(server.url()).poll_cap(NEVER / 2);
    unpolled.command_timeout(secs(5)).build().await.unwrap()
}

fn permits_out(probe: &mut Connection, key: &str) -> Vec<(Vec<u8>, String)> {
    let range = ["ZRANGE", key, "0", "-1", "WITHSCORES"];
    let items = probe.command(&range).array();
    let pair = |pair: &[Reply]| match pair {
        [Reply::Text(id), score] => (id.clone(), score.text()),
        other => panic!("no id and score: {other:?}"),
    };
    items.chunks(2).map(pair).collect()
}

/// Ends every lease of the set, as if it had run out just now.
fn end_leases(server: &Server, key: &str) {
    let end = "for _, id in ipairs(redis.call('ZRANGE', KEYS[1], 0, -1)) do
        redis.call('ZADD', KEYS[1], 1, id)
    end";
    server.connection().command(&["EVAL", end, "1", key]);
}

/// As [`nothing_left`], but allows marks that expire: with a short lease there is little time to answer, and a request
/// that was sent twice is remembered for a while.
async fn only_marks_left<const N: usize>(server: &Server, clients: [&Client; N]) {
    for client in clients {
        eventually_idle(client).await;
    }
    let mut probe = server.connection();
    eventually("no key is left, or a mark", async || {
        let mut keys = probe.keys().into_iter();
        keys.all(|key| key.starts_with("redlatch_") && probe.pttl(&key) > 0)
    })
    .await;
    eventually("no channel is left", async || probe.channels().is_empty()).await;
}

/// Returns the shortest time that is left of a lease, in milliseconds.
fn least_left(server: &Server, key: &str) -> f64 {
    let out = permits_out(&mut server.connection(), key).into_iter();
    let left = out.map(|(_, score)| score.parse::<f64>().unwrap() - now());
    left.min_by(f64::total_cmp).expect("permits that are out")
}

fn bytes(id: PermitId) -> Vec<u8> {
    let hex = id.to_string();
    let byte = |at: usize| u8::from_str_radix(&hex[at..at + 2], 16).unwrap();
    (0..32).step_by(2).map(byte).collect()
}

fn now() -> f64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    now.unwrap().as_secs_f64() * 1_000.0
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn late_copy_of_an_extension_does_not_undo_the_next() {
    let scene = Scene::open(patient).await;
    let semaphore = scene.client.expirable_semaphore("e").lease(secs(60));
    semaphore.try_set_permits(2).await.unwrap();
    let mut probe = scene.server.connection();
    for forgotten in [false, true] {
        let permit = semaphore.acquire_many(2).await.unwrap();
        let ids = permit.ids().to_vec();
        let mut late = scene.proxy.hold_request(sha("permit_extend"));
        let (extended, ()) = tokio::join!(permit.extend(secs(5)), late.caught());
        extended.unwrap();
        assert!(least_left(&scene.server, "{e}:timeout") < 5_100.0);
        permit.extend(secs(600)).await.unwrap();
        let mark = format!("redlatch_permit:{{e}}:{}", ids[0]);
        assert!((1..=120_000).contains(&probe.pttl(&mark)));
        let mut left = Some(permit);
        if forgotten {
            left.take().unwrap().forget();
            eventually("they are left", async || {
                probe.command(&["GET", &mark]).text() == "returned"
            })
            .await;
        }
        late.deliver().await;
        assert!(least_left(&scene.server, "{e}:timeout") > 500_000.0);
        // The same permit can still be extended.
        if let Some(permit) = left {
            permit.extend(secs(700)).await.unwrap();
            assert!(least_left(&scene.server, "{e}:timeout") > 600_000.0);
            permit.release().await.unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn late_copy_of_an_acquisition_does_not_undo_an_extension() {
    let scene = Scene::open(patient).await;
    let semaphore = scene.client.expirable_semaphore("e");
    semaphore.try_set_permits(1).await.unwrap();
    let mut late = scene.proxy.hold_request(sha("permit_acquire"));
    let (permit, ()) = tokio::join!(semaphore.acquire(), late.caught());
    let permit = permit.unwrap();
    permit.extend(secs(60)).await.unwrap();
    late.deliver().await;
    assert!(least_left(&scene.server, "{e}:timeout") < 60_100.0);
    permit.release().await.unwrap();
    assert_eq!(semaphore.available_permits().await.unwrap(), 1);
}

/// Acquires the only permit of a semaphore, for a minute. Also returns the key by which late copies are recognized.
async fn leased() -> (Server, ExpirablePermit, String) {
    let (server, client) = start().await;
    let semaphore = client.expirable_semaphore("e").lease(secs(60));
    semaphore.try_set_permits(1).await.unwrap();
    let permit = semaphore.acquire().await.unwrap();
    let mark = format!("redlatch_permit:{{e}}:{}", permit.id());
    (server, permit, mark)
}

// fault: S11
#[tokio::test]
async fn full_server_extends_permits_and_remembers_nothing() {
    let (server, permit, mark) = leased().await;
    let mut probe = server.connection();
    probe.command(&["CONFIG", "SET", "maxmemory", "1"]);
    for lease in [600, 700] {
        permit.extend(secs(lease)).await.unwrap();
        let left = least_left(&server, "{e}:timeout");
        assert!(left > 1_000.0 * (lease - 50) as f64, "{left}");
    }
    assert!(!probe.exists(&mark), "no answer was lost");
    permit.release().await.unwrap();
}

/// An extension that was refused is known not to run.
#[tokio::test]
async fn extension_that_was_refused_leaves_no_doubt() {
    let (server, permit, mark) = leased().await;
    let mut probe = server.connection();
    let mut set = |key, value| probe.command(&["CONFIG", "SET", key, value]);
    set("min-replicas-to-write", "3");
    assert_eq!(kind(permit.extend(secs(600)).await), ErrorKind::Backend);
    set("min-replicas-to-write", "0");
    permit.extend(secs(600)).await.unwrap();
    assert!(!probe.exists(&mark), "no answer was lost");
}

#[tokio::test]
async fn permits_with_a_lease_are_redissons_sorted_set() {
    let (server, client) = start().await;
    let mut probe = server.connection();
    for (name, set) in [("e", "{e}:timeout"), ("{t}:e", "{t}:e:timeout")] {
        let channel = format!("redisson_sc:{}", set.strip_suffix(":timeout").unwrap());
        let mut heard = server.connection().into_subscriber(&[channel]);
        let semaphore = client.expirable_semaphore(name);
        semaphore.try_set_permits(4).await.unwrap();
        let unending = semaphore.acquire().await.unwrap();
        assert_eq!(
            permits_out(&mut probe, set),
            [(bytes(unending.id()), NEVER_ENDS.to_owned())]
        );
        let asked = now();
        let leased = semaphore.clone().lease(secs(60));
        let two = leased.acquire_many(2).await.unwrap();
        let out = permits_out(&mut probe, set);
        assert_eq!(out.len(), 3);
        for id in two.ids() {
            let score = out.iter().find(|(out, _)| *out == bytes(*id)).unwrap();
            let left = score.1.parse::<f64>().unwrap() - asked;
            assert!((59_000.0..62_000.0).contains(&left), "{left}");
        }
        assert_eq!(two.id(), two.ids()[0]);
        assert_eq!((two.permits(), unending.permits()), (2, 1));
        assert_eq!(probe.command(&["GET", name]).text(), "1");
        let mut keys = probe.keys();
        keys.sort();
        let mut expected = [name, set];
        expected.sort_unstable();
        assert_eq!(keys, expected, "nothing of ours");
        two.release().await.unwrap();
        unending.release().await.unwrap();
        assert_eq!(told(&mut heard), ["4", "3", "4"]);
        assert_eq!(probe.keys(), [name]);
        probe.command(&["DEL", name]);
    }
    nothing_left(&server, [&client]).await;
}

/// Repeats a call for two permits, as the client does when the reply is lost.
#[test]
fn repeated_call_has_its_whole_lease() {
    let server = Server::start();
    let mut probe = server.connection();
    let source = script("permit_acquire");
    let (one, two) = ("61".repeat(16), "62".repeat(16));
    let ids = format!("{one}{two}");
    let call = [
        "EVAL", source, "4", "e", "channel", "set", "mark", "2", &ids, "60000", "PUBLISH",
    ];
    let members = ["a".repeat(16), "b".repeat(16)];
    probe.command(&["SET", "e", "3"]);
    let repeat_at = |ends: f64, free: &str| {
        let mut probe = server.connection();
        for member in &members {
            probe.command(&["ZADD", "set", &format!("{ends:.0}"), member]);
        }
        let answer = probe.command(&call).array();
        assert_eq!(answer[0].text(), "granted");
        assert_eq!(probe.command(&["GET", "e"]).text(), free);
        let scores = permits_out(&mut probe, "set").into_iter();
        let left: Vec<_> = scores
            .map(|(_, score)| score.parse::<f64>().unwrap() - now())
            .collect();
        assert_eq!(left.len(), 2);
        left[0].min(left[1])
    };
    assert_eq!(probe.command(&call).array()[0].text(), "granted");
    assert!(repeat_at(now() + 5_000.0, "1") > 50_000.0, "raised");
    assert!(repeat_at(now() + 90_000.0, "1") > 80_000.0, "not lowered");
    assert!(repeat_at(1.0, "1") > 50_000.0, "taken anew");
    // More permits have ended than one call collects, and these two come last.
    let crowd = "for i = 1, 1000 do redis.call('ZADD', 'set', 0, i) end";
    probe.command(&["EVAL", crowd, "0"]);
    assert!(repeat_at(1.0, "1001") > 50_000.0, "taken once");
}

#[test]
fn permits_are_not_given_back_to_what_is_no_counter() {
    let server = Server::start();
    let mut probe = server.connection();
    let source = script("permit_return");
    let ids = format!("{}{}", "61".repeat(16), "62".repeat(16));
    let call = [
        "EVAL", source, "4", "e", "channel", "set", "mark", &ids, "PUBLISH", "60000",
    ];
    for member in ["a".repeat(16), "b".repeat(16)] {
        probe.command(&["ZADD", "set", NEVER_ENDS, &member]);
    }
    for other in [&["SET", "e", "text"][..], &["RPUSH", "e", "a"]] {
        probe.command(&["DEL", "e"]);
        probe.command(other);
        let before = probe.command(&["DUMP", "e"]);
        let answer = probe.command(&call).array();
        assert_eq!(answer, [Reply::Text(b"returned".to_vec()), Reply::Int(0)]);
        assert_eq!(probe.command(&["DUMP", "e"]), before);
        assert_eq!(permits_out(&mut probe, "set").len(), 2);
    }
    probe.command(&["SET", "e", "2147483646"]);
    let answer = probe.command(&call).array();
    assert_eq!(answer, [Reply::Text(b"returned".to_vec()), Reply::Int(2)]);
    let most = probe.command(&["GET", "e"]).text();
    assert_eq!(most, i32::MAX.to_string(), "Java can count no more");
}

/// Sends copies of calls to a primary that has the marks of these calls, and then became a replica.
#[test]
fn demoted_primary_answers_no_copy_of_a_call_from_its_mark() {
    let server = Server::start();
    let mut probe = server.connection();
    let (counted, leased) = (script("semaphore_acquire"), script("permit_acquire"));
    let id = "61".repeat(16);
    let granted = ["EVAL", counted, "2", "s", "granted", "1", "60000"];
    let returned = ["EVAL", counted, "2", "s", "returned", "1", "60000"];
    let given_up = [
        "EVAL", leased, "4", "s", "channel", "set", "returned", "1", &id, "60000", "PUBLISH",
    ];
    probe.command(&["SET", "s", "2"]);
    probe.command(&["SET", "returned", "returned"]);
    let calls: [(&[&str], &str); 3] = [
        (&granted[..], "granted"),
        (&returned[..], "returned"),
        (&given_up[..], "returned"),
    ];
    for (call, answer) in calls {
        assert_eq!(probe.command(call).array()[0].text(), answer);
    }
    probe.command(&["REPLICAOF", "127.0.0.1", "1"]);
    for (call, answer) in calls {
        let refused = probe.command(call);
        let is_refused = matches!(&refused, Reply::Error(text) if text.contains("READONLY"));
        assert!(is_refused, "{answer}: {refused:?}");
    }
    probe.command(&["REPLICAOF", "NO", "ONE"]);
    assert_eq!(probe.command(&granted).array()[0].text(), "granted");
    assert_eq!(probe.command(&["GET", "s"]).text(), "1");
}

#[tokio::test]
async fn permits_end_with_the_semaphore_if_java_gave_it_an_end() {
    let (server, client) = start().await;
    let mut probe = server.connection();
    probe.command(&["SET", "e", "2", "PX", "60000"]);
    let permit = client.expirable_semaphore("e").acquire().await.unwrap();
    assert!((1..=60_000).contains(&probe.pttl("{e}:timeout")));
    permit.release().await.unwrap();
    assert!((1..=60_000).contains(&probe.pttl("e")));
}

#[test]
fn permits_that_have_ended_come_back_all_at_once_and_nobody_is_told_of_less_than_none() {
    let server = Server::start();
    let mut probe = server.connection();
    let mut heard = server.connection().into_subscriber(&["channel"]);
    let count = script("permit_count");
    let count = ["EVAL", count, "3", "e", "channel", "set", "PUBLISH"];
    let id = "61".repeat(16);
    let acquire = script("permit_acquire");
    let acquire = [
        "EVAL",
        acquire,
        "4",
        "e",
        "channel",
        "set",
        "mark",
        "3000000000",
        &id,
        "60000",
        "PUBLISH",
    ];
    let crowd = "for i = 1, 2500 do redis.call('ZADD', 'set', 0, i) end";
    for call in [&count[..], &acquire] {
        for (before, after, message) in [
            ("0", "2500", Some("2500")),
            ("-2500", "0", None),
            ("-2600", "-100", None),
            ("2147483646", "2147483647", Some("2147483647")),
            ("2147483650", "2147483650", Some("2147483647")),
        ] {
            probe.command(&["SET", "e", before]);
            probe.command(&["EVAL", crowd, "0"]);
            let answer = probe.command(call).array();
            if call[1] == count[1] {
                let answer = (answer[0].text(), answer[1].int().to_string());
                assert_eq!(answer, ("count".to_owned(), after.to_owned()));
            }
            assert_eq!(probe.command(&["GET", "e"]).text(), after);
            let told = heard.next(millis(100)).map(|(_, told)| told);
            assert_eq!(told.as_deref(), message, "{before}");
            probe.command(&["DEL", "set"]);
        }
    }
}

/// A permit whose lease has ended is free, even if nobody has asked since.
#[tokio::test]
async fn permits_that_have_ended_are_drained_too() {
    let (server, client) = start().await;
    let semaphore = client.expirable_semaphore("e").lease(secs(60));
    semaphore.try_set_permits(3).await.unwrap();
    semaphore.acquire_many(2).await.unwrap().forget();
    end_leases(&server, "{e}:timeout");
    assert_eq!(semaphore.drain_permits().await.unwrap(), 3);
    assert_eq!(semaphore.available_permits().await.unwrap(), 0);
    server.connection().command(&["DEL", "e"]);
    nothing_left(&server, [&client]).await;
}

/// The waiter was told that the leases end late. They are cut short afterwards, and other clients find that they have
/// ended.
#[tokio::test]
async fn permits_that_somebody_finds_ended_go_to_those_that_wait() {
    let server = Server::start();
    let (one, two, three) = (
        unpolled(&server).await,
        unpolled(&server).await,
        client(&server).await,
    );
    let semaphore = one.expirable_semaphore("e").lease(secs(600));
    semaphore.try_set_permits(2).await.unwrap();
    let elsewhere = three.expirable_semaphore("e");
    let mut probe = server.connection();
    for counted in [true, false] {
        let all = semaphore.acquire_many(2).await.unwrap();
        reset_calls(&mut probe);
        let waiter = two.expirable_semaphore("e");
        let waiting = tokio::spawn(async move { waiter.acquire().await });
        eventually("it asks again once it listens", async || {
            calls_of(&mut probe, "evalsha") >= 2
        })
        .await;
        all.extend(millis(50)).await.unwrap();
        eventually("they are found", async || {
            if counted {
                elsewhere.available_permits().await.unwrap();
            } else {
                assert!(elsewhere.try_acquire_many(3).await.unwrap().is_none());
            }
            probe.command(&["GET", "e"]).text() != "0"
        })
        .await;
        let permit = soon(waiting).await.unwrap().unwrap();
        assert_eq!(kind(all.release().await), ErrorKind::LeaseLost);
        permit.release().await.unwrap();
        eventually("it listens no more", async || probe.channels().is_empty()).await;
    }
    server.connection().command(&["DEL", "e"]);
    only_marks_left(&server, [&one, &two, &three]).await;
}

/// The replica lags: it knows of the permits, but not that they were released.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn permits_that_a_failover_loses_are_added_by_hand_or_come_back_by_their_lease() {
    let primary = Server::start();
    let link = Proxy::start(primary.port()).await;
    let replica = Server::builder().replica_of(link.port()).start();
    let before = client(&primary).await;
    let (semaphore, leased) = (
        before.semaphore("s"),
        before.expirable_semaphore("e").lease(secs(60)),
    );
    semaphore.try_set_permits(3).await.unwrap();
    leased.try_set_permits(3).await.unwrap();
    let two = semaphore.acquire_many(2).await.unwrap();
    let two_leased = leased.acquire_many(2).await.unwrap();
    let mut copy = replica.connection();
    eventually("they are replicated", async || {
        let mut left = ["s", "e"].iter().map(|key| copy.command(&["GET", key]));
        left.all(|left| left == Reply::Text(b"1".into()))
    })
    .await;
    link.black_hole(true);
    two.release().await.unwrap();
    two_leased.release().await.unwrap();
    assert_eq!(semaphore.available_permits().await.unwrap(), 3);
    primary.kill();
    copy.command(&["REPLICAOF", "NO", "ONE"]);

    let after = client(&replica).await;
    let semaphore = after.semaphore("s");
    // Nobody has a permit, and nobody can release one.
    let available = semaphore.available_permits().await.unwrap();
    assert_eq!(available, 1);
    semaphore.add_permits(3 - available).await.unwrap();
    semaphore
        .acquire_many(3)
        .await
        .unwrap()
        .release()
        .await
        .unwrap();
    assert_eq!(semaphore.available_permits().await.unwrap(), 3);

    let leased = after.expirable_semaphore("e").lease(secs(60));
    assert_eq!(leased.available_permits().await.unwrap(), 1);
    end_leases(&replica, "{e}:timeout");
    let all = leased.acquire_many(3).await.unwrap();
    all.release().await.unwrap();
    assert_eq!(leased.available_permits().await.unwrap(), 3);
}

/// No message announces the end of a lease.
#[tokio::test]
async fn permit_comes_back_at_the_end_of_its_lease_and_is_lost_to_its_holder() {
    let server = Server::start();
    let (one, two) = (unpolled(&server).await, unpolled(&server).await);
    let semaphore = one.expirable_semaphore("e").lease(millis(500));
    semaphore.try_set_permits(1).await.unwrap();
    let taken = Instant::now();
    let permit = semaphore.acquire().await.unwrap();
    let next = two.expirable_semaphore("e").lease(secs(60));
    let next = soon(next.acquire()).await.unwrap();
    let waited = taken.elapsed();
    assert!(waited >= millis(499) && waited < secs(2), "{waited:?}");
    assert_eq!(kind(permit.extend(secs(1)).await), ErrorKind::LeaseLost);
    assert_eq!(kind(permit.release().await), ErrorKind::LeaseLost);
    next.release().await.unwrap();
    assert_eq!(semaphore.available_permits().await.unwrap(), 1);

    // The holder learns of it even if nobody wanted the permit in the meantime.
    let permit = semaphore.acquire().await.unwrap();
    let mut probe = server.connection();
    tokio::time::sleep(millis(520)).await;
    assert_eq!(probe.command(&["GET", "e"]).text(), "0");
    assert_eq!(kind(permit.release().await), ErrorKind::LeaseLost);
    assert_eq!(probe.command(&["GET", "e"]).text(), "1");
    let permit = semaphore.acquire().await.unwrap();
    permit.forget();
    eventually("to ask brings it back", async || {
        semaphore.available_permits().await.unwrap() == 1
    })
    .await;
    probe.command(&["DEL", "e"]);
    only_marks_left(&server, [&one, &two]).await;
}

#[tokio::test]
async fn extended_permits_last_longer_all_of_them() {
    let (server, client) = start().await;
    let semaphore = client.expirable_semaphore("e").lease(secs(20));
    semaphore.try_set_permits(3).await.unwrap();
    let brief = semaphore.clone().lease(millis(400));
    let permit = brief.acquire_many(2).await.unwrap();
    let unending = client.expirable_semaphore("e").acquire().await.unwrap();
    permit.extend(secs(60)).await.unwrap();
    unending.extend(secs(60)).await.unwrap();
    tokio::time::sleep(millis(450)).await;
    assert_eq!(semaphore.available_permits().await.unwrap(), 0);
    let scores = permits_out(&mut server.connection(), "{e}:timeout");
    for (_, score) in scores {
        let left = score.parse::<f64>().unwrap() - now();
        assert!((50_000.0..=60_000.0).contains(&left), "{left}");
    }
    assert_eq!(
        kind(permit.extend(millis(49)).await),
        ErrorKind::InvalidInput
    );

    // One of two is gone: neither is extended, and the other is released.
    let first = permit.id();
    assert!(semaphore.release_permit(&first).await.unwrap());
    assert_eq!(kind(permit.extend(secs(600)).await), ErrorKind::LeaseLost);
    assert_eq!(kind(permit.release().await), ErrorKind::LeaseLost);
    unending.release().await.unwrap();
    assert_eq!(semaphore.available_permits().await.unwrap(), 3);
    let permit = semaphore.acquire_many(2).await.unwrap();
    assert!(semaphore.release_permit(&permit.id()).await.unwrap());
    drop(permit);
    eventually("the other is given back", async || {
        server.connection().command(&["GET", "e"]).text() == "3"
    })
    .await;
    server.connection().command(&["DEL", "e"]);
    only_marks_left(&server, [&client]).await;
}

#[tokio::test]
async fn permit_is_given_back_by_whoever_knows_its_id() {
    let (server, one, two) = start_two().await;
    let semaphore = one.expirable_semaphore("e");
    semaphore.try_set_permits(1).await.unwrap();
    let permit = semaphore.acquire().await.unwrap();
    let told: PermitId = permit.id().to_string().parse().unwrap();
    let elsewhere = two.expirable_semaphore("e");
    assert!(elsewhere.release_permit(&told).await.unwrap());
    assert!(!elsewhere.release_permit(&told).await.unwrap());
    assert_eq!(kind(permit.release().await), ErrorKind::LeaseLost);
    assert_eq!(semaphore.available_permits().await.unwrap(), 1);

    let permit = semaphore.acquire().await.unwrap();
    let id = permit.id();
    permit.forget();
    one.close().await;
    assert_eq!(elsewhere.available_permits().await.unwrap(), 0);
    assert!(elsewhere.release_permit(&id).await.unwrap());
    assert_eq!(elsewhere.available_permits().await.unwrap(), 1);
    server.connection().command(&["DEL", "e"]);
    nothing_left(&server, [&two]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn permit_that_comes_too_late_is_given_back_and_the_caller_told() {
    let server = Server::start();
    let proxy = Proxy::start(server.port()).await;
    let behind = Client::builder().url(proxy.url());
    let behind = behind.min_validity(millis(5_500)).build().await.unwrap();
    let semaphore = behind.expirable_semaphore("e");
    semaphore.try_set_permits(1).await.unwrap();
    semaphore.acquire().await.unwrap().release().await.unwrap();
    // The delay applies in both directions, and a request may take a sixth of the lease.
    proxy.delay(millis(250));
    let late = semaphore.clone().lease(secs(6)).acquire().await;
    assert_eq!(kind(late), ErrorKind::LeaseLost);
    proxy.delay(Duration::ZERO);
    let other = client(&server).await.expirable_semaphore("e");
    eventually("it is back", async || {
        other.available_permits().await.unwrap() == 1
    })
    .await;
}

#[tokio::test]
async fn leases_and_numbers_that_cannot_work_are_refused() {
    let (server, client) = start().await;
    let semaphore = client.expirable_semaphore("e");
    semaphore.try_set_permits(1_000).await.unwrap();
    for lease in [Duration::ZERO, millis(49), Duration::MAX] {
        let refused = semaphore.clone().lease(lease).try_acquire().await;
        assert_eq!(kind(refused), ErrorKind::InvalidInput, "{lease:?}");
    }
    let many = semaphore.try_acquire_many(1_001).await;
    assert_eq!(kind(many), ErrorKind::InvalidInput);
    let all = semaphore.try_acquire_many(1_000).await.unwrap().unwrap();
    assert_eq!(all.ids().len(), 1_000);
    all.extend(secs(60)).await.unwrap();
    all.release().await.unwrap();
    let brief = semaphore.clone().lease(millis(100));
    brief.acquire_many(1_000).await.unwrap().forget();
    eventually("all come back", async || {
        semaphore.available_permits().await.unwrap() == 1_000
    })
    .await;
    server.connection().command(&["DEL", "e"]);
    only_marks_left(&server, [&client]).await;
}

const HOLDER: &str = "REDLATCH_TEST_HOLDER";

async fn crashing(client: &Client) -> ExpirableSemaphore {
    client.expirable_semaphore("e").lease(secs(2))
}

#[tokio::test]
#[ignore = "a process of its own, started by the test below"]
async fn holder() {
    let url = env::var(HOLDER).expect("started by the test below");
    let client = Client::connect(url).await.unwrap();
    let semaphore = crashing(&client).await;
    let _all = semaphore.acquire_many(3).await.unwrap();
    println!("\nholding");
    std::future::pending::<()>().await;
}

#[tokio::test]
async fn permits_of_a_killed_process_come_back_within_their_lease() {
    let server = Server::start();
    let client = unpolled(&server).await;
    let semaphore = crashing(&client).await;
    semaphore.try_set_permits(3).await.unwrap();
    let mut child = Command::new(env::current_exe().unwrap())
        .args([
            "--ignored",
            "--exact",
            "expirable_semaphore::holder",
            "--nocapture",
        ])
        .env(HOLDER, server.url())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let output = BufReader::new(child.stdout.take().unwrap());
    let holding = output.lines().any(|line| line.unwrap() == "holding");
    assert!(holding, "the other process takes the permits");
    assert!(semaphore.try_acquire().await.unwrap().is_none());
    let waiter = semaphore.clone();
    let waiting = tokio::spawn(async move { waiter.acquire_many(3).await });
    eventually_listening(&server, "redisson_sc:{e}", 1).await;
    child.kill().unwrap();
    let killed = Instant::now();
    child.wait().unwrap();
    let all = soon(waiting).await.unwrap().unwrap();
    let took = killed.elapsed();
    assert!(took < secs(3), "{took:?}");
    all.release().await.unwrap();
    server.connection().command(&["DEL", "e"]);
    only_marks_left(&server, [&client]).await;
}
