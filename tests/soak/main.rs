//! Each deployment under load, while its servers are killed, stopped, cut off, replaced and moved: for as many seconds as
//! `REDLATCH_SOAK` says, otherwise briefly.
//!
//! A line for RELIABILITY.md about each is left in the folder `soak` of the target directory.
#![allow(
    clippy::expect_used,
    clippy::unwrap_used,
    reason = "a test fails by panicking"
)]
#![allow(unreachable_pub, reason = "shared with other test programs")]

mod judge;
mod link;
mod place;
#[path = "../support/mod.rs"]
mod support;

use std::collections::BTreeMap;
use std::fs;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fastrand::Rng;
use redlatch::{Client, DistributedGuard, DistributedLock, FencedLock, Owner, RedLock};
use tokio::task::{JoinSet, spawn_blocking};
use tokio::time::sleep;

use judge::Judge;
use link::Link;
use place::{Place, key};
use support::{eventually_idle, impatient};

const CLIENTS: usize = 3;
const LOCKS: usize = 24;
/// As many of them are held for longer than a lease each time.
const SLOW: usize = 3;
/// The lease that is renewed, and the longest one of a RedLock.
const LEASE: Duration = Duration::from_secs(2);
/// How long a call waits.
const WAIT: Duration = Duration::from_secs(5);
/// What a call may take in addition: a request or two, and a machine that has other work.
const SLACK: Duration = Duration::from_secs(3);

/// A lock whose guards may have a token.
trait Soaked: DistributedLock {
    fn token(guard: &Self::Guard) -> Option<u64>;
}

impl Soaked for FencedLock {
    fn token(guard: &Self::Guard) -> Option<u64> {
        Some(guard.token().get())
    }
}

impl Soaked for RedLock {
    fn token(_: &Self::Guard) -> Option<u64> {
        None
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_server() {
    soak(Place::one(), |clients, name| clients[0].fenced_lock(name)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sentinels() {
    soak(Place::sentinels(), |clients, name| {
        clients[0].fenced_lock(name)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cluster() {
    soak(Place::cluster(), |clients, name| {
        clients[0].fenced_lock(name)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn five_servers() {
    let lock = |clients: &[Client], name: &str| {
        let members = clients.iter().map(|client| client.lock(name));
        let lock = RedLock::new(members).max_lease(LEASE);
        lock.owned_by(&Owner::unique())
    };
    soak(Place::five(), lock).await;
}

async fn soak<L: Soaked>(place: Place, lock: impl Fn(&[Client], &str) -> L) {
    let lasts = support::soak::asked_for().unwrap_or(Duration::from_secs(4));
    let seed = fastrand::u64(..);
    println!("{}: seed {seed}", place.name());
    let judge = Arc::new(Judge::new(place.loses(), LOCKS));
    let place = Arc::new(place);
    let mut all = Vec::new();
    let mut tasks = JoinSet::new();
    let end = Instant::now() + lasts;
    let links: Vec<Link> = (0..CLIENTS).map(|_| Link::new()).collect();
    for (client, link) in links.iter().enumerate() {
        let mut clients = Vec::new();
        for url in place.urls() {
            let client = impatient(Client::builder().config(link.config(&url)));
            let client = client.watchdog_lease(LEASE).build();
            clients.push(client.await.expect("the servers are up"));
        }
        for task in 0..place.tasks() * LOCKS {
            let at = task % LOCKS;
            let lock = lock(&clients, &key(at));
            let random = Rng::with_seed(seed ^ ((client * 100 + task + 1) as u64));
            let judge = judge.clone();
            tasks.spawn(async move { work(&lock, at, &judge, random, end).await });
        }
        all.extend(clients);
    }
    let faults = faults(&place, &links, &judge, Rng::with_seed(seed), end).await;
    while let Some(ended) = tasks.join_next().await {
        ended.expect("no panic");
    }
    for client in &all {
        eventually_idle(client).await;
    }
    let checked = place.clone();
    spawn_blocking(move || checked.is_clean()).await.unwrap();
    for client in all {
        client.close().await;
    }
    let line = format!(
        "| {} | {} s | {} | {faults} |\n",
        place.name(),
        lasts.as_secs(),
        judge.line()
    );
    print!("{line}");
    let folder = format!("{}/soak", env!("CARGO_TARGET_TMPDIR"));
    fs::create_dir_all(&folder).unwrap();
    fs::write(format!("{folder}/{}", place.name()), line).unwrap();
    judge.rules();
}

/// One task: goes through sections until the end.
async fn work<L: Soaked>(lock: &L, at: usize, judge: &Judge, mut random: Rng, end: Instant) {
    while Instant::now() < end {
        let floor = judge.begin(at);
        let begun = Instant::now();
        let answer = lock.try_lock_for(WAIT).await;
        judge.took(begun.elapsed(), WAIT + SLACK);
        let guard = match answer {
            Ok(Some(guard)) => guard,
            Ok(None) => continue,
            Err(error) => {
                judge.error(&error);
                sleep(Duration::from_millis(20)).await;
                continue;
            }
        };
        let section = judge.enter(at, floor, L::token(&guard), guard.remaining());
        let stay = match at {
            // Long enough for the lease to end, if nobody renews it.
            0..SLOW => LEASE.mul_f32(1.0 + random.f32()),
            _ => Duration::from_micros(random.u64(0..3_000)),
        };
        let parts = 1 + stay.as_millis() as u32 / 100;
        for _ in 0..parts {
            sleep(stay / parts).await;
            section.stays(guard.remaining());
        }
        section.leave(guard.remaining());
        if random.bool() {
            drop(guard);
        } else if let Err(error) = guard.unlock().await {
            judge.error(&error);
        }
        sleep(Duration::from_micros(random.u64(0..3_000))).await;
    }
}

/// Breaks and heals something again and again, and expects every lock to be granted soon after. Returns what it did.
async fn faults(
    place: &Arc<Place>,
    links: &[Link],
    judge: &Judge,
    mut random: Rng,
    end: Instant,
) -> String {
    let mut done: BTreeMap<&str, u32> = BTreeMap::new();
    while Instant::now() < end {
        sleep(Duration::from_millis(random.u64(500..3_000))).await;
        judge.is_broken(true);
        let fault = if random.u32(0..4) == 0 {
            let link = &links[random.usize(..CLIENTS)];
            link.cut(true);
            sleep(LEASE.mul_f32(0.5 + random.f32() * 1.5)).await;
            link.cut(false);
            "client cut off"
        } else {
            let (broken, seed) = (place.clone(), random.u64(..));
            let fault = spawn_blocking(move || broken.breaks(&mut Rng::with_seed(seed)));
            fault.await.expect("it heals")
        };
        *done.entry(fault).or_default() += 1;
        judge.progresses(fault, end).await;
        judge.is_broken(false);
    }
    let done = done.iter().map(|(fault, times)| format!("{times} {fault}"));
    done.collect::<Vec<_>>().join(", ")
}
