//! Each outcome of a call, counted for each kind.

use std::any::Any;

use redlatch::stats::KindStats;
use redlatch::{
    Client, DistributedGuard, ErrorKind, FairLock, FencedLock, MultiLock, Owner, PlainLock,
    ReadLock, RedLock, ReentrantLock, SpinLock, WriteLock,
};
use redlatch_testkit::Server;

use crate::family::{Guard, Lock};
use crate::page::Page;
use crate::support::probe::{begin, kind as kind_of, millis, soon, stranger};
use crate::support::{builder, client, eventually};

/// Runs the case for each kind, with the name under which it is counted.
macro_rules! kinds {
    ($case:ident: $($kind:ident $lock:ident),* $(,)?) => {
        mod $case {
            use super::*;
            $(#[tokio::test]
            async fn $kind() {
                super::$case::<$lock>(stringify!($kind)).await;
            })*
        }
    };
}

kinds!(
    each_outcome_is_counted_once:
    reentrant ReentrantLock,
    spin SpinLock,
    fenced FencedLock,
    fair FairLock,
    plain PlainLock,
    read ReadLock,
    write WriteLock,
);
kinds!(
    what_is_passed_on_in_memory_is_told_apart:
    reentrant ReentrantLock,
    spin SpinLock,
    fenced FencedLock,
    read ReadLock,
);

/// Returns the numbers in which two snapshots differ.
fn since(before: KindStats, now: KindStats) -> Vec<(&'static str, u64)> {
    let numbers = |it: KindStats| {
        [
            ("granted", it.granted),
            ("handed_over", it.handed_over),
            ("reentered", it.reentered),
            ("busy", it.busy),
            ("timed_out", it.timed_out),
            ("failed", it.failed),
            ("cancelled", it.cancelled),
        ]
    };
    let pairs = numbers(before).into_iter().zip(numbers(now));
    pairs
        .map(|((name, before), (_, now))| (name, now - before))
        .filter(|(_, more)| *more > 0)
        .collect()
}

/// Has another client hold the lock, so that no owner gets it.
async fn blocked<L: Lock>(other: &Client, name: &str, kind: &str) -> Box<dyn Any + Send>
where
    L::Guard: 'static,
{
    match kind {
        "read" => Box::new(other.read_write_lock(name).writer().lock().await.unwrap()),
        _ => Box::new(L::of(other, name).lock().await.unwrap()),
    }
}

async fn each_outcome_is_counted_once<L: Lock>(kind: &str)
where
    L::Guard: 'static,
{
    let server = Server::start();
    let (client, page) = Page::open(builder(server.url())).await;
    let other = crate::support::client(&server).await;
    let lock = L::of(&client, "job").owned_by(&Owner::unique());
    let mut before = page.of(kind);
    assert_eq!(before, KindStats::default());
    let mut counted = |expected: &[(&str, u64)]| {
        let now = page.of(kind);
        assert_eq!(since(before, now), expected);
        before = now;
    };

    let guard = lock.lock().await.unwrap();
    assert_eq!((page.of(kind).held, page.of(kind).waiting), (1, 0));
    counted(&[("granted", 1)]);
    if L::REENTRANT {
        let second = lock.try_lock().await.unwrap().unwrap();
        let third = guard.reenter().await.unwrap();
        counted(&[("granted", 2), ("reentered", 2)]);
        assert_eq!(page.of(kind).held, 1, "one owner");
        drop((second, third));
    } else {
        assert_eq!(kind_of(guard.reenter().await), ErrorKind::Refused);
        counted(&[("failed", 1)]);
    }
    drop(guard);
    page.eventually_at_rest().await;
    eventually("the lock is free", async || {
        !lock.is_locked().await.unwrap()
    })
    .await;

    let holder = blocked::<L>(&other, "job", kind).await;
    assert!(lock.try_lock().await.unwrap().is_none());
    counted(&[("busy", 1)]);
    assert!(lock.try_lock_for(millis(50)).await.unwrap().is_none());
    counted(&[("timed_out", 1)]);
    let waiting = begin(lock.lock());
    assert_eq!(page.of(kind).waiting, 1);
    drop(waiting);
    assert_eq!(page.of(kind).waiting, 0);
    counted(&[("cancelled", 1)]);
    drop(holder);

    server.connection().command(&["RPUSH", "list", "x"]);
    let wrong = L::of(&client, "list");
    assert_eq!(kind_of(wrong.lock().await), ErrorKind::WrongKind);
    counted(&[("failed", 1)]);
    client.close().await;
    assert_eq!(kind_of(lock.lock().await), ErrorKind::Closed);
    counted(&[("failed", 1)]);
    page.eventually_at_rest().await;
    assert_eq!(page.stats().lost.total(), 0);
    let others = page.stats().total();
    assert_eq!(others, page.of(kind), "no other kind has counted anything");
}

