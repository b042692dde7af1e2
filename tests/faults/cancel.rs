//! Drops the future of every method at each of its polls, with its request in flight: nothing of the call stays held.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use crate::support::polls::Polls;
use crate::support::scene::{Scene, patient, take};
use crate::support::{builder, eventually, sha};
use redlatch::{Error, ErrorKind, LockGuard, Owner, ReentrantLock};
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// Far longer than a wake-up takes, and far shorter than every lease and park in these tests.
const PROMPT: Duration = Duration::from_secs(10);
const LEASE: Duration = Duration::from_secs(60);

type Boxed<'a, T> = Pin<Box<dyn Future<Output = Result<T, Error>> + 'a>>;
type Acquire = for<'a> fn(&'a ReentrantLock) -> Boxed<'a, Option<LockGuard>>;

const LOCK: (&str, Acquire) = ("lock", |lock| {
    Box::pin(async { lock.lock().await.map(Some) })
});
const TRY_LOCK: (&str, Acquire) = ("try_lock", |lock| Box::pin(lock.try_lock()));
const TRY_LOCK_FOR: (&str, Acquire) = ("try_lock_for", |lock| Box::pin(lock.try_lock_for(LEASE)));

/// Checks the output of a future that completed. A guard in it is dropped at once, which releases its level.
fn finish<T>(output: Option<Result<T, Error>>) {
    drop(output.map(|output| output.expect("the network is sound")));
}

/// Checks that a hold that existed next to a dropped call is unchanged, then releases it.
async fn keeps(scene: &Scene, name: &str, guard: LockGuard) {
    scene.settles_at(name, 1).await;
    guard.verify().await.expect("the outer hold stands");
    assert!(
        scene
            .other
            .lock(name)
            .try_lock()
            .await
            .expect("an answer")
            .is_none()
    );
    scene.keeps_promise(name, &guard);
    guard.unlock().await.expect("the outer hold stands");
    is_free(scene, name).await;
}

async fn is_free(scene: &Scene, name: &str) {
    scene.settles_at(name, 0).await;
    scene.lets_the_next_in(name).await;
}

/// Spawns another owner of the same client, which acquires the lock as soon as it can and releases it.
fn spawn_waiter(scene: &Scene, name: &str) -> JoinHandle<()> {
    let lock = scene.client.lock(name);
    tokio::spawn(async move { take(&lock).await.unlock().await.expect("held until now") })
}

async fn is_served(waiter: JoinHandle<()>, what: &str) {
    let served = timeout(PROMPT, waiter).await;
    served
        .unwrap_or_else(|_| panic!("not served: {what}"))
        .expect("the waiter is sound");
}

async fn subscribed(scene: &Scene, name: &str) {
    let mut connection = scene.server.connection();
    eventually("the waiter at the front listens", async || {
        connection
            .channels()
            .iter()
            .any(|channel| channel.contains(name))
    })
    .await;
}

// fault: S54
#[tokio::test(flavor = "multi_thread")]
async fn dropped_acquisition_leaves_nothing_held() {
    let scene = Scene::open(patient).await;
    for (verb, acquire) in [LOCK, TRY_LOCK, TRY_LOCK_FOR] {
        Polls::sweep(&scene.proxy, verb, async |name, polls| {
            let lock = scene.client.lock(name);
            finish(polls.run(acquire(&lock)).await);
            is_free(&scene, name).await;
        })
        .await;
    }
    scene.ends_clean().await;
}

// fault: S54
#[tokio::test(flavor = "multi_thread")]
async fn dropped_re_entry_leaves_the_outer_hold_its_count() {
    let scene = Scene::open(patient).await;
    for (verb, acquire) in [LOCK, TRY_LOCK, TRY_LOCK_FOR] {
        Polls::sweep(&scene.proxy, verb, async |name, polls| {
            let lock = scene.client.lock(name);
            let outer = take(&lock).await;
            finish(polls.run(acquire(&lock)).await);
            keeps(&scene, name, outer).await;
        })
        .await;
    }
    Polls::sweep(&scene.proxy, "reenter", async |name, polls| {
        let outer = take(&scene.client.lock(name)).await;
        finish(polls.run(outer.reenter()).await);
        keeps(&scene, name, outer).await;
    })
    .await;
    scene.ends_clean().await;
}

