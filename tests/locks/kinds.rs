//! Names in use by something else: every call reports it by its error kind, and leaves what is there as it is.

use crate::support;
use crate::support::probe::{calls_of, kind, nothing_left, reset_calls, secs, soon, stranger};
use crate::support::start;
use redlatch::{ErrorKind, Owner, ReentrantLock};
use redlatch_testkit::{Connection, Server};

/// Commands that each put something other than a reentrant lock at the key `k`.
const SHAPES: &[(&str, &[&str])] = &[
    ("string", &["SET", "k", "text"]),
    ("counter", &["SET", "k", "7"]),
    ("plain lock", &["SET", "k", "token", "PX", "600000"]),
    ("list", &["RPUSH", "k", "a", "b"]),
    ("set", &["SADD", "k", "a", "b"]),
    ("sorted set", &["ZADD", "k", "1", "a"]),
    ("stream", &["XADD", "k", "1-1", "field", "value"]),
    ("read lock", &["HSET", "k", "mode", "read", "java:1", "1"]),
    (
        "write lock",
        &["HSET", "k", "mode", "write", "java:1:write", "1"],
    ),
];

fn dump(probe: &mut Connection) -> (redlatch_testkit::Reply, bool) {
    let dump = probe.command(&["DUMP", "k"]);
    (dump, probe.pttl("k") < 0)
}

/// Returns the error kind of every call of a handle, `None` where the call succeeds.
async fn kinds(lock: &ReentrantLock) -> Vec<(&'static str, Option<ErrorKind>)> {
    vec![
        ("lock", soon(lock.lock()).await.err()),
        ("try_lock", lock.try_lock().await.err()),
        (
            "try_lock_for",
            soon(lock.try_lock_for(secs(60))).await.err(),
        ),
        ("is_locked", lock.is_locked().await.err()),
        ("is_held", lock.is_held().await.err()),
        ("hold_count", lock.hold_count().await.err()),
        ("remaining_lease", lock.remaining_lease().await.err()),
        ("holder", lock.holder().await.err()),
        ("force_unlock", lock.force_unlock().await.err()),
    ]
    .into_iter()
    .map(|(call, error)| (call, error.map(|error| error.kind())))
    .collect()
}

// fault: S16
#[tokio::test]
async fn name_in_use_by_another_shape_is_the_wrong_kind_and_stays_untouched() {
    let (server, client) = start().await;
    let mut probe = server.connection();
    let named = client.lock("k").owned_by(&Owner::named("java:1"));
    for (shape, command) in SHAPES {
        probe.command(command);
        let before = dump(&mut probe);
        assert!(!before.0.is_nil(), "{shape}");
        for lock in [&client.lock("k"), &named] {
            for (call, error) in kinds(lock).await {
                assert_eq!(error, Some(ErrorKind::WrongKind), "{shape}: {call}");
            }
        }
        assert_eq!(
            kind(named.unlock().await),
            ErrorKind::WrongKind,
            "{shape}: unlock"
        );
        assert_eq!(
            kind(named.adopt().await),
            ErrorKind::WrongKind,
            "{shape}: adopt"
        );
        // An owner that no other client shares knows without asking the server that it holds nothing.
        assert_eq!(
            kind(client.lock("k").unlock().await),
            ErrorKind::NotHeld,
            "{shape}"
        );
        assert!(client.lock("k").adopt().await.unwrap().is_none(), "{shape}");
        assert_eq!(dump(&mut probe), before, "{shape}");
        probe.command(&["DEL", "k"]);
    }
    nothing_left(&server, [&client]).await;
}

// fault: S17
#[tokio::test]
async fn name_in_use_is_the_wrong_kind_for_both_sides_of_a_read_write_lock() {
    let (server, client) = start().await;
    let mut probe = server.connection();
    let lock = client.read_write_lock("k");
    let (reader, writer) = (lock.reader(), lock.writer());
    let other = ("other lock", &["HSET", "k", "java:1", "1"][..]);
    let is_rw = |shape: &str| shape == "read lock" || shape == "write lock";
    let shapes = SHAPES.iter().copied().filter(|(shape, _)| !is_rw(shape));
    for (shape, command) in shapes.chain([other]) {
        probe.command(command);
        let before = dump(&mut probe);
        let calls = [
            ("read", soon(lock.read()).await.err()),
            ("try_read", lock.try_read().await.err()),
            (
                "try_read_for",
                soon(lock.try_read_for(secs(60))).await.err(),
            ),
            ("write", soon(lock.write()).await.err()),
            ("try_write", lock.try_write().await.err()),
            (
                "try_write_for",
                soon(lock.try_write_for(secs(60))).await.err(),
            ),
            ("reader is_locked", reader.is_locked().await.err()),
            ("reader is_held", reader.is_held().await.err()),
            ("reader holder", reader.holder().await.err()),
            ("reader force_unlock", reader.force_unlock().await.err()),
            ("writer is_locked", writer.is_locked().await.err()),
            ("writer is_held", writer.is_held().await.err()),
            ("writer holder", writer.holder().await.err()),
            ("writer force_unlock", writer.force_unlock().await.err()),
        ];
        for (call, error) in calls {
            let kind = error.map(|error| error.kind());
            assert_eq!(kind, Some(ErrorKind::WrongKind), "{shape}: {call}");
        }
        assert_eq!(dump(&mut probe), before, "{shape}");
        probe.command(&["DEL", "k"]);
    }
    nothing_left(&server, [&client]).await;
}

