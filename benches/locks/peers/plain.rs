//! The lock that many write themselves: `SET NX PX`, a pause while somebody else holds it, and a script that deletes.

use std::time::{Duration, Instant};

use fred::interfaces::Resp3Frame;
use fred::types::Value;
use tokio::time::sleep;

use crate::Failure;
use crate::floor::{Call, Floor, KEYS_AT};
use crate::pipe::Pipe;
use crate::section::Section;

const LEASE_MILLIS: &str = "30000";
/// 50 ms on average, and never the same for long.
const PAUSE_MILLIS: std::ops::RangeInclusive<u64> = 25..=75;
const DELETE: &str =
    "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) end return 0";

#[derive(Clone)]
pub(super) struct PlainLock {
    pipe: Pipe,
    name: &'static str,
    delete: Call,
}

/// The value by which a holder knows its lock.
pub(super) struct Key(Value);

impl PlainLock {
    pub(super) async fn connect(url: &str, name: &'static str) -> Result<Self, Failure> {
        let floor = Floor::of_pipe(url).await?;
        Ok(Self {
            pipe: Pipe::connect(url).await?,
            name,
            delete: floor.call(DELETE, &[name], &[""], "1").await?,
        })
    }

    pub(super) async fn lock(&self) -> Result<Key, Failure> {
        let key = Value::from(format!("{:032x}", fastrand::u128(..)));
        let words = [
            self.name.into(),
            key.clone(),
            "NX".into(),
            "PX".into(),
            LEASE_MILLIS.into(),
        ];
        loop {
            match self.pipe.ask("SET", &words).await? {
                Resp3Frame::SimpleString { .. } => return Ok(Key(key)),
                Resp3Frame::Null => sleep(Duration::from_millis(fastrand::u64(PAUSE_MILLIS))).await,
                refused => return Err(format!("SET was answered {refused:?}").into()),
            }
        }
    }

    pub(super) async fn unlock(&self, Key(key): Key) -> Result<(), Failure> {
        self.delete.send_with(KEYS_AT + 1, key).await
    }
}

impl Section for PlainLock {
    async fn pass(&self) -> Result<Duration, Failure> {
        let asked = Instant::now();
        let key = self.lock().await?;
        let waited = asked.elapsed();
        self.unlock(key).await?;
        Ok(waited)
    }
}
