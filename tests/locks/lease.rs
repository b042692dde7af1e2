//! How long a hold lasts: renewal, fixed leases, loss, and what a guard reports of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::support::probe::{
    begin, calls_of, eventually_free, kind, millis, nothing_left, reset_calls, secs, soon, stranger,
};
use crate::support::scene::Scene;
use crate::support::{builder, eventually, start, start_two};
use redlatch::{Client, ErrorKind, LockGuard};
use redlatch_testkit::{Proxy, Server};

/// Connects a client whose holds end soon if they are not renewed.
async fn short_leased(server: &Server) -> Client {
    builder(server.url())
        .watchdog_lease(millis(300))
        .build()
        .await
        .unwrap()
}

async fn eventually_renewed(guard: &LockGuard) {
    let mut left = guard.remaining();
    eventually("it is renewed", async || {
        let before = std::mem::replace(&mut left, guard.remaining());
        left > before
    })
    .await;
}

/// Returns how long the server still keeps the key, and how long its holder may rely on that at the same time.
fn ttl_and_promise(server: &Server, guard: &LockGuard) -> (Duration, Duration) {
    let mut probe = server.connection();
    let promise = guard.remaining();
    let asked = Instant::now();
    let ttl = probe.pttl("k");
    // The promise was read first, so the time that passed in between is added to the server's TTL.
    let ttl = millis(u64::try_from(ttl).expect("a key with an end")) + asked.elapsed();
    (ttl, promise)
}

#[tokio::test]
async fn long_job_is_renewed_over_many_leases() {
    let server = Server::start();
    let builder = builder(server.url()).watchdog_lease(secs(1));
    let client = builder.build().await.unwrap();
    let lock = client.lock("k");
    let guard = lock.lock().await.unwrap();
    let mut probe = server.connection();
    tokio::select! {
        _ = guard.lost() => panic!("it was renewed"),
        () = tokio::time::sleep(secs(4)) => {}
    }
    let ttl = probe.pttl("k");
    assert!((1..=1_000).contains(&ttl), "{ttl}");
    assert!(stranger(&lock).try_lock().await.unwrap().is_none());
    guard.verify().await.unwrap();
    guard.unlock().await.unwrap();
    nothing_left(&server, [&client]).await;
}

#[tokio::test]
async fn many_holds_are_renewed_by_few_scripts() {
    let server = Server::start();
    let client = builder(server.url())
        .watchdog_lease(secs(2))
        .build()
        .await
        .unwrap();
    let mut guards = Vec::new();
    for number in 0..250 {
        guards.push(client.lock(format!("k{number}")).lock().await.unwrap());
    }
    let mut probe = server.connection();
    reset_calls(&mut probe);
    tokio::time::sleep(secs(4)).await;
    let scripts = calls_of(&mut probe, "evalsha");
    let renewals = calls_of(&mut probe, "hget");
    assert!(renewals >= 4 * 250, "each lock several times: {renewals}");
    assert!(
        scripts <= renewals / 4,
        "{scripts} scripts for {renewals} renewals"
    );
    for guard in guards {
        assert!(!guard.is_lost());
        guard.unlock().await.unwrap();
    }
    nothing_left(&server, [&client]).await;
}

#[tokio::test]
async fn promise_ends_before_the_servers_key() {
    let (server, client) = start().await;
    for (lock, margin) in [
        (client.lock("k").lease(secs(100)), millis(1_001)),
        (client.lock("k"), millis(301)),
    ] {
        let guard = lock.lock().await.unwrap();
        let check = |when: &str| {
            let (ttl, promise) = ttl_and_promise(&server, &guard);
            assert!(promise + margin <= ttl, "{when}: {promise:?} of {ttl:?}");
            assert!(promise > secs(20), "{when}: {promise:?}");
        };
        check("granted");
        let again = lock.lock().await.unwrap();
        check("re-entered");
        again.unlock().await.unwrap();
        guard.extend(secs(200)).await.unwrap();
        check("extended");
        guard.unlock().await.unwrap();
    }
    nothing_left(&server, [&client]).await;
}

#[tokio::test]
async fn fixed_lease_is_not_renewed_and_its_loss_comes_before_its_end() {
    let (server, client, other) = start_two().await;
    // The holder is told a hundredth of the lease before its end.
    let lease = secs(15);
    let mut probe = server.connection();
    let guard = client.lock("k").lease(lease).lock().await.unwrap();
    let granted = Instant::now();
    let next = other.lock("k");
    let waiting = tokio::spawn(async move { next.lock().await });
    guard.lost().await;
    let ttl = probe.pttl("k");
    assert!(ttl > 0, "the server had it still: {ttl}");
    assert!(
        probe
            .hgetall("k")
            .contains_key(&client.owner_field(guard.owner()))
    );
    assert!(
        granted.elapsed() > lease - millis(500),
        "and not much too early"
    );
    assert!(guard.is_lost());
    assert_eq!(guard.remaining(), millis(0));
    assert_eq!(kind(guard.unlock().await), ErrorKind::LeaseLost);
    let next = soon(waiting).await.unwrap().unwrap();
    next.unlock().await.unwrap();
    nothing_left(&server, [&client, &other]).await;
}