// fault: S54
#[tokio::test(flavor = "multi_thread")]
async fn dropped_wait_for_a_foreign_holder_lets_the_next_in() {
    let scene = Scene::open(patient).await;
    for (verb, acquire) in [LOCK, TRY_LOCK_FOR] {
        Polls::sweep(&scene.proxy, verb, async |name, polls| {
            let holder = take(&scene.other.lock(name)).await;
            let lock = scene.client.lock(name);
            let release = async { holder.unlock().await.expect("held until now") };
            finish(polls.run_until(acquire(&lock), release).await);
            is_free(&scene, name).await;
        })
        .await;
    }
    Polls::sweep(&scene.proxy, "try_lock, busy", async |name, polls| {
        let holder = take(&scene.other.lock(name)).await;
        let lock = scene.client.lock(name);
        let busy = polls.run(lock.try_lock()).await;
        assert!(busy.is_none_or(|answer| answer.expect("an answer").is_none()));
        scene.settles_at(name, 1).await;
        holder.unlock().await.expect("held until now");
        is_free(&scene, name).await;
    })
    .await;
    scene.ends_clean().await;
}

// fault: S35 S54
#[tokio::test(flavor = "multi_thread")]
async fn dropped_front_of_the_line_hands_the_wake_up_on() {
    let scene = Scene::open(patient).await;
    for (holder_is, client) in [("foreign", &scene.other), ("local", &scene.client)] {
        Polls::sweep(&scene.proxy, holder_is, async |name, polls| {
            let holder = client.lock(name).owned_by(&Owner::unique());
            let holder = take(&holder).await;
            let front = scene.client.lock(name);
            let mut behind = None;
            let release = async {
                // Spawned only now, so that the future under test is ahead of them in the local queue.
                behind = Some([spawn_waiter(&scene, name), spawn_waiter(&scene, name)]);
                drop(holder);
            };
            finish(polls.run_until(front.lock(), release).await);
            for waiter in behind.into_iter().flatten() {
                is_served(waiter, name).await;
            }
            is_free(&scene, name).await;
        })
        .await;
    }
    scene.ends_clean().await;
}

// fault: S54
#[tokio::test(flavor = "multi_thread")]
async fn dropped_wait_in_line_leaves_the_line_in_order() {
    let scene = Scene::open(patient).await;
    for named in [false, true] {
        let what = format!("in line, named: {named}");
        Polls::sweep(&scene.proxy, &what, async |name, polls| {
            let holder = take(&scene.other.lock(name)).await;
            let front = spawn_waiter(&scene, name);
            subscribed(&scene, name).await;
            let mut middle = scene.client.lock(name);
            if named {
                middle = middle.owned_by(&Owner::named("middle"));
            }
            let mut behind = None;
            let release = async {
                behind = Some(spawn_waiter(&scene, name));
                holder.unlock().await.expect("held until now");
            };
            finish(polls.run_until(middle.lock(), release).await);
            is_served(front, name).await;
            is_served(behind.expect("spawned by now"), name).await;
            is_free(&scene, name).await;
        })
        .await;
    }
    scene.ends_clean().await;
}

