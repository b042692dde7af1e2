//! A lock that a majority of independent servers grants.

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures_util::future::BoxFuture;

use super::member::{Member, Members};
use super::red_guard::{RedGuard, refuse_longer};
use super::runs::runs;
use crate::error::Error;
use crate::hold::quorum_acquire::QuorumAcquire;
use crate::hold::quorum_hold::QuorumHold;
use crate::hold::request::AcquireRequest;
use crate::options::{Deadline, LeaseTime, ReleaseBy};
use crate::owner::Owner;
use crate::protocol::hold_key::Kind;

/// One lock on several **independent** servers. The owner that has acquired it on a majority of them holds it, so the
/// lock survives the loss of a minority. The algorithm is
/// [Redlock](https://redis.io/docs/latest/develop/clients/patterns/distributed-locks/), with a rule for restarts, which
/// that page leaves to the operator. It corresponds to Redisson's `RedissonRedLock`.
///
/// Created by [`new`](Self::new) from one lock per server, usually of one name, each from its own client. Three or five
/// servers are usual: of three, one may fail; of five, two. Members are reentrant or plain locks; another kind is
/// [`InvalidInput`](crate::ErrorKind::InvalidInput), and so are two members on one server.
///
/// # When to use it, and when to use another
///
/// Use it when a lock must stay available while a server is down, and must not be granted twice by a failover. If the
/// store can refuse late writes, a [`FencedLock`](crate::FencedLock) on one server, or on one with replicas, is simpler
/// and protects more: **this lock has no token**, since no order of tokens holds across several servers. If it is
/// enough that work is rarely done twice, a [`ReentrantLock`](crate::ReentrantLock) on one server will do.
///
/// **A fleet of servers that were all just started grants nothing** for up to [`max_lease`](Self::max_lease), a minute
/// by default, and 2 s: see [below](#servers-that-forget).
///
/// # What it needs
///
/// - **Clocks that run at the same rate.** A server whose clock jumps ahead during a lease grants its part to another
///   owner too early. The lock allows for a difference of 1 % plus 2 ms.
/// - **Holders that check.** A process that is paused does not notice that its lease ends: check
///   [`lost`](RedGuard::lost) or [`is_lost`](RedGuard::is_lost) before each effect, and know that a pause can come
///   after the check.
/// - **Servers that are independent**, and clients that all name the same ones.
///
/// Whether these can be relied upon is disputed: read Kleppmann,
/// [How to do distributed locking](https://martin.kleppmann.com/2016/02/08/how-to-do-distributed-locking.html), and
/// antirez, [Is Redlock safe?](http://antirez.com/news/101).
///
/// # Servers that forget
///
/// A server that lost what it granted would grant it a second time. A server that may have lost grants therefore
/// **abstains** until the longest lease, [`max_lease`](Self::max_lease), has passed since then. Longer leases are
/// [`InvalidInput`](crate::ErrorKind::InvalidInput). Each server decides for itself, in the script that acquires the
/// lock there. It keeps an epoch in the key `redlatch_redlock_mark`: the run id of the process, the id of its
/// replication history, and the time since which it has forgotten nothing.
///
/// - **Started**: the server abstains until `max_lease` and up to two seconds have passed since its start, whether or
///   not anybody asked in between. If all servers were just started, clients wait for that long. If the servers were
///   restarted one at a time, clients wait for the rest of that time. A restart while nobody wants a lock delays
///   nobody. [`durable`](crate::ClientBuilder::durable) exempts a server that loses nothing;
///   [`trust_fresh_servers`](crate::ClientBuilder::trust_fresh_servers) is for development.
/// - **Promoted**, or its replication history has changed: the server abstains, counted from the first request that
///   finds it so. This happens after a failover, after a failback, and when its first replica is attached or its
///   backlog ends. Attach replicas one server at a time.
/// - **Flushed**, databases swapped or statistics reset (`FLUSHALL`, `FLUSHDB`, `SWAPDB`, `CONFIG RESETSTAT`), and its
///   epoch is gone: the server abstains, counted from the first request that finds it so.
/// - **A replica never votes.**
///
/// [`lock`](Self::lock) waits for servers that abstain, and does not count that as silence; errors say how long they
/// will abstain, and why. The server's user needs the right to run the command `INFO`: `+info`, or the three rights
/// `+info|server +info|replication +info|commandstats`. Without it the call returns
/// [`Backend`](crate::ErrorKind::Backend), which says so.
///
/// In a cluster, which counts as one member, each name has an epoch of its own next to it, which expires two longest
/// leases after the last call. If a server of the cluster was promoted or flushed since its start, it abstains for each
/// name of which it has no epoch.
///
/// **Not promised**: in each of these cases two owners may hold the lock:
///
/// - An old primary still answers next to the one that was promoted in its place. It grants while the new one abstains,
///   and then the new one votes. Stop it, or set `min-replicas-to-write` and make `max_lease` longer by
///   `min-replicas-max-lag`.
/// - Keys were evicted or removed one by one; `SWAPDB` there and back, or between databases that both serve a RedLock;
///   `DEBUG RELOAD NOSAVE`; a machine that goes back to a snapshot.
/// - A server's clock is set ahead or back, even before the first call: it measures uptime.
/// - Slots of a cluster are assigned without their keys, or moved within `max_lease` after their server forgot grants.
/// - `CONFIG RESETSTAT` after a flush on Redis 6.2, which does not distinguish it from other `CONFIG` calls.
/// - A `max_lease` longer than the server's `repl-backlog-ttl`, an hour by default; handles of one lock with
///   different `max_lease`, in any processes.
///
/// # Waiting
///
/// The waiters of one process form one local queue; the first of them asks all servers at once. There is no order
/// between processes.
///
/// Reentrant members notify waiters of a release. The first waiter listens on every server. It asks again once the
/// reported releases mean that a majority may be free, when a lease ends, and after each
/// [`poll_cap`](crate::ClientBuilder::poll_cap), in case a message is lost. Plain members notify nobody. With them the
/// waiter asks after pauses of up to 128 ms or, if that is longer, a sixteenth of the time it has waited so far, but at
/// most one second. All of these times have a random part. Once several callers each got some of the servers, it is
/// longer than a round of requests takes, so that they do not collide again, wherever they are.
///
/// Each server has one [`command_timeout`](crate::ClientBuilder::command_timeout) to answer, or a sixth of the lease if
/// that is shorter. A majority that answers at once is not delayed by servers that hang. The requests to those continue
/// in the background, and the servers join the guard when they grant their part.
///
/// # Lease and owner
///
/// Each member has the lease that it was given. The guard's lease is good as long as those of a majority of its
/// members, each counted from before its request was sent. Renewal and [`extend`](RedGuard::extend) count a server only
/// if this hold was still there.
///
/// The lock acts for one owner: the current one, or the owner that [`owned_by`](Self::owned_by) or a member names.
/// With reentrant members, this owner may acquire the lock again. A member that it acquired alone, less than `max_lease`
/// ago, counts only if its server does not abstain.
///
/// # Examples
///
/// ```
/// # redlatch_testkit::doc(async |url| {
/// # let more = [redlatch_testkit::Server::start(), redlatch_testkit::Server::start()];
/// # let urls = [url.to_string(), more[0].url(), more[1].url()];
/// use std::time::Duration;
/// use redlatch::{Client, RedLock};
///
/// let mut members = Vec::new();
/// for url in urls {
///     // Only here, where the servers were started for the example.
///     let client = Client::builder().url(url).trust_fresh_servers(true).build().await?;
///     members.push(client.lock("report").lease(Duration::from_secs(10)));
/// }
/// let lock = RedLock::new(members);
/// let Some(guard) = lock.try_lock_for(Duration::from_secs(2)).await? else {
///     return Ok(()); // another owner holds it
/// };
/// guard.run_until_lost(async { /* the work */ }).await?;
/// guard.unlock().await?;
/// # Ok::<(), redlatch::Error>(()) });
/// ```
#[derive(Clone)]
pub struct RedLock {
    members: Members,
    max_lease: Duration,
    /// Set once the members were seen to be on as many servers as there are members.
    distinct: Arc<OnceLock<()>>,
}

