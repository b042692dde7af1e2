//! Input that cannot work is refused with an error of its own kind before anything is sent. Odd input that
//! can work does.

use crate::support;
use std::time::Duration;

use crate::support::probe::{
    calls, eventually_listening, kind, millis, nothing_left, reset_calls, secs, soon, stranger,
};
use crate::support::start;
use redlatch::{Client, ClientBuilder, Config, Error, ErrorKind, Owner, ReentrantLock};
use redlatch_testkit::{Connection, Server};

/// The part of a handle, other than its name, that a call depends on.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Needs {
    Nothing,
    Owner,
    Lease,
}

/// Returns the errors of all calls that need at least `needs`, with the names of the calls.
async fn errors(lock: &ReentrantLock, needs: Needs) -> Vec<(&'static str, Option<Error>)> {
    let mut errors = vec![
        ("lock", lock.lock().await.err()),
        ("try_lock", lock.try_lock().await.err()),
        ("try_lock_for", lock.try_lock_for(secs(60)).await.err()),
        ("unlock", lock.unlock().await.err()),
        ("adopt", lock.adopt().await.err()),
    ];
    if needs <= Needs::Owner {
        errors.push(("is_held", lock.is_held().await.err()));
        errors.push(("hold_count", lock.hold_count().await.err()));
    }
    if needs == Needs::Nothing {
        errors.push(("is_locked", lock.is_locked().await.err()));
        errors.push(("remaining_lease", lock.remaining_lease().await.err()));
        errors.push(("holder", lock.holder().await.err()));
        errors.push(("force_unlock", lock.force_unlock().await.err()));
    }
    errors
}

// fault: S66 S67
#[tokio::test]
async fn bad_names_leases_and_owners_are_refused_before_anything_is_sent() {
    let (server, client) = start().await;
    let mut probe = server.connection();
    let name = |name: &str| client.lock(name);
    let long = "x".repeat(1025);
    let mut refused = vec![
        (Needs::Nothing, name("")),
        (Needs::Nothing, name(&long)),
        (Needs::Nothing, client.scoped("").lock("k")),
        (Needs::Nothing, client.scoped(&long).lock("k")),
        (Needs::Nothing, client.scoped("p:").lock("")),
        (Needs::Nothing, client.scoped("p:").lock(&long[2..])),
        (
            Needs::Nothing,
            client.scoped("p:").scoped("").scoped("q:").lock("k"),
        ),
    ];
    for owner in ["", "mode", "x:write", ":write", "|", "|x"] {
        refused.push((Needs::Owner, name("k").owned_by(&Owner::named(owner))));
    }
    for lease in [
        Duration::ZERO,
        Duration::from_nanos(1),
        millis(1),
        millis(49),
        Duration::from_micros(49_999),
        Duration::from_secs(u64::MAX),
        Duration::MAX,
    ] {
        refused.push((Needs::Lease, name("k").lease(lease)));
        refused.push((Needs::Lease, client.clone().watchdog_lease(lease).lock("k")));
    }
    reset_calls(&mut probe);
    for (needs, lock) in &refused {
        for (call, error) in errors(lock, *needs).await {
            let error = error.unwrap_or_else(|| panic!("{call} of {lock:?}"));
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{call}: {error}");
        }
    }
    assert_eq!(calls(&mut probe).get("evalsha"), None, "nothing was sent");
    nothing_left(&server, [&client]).await;
}

#[tokio::test]
async fn refusal_needs_no_server() {
    let (server, client) = start().await;
    server.kill();
    for lock in [
        client.lock(""),
        client.lock("k").lease(millis(49)),
        client.lock("k").owned_by(&Owner::named("mode")),
    ] {
        assert_eq!(kind(soon(lock.lock()).await), ErrorKind::InvalidInput);
    }
}

