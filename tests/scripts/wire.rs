//! What the server stores and receives: keys, fields, TTLs, messages and requests, in Redisson's form.

use crate::support;
use std::collections::BTreeMap;
use std::time::Instant;

use crate::support::probe::{
    NEVER, acquiring, calls_of, channel, eventually_heard, kind, millis, name_of, nothing_left,
    passes, reset_calls, secs, soon, stranger,
};
use crate::support::{builder, client, eventually, start, start_two};
use redlatch::{Client, ErrorKind, Owner};
use redlatch_testkit::{Connection, Server, script};

/// Returns a client whose waits for a lock without a TTL end by a message or never.
async fn unpolled(server: &Server) -> Client {
    builder(server.url())
        .poll_cap(NEVER / 2)
        .build()
        .await
        .unwrap()
}

fn fields<const N: usize>(fields: [(&str, &str); N]) -> BTreeMap<String, String> {
    fields
        .map(|(field, value)| (field.to_owned(), value.to_owned()))
        .into()
}

/// Returns the acquisition id and the share in the value of an acquisition field, `h<16 hex>:<share>`.
fn hold(hash: &BTreeMap<String, String>, acquisition_field: &str) -> (String, String) {
    let (number, rest) = hash[acquisition_field].split_once(':').unwrap();
    // For a named owner, the end of the share's lease follows.
    let share = rest.split(':').next().unwrap();
    assert_eq!(number.len(), 17, "{number}");
    let (h, hex) = number.split_at(1);
    assert_eq!(h, "h");
    assert!(
        hex.bytes()
            .all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f')),
        "{number}"
    );
    (number.to_owned(), share.to_owned())
}

#[tokio::test]
async fn a_hold_is_a_hash_with_redissons_field_and_one_acquisition_field() {
    let (server, client) = start().await;
    let lock = client.lock("k").lease(secs(30));
    let task = tokio::spawn(async move {
        let me = tokio::task::id().to_string();
        let outer = lock.lock().await.unwrap();
        assert_eq!(outer.owner().to_string(), format!("task {me}"));
        let inner = lock.lock().await.unwrap();
        (me, outer, inner)
    });
    let (me, outer, inner) = task.await.unwrap();
    let mut probe = server.connection();
    let id = client.id();
    let (field, acquisition_field) = (format!("{id}:{me}"), format!("|{}", name_of(&client)));
    assert_eq!(id.len(), 36);
    assert!(uuid_like(id), "{id}");

    assert_eq!(probe.keys(), ["k"], "no other key");
    let hash = probe.hgetall("k");
    let (number, share) = hold(&hash, &acquisition_field);
    assert_eq!(share, "2");
    assert_eq!(
        hash,
        fields([(&field, "2"), (&acquisition_field, &format!("{number}:2"))])
    );
    let encoding = probe.command(&["OBJECT", "ENCODING", "k"]).text();
    // The compact encoding, by its name in Redis 6 and by that in later versions.
    assert!(["ziplist", "listpack"].contains(&&*encoding), "{encoding}");

    inner.unlock().await.unwrap();
    let hash = probe.hgetall("k");
    assert_eq!(
        hash,
        fields([(&field, "1"), (&acquisition_field, &format!("{number}:1"))])
    );
    outer.unlock().await.unwrap();
    assert!(probe.keys().is_empty());

    let again = client.lock("k").lock().await.unwrap();
    assert_ne!(
        hold(&probe.hgetall("k"), &acquisition_field).0,
        number,
        "each hold has its own"
    );
    again.unlock().await.unwrap();
    nothing_left(&server, [&client]).await;
}

/// Returns whether an id is a random UUID in lower case.
fn uuid_like(id: &str) -> bool {
    let parts: Vec<_> = id.split('-').map(str::len).collect();
    parts == [8, 4, 4, 4, 12]
        && id.chars().all(|c| matches!(c, '0'..='9' | 'a'..='f' | '-'))
        && id.as_bytes()[14] == b'4'
}

#[tokio::test]
async fn numbers_of_threads_and_made_up_owners_fit_javas_long() {
    let (server, client) = start().await;
    let lock = client.lock("k");
    let task = tokio::spawn(async { tokio::task::id().to_string() })
        .await
        .unwrap();
    let mut seen = vec![task.parse::<i64>().unwrap()];
    for lock in [lock.clone(), stranger(&lock), stranger(&lock)] {
        let guard = lock.lock().await.unwrap();
        let field = client.owner_field(guard.owner());
        assert_eq!(server.connection().hgetall("k")[&field], "1");
        let (_, number) = field.split_once(':').unwrap();
        seen.push(number.parse::<i64>().unwrap());
        guard.unlock().await.unwrap();
    }
    assert!(seen.iter().all(|number| *number > 0));
    seen.sort_unstable();
    seen.dedup();
    assert_eq!(seen.len(), 4, "{seen:?}");
    nothing_left(&server, [&client]).await;
}

