//! What a client is made with.

use std::time::Duration;

use crate::client::Client;
use crate::config::Config;
use crate::error::Error;
use crate::name::check;
use crate::options::{Prefer, PubSub, Settings};
use crate::session::Session;

/// The settings of a [`Client`].
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
///     .watchdog_lease(Duration::from_secs(10))
///     .name_prefix("billing:")
///     .build()
///     .await?;
/// # client.close().await;
/// # Ok::<(), redlatch::Error>(()) });
/// ```
#[must_use = "a builder does nothing by itself, call `build`"]
#[derive(Clone, Debug)]
pub struct ClientBuilder {
    config: Result<Config, Error>,
    /// None if it is the configuration's.
    command_timeout: Option<Duration>,
    prefix: Option<String>,
    settings: Settings,
}

impl ClientBuilder {
    pub(crate) fn new() -> Self {
        Self {
            config: Ok(Config::default()),
            command_timeout: None,
            prefix: None,
            settings: Settings::default(),
        }
    }

    /// Connects to the server at this URL; see [`Config`](Config#urls) for its forms. `redis://127.0.0.1:6379` if none is given.
    pub fn url(mut self, url: impl AsRef<str>) -> Self {
        self.config = Config::from_url(url);
        self
    }

    /// Connects as this configuration says, which takes the place of a [`url`](Self::url).
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn f() -> Result<(), redlatch::Error> {
    /// use redlatch::{Client, Config};
    ///
    /// let config = Config::cluster([("10.0.0.1", 7000), ("10.0.0.2", 7000)])
    ///     .user("locker")
    ///     .password("s3cret");
    /// let client = Client::builder().config(config).build().await?;
    /// # Ok(()) }
    /// ```
    pub fn config(mut self, config: Config) -> Self {
        self.config = Ok(config);
        self
    }

    /// The lease of locks that are given none, renewed at every third of it: how long a crashed holder blocks
    /// others. From 50 ms up; 30 seconds by default.
    pub fn watchdog_lease(mut self, lease: Duration) -> Self {
        self.settings.watchdog_lease = lease;
        self
    }

    /// How long one request to the server may take, whatever [`Config::command_timeout`] says. From 20 ms up; 1 second
    /// if neither is given. A request for a lock with a short lease takes a sixth of that lease at the most, though not
    /// below 20 ms.
    pub fn command_timeout(mut self, timeout: Duration) -> Self {
        self.command_timeout = Some(timeout);
        self
    }

    /// Put before every name; see [`Client::scoped`].
    pub fn name_prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = Some(prefix.into());
        self
    }

    /// How much of its lease must be left when a lock is handed out; a grant that comes later is given back and
    /// answered with [`LeaseLost`](crate::ErrorKind::LeaseLost). Half of the lease by default.
    pub fn min_validity(mut self, least: Duration) -> Self {
        self.settings.min_validity = Some(least);
        self
    }

    /// How long the watchdog renews one hold. Without end by default. It bounds what a guard that was leaked,
    /// or a job that hangs, can block.
    pub fn max_hold(mut self, longest: Duration) -> Self {
        self.settings.max_hold = Some(longest);
        self
    }

    /// How often a waiter asks although no message came, in case one was lost or the holder publishes none. From
    /// 10 ms up; 5 seconds by default.
    pub fn poll_cap(mut self, cap: Duration) -> Self {
        self.settings.poll_cap = cap;
        self
    }

    /// How often in a row a lock may be passed on within this process while other processes wait for it; 8 by default.
    /// After that, or after 5 ms, it is freed, and the next process in line has its turn.
    ///
    /// Passing on within a process waits for no server, freeing the lock for another takes one and a half round trips. A
    /// higher number gives more throughput and longer waits elsewhere, 0 the opposite. While nobody else waits it has
    /// no effect.
    ///
    /// The limit holds in every process with this crate. While a client of Redisson's waits, the lock is left to those for
    /// 5 ms after each such run.
    pub fn local_handoff_limit(mut self, handoffs: u32) -> Self {
        self.settings.local_handoff_limit = handoffs;
        self
    }

    /// The former name of [`local_handoff_limit`](Self::local_handoff_limit).
    #[doc(hidden)]
    #[deprecated(note = "renamed to `local_handoff_limit`")]
    pub fn streak(self, handoffs: u32) -> Self {
        self.local_handoff_limit(handoffs)
    }

    /// How long the last token of a [fenced lock](crate::FencedLock) is remembered after its grant; for ever if
    /// nothing is said. At least one watchdog lease. A hold that lasts longer keeps its own token.
    ///
    /// For fleets without Java: Redisson's `INCR` leaves the time as it is, and starts at 1 again when it is up. Ours
    /// go on with the server's clock then.
    pub fn token_ttl(mut self, ttl: Duration) -> Self {
        self.settings.token_ttl = Some(ttl);
        self
    }