// fault: S41
#[tokio::test]
async fn blocked_runtime_sees_the_loss_at_its_first_look() {
    let (server, client) = start().await;
    let lease = millis(500);
    let guard = client.lock("k").lease(lease).lock().await.unwrap();
    // No timer and no task of this runtime runs meanwhile.
    std::thread::sleep(lease);
    assert!(guard.is_lost());
    assert_eq!(guard.remaining(), millis(0));
    let never = guard.run_until_lost(async { panic!("the lease is over") });
    assert_eq!(kind::<()>(never.await), ErrorKind::LeaseLost);
    nothing_left(&server, [&client]).await;
}

#[tokio::test]
async fn next_owner_gets_in_when_a_fixed_lease_ends() {
    let (server, client, other) = start_two().await;
    let guard = client.lock("k").lease(millis(500)).lock().await.unwrap();
    let next = soon(other.lock("k").lock()).await.unwrap();
    assert!(guard.is_lost(), "lost before anybody else got in");
    assert_eq!(kind(guard.verify().await), ErrorKind::LeaseLost);
    assert_eq!(kind(guard.unlock().await), ErrorKind::LeaseLost);
    next.verify().await.unwrap();
    next.unlock().await.unwrap();
    nothing_left(&server, [&client, &other]).await;
}

#[tokio::test]
async fn kept_lost_guard_does_not_block_its_process() {
    let (server, client) = start().await;
    let lock = client.lock("k").lease(millis(300));
    let lost = lock.lock().await.unwrap();
    let same = soon(lock.lock()).await.unwrap();
    same.unlock().await.unwrap();
    lost.lost().await;
    let next = soon(stranger(&lock).lock()).await.unwrap();
    next.unlock().await.unwrap();
    assert!(lost.is_lost());
    drop(lost);
    nothing_left(&server, [&client]).await;
}

#[tokio::test]
async fn reentry_raises_the_lease_and_never_lowers_it() {
    let (server, client) = start().await;
    let mut probe = server.connection();
    let lock = |lease| client.lock("k").lease(secs(lease));
    // Outer lease, inner lease, and the bounds of the TTL after the re-entry and after the inner release.
    for (outer, inner, least, most) in [(20, 60, 50_000, 60_000), (60, 20, 50_000, 60_000)] {
        let first = lock(outer).lock().await.unwrap();
        for way in 0..2 {
            let second = match way {
                0 => lock(inner).lock().await.unwrap(),
                _ => lock(inner).try_lock().await.unwrap().unwrap(),
            };
            let after = probe.pttl("k");
            assert!((least..=most).contains(&after), "{outer}, {inner}: {after}");
            second.unlock().await.unwrap();
            let after = probe.pttl("k");
            assert!((least..=most).contains(&after), "inner release: {after}");
            assert!(first.remaining() > secs(45), "{:?}", first.remaining());
        }
        first.unlock().await.unwrap();
    }
    nothing_left(&server, [&client]).await;
}

#[tokio::test]
async fn guard_reenters_on_its_own_terms_from_any_task() {
    let (server, client) = start().await;
    let lock = client.lock("k").lease(secs(60));
    let guard = Arc::new(lock.lock().await.unwrap());
    let elsewhere = guard.clone();
    let inner = tokio::spawn(async move { elsewhere.reenter().await })
        .await
        .unwrap()
        .unwrap();
    assert_eq!(inner.owner(), guard.owner());
    assert_eq!(lock.hold_count().await.unwrap(), 2);
    inner.unlock().await.unwrap();
    Arc::into_inner(guard).unwrap().unlock().await.unwrap();
    nothing_left(&server, [&client]).await;
}

#[tokio::test]
async fn fixed_lease_inside_a_renewed_hold_leaves_it_renewed() {
    let server = Server::start();
    let client = short_leased(&server).await;
    let lock = client.lock("k");
    let outer = lock.lock().await.unwrap();
    let inner = lock.clone().lease(millis(200)).lock().await.unwrap();
    let lost = async {
        tokio::select! {
            _ = outer.lost() => {}
            _ = inner.lost() => {}
        }
    };
    let kept = tokio::time::timeout(secs(1), lost).await;
    assert!(
        kept.is_err(),
        "five leases of the inner one are covered by the outer one"
    );
    inner.unlock().await.unwrap();
    let kept = tokio::time::timeout(secs(1), outer.lost()).await;
    assert!(kept.is_err(), "renewal goes on");
    outer.unlock().await.unwrap();
    nothing_left(&server, [&client]).await;
}