#[tokio::test]
async fn field_of_a_named_owner_is_its_name_and_each_client_records_its_share() {
    let (server, one, two) = start_two().await;
    let owner = Owner::named("request 7");
    let mut guards = Vec::new();
    for client in [&one, &two, &two] {
        guards.push(client.lock("k").owned_by(&owner).lock().await.unwrap());
    }
    let acquisition_fields = [&one, &two].map(|client| format!("|{}:request 7", name_of(client)));
    let mut probe = server.connection();
    let hash = probe.hgetall("k");
    let (first, second) = (
        hold(&hash, &acquisition_fields[0]),
        hold(&hash, &acquisition_fields[1]),
    );
    assert_eq!((&*first.1, &*second.1), ("1", "2"));
    assert_ne!(first.0, second.0);
    assert_eq!(hash["request 7"], "3");
    assert_eq!(hash.len(), 3);
    guards.remove(0).unlock().await.unwrap();
    let hash = probe.hgetall("k");
    assert_eq!(
        hold(&hash, &acquisition_fields[1]),
        (second.0, "2".to_owned())
    );
    assert_eq!((&*hash["request 7"], hash.len()), ("2", 2));
    let ends = hash[&acquisition_fields[1]].rsplit(':').next().unwrap();
    let time = probe.command(&["TIME"]).texts();
    let left = ends.parse::<i64>().unwrap() - time[0].parse::<i64>().unwrap() * 1_000;
    assert!(left > 20_000 && left <= 31_000, "{left} ms");
    assert!(
        hash[&acquisition_fields[1]].len() < 64,
        "the hash stays compact"
    );
    for guard in guards {
        guard.unlock().await.unwrap();
    }
    nothing_left(&server, [&one, &two]).await;
}

#[tokio::test]
async fn ttl_is_the_lease_and_an_inner_release_leaves_it_alone() {
    let (server, client) = start().await;
    let mut probe = server.connection();
    let mut near = |expected: i64| {
        let ttl = probe.pttl("k");
        assert!(
            ttl <= expected && ttl > expected - 5_000,
            "{ttl} of {expected}"
        );
    };
    let outer = client.lock("k").lock().await.unwrap();
    near(30_000);
    let inner = client.lock("k").lease(secs(60)).lock().await.unwrap();
    near(60_000);
    inner.unlock().await.unwrap();
    near(60_000);
    outer.unlock().await.unwrap();
    let odd = client
        .lock("k")
        .lease(std::time::Duration::from_micros(20_000_900));
    let guard = odd.lock().await.unwrap();
    near(20_000);
    guard.unlock().await.unwrap();
    nothing_left(&server, [&client]).await;
}

#[tokio::test]
async fn renewal_sets_the_whole_lease_again() {
    let server = Server::start();
    let client = builder(server.url())
        .watchdog_lease(secs(3))
        .build()
        .await
        .unwrap();
    let guard = client.lock("k").lock().await.unwrap();
    let mut probe = server.connection();
    let before = probe.hgetall("k");
    for _ in 0..2 {
        eventually("it is renewed", async || {
            let ttl = probe.pttl("k");
            assert!(ttl > 1_000, "each third: {ttl}");
            ttl < 2_500
        })
        .await;
        eventually("it is renewed", async || probe.pttl("k") > 2_900).await;
    }
    assert_eq!(probe.hgetall("k"), before, "and changes nothing else");
    guard.unlock().await.unwrap();
    nothing_left(&server, [&client]).await;
}

