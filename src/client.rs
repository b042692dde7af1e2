//! The client: connects, and closes.

mod handles;

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::DropGuard;

use crate::builder::ClientBuilder;
use crate::error::Error;
use crate::name::check;
use crate::owner::Owner;
use crate::protocol::lock;
use crate::session::ClientHandle;
use crate::stats::Stats;

/// A client of one Redis or Valkey deployment, from which an application creates its locks, semaphores and latches.
///
/// A client is cheap to clone. All clones share two connections to the server, one for commands and one for messages;
/// in a cluster, two to each primary that is needed. There is no connection pool: the commands of all tasks travel on
/// one connection without waiting for each other. Only a [`PlainLock`](crate::PlainLock) that works without scripts
/// uses a third connection, and another one while calls there take longer than 250 ms.
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
    /// # Panics
    ///
    /// If the timers of the runtime are not enabled.
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

    /// Connects to the server at this URL, with default settings, runs `body`, and closes the client, whatever `body`
    /// returned. Use it in `main`: it releases locks that are still held before the program ends.
    ///
    /// # Errors
    ///
    /// Those of [`connect`](Self::connect) and of `body`.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, or if `body` panics, the client closes itself in the background, for as long as the
    /// runtime lives.
    ///
    /// # Examples
    ///
    /// ```
    /// # redlatch_testkit::doc(async |url| {
    /// # async fn publish() -> Result<(), redlatch::Error> { Ok(()) }
    /// use redlatch::{Client, Error};
    ///
    /// Client::with(url, async |client| {
    ///     let guard = client.lock("nightly").lock().await?;
    ///     publish().await?; // if it fails, the lock is free by the time `with` returns
    ///     guard.unlock().await
    /// })
    /// .await?;
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
    #[doc(alias("run", "using"))]
    pub async fn with<T, E: From<Error>>(
        url: impl AsRef<str>,
        body: impl AsyncFnOnce(&Self) -> Result<T, E>,
    ) -> Result<T, E> {
        Self::builder().url(url).build_with(body).await
    }

    /// Creates a client with default settings on a server of its own in memory, for tests of code that uses locks.
    /// [`MemoryServer`](crate::MemoryServer) describes what such a server can and cannot do. Use it for several clients
    /// on one server, or for clients with other settings.
    ///
    /// # Errors
    ///
    /// [`InvalidInput`](crate::ErrorKind::InvalidInput) if the call is made outside a tokio runtime.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, nothing stays open.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), redlatch::Error> {
    /// use redlatch::Client;
    ///
    /// let client = Client::in_memory().await?; // no Redis is needed
    /// let guard = client.lock("orders:42").lock().await?;
    /// guard.unlock().await?;
    /// # Ok(()) }
    /// ```
    #[doc(alias = "mock")]
    #[cfg(feature = "memory")]
    pub async fn in_memory() -> Result<Self, Error> {
        let server = crate::memory::MemoryServer::new();
        Self::builder().config(server.config()).build().await
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
    /// let term = elections.leader("scheduler").campaign().await?;
    /// assert!(term.remaining() <= Duration::from_secs(5));
    /// term.step_down().await?;
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
    #[must_use = "this makes a new client and leaves the old one as it is"]
    pub fn watchdog_lease(mut self, lease: Duration) -> Self {
        self.watchdog_lease = lease;
        self
    }

    /// Returns the id of this client, a random UUID. It is the first part of this client's owners on the server, in the
    /// form that Redisson writes.
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

    /// Returns the label of this client: the one that was [chosen](ClientBuilder::label), or `host/pid`.
    ///
    /// # Examples
    ///
    /// ```
    /// # redlatch_testkit::doc(async |url| {
    /// # let client = redlatch::Client::connect(url).await?;
    /// # let other = redlatch::Client::connect(url).await?;
    /// let guard = client.lock("orders:42").lock().await?;
    /// // In any process:
    /// let holder = other.lock("orders:42").holder().await?.expect("it is held");
    /// assert_eq!(holder.label(), Some(client.label()));
    /// println!("held by {holder}"); // held by web-3/812 task 17
    /// guard.unlock().await?;
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
    #[must_use]
    pub fn label(&self) -> &str {
        self.client.label()
    }

    /// Returns the text by which the server knows this owner when the owner acquires a lock through this client.
    /// [`Holder::owner`](crate::Holder::owner) then returns the same text. In the value of a plain lock, the label
    /// stands before this text, and more behind it.
    ///
    /// # Examples
    ///
    /// ```
    /// # redlatch_testkit::doc(async |url| {
    /// # let client = redlatch::Client::connect(url).await?;
    /// let lock = client.lock("orders:42");
    /// let guard = lock.lock().await?;
    /// let holder = lock.holder().await?.expect("it is held");
    /// assert_eq!(holder.owner(), client.owner_field(guard.owner()));
    /// guard.unlock().await?;
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
    #[must_use]
    pub fn owner_field(&self, owner: &Owner) -> String {
        lock::field(&self.client.client_id, owner)
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

    /// Returns what this client has done and what it has now, in numbers. Does no I/O.
    ///
    /// # Examples
    ///
    /// ```
    /// # redlatch_testkit::doc(async |url| {
    /// # let client = redlatch::Client::connect(url).await?;
    /// let guard = client.lock("orders:42").lock().await?;
    /// assert_eq!(client.stats().total().held, 1);
    /// guard.unlock().await?;
    /// let stats = client.stats();
    /// assert_eq!((stats.total().held, stats.reentrant.granted), (0, 1));
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.client.tally.stats()
    }

    /// Closes the client, including all its clones and scopes.
    ///
    /// [`lost`](crate::Lease::lost) resolves on live guards, holds and permits are released, waiting and later calls
    /// return [`Closed`](crate::ErrorKind::Closed), and the connections are closed.
    ///
    /// This takes at most about one [`command_timeout`](ClientBuilder::command_timeout) plus one second. If a server
    /// does not answer within that time, the locks and leased permits that could not be released on it become free when
    /// their leases end. If the runtime on which the client was connected is not running, the call returns a second
    /// later, and that runtime finishes once it runs again.
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

    /// Closes the client in the background when what is returned is dropped.
    pub(crate) fn close_on_drop(&self) -> DropGuard {
        self.client.close_on_drop()
    }

    /// Returns a view of the locks of all processes, and of the servers, for operators.
    ///
    /// # Examples
    ///
    /// ```
    /// # redlatch_testkit::doc(async |url| {
    /// # let client = redlatch::Client::connect(url).await?;
    /// let guard = client.lock("nightly-report").lock().await?;
    /// let mut list = client.admin().list("nightly-*")?;
    /// while let Some(Ok(lock)) = list.next().await {
    ///     println!("{} is held by {:?}", lock.name, lock.holders);
    /// }
    /// guard.unlock().await?;
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
    #[cfg(feature = "unstable-admin")]
    #[must_use]
    pub fn admin(&self) -> crate::admin::Admin {
        crate::admin::Admin::new(self.client.clone(), self.prefix.clone())
    }
}
