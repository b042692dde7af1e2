//! One section: the lock is taken, as a rule nothing is done under it, and it is given back.

use std::time::{Duration, Instant};

use redlatch::{FairLock, MultiLock, ReadLock, ReentrantLock, WriteLock};
use tokio::time::sleep;

use crate::Failure;

/// Something that can be passed again and again, by the product or by its floor.
pub(crate) trait Section: Send + Sync + 'static {
    /// Passes once, and tells how long it took to get in.
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

/// A section in which something is done, for so long.
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
