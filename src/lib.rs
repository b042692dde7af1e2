//! Distributed locks on Redis or Valkey, for tokio.
//!
//! # Which one do you need?
//!
//! Locks have an owner. Use a [`ReentrantLock`] unless another line describes your case better:
//!
//! - [`ReentrantLock`], from [`Client::lock`]: one owner at a time. It is reentrant: the owner may acquire the lock
//!   again.
//! - [`FencedLock`], from [`Client::fenced_lock`]: one owner at a time, reentrant, with a fencing token for a store
//!   that can refuse writes that arrive too late.
//! - [`FairLock`], from [`Client::fair_lock`]: one owner at a time, reentrant, granted in order of arrival across all
//!   processes.
//! - [`ReadWriteLock`], from [`Client::read_write_lock`]: many readers or one writer, reentrant on both sides.
//! - [`SpinLock`], from [`Client::spin_lock`]: one owner at a time, reentrant, for servers where pub/sub messages do
//!   not get through.
//! - [`PlainLock`], from [`Client::plain_lock`]: one owner at a time, not reentrant. It takes turns with processes that
//!   use redis-py's `Lock`, redsync or similar, and needs no scripts.
//! - [`MultiLock`], from [`MultiLock::new`]: several locks at once, all or none.
//! - [`RedLock`], from [`RedLock::new`]: one lock on a majority of independent servers, which survives the loss of a
//!   minority.
//!
//! Semaphores and latches have no owner:
//!
//! - [`Semaphore`](semaphore::Semaphore), from [`Client::semaphore`]: a limited number of permits at a time.
//! - [`ExpirableSemaphore`](semaphore::ExpirableSemaphore), from [`Client::expirable_semaphore`]: a limited number of
//!   permits at a time, each with a lease, so that the permits of a crashed holder come back.
//! - [`Latch`], from [`Client::latch`]: waits until a count reaches zero. Any process can count down.
//!
//! For work that one of several processes does:
//!
//! - [`Election`](leader::Election), from [`Client::leader`]: one of them leads, as long as it lives. The others see
//!   who leads, and take over.
//! - [`Job`](job::Job), from [`Client::job`]: all of them want to run a job at about the same time, and one does.
//!
//! To write a function for all kinds of lock, or to replace the lock in a test, use the trait [`DistributedLock`], or
//! [`NamedLock`] if the function sets a lease or an owner, or asks who holds the lock. To store a lock of any kind, use
//! an `Arc<dyn` [`DynLock`]`>`.
//!
//! To run a whole function under a lock, use the attribute [`locked`](attr.locked.html), which requires the feature
//! `macros`.
//!
//! # How to use it
//!
//! Every lock has the same three methods to acquire it: `lock` waits, `try_lock` makes one attempt, and `try_lock_for`
//! waits up to a limit. A [`ReadWriteLock`] has them for each of its sides. Busy, broken and lost are three different
//! answers: a busy lock is `Ok(None)`, a broken server is an [`Error`], and a lost lock has an [`ErrorKind`] of its own
//! and a future, [`Lease::lost`]. A successful call returns a guard. [`unlock`](LockGuard::unlock) releases the lock
//! and reports whether it was still held; dropping the guard only releases it.
//!
//! Four more methods acquire the lock, run a future, stop it if the lock is lost, and unlock.
//! [`run`](ReentrantLock::run) waits, [`try_run`](ReentrantLock::try_run) makes one attempt, and
//! [`try_run_for`](ReentrantLock::try_run_for) and [`run_for`](ReentrantLock::run_for) wait up to a limit. Only
//! `run_for` returns an error if the lock is busy. Each call has an owner of its own, so the branches of one task
//! exclude each other.
//!
//! ```
//! # redlatch_testkit::doc(async |url| {
//! # async fn charge_card() {}
//! # async fn compensate() {}
//! use redlatch::Client;
//!
//! let client = Client::connect(url).await?;
//!
//! let guard = client.lock("orders:42").lock().await?; // renewed as long as the guard lives
//! tokio::select! {
//!     () = charge_card() => guard.unlock().await?, // Err(LeaseLost) if it was no longer held
//!     _ = guard.lost() => compensate().await,      // the lease can no longer be trusted
//! }
//! client.close().await;
//! # Ok::<(), redlatch::Error>(()) });
//! ```
//!
//! [`Config`] describes the forms of a server's URL, and how to configure a connection by parts, for example with TLS.
//!
//! A Java service on Redisson and a Rust service on this crate that use the same name take turns on one lock. The
//! [pages on other locks](https://github.com/redlatch/redlatch/tree/HEAD/docs) list the equivalents and the
//! differences, and say how to move.
//!
//! You can test code that uses locks without a server. With the feature `memory`, `Client::in_memory` and
//! `MemoryServer` run the same scripts in memory, on a clock that a test can pause.
//!
//! [`pitfalls`] describes how hand-made locks fail.
//!
//! # Tracing
//!
//! The crate reports through [`tracing`](https://docs.rs/tracing), under the target `redlatch`. The page
//! [`tracing`](mod@tracing) lists the events and spans that a program may rely on: at `warn`, locks that were lost,
//! outages of servers, and long waits if you ask for them; at `info`, new connections, who leads, adoptions and
//! releases by force; at `debug`, acquisitions and releases.
//!
//! # Numbers
//!
//! [`Client::stats`] returns what a client has done and what it has now: calls by kind and outcome, locks held, losses
//! by reason, renewals, connections. The feature `metrics` exports these numbers, and histograms of durations.
//!
//! # Features
//!
//! | feature | adds |
//! |---|---|
//! | `tls-aws-lc-rs`, `tls-ring` | [`Tls`](config/struct.Tls.html), and servers with `rediss://` URLs, by rustls with this [provider](config/struct.Tls.html#the-provider-of-cryptography) |
//! | `tls` | the same with the provider that the process has installed |
//! | `fred-10`, `redis-1` | [`ClientBuilder::fred`](struct.ClientBuilder.html#method.fred) and [`redis`](struct.ClientBuilder.html#method.redis): connects to the same servers and as the same user as a client of fred or redis-rs |
//! | `macros` | the attribute [`locked`](attr.locked.html) |
//! | `serde` | [`Config`] is read from the application's own configuration, as a URL or by parts |
//! | `tower` | [`OwnerLayer`](tower/struct.OwnerLayer.html), which gives each request an owner of its own |
//! | `metrics` | the numbers of [`Client::stats`], and histograms of durations, for the recorder of the crate `metrics`: see [its page](metrics/index.html) |
//! | `memory` | [`MemoryServer`](struct.MemoryServer.html), a server in memory for tests of your own code |
//! | `unstable-admin` | [`Client::admin`](struct.Client.html#method.admin), which lists and shows the locks of all processes, releases one by force, and checks servers |
//! | `unstable-tuning` | [`ClientBuilder::local_handoff_limit`](struct.ClientBuilder.html#method.local_handoff_limit) |
//!
//! No feature is on by default. A feature that is off leaves its code and its dependencies out of the build. What an
//! `unstable-` feature adds may change or go in any version, even in a patch version. So depend on an exact version,
//! `=0.1.0`.