// fault: S66
#[tokio::test]
async fn odd_names_are_distinct_locks() {
    let (server, client) = start().await;
    let long = "x".repeat(1024);
    let names = [
        "k",
        " ",
        "a\0b",
        "a\0c",
        "two\nlines",
        "two\r\nlines",
        "\r\n",
        "\n",
        "🔒",
        "{",
        "}",
        "{}",
        "{a}{b}",
        "a}b{",
        "*",
        "k*",
        "?",
        "[a]",
        "\"",
        "'",
        "%",
        "é",
        "e\u{301}",
        "\u{feff}k",
        "0",
        "-1",
        "mode",
        "|k",
        &long,
        &long[1..],
    ];
    let mut guards = Vec::new();
    for name in names {
        guards.push(client.lock(name).try_lock().await.unwrap().expect(name));
    }
    let mut probe = server.connection();
    let mut expected = names.map(str::to_owned).to_vec();
    expected.sort();
    assert_eq!(probe.keys(), expected);
    for name in names {
        let lock = client.lock(name);
        assert_eq!(lock.hold_count().await.unwrap(), 1, "{name:?}");
        assert!(
            stranger(&lock).try_lock().await.unwrap().is_none(),
            "{name:?}"
        );
    }
    for guard in guards {
        guard.unlock().await.unwrap();
    }
    // Waiting and waking work too: the channel's name is as odd as the lock's.
    for name in names {
        let lock = client.lock(name);
        let channel = match name.contains('{') {
            true => format!("redisson_lock__channel:{name}"),
            false => format!("redisson_lock__channel:{{{name}}}"),
        };
        let mut messages = Connection::subscribe(server.port(), &[&channel]);
        lock.lock().await.unwrap().unlock().await.unwrap();
        assert_eq!(messages.next(secs(10)), Some((channel, "0".to_owned())));
    }
    nothing_left(&server, [&client]).await;
}

/// Returns the error, if any, of one attempt for each kind of lock that has keys next to its own.
async fn attempts(client: &Client, name: &str) -> Vec<(&'static str, Option<Error>)> {
    let rw = client.read_write_lock(name);
    let permits = client.expirable_semaphore(name);
    vec![
        ("fair", client.fair_lock(name).try_lock().await.err()),
        ("fenced", client.fenced_lock(name).try_lock().await.err()),
        ("reader", rw.try_read().await.err()),
        ("writer", rw.try_write().await.err()),
        ("is_locked", rw.writer().is_locked().await.err()),
        (
            "force_unlock",
            client.fair_lock(name).force_unlock().await.err(),
        ),
        ("set", permits.try_set_permits(1).await.err()),
        ("permit", permits.try_acquire().await.err()),
        ("count", permits.available_permits().await.err()),
    ]
}

#[tokio::test]
async fn braces_around_a_whole_name_are_refused_where_they_would_share_the_keys_of_another_name() {
    let (server, client) = start().await;
    let mut probe = server.connection();
    reset_calls(&mut probe);
    let names = [
        (client.clone(), "{k}", "\"k\""),
        (client.clone(), "{a}b}", "\"a}b\""),
        // The whole key counts, including the prefix.
        (client.scoped("{jobs:"), "k}", "\"jobs:k\""),
    ];
    for (client, name, twin) in &names {
        for (call, error) in attempts(client, name).await {
            let error = error.unwrap_or_else(|| panic!("{call} of {name}"));
            assert_eq!(
                error.kind(),
                ErrorKind::InvalidInput,
                "{call} of {name}: {error}"
            );
            assert!(error.to_string().contains(twin), "{error}");
            assert!(error.to_string().contains(":x"), "a way out: {error}");
        }
    }
    assert_eq!(calls(&mut probe).get("evalsha"), None, "nothing was sent");
    for (scope, name) in [
        (client.scoped("jobs:"), "{k}"),
        (client.clone(), "{k}:x"),
        (client.clone(), "{a}{b}"),
    ] {
        for (call, error) in attempts(&scope, name).await {
            // Objects of other kinds may already be at the key, hence `WrongKind`.
            let kind = error.map(|error| error.kind());
            assert!(
                matches!(kind, None | Some(ErrorKind::WrongKind)),
                "{call} of {name}: {kind:?}"
            );
        }
    }
    probe.command(&["FLUSHALL"]);
    nothing_left(&server, [&client]).await;
}