    /// How long a place in the queue of a [fair lock](crate::FairLock) stands before waiters of Java's Redisson when its
    /// process has died and no other of ours waits: so long after the end of the holder's lease, and three seconds. The
    /// setting that Redisson calls `fairLockWaitTimeout`; five minutes by default, as there. From 1 second to a
    /// day.
    ///
    /// It is also how long a waiter of Java's has, once it is first and was told that the lock is free, before one of
    /// ours takes it for dead.
    ///
    /// For fleets with Redisson: give all clients what Redisson has there, and no less than what its `tryLock` is told
    /// to wait. Longer is safe, and then a dead process of ours stands before Java for longer. With a shorter one, a
    /// place of ours that has waited long behind Java's can be taken away by Java, and is entered again, at the end.
    /// Among clients of this crate it has no effect: they see within three seconds who has died.
    pub fn fair_wait_timeout(mut self, timeout: Duration) -> Self {
        self.settings.fair_wait_timeout = timeout;
        self
    }

    /// Who goes first when readers and writers wait for one [`ReadWriteLock`](crate::ReadWriteLock); whoever came first
    /// by default. Clients with different preferences may share a lock.
    pub fn prefer(mut self, prefer: Prefer) -> Self {
        self.settings.prefer = prefer;
        self
    }

    /// How a release is told to waiters in a cluster: sharded if the cluster knows it, by default. Elsewhere it
    /// has no effect.
    pub fn pubsub(mut self, pubsub: PubSub) -> Self {
        self.settings.pubsub = pubsub;
        self
    }

    /// The longest lease of a [`RedLock`](crate::RedLock) in the whole fleet, and so how long a server that may have
    /// forgotten what it granted abstains; 60 seconds by default. A RedLock answers longer leases with
    /// [`InvalidInput`](crate::ErrorKind::InvalidInput); other locks do not heed it.
    ///
    /// Give all clients of the fleet the same: a server abstains for as long as the client that asks was told. Keep it
    /// below the servers' `repl-backlog-ttl`, an hour unless it was changed.
    pub fn max_lease(mut self, longest: Duration) -> Self {
        self.settings.max_lease = longest;
        self
    }

    /// Says that this server loses nothing that it has answered: it writes each command to disk before it answers
    /// (`appendfsync always`). Of a [`RedLock`](crate::RedLock) it then votes at once after a restart, if its data is
    /// there. A replica that takes its place abstains all the same.
    ///
    /// Where this is not so, two owners may hold a RedLock after a restart.
    pub fn durable(mut self) -> Self {
        self.settings.durable = true;
        self
    }

    /// For development and tests: whether a server of a [`RedLock`](crate::RedLock) votes though it was started a moment
    /// ago. By default it abstains until [`max_lease`](Self::max_lease) has passed since its start, as nobody can tell
    /// a new server from one that was restarted and has lost what it granted.
    ///
    /// With it a lock on servers that a test has just started is granted at once; and where a majority of the servers
    /// restarts without its data, two owners may hold the lock. A server that was flushed or promoted abstains all the
    /// same. Give all clients of the fleet the same.
    pub fn trust_fresh_servers(mut self, trust: bool) -> Self {
        self.settings.trusts_fresh = trust;
        self
    }

    /// Makes the client without waiting for its server: for services that start before it does.
    ///
    /// [`build`](Self::build) returns at once and the client connects in the background, trying until it succeeds. Until
    /// then it is as in an outage: who waits goes on waiting, `lock()` for one watchdog lease at the most, and other calls
    /// answer [`Backend`](crate::ErrorKind::Backend) with the reason why there is no connection; so does a wrong password.
    /// What cannot work with any server is [`InvalidInput`](crate::ErrorKind::InvalidInput) from `build` all the same.
    ///
    /// # Examples
    ///
    /// ```
    /// # redlatch_testkit::doc(async |_| {
    /// use redlatch::{Client, ErrorKind};
    ///
    /// // Nothing listens there.
    /// let client = Client::builder().url("redis://127.0.0.1:1").connect_lazily().build().await?;
    /// assert!(!client.is_connected());
    /// let error = client.lock("invoice:42").try_lock().await.unwrap_err();
    /// assert_eq!(error.kind(), ErrorKind::Backend);
    /// # client.close().await;
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
    pub fn connect_lazily(mut self) -> Self {
        self.settings.connects_lazily = true;
        self
    }

    /// Connects; with [`connect_lazily`](Self::connect_lazily), in the background.
    ///
    /// # Errors
    ///
    /// [`InvalidInput`](crate::ErrorKind::InvalidInput) for settings that cannot work, and outside a tokio runtime;
    /// [`Backend`](crate::ErrorKind::Backend) if the server cannot be reached or refuses.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, nothing stays open.
    pub async fn build(mut self) -> Result<Client, Error> {
        let config = self.config?;
        if let Some(timeout) = self.command_timeout.or(config.command_timeout) {
            self.settings.command_timeout = timeout;
        }
        self.settings.check()?;
        config.check()?;
        if let Some(prefix) = &self.prefix {
            check("a prefix", prefix)?;
        }
        let watchdog_lease = self.settings.watchdog_lease;
        let client = Session::open(config, self.settings).await?;
        let prefix = self.prefix.unwrap_or_default();
        Ok(Client::new(client, prefix, watchdog_lease))
    }
}
