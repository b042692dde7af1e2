//! The behavior that all kinds of lock have in common: one table of cases, run for each kind.
#![allow(
    clippy::expect_used,
    clippy::unwrap_used,
    reason = "a test fails by panicking"
)]
#![allow(unreachable_pub, reason = "shared with other test programs")]

#[path = "../support/family.rs"]
mod family;
mod hold;
#[path = "../support/mod.rs"]
mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

#[cfg(feature = "memory")]
use family::Told;
use family::{Lock, Scriptless};
use hold::{
    crashed_holder_frees_the_lock_within_its_lease, extended_lease_lasts_longer,
    fixed_lease_ends_and_the_next_gets_in, forced_unlock_ends_the_hold,
    hold_is_lost_when_its_client_closes, level_of_a_named_owner_is_adopted_and_unlocked_elsewhere,
    level_that_was_left_and_unlocked_elsewhere_is_not_counted_here,
    level_that_was_left_is_found_wherever_it_is_by_now,
    levels_that_are_adopted_to_and_fro_are_counted_once, lost_key_is_noticed_by_renewal_and_verify,
    owner_gets_in_again_and_nobody_else, renewed_lease_outlives_many_terms,
    unlock_by_one_who_holds_nothing_changes_nothing,
};
use redlatch::{
    Client, DistributedGuard, Error, ErrorKind, FairLock, FencedLock, Owner, PlainLock, ReadLock,
    ReentrantLock, SpinLock, WriteLock,
};
use redlatch_testkit::{Connection, Proxy, Reply, Server};
use support::place::Place;
use support::polls::Polls;
use support::probe::{begin, kind, millis, secs, soon, stranger};
use support::scene::patient;
use support::{builder, eventually, eventually_idle};

const NAME: &str = "job";
/// What a kind may leave next to a free lock: the last token of a fenced lock.
const KEPT: &str = "redisson_lock_token:";

/// Runs these cases for every kind, each at a place of its own. The read lock, which several owners hold at the same
/// time, gets only the cases that do not need it to be held alone.
macro_rules! table {
    ($place:expr => $cases:tt, beside others $beside:tt) => {
        table!($place, Scriptless => $cases, beside others $beside);
    };
    ($place:expr, $scriptless:ident => $cases:tt, beside others $beside:tt) => {
        use super::*;
        table!(@kind reentrant ReentrantLock, $place, $cases);
        table!(@kind fenced FencedLock, $place, $cases);
        table!(@kind fair FairLock, $place, $cases);
        table!(@kind spin SpinLock, $place, $cases);
        table!(@kind plain PlainLock, $place, $cases);
        table!(@kind scriptless $scriptless, $place, $cases);
        table!(@kind write WriteLock, $place, $cases);
        table!(@kind read ReadLock, $place, $beside);
    };
    (@kind $kind:ident $lock:ident, $place:expr, [$($case:ident),* $(,)?]) => {
        mod $kind {
            use super::*;
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                crate::$case::<$lock>($place(<$lock>::server, <$lock>::SCRIPTS)).await;
            })*
        }
    };
}

macro_rules! everywhere {
    (all: $($case:ident),*; alone: $($alone:ident),* $(,)?) => {
        mod single {
            table!(
                |server: fn() -> Server, _| Place::single(server()) =>
                [$($case,)* $($alone),*], beside others [$($case),*]
            );
        }
        #[cfg(feature = "memory")]
        mod memory {
            table!(
                |_, _| Place::memory(), Told =>
                [$($case,)* $($alone),*], beside others [$($case),*]
            );
        }
        mod cluster {
            table!(
                |_, scripts| Place::cluster(scripts) =>
                [$($case,)* $($alone),*], beside others [$($case),*]
            );
        }
        mod sentinels {
            table!(
                |_, _| Place::sentinels() =>
                [$($case,)* $($alone),*], beside others [$($case),*]
            );
        }
    };
}