#[tokio::test]
async fn lock_and_the_same_name_in_braces_do_not_heed_each_other() {
    let (server, client) = start().await;
    let (plain, braced) = (client.semaphore("k"), client.semaphore("{k}"));
    assert!(plain.try_set_permits(1).await.unwrap());
    assert!(braced.try_set_permits(1).await.unwrap());
    let taken = plain.acquire().await.unwrap();
    let waiter = plain.clone();
    let waiting = tokio::spawn(async move { waiter.acquire().await });
    eventually_listening(&server, "redisson_sc:{k}", 1).await;
    // A call that waits for one of the two holds up no call for the other.
    let other = braced.try_acquire_for(secs(5)).await.unwrap().unwrap();
    assert_eq!(braced.available_permits().await.unwrap(), 0);
    assert_eq!(plain.available_permits().await.unwrap(), 0);
    other.release().await.unwrap();
    taken.release().await.unwrap();
    let waited = soon(waiting).await.unwrap().unwrap();
    waited.release().await.unwrap();
    server.connection().command(&["DEL", "k", "{k}"]);

    let kinds = [
        (client.lock("k"), client.lock("{k}")),
        // The names of the keys and channels next to `k`.
        (
            client.lock("redisson_sc:{k}"),
            client.lock("redlatch_rwlock_writer:{k}"),
        ),
    ];
    let rw = client.read_write_lock("k");
    for (one, two) in kinds {
        let guard = one.lock().await.unwrap();
        let inner = two.lock().await.unwrap();
        assert_eq!(one.hold_count().await.unwrap(), 1);
        assert_eq!(two.hold_count().await.unwrap(), 1);
        guard.unlock().await.unwrap();
        inner.verify().await.unwrap();
        inner.unlock().await.unwrap();
    }
    let writer = rw.write().await.unwrap();
    let lock = client.lock("redlatch_rwlock_writer:{k}");
    lock.lock().await.unwrap().unlock().await.unwrap();
    writer.verify().await.unwrap();
    writer.unlock().await.unwrap();
    nothing_left(&server, [&client]).await;
}

#[tokio::test]
async fn odd_owners_are_distinct_owners() {
    let (server, client) = start().await;
    let long = "x".repeat(2000);
    let names = [
        "a", " ", "a\0b", "\r\n", "🔒", "mode ", ":write ", "x:writer", "a|", "7", "-1", "%s",
        &long,
    ];
    for name in names {
        let owner = Owner::named(name);
        let lock = client.lock("k").owned_by(&owner);
        let guard = lock.lock().await.unwrap();
        let inner = lock.try_lock().await.unwrap().unwrap();
        assert_eq!(lock.holder().await.unwrap().unwrap().owner(), name);
        for other in names.iter().filter(|other| **other != name) {
            let other = client.lock("k").owned_by(&Owner::named(other));
            assert!(
                other.try_lock().await.unwrap().is_none(),
                "{name:?}, {other:?}"
            );
        }
        inner.unlock().await.unwrap();
        drop(guard.detach());
        lock.adopt().await.unwrap().unwrap().unlock().await.unwrap();
        assert!(!lock.is_locked().await.unwrap(), "{name:?}");
    }
    nothing_left(&server, [&client]).await;
}

// fault: S67
#[tokio::test]
async fn shortest_and_longest_lease_work() {
    let (server, client) = start().await;
    let century = secs(100 * 365 * 24 * 60 * 60);
    let lock = client.lock("k").lease(century);
    let guard = lock.lock().await.unwrap();
    assert!(lock.remaining_lease().await.unwrap().unwrap() > century - secs(60));
    assert!(guard.remaining() > century / 2);
    guard.unlock().await.unwrap();
    assert_eq!(
        kind(lock.lease(century + millis(1)).lock().await),
        ErrorKind::InvalidInput
    );
    // On a busy machine a request may take longer than a 50 ms lease is worth; the error kind then says so.
    match client.lock("k").lease(millis(50)).lock().await {
        Ok(guard) => assert!(guard.remaining() <= millis(48)),
        Err(error) => assert!(
            matches!(error.kind(), ErrorKind::LeaseLost | ErrorKind::Timeout),
            "{error}"
        ),
    }
    nothing_left(&server, [&client]).await;
}