#[tokio::test]
async fn both_sides_of_a_read_write_lock_notice_that_their_key_became_something_else() {
    let server = Server::start();
    let client = support::builder(server.url())
        .watchdog_lease(secs(1))
        .build()
        .await
        .unwrap();
    let mut probe = server.connection();
    let lock = client.read_write_lock("k");
    let is_rw = |shape: &str| shape == "read lock" || shape == "write lock";
    let shapes = SHAPES.iter().filter(|(shape, _)| !is_rw(shape));
    for (shape, command) in shapes.step_by(3) {
        for reads in [true, false] {
            // A renewal notices, which takes a second. Every shape answers it alike, so one is enough.
            let noticed = (*shape == "string").then_some("lost");
            for call in ["verify", "unlock"].into_iter().chain(noticed) {
                let guard = match reads {
                    true => lock.read().await.unwrap(),
                    false => lock.write().await.unwrap(),
                };
                probe.command(&["DEL", "k"]);
                probe.command(command);
                let before = dump(&mut probe);
                let lost = match call {
                    "verify" => guard.verify().await.is_err() && guard.is_lost(),
                    "unlock" => guard.unlock().await.is_err(),
                    _ => {
                        soon(guard.lost()).await;
                        true
                    }
                };
                assert!(lost, "{shape}: {call}");
                support::eventually_idle(&client).await;
                assert_eq!(dump(&mut probe), before, "{shape}: {call}");
                probe.command(&["FLUSHALL"]);
            }
        }
    }
    nothing_left(&server, [&client]).await;
}

#[tokio::test]
async fn wrong_kind_names_the_lock_and_is_asked_for_once() {
    let (server, client) = start().await;
    let mut probe = server.connection();
    probe.command(&["SET", "k", "text"]);
    reset_calls(&mut probe);
    let error = soon(client.lock("k").lock()).await.unwrap_err();
    assert!(error.to_string().contains("\"k\""), "{error}");
    // Once for the lock and once for what is there; by hash, and in full since the server did not know the script.
    assert_eq!(
        calls_of(&mut probe, "evalsha") + calls_of(&mut probe, "eval"),
        4
    );
    probe.command(&["DEL", "k"]);
    nothing_left(&server, [&client]).await;
}

// fault: S16
#[tokio::test]
async fn hold_whose_key_became_something_else_is_lost_and_leaves_it_alone() {
    let server = Server::start();
    let client = support::builder(server.url())
        .watchdog_lease(secs(3))
        .build()
        .await
        .unwrap();
    let mut probe = server.connection();
    for (shape, command) in SHAPES {
        let lock = client.lock("k");
        let start = async || {
            let guard = lock.lock().await.unwrap();
            server.connection().command(&["DEL", "k"]);
            server.connection().command(command);
            guard
        };
        let mut expected = None;
        for call in ["unlock", "verify", "extend", "reenter", "lost", "drop"] {
            let guard = start().await;
            let before = expected.get_or_insert_with(|| dump(&mut probe)).clone();
            let error = match call {
                "unlock" => guard.unlock().await.err(),
                "verify" => guard.verify().await.err(),
                "extend" => guard.extend(secs(9)).await.err(),
                "reenter" => guard.reenter().await.err(),
                "lost" => {
                    soon(guard.lost()).await;
                    guard.unlock().await.err()
                }
                _ => {
                    drop(guard);
                    support::eventually_idle(&client).await;
                    None
                }
            };
            if call != "drop" {
                let kind = error.expect(call).kind();
                let fits = matches!(kind, ErrorKind::LeaseLost | ErrorKind::WrongKind);
                assert!(fits, "{shape}, {call}: {kind:?}");
            }
            assert_eq!(dump(&mut probe), before, "{shape}, {call}");
            probe.command(&["DEL", "k"]);
        }
    }
    nothing_left(&server, [&client]).await;
}