async fn what_is_passed_on_in_memory_is_told_apart<L: Lock>(kind: &str)
where
    L::Guard: 'static,
{
    let server = Server::start();
    let (client, page) = Page::open(builder(server.url())).await;
    let lock = L::of(&client, "job");
    let mut guard = stranger(&lock).lock().await.unwrap();
    if kind == "read" {
        // It joins the other reader.
        let next = soon(stranger(&lock).lock()).await.unwrap();
        assert_eq!(page.of(kind).held, 2);
        drop(next);
    } else {
        // The first hold of a fenced lock has no token for another one, and is not passed on.
        for _ in 0..=u64::from(kind == "fenced") {
            let next = stranger(&lock);
            let next = tokio::spawn(async move { next.lock().await });
            eventually("the next waits", async || page.of(kind).waiting == 1).await;
            guard.unlock().await.unwrap();
            guard = soon(next).await.unwrap().unwrap();
            assert_eq!(page.of(kind).held, 1);
        }
    }
    let numbers = page.of(kind);
    assert_eq!(numbers.handed_over, 1);
    assert_eq!(numbers.granted, 2 + u64::from(kind == "fenced"));
    guard.unlock().await.unwrap();
    page.eventually_at_rest().await;
}

#[tokio::test]
async fn members_of_a_set_count_once_each_by_their_own_kinds() {
    let server = Server::start();
    let (client, page) = Page::open(builder(server.url())).await;
    let other = client_of(&server).await;
    let set = MultiLock::new([
        client.lock("{k}:1").into(),
        client.fenced_lock("{k}:2").into(),
    ] as [redlatch::Member; 2]);
    let guard = set.lock().await.unwrap();
    let stats = page.stats();
    assert_eq!((stats.reentrant.granted, stats.fenced.granted), (1, 1));
    assert_eq!((stats.reentrant.held, stats.fenced.held), (1, 1));
    guard.unlock().await.unwrap();
    page.eventually_at_rest().await;
    let holder = other.fenced_lock("{k}:2").lock().await.unwrap();
    assert!(set.try_lock().await.unwrap().is_none());
    assert!(set.try_lock_for(millis(50)).await.unwrap().is_none());
    let stats = page.stats();
    for kind in [stats.reentrant, stats.fenced] {
        assert_eq!(
            (kind.granted, kind.busy, kind.timed_out),
            (1, 1, 1),
            "{stats:?}"
        );
    }
    let waiting = begin(set.lock());
    drop(waiting);
    assert_eq!(page.of("fenced").cancelled, 1);
    drop(holder);
    page.eventually_at_rest().await;
}

#[tokio::test]
async fn majority_counts_once_and_its_members_are_held() {
    let servers: Vec<_> = (0..3).map(|_| Server::start()).collect();
    let (first, page) = Page::open(builder(servers[0].url()).trust_fresh_servers(true)).await;
    let mut clients = vec![first];
    for server in &servers[1..] {
        let client = builder(server.url())
            .trust_fresh_servers(true)
            .build()
            .await;
        clients.push(client.unwrap());
    }
    let red = |clients: &[Client]| RedLock::new(clients.iter().map(|client| client.lock("job")));
    let guard = red(&clients).lock().await.unwrap();
    eventually("the member here is held", async || {
        page.of("reentrant").held == 1
    })
    .await;
    assert_eq!(page.of("red").granted, 1);
    assert_eq!(
        page.of("reentrant").granted,
        0,
        "no call for a member alone"
    );
    let stranger = red(&clients).owned_by(&Owner::unique());
    assert!(stranger.try_lock().await.unwrap().is_none());
    assert_eq!(page.of("red").busy, 1);
    guard.unlock().await.unwrap();
    page.eventually_at_rest().await;
}

#[tokio::test]
async fn permits_and_latches_are_counted() {
    let server = Server::start();
    let (client, page) = Page::open(builder(server.url())).await;
    let semaphore = client.semaphore("seats");
    assert!(semaphore.try_set_permits(3).await.unwrap());
    let two = semaphore.acquire_many(2).await.unwrap();
    assert!(semaphore.try_acquire_many(2).await.unwrap().is_none());
    assert!(
        semaphore
            .try_acquire_many_for(2, millis(50))
            .await
            .unwrap()
            .is_none()
    );
    drop(begin(semaphore.acquire_many(2)));
    let numbers = page.of("semaphore");
    assert_eq!(numbers.held, 2, "permits, not calls");
    assert_eq!(
        since(KindStats::default(), numbers),
        [
            ("granted", 1),
            ("busy", 1),
            ("timed_out", 1),
            ("cancelled", 1)
        ]
    );
    two.release().await.unwrap();
    page.eventually_at_rest().await;
    semaphore.acquire().await.unwrap().forget();
    page.eventually_at_rest().await;

    let leased = client
        .expirable_semaphore("leases")
        .lease(crate::support::probe::secs(5));
    assert!(leased.try_set_permits(1).await.unwrap());
    let one = leased.acquire().await.unwrap();
    assert_eq!(page.of("expirable_semaphore").held, 1);
    let id = one.id();
    assert!(
        client_of(&server)
            .await
            .expirable_semaphore("leases")
            .release_permit(&id)
            .await
            .unwrap()
    );
    assert_eq!(
        page.of("expirable_semaphore").held,
        1,
        "nobody has told this client"
    );
    drop(one);
    page.eventually_at_rest().await;

    let latch = client.latch("parts");
    assert!(latch.try_set_count(1).await.unwrap());
    assert!(!latch.wait_for(millis(50)).await.unwrap());
    drop(begin(latch.wait()));
    latch.count_down().await.unwrap();
    latch.wait().await.unwrap();
    assert_eq!(
        since(KindStats::default(), page.of("latch")),
        [("granted", 1), ("timed_out", 1), ("cancelled", 1)]
    );
    page.eventually_at_rest().await;
}

async fn client_of(server: &Server) -> Client {
    client(server).await
}