/// The longest lease of a lock for which no other is set.
const MAX_LEASE: Duration = Duration::from_secs(60);

impl fmt::Debug for RedLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("RedLock");
        shown.field("name", &self.name());
        shown
            .field("servers", &self.members.names().count())
            .finish()
    }
}

impl RedLock {
    /// Creates the lock of these members, one per server, without I/O. If they cannot work, the methods that acquire
    /// the lock return [`InvalidInput`](crate::ErrorKind::InvalidInput).
    ///
    /// # Examples
    ///
    /// ```
    /// # use redlatch_testkit::Server;
    /// # redlatch_testkit::doc(async |url| {
    /// use redlatch::{ErrorKind, RedLock};
    ///
    /// # let more = [Server::start(), Server::start()];
    /// # let mut clients = Vec::new();
    /// # for url in [url.to_string(), more[0].url(), more[1].url()] {
    /// #     clients.push(redlatch::Client::builder().url(url).trust_fresh_servers(true).build().await?);
    /// # }
    /// // One client for each of three servers.
    /// let lock = RedLock::new(clients.iter().map(|client| client.lock("nightly-report")));
    /// lock.lock().await?.unlock().await?;
    ///
    /// // Each server has one vote: to name one twice is an error.
    /// let members = [&clients[0], &clients[1], &clients[1]].map(|client| client.lock("nightly-report"));
    /// let error = RedLock::new(members).lock().await.unwrap_err();
    /// assert_eq!(error.kind(), ErrorKind::InvalidInput);
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
    #[must_use]
    pub fn new<M: Into<Member>>(locks: impl IntoIterator<Item = M>) -> Self {
        Self {
            members: Members::new(locks),
            max_lease: MAX_LEASE,
            distinct: Arc::default(),
        }
    }

