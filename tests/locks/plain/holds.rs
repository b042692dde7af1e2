//! Holds: what stands at the key, whose it is, and how it ends, is lost or stays after a dropped call.

use std::time::Instant;

use crate::support;
use crate::support::probe::{kind, millis, nothing_left, secs, soon};
use crate::support::{builder, client, eventually, sha, start, start_two};
use redlatch::config::ReleaseBy;
use redlatch::{ErrorKind, Owner};
use redlatch_testkit::{Proxy, Reply, Server, script};

use super::{BOTH, NAME, is, patient, scriptless, take, value};

#[tokio::test]
async fn lock_is_a_string_that_tells_one_hold_and_ends_with_its_lease() {
    let (server, client) = start().await;
    let mut probe = server.connection();
    for by in BOTH {
        let lock = client.plain_lock(NAME).release_by(by).lease(secs(10));
        let mut values = Vec::new();
        for _ in 0..2 {
            let guard = take(&lock).await;
            let value = value(&mut probe).text();
            let owner = format!("{}/{}:h", client.label(), client.owner_field(guard.owner()));
            assert!(value.starts_with(&owner), "{value}");
            let ttl = probe.pttl(NAME);
            assert!(ttl > 9_000 && ttl <= 10_000, "{ttl}");
            assert_eq!(lock.holder().await.unwrap().unwrap().owner(), value);
            assert!(!values.contains(&value), "one hold as another");
            values.push(value);
            guard.unlock().await.unwrap();
            assert!(!probe.exists(NAME));
        }
        let guard = take(&lock.owned_by(&Owner::named("req-7"))).await;
        assert_eq!(value(&mut probe), is("req-7"));
        guard.unlock().await.unwrap();
    }
    nothing_left(&server, [&client]).await;
}

#[tokio::test]
async fn owner_finds_its_own_lock_busy() {
    let (server, client, other) = start_two().await;
    for by in BOTH {
        for owner in [Owner::unique(), Owner::named("req-7")] {
            let lock = client.plain_lock(NAME).release_by(by).owned_by(&owner);
            let there = other.plain_lock(NAME).release_by(by).owned_by(&owner);
            let guard = take(&lock).await;
            assert!(lock.try_lock().await.unwrap().is_none());
            assert!(lock.try_lock_for(millis(50)).await.unwrap().is_none());
            assert!(there.try_lock().await.unwrap().is_none());
            assert_eq!(kind(guard.reenter().await), ErrorKind::Refused);
            guard.verify().await.unwrap();
            assert_eq!(lock.hold_count().await.unwrap(), 1);
            assert_eq!(
                there.is_held().await.unwrap(),
                owner == Owner::named("req-7")
            );
            guard.unlock().await.unwrap();
        }
    }
    nothing_left(&server, [&client, &other]).await;
}

#[tokio::test]
async fn string_without_a_lease_is_no_lock_and_is_neither_shown_nor_released() {
    let (server, client) = start().await;
    let mut probe = server.connection();
    let digest = "f4a1c2d03b4e41ef9c1a0242ac120002";
    for by in BOTH {
        let lock = client.plain_lock(NAME).release_by(by);
        for text in ["secret=7", digest, &digest[1..], "true"] {
            probe.command(&["SET", NAME, text, "PX", "60000"]);
            let found = client.admin().inspect(NAME).await.unwrap().unwrap();
            assert_eq!(found.holders[0].owner, text);
            probe.command(&["PERSIST", NAME]);
            let errors = [
                lock.is_locked().await.map(drop),
                lock.holder().await.map(drop),
                lock.force_unlock().await.map(drop),
                client.admin().inspect(NAME).await.map(drop),
            ];
            for error in errors.map(Result::unwrap_err) {
                assert_eq!(error.kind(), ErrorKind::WrongKind, "{error}");
                assert!(!format!("{error:?}").contains(text), "{error:?}");
            }
            assert!(lock.try_lock().await.unwrap().is_none(), "it may be a lock");
            assert_eq!(value(&mut probe), is(text));
            probe.command(&["DEL", NAME]);
        }
    }
    nothing_left(&server, [&client]).await;
}

#[tokio::test]
async fn key_that_ended_or_is_anothers_is_lost_and_left_alone() {
    let server = Server::start();
    let client = builder(server.url())
        .watchdog_lease(secs(1))
        .build()
        .await
        .unwrap();
    let mut probe = server.connection();
    for by in BOTH {
        for other in [None, Some("other"), Some("")] {
            for call in ["unlock", "verify", "extend", "lost", "drop", "handle"] {
                let lock = client.plain_lock(NAME).release_by(by);
                let guard = take(&lock).await;
                probe.command(&["DEL", NAME]);
                if let Some(other) = other {
                    probe.command(&["SET", NAME, other, "PX", "600000"]);
                }
                let lost = match call {
                    "unlock" => guard.unlock().await,
                    "verify" => guard.verify().await,
                    "extend" => guard.extend(secs(60)).await,
                    "handle" => lock.unlock().await,
                    "lost" => {
                        soon(guard.lost()).await;
                        guard.unlock().await
                    }
                    _ => {
                        drop(guard);
                        support::eventually_idle(&client).await;
                        Err(lock.unlock().await.unwrap_err())
                    }
                };
                let expected = match call {
                    "drop" => ErrorKind::NotHeld,
                    _ => ErrorKind::LeaseLost,
                };
                assert_eq!(kind(lost), expected, "{by:?}, {other:?}, {call}");
                support::eventually_idle(&client).await;
                assert_eq!(
                    value(&mut probe),
                    other.map_or(Reply::Nil, is),
                    "{by:?}, {call}"
                );
                if other.is_some() {
                    assert!(probe.pttl(NAME) > 590_000, "{by:?}, {call}");
                }
                probe.command(&["DEL", NAME]);
            }
        }
    }
    nothing_left(&server, [&client]).await;
}

