//! Loses and delays replies and requests: every call is carried out once, and late arrivals change nothing.

use crate::support;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::support::scene::{Scene, give_back, patient, take};
use crate::support::{eventually, sha};
use redlatch::{Client, ClientBuilder, ErrorKind, LockGuard, Owner, ReadWriteLock};
use tokio::time::interval;

const NAME: &str = "invoice";
const LEASE: Duration = Duration::from_secs(60);

/// Loses the reply to `script` while `call` runs.
async fn unanswered<T>(scene: &Scene, script: &str, call: impl Future<Output = T>) -> T {
    scene.proxy.cut_reply_to(sha(script));
    let output = call.await;
    assert!(!scene.proxy.cut_reply_armed(), "no {script} was sent");
    output
}

// fault: S21
#[tokio::test(flavor = "multi_thread")]
async fn acquisition_without_its_reply_is_granted_once() {
    let scene = Scene::open(patient).await;
    let lock = scene.client.lock(NAME);
    for _ in 0..200 {
        let guard = unanswered(&scene, "lock_acquire", take(&lock)).await;
        assert_eq!(scene.levels(NAME), 1);
        scene.keeps_promise(NAME, &guard);
        give_back(guard).await;
        assert_eq!(scene.levels(NAME), 0);
    }
    scene.lets_the_next_in(NAME).await;
    scene.ends_clean().await;
}

// fault: S21
#[tokio::test(flavor = "multi_thread")]
async fn acquisition_without_its_reply_whose_repetition_is_refused_is_undone() {
    let scene = Scene::open(patient).await;
    let lock = scene.client.lock(NAME);
    give_back(take(&lock).await).await;
    let mut admin = scene.server.connection();
    scene.proxy.cut_reply_to(sha("lock_acquire"));
    let mut gate = scene.proxy.stop(sha("lock_acquire"));
    let call = tokio::spawn(async move { lock.lease(LEASE).try_lock().await });
    gate.reached().await;
    assert_eq!(scene.levels(NAME), 1, "the first was carried out");
    admin.command(&["CONFIG", "SET", "maxmemory", "1"]);
    gate.open();
    let refused = call.await.expect("it ends").expect_err("out of memory");
    assert_eq!(refused.kind(), ErrorKind::Backend, "{refused}");
    eventually("it is undone", async || scene.levels(NAME) == 0).await;
    admin.command(&["CONFIG", "SET", "maxmemory", "0"]);
    scene.lets_the_next_in(NAME).await;
    scene.ends_clean().await;
}

// fault: S22
#[tokio::test(flavor = "multi_thread")]
async fn release_without_its_reply_is_a_success() {
    let scene = Scene::open(patient).await;
    let lock = scene.client.lock(NAME);
    for _ in 0..200 {
        let guard = take(&lock).await;
        unanswered(&scene, "lock_release", give_back(guard)).await;
        assert_eq!(scene.levels(NAME), 0);
    }
    scene.lets_the_next_in(NAME).await;
    scene.ends_clean().await;
}

async fn lose_replies_to_renewals(times: usize) {
    let lease = Duration::from_secs(4);
    let scene = Scene::open(|builder| patient(builder).watchdog_lease(lease)).await;
    let names: Vec<_> = (0..20).map(|n| format!("job:{n}")).collect();
    let mut guards = Vec::new();
    for name in &names {
        guards.push(take(&scene.client.lock(name)).await);
    }
    for round in 0..times {
        // A network that confirms nothing for a whole lease would rightly lose the holds.
        eventually("renewals are confirmed", async || {
            guards.iter().all(|guard| guard.remaining() > lease / 2)
        })
        .await;
        scene.proxy.cut_reply_to(sha("lock_renew"));
        eventually("a renewal", async || !scene.proxy.cut_reply_armed()).await;
        let n = round % names.len();
        scene.keeps_promise(&names[n], &guards[n]);
    }
    for (name, guard) in names.iter().zip(guards) {
        assert!(!guard.is_lost(), "{name}");
        assert_eq!(scene.levels(name), 1);
        give_back(guard).await;
        scene.lets_the_next_in(name).await;
    }
    scene.ends_clean().await;
}