    /// Returns the name of the lock on its first server, with the prefix of its client; see
    /// [`ReentrantLock::name`](crate::ReentrantLock::name).
    ///
    /// # Examples
    ///
    /// ```
    /// # redlatch_testkit::doc(async |url| {
    /// # let client = redlatch::Client::connect(url).await?;
    /// let lock = redlatch::RedLock::new([client.lock("nightly-report")]);
    /// assert_eq!(lock.name(), "nightly-report");
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
    #[must_use]
    pub fn name(&self) -> &str {
        self.members.names().next().unwrap_or_default()
    }

    /// Makes the lock act for `owner` instead of the current task.
    ///
    /// # Examples
    ///
    /// ```
    /// # use redlatch_testkit::Server;
    /// # redlatch_testkit::doc(async |url| {
    /// use redlatch::{Owner, RedLock};
    ///
    /// # let more = [Server::start(), Server::start()];
    /// # let mut clients = Vec::new();
    /// # for url in [url.to_string(), more[0].url(), more[1].url()] {
    /// #     clients.push(redlatch::Client::builder().url(url).trust_fresh_servers(true).build().await?);
    /// # }
    /// let lock = RedLock::new(clients.iter().map(|client| client.lock("nightly-report")));
    /// // In one task, the second call would re-enter. With owners of their own, the two exclude each other.
    /// let first = lock.clone().owned_by(&Owner::unique());
    /// let second = lock.owned_by(&Owner::unique());
    /// let guard = first.lock().await?;
    /// assert!(second.try_lock().await?.is_none());
    /// guard.unlock().await?;
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
    #[must_use = "this makes a new lock and leaves the old one as it is"]
    pub fn owned_by(mut self, owner: &Owner) -> Self {
        self.members = self.members.owned_by(owner);
        self
    }

    /// Sets the longest lease that this lock has in any process, 60 seconds by default. A server that [may have
    /// forgotten](Self#servers-that-forget) what it granted abstains for as long.
    ///
    /// From 50 ms to 100 years; with any other value, the methods that acquire the lock return
    /// [`InvalidInput`](crate::ErrorKind::InvalidInput), as they do if a member has a longer lease. Keep the value
    /// below the `repl-backlog-ttl` of the servers, which is one hour by default.
    ///
    /// **All handles of this lock, in all processes, must have the same value.** A server abstains for the `max_lease`
    /// of the call that asks it: a shorter one does not wait for the end of a longer lease that the server has
    /// forgotten. Locks of other names may have other values, on the same servers too.
    ///
    /// # Examples
    ///
    /// ```
    /// # redlatch_testkit::doc(async |url| {
    /// # let client = redlatch::Client::connect(url).await?;
    /// use std::time::Duration;
    /// use redlatch::{ErrorKind, RedLock};
    ///
    /// // A server that was restarted abstains for 10 seconds, and not for a minute.
    /// let longest = Duration::from_secs(10);
    /// let members = [client.lock("orders:42").lease(2 * longest)];
    /// let error = RedLock::new(members).max_lease(longest).try_lock().await.unwrap_err();
    /// assert_eq!(error.kind(), ErrorKind::InvalidInput); // a lease of 20 seconds
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
    #[must_use = "this makes a new handle and leaves the old one as it is"]
    pub fn max_lease(mut self, longest: Duration) -> Self {
        self.max_lease = longest;
        self
    }