// fault: S54
#[tokio::test(flavor = "multi_thread")]
async fn dropped_unlock_gives_back_one_level() {
    let scene = Scene::open(patient).await;
    Polls::sweep(&scene.proxy, "guard", async |name, polls| {
        let guard = take(&scene.client.lock(name)).await;
        finish(polls.run(guard.unlock()).await);
        is_free(&scene, name).await;
    })
    .await;
    Polls::sweep(&scene.proxy, "inner guard", async |name, polls| {
        let outer = take(&scene.client.lock(name)).await;
        let inner = outer.reenter().await.expect("the hold stands");
        finish(polls.run(inner.unlock()).await);
        keeps(&scene, name, outer).await;
    })
    .await;
    // The release is not sent yet as long as another request for the hold is in flight.
    Polls::sweep(&scene.proxy, "behind an extension", async |name, polls| {
        let outer = take(&scene.client.lock(name)).await;
        let inner = outer.reenter().await.expect("the hold stands");
        let mut extend = Box::pin(outer.extend(LEASE));
        tokio::select! {
            biased;
            _ = &mut extend => {}
            () = std::future::ready(()) => {}
        }
        finish(
            polls
                .run_until(inner.unlock(), async { drop(extend) })
                .await,
        );
        keeps(&scene, name, outer).await;
    })
    .await;
    Polls::sweep(&scene.proxy, "handle", async |name, polls| {
        let lock = scene.client.lock(name);
        let guard = take(&lock).await;
        finish(polls.run(lock.unlock()).await);
        assert!(guard.is_lost());
        is_free(&scene, name).await;
    })
    .await;
    scene.ends_clean().await;
}

/// Checks what a call on a level of a named owner in another process has left: that level as it was, or nothing.
async fn all_or_nothing(scene: &Scene, name: &str, elsewhere: LockGuard) {
    scene.requests_have_run().await;
    eventually("nothing is owed", async || {
        format!("{:?}", scene.client).contains("locks: 0,")
    })
    .await;
    let levels = scene.levels(name);
    match elsewhere.unlock().await {
        Ok(()) => assert_eq!(levels, 1, "{name}"),
        Err(error) => {
            assert_eq!((error.kind(), levels), (ErrorKind::LeaseLost, 0), "{name}");
        }
    }
    is_free(scene, name).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn dropped_take_over_leaves_the_level_there_or_gives_it_back() {
    let scene = Scene::open(patient).await;
    let owner = Owner::named("migrant");
    type Verb = for<'a> fn(&'a ReentrantLock) -> Boxed<'a, ()>;
    let verbs: [(&str, Verb); 3] = [
        ("adopt", |lock| {
            Box::pin(async { lock.adopt().await.map(drop) })
        }),
        ("unlock", |lock| Box::pin(lock.unlock())),
        ("force_unlock", |lock| {
            Box::pin(async { lock.force_unlock().await.map(drop) })
        }),
    ];
    for (verb, call) in verbs {
        Polls::sweep(&scene.proxy, verb, async |name, polls| {
            let elsewhere = take(&scene.other.lock(name).owned_by(&owner)).await;
            let here = scene.client.lock(name).owned_by(&owner);
            finish(polls.run(call(&here)).await);
            all_or_nothing(&scene, name, elsewhere).await;
        })
        .await;
    }
    scene.ends_clean().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn dropped_adoption_leaves_other_levels_alone() {
    let scene = Scene::open(patient).await;
    Polls::sweep(&scene.proxy, "detached", async |name, polls| {
        let lock = scene.client.lock(name);
        assert_eq!(take(&lock).await.detach(), Owner::current());
        let adopted = polls
            .run(lock.adopt())
            .await
            .map(|guard| guard.expect("an answer"));
        let guard = match adopted {
            Some(guard) => guard,
            None => {
                scene.settles_at(name, 1).await;
                lock.adopt().await.expect("an answer")
            }
        };
        keeps(&scene, name, guard.expect("the level is the owner's")).await;
    })
    .await;
    Polls::sweep(&scene.proxy, "guarded", async |name, polls| {
        let lock = scene.client.lock(name);
        let guard = take(&lock).await;
        // Both guards stand for one level. If the adopted guard exists, its drop releases that level.
        match polls.run(lock.adopt()).await {
            None => keeps(&scene, name, guard).await,
            Some(adopted) => {
                assert!(adopted.expect("an answer").is_some());
                is_free(&scene, name).await;
            }
        }
    })
    .await;
    scene.ends_clean().await;
}

// fault: S54
#[tokio::test(flavor = "multi_thread")]
async fn dropped_call_on_a_guard_leaves_its_hold_alone() {
    let scene = Scene::open(patient).await;
    type Verb = for<'a> fn(&'a LockGuard) -> Boxed<'a, ()>;
    let verbs: [(&str, Verb); 3] = [
        ("extend, longer", |guard| Box::pin(guard.extend(2 * LEASE))),
        ("extend, shorter", |guard| Box::pin(guard.extend(LEASE / 2))),
        ("verify", |guard| Box::pin(guard.verify())),
    ];
    for (verb, call) in verbs {
        for fixed in [false, true] {
            Polls::sweep(
                &scene.proxy,
                &format!("{verb}, fixed: {fixed}"),
                async |name, polls| {
                    let mut lock = scene.client.lock(name);
                    if fixed {
                        lock = lock.lease(LEASE);
                    }
                    let guard = take(&lock).await;
                    finish(polls.run(call(&guard)).await);
                    keeps(&scene, name, guard).await;
                },
            )
            .await;
        }
    }
    scene.ends_clean().await;
}