everywhere!(
    all:
    unlock_by_one_who_holds_nothing_changes_nothing,
    level_of_a_named_owner_is_adopted_and_unlocked_elsewhere,
    level_that_was_left_and_unlocked_elsewhere_is_not_counted_here,
    level_that_was_left_is_found_wherever_it_is_by_now,
    levels_that_are_adopted_to_and_fro_are_counted_once,
    forced_unlock_ends_the_hold,
    extended_lease_lasts_longer,
    lost_key_is_noticed_by_renewal_and_verify,
    hold_is_lost_when_its_client_closes,
    other_shapes_are_the_wrong_kind_and_stay_untouched;
    alone:
    owner_gets_in_again_and_nobody_else,
    wait_ends_at_its_limit,
    fixed_lease_ends_and_the_next_gets_in,
    renewed_lease_outlives_many_terms,
    crashed_holder_frees_the_lock_within_its_lease,
    waiter_elsewhere_gets_in_after_the_unlock,
    waiters_here_get_in_one_after_the_other,
    tasks_of_two_clients_never_meet_inside,
);

/// By clients that connect as a client of fred does. That decides where and as whom, and nothing later: so these are the
/// cases in which a kind sends most of what it sends, and hears of a release.
#[cfg(feature = "fred-10")]
mod fred {
    macro_rules! as_fred {
        ($module:ident: $place:expr) => {
            mod $module {
                table!(
                    $place =>
                    [
                        lost_key_is_noticed_by_renewal_and_verify,
                        waiter_elsewhere_gets_in_after_the_unlock,
                    ],
                    beside others [lost_key_is_noticed_by_renewal_and_verify]
                );
            }
        };
    }
    use super::*;
    as_fred!(single: |server: fn() -> Server, _| Place::fred_single(server()));
    as_fred!(tls: |_, scripts| Place::fred_tls(scripts));
    as_fred!(cluster: |_, scripts| Place::fred_cluster(scripts));
    as_fred!(sentinels: |_, _| Place::fred_sentinels());
}

macro_rules! proxied {
    ($($case:ident),* $(,)?) => {
        mod proxied {
            table!(
                |server: fn() -> Server, _| Place::single(server()) =>
                [$($case),*], beside others [$($case),*]
            );
        }
        #[cfg(feature = "memory")]
        mod proxied_memory {
            table!(|_, _| Place::memory(), Told => [$($case),*], beside others [$($case),*]);
        }
    };
}

proxied!(
    dropped_acquisition_leaves_nothing_held,
    dropped_unlock_gives_the_lock_back,
    acquisition_without_its_reply_is_granted_once,
    release_without_its_reply_is_a_success,
);

/// A place with a proxy in front of its server.
struct Proxied {
    place: Place,
    proxy: Proxy,
    /// Connects through the proxy.
    client: Client,
    /// Connects directly.
    other: Client,
}

impl Proxied {
    async fn open(place: Place) -> Self {
        let proxy = Proxy::start(place.port()).await;
        let mut probe = place.probe();
        for script in redlatch_testkit::scripts() {
            // Requests then name the scripts by their hash.
            probe.command(&["SCRIPT", "LOAD", script]);
        }
        Self {
            client: patient(builder(proxy.url())).build().await.unwrap(),
            other: patient(place.builder()).build().await.unwrap(),
            proxy,
            place,
        }
    }

    /// Waits until nothing is left, neither on the server nor in the clients.
    async fn nothing_left(&self) {
        for client in [&self.client, &self.other] {
            eventually_idle(client).await;
        }
        let mut probe = self.place.probe();
        eventually("no channel is left", async || probe.channels().is_empty()).await;
        eventually("no key is left", async || {
            probe.keys().iter().all(|key| key.starts_with(KEPT))
        })
        .await;
    }
}

async fn wait_ends_at_its_limit<L: Lock>(place: Place) {
    let (client, other) = (place.client().await, place.client().await);
    let guard = L::of(&other, place.name()).lock().await.unwrap();
    let wait = millis(300);
    let started = Instant::now();
    let none = stranger(&L::of(&client, place.name()))
        .try_lock_for(wait)
        .await;
    assert!(none.unwrap().is_none());
    let took = started.elapsed();
    // The promised slack is one command timeout.
    assert!(took >= wait && took < wait + secs(1), "{took:?}");
    guard.unlock().await.unwrap();
    place.nothing_left([&client, &other]).await;
}

