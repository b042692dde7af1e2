//! Calls that wait for a busy lock, in one process and in several: they get in one after the other, and ask seldom.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::{Clients, Fleet, NAME, taken};
use crate::support::eventually;
use crate::support::probe::{
    begin, calls_of, channel, millis, reset_calls, scripts_run, secs, soon, subscribers,
};
use redlatch::{Owner, RedLock};

#[tokio::test]
async fn waiter_that_nobody_polls_leaves_the_lock_to_those_behind_it() {
    let fleet = Fleet::start(3);
    let clients = fleet.clients().await;
    clients.settle().await;
    let guard = taken(&clients.lock()).await;
    let first = clients.lock();
    let mut first = begin(async move { first.lock().await });
    let listens = fleet.eventually_quiet(&[0, 1, 2]);
    tokio::select! {
        biased;
        _ = &mut first => panic!("it is taken"),
        () = listens => {}
    }
    let second = clients.lock();
    let second = begin(async move { second.lock().await });
    guard.unlock().await.unwrap();
    soon(second).await.unwrap().unlock().await.unwrap();
    soon(first).await.unwrap().unlock().await.unwrap();
    fleet.nothing_left([&clients]).await;
}

// fault: S51
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_clients_that_collide_on_a_new_fleet_get_in_one_after_the_other() {
    let fleet = Fleet::start(5);
    let inside = Arc::new(AtomicBool::new(false));
    let passed = Arc::new(AtomicUsize::new(0));
    let mut all = Vec::new();
    for _ in 0..10 {
        all.push(fleet.clients().await);
    }
    let mut tasks = Vec::new();
    for clients in &all {
        let (lock, inside, passed) = (clients.lock(), inside.clone(), passed.clone());
        tasks.push(tokio::spawn(async move {
            for _ in 0..3 {
                let guard = lock.try_lock_for(secs(60)).await.unwrap().unwrap();
                assert!(!inside.swap(true, Ordering::SeqCst), "two at a time");
                tokio::task::yield_now().await;
                inside.store(false, Ordering::SeqCst);
                passed.fetch_add(1, Ordering::SeqCst);
                guard.unlock().await.unwrap();
            }
        }));
    }
    let started = Instant::now();
    eventually("somebody gets in", async || {
        passed.load(Ordering::SeqCst) > 0
    })
    .await;
    println!("the first after {:?}", started.elapsed());
    for task in tasks {
        task.await.unwrap();
    }
    println!("30 sections of 10 clients in {:?}", started.elapsed());
    for clients in &all {
        fleet.nothing_left([clients]).await;
    }
}

#[tokio::test]
async fn waiters_of_one_process_get_in_one_after_the_other() {
    let fleet = Fleet::start(3);
    let clients = fleet.clients().await;
    let inside = Arc::new(AtomicBool::new(false));
    let tasks: Vec<_> = (0..20)
        .map(|_| {
            let (lock, inside) = (clients.lock(), inside.clone());
            tokio::spawn(async move {
                let guard = lock.lock().await.unwrap();
                assert!(!inside.swap(true, Ordering::SeqCst), "two at a time");
                guard.verify().await.unwrap();
                inside.store(false, Ordering::SeqCst);
                guard.unlock().await.unwrap();
            })
        })
        .collect();
    for task in tasks {
        soon(task).await.unwrap();
    }
    fleet.nothing_left([&clients]).await;
}

#[tokio::test]
async fn named_owner_takes_again_what_another_process_holds_for_it_and_never_queues() {
    let fleet = Fleet::start(3);
    let (clients, others) = (fleet.clients().await, fleet.clients().await);
    let owner = Owner::named("r7");
    let held = taken(&others.lock().owned_by(&owner)).await;
    others.eventually_hold(0..3).await;
    let mut probe = fleet.0[0].connection();
    reset_calls(&mut probe);
    let (first, again) = (clients.lock(), clients.lock().owned_by(&owner));
    let waiter = tokio::spawn(async move { first.lock().await.unwrap().unlock().await });
    eventually("the first stands at the front", async || {
        calls_of(&mut probe, "evalsha") >= 3
    })
    .await;
    let guard = soon(again.lock()).await.unwrap();
    guard.unlock().await.unwrap();
    assert!(!waiter.is_finished());
    held.unlock().await.unwrap();
    soon(waiter).await.unwrap().unwrap();
    fleet.nothing_left([&clients, &others]).await;
}