#[tokio::test]
async fn only_the_last_release_publishes() {
    let (server, client) = start().await;
    for (name, channel) in [
        ("k", "redisson_lock__channel:{k}"),
        ("{t}:x", "redisson_lock__channel:{t}:x"),
        ("x{t}", "redisson_lock__channel:x{t}"),
        ("a}b", "redisson_lock__channel:{a}b}"),
    ] {
        let mut messages = Connection::subscribe(server.port(), &[channel]);
        let unlocked = Some((channel.to_owned(), "0".to_owned()));
        let lock = client.lock(name);
        let outer = lock.lock().await.unwrap();
        let inner = lock.lock().await.unwrap();
        let third = outer.reenter().await.unwrap();
        inner.unlock().await.unwrap();
        drop(third);
        eventually("one level is left", async || {
            lock.hold_count().await.unwrap() == 1
        })
        .await;
        // Messages published earlier arrive before this one.
        server.connection().command(&["PUBLISH", channel, "mark"]);
        let first = messages.next(secs(10)).unwrap();
        assert_eq!(first.1, "mark", "{name}: an inner release is silent");
        outer.unlock().await.unwrap();
        assert_eq!(messages.next(secs(10)), unlocked);
        assert!(!lock.force_unlock().await.unwrap(), "free");
        server.connection().command(&["HSET", name, "java:1", "5"]);
        assert!(lock.force_unlock().await.unwrap());
        assert_eq!(messages.next(secs(10)), unlocked, "{name}: force_unlock");
        assert_eq!(messages.next(millis(50)), None, "{name}: once each");
    }
    nothing_left(&server, [&client]).await;
}

#[tokio::test]
async fn foreign_holder_excludes_and_its_unlock_wakes_us() {
    let server = Server::start();
    let client = unpolled(&server).await;
    let lock = client.lock("k");
    let mut java = server.connection();
    let owner = "8743c9c0-0795-4907-87fd-6c719a6b4586:28";
    for message in ["0", "1", "anything"] {
        java.command(&["HSET", "k", owner, "2"]);
        java.command(&["PEXPIRE", "k", "60000"]);
        assert!(lock.try_lock().await.unwrap().is_none());
        let holder = lock.holder().await.unwrap().unwrap();
        assert_eq!((holder.owner(), holder.hold_count()), (owner, 2));
        assert!(holder.remaining_lease().unwrap() > secs(30));
        let waiting = acquiring(&lock);
        eventually_heard(&server, "k", 1).await;
        assert_eq!(
            java.hgetall("k"),
            fields([(owner, "2")]),
            "a waiter writes nothing"
        );
        java.command(&["DEL", "k"]);
        java.command(&["PUBLISH", &channel("k"), message]);
        passes(waiting).await;
    }
    nothing_left(&server, [&client]).await;
}

#[tokio::test]
async fn foreign_holder_that_dies_lets_us_in_at_its_ttl() {
    let server = Server::start();
    let client = unpolled(&server).await;
    let lock = client.lock("k");
    let mut java = server.connection();
    java.command(&["HSET", "k", "java:1", "1"]);
    let set = Instant::now();
    java.command(&["PEXPIRE", "k", "1500"]);
    let guard = soon(lock.lock()).await.unwrap();
    let took = set.elapsed();
    assert!(took >= millis(1_499) && took < millis(3_000), "{took:?}");
    guard.unlock().await.unwrap();
    nothing_left(&server, [&client]).await;
}

#[tokio::test]
async fn foreign_holder_without_ttl_is_polled_at_the_poll_cap() {
    let server = Server::start();
    let client = builder(server.url())
        .poll_cap(millis(200))
        .build()
        .await
        .unwrap();
    let lock = client.lock("k");
    let mut java = server.connection();
    java.command(&["HSET", "k", "java:1", "1"]);
    assert_eq!(lock.remaining_lease().await.unwrap(), None);
    assert_eq!(
        lock.holder().await.unwrap().unwrap().remaining_lease(),
        None
    );
    let waiting = acquiring(&lock);
    eventually_heard(&server, "k", 1).await;
    reset_calls(&mut java);
    tokio::time::sleep(secs(2)).await;
    let polls = calls_of(&mut java, "evalsha");
    // Jitter takes up to a tenth off the pause: at most one poll per 180 ms.
    assert!((3..=12).contains(&polls), "{polls} polls in two seconds");
    java.command(&["DEL", "k"]);
    soon(waiting)
        .await
        .unwrap()
        .unwrap()
        .unlock()
        .await
        .unwrap();
    nothing_left(&server, [&client]).await;
}

// fault: S34
#[tokio::test]
async fn foreign_message_is_only_a_hint() {
    let server = Server::start();
    let (holder, client) = (client(&server).await, unpolled(&server).await);
    let guard = holder.lock("k").lock().await.unwrap();
    let waiting = acquiring(&client.lock("k"));
    eventually_heard(&server, "k", 1).await;
    let mut probe = server.connection();
    let asked = calls_of(&mut probe, "evalsha");
    for message in ["0", "1", "", "\u{0}", "{}"] {
        probe.command(&["PUBLISH", &channel("k"), message]);
    }
    eventually("it asked", async || calls_of(&mut probe, "evalsha") > asked).await;
    assert!(!waiting.is_finished());
    guard.verify().await.unwrap();
    guard.unlock().await.unwrap();
    soon(waiting)
        .await
        .unwrap()
        .unwrap()
        .unlock()
        .await
        .unwrap();
    nothing_left(&server, [&holder, &client]).await;
}

