//! Acquisitions that count only once replicas have them, with real replicas that hang, lag and take over.

use std::time::{Duration, Instant};

use crate::family::Lock;
use crate::support::polls::Polls;
use crate::support::probe::{
    acquiring, calls_of, eventually_waiting, kind, reset_calls, secs, soon,
};
use crate::support::scene::{Scene, patient};
use crate::support::{builder, eventually, eventually_idle};
use futures_util::future::try_join_all;
use redlatch::config::ReleaseBy;
use redlatch::{
    Client, DistributedGuard, Error, ErrorKind, FairLock, FencedLock, LossReason, MultiLock, Owner,
    PlainLock, ReadLock, RedLock, ReentrantLock, SpinLock, WriteLock,
};
use redlatch_testkit::{Cluster, Sentinels, Server, skip};

/// Longer than a replica that lives needs, and than any test waits for one that hangs.
const LONG: Duration = Duration::from_secs(60);
/// What a test waits for in vain.
const BRIEF: Duration = Duration::from_millis(100);

/// A primary and its replica.
fn pair() -> (Server, Server) {
    let primary = Server::start();
    let replica = Server::builder().replica_of(primary.port()).start();
    (primary, replica)
}

async fn client(primary: &Server, replicas: u32, within: Duration) -> Client {
    let builder = builder(primary.url()).command_timeout(secs(2));
    let builder = builder.min_replicas(replicas, within);
    builder.trust_fresh_servers(true).build().await.unwrap()
}

/// A primary, a replica that hangs from here on, and a client that has had a lock before.
async fn frozen() -> (Server, Server, Client) {
    let (primary, replica) = pair();
    let client = client(&primary, 1, LONG).await;
    let guard = client.lock("k").lock().await.unwrap();
    guard.unlock().await.unwrap();
    replica.freeze();
    (primary, replica, client)
}

/// Waits until the server has begun to wait for its replicas: what is granted from now on is behind that.
async fn eventually_awaited(primary: &Server) {
    let mut probe = primary.connection();
    eventually("it waits", async || {
        let clients = probe.command(&["INFO", "clients"]).text();
        clients.contains("blocked_clients:1\r")
    })
    .await;
}

/// Checks that a call failed since replicas were missing, and says how many had the lock.
#[track_caller]
fn is_short(failed: Result<impl Sized, Error>, had: &str) {
    let error = failed.err().expect("too few replicas");
    assert_eq!(error.kind(), ErrorKind::Backend, "{error}");
    assert!(error.to_string().contains(had), "{error}");
}

async fn wants_a_replica<L: Lock>() {
    let (primary, replica) = pair();
    let client = client(&primary, 1, LONG).await;
    let lock = L::of(&client, "k");
    let guard = lock.lock().await.unwrap();
    assert!(replica.connection().exists("k"), "the replica had it first");
    guard.unlock().await.unwrap();

    // What it has asked before, the replica has acknowledged: only what it asks now can be missing.
    let brief = self::client(&primary, 1, BRIEF).await;
    let lock = L::of(&brief, "k");
    eventually("the replica has it", async || lock.try_lock().await.is_ok()).await;
    let mut probe = primary.connection();
    probe.command(&["SET", "any", "", "PX", "1"]);
    assert_eq!(probe.command(&["WAIT", "1", "60000"]).int(), 1);
    replica.freeze();
    is_short(lock.try_lock().await, "0 of 1 replicas");
    assert!(!lock.is_locked().await.unwrap(), "given back");
    is_short(lock.lock().await, "0 of 1 replicas");
    is_short(lock.try_lock_for(LONG).await, "0 of 1 replicas");
    assert!(!lock.is_locked().await.unwrap(), "given back");
    eventually_idle(&brief).await;

    replica.thaw();
    eventually("the replica has caught up", async || {
        lock.try_lock().await.is_ok()
    })
    .await;
    eventually_idle(&brief).await;
}