/// Whatever counts on the server: each call is dropped at each of its polls, on a connection that holds.
// fault: S54
#[tokio::test(flavor = "multi_thread")]
async fn dropped_call_on_a_counter_leaves_no_mark() {
    let scene = Scene::open(patient).await;
    let (counted, expirable, latches) = (
        |name: &str| scene.client.semaphore(name),
        |name: &str| scene.client.expirable_semaphore(name),
        |name: &str| scene.client.latch(name),
    );
    Polls::sweep(&scene.proxy, "acquire", async |name, polls| {
        counted(name).try_set_permits(2).await.unwrap();
        finish(polls.run(counted(name).acquire_many(2)).await);
        finish(polls.run(counted(name).acquire()).await);
    })
    .await;
    Polls::sweep(&scene.proxy, "acquire with a lease", async |name, polls| {
        let semaphore = expirable(name).lease(LEASE);
        semaphore.try_set_permits(2).await.unwrap();
        finish(polls.run(semaphore.acquire_many(2)).await);
        finish(polls.run(semaphore.acquire()).await);
    })
    .await;
    Polls::sweep(&scene.proxy, "release", async |name, polls| {
        counted(name).try_set_permits(1).await.unwrap();
        let permit = counted(name).acquire().await.unwrap();
        finish(polls.run(permit.release()).await);
    })
    .await;
    Polls::sweep(&scene.proxy, "set permits", async |name, polls| {
        finish(polls.run(counted(name).try_set_permits(1)).await);
    })
    .await;
    Polls::sweep(&scene.proxy, "add", async |name, polls| {
        finish(polls.run(counted(name).add_permits(1)).await);
    })
    .await;
    Polls::sweep(&scene.proxy, "drain", async |name, polls| {
        finish(polls.run(counted(name).drain_permits()).await);
    })
    .await;
    Polls::sweep(&scene.proxy, "set a count", async |name, polls| {
        finish(polls.run(latches(name).try_set_count(1)).await);
    })
    .await;
    Polls::sweep(&scene.proxy, "count down", async |name, polls| {
        finish(polls.run(latches(name).count_down()).await);
    })
    .await;
    Polls::sweep(&scene.proxy, "delete", async |name, polls| {
        finish(polls.run(latches(name).delete()).await);
    })
    .await;
    let mut probe = scene.server.connection();
    eventually("no mark is left", async || {
        !probe.keys().iter().any(|key| key.starts_with("redlatch_"))
    })
    .await;
}