    /// Acquires the lock, waiting until it is available.
    ///
    /// # Errors
    ///
    /// - [`Quorum`](crate::ErrorKind::Quorum): for one watchdog lease, the servers that voted and those that
    ///   [abstain](Self#servers-that-forget) made up no majority. The error says how many servers granted the lock,
    ///   found it busy, did not answer or abstain, for how long and why.
    /// - [`InvalidInput`](crate::ErrorKind::InvalidInput): the members, a lease or the owner cannot work.
    /// - [`LeaseLost`](crate::ErrorKind::LeaseLost): the majority came so late that too little of the lease was left.
    /// - [`Closed`](crate::ErrorKind::Closed): as for a single lock.
    /// - An error that a majority of the servers returns alike, such as [`WrongKind`](crate::ErrorKind::WrongKind) or a
    ///   permanent refusal, is returned as for a single lock.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, what servers granted or may have granted is released in the background. The same
    /// happens if nobody polls it for a few seconds; the call restarts when it is polled.
    ///
    /// # Examples
    ///
    /// ```
    /// # use redlatch_testkit::Server;
    /// # redlatch_testkit::doc(async |url| {
    /// use redlatch::RedLock;
    ///
    /// # let more = [Server::start(), Server::start()];
    /// # let mut clients = Vec::new();
    /// # for url in [url.to_string(), more[0].url(), more[1].url()] {
    /// #     clients.push(redlatch::Client::builder().url(url).trust_fresh_servers(true).build().await?);
    /// # }
    /// let lock = RedLock::new(clients.iter().map(|client| client.lock("invoice-run")));
    /// lock.lock().await?.unlock().await?;
    /// # more[0].kill();
    /// // One of the three servers goes down: the other two are a majority.
    /// let guard = lock.lock().await?;
    /// assert!(!guard.is_lost());
    /// guard.unlock().await?;
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
    pub async fn lock(&self) -> Result<RedGuard, Error> {
        for handle in self.members.handles() {
            handle.ensure_endless()?;
        }
        let taken = self.acquire(Duration::MAX).await?;
        taken.ok_or_else(Error::endless)
    }

    /// Attempts to acquire the lock by asking all servers once. Returns `None` if a majority votes but too few servers
    /// grant the lock, because other owners hold it on some of them.
    ///
    /// Two callers that come at the same time may each get some of the servers, and then both get `None`.
    ///
    /// # Errors
    ///
    /// Same as [`lock`](Self::lock), except that [`Quorum`](crate::ErrorKind::Quorum) is returned at once, even while
    /// servers abstain.
    ///
    /// # Cancel safety
    ///
    /// Same as [`lock`](Self::lock).
    ///
    /// # Examples
    ///
    /// ```
    /// # use redlatch_testkit::Server;
    /// # redlatch_testkit::doc(async |url| {
    /// use redlatch::RedLock;
    ///
    /// # let more = [Server::start(), Server::start()];
    /// # let (mut clients, mut elsewhere) = (Vec::new(), Vec::new());
    /// # for url in [url.to_string(), more[0].url(), more[1].url()] {
    /// #     for fleet in [&mut clients, &mut elsewhere] {
    /// #         fleet.push(redlatch::Client::builder().url(&url).trust_fresh_servers(true).build().await?);
    /// #     }
    /// # }
    /// // Two machines start the same job at midnight: one of them does it.
    /// let here = RedLock::new(clients.iter().map(|client| client.lock("nightly-report")));
    /// let there = RedLock::new(elsewhere.iter().map(|client| client.lock("nightly-report")));
    /// let guard = here.try_lock().await?.expect("nobody has it yet");
    /// assert!(there.try_lock().await?.is_none());
    /// guard.unlock().await?;
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
    pub async fn try_lock(&self) -> Result<Option<RedGuard>, Error> {
        self.acquire(Duration::ZERO).await
    }