macro_rules! of_each_kind {
    ($($name:ident: $kind:ty,)*) => {$(
        #[tokio::test(flavor = "multi_thread")]
        async fn $name() {
            wants_a_replica::<$kind>().await;
        }
    )*};
}

of_each_kind! {
    reentrant_lock_counts_once_a_replica_has_it: ReentrantLock,
    fair_lock_counts_once_a_replica_has_it: FairLock,
    fenced_lock_counts_once_a_replica_has_it: FencedLock,
    spin_lock_counts_once_a_replica_has_it: SpinLock,
    plain_lock_counts_once_a_replica_has_it: PlainLock,
    read_lock_counts_once_a_replica_has_it: ReadLock,
    write_lock_counts_once_a_replica_has_it: WriteLock,
}

#[tokio::test]
async fn set_majority_and_job_count_once_replicas_have_them() {
    let (primary, replica) = pair();
    let set = |client: &Client| MultiLock::new([client.lock("a"), client.lock("b")]);
    let red = |client: &Client| RedLock::new([client.lock("c")]);
    let patient = client(&primary, 1, LONG).await;
    let guard = set(&patient).lock().await.unwrap();
    let both = ["a", "b"].map(|key| replica.connection().exists(key));
    assert_eq!(both, [true; 2], "the replica had them first");
    guard.unlock().await.unwrap();
    let guard = red(&patient).lock().await.unwrap();
    assert!(replica.connection().exists("c"));
    guard.unlock().await.unwrap();

    let brief = client(&primary, 1, BRIEF).await;
    replica.freeze();
    is_short(set(&brief).try_lock().await, "0 of 1 replicas");
    assert_eq!(kind(red(&brief).try_lock().await), ErrorKind::Quorum);
    let job = brief.job("job", LONG);
    let ran = job.execute(async |_| -> Result<(), Error> { unreachable!("it does not run") });
    is_short(ran.await, "0 of 1 replicas");
    eventually_idle(&brief).await;
    for key in ["a", "b", "c", "job"] {
        assert!(!primary.connection().exists(key), "{key} was given back");
    }
}

// fault: S44
#[tokio::test]
async fn error_says_how_many_replicas_had_the_lock() {
    let (primary, replica) = pair();
    let lock = client(&primary, 2, BRIEF).await.lock("k");
    let had = async |count: &str| {
        let error = lock.lock().await.err().map(|error| error.to_string());
        error.is_some_and(|error| error.contains(count))
    };
    eventually("one has it", async || had("1 of 2 replicas").await).await;
    let second = Server::builder().replica_of(primary.port()).start();
    eventually("both have it", async || lock.try_lock().await.is_ok()).await;
    second.freeze();
    eventually("one has it", async || had("1 of 2 replicas").await).await;
    replica.freeze();
    assert!(had("0 of 2 replicas").await);
}

#[tokio::test(flavor = "multi_thread")]
async fn dropped_wait_for_replicas_leaves_nothing_held() {
    let (primary, _replica) = pair();
    let scene = Scene::around(primary, |builder| patient(builder).min_replicas(1, LONG)).await;
    Polls::sweep(&scene.proxy, "lock", async |name, polls| {
        let lock = scene.client.lock(name);
        drop(polls.run(lock.lock()).await.map(Result::unwrap));
        scene.settles_at(name, 0).await;
        scene.lets_the_next_in(name).await;
    })
    .await;
    scene.ends_clean().await;
}