// fault: S65
#[tokio::test]
async fn poisoned_count_of_the_owner_is_the_wrong_kind_for_every_call() {
    let (server, client) = start().await;
    let mut probe = server.connection();
    let lock = client.lock("k").owned_by(&Owner::named("java:1"));
    for poison in ["abc", "-1", "", "1.5", "1e3", " 1", "0x10", "1\n"] {
        probe.command(&["HSET", "k", "java:1", poison]);
        let before = dump(&mut probe);
        for (call, error) in kinds(&lock).await {
            // These two calls do not read a hold count.
            if !matches!(call, "is_locked" | "remaining_lease") {
                assert_eq!(error, Some(ErrorKind::WrongKind), "{poison:?}: {call}");
            }
        }
        assert_eq!(
            kind(lock.unlock().await),
            ErrorKind::WrongKind,
            "{poison:?}: unlock"
        );
        assert_eq!(
            kind(lock.adopt().await),
            ErrorKind::WrongKind,
            "{poison:?}: adopt"
        );
        let other = stranger(&lock);
        assert_eq!(
            kind(soon(other.lock()).await),
            ErrorKind::WrongKind,
            "{poison:?}: nobody would ever give it back"
        );
        assert_eq!(dump(&mut probe), before, "{poison:?}");
        probe.command(&["PEXPIRE", "k", "60000"]);
        let busy = other.try_lock().await;
        assert!(matches!(busy, Ok(None)), "{poison:?}: it excludes others");
        probe.command(&["DEL", "k"]);
    }
    nothing_left(&server, [&client]).await;
}

#[tokio::test]
async fn hash_that_is_nobodys_lock_is_not_deleted_by_force() {
    let (server, client) = start().await;
    let mut probe = server.connection();
    probe.command(&["HSET", "k", "name", "Ada", "age", "36"]);
    let before = dump(&mut probe);
    assert_eq!(
        kind(client.lock("k").force_unlock().await),
        ErrorKind::WrongKind
    );
    assert_eq!(dump(&mut probe), before);
    probe.command(&["DEL", "k"]);
    nothing_left(&server, [&client]).await;
}

// fault: S65
#[tokio::test]
async fn exhausted_count_is_refused_and_untouched() {
    let (server, client) = start().await;
    let mut probe = server.connection();
    let lock = client.lock("k").owned_by(&Owner::named("java:1"));
    for count in [
        "2147483647",
        "9223372036854775807",
        "99999999999999999999999",
    ] {
        probe.command(&["HSET", "k", "java:1", count]);
        let before = dump(&mut probe);
        let errors = [
            soon(lock.lock()).await.unwrap_err(),
            lock.try_lock().await.unwrap_err(),
            soon(lock.try_lock_for(secs(60))).await.unwrap_err(),
        ];
        for error in errors {
            assert_eq!(error.kind(), ErrorKind::Refused, "{count}: {error}");
            assert!(error.to_string().contains("2147483647"), "{error}");
        }
        assert!(stranger(&lock).try_lock().await.unwrap().is_none());
        assert!(lock.is_locked().await.unwrap());
        assert_eq!(dump(&mut probe), before, "{count}");
        probe.command(&["DEL", "k"]);
    }
    nothing_left(&server, [&client]).await;
}

// fault: S65
#[tokio::test]
async fn count_that_became_exhausted_or_poisoned_refuses_reentry() {
    let (server, client) = start().await;
    let mut probe = server.connection();
    let lock = client.lock("k");
    for (count, expected) in [
        ("2147483647", ErrorKind::Refused),
        ("9223372036854775807", ErrorKind::Refused),
        ("abc", ErrorKind::LeaseLost),
        ("-5", ErrorKind::LeaseLost),
    ] {
        let guard = lock.lock().await.unwrap();
        let field = client.owner_field(guard.owner());
        probe.command(&["HSET", "k", &field, count]);
        let before = dump(&mut probe);
        assert_eq!(kind(guard.reenter().await), expected, "{count}");
        assert_eq!(dump(&mut probe), before, "{count}");
        if expected == ErrorKind::Refused {
            guard.verify().await.unwrap();
            assert_eq!(kind(lock.try_lock().await), expected, "{count}");
        }
        probe.command(&["DEL", "k"]);
        drop(guard);
        support::eventually_idle(&client).await;
    }
    nothing_left(&server, [&client]).await;
}
