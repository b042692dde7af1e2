//! Who takes part, and what the process of each does.
//!
//! A process is told line by line what to do, and answers each order with a line. Times are in nanoseconds; instants are
//! on the wall clock, which programs in all languages can read.
//!
//! | order | what is done | answer |
//! |---|---|---|
//! | `cycles SPAN` | acquires and releases the lock again and again | how long each cycle took |
//! | `crowd TASKS SPAN` | the same in many tasks | sections passed, tasks served, every wait |
//! | `take` | acquires the lock, and keeps it | when it asked, and when it had the lock |
//! | `release` | releases it | when it began to |
//!
//! Once it can be told something, it says `ready`.

use std::fmt;
use std::process::Command;
use std::time::{Duration, Instant};

use redlatch::{Client, LockGuard, ReentrantLock};

use super::kit;
use super::plain::{Key, PlainLock};
use crate::Failure;
use crate::clock;
use crate::crowd::Crowd;
use crate::section::Section;
use crate::worker::{self, Lines};

/// The role of a worker that takes part.
pub(crate) const ROLE: &str = "contestant";
const PRODUCT: &str = "product";
const PLAIN: &str = "plain";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Contestant {
    Product,
    Redisson,
    Redsync,
    Rslock,
    Plain,
}

impl Contestant {
    pub(super) const ALL: [Self; 5] = [
        Self::Product,
        Self::Redisson,
        Self::Redsync,
        Self::Rslock,
        Self::Plain,
    ];

    /// The beginning of the keys under which scripts find its figures.
    pub(super) fn key(self) -> &'static str {
        match self {
            Self::Product => "peers_redlatch",
            Self::Redisson => "peers_redisson",
            Self::Redsync => "peers_redsync",
            Self::Rslock => "peers_rslock",
            Self::Plain => "peers_set_nx",
        }
    }

    /// Returns the command that starts a process of it, without the server's URL, or what is missing.
    pub(super) fn command(self) -> Result<Command, String> {
        match self {
            Self::Product => worker::command(&[ROLE, PRODUCT]).map_err(|error| error.to_string()),
            Self::Plain => worker::command(&[ROLE, PLAIN]).map_err(|error| error.to_string()),
            Self::Redisson => kit::redisson(),
            Self::Redsync => kit::redsync(),
            Self::Rslock => kit::rslock(),
        }
    }
}

impl fmt::Display for Contestant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Product => write!(f, "redlatch {}", env!("CARGO_PKG_VERSION")),
            Self::Redisson => write!(f, "Redisson {}", kit::REDISSON.version()),
            Self::Redsync => write!(f, "redsync {}", kit::REDSYNC.version()),
            Self::Rslock => write!(f, "rslock {}", kit::RSLOCK.version()),
            Self::Plain => f.write_str("SET NX PX in a loop"),
        }
    }
}

/// A lock that can be kept between two orders.
trait Takes: Section + Clone {
    type Held: Send;

    fn take(&self) -> impl Future<Output = Result<Self::Held, Failure>> + Send;
    fn release(&self, held: Self::Held) -> impl Future<Output = Result<(), Failure>> + Send;
}

impl Takes for ReentrantLock {
    type Held = LockGuard;

    async fn take(&self) -> Result<LockGuard, Failure> {
        Ok(self.lock().await?)
    }

    async fn release(&self, held: LockGuard) -> Result<(), Failure> {
        Ok(held.unlock().await?)
    }
}

impl Takes for PlainLock {
    type Held = Key;

    async fn take(&self) -> Result<Key, Failure> {
        self.lock().await
    }

    async fn release(&self, held: Key) -> Result<(), Failure> {
        self.unlock(held).await
    }
}

/// Runs a process of this crate's lock, or of the loop.
pub(crate) async fn work(whose: &str, url: &str) -> Result<(), Failure> {
    match whose {
        PRODUCT => {
            let client = Client::connect(url).await?;
            obey(client.lock("bench:product")).await
        }
        PLAIN => obey(PlainLock::connect(url, "bench:plain").await?).await,
        _ => Err(format!("no contestant: {whose:?}").into()),
    }
}

async fn obey<L: Takes>(lock: L) -> Result<(), Failure> {
    let mut orders = Lines::orders();
    let mut held = None;
    worker::answer("ready")?;
    while let Some(order) = orders.next().await {
        let answer = match order.split(' ').collect::<Vec<_>>()[..] {
            ["cycles", span] => cycles(&lock, Duration::from_nanos(span.parse()?)).await?,
            ["crowd", tasks, span] => {
                let tasks = vec![lock.clone(); tasks.parse()?];
                Crowd::run(tasks, Duration::from_nanos(span.parse()?))
                    .await?
                    .told()
            }
            ["take"] => {
                let asked = clock::wall();
                held = Some(lock.take().await?);
                format!("{} {}", asked.as_nanos(), clock::wall().as_nanos())
            }
            ["release"] => {
                let released = clock::wall();
                lock.release(held.take().ok_or("nothing is held")?).await?;
                released.as_nanos().to_string()
            }
            _ => return Err(format!("no order: {order:?}").into()),
        };
        worker::answer(&answer)?;
    }
    Ok(())
}

async fn cycles(lock: &impl Section, span: Duration) -> Result<String, Failure> {
    let (start, mut took) = (Instant::now(), Vec::new());
    while start.elapsed() < span {
        let started = Instant::now();
        lock.pass().await?;
        took.push(started.elapsed().as_nanos().to_string());
    }
    Ok(took.join(" "))
}