/// The request was sent over two connections when its caller gives up. What undoes it goes over the second one, and the
/// copy from the first one comes after that.
#[tokio::test(flavor = "multi_thread")]
async fn copy_from_an_earlier_connection_takes_no_permit_of_a_dropped_call() {
    let scene = Scene::open(patient).await;
    for script in ["semaphore_acquire", "permit_acquire"] {
        let (counted, expirable) = (
            scene.client.semaphore(script),
            scene.client.expirable_semaphore(script),
        );
        counted.try_set_permits(2).await.unwrap();
        let late = scene.proxy.hold_request(sha(script));
        let mut again = scene.proxy.stop(sha(script));
        tokio::select! {
            biased;
            () = again.reached() => {}
            _ = async {
                match script {
                    "permit_acquire" => expirable.acquire().await.map(drop),
                    _ => counted.acquire().await.map(drop),
                }
            } => panic!("it was stopped"),
        }
        again.open();
        let mut probe = scene.server.connection();
        let beside = format!("redlatch_permit:{{{script}}}:");
        eventually("it is undone", async || {
            let marks = probe.keys().into_iter();
            marks.filter(|key| key.starts_with(&beside)).count() == 1
                && format!("{:?}", scene.client).contains("permits: 0,")
        })
        .await;
        scene.requests_have_run().await;
        late.deliver().await;
        assert_eq!(counted.available_permits().await.unwrap(), 2, "{script}");
    }
}