// fault: S44
#[tokio::test(flavor = "multi_thread")]
async fn dropped_wait_for_a_replica_that_hangs_leaves_nothing_held() {
    let (primary, replica) = pair();
    let client = client(&primary, 1, LONG).await;
    let lock = client.lock("k");
    lock.lock().await.unwrap().unlock().await.unwrap();
    replica.freeze();
    let waiting = tokio::spawn(async move { lock.lock().await.map(drop) });
    eventually("it is granted", async || primary.connection().exists("k")).await;
    waiting.abort();
    eventually("it is given back", async || {
        !primary.connection().exists("k")
    })
    .await;
    eventually_idle(&client).await;
    client.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn many_acquisitions_share_one_wait_and_hold_up_nobody() {
    let (primary, replica) = pair();
    let client = client(&primary, 1, LONG).await;
    let held = client.lock("held").lock().await.unwrap();
    let mut probe = primary.connection();
    replica.freeze();
    reset_calls(&mut probe);
    let take = |n: usize| {
        let lock = client.lock(format!("k{n}"));
        tokio::spawn(async move { lock.lock().await })
    };
    let first = take(0);
    eventually_awaited(&primary).await;
    let others: Vec<_> = (1..250).map(take).collect();
    eventually("all are granted", async || {
        client.stats().reentrant.held == 251
    })
    .await;

    // All else goes on.
    soon(client.ping()).await.unwrap();
    assert!(
        soon(client.lock("held").owned_by(&Owner::unique()).try_lock())
            .await
            .unwrap()
            .is_none()
    );
    soon(held.verify()).await.unwrap();
    soon(held.unlock()).await.unwrap();

    replica.thaw();
    let guards = try_join_all([first].into_iter().chain(others))
        .await
        .unwrap();
    // One for the first, one for all others, or a few if some of them were a moment late.
    let waits = calls_of(&mut probe, "wait");
    assert!((2..5).contains(&waits), "{waits}");
    drop(guards);
    eventually_idle(&client).await;
}

#[tokio::test]
async fn what_replicas_have_is_not_waited_for_again() {
    let (primary, replica) = pair();
    let client = client(&primary, 1, LONG).await;
    let lock = client.lock("k");
    let outer = lock.lock().await.unwrap();
    let passed = client.lock("l").lock().await.unwrap();
    replica.freeze();
    let inner = soon(outer.reenter()).await.unwrap();
    soon(lock.lock()).await.unwrap().unlock().await.unwrap();
    let adopted = soon(lock.clone().owned_by(&inner.detach()).adopt())
        .await
        .unwrap();
    adopted.expect("it was left").unlock().await.unwrap();
    outer.unlock().await.unwrap();

    // In memory, to a call that waits.
    let next = acquiring(&client.lock("l"));
    eventually_waiting(&client, 1).await;
    let (unlocked, next) = soon(async { tokio::join!(passed.unlock(), next) }).await;
    unlocked.unwrap();
    next.unwrap().unwrap().unlock().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn level_more_of_a_lock_that_no_replica_has_waits_too() {
    let (primary, replica, client) = frozen().await;
    let owner = Owner::unique();
    let take = || {
        let lock = client.lock("k").owned_by(&owner);
        tokio::spawn(async move { lock.lock().await })
    };
    let first = take();
    eventually("it is granted", async || primary.connection().exists("k")).await;
    let second = take();
    eventually("it has a level more", async || {
        let counts = primary.connection().hgetall("k");
        counts.iter().any(|(_, count)| count == "2")
    })
    .await;
    assert!(!first.is_finished() && !second.is_finished());
    replica.thaw();
    for taken in [first, second] {
        soon(taken).await.unwrap().unwrap().unlock().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn part_of_a_majority_that_its_owner_has_already_waits_too() {
    let (primary, replica, client) = frozen().await;
    let owner = Owner::unique();
    let lock = client.lock("k").owned_by(&owner);
    let first = tokio::spawn(async move { lock.lock().await });
    eventually("it is granted", async || primary.connection().exists("k")).await;
    let red = RedLock::new([client.lock("k")]).owned_by(&owner);
    let mut second = tokio::spawn(async move { red.lock().await });
    eventually("it has a level more", async || {
        let counts = primary.connection().hgetall("k");
        counts.iter().any(|(_, count)| count == "2")
    })
    .await;
    let early = tokio::time::timeout(BRIEF, &mut second).await;
    assert!(early.is_err(), "no replica has it");
    replica.thaw();
    soon(first).await.unwrap().unwrap().unlock().await.unwrap();
    soon(second).await.unwrap().unwrap().unlock().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn set_whose_lock_goes_while_replicas_of_another_are_waited_for_is_lost() {
    let (primary, replica, client) = frozen().await;
    let server = Server::start();
    let free = builder(server.url()).build().await.unwrap();
    let set = MultiLock::new([free.lock("a"), client.lock("b")]);
    let taking = tokio::spawn(async move { set.lock().await });
    eventually_awaited(&primary).await;
    assert!(soon(free.lock("a").force_unlock()).await.unwrap());
    replica.thaw();
    let error = soon(taking).await.unwrap().unwrap_err();
    assert_eq!(error.loss_reason(), Some(LossReason::Forced), "{error}");
    eventually_idle(&client).await;
    assert!(!primary.connection().exists("b"), "it was given back");
}

#[tokio::test(flavor = "multi_thread")]
async fn lock_that_goes_while_replicas_are_waited_for_is_lost() {
    let (primary, replica, client) = frozen().await;
    let mut probe = primary.connection();
    let take = |name: &str| {
        let lock = client.lock(name).lease(LONG);
        tokio::spawn(async move { lock.lock().await })
    };
    let first = take("k");
    eventually_awaited(&primary).await;
    let second = take("l");
    eventually("it is granted", async || probe.exists("l")).await;
    primary.connection().command(&["DEL", "l"]);
    replica.thaw();
    soon(first).await.unwrap().unwrap().unlock().await.unwrap();
    let error = soon(second).await.unwrap().unwrap_err();
    assert_eq!(error.loss_reason(), Some(LossReason::Gone), "{error}");
    eventually_idle(&client).await;
}

#[tokio::test]
async fn script_that_the_server_forgot_is_sent_again() {
    let (primary, _replica) = pair();
    let client = client(&primary, 1, LONG).await;
    for _ in 0..3 {
        let guard = client.lock("k").lock().await.unwrap();
        guard.unlock().await.unwrap();
        primary.connection().command(&["SCRIPT", "FLUSH"]);
    }
}

#[tokio::test]
async fn missing_right_to_wait_is_named_and_the_lock_given_back() {
    let (primary, _replica) = pair();
    let mut admin = primary.connection();
    admin.command(&["ACL", "SETUSER", "default", "-wait"]);
    let client = client(&primary, 1, LONG).await;
    let error = client.lock("k").lock().await.unwrap_err();
    assert!(error.to_string().contains("+wait"), "{error}");
    assert!(!admin.exists("k"));
}

#[tokio::test]
async fn client_that_asks_for_no_replicas_waits_for_none() {
    let (primary, _replica) = pair();
    let client = builder(primary.url()).build().await.unwrap();
    let mut probe = primary.connection();
    reset_calls(&mut probe);
    let guards = [client.lock("a").lock().await, client.lock("b").lock().await];
    for guard in guards {
        guard.unwrap().unlock().await.unwrap();
    }
    assert_eq!(calls_of(&mut probe, "wait"), 0);
    let connections = probe.command(&["CLIENT", "LIST"]).text();
    assert_eq!(connections.matches(client.id()).count(), 2, "{connections}");
}

#[tokio::test]
async fn settings_that_cannot_work_are_refused() {
    let (primary, _replica) = pair();
    for (replicas, within) in [(0, LONG), (1, Duration::ZERO), (1, Duration::MAX)] {
        let built = builder(primary.url())
            .min_replicas(replicas, within)
            .build();
        assert_eq!(kind(built.await), ErrorKind::InvalidInput);
    }
    let client = client(&primary, 1, LONG).await;
    let plain = client.plain_lock("k").release_by(ReleaseBy::Transaction);
    assert_eq!(kind(plain.lock().await), ErrorKind::InvalidInput);
}

#[tokio::test]
async fn primary_that_hangs_while_replicas_are_waited_for_ends_the_call() {
    let (primary, replica) = pair();
    let client = client(&primary, 1, secs(1)).await;
    let lock = client.lock("k");
    eventually("the replica has it", async || lock.try_lock().await.is_ok()).await;
    replica.freeze();
    let waiting = tokio::spawn(async move { lock.lock().await });
    eventually("it is granted", async || primary.connection().exists("k")).await;
    primary.freeze();
    let frozen = Instant::now();
    assert!(soon(waiting).await.unwrap().is_err());
    // The release that the call owes is not waited for.
    assert!(frozen.elapsed() < secs(4), "{:?}", frozen.elapsed());
    primary.thaw();
    eventually("it is given back", async || {
        !primary.connection().exists("k")
    })
    .await;
}

// fault: S43
#[tokio::test(flavor = "multi_thread")]
async fn lock_that_all_replicas_have_outlives_a_failover() {
    let set = Sentinels::start();
    let connect = async |replicas| {
        let builder = builder(set.url()).min_replicas(replicas, secs(10));
        builder.build().await.unwrap()
    };
    let (both, one) = (connect(2).await, connect(1).await);
    let held = try_join_all((0..20).map(|n| {
        let lock = both.lock(format!("k{n}"));
        async move { lock.lock().await }
    }));
    let held = held.await.unwrap();
    // Without a moment for replication.
    set.primary().kill();
    let end = Instant::now() + secs(30);
    while set.promoted().is_none() {
        assert!(Instant::now() < end, "no failover");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    for guard in &held {
        eventually("the hold stands", async || guard.verify().await.is_ok()).await;
    }
    let lock = one.lock("l");
    eventually("the new primary has a replica", async || {
        lock.try_lock().await.is_ok()
    })
    .await;
    is_short(
        both.lock("l").try_lock_for(secs(10)).await,
        "1 of 2 replicas",
    );
    for guard in held {
        guard.unlock().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn replicas_of_the_server_that_has_the_slot_count() {
    let cluster = Cluster::start();
    let replicas: Vec<_> = cluster
        .nodes()
        .iter()
        .map(|node| cluster.replica_of(node))
        .collect();
    let builder = patient(builder(cluster.url())).min_replicas(1, LONG);
    let client = builder.build().await.unwrap();
    let names: Vec<_> = (0..12).map(|n| format!("k{n}")).collect();
    let guards = try_join_all(names.iter().map(|name| {
        let lock = client.lock(name);
        async move { lock.lock().await }
    }));
    for guard in guards.await.unwrap() {
        guard.unlock().await.unwrap();
    }

    let info = cluster.nodes()[0].connection().command(&["INFO", "server"]);
    if info.text().contains("valkey_version:") {
        return skip(
            "lone-move",
            "Valkey moves no slot of a server whose replica hangs",
        );
    }
    // A slot that moves between the grant and the question is followed.
    let at = |name: &str| {
        let port = cluster.owner(name).0.port();
        cluster
            .nodes()
            .iter()
            .position(|node| node.port() == port)
            .unwrap()
    };
    let name = &names[0];
    let from = at(name);
    let other = names
        .iter()
        .skip(1)
        .find(|other| at(other) == from)
        .unwrap();
    replicas[from].freeze();
    let take = |name: &str| {
        let lock = client.lock(name);
        tokio::spawn(async move { lock.lock().await })
    };
    let first = take(other);
    let here = cluster.owner(name).0;
    eventually("it waits", async || {
        here.connection()
            .command(&["CLIENT", "LIST"])
            .text()
            .contains("cmd=wait")
    })
    .await;
    let second = take(name);
    eventually("it is granted", async || here.connection().exists(name)).await;
    let to = &cluster.nodes()[(from + 1) % 3];
    cluster.move_slot(cluster.slot(name), here, to);
    replicas[from].thaw();
    for taken in [first, second] {
        soon(taken).await.unwrap().unwrap().unlock().await.unwrap();
    }
}