#[tokio::test]
async fn renewal_ends_with_the_last_guard_that_asks_for_it() {
    let server = Server::start();
    let builder = builder(server.url()).watchdog_lease(secs(3));
    let client = builder.build().await.unwrap();
    let lock = client.lock("k");
    let fixed = lock.clone().lease(secs(1)).lock().await.unwrap();
    let renewed = lock.lock().await.unwrap();
    eventually_renewed(&fixed).await;
    renewed.unlock().await.unwrap();
    soon(fixed.lost()).await;
    assert_eq!(kind(fixed.unlock().await), ErrorKind::LeaseLost);
    nothing_left(&server, [&client]).await;
}

// fault: S60
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn renewal_on_its_way_is_the_last_when_its_guard_goes() {
    let scene = Scene::open(|builder| builder.watchdog_lease(secs(1))).await;
    let mut probe = scene.server.connection();
    let lock = scene.client.lock("k");
    let guard = lock.lock().await.unwrap();
    drop(lock.lock().await.unwrap().detach());
    scene.proxy.hold_replies();
    let mut left = probe.pttl("k");
    eventually("a renewal", async || {
        let before = std::mem::replace(&mut left, probe.pttl("k"));
        left > before
    })
    .await;
    let unlock = begin(guard.unlock());
    scene.proxy.release_replies();
    soon(unlock).await.unwrap();
    // The level that was left to its owner ends with the lease that it still has.
    eventually_free(&scene.server, "k").await;
    nothing_left(&scene.server, [&scene.client]).await;
}

#[tokio::test]
async fn max_hold_ends_renewal() {
    let server = Server::start();
    let client = builder(server.url())
        .watchdog_lease(millis(300))
        .max_hold(millis(900))
        .build()
        .await
        .unwrap();
    let lock = client.lock("k");
    let started = Instant::now();
    let guard = lock.lock().await.unwrap();
    soon(guard.lost()).await;
    let took = started.elapsed();
    assert!(took >= millis(600), "it was renewed before: {took:?}");
    assert!(took < millis(900 + 300) + secs(1), "{took:?}");
    eventually_free(&server, "k").await;
    assert_eq!(kind(guard.unlock().await), ErrorKind::LeaseLost);
    nothing_left(&server, [&client]).await;
}

// fault: S59
#[tokio::test]
async fn forgotten_guard_blocks_until_max_hold_only() {
    let server = Server::start();
    let client = builder(server.url())
        .watchdog_lease(millis(300))
        .max_hold(millis(600))
        .build()
        .await
        .unwrap();
    let lock = client.lock("k");
    std::mem::forget(lock.lock().await.unwrap());
    let next = soon(stranger(&lock).lock()).await.unwrap();
    next.unlock().await.unwrap();
    nothing_left(&server, [&client]).await;
}

// fault: S42
#[tokio::test]
async fn grant_that_comes_too_late_is_given_back() {
    let server = Server::start();
    let proxy = Proxy::start(server.port()).await;
    let client = Client::builder()
        .url(proxy.url())
        .command_timeout(secs(2))
        .watchdog_lease(secs(12))
        .min_validity(millis(11_500))
        .build()
        .await
        .unwrap();
    let lock = client.lock("k");
    lock.lock().await.unwrap().unlock().await.unwrap();
    proxy.delay(millis(300));
    assert_eq!(kind(lock.try_lock().await), ErrorKind::LeaseLost);
    proxy.delay(millis(0));
    eventually_free(&server, "k").await;
    lock.lock().await.unwrap().unlock().await.unwrap();
    nothing_left(&server, [&client]).await;
}

#[tokio::test]
async fn extend_sets_a_new_lease_from_now() {
    let (server, client) = start().await;
    let mut probe = server.connection();
    let lock = client.lock("k").lease(secs(20));
    let guard = lock.lock().await.unwrap();
    for lease in [60, 10] {
        guard.extend(secs(lease)).await.unwrap();
        let (ttl, promise) = ttl_and_promise(&server, &guard);
        let lease = secs(lease);
        assert!(ttl > lease - secs(5) && ttl <= lease + secs(1), "{ttl:?}");
        assert!(promise > lease - secs(6) && promise < lease, "{promise:?}");
    }
    let inner = lock.lock().await.unwrap();
    inner.extend(secs(5)).await.unwrap();
    assert!(
        probe.pttl("k") > 15_000,
        "never shortened under another guard"
    );
    assert!(guard.remaining() > secs(10), "{:?}", guard.remaining());
    for lease in [millis(0), millis(49), Duration::MAX] {
        assert_eq!(kind(guard.extend(lease).await), ErrorKind::InvalidInput);
    }
    inner.unlock().await.unwrap();
    guard.unlock().await.unwrap();
    nothing_left(&server, [&client]).await;
}

