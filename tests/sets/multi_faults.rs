//! Sets of locks under faults: what was taken is released, whatever happens to the call, the network or the server.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::support::polls::Polls;
use crate::support::probe::{eventually_heard, kind, millis, nothing_left, secs, soon};
use crate::support::scene::{Scene, patient};
use crate::support::{builder, client, eventually, eventually_idle, sha, start, start_two};
use redlatch::{Client, ErrorKind, LockGuard, Member, MultiGuard, MultiLock, Owner};
use redlatch_testkit::{Proxy, Server};

/// Returns two members that one request acquires, one that needs its own, and one more of the first kind.
fn members(client: &Client, name: &str) -> [Member; 4] {
    [
        client.lock(format!("{name}:a")).into(),
        client.lock(format!("{name}:b")).into(),
        client.fair_lock(format!("{name}:c")).into(),
        client.lock(format!("{name}:d")).into(),
    ]
}

fn set(client: &Client, name: &str) -> MultiLock {
    MultiLock::new(members(client, name)).owned_by(&Owner::unique())
}

fn pair(client: &Client) -> MultiLock {
    MultiLock::new([client.lock("a"), client.lock("b")]).owned_by(&Owner::unique())
}

async fn give_back(guard: MultiGuard) {
    guard.unlock().await.unwrap();
}

/// Runs `call` and drops the reply to this script meanwhile.
async fn unanswered<T>(scene: &Scene, script: &str, call: impl Future<Output = T>) -> T {
    scene.proxy.cut_reply_to(sha(script));
    let output = call.await;
    assert!(!scene.proxy.cut_reply_armed(), "no {script} was sent");
    output
}

