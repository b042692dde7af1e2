//! The settings that a client is built from.

#[cfg(any(feature = "fred-10", feature = "redis-1"))]
mod clients;
mod reports;
mod servers;

use crate::config::setters;
use std::time::Duration;

use crate::client::Client;
use crate::config::Config;
use crate::error::Error;
use crate::name::check;
use crate::options::Settings;
use crate::owner::Owners;
use crate::session::Session;

/// A builder for a [`Client`] with custom settings. Returned by [`Client::builder`].
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
    /// `None` to use that of `config`.
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

    /// Adds the label `name` to the [metrics](crate::metrics) of the locks, semaphores and latches with these names,
    /// given in full, with their prefix. By default, the metrics of all names are added up: a name often contains an
    /// id, and each id would make series of its own. Another call adds more names.
    ///
    /// # Examples
    ///
    /// ```
    /// # redlatch_testkit::doc(async |url| {
    /// use metrics_exporter_prometheus::PrometheusBuilder;
    /// use redlatch::Client;
    ///
    /// let page = PrometheusBuilder::new().install_recorder().unwrap();
    /// let client = Client::builder().url(url).metrics_by_name(["nightly"]).build().await?;
    /// let nightly = client.lock("nightly").lock().await?;
    /// let order = client.lock("orders:42").lock().await?;
    ///
    /// let text = page.render();
    /// assert!(text.contains(r#"redlatch_held{name="nightly",kind="reentrant"} 1"#));
    /// assert!(text.contains(r#"redlatch_held{kind="reentrant"} 1"#));
    /// # drop((nightly, order));
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
    #[cfg(feature = "metrics")]
    pub fn metrics_by_name<N: AsRef<str>>(mut self, names: impl IntoIterator<Item = N>) -> Self {
        let names = names.into_iter().map(|name| name.as_ref().into());
        self.settings.metrics_by_name.extend(names);
        self
    }

    /// Builds the client, runs `body`, and closes the client, whatever `body` returned. See [`Client::with`].
    ///
    /// # Errors
    ///
    /// Those of [`build`](Self::build) and of `body`.
    ///
    /// # Cancel safety
    ///
    /// Same as for [`Client::with`].
    ///
    /// # Examples
    ///
    /// ```
    /// # redlatch_testkit::doc(async |url| {
    /// use redlatch::{Client, Error};
    ///
    /// let shard = Client::builder().url(url).name_prefix("billing:");
    /// shard.build_with(async |client| client.lock("nightly").lock().await?.unlock().await).await?;
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
    pub async fn build_with<T, E: From<Error>>(
        self,
        body: impl AsyncFnOnce(&Client) -> Result<T, E>,
    ) -> Result<T, E> {
        let client = self.build().await?;
        // A clone or a guard that outlives the body would keep the client open.
        let _closing = client.close_on_drop();
        let output = body(&client).await;
        client.close().await;
        output
    }

    /// Connects to the server and returns the client. With [`connect_lazily`](Self::connect_lazily), returns
    /// immediately and connects in the background.
    ///
    /// # Errors
    ///
    /// [`InvalidInput`](crate::ErrorKind::InvalidInput) if the settings cannot work, or if the call is made outside a
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
    /// let client = Client::builder().url(url).build().await?;
    /// assert!(client.is_connected());
    ///
    /// // Nothing listens on this port, so the service can stop with an error right at its start.
    /// let error = Client::builder().url("redis://127.0.0.1:1").build().await.unwrap_err();
    /// assert_eq!(error.kind(), ErrorKind::Backend);
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
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

