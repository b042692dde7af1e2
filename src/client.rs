//! The handle an application holds: connects, makes locks, closes.

use std::sync::Arc;
use std::time::Duration;

use crate::builder::ClientBuilder;
use crate::counter::Counter;
use crate::error::Error;
use crate::latch::Latch;
use crate::lock::fair::FairLock;
use crate::lock::fenced::FencedLock;
use crate::lock::handle::{Handle, Target};
use crate::lock::plain::PlainLock;
use crate::lock::read_write::ReadWriteLock;
use crate::lock::reentrant::ReentrantLock;
use crate::lock::spin::SpinLock;
use crate::name::{LockName, check};
use crate::options::{LeaseTime, ReleaseBy};
use crate::protocol::hold_key::{Fencing, Kind, ReadWrite, ServerQueue};
use crate::semaphore::counted::Semaphore;
use crate::semaphore::expirable::ExpirableSemaphore;
use crate::semaphore::pool::{Leases, Pool};
use crate::session::ClientHandle;

/// A connected client: the handle that an application keeps, and makes its locks from.
///
/// Cheap to clone; all clones share two connections to the server, one for commands and one for messages; in a cluster
/// two to each primary that is needed. There is no pool: commands of all tasks travel on one connection without waiting for each other.
///
/// A client lives on the tokio runtime that it was connected on; once that has ended, every call answers
/// [`Closed`](crate::ErrorKind::Closed). It may be used from other runtimes, which must have their timers enabled
/// ([`enable_time`](tokio::runtime::Builder::enable_time)), and from outside of any. When the last clone, handle and
/// guard of a client is gone, it closes by itself in the background; [`close`](Self::close) waits for it.
///
/// # Examples
///
/// ```
/// # redlatch_testkit::doc(async |url| {
/// use redlatch::Client;
///
/// let client = Client::connect(url).await?;
/// let guard = client.lock("nightly").lock().await?;
/// guard.unlock().await?;
/// client.close().await;
/// # Ok::<(), redlatch::Error>(()) });
/// ```
#[derive(Clone, Debug)]
pub struct Client {
    client: Arc<ClientHandle>,
    /// Checked when a lock is used, so that scoping cannot fail.
    prefix: Result<String, Error>,
    watchdog_lease: Duration,
}

impl Client {
    pub(crate) fn new(client: ClientHandle, prefix: String, watchdog_lease: Duration) -> Self {
        Self {
            client: Arc::new(client),
            prefix: Ok(prefix),
            watchdog_lease,
        }
    }

    /// Connects to the server at this URL, with default settings.
    ///
    /// `redis://user:password@host:6379/0`; `rediss://` for TLS; `redis+unix:///path` for a unix socket;
    /// `redis-sentinel://host:26379?sentinelServiceName=main` for a primary that sentinels look after;
    /// `redis-cluster://host:7000?node=other:7000` for a cluster. [`Config`](crate::Config#urls) has a table of all forms.
    ///
    /// # Errors
    ///
    /// [`InvalidInput`](crate::ErrorKind::InvalidInput) if the URL cannot be understood, or outside a tokio runtime;
    /// [`Backend`](crate::ErrorKind::Backend) if the server cannot be reached or refuses.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, nothing stays open.
    pub async fn connect(url: impl AsRef<str>) -> Result<Self, Error> {
        Self::builder().url(url).build().await
    }

    /// A client with other settings.
    pub fn builder() -> ClientBuilder {
        ClientBuilder::new()
    }

    /// The lock of this name. No I/O.
    ///
    /// A name is any text of 1 to 1,024 bytes, prefix included; every verb of the handle answers
    /// [`InvalidInput`](crate::ErrorKind::InvalidInput) for another. Locks that have keys next to their own (fenced, fair,
    /// read-write and the expirable semaphore) also refuse a name that is nothing but one pair of braces: in Redisson's
    /// scheme `{k}` would share those keys with `k`. `k`, `{k}:x` and `x:{k}` are fine.
    #[must_use]
    pub fn lock(&self, name: impl AsRef<str>) -> ReentrantLock {
        ReentrantLock(self.handle(name.as_ref(), |_| Kind::Reentrant))
    }

    /// The fenced lock of this name, which is not one pair of braces; see [`lock`](Self::lock). No I/O.
    #[must_use]
    pub fn fenced_lock(&self, name: impl AsRef<str>) -> FencedLock {
        FencedLock(self.handle(name.as_ref(), |name| {
            Kind::Fenced(Arc::new(Fencing {
                key: name.beside("redisson_lock_token").into(),
                ttl: self
                    .client
                    .settings
                    .token_ttl
                    .and_then(|ttl| LeaseTime::new(ttl).ok()),
            }))
        }))
    }

    /// The fair lock of this name, which is not one pair of braces; see [`lock`](Self::lock). No I/O.
    #[must_use]
    pub fn fair_lock(&self, name: impl AsRef<str>) -> FairLock {
        let worth = self.client.settings.fair_wait_timeout;
        FairLock::new(self.handle(name.as_ref(), |name| {
            Kind::Fair(Arc::new(ServerQueue::new(name, worth)))
        }))
    }

    /// The read-write lock of this name, which is not one pair of braces; see [`lock`](Self::lock). No I/O.
    #[must_use]
    pub fn read_write_lock(&self, name: impl AsRef<str>) -> ReadWriteLock {
        let target = self.name(name.as_ref(), LockName::read_write);
        let prefer = self.client.settings.prefer;
        let sides = target.map(|name| (Arc::new(ReadWrite::new(&name, prefer)), name));
        let side = |kind: fn(Arc<ReadWrite>) -> Kind| {
            let target = sides
                .clone()
                .and_then(|(sides, name)| Target::new(name, kind(sides)));
            Handle::new(self.client.clone(), target, self.watchdog_lease)
        };
        ReadWriteLock::new(side(Kind::Read), side(Kind::Write))
    }