/// Checks that the next owner gets the lock, long before a lease could end.
async fn next_gets_in<L: Lock>(scene: &Proxied, name: &str) {
    let next = L::of(&scene.other, name).try_lock_for(secs(10)).await;
    next.unwrap().expect("free").unlock().await.unwrap();
}

// fault: S54
async fn dropped_acquisition_leaves_nothing_held<L: Lock>(place: Place) {
    let scene = Proxied::open(place).await;
    for verb in ["lock", "try_lock", "try_lock_for", "try_run"] {
        Polls::sweep(&scene.proxy, verb, async |name, polls| {
            let lock = L::of(&scene.client, name);
            let guard = async {
                match verb {
                    "lock" => lock.lock().await.map(Some),
                    "try_lock" => lock.try_lock().await,
                    "try_run" => {
                        let work = async {
                            tokio::task::yield_now().await;
                            Ok::<_, Error>(())
                        };
                        lock.try_run(work).await.map(|_| None)
                    }
                    _ => lock.try_lock_for(secs(60)).await,
                }
            };
            drop(polls.run(guard).await);
            next_gets_in::<L>(&scene, name).await;
        })
        .await;
    }
    scene.nothing_left().await;
}

async fn dropped_unlock_gives_the_lock_back<L: Lock>(place: Place) {
    let scene = Proxied::open(place).await;
    Polls::sweep(&scene.proxy, "unlock", async |name, polls| {
        let guard = L::of(&scene.client, name).lock().await.unwrap();
        drop(polls.run(guard.unlock()).await);
        next_gets_in::<L>(&scene, name).await;
    })
    .await;
    scene.nothing_left().await;
}

/// Runs `call` with the reply to this request cut off, and checks that the request was sent.
async fn unanswered<T>(scene: &Proxied, request: String, call: impl Future<Output = T>) -> T {
    scene.proxy.cut_reply_to(request.clone());
    let output = call.await;
    assert!(!scene.proxy.cut_reply_armed(), "not sent: {request}");
    output
}

// fault: S21
async fn acquisition_without_its_reply_is_granted_once<L: Lock>(place: Place) {
    let scene = Proxied::open(place).await;
    let lock = L::of(&scene.client, NAME).owned_by(&Owner::unique());
    for _ in 0..20 {
        let guard = unanswered(&scene, L::acquire(), lock.lock()).await.unwrap();
        assert_eq!(lock.hold_count().await.unwrap(), 1);
        guard.verify().await.unwrap();
        guard.unlock().await.unwrap();
        assert!(!lock.is_locked().await.unwrap());
    }
    scene.nothing_left().await;
}

// fault: S22
async fn release_without_its_reply_is_a_success<L: Lock>(place: Place) {
    let scene = Proxied::open(place).await;
    let lock = L::of(&scene.client, NAME).owned_by(&Owner::unique());
    for _ in 0..20 {
        let guard = lock.lock().await.unwrap();
        unanswered(&scene, L::release(), guard.unlock())
            .await
            .unwrap();
        assert!(!lock.is_locked().await.unwrap());
    }
    scene.nothing_left().await;
}

async fn waiter_elsewhere_gets_in_after_the_unlock<L: Lock>(place: Place) {
    let connect = async || patient(place.builder()).build().await.unwrap();
    let (client, other) = (connect().await, connect().await);
    let guard = L::of(&client, place.name()).lock().await.unwrap();
    let lock = L::of(&other, place.name());
    let waiter = tokio::spawn(async move { lock.lock().await });
    eventually("somebody waits", async || {
        format!("{other:?}").contains("waiting: 1,")
    })
    .await;
    guard.unlock().await.unwrap();
    // The leases and parks of these clients are a minute long.
    let next = soon(waiter).await.unwrap().unwrap();
    next.unlock().await.unwrap();
    place.nothing_left([&client, &other]).await;
}

