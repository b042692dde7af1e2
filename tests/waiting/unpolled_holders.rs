//! Calls about a lock that is held, which are begun and then polled by nobody: they keep no other call waiting.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Waker};

use futures_util::future::join_all;
use redlatch::{DistributedLock, LockGuard, NamedLock};
use redlatch_testkit::{Proxy, Server};

use crate::support::probe::{begin, millis, nothing_left, secs, soon, stranger};
use crate::support::{builder, start};

/// The calls that ask the server about a hold.
const CALLS: [&str; 5] = ["lock", "adopt", "unlock", "reenter", "extend"];

/// Begins a call, and keeps what it returns.
fn begun<'a, L: Lock>(
    call: &str,
    lock: &'a L,
    guard: &'a LockGuard,
) -> Pin<Box<dyn Future<Output = ()> + 'a>> {
    match call {
        "lock" => begin(async { drop(lock.lock().await) }),
        "adopt" => begin(async { drop(lock.adopt().await) }),
        "unlock" => {
            let mut unlocking = Box::pin(async { drop(lock.unlock().await) });
            // That of a reader is done at once if the server has just confirmed its record.
            let mut context = Context::from_waker(Waker::noop());
            let _ = unlocking.as_mut().poll(&mut context);
            unlocking
        }
        "reenter" => begin(async { drop(guard.reenter().await) }),
        _ => begin(async { drop(guard.extend(secs(40)).await) }),
    }
}

trait Lock: NamedLock + DistributedLock<Guard = LockGuard> {}
impl<L: NamedLock + DistributedLock<Guard = LockGuard>> Lock for L {}

/// Goes through the calls of `lock`, each begun and not polled while those of `other`, which has the lock by the same
/// record, are awaited.
async fn goes_on_beside_each_call<L: Lock>(server: &Server, lock: &L, other: &L) {
    for call in CALLS {
        let (guard, beside) = loop {
            let both = (lock.lock().await.unwrap(), other.lock().await.unwrap());
            // On a busy machine, a reader may come too late to join.
            if server.connection().hgetall("k").len() == 2 {
                break both;
            }
        };
        let inner = guard.reenter().await.unwrap();
        let unpolled = begun(call, lock, &guard);
        let calls = async {
            let taken = other.try_lock_for(millis(100)).await.unwrap().expect(call);
            taken.extend(secs(40)).await.unwrap();
            taken.reenter().await.unwrap().unlock().await.unwrap();
            taken.unlock().await.unwrap();
            beside.unlock().await.unwrap();
        };
        soon(calls).await;
        drop(unpolled);
        drop((inner, guard));
    }
}

#[tokio::test]
async fn call_that_nobody_polls_keeps_none_of_its_owner_waiting() {
    let (server, client) = start().await;
    let lock = stranger(&client.lock("k"));
    goes_on_beside_each_call(&server, &lock, &lock).await;
    nothing_left(&server, [&client]).await;
}

#[tokio::test]
async fn call_of_a_reader_that_nobody_polls_keeps_no_other_reader_waiting() {
    let (server, client) = start().await;
    let lock = client.read_write_lock("k").reader();
    goes_on_beside_each_call(&server, &stranger(&lock), &stranger(&lock)).await;
    nothing_left(&server, [&client]).await;
}

/// Each of them waits for little, all of them together for longer than a request may take.
#[tokio::test]
async fn calls_that_stand_behind_each_other_are_all_answered() {
    let server = Server::start();
    let proxy = Proxy::start(server.port()).await;
    let builder = builder(proxy.url()).command_timeout(secs(1));
    let client = builder.build().await.unwrap();
    let guard = client.lock("k").lock().await.unwrap();
    proxy.delay(millis(150));
    let extended = (0..5).map(|_| guard.extend(secs(40)));
    let reentered = (0..3).map(|_| async { guard.reenter().await?.unlock().await });
    let (extended, reentered) = tokio::join!(join_all(extended), join_all(reentered));
    for outcome in extended.into_iter().chain(reentered) {
        outcome.unwrap();
    }
    proxy.delay(millis(0));
    drop(guard);
    nothing_left(&server, [&client]).await;
}
