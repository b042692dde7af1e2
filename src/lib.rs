//! Distributed locks on Redis or Valkey, for tokio.
//!
//! Which one do you need?
//!
//! - One owner at a time, which may take the lock again: [`ReentrantLock`], from [`Client::lock`].
//! - The same, and a store that can refuse what comes too late: [`FencedLock`], from [`Client::fenced_lock`].
//! - The same, granted in order of arrival over all processes: [`FairLock`], from [`Client::fair_lock`].
//! - Many readers or one writer: [`ReadWriteLock`], from [`Client::read_write_lock`].
//! - The same where messages do not get through: [`SpinLock`], from [`Client::spin_lock`].
//! - The same beside processes that use redis-py's `Lock`, redsync or alike, or where scripts are not allowed:
//!   [`PlainLock`], from [`Client::plain_lock`]. Its owner may not take it again.
//! - Several of them at once, all or none: [`MultiLock`].
//! - One on a majority of independent servers, so that it outlives the loss of the others: [`RedLock`].
//!
//! And without owners:
//!
//! - At most so many at a time: [`Semaphore`], from [`Client::semaphore`].
//! - The same, where a holder may crash: [`ExpirableSemaphore`], from [`Client::expirable_semaphore`].
//! - To wait until many processes have done their parts: [`Latch`], from [`Client::latch`].
//!
//! A whole function under a lock: the attribute [`locked`](attr.locked.html), with the feature `macros`.
//!
//! Every lock has the same three verbs: `lock` waits, `try_lock` tries once, `try_lock_for` waits at most so long.
//! Busy is an answer, `Ok(None)`; a broken server is an [`Error`]; a lost lock has a kind of its own and a future,
//! [`Lease::lost`]. What you get is a guard; dropping it releases the lock.
//!
//! ```
//! # redlatch_testkit::doc(async |url| {
//! # async fn charge_card() {}
//! # async fn compensate() {}
//! use redlatch::Client;
//!
//! let client = Client::connect(url).await?;
//!
//! let guard = client.lock("orders:42").lock().await?; // renewed for as long as the guard lives
//! tokio::select! {
//!     () = charge_card() => guard.unlock().await?, // Err(LeaseLost) if it was not held any more
//!     () = guard.lost() => compensate().await,     // the lease cannot be trusted any more
//! }
//! client.close().await;
//! # Ok::<(), redlatch::Error>(()) });
//! ```
//!
//! What a server's URL looks like, and how to say the same by parts, with TLS for example, is told by [`Config`].
//!
//! A Java service on Redisson and a Rust service on this crate that use one name take turns on one lock.
//!
//! How locks made by hand fail is told in [`pitfalls`].
//!
//! # What it reports
//!
//! Through [`tracing`](https://docs.rs/tracing), under the target `redlatch`: `warn` for a lock that was lost, with
//! the reason, for a renewal that failed, for messages that may not arrive and, once, for a server that lets none be
//! published; `info` for a new connection and for channels that are subscribed to anew; `debug` for each acquisition,
//! with its wait, in a span `acquire` with the lock and the owner. Names of locks and owners appear in them, passwords
//! never.

#[cfg(feature = "macros")]
mod attribute;
mod backoff;
mod builder;
mod client;
mod clock;
mod config;
mod counter;
mod error;
mod hold;
mod latch;
mod lock;
mod name;
mod options;
mod owner;
mod permit_id;
#[cfg(doc)]
pub mod pitfalls;
mod protocol;
mod semaphore;
mod session;
mod wait;

#[cfg(feature = "macros")]
pub use attribute::locked;
#[cfg(feature = "macros")]
#[doc(hidden)]
pub use attribute::private as __locked;
pub use backoff::Backoff;
pub use builder::ClientBuilder;
pub use client::Client;
#[cfg(feature = "tls")]
pub use config::tls::Tls;
pub use config::{Config, Protocol};
pub use error::{Error, ErrorKind};
pub use hold::guard::LockGuard;
pub use hold::lease::Lease;
pub use latch::Latch;
pub use lock::fair::FairLock;
pub use lock::fenced::{FencedGuard, FencedLock, FencingToken};
pub use lock::handle::Holder;
pub use lock::member::Member;
pub use lock::multi::{MultiGuard, MultiLock};
pub use lock::plain::PlainLock;
pub use lock::read_write::{ReadLock, ReadWriteLock, WriteLock};
pub use lock::red::{RedGuard, RedLock};
pub use lock::reentrant::ReentrantLock;
pub use lock::spin::SpinLock;
pub use options::{Prefer, PubSub, ReleaseBy};
pub use owner::Owner;
pub use permit_id::PermitId;
pub use semaphore::counted::{Semaphore, SemaphorePermit};
pub use semaphore::expirable::{ExpirablePermit, ExpirableSemaphore};

#[cfg(all(doctest, feature = "macros"))]
#[doc = include_str!("../README.md")]
struct Readme;
