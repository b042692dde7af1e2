//! Locks whose type is chosen while the program runs, and locks that replace real ones.

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use crate::support::probe::{kind, millis, secs, soon};
use crate::support::{builder, start};
use futures_util::StreamExt;
use futures_util::stream::iter;
// Both traits are in scope, and a method of a lock is of one of them only.
use redlatch::{
    Client, DistributedGuard, DistributedLock, DynGuard, DynLock, Error, ErrorKind, LossReason,
    MultiLock, Owner, RedLock,
};
use redlatch_testkit::Server;

/// One lock of each type, for an owner of its own.
fn family(client: &Client) -> Vec<Arc<dyn DynLock>> {
    let owner = Owner::unique();
    vec![
        Arc::new(client.lock("a").owned_by(&owner)),
        Arc::new(client.fenced_lock("b").owned_by(&owner)),
        Arc::new(client.fair_lock("c").owned_by(&owner)),
        Arc::new(client.spin_lock("d").owned_by(&owner)),
        Arc::new(client.plain_lock("e").owned_by(&owner)),
        Arc::new(client.read_write_lock("f").writer().owned_by(&owner)),
        Arc::new(MultiLock::new([client.lock("g"), client.lock("h")]).owned_by(&owner)),
        Arc::new(RedLock::new([client.lock("i")]).owned_by(&owner)),
    ]
}

#[tokio::test]
async fn object_does_what_its_lock_does_whatever_its_type() {
    let server = Server::start();
    let builder = builder(server.url()).trust_fresh_servers(true);
    let client = builder.build().await.unwrap();
    for (lock, other) in family(&client).into_iter().zip(family(&client)) {
        let guard = soon(lock.lock()).await.unwrap();
        assert!(guard.held_by().is_some() && guard.remaining() > secs(20));
        assert_eq!(guard.run_until_lost(async { 7 }).await.unwrap(), 7);
        assert!(other.try_lock().await.unwrap().is_none());
        assert!(other.try_lock_for(millis(20)).await.unwrap().is_none());
        let work = async || Ok::<_, Error>(7);
        assert_eq!(other.try_run(work()).await.unwrap(), None);
        assert_eq!(other.try_run_for(millis(20), work()).await.unwrap(), None);
        let busy = other.run_for(millis(20), work()).await;
        assert_eq!(kind(busy), ErrorKind::Busy);
        guard.unlock().await.unwrap();
        assert_eq!(other.run(async { 7 }).await.unwrap(), 7);
        assert_eq!(other.run_for(secs(1), work()).await.unwrap(), 7);
        // In a task of its own.
        let apart = tokio::spawn(async move { other.try_run(work()).await });
        assert_eq!(apart.await.unwrap().unwrap(), Some(7));
    }
    let mut held = Vec::new();
    for lock in family(&client) {
        held.push(lock.try_lock().await.unwrap().expect("free"));
    }
    client.close().await;
    for guard in held {
        let guard: DynGuard = guard;
        assert_eq!(soon(guard.lost()).await, LossReason::Closed);
        assert!(guard.is_lost());
    }
}

#[tokio::test]
async fn branches_that_run_under_an_object_are_owners_of_their_own() {
    let (_server, client) = start().await;
    let lock: Arc<dyn DynLock> = Arc::new(client.lock("k"));
    let each = async |_| {
        let work = async {
            tokio::time::sleep(millis(20)).await;
            Ok::<_, Error>(())
        };
        lock.try_run(work).await.unwrap().is_some()
    };
    let ran = iter(0..8).map(each).buffer_unordered(8).collect::<Vec<_>>();
    let ran = soon(ran).await.into_iter().filter(|ran| *ran).count();
    assert_eq!(ran, 1);
    // The error of a real guard names the lock.
    let lost = lock.try_run(async {
        client.lock("k").force_unlock().await?;
        pending::<Result<(), Error>>().await
    });
    let lost = soon(lost).await.unwrap_err();
    assert_eq!(lost.loss_reason(), Some(LossReason::Forced));
    assert!(lost.to_string().contains("\"k\""), "{lost}");
}

/// A lock that answers what a test wants.
#[derive(Clone, Copy)]
enum Mock {
    Busy,
    Broken,
    Lost(LossReason),
}

struct Held(LossReason);

impl DistributedLock for Mock {
    type Guard = Held;

    async fn lock(&self) -> Result<Held, Error> {
        match self.try_lock().await? {
            Some(held) => Ok(held),
            None => pending().await,
        }
    }

    async fn try_lock(&self) -> Result<Option<Held>, Error> {
        match *self {
            Self::Busy => Ok(None),
            Self::Broken => Err(Error::new(ErrorKind::Backend, "away")),
            Self::Lost(reason) => Ok(Some(Held(reason))),
        }
    }

    async fn try_lock_for(&self, _: Duration) -> Result<Option<Held>, Error> {
        self.try_lock().await
    }
}

impl DistributedGuard for Held {
    async fn unlock(self) -> Result<(), Error> {
        Err(Error::lost(self.0))
    }

    async fn lost(&self) -> LossReason {
        self.0
    }

    fn is_lost(&self) -> bool {
        true
    }

    fn remaining(&self) -> Duration {
        Duration::ZERO
    }
}

#[tokio::test]
async fn lock_of_a_test_is_busy_broken_or_lost_as_a_real_one_is() {
    let work = async || Ok::<_, Error>(7);
    for lock in [Mock::Busy, Mock::Broken, Mock::Lost(LossReason::Expired)] {
        let object: Arc<dyn DynLock> = Arc::new(lock);
        let [direct, behind] = [lock.try_run(work()).await, object.try_run(work()).await];
        let limited = object.run_for(millis(1), work()).await.unwrap_err();
        for ran in [direct, behind] {
            match (lock, ran) {
                (Mock::Busy, Ok(None)) => assert_eq!(limited.kind(), ErrorKind::Busy),
                (Mock::Broken, Err(error)) => {
                    assert_eq!(
                        (error.kind(), &*error.to_string()),
                        (ErrorKind::Backend, "away")
                    );
                }
                (Mock::Lost(reason), Err(error)) => {
                    assert_eq!(error.kind(), ErrorKind::LeaseLost);
                    assert_eq!(error.loss_reason(), Some(reason));
                }
                (_, ran) => panic!("{ran:?}"),
            }
        }
    }
}