// fault: S54
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dropped_acquisition_leaves_nothing_held() {
    let scene = Scene::open(patient).await;
    for verb in ["lock", "try_lock", "try_lock_for"] {
        Polls::sweep(&scene.proxy, verb, async |name, polls| {
            let set = set(&scene.client, name);
            let guard = async {
                match verb {
                    "lock" => set.lock().await.map(Some),
                    "try_lock" => set.try_lock().await,
                    _ => set.try_lock_for(secs(60)).await,
                }
            };
            drop(polls.run(guard).await);
            next_gets_in(&scene, name).await;
        })
        .await;
    }
    nothing_left(&scene.server, [&scene.client, &scene.other]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dropped_wait_leaves_nothing_held() {
    let scene = Scene::open(patient).await;
    for busy in ["a", "b", "c", "d"] {
        Polls::sweep(&scene.proxy, busy, async |name, polls| {
            let held = format!("{name}:{busy}");
            let guard = match busy {
                "c" => scene.other.fair_lock(held).lock().await.unwrap(),
                _ => scene.other.lock(held).lock().await.unwrap(),
            };
            let set = set(&scene.client, name);
            let release = async { guard.unlock().await.unwrap() };
            drop(polls.run_until(set.lock(), release).await);
            next_gets_in(&scene, name).await;
        })
        .await;
    }
    nothing_left(&scene.server, [&scene.client, &scene.other]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dropped_unlock_gives_all_back() {
    let scene = Scene::open(patient).await;
    Polls::sweep(&scene.proxy, "unlock", async |name, polls| {
        let guard = set(&scene.client, name).lock().await.unwrap();
        polls.run(guard.unlock()).await;
        next_gets_in(&scene, name).await;
    })
    .await;
    nothing_left(&scene.server, [&scene.client, &scene.other]).await;
}

/// Checks that the next owner acquires all of them, long before a lease could end.
async fn next_gets_in(scene: &Scene, name: &str) {
    let next = set(&scene.other, name).try_lock_for(secs(10)).await;
    give_back(next.unwrap().expect(name)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_replies_count_nothing_twice() {
    let scene = Scene::open(patient).await;
    let set = pair(&scene.client);
    for _ in 0..50 {
        let guard = unanswered(&scene, "lock_acquire_all", set.lock())
            .await
            .unwrap();
        assert_eq!((scene.levels("a"), scene.levels("b")), (1, 1));
        guard.verify().await.unwrap();
        unanswered(&scene, "lock_release_all", guard.unlock())
            .await
            .unwrap();
        assert_eq!((scene.levels("a"), scene.levels("b")), (0, 0));
    }
    scene.lets_the_next_in("a").await;
    scene.ends_clean().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn release_that_ran_at_its_first_try_is_no_loss_though_the_lock_is_anothers_at_the_second() {
    let scene = Scene::open(patient).await;
    let plain = scene.client.plain_lock("a");
    let set = MultiLock::new([Member::from(plain), scene.other.lock("b").into()]);
    let guard = set.lock().await.unwrap();
    scene.proxy.cut_reply_to(sha("plain_release"));
    let mut again = scene.proxy.stop(sha("plain_release"));
    let unlocking = tokio::spawn(guard.unlock());
    soon(again.reached()).await;
    let next = scene.other.plain_lock("a").try_lock().await.unwrap();
    again.open();
    soon(unlocking).await.unwrap().unwrap();
    let next = next.expect("the first try was carried out");
    next.unlock().await.unwrap();
    scene.ends_clean().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn late_packets_leave_the_next_holds_of_the_owner_alone() {
    let scene = Scene::open(patient).await;
    let set = pair(&scene.client);
    for script in ["lock_acquire_all", "lock_release_all"] {
        let (first, mut late);
        if script == "lock_acquire_all" {
            late = scene.proxy.hold_request(sha(script));
            let (taken, ()) = tokio::join!(set.lock(), late.caught());
            taken.unwrap().unlock().await.unwrap();
        } else {
            first = set.lock().await.unwrap();
            late = scene.proxy.hold_request(sha(script));
            let (unlocked, ()) = tokio::join!(first.unlock(), late.caught());
            unlocked.unwrap();
        }
        let second = set.lock().await.unwrap();
        late.deliver().await;
        assert_eq!((scene.levels("a"), scene.levels("b")), (1, 1), "{script}");
        second.verify().await.unwrap();
        give_back(second).await;
        assert_eq!((scene.levels("a"), scene.levels("b")), (0, 0), "{script}");
    }
    scene.ends_clean().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn crashed_holder_frees_all_within_their_leases() {
    let server = Server::start();
    let lease = secs(2);
    let url = server.url();
    // The holder's runtime ends, and with it everything that could renew or release.
    let holder = std::thread::spawn(move || {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        runtime.block_on(async {
            let client = builder(url).watchdog_lease(lease).build().await.unwrap();
            let guard = set(&client, "k").lock().await.unwrap();
            std::mem::forget((guard, client));
        });
        runtime.shutdown_background();
    });
    holder.join().unwrap();
    let crashed = Instant::now();
    let client = client(&server).await;
    let guard = soon(set(&client, "k").lock()).await.unwrap();
    let took = crashed.elapsed();
    assert!(took < lease + millis(500), "{took:?}");
    give_back(guard).await;
    nothing_left(&server, [&client]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_member_is_a_lost_set() {
    let server = Server::start();
    let client = builder(server.url())
        .watchdog_lease(secs(1))
        .build()
        .await
        .unwrap();
    let mut probe = server.connection();
    for call in ["verify", "extend", "renewal", "unlock"] {
        let guard = set(&client, "k").lock().await.unwrap();
        probe.command(&["DEL", "k:b"]);
        match call {
            "verify" => assert_eq!(kind(guard.verify().await), ErrorKind::LeaseLost),
            "extend" => assert_eq!(kind(guard.extend(secs(9)).await), ErrorKind::LeaseLost),
            "renewal" => {
                let ended = soon(guard.run_until_lost(std::future::pending::<()>())).await;
                assert_eq!(kind(ended), ErrorKind::LeaseLost);
            }
            _ => {}
        }
        if call != "unlock" {
            soon(guard.lost()).await;
            assert!(guard.is_lost() && guard.remaining().is_zero());
        }
        assert_eq!(kind(guard.unlock().await), ErrorKind::LeaseLost, "{call}");
        eventually("the others are free", async || probe.keys().is_empty()).await;
    }
    nothing_left(&server, [&client]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn member_that_is_lost_while_the_set_waits_for_others_is_told_in_the_end() {
    let server = Server::start();
    let hasty = builder(server.url()).watchdog_lease(millis(600));
    let (client, other) = (hasty.build().await.unwrap(), client(&server).await);
    let busy = other.lock("b").lock().await.unwrap();
    let set = pair(&client).hold_and_wait(Duration::MAX);
    let waiting = tokio::spawn(async move { set.lock().await });
    eventually_heard(&server, "b", 1).await;
    server.connection().command(&["DEL", "a"]);
    eventually("the loss is seen", async || {
        format!("{client:?}").contains("holds: 0")
    })
    .await;
    busy.unlock().await.unwrap();
    let lost = soon(waiting).await.unwrap();
    assert_eq!(kind(lost), ErrorKind::LeaseLost);
    nothing_left(&server, [&client, &other]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fixed_lease_lasts_while_the_set_waits_for_others() {
    let (server, client, other) = start_two().await;
    let lease = millis(600);
    let busy = other.lock("b").lock().await.unwrap();
    let fixed = [
        Member::from(client.lock("a").lease(lease)),
        client.lock("b").into(),
    ];
    let set = MultiLock::new(fixed).owned_by(&Owner::unique());
    let set = set.hold_and_wait(Duration::MAX);
    let waiting = tokio::spawn(async move { set.lock().await });
    eventually_heard(&server, "b", 1).await;
    let end = Instant::now() + lease * 4;
    while Instant::now() < end {
        assert!(other.lock("a").try_lock().await.unwrap().is_none());
        tokio::time::sleep(millis(10)).await;
    }
    busy.unlock().await.unwrap();
    let guard = soon(waiting).await.unwrap().unwrap();
    // At least this much lease would be left for a lock acquired alone, too.
    assert!(guard.remaining() > lease / 3, "{:?}", guard.remaining());
    // From now on nobody renews the lease.
    soon(guard.lost()).await;
    assert_eq!(kind(guard.unlock().await), ErrorKind::LeaseLost);
    nothing_left(&server, [&client, &other]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streaks_do_not_starve_a_set() {
    let (server, client, other) = start_two().await;
    let stop = Arc::new(AtomicBool::new(false));
    let mut tasks = Vec::new();
    for client in [&client, &other] {
        for name in ["a", "b", "c", "a", "b", "c"] {
            let lock = client.lock(name).owned_by(&Owner::unique());
            let stop = stop.clone();
            tasks.push(tokio::spawn(async move {
                while !stop.load(Ordering::SeqCst) {
                    lock.lock().await.unwrap().unlock().await.unwrap();
                }
            }));
        }
    }
    let set = MultiLock::new(["c", "a", "b"].map(|name| client.lock(name)));
    for _ in 0..20 {
        give_back(soon(set.lock()).await.unwrap()).await;
    }
    stop.store(true, Ordering::SeqCst);
    for task in tasks {
        task.await.unwrap();
    }
    nothing_left(&server, [&client, &other]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn member_that_fails_is_named_and_the_others_are_given_back() {
    let (near, far) = (Server::start(), Server::start());
    let proxy = Proxy::start(far.port()).await;
    let client = client(&near).await;
    let away = builder(proxy.url()).build().await.unwrap();
    let set = MultiLock::new([client.lock("a"), client.lock("b"), away.lock("z")]);
    give_back(set.lock().await.unwrap()).await;
    proxy.black_hole(true);
    for wait in [millis(0), millis(400)] {
        let error = set.try_lock_for(wait).await.unwrap_err();
        assert!(matches!(
            error.kind(),
            ErrorKind::Timeout | ErrorKind::Backend
        ));
        assert!(error.to_string().contains("\"z\""), "{error}");
        eventually("the others are free", async || {
            near.connection().keys().is_empty()
        })
        .await;
    }
    proxy.black_hole(false);
    let next = MultiLock::new([away.lock("z"), client.lock("a")]);
    give_back(soon(next.lock()).await.unwrap()).await;

    // For members acquired together, the script tells which one it was.
    near.connection().command(&["SET", "b", "no lock"]);
    let error = set.try_lock().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::WrongKind);
    assert!(error.to_string().contains("\"b\""), "{error}");
    assert_eq!(near.connection().keys(), ["b"]);
}

#[tokio::test]
async fn server_out_of_memory_refuses_all_or_none_and_lets_go_of_all() {
    let (server, client) = start().await;
    let mut admin = server.connection();
    let set = pair(&client);
    let guard = set.lock().await.unwrap();
    admin.command(&["CONFIG", "SET", "maxmemory", "1"]);
    give_back(guard).await;
    assert_eq!(admin.keys(), [""; 0]);
    assert_eq!(kind(set.try_lock().await), ErrorKind::Backend);
    assert_eq!(admin.keys(), [""; 0]);
    admin.command(&["CONFIG", "SET", "maxmemory", "0"]);
    give_back(set.lock().await.unwrap()).await;
    nothing_left(&server, [&client]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_here_are_handed_what_a_set_gives_back() {
    let (server, client) = start().await;
    let guard = pair(&client).lock().await.unwrap();
    let waiting = ["a", "b"].map(|name| {
        let lock = client.lock(name).owned_by(&Owner::unique());
        tokio::spawn(async move { lock.lock().await })
    });
    for name in ["a", "b"] {
        eventually_heard(&server, name, 1).await;
    }
    give_back(guard).await;
    for task in waiting {
        let guard: LockGuard = soon(task).await.unwrap().unwrap();
        guard.unlock().await.unwrap();
    }
    eventually_idle(&client).await;
    nothing_left(&server, [&client]).await;
}
