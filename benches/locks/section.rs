//! A section: the lock is acquired and released, as a rule without any work in between.

use std::time::{Duration, Instant};

use redlatch::{FairLock, MultiLock, ReadLock, ReentrantLock, WriteLock};
use tokio::time::sleep;

use crate::Failure;

/// A section that can be passed repeatedly, by the product or by its floor.
pub(crate) trait Section: Send + Sync + 'static {
    /// Passes the section once, and returns how long it took to get in.
    fn pass(&self) -> impl Future<Output = Result<Duration, Failure>> + Send;
}

macro_rules! sections {
    ($($lock:ty)*) => {
        $(impl Section for $lock {
            async fn pass(&self) -> Result<Duration, Failure> {
                let asked = Instant::now();
                let guard = self.lock().await?;
                let waited = asked.elapsed();
                guard.unlock().await?;
                Ok(waited)
            }
        })*
    };
}

sections!(ReentrantLock FairLock ReadLock WriteLock MultiLock);

/// A section with work in it that takes a given time.
pub(crate) struct Lasting {
    pub(crate) lock: ReentrantLock,
    pub(crate) work: Duration,
}

impl Section for Lasting {
    async fn pass(&self) -> Result<Duration, Failure> {
        let asked = Instant::now();
        let guard = self.lock.lock().await?;
        let waited = asked.elapsed();
        if !self.work.is_zero() {
            sleep(self.work).await;
        }
        guard.unlock().await?;
        Ok(waited)
    }
}
