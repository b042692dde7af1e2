//! Prefixes, scopes and database numbers: which names denote the same lock, and which do not.

use crate::support;
use crate::support::probe::{
    NEVER, acquiring, begin, calls_of, channel, eventually_heard, millis, nothing_left,
    reset_calls, secs, soon, stranger,
};
use crate::support::{builder, eventually, start, start_two};
use redlatch_testkit::{Connection, Server};

#[tokio::test]
async fn prefixes_head_key_and_channel_and_add_up() {
    let server = Server::start();
    let client = builder(server.url())
        .name_prefix("billing:")
        .build()
        .await
        .unwrap();
    let plain = support::client(&server).await;
    for (scope, key) in [
        (client.clone(), "billing:k"),
        (client.scoped("a:"), "billing:a:k"),
        (client.scoped("a:").scoped("b:"), "billing:a:b:k"),
        (plain.scoped("a:"), "a:k"),
        (plain.scoped("ü:"), "ü:k"),
    ] {
        let mut messages = Connection::subscribe(server.port(), &[channel(key)]);
        let guard = scope.lock("k").lock().await.unwrap();
        // A message about the lock before this one may leave a key for a few milliseconds.
        eventually("there is nothing else", async || {
            server.connection().keys() == [key]
        })
        .await;
        let same = plain.lock(key).holder().await.unwrap().unwrap();
        assert_eq!(same.owner(), scope.owner_field(guard.owner()));
        assert!(
            stranger(&plain.lock(key))
                .try_lock()
                .await
                .unwrap()
                .is_none(),
            "the same lock"
        );
        guard.unlock().await.unwrap();
        assert_eq!(
            messages.next(secs(10)),
            Some((channel(key), "0".to_owned()))
        );
    }
    nothing_left(&server, [&client, &plain]).await;
}

#[tokio::test]
async fn names_under_two_prefixes_do_not_exclude_each_other() {
    let (server, client) = start().await;
    let mut guards = Vec::new();
    for prefix in ["a:", "b:", "a", "A:"] {
        guards.push(
            client
                .scoped(prefix)
                .lock("k")
                .try_lock()
                .await
                .unwrap()
                .expect(prefix),
        );
    }
    guards.push(client.lock("k").try_lock().await.unwrap().unwrap());
    assert_eq!(server.connection().keys().len(), 5);
    for guard in guards {
        guard.unlock().await.unwrap();
    }
    nothing_left(&server, [&client]).await;
}

#[tokio::test]
async fn scope_is_the_same_client_with_the_same_owner() {
    let (server, client) = start().await;
    let connections = server
        .connection()
        .command(&["CLIENT", "LIST"])
        .text()
        .lines()
        .count();
    let scope = client.scoped("a:");
    assert_eq!(scope.id(), client.id());
    let outer = scope.lock("k").lock().await.unwrap();
    let inner = client.lock("a:k").try_lock().await.unwrap().unwrap();
    assert_eq!(scope.lock("k").hold_count().await.unwrap(), 2);
    let now = server
        .connection()
        .command(&["CLIENT", "LIST"])
        .text()
        .lines()
        .count();
    assert_eq!(now, connections);
    inner.unlock().await.unwrap();
    outer.unlock().await.unwrap();
    nothing_left(&server, [&client]).await;
}

#[tokio::test]
async fn scope_has_a_watchdog_lease_of_its_own() {
    let server = Server::start();
    let client = builder(server.url())
        .watchdog_lease(secs(40))
        .build()
        .await
        .unwrap();
    let scope = client.scoped("a:").watchdog_lease(millis(500));
    let mut probe = server.connection();
    for (owner, name, least, most) in [
        (&client, "k", 30_000, 40_000),
        (&scope, "k", 1, 500),
        (&scope.scoped("b:"), "k", 1, 500),
        (&client.scoped("c:"), "k", 30_000, 40_000),
    ] {
        let guard = owner.lock(name).lock().await.unwrap();
        let key = probe.keys().remove(0);
        let ttl = probe.pttl(&key);
        assert!((least..=most).contains(&ttl), "{key}: {ttl}");
        if most == 500 {
            let kept = tokio::time::timeout(millis(1_500), guard.lost()).await;
            assert!(kept.is_err(), "{key} is renewed");
        }
        guard.unlock().await.unwrap();
    }
    nothing_left(&server, [&client]).await;
}

#[tokio::test]
async fn databases_do_not_exclude_each_other_and_share_messages_only() {
    let server = Server::start();
    let (zero, three) = (server.url(), format!("{}/3", server.url()));
    let zero = builder(zero).build().await.unwrap();
    let three = builder(three).poll_cap(NEVER / 2).build().await.unwrap();
    let mut probe = server.connection();
    probe.command(&["SELECT", "3"]);

    let elsewhere = zero.lock("k").lock().await.unwrap();
    let held = three
        .lock("k")
        .try_lock()
        .await
        .unwrap()
        .expect("another database");
    assert!(
        probe
            .hgetall("k")
            .contains_key(&three.owner_field(held.owner()))
    );

    let other = builder(format!("{}/3", server.url()))
        .poll_cap(NEVER / 2)
        .build()
        .await
        .unwrap();
    reset_calls(&mut probe);
    let waiting = acquiring(&other.lock("k"));
    eventually("it asked before and after it subscribed", async || {
        calls_of(&mut probe, "evalsha") == 2
    })
    .await;
    elsewhere.unlock().await.unwrap();
    eventually("the message had it ask once more", async || {
        calls_of(&mut probe, "evalsha") == 3
    })
    .await;
    assert!(!waiting.is_finished());
    held.unlock().await.unwrap();
    let granted = soon(waiting).await.unwrap().unwrap();
    assert_eq!(probe.keys(), ["k"]);
    granted.unlock().await.unwrap();
    assert!(probe.keys().is_empty());
    nothing_left(&server, [&zero, &three, &other]).await;
}

#[tokio::test]
async fn clients_of_one_process_wait_for_each_other() {
    let (server, one, two) = start_two().await;
    assert_ne!(one.id(), two.id());
    let held = one.lock("k").lock().await.unwrap();
    let lock = two.lock("k");
    let waiting = begin(async move { lock.lock().await });
    let waiting = tokio::spawn(waiting);
    eventually_heard(&server, "k", 1).await;
    held.unlock().await.unwrap();
    let granted = soon(waiting).await.unwrap().unwrap();
    assert!(stranger(&one.lock("k")).try_lock().await.unwrap().is_none());
    granted.unlock().await.unwrap();
    nothing_left(&server, [&one, &two]).await;
}
