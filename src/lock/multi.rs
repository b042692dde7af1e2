//! Several locks, acquired as one.

use std::fmt;
use std::time::Duration;

use super::handle::Handle;
use super::member::{Member, Members};
use super::multi_guard::MultiGuard;
use super::runs::runs;
use crate::error::Error;
use crate::hold::group;
use crate::owner::Owner;

/// Several locks, acquired together: all of them or none. It corresponds to Redisson's `RedissonMultiLock`.
///
/// Created by [`new`](Self::new) from locks of any kinds and clients. It stores nothing of its own: every member is
/// held as a lock of its own kind, and excludes callers that acquire it alone, in Java too.
///
/// # When to use it, and when to use another
///
/// Use it when one piece of work needs several resources that others lock one by one, such as both accounts of a
/// transfer, or a seat and its row. If the same names are always locked together, one lock with a name for all of them
/// is simpler. A set does not make a lock survive the loss of a server: every member must be acquired, so each
/// additional member can make the call fail. To survive the loss of a server, use a [`RedLock`](crate::RedLock).
///
/// # Order
///
/// Every set asks for its members in the order of their keys, including the prefix, no matter in which order they were
/// given. Two sets with the same names in opposite orders therefore do not deadlock.
///
/// While a set waits for one member, it holds those before it, for at most one second. Then it releases them, keeps its
/// place in the queue, and starts with the member that it waited for. It then acquires the members before that one only
/// if they are free; otherwise it releases all and starts with one that was busy. See
/// [`hold_and_wait`](Self::hold_and_wait). A task that nests locks by hand, in another order, can still deadlock with a
/// set, as with any lock.
///
/// Redisson's multi locks ask for their members in the given order, and release all of them when that takes too long,
/// 1.5 seconds per lock. If such a lock and a set ask for the same names in opposite orders, one of them has to give
/// way: the set after [`hold_and_wait`](Self::hold_and_wait), Redisson's lock after 1.5 seconds per lock.
///
/// Equal names have no order, so each member needs its own: not the same lock twice, and not one name on several
/// servers or in several databases. Such a set is [`InvalidInput`](crate::ErrorKind::InvalidInput). Give each of the
/// locks its own name, such as `stock:eu` and `stock:us`, or use a [`RedLock`](crate::RedLock), whose members have one
/// name on several servers.
///
/// # Lease and owner
///
/// Each member has the lease that it was given; a set has none. While the set waits for other members, a fixed lease is
/// started again before it ends, so that no member has expired when the guard is handed out.
///
/// A set acts for one owner: the current one, or the owner that [`owned_by`](Self::owned_by) or a member names. Two
/// different owners are [`InvalidInput`](crate::ErrorKind::InvalidInput). A member that this owner already holds is
/// acquired again if its kind is reentrant.
///
/// # Guarantee and limit
///
/// While the guard lives and is not [lost](MultiGuard::lost), every member is held, each with the guarantee and the
/// limit of its kind. If one member is busy until the limit or fails, or if the call is dropped, the members that were
/// acquired are released. While a set waits, others can see members being acquired and released.
///
/// # Examples
///
/// ```
/// # redlatch_testkit::doc(async |url| {
/// use std::time::Duration;
/// use redlatch::{Client, MultiLock};
///
/// let client = Client::connect(url).await?;
/// let transfer = MultiLock::new([client.lock("account:7"), client.lock("account:3")]);
/// let Some(both) = transfer.try_lock_for(Duration::from_secs(2)).await? else {
///     return Ok(()); // one of them was busy: neither is held
/// };
/// both.run_until_lost(async { /* move the money */ }).await?;
/// both.unlock().await?;
/// # Ok::<(), redlatch::Error>(()) });
/// ```
#[derive(Clone)]
pub struct MultiLock {
    members: Members,
    hold_and_wait: Duration,
}

/// A set that waits delays others. Most holds are shorter than this, so a set usually keeps the locks that it has.
const HOLD_AND_WAIT: Duration = Duration::from_secs(1);

impl fmt::Debug for MultiLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.names().collect();
        f.debug_struct("MultiLock").field("names", &names).finish()
    }
}

