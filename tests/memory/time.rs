//! Time that a test moves: hours of leases in moments, each event at its own instant.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use redlatch::config::Prefer;
use redlatch::{Client, LockGuard, MemoryServer, Owner, RedLock};
use tokio::sync::mpsc;
use tokio::time::{Instant, advance, sleep, timeout};

use crate::sets::client_at;
use crate::support::probe::{millis, secs, stranger};
use crate::{client, counted, three, two};

#[tokio::test(start_paused = true)]
async fn lease_is_renewed_for_hours_in_a_moment() {
    let real = std::time::Instant::now();
    let (_server, client, other) = two().await;
    let guard = client.lock("job").lock().await.unwrap();
    let started = Instant::now();
    for _ in 0..60 {
        sleep(secs(60)).await;
        assert!(!guard.is_lost());
        assert!(other.lock("job").try_lock().await.unwrap().is_none());
    }
    assert_eq!(started.elapsed(), secs(3600));
    guard.unlock().await.unwrap();
    assert!(real.elapsed() < secs(60), "by the clock of this computer");
}

#[tokio::test(start_paused = true)]
async fn waiter_elsewhere_is_woken_at_the_instant_of_the_unlock() {
    let (_server, client, other) = two().await;
    let guard = client.lock("job").lock().await.unwrap();
    let waiter = tokio::spawn(async move {
        let guard = other.lock("job").lock().await.unwrap();
        (guard, Instant::now())
    });
    sleep(millis(7_777)).await;
    let freed = Instant::now();
    guard.unlock().await.unwrap();
    let (guard, woken) = waiter.await.unwrap();
    assert_eq!(woken, freed);
    guard.unlock().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn no_request_takes_any_time() {
    let (_server, client, other) = two().await;
    let started = Instant::now();
    for _ in 0..100 {
        let guard = client.fair_lock("job").lock().await.unwrap();
        assert!(other.fair_lock("job").try_lock().await.unwrap().is_none());
        guard.unlock().await.unwrap();
        let permit = other.semaphore("permits");
        permit.try_set_permits(1).await.unwrap();
        permit.acquire().await.unwrap().release().await.unwrap();
    }
    assert_eq!(started.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn lock_of_a_crashed_holder_is_free_after_its_lease() {
    let (_server, client, other) = two().await;
    let started = Instant::now();
    let lock = client.lock("job").lease(secs(30));
    std::mem::forget(lock.lock().await.unwrap());
    let guard = other.lock("job").lock().await.unwrap();
    let took = started.elapsed();
    // A little earlier: the client gives a lease up before the server does.
    assert!(took > secs(29) && took < secs(30) + millis(50), "{took:?}");
    guard.unlock().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn lease_ends_when_the_clock_is_advanced() {
    let (_server, client, other) = two().await;
    let lock = client.lock("job").lease(secs(30));
    let guard: LockGuard = lock.lock().await.unwrap();
    let left = guard.remaining();
    assert!(left > secs(28) && left <= secs(30), "{left:?}");
    advance(secs(10)).await;
    assert_eq!(guard.remaining(), left - secs(10));
    advance(secs(21)).await;
    assert!(guard.is_lost());
    timeout(secs(1), guard.lost()).await.unwrap();
    let next = other.lock("job").try_lock().await.unwrap();
    next.expect("free").unlock().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn wait_ends_at_its_limit_exactly() {
    let (_server, client, other) = two().await;
    let guard = client.lock("job").lock().await.unwrap();
    let started = Instant::now();
    let lock = stranger(&other.lock("job"));
    assert!(lock.try_lock_for(secs(45)).await.unwrap().is_none());
    let took = started.elapsed();
    assert!(took >= secs(45) && took < secs(45) + millis(5), "{took:?}");
    guard.unlock().await.unwrap();
}

/// Those behind the first ask nobody: no patience of theirs runs out, which is one lease.
#[tokio::test(start_paused = true)]
async fn waiters_of_a_red_lock_keep_their_order_however_long_they_wait() {
    let clients = three(secs(1)).await;
    let red = || {
        let locks = clients.iter().map(|client| client.lock("job"));
        RedLock::new(locks).owned_by(&Owner::unique())
    };
    let guard = red().lock().await.unwrap();
    let (tells, mut told) = mpsc::unbounded_channel();
    for number in 0..4 {
        let (lock, tells) = (red(), tells.clone());
        tokio::spawn(async move {
            let guard = lock.lock().await.unwrap();
            tells.send(number).unwrap();
            guard.unlock().await.unwrap();
        });
        sleep(millis(400)).await;
    }
    guard.unlock().await.unwrap();
    for number in 0..4 {
        assert_eq!(told.recv().await, Some(number));
    }
}

/// What the server said last is so old that it is asked again when the second reader joins. That tells of the writer.
#[tokio::test(start_paused = true)]
async fn reader_joins_none_past_a_writer_that_waits_elsewhere() {
    for prefer in [Prefer::Arrival, Prefer::Writers] {
        let (_server, here, there) = two().await;
        let lock = |client: &Client| {
            let lock = client.read_write_lock("job").prefer(prefer);
            lock.owned_by(&Owner::unique())
        };
        let first = lock(&here).read().await.unwrap();
        let writes = lock(&there);
        let writer = tokio::spawn(async move { writes.write().await });
        sleep(millis(8)).await;
        let second = lock(&here).try_read().await.unwrap();
        let second = second.expect("it joins");
        sleep(millis(1)).await;
        assert!(lock(&here).try_read().await.unwrap().is_none());
        first.unlock().await.unwrap();
        second.unlock().await.unwrap();
        writer.await.unwrap().unwrap().unlock().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn readers_of_one_process_go_together() {
    let (server, here, there) = two().await;
    let scripts = counted(&server, |words| words[0].starts_with(b"EVAL"));
    let writer = stranger(&there.read_write_lock("k").writer());
    let writer = writer.lock().await.unwrap();
    let reader = |_| {
        let lock = stranger(&here.read_write_lock("k").reader());
        tokio::spawn(async move { lock.lock().await })
    };
    let readers: Vec<_> = (0..100).map(reader).collect();
    sleep(millis(100)).await;
    scripts.store(0, Relaxed);
    writer.unlock().await.unwrap();
    let mut guards = Vec::new();
    for reader in readers {
        guards.push(reader.await.unwrap().unwrap());
    }
    let releases = guards.into_iter().map(|guard| tokio::spawn(guard.unlock()));
    for release in releases.collect::<Vec<_>>() {
        release.await.unwrap().unwrap();
    }
    let sent = scripts.load(Relaxed);
    assert_eq!(sent, 3, "scripts for 100 readers in and out");
}

/// The call is dropped when the server has cut the lease, before the answer is here.
#[tokio::test(start_paused = true)]
async fn lease_that_a_dropped_call_has_cut_is_lost_at_its_new_end() {
    let server = MemoryServer::new();
    let (other, client) = (client(&server).await, client_at(&server, millis(50)).await);
    let guard = client.lock("job").lease(secs(60)).lock().await.unwrap();
    // From then on the server has the script.
    guard.extend(secs(90)).await.unwrap();
    // Nothing else is asked about it.
    sleep(secs(5)).await;
    let guard = Arc::new(guard);
    let parked = guard.clone();
    let lost = tokio::spawn(async move { parked.lost().await });
    // The first request learns when the lease ends, and the second one cuts it.
    timeout(millis(175), guard.extend(secs(1)))
        .await
        .unwrap_err();
    let left = other.lock("job").remaining_lease().await.unwrap();
    let left = left.expect("it is held");
    assert!(left <= secs(1), "{left:?}");
    timeout(left, lost).await.expect("told by then").unwrap();
}

/// The level is released between the request that finds it and the one that reads its token.
#[tokio::test(start_paused = true)]
async fn level_with_a_token_that_is_released_before_it_is_adopted_is_gone() {
    let server = MemoryServer::new();
    let (other, client) = (client(&server).await, client_at(&server, millis(50)).await);
    let owner = Owner::named("req-7");
    let [here, there] = [client, other].map(|it| it.fenced_lock("job").owned_by(&owner));
    // From then on the server has the scripts.
    drop(there.lock().await.unwrap().detach());
    here.adopt().await.unwrap().unwrap().unlock().await.unwrap();
    let guard = there.lock().await.unwrap();
    let adopted = tokio::spawn(async move { here.adopt().await });
    sleep(millis(120)).await;
    guard.unlock().await.unwrap();
    assert!(adopted.await.unwrap().unwrap().is_none());
}

/// Next to holds that come and go, some with a shorter lease and some with a longer one.
#[tokio::test(start_paused = true)]
async fn old_hold_is_told_of_its_release_by_force_whatever_comes_and_goes() {
    let (_server, client, other) = two().await;
    let old = client.lock("job").lease(secs(600)).lock().await.unwrap();
    let mut younger = Vec::new();
    for round in 0..20 {
        let name = |kind| format!("{kind}:{round}");
        let [due_first, due_last] = ["first", "last"].map(|kind| client.lock(name(kind)));
        let both = [due_first, due_last.lease(secs(6_000))];
        let mut next = Vec::new();
        for lock in &both {
            next.push(lock.lock().await.unwrap());
        }
        younger = next;
        sleep(millis(50)).await;
    }
    assert!(other.lock("job").force_unlock().await.unwrap());
    timeout(millis(20), old.lost()).await.expect("told");
    drop(younger);
}
