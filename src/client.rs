//! The client: connects, creates handles to locks, semaphores and latches, and closes.

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

/// A client of one Redis or Valkey deployment, from which an application creates its locks, semaphores and latches.
///
/// A client is cheap to clone. All clones share two connections to the server, one for commands and one for messages;
/// in a cluster, two to each primary that is needed. There is no connection pool: the commands of all tasks travel on
/// one connection without waiting for each other. Only a [`PlainLock`](crate::PlainLock) that works without scripts
/// uses a third connection.
///
/// A client is bound to the tokio runtime on which it was connected. Once that runtime has ended, every call returns
/// [`Closed`](crate::ErrorKind::Closed). The client may be used from other runtimes, which must have their timers
/// enabled ([`enable_time`](tokio::runtime::Builder::enable_time)), and from outside any runtime. When the last clone,
/// handle and guard of a client has been dropped, the client closes itself in the background; [`close`](Self::close)
/// waits for that.
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
    /// Checked when a lock is used, so that `scoped` cannot fail.
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
    /// The URL has one of these forms; [`Config`](crate::Config#urls) has a table of all of them:
    ///
    /// - `redis://user:password@host:6379/0` for a single server, or `rediss://` for TLS
    /// - `redis+unix:///path` for a unix socket
    /// - `redis-sentinel://host:26379?sentinelServiceName=main` for a primary that sentinels monitor
    /// - `redis-cluster://host:7000?node=other:7000` for a cluster
    ///
    /// # Errors
    ///
    /// [`InvalidInput`](crate::ErrorKind::InvalidInput) if the URL cannot be parsed, or if the call is made outside a
    /// tokio runtime; [`Backend`](crate::ErrorKind::Backend) if the server cannot be reached or refuses the connection.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, nothing stays open.
    ///
    /// # Examples
    ///
    /// ```
    /// # redlatch_testkit::doc(async |url| {
    /// use redlatch::{Client, ErrorKind};
    ///
    /// let client = Client::connect(url).await?;
    /// assert!(client.is_connected());
    ///
    /// // The database belongs in the path. A part that is not understood is refused, not ignored.
    /// let error = Client::connect("redis://127.0.0.1?db=3").await.unwrap_err();
    /// assert_eq!(error.kind(), ErrorKind::InvalidInput);
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
    pub async fn connect(url: impl AsRef<str>) -> Result<Self, Error> {
        Self::builder().url(url).build().await
    }

    /// Returns a builder for a client with other settings.
    ///
    /// # Examples
    ///
    /// ```
    /// # redlatch_testkit::doc(async |url| {
    /// use std::time::Duration;
    /// use redlatch::Client;
    ///
    /// let client = Client::builder()
    ///     .url(url)
    ///     .watchdog_lease(Duration::from_secs(5)) // a crashed leader blocks the others for at most this long
    ///     .build()
    ///     .await?;
    /// let guard = client.lock("worker:leader").lock().await?;
    /// # guard.unlock().await?;
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
    pub fn builder() -> ClientBuilder {
        ClientBuilder::new()
    }

    /// Returns a handle to the reentrant lock with this name. Does no I/O.
    ///
    /// A name is any text of 1 to 1,024 bytes, including the prefix; with any other name, every method of the handle
    /// that talks to the server returns [`InvalidInput`](crate::ErrorKind::InvalidInput). Kinds that have keys next to
    /// the lock's own (fenced, fair, read-write and the expirable semaphore) also refuse a name that consists only of
    /// one pair of braces and its content: in Redisson's scheme, `{k}` would share those keys with `k`. The names `k`,
    /// `{k}:x` and `x:{k}` are accepted.
    ///
    /// # Examples
    ///
    /// ```
    /// # redlatch_testkit::doc(async |url| {
    /// # let client = redlatch::Client::connect(url).await?;
    /// use redlatch::Owner;
    ///
    /// let lock = client.lock("orders:42");
    /// let guard = lock.lock().await?;
    /// // Another handle to the same lock, for another owner:
    /// let other = client.lock("orders:42").owned_by(&Owner::unique());
    /// assert!(other.try_lock().await?.is_none());
    /// guard.unlock().await?;
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
    #[must_use]
    pub fn lock(&self, name: impl AsRef<str>) -> ReentrantLock {
        ReentrantLock(self.handle(name.as_ref(), |_| Kind::Reentrant))
    }

    /// Returns a handle to the fenced lock with this name, which must not be one pair of braces; see
    /// [`lock`](Self::lock). Does no I/O.
    ///
    /// # Examples
    ///
    /// ```
    /// # redlatch_testkit::doc(async |url| {
    /// # let client = redlatch::Client::connect(url).await?;
    /// let lock = client.fenced_lock("orders:42");
    /// let guard = lock.lock().await?;
    /// let stale = guard.token();
    /// guard.unlock().await?;
    ///
    /// let guard = lock.lock().await?;
    /// assert!(guard.token() > stale); // a store that has seen this token refuses the stale one
    /// guard.unlock().await?;
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
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

    /// Returns a handle to the fair lock with this name, which must not be one pair of braces; see
    /// [`lock`](Self::lock). Does no I/O.
    ///
    /// # Examples
    ///
    /// ```
    /// # redlatch_testkit::doc(async |url| {
    /// # let client = redlatch::Client::connect(url).await?;
    /// use std::time::Duration;
    ///
    /// let desk = client.fair_lock("ticket-desk");
    /// // The caller that came first is served first, in any process.
    /// if let Some(guard) = desk.try_lock_for(Duration::from_secs(2)).await? {
    ///     guard.unlock().await?;
    /// }
    /// assert!(!desk.is_locked().await?);
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
    #[must_use]
    pub fn fair_lock(&self, name: impl AsRef<str>) -> FairLock {
        let worth = self.client.settings.fair_wait_timeout;
        FairLock::new(self.handle(name.as_ref(), |name| {
            Kind::Fair(Arc::new(ServerQueue::new(name, worth)))
        }))
    }

    /// Returns a handle to the read-write lock with this name, which must not be one pair of braces; see
    /// [`lock`](Self::lock). Does no I/O.
    ///
    /// # Examples
    ///
    /// ```
    /// # redlatch_testkit::doc(async |url| {
    /// # let client = redlatch::Client::connect(url).await?;
    /// use redlatch::Owner;
    ///
    /// let prices = client.read_write_lock("prices");
    /// let [reader, writer] = [(); 2].map(|()| prices.clone().owned_by(&Owner::unique()));
    ///
    /// let reading = prices.read().await?;
    /// assert!(reader.try_read().await?.is_some()); // readers do not exclude each other
    /// assert!(writer.try_write().await?.is_none());
    /// reading.unlock().await?;
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
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

    /// Returns a handle to the spin lock with this name. Does no I/O.
    ///
    /// # Examples
    ///
    /// ```
    /// # redlatch_testkit::doc(async |url| {
    /// # let client = redlatch::Client::connect(url).await?;
    /// # let other = redlatch::Client::connect(url).await?;
    /// // Through a proxy that does not pass messages on:
    /// let guard = client.spin_lock("cache-refresh").lock().await?;
    /// // A client that needs no proxy can use the reentrant lock of the same name, which has messages:
    /// assert!(other.lock("cache-refresh").try_lock().await?.is_none());
    /// guard.unlock().await?;
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
    #[must_use]
    pub fn spin_lock(&self, name: impl AsRef<str>) -> SpinLock {
        SpinLock::new(self.handle(name.as_ref(), |_| Kind::Spin))
    }

    /// Returns a handle to the plain lock with this name. Does no I/O.
    ///
    /// # Examples
    ///
    /// ```
    /// # redlatch_testkit::doc(async |url| {
    /// # let client = redlatch::Client::connect(url).await?;
    /// use redlatch::Owner;
    ///
    /// // The key that redis-py's Lock("stock-import") sets, here with a value that others can read.
    /// let lock = client.plain_lock("stock-import").owned_by(&Owner::named("importer-7"));
    /// let guard = lock.lock().await?;
    /// let holder = lock.holder().await?.unwrap();
    /// assert_eq!(holder.owner(), "importer-7");
    /// guard.unlock().await?;
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
    #[must_use]
    pub fn plain_lock(&self, name: impl AsRef<str>) -> PlainLock {
        PlainLock::new(self.handle(name.as_ref(), |_| Kind::Plain(ReleaseBy::Auto)))
    }

    /// Returns a handle to the semaphore with this name. Does no I/O.
    ///
    /// # Examples
    ///
    /// ```
    /// # redlatch_testkit::doc(async |url| {
    /// # let client = redlatch::Client::connect(url).await?;
    /// let calls = client.semaphore("payment-api");
    /// calls.try_set_permits(2).await?;
    /// let (first, second) = (calls.acquire().await?, calls.acquire().await?);
    /// assert!(calls.try_acquire().await?.is_none()); // two calls at a time, in all processes together
    /// first.release().await?;
    /// second.release().await?;
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
    #[must_use]
    pub fn semaphore(&self, name: impl AsRef<str>) -> Semaphore {
        Semaphore(self.pool(name.as_ref(), Leases::None))
    }

    /// Returns a handle to the semaphore with this name whose permits have a lease. The name must not be one pair of
    /// braces; see [`lock`](Self::lock). Does no I/O.
    ///
    /// # Examples
    ///
    /// ```
    /// # redlatch_testkit::doc(async |url| {
    /// # let client = redlatch::Client::connect(url).await?;
    /// use std::time::Duration;
    ///
    /// let gpus = client.expirable_semaphore("gpus").lease(Duration::from_secs(30));
    /// gpus.try_set_permits(2).await?;
    /// let gpu = gpus.acquire().await?; // comes back by itself if this process crashes
    /// gpu.extend(Duration::from_secs(90)).await?; // the job takes longer than expected
    /// gpu.release().await?;
    /// assert_eq!(gpus.available_permits().await?, 2);
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
    #[must_use]
    pub fn expirable_semaphore(&self, name: impl AsRef<str>) -> ExpirableSemaphore {
        ExpirableSemaphore(self.pool(name.as_ref(), Leases::Of(None)))
    }

    /// Returns a handle to the count-down latch with this name. Does no I/O.
    ///
    /// # Examples
    ///
    /// ```
    /// # redlatch_testkit::doc(async |url| {
    /// # let client = redlatch::Client::connect(url).await?;
    /// use std::time::Duration;
    ///
    /// let migrated = client.latch("schema-migrated");
    /// migrated.try_set_count(1).await?;
    /// assert!(!migrated.wait_for(Duration::ZERO).await?); // the services wait for this
    /// migrated.count_down().await?; // the migration is done
    /// migrated.wait().await?;
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
    #[must_use]
    pub fn latch(&self, name: impl AsRef<str>) -> Latch {
        let name = self.name(name.as_ref(), LockName::latch);
        Latch(Counter::new(self.client.clone(), name))
    }

    /// Returns a client that shares this one's connections and puts a prefix before every name.
    ///
    /// `client.scoped("orders:").lock("7")` is `client.lock("orders:7")`, for every key and channel. Prefixes add up:
    /// each call appends to the prefix of the client it is called on. If a prefix ends with a separator that your names
    /// do not begin with, names under two different prefixes never collide.
    ///
    /// A prefix is checked like a name, when a lock that carries it is used.
    ///
    /// # Examples
    ///
    /// ```
    /// # redlatch_testkit::doc(async |url| {
    /// # let client = redlatch::Client::connect(url).await?;
    /// let billing = client.scoped("billing:");
    /// let guard = billing.lock("orders:42").lock().await?;
    /// assert!(client.lock("billing:orders:42").is_held().await?);
    /// assert!(!client.lock("orders:42").is_locked().await?); // another lock
    /// guard.unlock().await?;
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
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

    /// Returns a client that shares this one's connections and has another lease for locks that do not set their own;
    /// see [`ClientBuilder::watchdog_lease`].
    ///
    /// # Examples
    ///
    /// ```
    /// # redlatch_testkit::doc(async |url| {
    /// # let client = redlatch::Client::connect(url).await?;
    /// use std::time::Duration;
    ///
    /// // Another process takes over within five seconds of a crash.
    /// let elections = client.clone().watchdog_lease(Duration::from_secs(5));
    /// let leader = elections.lock("leader").lock().await?;
    /// assert!(leader.remaining() <= Duration::from_secs(5));
    /// leader.unlock().await?;
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
    #[must_use = "this makes a new client and leaves the old one as it is"]
    pub fn watchdog_lease(mut self, lease: Duration) -> Self {
        self.watchdog_lease = lease;
        self
    }

    /// Returns the id of this client, a random UUID. It is the first part of this client's owners on the server.
    ///
    /// # Examples
    ///
    /// ```
    /// # redlatch_testkit::doc(async |url| {
    /// # let client = redlatch::Client::connect(url).await?;
    /// # let other = redlatch::Client::connect(url).await?;
    /// let guard = client.lock("orders:42").lock().await?;
    /// let holder = other.lock("orders:42").holder().await?.unwrap();
    /// assert!(holder.owner().starts_with(client.id())); // this process holds it, not the other one
    /// assert!(!holder.owner().starts_with(other.id()));
    /// guard.unlock().await?;
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
    #[must_use]
    pub fn id(&self) -> &str {
        &self.client.client_id
    }

    /// Sends a PING to the server, in a cluster to each primary, waits for the answers, and returns the longest of the
    /// round trips.
    ///
    /// This method is for health checks. `Ok` proves that commands are answered, not that a lock can be acquired: a
    /// replica answers too, and the connection for messages is not tested.
    ///
    /// # Errors
    ///
    /// [`Backend`](crate::ErrorKind::Backend) if a server cannot be reached within one
    /// [`command_timeout`](ClientBuilder::command_timeout), or refuses the command;
    /// [`Timeout`](crate::ErrorKind::Timeout) if it does not answer; [`Closed`](crate::ErrorKind::Closed) if the client
    /// is closed.
    ///
    /// # Cancel safety
    ///
    /// This method is cancel safe: it changes nothing on the server.
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

    /// Returns `true` if there currently is a connection to the server, in a cluster to each primary that was needed so
    /// far. Does no I/O.
    ///
    /// A server that hangs counts as connected until a command goes unanswered; use [`ping`](Self::ping) to test it. Do
    /// not create another client because of `false`: this one reconnects by itself, unless it was closed.
    ///
    /// # Examples
    ///
    /// ```
    /// # redlatch_testkit::doc(async |url| {
    /// # let client = redlatch::Client::connect(url).await?;
    /// // For a readiness probe, which is asked often:
    /// let status = if client.is_connected() { 200 } else { 503 };
    /// assert_eq!(status, 200);
    ///
    /// client.close().await;
    /// assert!(!client.is_connected());
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
    #[must_use]
    pub fn is_connected(&self) -> bool {
        self.client.ensure_open().is_ok() && self.client.backend.is_connected()
    }

    /// Closes the client, including all its clones and scopes.
    ///
    /// [`lost`](crate::Lease::lost) resolves on live guards, holds and permits are released, waiting and later calls
    /// return [`Closed`](crate::ErrorKind::Closed), and the connections are closed.
    ///
    /// This takes at most about one [`command_timeout`](ClientBuilder::command_timeout) plus one second. If a server
    /// does not answer within that time, the locks and leased permits that could not be released on it become free when
    /// their leases end.
    ///
    /// # Cancel safety
    ///
    /// Once the future has been polled, dropping it does not stop the client from closing in the background.
    ///
    /// # Examples
    ///
    /// ```
    /// # redlatch_testkit::doc(async |url| {
    /// # let client = redlatch::Client::connect(url).await?;
    /// # let other = redlatch::Client::connect(url).await?;
    /// use redlatch::ErrorKind;
    ///
    /// let guard = client.lock("leader").lock().await?;
    /// client.close().await;
    /// assert!(guard.is_lost());
    /// assert_eq!(client.ping().await.unwrap_err().kind(), ErrorKind::Closed);
    /// // Another process need not wait for the lease to end.
    /// assert!(other.lock("leader").try_lock().await?.is_some());
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
    pub async fn close(&self) {
        self.client.close().await;
    }

    /// Returns a look at the locks of all processes, and at the servers, for operators.
    ///
    /// # Examples
    ///
    /// ```
    /// # redlatch_testkit::doc(async |url| {
    /// # let client = redlatch::Client::connect(url).await?;
    /// let guard = client.lock("nightly-report").lock().await?;
    /// for lock in client.admin().list("nightly-*").await? {
    ///     println!("{} is held by {:?}", lock.name, lock.holders);
    /// }
    /// guard.unlock().await?;
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
    #[cfg(feature = "admin")]
    #[must_use]
    pub fn admin(&self) -> crate::admin::Admin {
        crate::admin::Admin::new(self.client.clone(), self.prefix.clone())
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
