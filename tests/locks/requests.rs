//! How much is asked of the server: scripts, subscriptions and connections, by the server's own count.

use std::collections::BTreeMap;

use crate::support::probe::{
    NEVER, acquiring, calls, calls_of, channel, eventually_attending, eventually_heard, name_of,
    nothing_left, reset_calls, secs, soon, subscribers,
};
use crate::support::{builder, client, eventually, start, start_two};
use futures_util::future::try_join_all;
use redlatch::LockGuard;
use redlatch_testkit::Server;

#[tokio::test]
async fn uncontended_lock_and_unlock_are_two_scripts_and_nothing_else() {
    let (server, client) = start().await;
    let lock = client.lock("k");
    lock.lock().await.unwrap().unlock().await.unwrap();
    let mut probe = server.connection();
    reset_calls(&mut probe);
    lock.lock().await.unwrap().unlock().await.unwrap();
    let seen = calls(&mut probe);
    let inside = ["pttl", "hset", "pexpire", "del", "publish"].map(|command| (command, 1));
    // Each script checks once whether any process waits in the turn queue.
    let expected = inside
        .into_iter()
        .chain([("hmget", 2), ("exists", 2), ("evalsha", 2)]);
    let expected: BTreeMap<_, _> = expected
        .map(|(name, calls)| (name.to_owned(), calls))
        .collect();
    assert_eq!(seen, expected);
    nothing_left(&server, [&client]).await;
}

#[tokio::test]
async fn reentry_and_inner_release_are_one_script_each() {
    let (server, client) = start().await;
    let lock = client.lock("k");
    let twice = async || {
        let outer = lock.lock().await.unwrap();
        let inner = lock.lock().await.unwrap();
        inner.unlock().await.unwrap();
        outer.unlock().await.unwrap();
    };
    twice().await;
    let mut probe = server.connection();
    reset_calls(&mut probe);
    twice().await;
    let seen = calls(&mut probe);
    assert_eq!(
        (seen["evalsha"], seen.get("eval"), seen["publish"]),
        (4, None, 1)
    );
    nothing_left(&server, [&client]).await;
}

#[tokio::test]
async fn scripts_travel_whole_only_when_the_server_does_not_know_them() {
    let (server, client) = start().await;
    let lock = client.lock("k");
    let mut probe = server.connection();
    // What gives back goes whole at once on a connection that has not seen it: there may be no second try.
    for (forget, by_hash) in [(true, 1), (false, 2), (true, 2), (false, 2)] {
        if forget {
            probe.command(&["SCRIPT", "FLUSH"]);
        }
        reset_calls(&mut probe);
        lock.lock().await.unwrap().unlock().await.unwrap();
        let whole = calls_of(&mut probe, "eval");
        assert_eq!(whole, if forget { 2 } else { 0 });
        assert_eq!(calls_of(&mut probe, "evalsha"), by_hash);
    }
    nothing_left(&server, [&client]).await;
}

#[tokio::test]
async fn crowd_of_releases_on_a_new_connection_sends_their_script_once() {
    let (server, client) = start().await;
    let locks = (0..50).map(|n| client.lock(format!("k{n}")));
    let guards = try_join_all(locks.map(|lock| async move { lock.lock().await })).await;
    let mut probe = server.connection();
    reset_calls(&mut probe);
    let released = guards.unwrap().into_iter().map(LockGuard::unlock);
    try_join_all(released).await.unwrap();
    let sent = ["eval", "evalsha"].map(|command| calls_of(&mut probe, command));
    assert_eq!(sent, [1, 49]);
    nothing_left(&server, [&client]).await;
}