    /// The spin lock of this name. No I/O.
    #[must_use]
    pub fn spin_lock(&self, name: impl AsRef<str>) -> SpinLock {
        SpinLock::new(self.handle(name.as_ref(), |_| Kind::Spin))
    }

    /// The plain lock of this name. No I/O.
    #[must_use]
    pub fn plain_lock(&self, name: impl AsRef<str>) -> PlainLock {
        PlainLock::new(self.handle(name.as_ref(), |_| Kind::Plain(ReleaseBy::Auto)))
    }

    /// The semaphore of this name. No I/O.
    #[must_use]
    pub fn semaphore(&self, name: impl AsRef<str>) -> Semaphore {
        Semaphore(self.pool(name.as_ref(), Leases::None))
    }

    /// The semaphore of this name whose permits have a lease. The name is not one pair of braces; see
    /// [`lock`](Self::lock). No I/O.
    #[must_use]
    pub fn expirable_semaphore(&self, name: impl AsRef<str>) -> ExpirableSemaphore {
        ExpirableSemaphore(self.pool(name.as_ref(), Leases::Of(None)))
    }

    /// The count-down latch of this name. No I/O.
    #[must_use]
    pub fn latch(&self, name: impl AsRef<str>) -> Latch {
        let name = self.name(name.as_ref(), LockName::latch);
        Latch(Counter::new(self.client.clone(), name))
    }

    /// The same client with a prefix before every name: `client.scoped("orders:").lock("7")` is
    /// `client.lock("orders:7")`, for every key and channel. Prefixes add up. End a prefix in a separator that your
    /// names do not begin with, and two prefixes never meet.
    ///
    /// A prefix is checked like a name, by the locks that carry it.
    #[must_use = "this makes a new client and leaves the old one as it is"]
    pub fn scoped(&self, prefix: impl AsRef<str>) -> Self {
        let prefix = prefix.as_ref();
        let whole = self.prefix.clone().and_then(|before| {
            check("a prefix", prefix)?;
            Ok(before + prefix)
        });
        Self {
            client: self.client.clone(),
            prefix: whole,
            watchdog_lease: self.watchdog_lease,
        }
    }

    /// The same client with another lease for locks that are given none; see
    /// [`ClientBuilder::watchdog_lease`].
    #[must_use = "this makes a new client and leaves the old one as it is"]
    pub fn watchdog_lease(mut self, lease: Duration) -> Self {
        self.watchdog_lease = lease;
        self
    }

    /// The id of this client, a random UUID: the first part of its owners on the server.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.client.client_id
    }

    /// Sends a PING to the server, in a cluster to each primary, and waits for the answers: the longest of the round trips.
    ///
    /// For health checks. It proves that commands are answered, not that a lock can be had: a replica answers too, and the
    /// connection that messages come on is not asked.
    ///
    /// # Errors
    ///
    /// [`Backend`](crate::ErrorKind::Backend) if a server cannot be reached within one
    /// [`command_timeout`](ClientBuilder::command_timeout), or refuses; [`Timeout`](crate::ErrorKind::Timeout) if it gives
    /// no answer; [`Closed`](crate::ErrorKind::Closed).
    ///
    /// # Cancel safety
    ///
    /// It changes nothing; the future can be dropped at any time.
    ///
    /// # Examples
    ///
    /// ```
    /// # redlatch_testkit::doc(async |url| {
    /// use std::time::Duration;
    /// use redlatch::Client;
    ///
    /// let client = Client::connect(url).await?;
    /// assert!(client.ping().await? < Duration::from_secs(1));
    /// # client.close().await;
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
    pub async fn ping(&self) -> Result<Duration, Error> {
        self.client.ping().await
    }

    /// Returns whether there is a connection to the server right now; in a cluster, to each primary that was needed so
    /// far. No I/O.
    ///
    /// A server that hangs is connected all the same, until a command goes unanswered: [`ping`](Self::ping) asks it.
    /// `false` is no reason to make another client: this one connects again by itself.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        self.client.backend.is_connected()
    }

    /// Closes the client, with all its clones and scopes: [`lost`](crate::Lease::lost) fires on live guards, holds
    /// are released and permits given back, calls that wait and later ones answer
    /// [`Closed`](crate::ErrorKind::Closed), and the connections end.
    ///
    /// Takes about one [`command_timeout`](ClientBuilder::command_timeout) and a second at the most; what a silent
    /// server was not told by then is free when its lease ends.
    ///
    /// # Cancel safety
    ///
    /// Once polled, closing goes on in the background if the future is dropped.
    pub async fn close(&self) {
        self.client.close().await;
    }

    fn pool(&self, name: &str, leases: Leases) -> Pool {
        let name = self.name(name, LockName::semaphore).and_then(|name| {
            if let Leases::Of(_) = leases {
                name.ensure_own_keys()?;
            }
            Ok(name)
        });
        Pool {
            counter: Counter::new(self.client.clone(), name),
            leases,
        }
    }

    fn handle(&self, name: &str, kind: impl FnOnce(&LockName) -> Kind) -> Handle {
        let target = self.name(name, LockName::new).and_then(|name| {
            let kind = kind(&name);
            Target::new(name, kind)
        });
        Handle::new(self.client.clone(), target, self.watchdog_lease)
    }

    fn name(
        &self,
        name: &str,
        make: fn(&str, &str) -> Result<LockName, Error>,
    ) -> Result<LockName, Error> {
        let name = make(self.prefix.as_ref().map_err(Clone::clone)?, name)?;
        if self.client.backend.is_clustered() {
            name.ensure_one_slot()?;
        }
        Ok(name)
    }
}