/// The first request names a script that the server does not know, so the call has another one to send. Whether it
/// comes to that depends on which is faster, the call or the end.
#[tokio::test(flavor = "multi_thread")]
async fn call_that_sends_again_behind_the_end_of_its_client_takes_no_permit() {
    let scene = Scene::open(patient).await;
    let elsewhere = scene.other.semaphore("s");
    elsewhere.try_set_permits(2).await.unwrap();
    let mut admin = scene.server.connection();
    admin.command(&["SCRIPT", "FLUSH", "SYNC"]);
    let client = &scene.client;
    let permits = async |shown: &str| {
        eventually(shown, async || format!("{client:?}").contains(shown)).await;
    };
    scene.proxy.hold_replies();
    let close = async {
        permits("permits: 1,").await;
        let release = async {
            permits("permits: 0,").await;
            eventually("there is a mark", async || {
                let keys = scene.server.connection().keys();
                keys.iter()
                    .any(|key| key.starts_with("redlatch_permit:{s}:"))
            })
            .await;
            scene.proxy.release_replies();
        };
        tokio::join!(client.close(), release);
    };
    let semaphore = client.semaphore("s");
    let (acquired, ()) = tokio::join!(semaphore.acquire(), close);
    assert_eq!(acquired.unwrap_err().kind(), ErrorKind::Closed);
    assert_eq!(elsewhere.available_permits().await.unwrap(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn dropped_query_changes_nothing() {
    let scene = Scene::open(patient).await;
    type Query = for<'a> fn(&'a ReentrantLock) -> Boxed<'a, ()>;
    let queries: [(&str, Query); 5] = [
        ("is_locked", |lock| {
            Box::pin(async { lock.is_locked().await.map(drop) })
        }),
        ("is_held", |lock| {
            Box::pin(async { lock.is_held().await.map(drop) })
        }),
        ("hold_count", |lock| {
            Box::pin(async { lock.hold_count().await.map(drop) })
        }),
        ("remaining_lease", |lock| {
            Box::pin(async { lock.remaining_lease().await.map(drop) })
        }),
        ("holder", |lock| {
            Box::pin(async { lock.holder().await.map(drop) })
        }),
    ];
    for (query, call) in queries {
        Polls::sweep(&scene.proxy, query, async |name, polls| {
            let lock = scene.client.lock(name);
            let guard = take(&lock).await;
            let before = scene.server.connection().hgetall(name);
            finish(polls.run(call(&lock)).await);
            scene.settles_at(name, 1).await;
            assert_eq!(scene.server.connection().hgetall(name), before);
            keeps(&scene, name, guard).await;
        })
        .await;
    }
    scene.ends_clean().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn dropped_force_unlock_ends_the_holds_of_this_process() {
    let scene = Scene::open(patient).await;
    Polls::sweep(&scene.proxy, "force_unlock", async |name, polls| {
        let guard = take(&scene.client.lock(name)).await;
        let _inner = guard.reenter().await.expect("the hold stands");
        finish(polls.run(scene.client.lock(name).force_unlock()).await);
        assert!(guard.is_lost());
        is_free(&scene, name).await;
    })
    .await;
    scene.ends_clean().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn dropped_close_goes_on_in_the_background() {
    let scene = Scene::open(patient).await;
    let before = scene.proxy.connections();
    Polls::sweep(&scene.proxy, "close", async |name, polls| {
        let closing = builder(scene.proxy.url())
            .build()
            .await
            .expect("the server is up");
        let guard = take(&closing.lock(name)).await;
        let inner = guard.reenter().await.expect("the hold stands");
        polls.run(closing.close()).await;
        guard.lost().await;
        assert!(inner.is_lost());
        let late = closing.lock(name).lock().await.map(drop);
        assert_eq!(late.map_err(|error| error.kind()), Err(ErrorKind::Closed));
        is_free(&scene, name).await;
        eventually("its connections end", async || {
            scene.proxy.connections() == before
        })
        .await;
    })
    .await;
    scene.ends_clean().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn close_gives_back_what_is_granted_meanwhile() {
    let scene = Scene::open(patient).await;
    let closing = builder(scene.proxy.url())
        .build()
        .await
        .expect("the server is up");
    scene.proxy.hold_replies();
    let lock = closing.lock("granted");
    let granted = tokio::spawn(async move { lock.lock().await.map(drop) });
    eventually("granted", async || scene.levels("granted") == 1).await;
    let mut close = Box::pin(closing.close());
    let early = timeout(Duration::from_millis(200), &mut close).await;
    assert!(early.is_err(), "closed before the answer");
    scene.proxy.release_replies();
    timeout(PROMPT, close).await.expect("the server answers");
    let closed = granted.await.expect("the call is sound");
    assert_eq!(closed.map_err(|error| error.kind()), Err(ErrorKind::Closed));
    let next = scene.other.lock("granted").try_lock().await;
    let next = next.expect("an answer").expect("free at once");
    next.unlock().await.expect("held until now");
    scene.ends_clean().await;
}

// fault: S55
#[tokio::test(flavor = "multi_thread")]
async fn two_thousand_dropped_waits_leave_no_growth() {
    let scene = Scene::open(patient).await;
    let holder = take(&scene.other.lock("busy")).await;
    let mut connection = scene.server.connection();
    let mut clients = || {
        connection
            .command(&["CLIENT", "LIST"])
            .text()
            .lines()
            .count()
    };
    let metrics = tokio::runtime::Handle::current().metrics();
    let baseline = (clients(), metrics.num_alive_tasks(), scene.proxy.accepted());
    let lock = scene.client.lock("busy");
    for round in 0..2_000 {
        let branch = async {
            for _ in 0..round % 7 {
                tokio::task::yield_now().await;
            }
            if round % 400 == 399 {
                assert!(scene.server.connection().channels().len() <= 1);
            }
        };
        tokio::select! {
            biased;
            guard = lock.lock() => panic!("held by another, but got {guard:?}"),
            () = branch => {}
        }
    }
    scene.settles_at("busy", 1).await;
    holder.verify().await.expect("the holder was never touched");
    // Not equal: what only began or ended when they were counted first may be gone.
    eventually(
        "there are no more connections and tasks than before",
        async || {
            let counts = [
                (clients(), baseline.0),
                (metrics.num_alive_tasks(), baseline.1),
                (scene.proxy.accepted(), baseline.2),
            ];
            counts.iter().all(|(now, before)| now <= before)
        },
    )
    .await;
    holder.unlock().await.expect("held until now");
    scene.lets_the_next_in("busy").await;
    scene.ends_clean().await;
}
