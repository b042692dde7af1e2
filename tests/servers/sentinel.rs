//! Failovers of a real set: a primary, two replicas, three sentinels.

use std::time::{Duration, Instant};

use crate::family::Lock;
use crate::support::probe::{is_before_7, kind, secs, soon};
use crate::support::{builder, eventually};
use redlatch::config::ReleaseBy;
use redlatch::{Client, DistributedGuard, ErrorKind, FairLock, ReentrantLock};
use redlatch_testkit::{Sentinel, Sentinels, Server, skip};

/// The time that is promised in addition to that of the failover itself.
const NOTICE: Duration = Duration::from_secs(2);

async fn client(set: &Sentinels) -> Client {
    let builder = builder(set.url()).poll_cap(secs(60));
    builder.build().await.unwrap()
}

async fn replicated(set: &Sentinels, keys: &[&str]) {
    for replica in set.replicas() {
        let mut copy = replica.connection();
        eventually("the hold is replicated", async || {
            keys.iter().all(|key| copy.exists(key))
        })
        .await;
    }
}

/// Kills the primary. Returns the promoted server, and when the sentinels had agreed on it.
async fn fail_over(set: &Sentinels) -> (&Server, Instant) {
    set.primary().kill();
    let end = Instant::now() + secs(30);
    loop {
        if let Some(server) = set.promoted() {
            return (server, Instant::now());
        }
        assert!(Instant::now() < end, "no failover");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn primary_that_is_silent_is_named_and_not_the_sentinel() {
    let primary = Server::start();
    let sentinel = Sentinel::start(&primary, "main");
    let client = builder(sentinel.url()).build().await.unwrap();
    let admin = client.admin();
    let address = format!("127.0.0.1:{}", primary.port());
    let report = admin.servers().await.unwrap().remove(0).unwrap();
    assert_eq!(report.address, address);
    primary.freeze();
    let unread = admin.servers().await.unwrap().remove(0).unwrap_err();
    assert_eq!(unread.server, address);
    let error = client.lock("k").try_lock().await.unwrap_err();
    assert!(error.to_string().contains(&address), "{error}");
    primary.thaw();
}

/// A replicated hold goes on after the failover, and its waiter gets in when it ends.
async fn waits_through_a_failover<L: Lock>() {
    let set = Sentinels::start();
    let (holder, other) = (client(&set).await, client(&set).await);
    let guard = L::of(&holder, "k").lease(secs(60)).lock().await.unwrap();
    let kept = L::of(&holder, "kept").lock().await.unwrap();
    replicated(&set, &["k", "kept"]).await;
    let lock = L::of(&other, "k");
    let waiter = tokio::spawn(async move { lock.try_lock_for(secs(60)).await });
    eventually("the waiter listens", async || {
        format!("{other:?}").contains("channels: 1")
    })
    .await;

    let (server, _) = fail_over(&set).await;
    eventually("the hold is confirmed", async || {
        guard.verify().await.is_ok()
    })
    .await;
    assert!(!guard.is_lost() && !kept.is_lost());
    assert!(server.connection().exists("k"));
    eventually("the waiter listens there", async || {
        let channels = server.connection().channels();
        channels
            .iter()
            .any(|channel| channel.starts_with("redisson_lock__channel:{k}"))
    })
    .await;
    guard.unlock().await.unwrap();
    let released = Instant::now();
    let next = waiter.await.unwrap().unwrap().expect("granted in time");
    // Long before the poll cap, and before the lease ends.
    assert!(released.elapsed() < NOTICE, "{:?}", released.elapsed());
    next.unlock().await.unwrap();
    kept.unlock().await.unwrap();
    holder.close().await;
    other.close().await;
}

/// A hold that was not replicated is lost: its holder learns of it, and its waiter gets in.
async fn holds_through_a_failover<L: Lock>() {
    let set = Sentinels::start();
    let (holder, other) = (client(&set).await, client(&set).await);
    let fixed = L::of(&holder, "fixed")
        .lease(secs(60))
        .lock()
        .await
        .unwrap();
    let renewed = L::of(&holder, "renewed").lock().await.unwrap();
    let lock = L::of(&other, "fixed");
    let waiter = tokio::spawn(async move { lock.try_lock_for(secs(60)).await });
    eventually("the waiter listens", async || {
        format!("{other:?}").contains("channels: 1")
    })
    .await;
    replicated(&set, &["fixed", "renewed"]).await;
    // As if the replicas had lagged behind: asynchronous replication promises nothing else.
    for replica in set.replicas() {
        replica.connection().command(&["FLUSHALL"]);
    }
    let (_, promoted) = fail_over(&set).await;
    for guard in [&fixed, &renewed] {
        let lost = tokio::time::timeout(secs(10), guard.lost());
        lost.await.expect("lost() fires");
    }
    assert!(promoted.elapsed() < NOTICE, "{:?}", promoted.elapsed());
    let next = waiter.await.unwrap().unwrap().expect("granted in time");
    assert!(promoted.elapsed() < NOTICE * 2, "{:?}", promoted.elapsed());
    assert_eq!(kind(fixed.unlock().await), ErrorKind::LeaseLost);
    next.verify().await.unwrap();
    next.unlock().await.unwrap();
    holder.close().await;
    other.close().await;
}

/// Waits until a sentinel names another server. Returns that server, and when it was named.
async fn named(set: &Sentinels) -> (&Server, Instant) {
    let end = Instant::now() + secs(30);
    loop {
        if let Some(server) = set.named() {
            return (server, Instant::now());
        }
        assert!(Instant::now() < end, "no failover");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// Waits until a client has left its frozen primary, whose answers count until then. The new one is who answers this.
async fn has_left(client: &Client) {
    eventually("the client has left", async || client.ping().await.is_ok()).await;
}

/// Returns whether a connection of this crate's leads to a server.
fn is_connected_to(server: &Server) -> bool {
    let clients = server.connection().command(&["CLIENT", "LIST"]).text();
    clients.contains("name=redlatch:")
}

// fault: S45
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn primary_that_lives_on_is_left_within_a_second_of_the_first_word() {
    let set = Sentinels::start();
    let (holder, other) = (client(&set).await, client(&set).await);
    let kept = holder.lock("kept").lease(secs(60)).lock().await.unwrap();
    let gone = holder.lock("gone").lease(secs(60)).lock().await.unwrap();
    let lock = other.lock("gone");
    let waiter = tokio::spawn(async move { lock.try_lock_for(secs(60)).await });
    eventually("the waiter listens", async || {
        format!("{other:?}").contains("channels: 1")
    })
    .await;
    replicated(&set, &["kept", "gone"]).await;
    for replica in set.replicas() {
        replica.connection().command(&["DEL", "gone"]);
    }
    set.replace_primary();
    let (server, word) = named(&set).await;
    eventually("the old primary is left", async || {
        !is_connected_to(set.primary())
    })
    .await;
    let left = word.elapsed();
    tokio::time::timeout(secs(10), gone.lost())
        .await
        .expect("lost() fires");
    let told = word.elapsed();
    let next = waiter.await.unwrap().unwrap().expect("granted in time");
    let granted = word.elapsed();
    println!("left {left:?}, told {told:?}, granted {granted:?} after the first word");
    assert!(left < secs(1), "{left:?}");
    assert!(told < NOTICE && granted < NOTICE, "{told:?} {granted:?}");
    assert!(server.connection().exists("gone"));
    kept.unlock().await.unwrap();
    assert!(!server.connection().exists("kept"));
    next.unlock().await.unwrap();
    holder.close().await;
    other.close().await;
}

// fault: S45
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn primary_that_was_frozen_takes_no_release() {
    let set = Sentinels::start();
    let (holder, other) = (client(&set).await, client(&set).await);
    let names = ["kept", "dropped"];
    let kept = holder.lock("kept").lease(secs(60)).lock().await.unwrap();
    let dropped = holder.lock("dropped").lease(secs(60)).lock().await.unwrap();
    replicated(&set, &names).await;
    let waiters = names.map(|name| {
        let lock = other.lock(name);
        tokio::spawn(async move { lock.try_lock_for(secs(60)).await })
    });
    eventually("the waiters listen", async || {
        format!("{other:?}").contains("channels: 2")
    })
    .await;
    set.primary().freeze();
    // The release lies in the socket of the frozen primary.
    drop(dropped);
    let (server, word) = named(&set).await;
    has_left(&holder).await;
    set.primary().thaw();
    let kept = kept.unlock().await;
    let released = Instant::now();
    let late = released - word;
    assert!(late < NOTICE, "{late:?}");
    kept.unwrap();
    for waiter in waiters {
        let next = waiter.await.unwrap().unwrap().expect("granted in time");
        next.unlock().await.unwrap();
    }
    println!("granted {:?} after the release", released.elapsed());
    assert!(released.elapsed() < NOTICE, "{:?}", released.elapsed());
    assert!(!server.connection().exists("kept") && !server.connection().exists("dropped"));
    holder.close().await;
    other.close().await;
}

// fault: S45
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn primary_that_was_frozen_carries_no_transaction_to_its_end() {
    let set = Sentinels::start();
    let builder = Client::builder().url(set.url()).command_timeout(secs(20));
    let client = builder.build().await.unwrap();
    let lock = client.plain_lock("k").lease(secs(60));
    let lock = lock.release_by(ReleaseBy::Transaction);
    // Opens the connection for transactions.
    lock.lock().await.unwrap().unlock().await.unwrap();
    let guard = lock.lock().await.unwrap();
    replicated(&set, &["k"]).await;
    set.primary().freeze();
    let released = tokio::spawn(async move { guard.unlock().await });
    let (server, _) = named(&set).await;
    has_left(&client).await;
    set.primary().thaw();
    soon(released).await.unwrap().unwrap();
    assert!(!server.connection().exists("k"));
    client.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sentinel_that_is_behind_is_not_believed() {
    let set = Sentinels::start();
    if is_before_7(set.primary()) {
        return skip(
            "redis7",
            "a sentinel cannot be made to lag behind before Redis 7",
        );
    }
    let behind = set.deaf();
    let url = set.url_behind(&behind);
    let client = builder(&url).build().await.unwrap();
    let guard = client.lock("k").lease(secs(60)).lock().await.unwrap();
    replicated(&set, &["k"]).await;
    set.replace_primary();
    let (server, _) = named(&set).await;
    eventually("the old primary is left", async || {
        !is_connected_to(set.primary())
    })
    .await;
    let late = builder(&url).build().await.unwrap();
    assert_eq!(behind.primary(), set.primary().port());
    for client in [&client, &late] {
        server
            .connection()
            .command(&["CLIENT", "KILL", "TYPE", "normal"]);
        let other = client.lock("other").lock().await.unwrap();
        assert!(!is_connected_to(set.primary()) && server.connection().exists("other"));
        other.unlock().await.unwrap();
    }
    guard.unlock().await.unwrap();
    assert!(!server.connection().exists("k"));
    client.close().await;
    late.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sentinels_that_others_tell_of_are_followed_when_those_that_are_named_are_silent() {
    let set = Sentinels::start();
    let named = &set.sentinels()[2];
    let client = builder(named.url()).build().await.unwrap();
    let guard = client.lock("k").lease(secs(60)).lock().await.unwrap();
    replicated(&set, &["k"]).await;
    let told = set.sentinels()[..2].iter();
    for sentinel in told.clone() {
        eventually("it is asked too", async || {
            let clients = sentinel.connection().command(&["CLIENT", "LIST"]).text();
            let mut clients = clients.lines();
            // The others are sentinels, and whoever asks for this list.
            clients.any(|it| !it.contains(" name=sentinel-") && !it.contains(" cmd=client"))
        })
        .await;
    }
    named.freeze();
    set.replace_primary();
    eventually("the old primary is left", async || {
        !is_connected_to(set.primary())
    })
    .await;
    soon(guard.verify()).await.unwrap();
    soon(guard.unlock()).await.unwrap();
    assert!(!is_connected_to(set.primary()));
    client.close().await;
    for sentinel in told {
        eventually("none is asked by a client that was closed", async || {
            let clients = sentinel.connection().command(&["CLIENT", "LIST"]).text();
            !clients.contains(" resp=3")
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sentinels_have_users_and_passwords_of_their_own() {
    let primary = Server::builder().password("of-the-data").start();
    let sentinel = Sentinel::start(&primary, "main");
    let mut admin = sentinel.connection();
    let user = ["watcher", "on", ">of-the-sentinels", "+@all", "~*", "&*"];
    let words = ["ACL", "SETUSER"].into_iter().chain(user);
    admin.command(&words.collect::<Vec<_>>());
    admin.command(&["ACL", "SETUSER", "default", "resetpass", ">nobody-knows"]);
    let base = sentinel
        .url()
        .replace("127.0.0.1", ":of-the-data@127.0.0.1");

    let error = Client::connect(&base).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Backend);
    assert!(error.to_string().contains("sentinelPassword"), "{error}");
    // The sentinel was not sent the password of the data.
    let refused = admin.command(&["ACL", "LOG"]);
    assert_eq!(refused.array(), []);

    let login = "&sentinelUsername=watcher&sentinelPassword=of-the-sentinels";
    let client = Client::connect(base.clone() + login).await.unwrap();
    client
        .lock("k")
        .lock()
        .await
        .unwrap()
        .unlock()
        .await
        .unwrap();
    client.close().await;

    let error = Client::connect(base + "&sentinelPassword=wrong").await;
    let error = error.unwrap_err();
    assert!(error.to_string().contains("sentinelPassword"), "{error}");
    assert!(!format!("{error:?}").contains("of-the-data"), "{error:?}");
}

// fault: S43
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reentrant_lock_is_waited_for_through_a_failover() {
    waits_through_a_failover::<ReentrantLock>().await;
}

// fault: S43
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fair_lock_is_waited_for_through_a_failover() {
    waits_through_a_failover::<FairLock>().await;
}

// fault: S43
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reentrant_lock_that_a_failover_loses_is_told_of() {
    holds_through_a_failover::<ReentrantLock>().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fair_lock_that_a_failover_loses_is_told_of() {
    holds_through_a_failover::<FairLock>().await;
}