#[tokio::test]
async fn many_holds_are_renewed_together_and_each_tells_of_its_own_loss() {
    for server in [Server::start(), scriptless()] {
        let client = builder(server.url())
            .command_timeout(secs(1))
            .watchdog_lease(secs(3))
            .build()
            .await
            .unwrap();
        let mut probe = server.connection();
        let mut guards = Vec::new();
        for n in 0..150 {
            let lock = client.plain_lock(format!("k{n}"));
            guards.push(take(&lock.owned_by(&Owner::unique())).await);
        }
        let others = [("k3", "string"), ("k77", "list")];
        probe.command(&["SET", "k3", "other"]);
        probe.command(&["DEL", "k77"]);
        probe.command(&["RPUSH", "k77", "other"]);
        let end = Instant::now() + secs(5);
        tokio::time::sleep_until(end.into()).await;
        for (n, guard) in guards.iter().enumerate() {
            assert_eq!(guard.is_lost(), n == 3 || n == 77, "k{n}");
        }
        for guard in guards {
            guard.unlock().await.ok();
        }
        for (key, kind) in others {
            let found = probe.command(&["TYPE", key]);
            assert_eq!(found, Reply::Status(kind.to_owned()), "{key}");
            probe.command(&["DEL", key]);
        }
        nothing_left(&server, [&client]).await;
    }
}

/// Drops a call while one of its requests is on its way, and delivers that request to the server afterwards.
async fn dropped_on_the_way<T: std::fmt::Debug>(
    proxy: &Proxy,
    needle: String,
    call: impl Future<Output = T>,
) {
    let mut parcel = proxy.hold_request(needle);
    {
        tokio::pin!(call);
        tokio::select! {
            biased;
            answer = &mut call => panic!("answered: {answer:?}"),
            () = parcel.caught() => {}
        }
    }
    parcel.deliver().await;
}

/// Returns the text that identifies a request: the hash of the script, or the command that stands in for it.
fn request(by: ReleaseBy, script: &str, command: &str) -> String {
    match by {
        ReleaseBy::Transaction => command.to_owned(),
        _ => sha(script),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn dropped_call_under_the_name_of_a_holder_leaves_the_hold_alone() {
    let server = Server::start();
    let proxy = Proxy::start(server.port()).await;
    let (client, other) = (patient(proxy.url()).await, client(&server).await);
    let owner = Owner::named("req-7");
    let mut probe = server.connection();
    for name in ["plain_acquire", "plain_adopt"] {
        probe.command(&["SCRIPT", "LOAD", script(name)]);
    }
    for by in BOTH {
        let here = client.plain_lock(NAME).release_by(by).owned_by(&owner);
        let there = other.plain_lock(NAME).release_by(by).owned_by(&owner);
        let held = take(&there).await;
        assert!(here.try_lock().await.unwrap().is_none());
        let acquire = request(by, "plain_acquire", "NX");
        dropped_on_the_way(&proxy, acquire, here.try_lock()).await;
        support::eventually_idle(&client).await;
        held.verify().await.expect("not given back by another");

        let adopt = request(by, "plain_adopt", "WATCH");
        dropped_on_the_way(&proxy, adopt, here.adopt()).await;
        support::eventually_idle(&client).await;
        held.verify().await.expect("not given back by another");

        // An explicit `unlock` releases it.
        here.unlock().await.unwrap();
        assert!(!there.is_locked().await.unwrap());
        drop(held);
    }
    nothing_left(&server, [&client, &other]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_dropped_call_took_under_a_name_ends_by_its_lease() {
    let server = Server::start();
    let proxy = Proxy::start(server.port()).await;
    let client = patient(proxy.url()).await;
    let mut probe = server.connection();
    for by in BOTH {
        let lock = client.plain_lock(NAME).release_by(by).lease(millis(600));
        let named = lock.owned_by(&Owner::named("req-7"));
        take(&named).await.unlock().await.unwrap();
        let acquire = request(by, "plain_acquire", "NX");
        dropped_on_the_way(&proxy, acquire, named.try_lock()).await;
        support::eventually_idle(&client).await;
        let left = probe.pttl(NAME);
        assert!(left <= 600 && left != -1, "{left}");
        soon(named.lock()).await.unwrap().unlock().await.unwrap();
    }
    nothing_left(&server, [&client]).await;
}

#[tokio::test]
async fn hold_that_was_lost_under_a_name_takes_no_later_one_with_it() {
    let (server, client) = start().await;
    let mut probe = server.connection();
    let lock = client.plain_lock(NAME).owned_by(&Owner::named("req-7"));
    let old = take(&lock).await;
    probe.command(&["DEL", NAME]);
    let new = lock.try_lock().await.unwrap().expect("free");
    assert!(old.is_lost());
    drop(old);
    // Everything that was sent about the old hold is answered before the client forgets it.
    eventually("the old one is forgotten", async || {
        format!("{client:?}").contains("holds: 1,")
    })
    .await;
    for _ in 0..3 {
        assert!(lock.is_locked().await.unwrap());
    }
    new.verify().await.unwrap();
    new.unlock().await.unwrap();
    nothing_left(&server, [&client]).await;
}