#[tokio::test]
async fn shortened_lease_is_lost_at_its_new_end() {
    let (server, client) = start().await;
    let guard = client.lock("k").lease(secs(60)).lock().await.unwrap();
    guard.extend(millis(300)).await.unwrap();
    soon(guard.lost()).await;
    eventually_free(&server, "k").await;
    assert_eq!(kind(guard.extend(secs(9)).await), ErrorKind::LeaseLost);
    drop(guard);
    nothing_left(&server, [&client]).await;
}

#[tokio::test]
async fn extended_hold_of_a_renewed_guard_stays_renewed() {
    let server = Server::start();
    let builder = builder(server.url()).watchdog_lease(secs(3));
    let client = builder.build().await.unwrap();
    let guard = client.lock("k").lock().await.unwrap();
    guard.extend(millis(100)).await.unwrap();
    eventually_renewed(&guard).await;
    guard.verify().await.unwrap();
    guard.unlock().await.unwrap();
    nothing_left(&server, [&client]).await;
}

// fault: S9
#[tokio::test]
async fn every_guard_learns_at_the_next_renewal_that_the_key_is_gone() {
    let server = Server::start();
    let client = builder(server.url())
        .watchdog_lease(secs(3))
        .build()
        .await
        .unwrap();
    let lock = client.lock("k");
    let guards = [
        lock.lock().await.unwrap(),
        lock.clone().lease(secs(60)).lock().await.unwrap(),
    ];
    server.connection().command(&["DEL", "k"]);
    let gone = Instant::now();
    for guard in &guards {
        soon(guard.lost()).await;
    }
    assert!(
        gone.elapsed() < secs(2),
        "a third of the lease, and what a busy machine may add"
    );
    for guard in guards {
        assert_eq!(kind(guard.unlock().await), ErrorKind::LeaseLost);
    }
    nothing_left(&server, [&client]).await;
}

// fault: S64
#[tokio::test]
async fn expired_and_retaken_lock_is_not_touched_by_the_old_holder() {
    let (server, client, other) = start_two().await;
    let old = client.lock("k").lock().await.unwrap();
    server.connection().command(&["DEL", "k"]);
    let new = other.lock("k").lock().await.unwrap();
    let before = server.connection().hgetall("k");
    assert_eq!(kind(old.unlock().await), ErrorKind::LeaseLost);
    assert_eq!(server.connection().hgetall("k"), before);
    new.unlock().await.unwrap();
    nothing_left(&server, [&client, &other]).await;
}

#[tokio::test]
async fn work_under_a_guard_stops_when_the_lease_is_lost() {
    /// Records that the work was dropped.
    struct Dropped(Arc<AtomicBool>);
    impl Drop for Dropped {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Release);
        }
    }
    let (server, client) = start().await;
    let lock = client.lock("k");
    let guard = lock.lock().await.unwrap();
    let sum = guard
        .run_until_lost(async { lock.hold_count().await.unwrap() + 1 })
        .await;
    assert_eq!(sum.unwrap(), 2);

    let dropped = Arc::new(AtomicBool::new(false));
    let mark = Dropped(dropped.clone());
    let work = async move {
        let _mark = mark;
        std::future::pending::<()>().await;
    };
    let (ran, forced) = tokio::join!(soon(guard.run_until_lost(work)), lock.force_unlock());
    assert!(forced.unwrap());
    assert_eq!(kind(ran), ErrorKind::LeaseLost);
    assert!(dropped.load(Ordering::Acquire));
    let never = guard
        .run_until_lost(async { panic!("the lease is lost") })
        .await;
    assert_eq!(kind::<()>(never), ErrorKind::LeaseLost);
    drop(guard);
    nothing_left(&server, [&client]).await;
}

#[tokio::test]
async fn loss_is_final_even_if_the_key_comes_back() {
    let server = Server::start();
    let client = builder(server.url())
        .watchdog_lease(millis(600))
        .build()
        .await
        .unwrap();
    let guard = client.lock("k").lock().await.unwrap();
    let mut probe = server.connection();
    let fields = probe.hgetall("k");
    probe.command(&["DEL", "k"]);
    soon(guard.lost()).await;
    for (field, value) in &fields {
        probe.command(&["HSET", "k", field, value]);
    }
    assert!(guard.is_lost());
    assert_eq!(kind(guard.verify().await), ErrorKind::LeaseLost);
    assert_eq!(kind(guard.reenter().await), ErrorKind::LeaseLost);
    assert_eq!(kind(guard.unlock().await), ErrorKind::LeaseLost);
    probe.command(&["DEL", "k"]);
    nothing_left(&server, [&client]).await;
}