#[tokio::test]
async fn crowd_of_waiters_costs_one_subscription_and_asks_nothing() {
    let server = Server::start();
    let (holder, client) = (
        client(&server).await,
        builder(server.url())
            .poll_cap(NEVER / 2)
            .build()
            .await
            .unwrap(),
    );
    let mut probe = server.connection();
    reset_calls(&mut probe);
    let guard = holder.lock("k").lock().await.unwrap();
    eventually_attending(&mut probe, &holder).await;
    reset_calls(&mut probe);
    let waiting: Vec<_> = (0..50).map(|_| acquiring(&client.lock("k"))).collect();
    eventually("the front asked, listened and asked again", async || {
        subscribers(&mut probe, &channel("k")) == 1 && calls_of(&mut probe, "evalsha") == 2
    })
    .await;
    tokio::time::sleep(secs(2)).await;
    assert_eq!(calls_of(&mut probe, "evalsha"), 2, "nothing is polled");
    assert_eq!(calls_of(&mut probe, "subscribe"), 1);
    assert_eq!(subscribers(&mut probe, &channel("k")), 1);
    let connections = probe.command(&["CLIENT", "LIST"]).text();
    let listening = connections
        .lines()
        .filter(|line| line.contains(client.id()) && line.contains(" sub=1 "))
        .count();
    assert_eq!(listening, 1);
    let mut keys = probe.keys();
    keys.sort();
    assert_eq!(keys, ["k", "redlatch_turns:{k}"]);
    let places = probe.command(&["ZRANGE", "redlatch_turns:{k}", "0", "-1"]);
    assert_eq!(places.texts(), [name_of(&client)], "one for all of them");

    guard.unlock().await.unwrap();
    for task in waiting {
        soon(task).await.unwrap().unwrap().unlock().await.unwrap();
    }
    // Each of the fifty runs its own two scripts and the next one's try before it; the first holder runs its release.
    let scripts = calls_of(&mut probe, "evalsha");
    assert!(scripts <= 3 + 50 * 4, "{scripts}");
    assert_eq!(
        calls_of(&mut probe, "subscribe"),
        1,
        "the channel is handed on"
    );
    nothing_left(&server, [&holder, &client]).await;
}

#[tokio::test]
async fn lock_that_is_held_for_longer_costs_one_subscription_and_one_check() {
    let (server, client) = start().await;
    let mut probe = server.connection();
    reset_calls(&mut probe);
    let guards = ["a", "b"].map(|name| client.lock(name));
    let guards = [
        guards[0].lock().await.unwrap(),
        guards[1].lock().await.unwrap(),
    ];
    eventually_attending(&mut probe, &client).await;
    reset_calls(&mut probe);
    tokio::time::sleep(secs(2)).await;
    assert_eq!(calls(&mut probe), BTreeMap::new());
    drop(guards);
    eventually("it listens no more", async || {
        calls_of(&mut probe, "unsubscribe") == 1
    })
    .await;
    nothing_left(&server, [&client]).await;
}

#[tokio::test]
async fn channels_of_two_locks_share_one_connection() {
    let (server, holder, client) = start_two().await;
    let id = name_of(&client);
    let mut guards: Vec<LockGuard> = Vec::new();
    let mut waiting = Vec::new();
    for name in ["a", "b"] {
        guards.push(holder.lock(name).lock().await.unwrap());
        waiting.push(acquiring(&client.lock(name)));
        eventually_heard(&server, name, 1).await;
    }
    let mut probe = server.connection();
    let channels = ["a", "b"].map(|name| format!("{}:{id}", channel(name)));
    assert_eq!(probe.channels(), channels);
    let mut list = String::new();
    // Connections that were opened before this probe may not be gone yet.
    eventually("two of each client, and the probe's", async || {
        list = probe.command(&["CLIENT", "LIST"]).text();
        list.lines().count() == 2 + 2 + 1
    })
    .await;
    assert_eq!(list.matches(" sub=2 ").count(), 1, "{list}");
    drop(guards);
    for task in waiting {
        soon(task).await.unwrap().unwrap().unlock().await.unwrap();
    }
    nothing_left(&server, [&holder, &client]).await;
}
