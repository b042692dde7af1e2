//! Tests your own code without a server: the lock is replaced by one that is busy, by a broken one, and by one that is
//! lost while the work goes on.
//!
//! `cargo run --example mocked`

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use redlatch::{DistributedGuard, DistributedLock, DynLock, Error, ErrorKind, LossReason};

/// The code under test. In production, the lock is `Arc::new(client.lock("report"))`.
struct Reports {
    lock: Arc<dyn DynLock>,
}

impl Reports {
    async fn send(&self, pages: u32) -> Result<String, Error> {
        let sent = self.lock.try_run(async {
            for _page in 0..pages {
                tokio::task::yield_now().await; // ..
            }
            Ok::<_, Error>(pages)
        });
        match sent.await {
            Ok(Some(pages)) => Ok(format!("{pages} pages were sent")),
            Ok(None) => Ok("another process sends them".to_owned()),
            Err(error) if error.kind() == ErrorKind::LeaseLost => Ok(format!("stopped: {error}")),
            Err(error) => Err(error),
        }
    }
}

/// The lock in its place.
#[derive(Clone, Copy)]
enum Mock {
    Free,
    Busy,
    Broken,
    /// Granted, and lost from then on.
    Lost(LossReason),
}

/// The guard of such a lock, with the reason if it is lost.
struct Held(Option<LossReason>);

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
            Self::Free => Ok(Some(Held(None))),
            Self::Busy => Ok(None),
            Self::Broken => Err(Error::new(ErrorKind::Backend, "the server is away")),
            Self::Lost(reason) => Ok(Some(Held(Some(reason)))),
        }
    }

    async fn try_lock_for(&self, _wait: Duration) -> Result<Option<Held>, Error> {
        self.try_lock().await
    }
}

impl DistributedGuard for Held {
    async fn unlock(self) -> Result<(), Error> {
        self.0.map_or(Ok(()), |reason| Err(Error::lost(reason)))
    }

    async fn lost(&self) -> LossReason {
        match self.0 {
            Some(reason) => reason,
            None => pending().await,
        }
    }

    fn is_lost(&self) -> bool {
        self.0.is_some()
    }

    fn remaining(&self) -> Duration {
        self.0.map_or(Duration::from_secs(30), |_| Duration::ZERO)
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Error> {
    let reports = |lock: Mock| Reports {
        lock: Arc::new(lock),
    };
    println!("free: {}", reports(Mock::Free).send(12).await?);
    println!("busy: {}", reports(Mock::Busy).send(12).await?);
    let broken = reports(Mock::Broken).send(12).await.unwrap_err();
    println!("broken: {broken}");
    let lost = Mock::Lost(LossReason::Expired);
    println!("lost: {}", reports(lost).send(12).await?);
    Ok(())
}