setters! { ClientBuilder:
    /// Sets the URL of the server to connect to, `redis://127.0.0.1:6379` by default; see [`Config`](Config#urls) for
    /// its forms. Replaces a URL or [`config`](Self::config) that was set before. A URL that cannot be parsed is
    /// reported by [`build`](Self::build).
    ///
    /// # Examples
    ///
    /// ```
    /// # redlatch_testkit::doc(async |url| {
    /// use redlatch::Client;
    ///
    /// let live = Client::builder().url(url).build().await?;
    /// let staging = Client::builder().url(format!("{url}/1")).build().await?;
    /// // One name in two databases is two locks.
    /// let guard = live.lock("nightly-report").lock().await?;
    /// assert!(staging.lock("nightly-report").try_lock().await?.is_some());
    /// guard.unlock().await?;
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
    url(url: impl AsRef<str>) => config = Config::from_url(url);

    /// Sets the configuration to connect with. Replaces a [`url`](Self::url) or configuration that was set before.
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
    config(config: Config) => config = Ok(config);

    /// Sets the lease of locks that do not set their own, 30 seconds by default. The watchdog renews it after every
    /// third of its length. It is also the longest time for which a crashed holder blocks others, and for which a call
    /// without a limit waits for a server that does not answer. From 50 ms to 100 years.
    ///
    /// # Examples
    ///
    /// ```
    /// # redlatch_testkit::doc(async |url| {
    /// use std::time::Duration;
    /// use redlatch::Client;
    ///
    /// let lease = Duration::from_secs(10);
    /// let client = Client::builder().url(url).watchdog_lease(lease).build().await?;
    /// let guard = client.lock("orders:42").lock().await?; // renewed every 3.3 seconds
    /// assert!(guard.remaining() <= lease);
    /// guard.unlock().await?;
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
    #[doc(alias = "ttl")]
    watchdog_lease(lease: Duration) => settings.watchdog_lease = lease;

    /// Sets how long one request to the server may take, in place of [`Config::command_timeout`]. From 20 ms to a day;
    /// 1 second if neither is set. A request for a lock with a short lease is limited to a sixth of that lease, but to
    /// no less than 20 ms. The requests of semaphores and latches take at most 20 s.
    ///
    /// # Examples
    ///
    /// ```
    /// # redlatch_testkit::doc(async |_| {
    /// # let server = redlatch_testkit::Server::start();
    /// # let url = server.url();
    /// use std::time::Duration;
    /// use redlatch::{Client, ErrorKind};
    ///
    /// let timeout = Duration::from_millis(100);
    /// let client = Client::builder().url(url).command_timeout(timeout).build().await?;
    /// # server.freeze();
    /// // From here on, the server hangs.
    /// let error = client.ping().await.unwrap_err();
    /// assert_eq!(error.kind(), ErrorKind::Timeout);
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
    command_timeout(timeout: Duration) => command_timeout = Some(timeout);

    /// Sets a prefix for every name, which must not be empty; see [`Client::scoped`].
    ///
    /// # Examples
    ///
    /// ```
    /// # redlatch_testkit::doc(async |url| {
    /// use redlatch::Client;
    ///
    /// let staging = Client::builder().url(url).name_prefix("staging:").build().await?;
    /// let guard = staging.lock("orders:42").lock().await?;
    ///
    /// let operator = Client::connect(url).await?;
    /// assert!(operator.lock("staging:orders:42").is_locked().await?);
    /// guard.unlock().await?;
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
    name_prefix(prefix: impl Into<String>) => prefix = Some(prefix.into());

    /// Sets how much of its lease must be left when a lock is handed out, half of the lease by default. A grant that
    /// arrives later is released, and the call returns [`LeaseLost`](crate::ErrorKind::LeaseLost). A lease that can
    /// never meet this value is [`InvalidInput`](crate::ErrorKind::InvalidInput).
    ///
    /// # Examples
    ///
    /// ```
    /// # redlatch_testkit::doc(async |url| {
    /// use std::time::Duration;
    /// use redlatch::Client;
    ///
    /// // A transfer takes up to 20 seconds, and must not begin with less than that.
    /// let transfer = Duration::from_secs(20);
    /// let client = Client::builder().url(url).min_validity(transfer).build().await?;
    /// let lock = client.lock("account:7").lease(Duration::from_secs(60));
    /// let guard = lock.lock().await?;
    /// assert!(guard.remaining() >= transfer);
    /// guard.unlock().await?;
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
    min_validity(least: Duration) => settings.min_validity = Some(least);

    /// Sets how long the watchdog renews one hold, without limit by default. After that, the hold is
    /// [lost](crate::Lease::lost) when its lease ends. This bounds how long a leaked guard, or a job that hangs, can
    /// block others. At least 50 ms.
    ///
    /// # Examples
    ///
    /// ```
    /// # redlatch_testkit::doc(async |url| {
    /// use std::time::Duration;
    /// use redlatch::Client;
    ///
    /// // For the example only: half an hour and 30 seconds would be more usual.
    /// let client = Client::builder()
    ///     .url(url)
    ///     .max_hold(Duration::from_millis(100))
    ///     .watchdog_lease(Duration::from_millis(500))
    ///     .build()
    ///     .await?;
    /// let guard = client.lock("nightly-report").lock().await?;
    /// guard.lost().await; // a job that hangs does not keep the lock
    /// assert!(guard.is_lost());
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
    max_hold(longest: Duration) => settings.max_hold = Some(longest);

    /// Sets how long a waiter waits for a message before it asks the server again, in case a message was lost or the
    /// holder publishes none. From 10 ms to a day; 5 seconds by default. Calls for a [`RedLock`](crate::RedLock) that
    /// collide wait for up to a second more.
    ///
    /// # Examples
    ///
    /// ```
    /// # redlatch_testkit::doc(async |url| {
    /// # let other = redlatch::Client::connect(url).await?;
    /// use std::time::Duration;
    /// use redlatch::Client;
    ///
    /// let often = Duration::from_millis(50);
    /// let client = Client::builder().url(url).poll_cap(often).build().await?;
    /// let guard = other.spin_lock("orders:42").lock().await?;
    /// let lock = client.lock("orders:42");
    /// // The release of a spin lock is not published; the waiter finds out by asking.
    /// let (next, released) = tokio::join!(lock.lock(), guard.unlock());
    /// released?;
    /// next?.unlock().await?;
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
    poll_cap(cap: Duration) => settings.poll_cap = cap;

    /// Sets how many times in a row a lock may be handed off within this process while other processes wait for it, 8
    /// by default. After that many handoffs, or after 5 ms, the lock is released, and the next process in the turn
    /// order has its turn.
    ///
    /// A handoff within a process does not wait for the server, while releasing the lock to another process takes one
    /// and a half round trips. A higher limit gives more throughput here and longer waits in other processes; 0 does
    /// the opposite. The limit has no effect while no other process waits. For a [`SpinLock`](crate::SpinLock) or a
    /// [`PlainLock`](crate::PlainLock), and in a cluster without sharded messages, this process does not know whether
    /// others wait, and the limit always applies.
    ///
    /// The limit holds in every process that uses this crate. While a Redisson client waits, the lock is left to
    /// Redisson's clients for 5 ms after each such series of handoffs. Requires the feature `unstable-tuning`: how
    /// turns are shared may change, and this setting with it.
    ///
    /// # Examples
    ///
    /// ```
    /// # redlatch_testkit::doc(async |url| {
    /// use redlatch::Client;
    /// use tokio::task::JoinSet;
    ///
    /// // Many tasks lock for a short time here, and hardly any in other processes.
    /// let client = Client::builder().url(url).local_handoff_limit(64).build().await?;
    /// let mut tasks = JoinSet::new();
    /// for _ in 0..100 {
    ///     let stock = client.lock("stock:7");
    ///     tasks.spawn(async move { stock.lock().await?.unlock().await });
    /// }
    /// for done in tasks.join_all().await {
    ///     done?;
    /// }
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
    #[cfg(feature = "unstable-tuning")]
    local_handoff_limit(handoffs: u32) => settings.local_handoff_limit = handoffs;

    /// Sets how long a dead process of this crate blocks Redisson's waiters in the queue of a [fair
    /// lock](crate::FairLock), five minutes by default. From 1 second to a day.
    ///
    /// While no other client of this crate waits, the place of such a process stays in the queue for this time plus
    /// three seconds after the end of the holder's lease. Redisson calls this setting `fairLockWaitTimeout`, and has
    /// the same default. It belongs to the client and not to a lock, since one request keeps all places that the client
    /// has in a queue, and counts them alike.
    ///
    /// This is also how long a Redisson waiter may take once it is first in the queue and has been told that the lock
    /// is free. After that, a client of this crate considers it dead.
    ///
    /// For fleets with Redisson: give all clients the value that Redisson has, and no less than the wait time that is
    /// passed to its `tryLock`. A longer time is safe, but a dead process of this crate then blocks Redisson's waiters
    /// for longer. With a shorter time, Redisson can remove a place of this crate that has waited long behind
    /// Redisson's waiters; that waiter then enters the queue again, at the end. Among clients of this crate the setting
    /// has no effect: they detect within three seconds that a process has died.
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
    ///     .fair_wait_timeout(Duration::from_secs(60)) // as fairLockWaitTimeout in the Java services
    ///     .build()
    ///     .await?;
    /// let guard = client.fair_lock("printer").lock().await?;
    /// guard.unlock().await?;
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
    fair_wait_timeout(timeout: Duration) => settings.fair_wait_timeout = timeout;

    /// Sets a label that tells people who the client is, for example the service and the host. By default it is
    /// `host/pid`: the name of the host, without its domain, and the process id. Of a long host name, only the end is
    /// kept.
    ///
    /// Logs, errors and the command `redlatch` show it before each owner, and every process sees it in
    /// [`Holder::label`](crate::Holder::label). The names of connections contain it. It is not part of the owner field
    /// that Redisson knows, but of a field next to that one.
    ///
    /// It has 1 to 64 characters, each a letter, a digit or one of `@`, `.`, `_`, `-` and `/`. It need not be unique.
    /// With a label of more than 26 characters, a lock that is held takes up 368 bytes on the server instead of 208.
    ///
    /// # Examples
    ///
    /// ```
    /// # redlatch_testkit::doc(async |url| {
    /// # let other = redlatch::Client::connect(url).await?;
    /// use redlatch::Client;
    ///
    /// let client = Client::builder().url(url).label("orders@host-7").build().await?;
    /// let guard = client.lock("nightly").lock().await?;
    /// // In another process:
    /// let holder = other.lock("nightly").holder().await?.expect("the lock is held");
    /// assert_eq!(holder.label(), Some("orders@host-7"));
    /// guard.unlock().await?;
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
    label(label: impl AsRef<str>) => settings.label = Some(label.as_ref().to_owned());

    /// Sets who owns a lock if neither the handle nor a [`scope`](crate::Owner::scope) names an owner: the current
    /// task, which is the default, or each call by itself.
    ///
    /// # Examples
    ///
    /// ```
    /// # redlatch_testkit::doc(async |url| {
    /// use redlatch::config::Owners;
    /// use redlatch::Client;
    ///
    /// let client = Client::builder().url(url).owners(Owners::Call).build().await?;
    /// let stock = client.lock("stock:7");
    /// // Branches of one task exclude each other.
    /// let (left, right) = tokio::join!(stock.try_lock(), stock.try_lock());
    /// assert_ne!(left?.is_some(), right?.is_some());
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
    owners(owners: Owners) => settings.owners = owners;
}
