//! Calls that wait, and that nobody polls any more: futures that are kept while their task does something else. What
//! they cost the calls that are polled, and that they are served once they are polled again.

use crate::support::probe::{begin, eventually_free, millis, nothing_left, secs, soon, stranger};
use crate::support::{eventually, eventually_idle, start, start_two};
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, join_all};
use redlatch::{Client, Error, FairLock, Owner};
use tokio::time::timeout;

/// So many that they would cost more than [`soon`] allows, one after the other.
const MANY: usize = 12;

/// Waits until this number of the client's calls wait.
async fn eventually_in_queue(client: &Client, calls: usize) {
    let waiting = format!("waiting: {calls},");
    eventually(&waiting, async || format!("{client:?}").contains(&waiting)).await;
}

/// Waits for what somebody has: with many calls that are polled no more once they wait, and one that is.
async fn many_wait<H, G: Send + 'static>(
    client: Client,
    held: impl Future<Output = Result<H, Error>>,
    call: impl Fn() -> BoxFuture<'static, Result<G, Error>>,
) {
    let held = held.await.unwrap();
    let calls = (0..MANY).map(|_| call().map(|taken| drop(taken.unwrap())));
    let mut unpolled = join_all(calls);
    tokio::select! {
        _ = &mut unpolled => panic!("they had to wait"),
        () = eventually_in_queue(&client, MANY) => {}
    }
    let polled = tokio::spawn(call());
    eventually_in_queue(&client, MANY + 1).await;
    drop(held);
    drop(soon(polled).await.unwrap().unwrap());
    soon(unpolled).await;
    eventually_idle(&client).await;
}

#[tokio::test]
async fn calls_that_nobody_polls_cost_a_second_together_and_not_a_second_each() {
    let (server, permits) = start().await;
    permits
        .semaphore("semaphore")
        .try_set_permits(1)
        .await
        .unwrap();
    permits
        .expirable_semaphore("expirable")
        .try_set_permits(1)
        .await
        .unwrap();
    let connect = || async { Client::connect(server.url()).await.unwrap() };
    macro_rules! case {
        ($make:ident, $held:ident, $call:ident) => {
            async {
                let client = connect().await;
                let lock = client.$make(concat!(stringify!($make), stringify!($call)));
                let call = || {
                    let lock = lock.clone().owned_by(&Owner::unique());
                    async move { lock.$call().await }.boxed()
                };
                many_wait(
                    client.clone(),
                    lock.clone().owned_by(&Owner::unique()).$held(),
                    call,
                )
                .await;
            }
        };
        ($make:ident, $name:literal) => {
            async {
                let client = connect().await;
                let permits = client.$make($name);
                let call = || {
                    let permits = permits.clone();
                    async move { permits.acquire().await }.boxed()
                };
                many_wait(client.clone(), permits.acquire(), call).await;
            }
        };
    }
    // Each by a client of its own, at the same time.
    tokio::join!(
        case!(lock, lock, lock),
        case!(fenced_lock, lock, lock),
        case!(spin_lock, lock, lock),
        case!(plain_lock, lock, lock),
        case!(fair_lock, lock, lock),
        case!(read_write_lock, write, write),
        case!(read_write_lock, write, read),
        case!(semaphore, "semaphore"),
        case!(expirable_semaphore, "expirable"),
    );
}

/// The calls of one owner have one place in the server queue, and the first of them keeps it.
#[tokio::test]
async fn call_of_an_owner_that_nobody_polls_leaves_the_fair_lock_to_another_call_of_that_owner() {
    let (server, client) = start().await;
    let lock = client.fair_lock("k").owned_by(&Owner::unique());
    let held = stranger(&lock).lock().await.unwrap();
    let mut first = begin(lock.lock());
    // It has its place, and is polled no more.
    assert!(timeout(millis(300), &mut first).await.is_err());
    let second = lock.clone();
    let second = tokio::spawn(async move { second.try_lock_for(secs(8)).await });
    let waits = tokio::spawn(async move { soon(second).await.unwrap().unwrap() });
    eventually_in_queue(&client, 1).await;
    held.unlock().await.unwrap();
    let second = waits.await.unwrap().expect("the lock is free");
    let inner = soon(first).await.unwrap();
    assert_eq!(lock.hold_count().await.unwrap(), 2);
    inner.unlock().await.unwrap();
    second.unlock().await.unwrap();
    nothing_left(&server, [&client]).await;
}

/// Here the answer to the first request is the grant, and nobody reads it.
#[tokio::test]
async fn grant_of_a_fair_lock_that_nobody_polls_goes_to_another_call_of_its_owner() {
    let (server, client) = start().await;
    let lock = client.fair_lock("k").owned_by(&Owner::unique());
    // From here on, the server knows the script, and one request is enough.
    lock.lock().await.unwrap().unlock().await.unwrap();
    let first = begin(lock.lock());
    eventually("it is granted", async || lock.is_locked().await.unwrap()).await;
    let second = soon(lock.lock()).await.unwrap();
    drop(first);
    second.verify().await.unwrap();
    assert_eq!(lock.hold_count().await.unwrap(), 1);
    second.unlock().await.unwrap();
    eventually_free(&server, "k").await;
    nothing_left(&server, [&client]).await;
}

/// A call that is polled keeps its place, whatever others of its owner do.
#[tokio::test]
async fn call_that_is_polled_keeps_its_place_in_the_fair_queue_beside_another_of_its_owner() {
    let (server, client, other) = start_two().await;
    let lock = client.fair_lock("k").owned_by(&Owner::unique());
    let held = stranger(&lock).lock().await.unwrap();
    let take = |lock: &FairLock| {
        let lock = lock.clone();
        tokio::spawn(async move { lock.lock().await.unwrap() })
    };
    let first = take(&lock);
    eventually_in_queue(&client, 1).await;
    let elsewhere = take(&stranger(&other.fair_lock("k")));
    eventually_in_queue(&other, 1).await;
    // Longer than a call has to show that it is polled.
    let second = lock.try_lock_for(millis(2_500)).await.unwrap();
    assert!(second.is_none(), "it is held");
    held.unlock().await.unwrap();
    let guard = soon(first).await.unwrap();
    assert!(!elsewhere.is_finished(), "it came later");
    guard.unlock().await.unwrap();
    soon(elsewhere).await.unwrap().unlock().await.unwrap();
    nothing_left(&server, [&client, &other]).await;
}