#[tokio::test]
async fn java_takes_a_level_of_ours_and_we_learn_of_it() {
    let (server, client) = start().await;
    let guard = client.lock("k").lock().await.unwrap();
    // These are the commands of Redisson's `forceUnlock`.
    let mut java = server.connection();
    java.command(&["DEL", "k"]);
    java.command(&["PUBLISH", &channel("k"), "0"]);
    assert_eq!(kind(guard.verify().await), ErrorKind::LeaseLost);
    assert!(guard.is_lost());
    drop(guard);
    nothing_left(&server, [&client]).await;
}

#[tokio::test]
async fn call_under_another_acquisition_id_changes_nothing() {
    let server = Server::start();
    let client = builder(server.url())
        .watchdog_lease(secs(3))
        .build()
        .await
        .unwrap();
    let lock = client.lock("k");
    let mut probe = server.connection();
    for call in [
        "unlock", "drop", "handle", "verify", "extend", "reenter", "lock", "renewal",
    ] {
        let guard = lock.lock().await.unwrap();
        let acquisition_field = format!("|{}", name_of(&client));
        // As if the call were a late packet, and its owner had lost the lock and acquired it again since.
        probe.command(&["HSET", "k", &acquisition_field, "h0123456789abcdef:1"]);
        probe.command(&["PERSIST", "k"]);
        let before = probe.hgetall("k");
        let lost = match call {
            "unlock" => guard.unlock().await.err(),
            "drop" => {
                drop(guard);
                None
            }
            "handle" => lock.unlock().await.err(),
            "verify" => guard.verify().await.err(),
            "extend" => guard.extend(secs(60)).await.err(),
            "reenter" => guard.reenter().await.err(),
            // To this call, the owner's other hold is that of another owner.
            "lock" => {
                assert!(lock.try_lock().await.unwrap().is_none());
                assert!(guard.is_lost());
                None
            }
            _ => {
                soon(guard.lost()).await;
                guard.unlock().await.err()
            }
        };
        if !matches!(call, "drop" | "lock") {
            assert_eq!(lost.expect(call).kind(), ErrorKind::LeaseLost, "{call}");
        }
        support::eventually_idle(&client).await;
        assert_eq!(probe.hgetall("k"), before, "{call}");
        assert_eq!(probe.pttl("k"), -1, "{call}");
        probe.command(&["DEL", "k"]);
    }
    nothing_left(&server, [&client]).await;
}

#[test]
fn request_that_arrives_once_more_lowers_no_share() {
    const NUMBER: &str = "h0123456789abcdef";
    const CHANNEL: &str = "redisson_lock__channel:{k}";
    let server = Server::start();
    let mut probe = server.connection();
    probe.command(&["SET", "token", "7"]);
    for (name, keys, rest) in [
        (
            "lock_acquire",
            &["k"][..],
            &["1", "9000", "take", CHANNEL, "PUBLISH", "0", "0"][..],
        ),
        (
            "fenced_acquire",
            &["k", "token"],
            &["1", "9000", "take", CHANNEL, "PUBLISH", "0", "0", "0", "1"],
        ),
        (
            "lock_acquire_all",
            &["k"],
            &["PUBLISH", "9000", "-1", CHANNEL],
        ),
        (
            "lock_acquire_all",
            &["k", "token"],
            &["PUBLISH", "9000", "0", CHANNEL],
        ),
        ("lock_reenter", &["k"], &["2", "9000"]),
    ] {
        // The lock was acquired by such a request, and two more times since.
        probe.command(&["HSET", "k", "c:1", "3", "|c", &format!("{NUMBER}:3")]);
        probe.command(&["PEXPIRE", "k", "9000"]);
        let before = probe.hgetall("k");
        let source = script(name);
        let count = keys.len().to_string();
        let call = [
            &["EVAL", source, &count],
            keys,
            &["c:1", "|c", NUMBER],
            rest,
        ]
        .concat();
        assert_eq!(probe.command(&call).array()[0].text(), "granted");
        assert_eq!(probe.hgetall("k"), before, "{name}");
        assert_eq!(probe.command(&["GET", "token"]).text(), "7");
    }
}