impl MultiLock {
    /// Creates the set of these locks, without I/O. If the set cannot work, every method that acquires it returns
    /// [`InvalidInput`](crate::ErrorKind::InvalidInput).
    ///
    /// # Examples
    ///
    /// ```
    /// # redlatch_testkit::doc(async |url| {
    /// use std::time::Duration;
    /// use redlatch::{Member, MultiLock};
    ///
    /// # let client = redlatch::Client::connect(url).await?;
    /// # let elsewhere = redlatch::Client::connect(url).await?;
    /// let order = MultiLock::new([
    ///     Member::from(client.fenced_lock("ledger")),
    ///     client.read_write_lock("price-list").reader().into(),
    ///     client.lock("orders:42").lease(Duration::from_secs(10)).into(),
    /// ]);
    /// let guard = order.lock().await?;
    /// // Each is held as its own kind: others can read the price list too, but not work on the order.
    /// assert!(elsewhere.read_write_lock("price-list").reader().try_lock().await?.is_some());
    /// assert!(elsewhere.lock("orders:42").try_lock().await?.is_none());
    /// guard.unlock().await?;
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
    #[must_use]
    pub fn new<M: Into<Member>>(locks: impl IntoIterator<Item = M>) -> Self {
        Self {
            members: Members::new(locks),
            hold_and_wait: HOLD_AND_WAIT,
        }
    }