    /// Attempts to acquire the lock, waiting for at most `wait`. Returns `None` if the lock is still busy when the wait
    /// ends.
    ///
    /// [`Duration::ZERO`] asks all servers once; [`Duration::MAX`] waits without a limit. If requests are on their way
    /// when the limit is reached, the call waits for their answers, so it returns within `wait` plus one
    /// [`command_timeout`](crate::ClientBuilder::command_timeout).
    ///
    /// # Errors
    ///
    /// Same as [`lock`](Self::lock), except that [`Quorum`](crate::ErrorKind::Quorum) is returned when the limit is
    /// reached.
    ///
    /// # Cancel safety
    ///
    /// Same as [`lock`](Self::lock).
    ///
    /// # Examples
    ///
    /// ```
    /// # use redlatch_testkit::Server;
    /// # redlatch_testkit::doc(async |url| {
    /// use std::time::Duration;
    /// use redlatch::{ErrorKind, RedLock};
    ///
    /// # let more = [Server::start(), Server::start()];
    /// # let mut clients = Vec::new();
    /// # for url in [url.to_string(), more[0].url(), more[1].url()] {
    /// #     clients.push(redlatch::Client::builder().url(url).trust_fresh_servers(true).build().await?);
    /// # }
    /// let lock = RedLock::new(clients.iter().map(|client| client.lock("invoice-run")));
    /// let done = match lock.try_lock_for(Duration::from_secs(2)).await {
    ///     Ok(Some(guard)) => guard.unlock().await.is_ok(),
    ///     Ok(None) => false, // another process runs it
    ///     Err(error) if error.kind() == ErrorKind::Quorum => false, // too few servers are up
    ///     Err(error) => return Err(error),
    /// };
    /// assert!(done);
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
    pub async fn try_lock_for(&self, wait: Duration) -> Result<Option<RedGuard>, Error> {
        self.acquire(wait).await
    }

    async fn acquire(&self, wait: Duration) -> Result<Option<RedGuard>, Error> {
        // Before the first await, since the owner is the task that polls first.
        let (owner, requests) = self.members.requests()?;
        let client = self.members.client()?;
        let longest = LeaseTime::of_setting("max_lease", self.max_lease)?;
        for request in &requests {
            fits(request)?;
            refuse_longer(request.lease_mode.lease().get(), longest)?;
        }
        let quorum_acquire = QuorumAcquire::new(requests, longest);
        let name = quorum_acquire.name().clone();
        let quorum_hold = client.within(self.acquired(quorum_acquire, wait)).await?;
        let guard = |quorum_hold| RedGuard::new(quorum_hold, longest, client.clone(), name, owner);
        Ok(quorum_hold.map(guard))
    }

    fn acquired(
        &self,
        quorum_acquire: QuorumAcquire,
        wait: Duration,
    ) -> BoxFuture<'_, Result<Option<QuorumHold>, Error>> {
        Box::pin(async move {
            let deadline = Deadline::within(wait);
            if self.distinct.get().is_some() {
                return quorum_acquire.acquire(deadline).await;
            }
            let acquired = quorum_acquire.acquire_if_distinct(deadline);
            let (quorum_hold, are_distinct) = Box::pin(acquired).await?;
            if are_distinct {
                self.distinct.set(()).ok();
            }
            Ok(quorum_hold)
        })
    }
}

runs!(
    RedLock,
    "redlatch::RedLock::new([client.lock(\"orders:42\")])",
    |this, error| error.about(this.name())
);

/// Refuses a member that a RedLock cannot have.
fn fits(request: &AcquireRequest) -> Result<(), Error> {
    let title = request.kind.title();
    match request.kind {
        Kind::Reentrant | Kind::Plain(ReleaseBy::Auto | ReleaseBy::Script) => {}
        Kind::Plain(ReleaseBy::Transaction) => {
            return Err(Error::invalid(
                "a RedLock acquires its members by script; this plain lock uses transactions only",
            ));
        }
        _ => {
            return Err(Error::invalid(format!(
                "the members of a RedLock must be reentrant or plain; {title} cannot be a member"
            )));
        }
    }
    Ok(())
}