async fn waiters_here_get_in_one_after_the_other<L: Lock>(place: Place) {
    let client = place.client().await;
    let lock = L::of(&client, place.name());
    let guard = lock.lock().await.unwrap();
    let (sender, mut order) = tokio::sync::mpsc::unbounded_channel();
    let mut waiters = Vec::new();
    for number in 0..8 {
        let (lock, sender) = (stranger(&lock), sender.clone());
        // One poll puts the call in the queue.
        waiters.push(tokio::spawn(begin(async move {
            let guard = lock.lock().await.unwrap();
            sender.send(number).unwrap();
            guard.unlock().await.unwrap();
        })));
    }
    guard.unlock().await.unwrap();
    for waiter in waiters {
        soon(waiter).await.unwrap();
    }
    let mut served = Vec::new();
    while let Ok(number) = order.try_recv() {
        served.push(number);
    }
    assert_eq!(served, (0..8).collect::<Vec<_>>());
    place.nothing_left([&client]).await;
}

async fn tasks_of_two_clients_never_meet_inside<L: Lock>(place: Place) {
    const SECTIONS: u64 = 40;
    let clients = [place.client().await, place.client().await];
    let inside = Arc::new(AtomicBool::new(false));
    let total = Arc::new(AtomicU64::new(0));
    let mut tasks = Vec::new();
    for client in &clients {
        for _ in 0..6 {
            let lock = stranger(&L::of(client, place.name()));
            let (inside, total) = (inside.clone(), total.clone());
            tasks.push(tokio::spawn(async move {
                for _ in 0..SECTIONS {
                    let guard = lock.lock().await.unwrap();
                    assert!(!inside.swap(true, Ordering::SeqCst), "two at once");
                    // Not atomic: an update would be lost if two tasks were inside.
                    let before = total.load(Ordering::SeqCst);
                    tokio::task::yield_now().await;
                    total.store(before + 1, Ordering::SeqCst);
                    inside.store(false, Ordering::SeqCst);
                    guard.unlock().await.unwrap();
                }
            }));
        }
    }
    let count = tasks.len() as u64;
    for task in tasks {
        tokio::time::timeout(secs(60), task).await.unwrap().unwrap();
    }
    assert_eq!(total.load(Ordering::SeqCst), count * SECTIONS);
    place.nothing_left([&clients[0], &clients[1]]).await;
}

/// Returns what is stored under a key, whatever its type.
fn stored(probe: &mut Connection, key: &str) -> [Reply; 5] {
    [
        &["TYPE", key][..],
        &["PTTL", key],
        &["HGETALL", key],
        &["LRANGE", key, "0", "-1"],
        &["ZRANGE", key, "0", "-1", "WITHSCORES"],
    ]
    .map(|words| probe.command(words))
}

// fault: S16 S17
async fn other_shapes_are_the_wrong_kind_and_stay_untouched<L: Lock>(place: Place) {
    let client = place.client().await;
    let mut probe = place.probe();
    let hash = [&["HSET", place.name()], L::FOREIGN].concat();
    for (command, there) in [
        (&["RPUSH", place.name(), "x"][..], "else, a list;"),
        (&["ZADD", place.name(), "1", "x"], "else, a sorted set;"),
        (&["HSET", place.name(), "field", "value"], "else, a hash;"),
        (&hash, "else, a "),
    ] {
        probe.command(command);
        let before = stored(&mut probe, place.name());
        let lock = L::of(&client, place.name()).lease(Duration::from_secs(5));
        let error = soon(lock.lock()).await.map(drop);
        let error = error.expect_err("it is no lock");
        assert_eq!(error.kind(), ErrorKind::WrongKind);
        // What is there is found by a script.
        let there = if L::SCRIPTS { there } else { "something else" };
        assert!(error.to_string().contains(there), "{error}");
        assert_eq!(kind(lock.try_lock().await), ErrorKind::WrongKind);
        assert_eq!(kind(lock.force_unlock().await), ErrorKind::WrongKind);
        assert_eq!(stored(&mut probe, place.name()), before, "{command:?}");
        probe.command(&["DEL", place.name()]);
    }
    place.nothing_left([&client]).await;
}