#[tokio::test]
async fn settings_that_cannot_work_are_refused_before_connecting() {
    let server = Server::start();
    let url = server.url();
    server.kill();
    type Setting = fn(ClientBuilder) -> ClientBuilder;
    let settings: [(&str, Setting); 14] = [
        ("watchdog_lease", |b| b.watchdog_lease(Duration::ZERO)),
        ("watchdog_lease", |b| b.watchdog_lease(millis(49))),
        ("watchdog_lease", |b| b.watchdog_lease(Duration::MAX)),
        ("command_timeout", |b| b.command_timeout(Duration::ZERO)),
        ("command_timeout", |b| b.command_timeout(millis(19))),
        ("command_timeout", |b| b.command_timeout(Duration::MAX)),
        ("poll_cap", |b| b.poll_cap(Duration::ZERO)),
        ("poll_cap", |b| b.poll_cap(millis(9))),
        ("poll_cap", |b| b.poll_cap(Duration::MAX)),
        ("max_hold", |b| b.max_hold(Duration::ZERO)),
        ("min_validity", |b| b.min_validity(secs(30))),
        ("min_validity", |b| b.min_validity(Duration::MAX)),
        ("prefix", |b| b.name_prefix("")),
        ("prefix", |b| b.name_prefix("x".repeat(1025))),
    ];
    for (setting, set) in settings {
        let error = set(Client::builder().url(&url)).build().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{setting}");
        let word = if setting == "watchdog_lease" {
            "lease"
        } else {
            setting
        };
        assert!(error.to_string().contains(word), "{setting}: {error}");
    }
}

#[tokio::test]
async fn min_validity_that_a_lease_cannot_meet_is_refused() {
    let server = Server::start();
    let client = support::builder(server.url())
        .min_validity(secs(5))
        .build()
        .await
        .unwrap();
    let lock = client.lock("k");
    assert_eq!(
        kind(lock.clone().lease(secs(5)).lock().await),
        ErrorKind::InvalidInput
    );
    lock.lease(secs(6))
        .lock()
        .await
        .unwrap()
        .unlock()
        .await
        .unwrap();
    nothing_left(&server, [&client]).await;
}

#[tokio::test]
async fn urls_that_cannot_work_are_refused_without_their_password() {
    for url in [
        "",
        "localhost",
        "localhost:6379",
        "://h",
        "http://u:secret@h",
        "redis://u:secret@h:notaport",
        "redis://u:secret@h:70000",
        "redis://:secret@",
        "redis-what://u:secret@h",
        "redis://u:secret@h:6379/notanumber",
        "redis://u:secret@h:6379/1/2",
        "redis://u:secret@h:6379/1#secret",
        "redis://u:secret@h:6379?db=3",
        "redis://u:secret@h:6379?what=secret",
        "redis+unix://?db=0",
        "redis-cluster://u:secret@h/3",
        "redis-sentinel://u:secret@h",
    ] {
        let error = soon(Client::connect(url)).await.expect_err(url);
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{url}: {error}");
        let builder = Client::builder().url(url);
        let shown = format!("{error} {error:?} {builder:?}");
        assert!(!shown.contains("secret"), "{shown}");
        let mut source = std::error::Error::source(&error);
        while let Some(error) = source {
            assert!(
                !format!("{error} {error:?}").contains("secret"),
                "{error:?}"
            );
            source = error.source();
        }
    }
}

#[tokio::test]
async fn configurations_that_cannot_work_are_refused_and_show_no_password() {
    let none: [(&str, u16); 0] = [];
    let server = || Config::server("h", 6379).password("secret");
    for (config, word) in [
        (Config::server("", 6379), "host is empty"),
        (Config::server("h", 0), "port is 0"),
        (Config::server("a b", 6379), "character"),
        (Config::server("h:6380", 6379), "separately"),
        (Config::cluster(none), "no server"),
        (Config::cluster([("h", 1)]).database(1), "database 0 only"),
        (Config::sentinels("", [("h", 1)]), "service"),
        (Config::sentinels("main", none), "no server"),
        (Config::unix_socket(""), "path"),
        (server().sentinel_password("secret"), "no sentinels"),
        (server().connect_timeout(millis(19)), "connect_timeout"),
        (server().connect_timeout(Duration::MAX), "connect_timeout"),
        (server().command_timeout(Duration::ZERO), "command_timeout"),
    ] {
        let builder = Client::builder().config(config);
        let shown = format!("{builder:?} {builder:#?}");
        assert!(!shown.contains("secret"), "{shown}");
        let error = soon(builder.build()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
        assert!(error.to_string().contains(word), "{error}");
    }
}

/// A setting of the builder takes precedence over the configuration, whichever of them is given first.
#[tokio::test]
async fn command_timeout_of_the_builder_goes_before_that_of_the_configuration() {
    let server = Server::start();
    let url = format!("{}?command_timeout=1ms", server.url());
    let error = Client::connect(&url).await.unwrap_err();
    assert!(error.to_string().contains("command_timeout"), "{error}");
    let told = Client::builder().command_timeout(secs(1)).url(&url);
    told.build().await.unwrap().close().await;
}