#[tokio::test]
async fn wait_ends_at_its_limit() {
    let fleet = Fleet::start(3);
    let (clients, others) = (fleet.clients().await, fleet.clients().await);
    let guard = taken(&others.lock()).await;
    let (wait, started) = (millis(300), Instant::now());
    assert!(clients.lock().try_lock_for(wait).await.unwrap().is_none());
    let took = started.elapsed();
    // One command timeout is the promised slack.
    assert!(took >= wait && took < wait + secs(1), "{took:?}");
    let lock = clients.lock();
    let waiter = tokio::spawn(async move { lock.lock().await });
    guard.unlock().await.unwrap();
    let guard = soon(waiter).await.unwrap().unwrap();
    guard.unlock().await.unwrap();
    fleet.nothing_left([&clients, &others]).await;
}

#[tokio::test]
async fn waiter_elsewhere_is_woken_by_the_release() {
    let fleet = Fleet::start(5);
    let (clients, others) = (fleet.clients().await, fleet.clients().await);
    clients.settle().await;
    let mut waited = Duration::ZERO;
    for _ in 0..6 {
        let guard = soon(others.lock().lock()).await.unwrap();
        let lock = clients.lock();
        let waiter = tokio::spawn(async move {
            let guard = lock.lock().await.unwrap();
            (guard, Instant::now())
        });
        fleet.eventually_quiet(&[0, 1, 2, 3, 4]).await;
        let unlocked = Instant::now();
        guard.unlock().await.unwrap();
        let (guard, granted) = soon(waiter).await.unwrap();
        waited += granted.saturating_duration_since(unlocked);
        guard.unlock().await.unwrap();
    }
    // With polls alone, each would take some seconds.
    assert!(waited < secs(2), "{waited:?} for six");
    fleet.nothing_left([&clients, &others]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_of_ten_processes_ask_seldom_and_get_in_one_after_the_other() {
    const PROCESSES: usize = 10;
    let fleet = Fleet::start(3);
    let holder = fleet.clients().await;
    let held = taken(&holder.lock()).await;
    holder.eventually_hold(0..3).await;
    let mut all = Vec::new();
    for _ in 0..PROCESSES {
        all.push(fleet.clients().await);
    }
    let waiters: Vec<_> = all
        .iter()
        .map(|clients| {
            let lock = clients.lock();
            tokio::spawn(async move { lock.lock().await?.unlock().await })
        })
        .collect();
    let mut probe = fleet.0[0].connection();
    eventually("all listen", async || {
        subscribers(&mut probe, &channel(NAME)) == PROCESSES as i64
    })
    .await;
    fleet.eventually_quiet(&[0, 1, 2]).await;
    let span = secs(3);
    let before = scripts_run(&mut probe);
    tokio::time::sleep(span).await;
    let scripts = scripts_run(&mut probe) - before;
    // Each waiter asks once per poll cap, which is five seconds.
    assert!(scripts <= 10, "{scripts} in {span:?}");
    let released = Instant::now();
    held.unlock().await.unwrap();
    for waiter in waiters {
        soon(waiter).await.unwrap().unwrap();
    }
    // None of them had to wait for a poll.
    let took = released.elapsed();
    println!("{scripts} scripts in {span:?}; all ten in {took:?}");
    assert!(took < secs(4), "{took:?}");
    for clients in &all {
        fleet.nothing_left([clients]).await;
    }
}

#[tokio::test]
async fn waiter_for_plain_members_asks_the_less_often_the_longer_it_waits() {
    let fleet = Fleet::start(3);
    let (clients, others) = (fleet.clients().await, fleet.clients().await);
    let lock = |clients: &Clients| {
        let members = clients.0.iter().map(|client| client.plain_lock(NAME));
        RedLock::new(members).owned_by(&Owner::unique())
    };
    let held = taken(&lock(&others)).await;
    others.eventually_hold(0..3).await;
    let mut probe = fleet.0[0].connection();
    let waiting = lock(&clients);
    let waiting = tokio::spawn(async move { waiting.lock().await });
    let span = secs(2);
    let mut counts = Vec::new();
    for _ in 0..4 {
        let before = scripts_run(&mut probe);
        tokio::time::sleep(span).await;
        counts.push(scripts_run(&mut probe) - before);
    }
    // After six seconds and more: pauses of 190 to 500 ms, where they were 64 to 128 ms at first.
    assert!(counts[3] <= 13, "{counts:?}");
    held.unlock().await.unwrap();
    soon(waiting)
        .await
        .unwrap()
        .unwrap()
        .unlock()
        .await
        .unwrap();
    fleet.nothing_left([&clients, &others]).await;
}
