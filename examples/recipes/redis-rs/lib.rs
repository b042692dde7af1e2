//! A service that has a pool of deadpool's on redis-rs, and takes its locks where the pool connects: server, user, password
//! and database are told once.

use deadpool_redis::{Manager, Pool};
use redis::{AsyncCommands, IntoConnectionInfo};

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// A service that changes orders.
#[derive(Clone)]
pub struct Orders {
    data: Pool,
    locks: redlatch::Client,
}

impl Orders {
    /// Connects both, from what the service is configured with.
    pub async fn connect(url: &str) -> Result<Self, Failure> {
        let info = url.into_connection_info()?;
        // A pool does not show what it was made from, so the locks read the same `ConnectionInfo`.
        let locks = redlatch::Client::builder()
            .redis(&info)
            .label("orders")
            .build()
            .await?;
        let data = Pool::builder(Manager::new(info)?).max_size(4).build()?;
        Ok(Self { data, locks })
    }

    /// Adds to an order: reads and writes it by two commands, with nobody between them.
    pub async fn add(&self, order: &str, pieces: u64) -> Result<u64, Failure> {
        let key = format!("pieces:{order}");
        // The lock first: a connection of the pool that waits for a lock would keep others from their data.
        let guard = self.locks.lock(format!("order:{order}")).lock().await?;
        let mut data = self.data.get().await?;
        let before: Option<u64> = data.get(&key).await?;
        let after = before.unwrap_or_default() + pieces;
        let () = data.set(&key, after).await?;
        guard.unlock().await?;
        Ok(after)
    }

    /// Takes the next job from a list, and waits for one without end. The connection is blocked for that long.
    pub async fn next_job(&self) -> Result<String, Failure> {
        let mut data = self.data.get().await?;
        let (_, job): (String, String) = data.blpop("jobs", 0.0).await?;
        Ok(job)
    }

    pub async fn close(self) {
        self.locks.close().await;
    }
}