// Each item on docs.rs shows the feature that it needs.
#![cfg_attr(docsrs, feature(doc_cfg))]

#[cfg(not(unix))]
compile_error!(
    "redlatch needs Unix: there is no clock for leases and no host name on other systems"
);

#[cfg(feature = "unstable-admin")]
pub mod admin;
#[cfg(feature = "macros")]
mod attribute;
mod backoff;
mod builder;
mod client;
mod clock;
pub mod config;
mod counter;
mod error;
mod hold;
pub mod job;
mod label;
mod latch;
pub mod leader;
mod lock;
mod loss;
#[cfg(feature = "memory")]
mod memory;
#[cfg(feature = "metrics")]
pub mod metrics;
#[cfg(not(feature = "metrics"))]
#[path = "no_metrics.rs"]
mod metrics;
mod name;
mod options;
mod outage;
mod owner;
mod pace;
mod permit_id;
#[cfg(doc)]
pub mod pitfalls;
mod protocol;
mod scope;
pub mod semaphore;
mod session;
pub mod stats;
#[cfg(feature = "tower")]
pub mod tower;
#[cfg(doc)]
pub mod tracing;
mod wait;

#[cfg(feature = "macros")]
pub use attribute::locked;
#[cfg(feature = "macros")]
#[doc(hidden)]
pub use attribute::private as __locked;
pub use builder::ClientBuilder;
pub use client::Client;
#[doc(inline)]
pub use config::Config;
pub use error::{Error, ErrorKind};
pub use hold::guard::LockGuard;
pub use hold::lease::Lease;
pub use latch::Latch;
pub use lock::distributed::{DistributedGuard, DistributedLock};
pub use lock::dynamic::{DynGuard, DynLock};
pub use lock::fair::FairLock;
pub use lock::fenced::{FencedGuard, FencedLock, FencingToken};
pub use lock::holder::Holder;
pub use lock::member::Member;
pub use lock::multi::MultiLock;
pub use lock::multi_guard::MultiGuard;
pub use lock::named::NamedLock;
pub use lock::plain::PlainLock;
pub use lock::read_write::{ReadLock, ReadWriteLock, WriteLock};
pub use lock::red::RedLock;
pub use lock::red_guard::RedGuard;
pub use lock::reentrant::ReentrantLock;
pub use lock::spin::SpinLock;
pub use loss::LossReason;
#[cfg(feature = "memory")]
pub use memory::MemoryServer;
pub use owner::Owner;
pub use scope::Scoped;

/// Pages whose Rust is compiled by `cargo test --doc`.
#[cfg(all(doctest, feature = "macros", feature = "memory"))]
#[doc = include_str!("../README.md")]
#[doc = include_str!("../docs/testing.md")]
#[doc = include_str!("../docs/from-redisson.md")]
#[doc = include_str!("../docs/from-shedlock.md")]
#[doc = include_str!("../docs/from-set-nx.md")]
#[doc = include_str!("../docs/from-curator-and-etcd.md")]
#[doc = include_str!("../docs/from-distributedlock.md")]
#[doc = include_str!("../docs/from-rslock.md")]
#[doc = include_str!("../docs/from-fred-and-redis-rs.md")]
#[doc = include_str!("../docs/why-our-own-connection.md")]
struct Pages;
