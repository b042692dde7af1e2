//! Servers that are killed, hang or answer late, replies that are lost, holders that crash and calls that are dropped.

use std::time::{Duration, Instant};

use super::{Clients, Fleet, NAME, taken};
use crate::support::polls::Polls;
use crate::support::probe::{calls_of, kind, millis, secs, soon};
use crate::support::{eventually, eventually_idle, sha};
use redlatch::{ErrorKind, LossReason, Owner, RedLock};
use redlatch_testkit::Proxy;

// fault: S48
#[tokio::test]
async fn two_of_five_may_be_killed_and_three_may_not() {
    let fleet = Fleet::start(5);
    let clients = fleet.clients().await;
    clients.settle().await;
    let held = taken(&clients.lock()).await;
    clients.eventually_hold(0..5).await;
    fleet.0[0].kill();
    fleet.0[1].kill();
    held.verify().await.unwrap();
    held.unlock().await.unwrap();
    let guard = taken(&clients.lock()).await;
    guard.extend(secs(20)).await.unwrap();
    guard.unlock().await.unwrap();
    fleet.eventually_free(2..5).await;

    fleet.0[2].kill();
    let error = soon(clients.lock().try_lock()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Quorum);
    let text = error.to_string();
    assert!(
        text.contains("3 of 5") && text.contains("2 granted"),
        "{text}"
    );
    assert!(text.contains("3 failed"), "{text}");
    assert!(std::error::Error::source(&error).is_some());
    let wait = millis(400);
    let started = Instant::now();
    let error = clients.lock().try_lock_for(wait).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Quorum);
    assert!(started.elapsed() >= wait);
    fleet.eventually_free(3..5).await;
}

#[tokio::test]
async fn holder_learns_when_the_majority_is_killed() {
    let fleet = Fleet::start(3);
    let clients = fleet
        .clients_with(|it| it.watchdog_lease(millis(900)))
        .await;
    let guard = taken(&clients.lock()).await;
    clients.eventually_hold(0..3).await;
    tokio::time::timeout(millis(1_500), guard.lost())
        .await
        .expect_err("it is renewed");
    fleet.0[0].kill();
    tokio::time::timeout(millis(1_500), guard.lost())
        .await
        .expect_err("two of three still renew it");
    fleet.0[1].kill();
    let started = Instant::now();
    let reason = soon(guard.lost()).await;
    assert_eq!(reason, LossReason::Expired, "on either of the two");
    assert!(started.elapsed() < secs(2), "{:?}", started.elapsed());
    assert!(guard.is_lost() && guard.remaining().is_zero());
    let error = guard.verify().await.unwrap_err();
    assert_eq!(error.loss_reason(), Some(reason));
    assert_eq!(kind(guard.unlock().await), ErrorKind::LeaseLost);
}

// fault: S50
#[tokio::test]
async fn servers_that_hang_hold_nobody_up() {
    let fleet = Fleet::start(5);
    let clients = fleet.clients_with(|it| it.command_timeout(secs(4))).await;
    clients.settle().await;
    fleet.0[1].freeze();
    fleet.0[3].freeze();
    // The command timeout is four seconds, so each server that hangs would have that long to answer.
    for _ in 0..20 {
        let started = Instant::now();
        let guard = taken(&clients.lock()).await;
        guard.extend(secs(20)).await.unwrap();
        guard.verify().await.unwrap();
        guard.unlock().await.unwrap();
        assert!(started.elapsed() < secs(1), "{:?}", started.elapsed());
    }
    let guard = taken(&clients.lock()).await;
    let started = Instant::now();
    assert!(clients.lock().try_lock().await.unwrap().is_none());
    assert!(started.elapsed() < secs(1), "{:?}", started.elapsed());
    guard.unlock().await.unwrap();
    fleet.0[1].thaw();
    fleet.0[3].thaw();
    fleet.nothing_left([&clients]).await;
}

