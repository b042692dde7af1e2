//! Why a lock was lost: the same reason by `lost()`, by errors and by clocks.

use std::time::Duration;

use futures_util::FutureExt;
use redlatch::{Client, Error, ErrorKind, LockGuard, LossReason, MultiLock, Owner};
use redlatch_testkit::Server;
use tokio::runtime::Builder;

use crate::support::probe::{eventually_attending, kind, millis, secs, soon};
use crate::support::{builder, client, start};

const LEASE: Duration = Duration::from_millis(900);

/// Connects a client that notices a loss soon.
async fn quick(server: &Server) -> Client {
    let client = builder(server.url()).watchdog_lease(LEASE).build().await;
    client.unwrap()
}

/// Checks that everything that tells of the loss gives this reason, in words too, and goes on doing so.
async fn is_lost_for(guard: LockGuard, reason: LossReason) {
    assert_eq!(soon(guard.lost()).await, reason);
    assert!(guard.is_lost());
    let names_it = |error: Error| {
        assert_eq!(error.kind(), ErrorKind::LeaseLost);
        assert_eq!(error.loss_reason(), Some(reason));
        let text = error.to_string();
        assert!(text.contains(&reason.to_string()), "{text}");
        assert!(text.contains("\"k\"") && text.contains("stop"), "{text}");
    };
    if reason != LossReason::Closed {
        names_it(guard.verify().await.unwrap_err());
        names_it(guard.extend(secs(5)).await.unwrap_err());
    }
    names_it(guard.run_until_lost(async {}).await.unwrap_err());
    assert_eq!(guard.lost().await, reason);
    match guard.unlock().await.unwrap_err() {
        closed if reason == LossReason::Closed => assert_eq!(closed.kind(), ErrorKind::Closed),
        lost => names_it(lost),
    }
}

#[tokio::test]
async fn key_that_is_gone_is_a_loss_by_the_servers_word() {
    let (server, _) = start().await;
    let client = quick(&server).await;
    let guard = client.lock("k").lock().await.unwrap();
    server.connection().command(&["DEL", "k"]);
    is_lost_for(guard, LossReason::Gone).await;

    // Found by the release itself.
    let guard = client.lock("k").lock().await.unwrap();
    server.connection().command(&["DEL", "k"]);
    let error = guard.unlock().await.unwrap_err();
    assert_eq!(error.loss_reason(), Some(LossReason::Gone));
    assert!(error.to_string().contains("overlapped"), "{error}");
}

#[tokio::test]
async fn lease_that_passes_has_expired() {
    let (_server, client) = start().await;
    let lock = client.lock("k").lease(millis(300));
    is_lost_for(lock.lock().await.unwrap(), LossReason::Expired).await;
}

/// The task of the client never runs after the grant.
#[test]
fn loss_that_is_seen_by_the_clock_has_expired_whatever_is_told_later() {
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    let (_server, _client, guard) = runtime.block_on(async {
        let (server, client) = start().await;
        let guard = client.lock("k").lease(LEASE).lock().await.unwrap();
        (server, client, guard)
    });
    std::thread::sleep(LEASE);
    assert!(guard.is_lost());
    // The end of the runtime closes the client, too late to be the reason.
    drop(runtime);
    assert_eq!(guard.lost().now_or_never(), Some(LossReason::Expired));
}

#[tokio::test]
async fn lock_that_this_process_grants_to_another_owner_is_displaced() {
    let (server, here) = start().await;
    let mut probe = server.connection();
    let _held = here.lock("l").lock().await.unwrap();
    eventually_attending(&mut probe, &here).await;
    let guard = here.lock("k").lock().await.unwrap();
    // Told to nobody.
    probe.command(&["DEL", "k"]);
    let other = here.lock("k").owned_by(&Owner::unique());
    let next = soon(other.try_lock()).await.unwrap().expect("it is free");
    is_lost_for(guard, LossReason::Displaced).await;
    next.unlock().await.unwrap();
}

#[tokio::test]
async fn calls_of_this_process_that_end_a_hold_are_named() {
    let (server, client_one) = start().await;
    let lock = client_one.lock("k");
    let guard = lock.lock().await.unwrap();
    lock.force_unlock().await.unwrap();
    is_lost_for(guard, LossReason::Forced).await;

    let guard = lock.lock().await.unwrap();
    lock.unlock().await.unwrap();
    is_lost_for(guard, LossReason::Unlocked).await;

    let other = client(&server).await;
    let guard = other.lock("k").lock().await.unwrap();
    other.close().await;
    is_lost_for(guard, LossReason::Closed).await;
}

#[tokio::test]
async fn set_is_lost_for_the_reason_of_the_member_that_is_lost() {
    let (_server, client) = start().await;
    let set = MultiLock::new([client.lock("k"), client.lock("l")]);
    let guard = set.lock().await.unwrap();
    client.lock("l").force_unlock().await.unwrap();
    assert_eq!(soon(guard.lost()).await, LossReason::Forced);
    let error = guard.verify().await.unwrap_err();
    assert_eq!(error.loss_reason(), Some(LossReason::Forced));
    assert!(error.to_string().contains("\"l\""), "{error}");
    let error = guard.run_until_lost(async {}).await.unwrap_err();
    assert_eq!(error.loss_reason(), Some(LossReason::Forced));
    assert_eq!(kind(guard.unlock().await), ErrorKind::LeaseLost);
}

#[tokio::test]
async fn errors_without_a_loss_have_no_reason() {
    let (_server, client) = start().await;
    let lock = client.lock("k");
    let error = lock.unlock().await.unwrap_err();
    assert_eq!(error.loss_reason(), None);
    let error = client.lock("").lock().await.unwrap_err();
    assert_eq!(error.loss_reason(), None);
}

#[cfg(feature = "unstable-admin")]
#[tokio::test]
async fn release_of_those_who_were_seen_ends_no_later_hold_of_the_same_client() {
    let server = Server::start();
    let client = quick(&server).await;
    let locks = [(); 2].map(|()| client.lock("k").owned_by(&Owner::unique()));
    let seen = locks[0].lock().await.unwrap();
    let found = client.admin().inspect("k").await.unwrap().unwrap();
    seen.unlock().await.unwrap();
    let next = locks[1].lock().await.unwrap();
    assert!(!client.admin().force_unlock(&found).await.unwrap());
    assert!(!next.is_lost());
    next.verify().await.unwrap();

    let found = client.admin().inspect("k").await.unwrap().unwrap();
    assert!(client.admin().force_unlock(&found).await.unwrap());
    is_lost_for(next, LossReason::Forced).await;
}