    /// Returns the names of the locks, in the order in which they were given.
    ///
    /// # Examples
    ///
    /// ```
    /// # redlatch_testkit::doc(async |url| {
    /// # let client = redlatch::Client::connect(url).await?;
    /// use redlatch::MultiLock;
    ///
    /// let transfer = MultiLock::new([client.lock("account:7"), client.lock("account:3")]);
    /// assert!(transfer.names().eq(["account:7", "account:3"]));
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.members.names()
    }

    /// Makes the set act for `owner` instead of the current task.
    ///
    /// # Examples
    ///
    /// ```
    /// # redlatch_testkit::doc(async |url| {
    /// use redlatch::{MultiLock, Owner};
    ///
    /// # let client = redlatch::Client::connect(url).await?;
    /// let accounts = [client.lock("account:3"), client.lock("account:7")];
    /// let transfer = MultiLock::new(accounts).owned_by(&Owner::named("transfer-81"));
    /// let guard = transfer.lock().await?;
    /// // Any process can see which transfer holds the account.
    /// let holder = client.lock("account:7").holder().await?;
    /// assert_eq!(holder.expect("it is held").owner(), "transfer-81");
    /// guard.unlock().await?;
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
    #[must_use = "this makes a new handle and leaves the old one as it is"]
    pub fn owned_by(mut self, owner: &Owner) -> Self {
        self.members = self.members.owned_by(owner);
        self
    }

    /// Sets how long the set holds some of its locks while it waits for another; one second by default. After that it
    /// releases them until it has the other one.
    ///
    /// Each time that a call has to release its locks, it doubles this time for its next wait. So the call succeeds in
    /// the end, even if others hold several of its locks nearly always, each for longer than this time.
    ///
    /// With [`Duration::MAX`] the set never releases its locks while it waits, and so acquires all of them sooner. With
    /// [`Duration::ZERO`] it holds nothing while it waits, and may wait until all locks happen to be free at the same
    /// time.
    ///
    /// # Examples
    ///
    /// ```
    /// # redlatch_testkit::doc(async |url| {
    /// use std::time::Duration;
    /// use redlatch::MultiLock;
    ///
    /// # let client = redlatch::Client::connect(url).await?;
    /// # let elsewhere = redlatch::Client::connect(url).await?;
    /// let transfer = MultiLock::new([client.lock("account:3"), client.lock("account:7")])
    ///     .hold_and_wait(Duration::from_millis(10));
    ///
    /// let busy = elsewhere.lock("account:7").lock().await?;
    /// let (both, unlocked) = tokio::join!(transfer.lock(), async {
    ///     // The transfer waits for the other account, and soon leaves this one to others.
    ///     let deposit = elsewhere.lock("account:3").try_lock_for(Duration::from_millis(500)).await?;
    ///     deposit.expect("it is free again").unlock().await?;
    ///     busy.unlock().await
    /// });
    /// unlocked?;
    /// both?.unlock().await?;
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
    #[must_use = "this makes a new handle and leaves the old one as it is"]
    pub fn hold_and_wait(mut self, at_most: Duration) -> Self {
        self.hold_and_wait = at_most;
        self
    }

    /// Acquires all locks, waiting until they are available.
    ///
    /// # Errors
    ///
    /// Same as [`ReentrantLock::lock`](crate::ReentrantLock::lock), for the first member that fails. The text names
    /// that member, and the others are released. In addition, [`InvalidInput`](crate::ErrorKind::InvalidInput) for a
    /// set without locks, for two locks of one name and for different owners; and
    /// [`LeaseLost`](crate::ErrorKind::LeaseLost) if a member was lost while the set waited for another.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the locks that it has acquired are released in the background, as described for
    /// [`ReentrantLock::lock`](crate::ReentrantLock::lock). So are they if nobody polls the future for a few seconds;
    /// the call begins again when it is polled.
    ///
    /// # Examples
    ///
    /// ```
    /// # redlatch_testkit::doc(async |url| {
    /// use redlatch::MultiLock;
    ///
    /// # let client = redlatch::Client::connect(url).await?;
    /// let there = MultiLock::new([client.lock("account:3"), client.lock("account:7")]);
    /// let back = MultiLock::new([client.lock("account:7"), client.lock("account:3")]);
    /// // Opposite orders, and no deadlock: both ask for account 3 first.
    /// let [there, back] = [there, back].map(|both| {
    ///     tokio::spawn(async move { both.lock().await?.unlock().await })
    /// });
    /// there.await.expect("no panic")?;
    /// back.await.expect("no panic")?;
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
    pub async fn lock(&self) -> Result<MultiGuard, Error> {
        self.members
            .handles()
            .try_for_each(Handle::ensure_endless)?;
        let taken = self.acquire(Duration::MAX).await?;
        taken.ok_or_else(Error::endless)
    }

    /// Attempts to acquire all locks without waiting. Returns `None` and holds none of them if one is busy.
    ///
    /// Each lock must be available or, if its kind is reentrant, already held by this owner.
    ///
    /// # Errors
    ///
    /// Same as [`lock`](Self::lock), except that a server that does not answer is an error after one
    /// [`command_timeout`](crate::ClientBuilder::command_timeout). Each request to servers that answer slowly has that
    /// time.
    ///
    /// # Cancel safety
    ///
    /// Same as [`lock`](Self::lock).
    ///
    /// # Examples
    ///
    /// ```
    /// # redlatch_testkit::doc(async |url| {
    /// use redlatch::MultiLock;
    ///
    /// # let client = redlatch::Client::connect(url).await?;
    /// # let elsewhere = redlatch::Client::connect(url).await?;
    /// let pair = MultiLock::new([client.lock("seat:12"), client.lock("seat:13")]);
    ///
    /// let taken = elsewhere.lock("seat:13").lock().await?;
    /// assert!(pair.try_lock().await?.is_none());
    /// assert!(!client.lock("seat:12").is_locked().await?); // one seat alone is no use
    /// taken.unlock().await?;
    /// assert!(pair.try_lock().await?.is_some());
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
    pub async fn try_lock(&self) -> Result<Option<MultiGuard>, Error> {
        self.acquire(Duration::ZERO).await
    }

    /// Attempts to acquire all locks, waiting for at most `wait` for all of them together. Returns `None` and holds
    /// none of them if one was still busy when the wait ended.
    ///
    /// [`Duration::ZERO`] makes a single attempt; [`Duration::MAX`] waits without a limit. If a request is on its way
    /// when the limit is reached, the call waits for its answer, so it returns within `wait` plus one
    /// [`command_timeout`](crate::ClientBuilder::command_timeout).
    ///
    /// # Errors
    ///
    /// Same as [`lock`](Self::lock), except that a server that cannot be reached or does not answer is an error when
    /// the limit is reached.
    ///
    /// # Cancel safety
    ///
    /// Same as [`lock`](Self::lock).
    ///
    /// # Examples
    ///
    /// ```
    /// # redlatch_testkit::doc(async |url| {
    /// use std::time::Duration;
    /// use redlatch::MultiLock;
    ///
    /// # let client = redlatch::Client::connect(url).await?;
    /// # let elsewhere = redlatch::Client::connect(url).await?;
    /// let delivery = MultiLock::new([client.lock("orders:42"), client.lock("trucks:3")]);
    ///
    /// let truck = elsewhere.lock("trucks:3").lock().await?;
    /// assert!(delivery.try_lock_for(Duration::from_millis(50)).await?.is_none());
    ///
    /// let wait = delivery.try_lock_for(Duration::from_secs(5));
    /// let (delivery, unlocked) = tokio::join!(wait, truck.unlock());
    /// unlocked?;
    /// assert!(delivery?.is_some());
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
    pub async fn try_lock_for(&self, wait: Duration) -> Result<Option<MultiGuard>, Error> {
        self.acquire(wait).await
    }

    async fn acquire(&self, wait: Duration) -> Result<Option<MultiGuard>, Error> {
        // Before the first await, since the owner is the task that polls first.
        let (owner, requests) = self.members.requests()?;
        let acquire = group::acquire(requests, wait, self.hold_and_wait);
        let guards = self.members.client()?.within(acquire).await?;
        Ok(guards.map(|guards| MultiGuard::new(guards, owner)))
    }
}

runs!(
    MultiLock,
    "redlatch::MultiLock::new([client.lock(\"orders:42\"), client.lock(\"trucks:7\")])",
    |this, error| error.about_all(this.names().count(), this.names())
);