#[tokio::test]
async fn silent_server_is_not_asked_in_each_round() {
    let fleet = Fleet::start(3);
    let clients = fleet.clients().await;
    clients.settle().await;
    let mut probe = fleet.0[0].connection();
    fleet.0[0].freeze();
    let alone = clients.0[0].lock("other").try_lock().await;
    assert_eq!(kind(alone), ErrorKind::Timeout);
    for _ in 0..100 {
        taken(&clients.lock()).await.unlock().await.unwrap();
    }
    fleet.0[0].thaw();
    fleet.nothing_left([&clients]).await;
    let calls = calls_of(&mut probe, "evalsha");
    assert!(calls < 50, "{calls} requests in 100 rounds");
    let guard = taken(&clients.lock()).await;
    clients.eventually_hold(0..1).await;
    guard.unlock().await.unwrap();
}

#[tokio::test]
async fn server_that_answers_late_joins_the_guard() {
    let fleet = Fleet::start(3);
    let proxy = Proxy::start(fleet.0[2].port()).await;
    let urls = [fleet.0[0].url(), fleet.0[1].url(), proxy.url()];
    let clients = Clients::of(urls, |it| it.command_timeout(secs(4))).await;
    clients.settle().await;
    proxy.delay(millis(60));
    let guard = taken(&clients.lock()).await;
    clients.eventually_hold(0..3).await;
    proxy.delay(Duration::ZERO);
    fleet.0[0].connection().command(&["DEL", NAME]);
    guard.verify().await.unwrap();
    guard.unlock().await.unwrap();

    // A grant that arrives after the guard has gone is released.
    proxy.delay(millis(60));
    taken(&clients.lock()).await.unlock().await.unwrap();
    fleet.nothing_left([&clients]).await;
}

#[tokio::test]
async fn server_that_answers_after_the_callers_runtime_has_ended_joins_the_guard() {
    let fleet = Fleet::start(3);
    let proxy = Proxy::start(fleet.0[2].port()).await;
    let urls = [fleet.0[0].url(), fleet.0[1].url(), proxy.url()];
    let clients = Clients::of(urls, |it| it.command_timeout(secs(4))).await;
    clients.settle().await;
    proxy.delay(millis(300));
    let lock = clients.lock();
    let caller = std::thread::spawn(move || {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        runtime.block_on(lock.lock()).unwrap()
    });
    let caller = tokio::task::spawn_blocking(|| caller.join().unwrap());
    let guard = soon(caller).await.unwrap();
    clients.eventually_hold(0..3).await;
    proxy.delay(Duration::ZERO);
    guard.unlock().await.unwrap();
    fleet.nothing_left([&clients]).await;
}

#[tokio::test]
async fn server_that_joins_late_does_not_bring_a_lost_majority_back() {
    let fleet = Fleet::start(3);
    let proxy = Proxy::start(fleet.0[2].port()).await;
    let urls = [fleet.0[0].url(), fleet.0[1].url(), proxy.url()];
    let clients = Clients::of(urls, |it| it.command_timeout(secs(4))).await;
    clients.settle().await;
    proxy.hold_replies();
    let guard = taken(&clients.lock()).await;
    let mut first = fleet.0[0].connection();
    first.command(&["DEL", NAME]);
    first.command(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
    let holds = |at: usize, count: usize| {
        format!("{:?}", clients.0[at]).contains(&format!("holds: {count}"))
    };
    eventually("the loss is seen", async || holds(0, 0)).await;
    proxy.release_replies();
    eventually("the third has answered", async || {
        holds(2, 0) && fleet.held(2..3) == 0
    })
    .await;
    assert!(guard.is_lost());
    drop(guard);
    fleet.eventually_free(0..3).await;
}

#[test]
fn crashed_holder_frees_the_lock_within_its_lease() {
    let fleet = Fleet::start(3);
    let lease = secs(1);
    let crashed = tokio::runtime::Runtime::new().unwrap();
    let guard = crashed.block_on(async {
        let clients = fleet.clients_with(|it| it.watchdog_lease(lease)).await;
        taken(&clients.lock()).await
    });
    std::mem::forget(guard);
    crashed.shutdown_background();
    let started = Instant::now();
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let clients = fleet.clients().await;
        let guard = soon(clients.lock().lock()).await.unwrap();
        assert!(
            started.elapsed() < lease + secs(1),
            "{:?}",
            started.elapsed()
        );
        guard.unlock().await.unwrap();
    });
}