// fault: S23
#[tokio::test(flavor = "multi_thread")]
async fn renewal_without_its_reply_is_repeated_and_loses_nothing() {
    tokio::join!(
        lose_replies_to_renewals(50),
        lose_replies_to_renewals(50),
        lose_replies_to_renewals(50),
        lose_replies_to_renewals(50),
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn re_entry_without_its_reply_counts_once() {
    let scene = Scene::open(patient).await;
    let lock = scene.client.lock(NAME);
    for round in 0..20 {
        let outer = take(&lock).await;
        let inner = async {
            if round % 2 == 0 {
                take(&lock).await
            } else {
                outer.reenter().await.expect("the hold stands")
            }
        };
        let inner = unanswered(&scene, "lock_reenter", inner).await;
        assert_eq!(scene.levels(NAME), 2);
        unanswered(&scene, "lock_release", give_back(inner)).await;
        assert_eq!(scene.levels(NAME), 1);
        outer.verify().await.expect("the hold stands");
        give_back(outer).await;
    }
    scene.lets_the_next_in(NAME).await;
    scene.ends_clean().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn extension_without_its_reply_is_set_and_trusted() {
    let scene = Scene::open(patient).await;
    let lock = scene.client.lock(NAME).lease(LEASE);
    for lease in [LEASE / 2, 2 * LEASE].repeat(10) {
        let guard = take(&lock).await;
        let extended = unanswered(&scene, "lock_extend", guard.extend(lease)).await;
        extended.expect("the hold stands");
        let kept = scene.server.connection().pttl(NAME).cast_unsigned();
        assert!(
            guard.remaining() > lease / 2,
            "the extension is not trusted"
        );
        let lease = lease.as_millis() as u64;
        assert!(
            (lease / 2 + 1..=lease).contains(&kept),
            "{kept} ms of {lease} ms"
        );
        scene.keeps_promise(NAME, &guard);
        give_back(guard).await;
    }
    scene.lets_the_next_in(NAME).await;
    scene.ends_clean().await;
}

/// Acquires a lock of each kind that keeps its lease in its own way.
async fn each_shape(scene: &Scene) -> [(LockGuard, &'static str); 3] {
    let lock = scene.client.lock("a").lease(LEASE);
    let plain = scene.client.plain_lock("b").lease(LEASE);
    let sides = scene.client.read_write_lock("c").lease(LEASE);
    let guards = [
        (take(&lock).await, "lock_extend"),
        (plain.lock().await.expect("free"), "plain_extend"),
        (sides.write().await.expect("free"), "rw_extend"),
    ];
    for (guard, _) in &guards {
        // From here on the server knows the scripts by their hash, and the lease was set by `extend`.
        guard.extend(LEASE).await.expect("the hold stands");
    }
    guards
}

#[tokio::test(flavor = "multi_thread")]
async fn extension_is_not_undone_by_a_late_copy_of_an_earlier_one() {
    let scene = Scene::open(patient).await;
    let names = ["a", "b", "c"];
    for ((guard, script), name) in each_shape(&scene).await.into_iter().zip(names) {
        // Holds back the request that cuts the lease, which follows the one that asks when the lease ends.
        let mut ask = scene.proxy.stop(sha(script));
        let mut cut = Box::pin(guard.extend(LEASE / 20));
        tokio::select! {
            () = ask.reached() => {}
            _ = &mut cut => panic!("{script}: answered"),
        }
        let parcel = scene.proxy.hold_request(sha(script));
        ask.open();
        cut.await.expect("the hold stands");
        guard.extend(2 * LEASE).await.expect("the hold stands");
        let promised = guard.remaining();
        assert!(promised > LEASE, "{script}: {promised:?}");
        parcel.deliver().await;
        scene.keeps_promise(name, &guard);
        let kept = scene.server.connection().pttl(name);
        assert!(kept > LEASE.as_millis() as i64, "{script}: {kept} ms");
        give_back(guard).await;
    }
    scene.ends_clean().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn extension_that_was_dropped_undoes_nothing_that_comes_after_it() {
    let scene = Scene::open(patient).await;
    for again in ["extend", "reenter"] {
        for ((guard, script), name) in each_shape(&scene).await.into_iter().zip(["a", "b", "c"]) {
            if script == "plain_extend" && again == "reenter" {
                give_back(guard).await;
                continue;
            }
            // Long enough that no request below would raise it.
            guard.extend(2 * LEASE).await.expect("the hold stands");
            let mut ask = scene.proxy.stop(sha(script));
            let mut cut = Box::pin(guard.extend(LEASE / 20));
            tokio::select! {
                () = ask.reached() => {}
                _ = &mut cut => panic!("{script}: answered"),
            }
            let mut parcel = scene.proxy.hold_request(sha(script));
            ask.open();
            tokio::select! {
                () = parcel.caught() => {}
                _ = &mut cut => panic!("{script}: answered"),
            }
            drop(cut);
            let inner = match again {
                "extend" => {
                    guard.extend(LEASE).await.expect("the hold stands");
                    None
                }
                _ => Some(guard.reenter().await.expect("the hold stands")),
            };
            let promised = guard.remaining();
            assert!(promised > LEASE / 2, "{script}, {again}: {promised:?}");
            parcel.deliver().await;
            scene.keeps_promise(name, &guard);
            for guard in inner.into_iter().chain([guard]) {
                give_back(guard).await;
            }
        }
    }
    scene.ends_clean().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn renewal_that_is_answered_after_a_cut_of_the_lease_promises_nothing() {
    let lease = Duration::from_secs(12);
    let scene = Scene::open(|builder| patient(builder).watchdog_lease(lease)).await;
    let lock = scene.client.lock(NAME);
    let fixed = take(&lock.clone().lease(lease)).await;
    let renewed = take(&lock).await;
    fixed.extend(lease).await.expect("the hold stands");
    // The renewal runs. Its reply is held until those to the requests after it arrive as well.
    let mut renewal = scene.proxy.stop(sha("lock_renew"));
    renewal.reached().await;
    scene.proxy.hold_replies();
    renewal.open();
    let cut = async {
        // The extension starts before the release of this guard is sent.
        drop(renewed);
        fixed.extend(Duration::from_secs(1)).await
    };
    let mut cut = Box::pin(cut);
    let quiet = tokio::time::timeout(Duration::from_millis(100), &mut cut).await;
    assert!(quiet.is_err(), "no reply came");
    scene.proxy.release_replies();
    cut.await.expect("the hold stands");
    for _ in 0..20 {
        scene.keeps_promise(NAME, &fixed);
        assert!(fixed.remaining() < Duration::from_secs(1));
        tokio::task::yield_now().await;
    }
    give_back(fixed).await;
    scene.ends_clean().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn take_over_without_its_reply_moves_one_level() {
    let scene = Scene::open(patient).await;
    let owner = Owner::named("migrant");
    let here = scene.client.lock(NAME).owned_by(&owner);
    for round in 0..30 {
        let elsewhere = take(&scene.other.lock(NAME).owned_by(&owner)).await;
        match round % 3 {
            0 => {
                let adopted = unanswered(&scene, "lock_adopt", here.adopt()).await;
                let adopted = adopted
                    .expect("an answer")
                    .expect("the owner holds one level");
                assert_eq!(scene.levels(NAME), 1);
                give_back(adopted).await;
            }
            1 => unanswered(&scene, "lock_adopt", here.unlock())
                .await
                .expect("held elsewhere"),
            _ => unanswered(&scene, "lock_release", here.unlock())
                .await
                .expect("held elsewhere"),
        }
        assert_eq!(scene.levels(NAME), 0);
        let stale = elsewhere.unlock().await.map_err(|error| error.kind());
        assert_eq!(stale, Err(ErrorKind::LeaseLost));
    }
    scene.lets_the_next_in(NAME).await;
    scene.ends_clean().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn force_unlock_without_its_reply_says_that_it_freed_the_lock() {
    let scene = Scene::open(patient).await;
    let lock = scene.client.lock(NAME);
    for holder in [&scene.client, &scene.other].repeat(10) {
        let guard = take(&holder.lock(NAME)).await;
        let freed = unanswered(&scene, "lock_force_release", lock.force_unlock()).await;
        assert!(freed.expect("an answer"));
        assert_eq!(scene.levels(NAME), 0);
        let stale = guard.unlock().await.map_err(|error| error.kind());
        assert_eq!(stale, Err(ErrorKind::LeaseLost));
    }
    scene.lets_the_next_in(NAME).await;
    scene.ends_clean().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn force_unlock_without_its_reply_ends_no_later_hold() {
    let scene = Scene::open(patient).await;
    let lock = scene.client.lock(NAME);
    let stuck = take(&lock).await;
    scene.proxy.cut_reply_to(sha("lock_force_release"));
    let mut gate = scene.proxy.stop(sha("lock_inspect"));
    let force = tokio::spawn(async move { lock.force_unlock().await });
    gate.reached().await;
    assert_eq!(scene.levels(NAME), 0, "released by the first request");
    let later = take(&scene.other.lock(NAME)).await;
    gate.open();
    let doubt = force.await.expect("it ends").expect_err("somebody has it");
    assert_eq!(doubt.kind(), ErrorKind::Timeout, "{doubt}");
    scene.keeps_promise(NAME, &later);
    give_back(later).await;
    drop(stuck);
    scene.lets_the_next_in(NAME).await;
    scene.ends_clean().await;
}

/// Returns each side of a read-write lock, with the script that acquires it.
fn sides(scene: &Scene) -> [(ReadWriteLock, &'static str); 2] {
    let lock = || {
        scene
            .client
            .read_write_lock(NAME)
            .owned_by(&Owner::unique())
    };
    [(lock(), "read_acquire"), (lock(), "write_acquire")]
}

async fn enter(lock: &ReadWriteLock, script: &str) -> LockGuard {
    let entered = match script {
        "read_acquire" => lock.read().await,
        _ => lock.write().await,
    };
    entered.expect("the lock can be had")
}

/// Returns the number of levels, and of the keys that record them.
fn rw_levels(scene: &Scene) -> (u64, usize) {
    let mut connection = scene.server.connection();
    let fields = connection.hgetall(NAME);
    let counts = fields.iter().filter(|(field, _)| *field != "mode");
    let levels = counts.map(|(_, count)| count.parse::<u64>().expect("a count"));
    let keys = connection.keys();
    let records = keys.iter().filter(|key| key.contains(":rwlock_timeout:"));
    (levels.sum(), records.count())
}

#[tokio::test(flavor = "multi_thread")]
async fn both_sides_of_a_read_write_lock_bear_lost_replies() {
    let scene = Scene::open(patient).await;
    for (lock, script) in std::iter::repeat_with(|| sides(&scene)).take(20).flatten() {
        let guard = unanswered(&scene, script, enter(&lock, script)).await;
        assert_eq!(rw_levels(&scene), (1, 1), "{script}");
        scene.keeps_promise(NAME, &guard);
        let again = unanswered(&scene, "rw_reenter", enter(&lock, script)).await;
        assert_eq!(rw_levels(&scene), (2, 2), "{script}");
        unanswered(&scene, "rw_release", give_back(again)).await;
        assert_eq!(rw_levels(&scene), (1, 1), "{script}");
        guard.verify().await.expect("the hold stands");
        unanswered(&scene, "rw_release", give_back(guard)).await;
        assert_eq!(rw_levels(&scene), (0, 0), "{script}");
    }
    scene.ends_clean().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn late_requests_do_not_touch_the_next_hold_of_either_side() {
    let scene = Scene::open(patient).await;
    let dump = || {
        let mut connection = scene.server.connection();
        let keys = connection.keys().into_iter();
        let levels: Vec<_> = keys
            .filter(|key| key.contains(":rwlock_timeout:"))
            .collect();
        let numbers = levels
            .iter()
            .map(|level| connection.command(&["GET", level]).text());
        let numbers: Vec<_> = numbers.collect();
        (connection.hgetall(NAME), levels, numbers)
    };
    for (lock, script) in sides(&scene) {
        // A late read would get in next to the next hold, for one lease.
        let acquire = (script == "write_acquire").then_some(script);
        for late in ["rw_release"].into_iter().chain(acquire) {
            let parcel = scene.proxy.hold_request(sha(late));
            give_back(enter(&lock, script).await).await;
            let new = enter(&lock, script).await;
            let before = dump();
            parcel.deliver().await;
            assert_eq!(dump(), before, "{late}");
            new.verify().await.expect("the new hold stands");
            give_back(new).await;
        }
    }
    eventually("marks are forgotten", async || {
        scene.server.connection().keys().is_empty()
    })
    .await;
    scene.ends_clean().await;
}

// fault: S22
#[tokio::test(flavor = "multi_thread")]
async fn late_release_does_not_free_the_next_hold_of_its_owner() {
    let scene = Scene::open(patient).await;
    let lock = scene.client.lock(NAME);
    let old = take(&lock).await;
    let parcel = scene.proxy.hold_request(sha("lock_release"));
    give_back(old).await;
    let new = take(&lock).await;
    parcel.deliver().await;
    assert_eq!(scene.levels(NAME), 1);
    new.verify().await.expect("the new hold stands");
    give_back(new).await;
    scene.ends_clean().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn late_acquisition_does_not_touch_the_next_hold_of_its_owner() {
    let scene = Scene::open(patient).await;
    let lock = scene.client.lock(NAME);
    let parcel = scene.proxy.hold_request(sha("lock_acquire"));
    give_back(take(&lock).await).await;
    let new = take(&lock).await;
    let before = scene.server.connection().hgetall(NAME);
    parcel.deliver().await;
    assert_eq!(scene.server.connection().hgetall(NAME), before);
    give_back(new).await;
    scene.ends_clean().await;
}

// fault: S29
#[tokio::test(flavor = "multi_thread")]
async fn late_acquisition_blocks_others_for_one_lease_at_the_most() {
    let scene = Scene::open(patient).await;
    let lease = Duration::from_secs(2);
    let lock = scene.client.lock(NAME).lease(lease);
    let parcel = scene.proxy.hold_request(sha("lock_acquire"));
    give_back(take(&lock).await).await;
    let arrived = Instant::now();
    parcel.deliver().await;
    let left = scene.server.connection().pttl(NAME);
    assert!((-2..=2_000).contains(&left) && left != -1, "{left}");
    scene.lets_the_next_in(NAME).await;
    assert!(arrived.elapsed() < 2 * lease);
    scene.ends_clean().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn late_re_entry_leaves_nothing() {
    let scene = Scene::open(patient).await;
    let lock = scene.client.lock(NAME);
    let nest = async || {
        let outer = take(&lock).await;
        let parcel = scene.proxy.hold_request(sha("lock_reenter"));
        give_back(take(&lock).await).await;
        (outer, parcel)
    };

    let (outer, parcel) = nest().await;
    give_back(outer).await;
    parcel.deliver().await;
    assert_eq!(scene.levels(NAME), 0);

    let (outer, parcel) = nest().await;
    give_back(outer).await;
    let new = take(&lock).await;
    parcel.deliver().await;
    assert_eq!(scene.levels(NAME), 1);
    give_back(new).await;

    // Even while the hold that it was for still stands, the late level does not outlast that hold.
    let (outer, parcel) = nest().await;
    parcel.deliver().await;
    outer.verify().await.expect("the hold stands");
    give_back(outer).await;
    assert_eq!(scene.levels(NAME), 0);
    scene.ends_clean().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn late_renewal_does_not_extend_the_hold_of_another() {
    let settings = |builder: ClientBuilder| patient(builder).watchdog_lease(Duration::from_secs(3));
    let scene = Scene::open(settings).await;
    let lock = scene.client.lock(NAME);
    for next in [&scene.client, &scene.other] {
        let old = take(&lock).await;
        let mut parcel = scene.proxy.hold_request(sha("lock_renew"));
        parcel.caught().await;
        give_back(old).await;
        let lease = Duration::from_secs(1);
        let new = take(&next.lock(NAME).lease(lease)).await;
        parcel.deliver().await;
        assert!(scene.server.connection().pttl(NAME) <= 1_000);
        give_back(new).await;
    }
    scene.ends_clean().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn late_take_over_does_not_touch_the_next_hold_of_its_client() {
    let scene = Scene::open(patient).await;
    let owner = Owner::named("migrant");
    let here = scene.client.lock(NAME).owned_by(&owner);
    let elsewhere = take(&scene.other.lock(NAME).owned_by(&owner)).await;
    let parcel = scene.proxy.hold_request(sha("lock_adopt"));
    let adopted = here
        .adopt()
        .await
        .expect("an answer")
        .expect("the owner holds one level");
    give_back(adopted).await;
    assert!(elsewhere.verify().await.is_err());
    // Shorter than the lease that the late request asks for.
    let new = take(&here.lease(LEASE / 2)).await;
    let end = scene.end_of_key(NAME) + LEASE / 4;
    let before = scene.server.connection().hgetall(NAME);
    parcel.deliver().await;
    assert_eq!(scene.server.connection().hgetall(NAME), before);
    assert!(scene.end_of_key(NAME) < end, "the late request extended it");
    new.verify().await.expect("the new hold stands");
    give_back(new).await;
    scene.ends_clean().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn late_take_over_does_not_touch_the_next_hold_of_another_client() {
    let scene = Scene::open(patient).await;
    let owner = Owner::named("migrant");
    let here = scene.client.lock(NAME).owned_by(&owner);
    let there = scene.other.lock(NAME).owned_by(&owner);
    let old = take(&there).await;
    let parcel = scene.proxy.hold_request(sha("lock_adopt"));
    let adopted = here.adopt().await.expect("an answer");
    give_back(adopted.expect("the owner holds one level")).await;
    assert!(old.verify().await.is_err());
    let new = take(&there).await;
    let before = scene.server.connection().hgetall(NAME);
    parcel.deliver().await;
    assert_eq!(scene.server.connection().hgetall(NAME), before);
    give_back(new).await;
    scene.ends_clean().await;
}

/// Counts the owners inside the section that one lock protects, and the entries to it.
#[derive(Default)]
struct Section {
    inside: AtomicUsize,
    entered: AtomicUsize,
}

async fn work(client: Client, name: String, section: Arc<Section>, storm: Arc<AtomicBool>) {
    let lock = client.lock(name);
    while storm.load(Ordering::SeqCst) {
        // A call may fail in a storm, but it must not let two in.
        let Ok(guard) = lock.lock().await else {
            continue;
        };
        assert_eq!(
            section.inside.fetch_add(1, Ordering::SeqCst),
            0,
            "two in a section"
        );
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
        assert!(!guard.is_lost(), "lost to a storm");
        section.inside.fetch_sub(1, Ordering::SeqCst);
        section.entered.fetch_add(1, Ordering::SeqCst);
        drop(guard.unlock().await);
    }
}

// fault: S30
#[tokio::test(flavor = "multi_thread")]
async fn storm_of_cut_connections_never_lets_two_in_and_ends_clean() {
    let settings =
        |builder: ClientBuilder| patient(builder).command_timeout(Duration::from_secs(1));
    let scene = Scene::open(settings).await;
    let second = settings(support::builder(scene.proxy.url())).build().await;
    let second = second.expect("the server is up");
    let storm = Arc::new(AtomicBool::new(true));
    let names = ["east", "west"];
    let sections = [Arc::<Section>::default(), Arc::default()];
    let workers: Vec<_> = (0..8)
        .map(|n| {
            let client = if n % 2 == 0 { &scene.client } else { &second };
            let (name, section) = (names[n / 4].to_owned(), sections[n / 4].clone());
            tokio::spawn(work(client.clone(), name, section, storm.clone()))
        })
        .collect();
    let mut pace = interval(Duration::from_millis(50));
    for _ in 0..100 {
        pace.tick().await;
        scene.proxy.cut();
    }
    storm.store(false, Ordering::SeqCst);
    for worker in workers {
        worker.await.expect("no two were in a section");
    }
    for (name, section) in names.iter().zip(&sections) {
        assert!(
            section.entered.load(Ordering::SeqCst) > 0,
            "nobody got into {name}"
        );
        give_back(take(&second.lock(name)).await).await;
        scene.lets_the_next_in(name).await;
    }
    support::eventually_idle(&second).await;
    scene.ends_clean().await;
}
