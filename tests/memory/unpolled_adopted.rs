//! Calls that nobody polls for a while: what they adopt, what a single attempt is granted, and those behind them.

use redlatch::{Client, LockGuard, Owner, ReentrantLock};
use tokio::time::{Instant, sleep, timeout};

use crate::support::probe::{begin, millis, secs, stranger};
use crate::two;

/// A lock that its owner holds here, with its guard. Another level of the owner was left elsewhere.
async fn left_elsewhere(client: &Client, other: &Client) -> (ReentrantLock, LockGuard) {
    let owner = Owner::named("req-7");
    let [lock, there] = [client, other].map(|client| client.lock("job").owned_by(&owner));
    let guard = lock.lock().await.unwrap();
    drop(there.lock().await.unwrap().detach());
    (lock, guard)
}

#[tokio::test(start_paused = true)]
async fn level_that_a_call_adopts_while_nobody_polls_it_ends_with_its_lease() {
    let (_server, client, other) = two().await;
    let (lock, guard) = left_elsewhere(&client, &other).await;
    let unpolled = begin(lock.adopt());
    sleep(secs(5)).await;
    guard.unlock().await.unwrap();
    assert_eq!(lock.hold_count().await.unwrap(), 1, "it is not given back");
    let others = stranger(&other.lock("job"));
    let next = timeout(secs(60), others.lock()).await;
    let next = next.expect("nobody renews the level").unwrap();
    // Nothing is left to adopt.
    assert!(unpolled.await.unwrap().is_none());
    next.unlock().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn level_that_a_call_adopted_while_nobody_polled_it_is_left_to_the_next_call_of_its_owner() {
    let (_server, client, other) = two().await;
    let (lock, guard) = left_elsewhere(&client, &other).await;
    let unpolled = begin(lock.adopt());
    sleep(secs(5)).await;
    let adopted = lock.adopt().await.unwrap().expect("it is here by now");
    adopted.unlock().await.unwrap();
    drop(unpolled);
    sleep(secs(1)).await;
    assert!(!guard.is_lost(), "its level is another one");
    assert_eq!(lock.hold_count().await.unwrap(), 1);
    guard.unlock().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn level_that_a_call_adopted_before_it_was_dropped_is_given_back() {
    let (_server, client, other) = two().await;
    let (lock, guard) = left_elsewhere(&client, &other).await;
    let unpolled = begin(lock.adopt());
    sleep(secs(1)).await;
    assert_eq!(lock.hold_count().await.unwrap(), 2);
    drop(unpolled);
    sleep(secs(1)).await;
    assert_eq!(lock.hold_count().await.unwrap(), 1);
    guard.unlock().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn call_behind_one_of_its_owner_that_nobody_polls_takes_a_free_lock_at_once() {
    let (_server, client, other) = two().await;
    let held = other.lock("job").lock().await.unwrap();
    let lock = stranger(&client.lock("job"));
    let unpolled = begin(lock.lock());
    let next = lock.clone();
    let next = tokio::spawn(async move { next.lock().await });
    // By then it has gone ahead, and waits to be told.
    sleep(secs(6)).await;
    held.unlock().await.unwrap();
    let freed = Instant::now();
    let next = timeout(secs(10), next).await.expect("it is its turn");
    assert!(freed.elapsed() < millis(500), "{:?}", freed.elapsed());
    next.unwrap().unwrap().unlock().await.unwrap();
    drop(unpolled);
}

#[tokio::test(start_paused = true)]
async fn single_attempt_that_nobody_polls_keeps_the_lock_from_no_call_of_its_process() {
    let (_server, client, other) = two().await;
    let [first, next] = [(); 2].map(|()| stranger(&client.lock("job")));
    // From then on the server has the script, and one poll is enough for a grant.
    let guard = first.try_lock().await.unwrap();
    guard.expect("free").unlock().await.unwrap();
    let unpolled = begin(first.try_lock());
    sleep(secs(1)).await;
    assert!(other.lock("job").try_lock().await.unwrap().is_none());
    let next = timeout(secs(10), next.lock()).await;
    let next = next.expect("it is not kept for a lease").unwrap();
    next.unlock().await.unwrap();
    let again = unpolled.await.unwrap();
    again.expect("it asks again").unlock().await.unwrap();
}