#[tokio::test]
async fn grant_without_its_reply_counts_once_and_is_given_back() {
    let fleet = Fleet::start(3);
    let proxy = Proxy::start(fleet.0[0].port()).await;
    let urls = [proxy.url(), fleet.0[1].url(), fleet.0[2].url()];
    let clients = Clients::of(urls, |it| it.command_timeout(secs(5))).await;
    clients.settle().await;
    let acquire = sha("red_acquire");
    for _ in 0..20 {
        // A server that is silent after a cut is not asked for its vote.
        eventually("the first server answers", async || {
            clients.0[0].lock("other").is_locked().await.is_ok()
        })
        .await;
        proxy.cut_reply_to(acquire.clone());
        let guard = taken(&clients.lock()).await;
        eventually("the reply was cut", async || !proxy.cut_reply_armed()).await;
        let (field, _) = fleet.0[1].connection().hgetall(NAME).pop_last().unwrap();
        assert!(field.starts_with('|'));
        guard.unlock().await.unwrap();
        fleet.eventually_free(0..3).await;
    }
    fleet.nothing_left([&clients]).await;
}

#[tokio::test]
async fn release_that_ran_at_its_first_try_is_no_loss_though_the_lock_is_anothers_at_the_second() {
    let fleet = Fleet::start(3);
    let proxy = Proxy::start(fleet.0[0].port()).await;
    let urls = [proxy.url(), fleet.0[1].url(), fleet.0[2].url()];
    let clients = Clients::of(urls, |it| it.command_timeout(secs(5))).await;
    clients.settle().await;
    let members = clients.0.iter().map(|client| client.plain_lock(NAME));
    let lock = RedLock::new(members).owned_by(&Owner::unique());
    taken(&lock).await.unlock().await.unwrap();
    // Also on servers that granted it after the majority was reached.
    for client in &clients.0 {
        eventually_idle(client).await;
    }
    let take = |at: usize| fleet.0[at].connection().command(&["SET", NAME, "other"]);
    // So the lock needs both of the other servers.
    take(2);
    let guard = taken(&lock).await;
    proxy.cut_reply_to(sha("plain_release"));
    let mut again = proxy.stop(sha("plain_release"));
    let unlocking = tokio::spawn(guard.unlock());
    soon(again.reached()).await;
    assert_eq!(fleet.held(0..1), 0, "the first try was carried out");
    take(0);
    again.open();
    soon(unlocking).await.unwrap().unwrap();
    eventually("its part is given back", async || fleet.held(1..2) == 0).await;
    assert_eq!(fleet.held([0, 2]), 2, "what is another's stays");
}

// fault: S54
#[tokio::test]
async fn dropped_call_leaves_nothing_held() {
    let fleet = Fleet::start(3);
    let proxy = Proxy::start(fleet.0[0].port()).await;
    let urls = [proxy.url(), fleet.0[1].url(), fleet.0[2].url()];
    let (clients, others) = (Clients::of(urls, |it| it).await, fleet.clients().await);
    clients.settle().await;
    fleet.eventually_free(0..3).await;
    Polls::sweep(&proxy, "acquire", async |_, polls| {
        let lock = clients.lock();
        drop(polls.run(lock.try_lock_for(secs(60))).await);
        let guard = soon(others.lock().lock()).await.unwrap();
        guard.unlock().await.unwrap();
        fleet.eventually_free(0..3).await;
    })
    .await;
    Polls::sweep(&proxy, "unlock", async |_, polls| {
        let guard = soon(clients.lock().lock()).await.unwrap();
        polls.run(guard.unlock()).await;
        fleet.eventually_free(0..3).await;
    })
    .await;
    fleet.nothing_left([&clients, &others]).await;
}
