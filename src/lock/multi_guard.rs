//! The guard of several locks that were acquired as one.

use std::fmt;
use std::future::Future;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::join_all;
use futures_util::stream::FuturesUnordered;

use super::fenced::FencingToken;
use crate::error::Error;
use crate::hold::batch;
use crate::hold::guard::LockGuard;
use crate::hold::lease::{Lease, run_until_lost, shown_remaining};
use crate::loss::LossReason;
use crate::owner::Owner;

/// One level of every lock of a [`MultiLock`](crate::MultiLock), held until the guard is unlocked or dropped.
///
/// [`unlock`](Self::unlock) reports whether all locks were still held. Dropping the guard releases them in the
/// background.
#[must_use = "the locks are released as soon as the guard is dropped"]
#[clippy::has_significant_drop]
pub struct MultiGuard {
    /// In the order in which the locks were given.
    guards: Vec<LockGuard>,
    owner: Owner,
}

impl fmt::Debug for MultiGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.names().collect();
        f.debug_struct("MultiGuard")
            .field("names", &names)
            .field("owner", &format_args!("{}", self.owner()))
            .field("remaining", &shown_remaining(self.remaining()))
            .finish()
    }
}

impl MultiGuard {
    pub(super) fn new(guards: Vec<LockGuard>, owner: Owner) -> Self {
        Self { guards, owner }
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
    /// let guard = transfer.lock().await?;
    /// assert!(guard.names().eq(["account:7", "account:3"]));
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.leases().map(Lease::name)
    }

    /// Releases all locks, and reports whether all were still held. Each lock is released, even if another one fails.
    ///
    /// # Errors
    ///
    /// Same as [`LockGuard::unlock`], for the first lock that fails.
    ///
    /// # Cancel safety
    ///
    /// Same as [`LockGuard::unlock`].
    ///
    /// # Examples
    ///
    /// ```
    /// # redlatch_testkit::doc(async |url| {
    /// use redlatch::{ErrorKind, MultiLock};
    ///
    /// # let client = redlatch::Client::connect(url).await?;
    /// # let elsewhere = redlatch::Client::connect(url).await?;
    /// let transfer = MultiLock::new([client.lock("account:3"), client.lock("account:7")]);
    /// let guard = transfer.lock().await?;
    /// // An operator frees one of the accounts.
    /// elsewhere.lock("account:3").force_unlock().await?;
    /// let error = guard.unlock().await.unwrap_err();
    /// assert_eq!(error.kind(), ErrorKind::LeaseLost);
    /// assert!(!client.lock("account:7").is_locked().await?); // released all the same
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
    pub async fn unlock(self) -> Result<(), Error> {
        match self
            .guards
            .first()
            .map(|guard| guard.request.client.clone())
        {
            Some(client) => client.within(Box::pin(batch::release(self.guards))).await,
            None => Ok(()),
        }
    }

    /// Resolves when the first of the leases can no longer be trusted, and returns why; see [`Lease::lost`].
    ///
    /// # Cancel safety
    ///
    /// This method is cancel safe: dropping the future loses nothing.
    ///
    /// # Examples
    ///
    /// ```
    /// # redlatch_testkit::doc(async |url| {
    /// # async fn move_money() { std::future::pending().await }
    /// use redlatch::MultiLock;
    ///
    /// # let client = redlatch::Client::connect(url).await?;
    /// let transfer = MultiLock::new([client.lock("account:3"), client.lock("account:7")]);
    /// let guard = transfer.lock().await?;
    /// # client.lock("account:7").force_unlock().await?;
    /// // Meanwhile, an operator frees one of the accounts.
    /// let moved = tokio::select! {
    ///     () = move_money() => true,
    ///     _ = guard.lost() => false, // another owner may hold one of the accounts
    /// };
    /// assert!(!moved);
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
    pub async fn lost(&self) -> LossReason {
        let mut losses: FuturesUnordered<_> = self.leases().map(Lease::lost).collect();
        losses.next().await.unwrap_or(LossReason::Unlocked)
    }

    /// Returns `true` if one of the leases can no longer be trusted; see [`Lease::is_lost`].
    ///
    /// # Examples
    ///
    /// ```
    /// # redlatch_testkit::doc(async |url| {
    /// use redlatch::MultiLock;
    ///
    /// # let client = redlatch::Client::connect(url).await?;
    /// let rooms = MultiLock::new([client.lock("room:101"), client.lock("room:102")]);
    /// let guard = rooms.lock().await?;
    /// assert!(!guard.is_lost());
    /// // The loss of one lock is enough.
    /// client.lock("room:102").force_unlock().await?;
    /// assert!(guard.is_lost());
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.leases().any(Lease::is_lost)
    }

    /// Returns how long all leases can still be trusted if the servers confirm nothing more. Zero once a lease is lost.
    ///
    /// # Examples
    ///
    /// ```
    /// # redlatch_testkit::doc(async |url| {
    /// use std::time::Duration;
    /// use redlatch::MultiLock;
    ///
    /// # let client = redlatch::Client::connect(url).await?;
    /// let shipment = MultiLock::new([
    ///     client.lock("orders:42").lease(Duration::from_secs(60)),
    ///     client.lock("stock:7").lease(Duration::from_secs(10)),
    /// ]);
    /// let guard = shipment.lock().await?;
    /// // The shortest lease decides.
    /// let left = guard.remaining();
    /// assert!(left > Duration::from_secs(5) && left <= Duration::from_secs(10));
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.leases()
            .map(Lease::remaining)
            .min()
            .unwrap_or_default()
    }

    /// Returns the owner that holds the locks.
    ///
    /// # Examples
    ///
    /// ```
    /// # redlatch_testkit::doc(async |url| {
    /// use redlatch::MultiLock;
    ///
    /// # let client = redlatch::Client::connect(url).await?;
    /// let guard = MultiLock::new([client.lock("orders:42"), client.lock("stock:7")]).lock().await?;
    /// // A task that helps with the order acts for the same owner, and so re-enters.
    /// let stock = client.lock("stock:7").owned_by(guard.owner());
    /// let helper = tokio::spawn(async move { stock.try_lock().await });
    /// assert!(helper.await.expect("no panic")?.is_some());
    /// guard.unlock().await?;
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
    #[must_use]
    pub fn owner(&self) -> &Owner {
        &self.owner
    }

    /// Gives each member a new lease, counted from now; see [`Lease::extend`].
    ///
    /// # Errors
    ///
    /// Same as [`Lease::extend`], for the first member that fails. The others may have the new lease.
    ///
    /// # Cancel safety
    ///
    /// Same as [`Lease::extend`].
    ///
    /// # Examples
    ///
    /// ```
    /// # redlatch_testkit::doc(async |url| {
    /// use std::time::Duration;
    /// use redlatch::MultiLock;
    ///
    /// # let client = redlatch::Client::connect(url).await?;
    /// let short = |name: &str| client.lock(name).lease(Duration::from_secs(5));
    /// let guard = MultiLock::new([short("orders:42"), short("stock:7")]).lock().await?;
    /// // The warehouse takes longer than expected.
    /// guard.extend(Duration::from_secs(30)).await?;
    /// assert!(guard.remaining() > Duration::from_secs(20));
    /// guard.unlock().await?;
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
    pub async fn extend(&self, lease: Duration) -> Result<(), Error> {
        let extended = join_all(self.leases().map(|member| member.extend(lease))).await;
        extended.into_iter().collect()
    }

    /// Asks the servers whether each of the holds is still there; see [`Lease::verify`].
    ///
    /// # Errors
    ///
    /// Same as [`Lease::verify`], for the first member that fails.
    ///
    /// # Cancel safety
    ///
    /// This method is cancel safe: it changes nothing on the servers.
    ///
    /// # Examples
    ///
    /// ```
    /// # redlatch_testkit::doc(async |url| {
    /// use redlatch::{ErrorKind, MultiLock};
    ///
    /// # let client = redlatch::Client::connect(url).await?;
    /// # let elsewhere = redlatch::Client::connect(url).await?;
    /// let transfer = MultiLock::new([client.lock("account:3"), client.lock("account:7")]);
    /// let guard = transfer.lock().await?;
    /// guard.verify().await?;
    /// // Another process frees one of the accounts.
    /// elsewhere.lock("account:7").force_unlock().await?;
    /// assert_eq!(guard.verify().await.unwrap_err().kind(), ErrorKind::LeaseLost);
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
    pub async fn verify(&self) -> Result<(), Error> {
        let verified = join_all(self.leases().map(Lease::verify)).await;
        verified.into_iter().collect()
    }

    /// Runs a future as long as every lease can be trusted; see [`Lease::run_until_lost`].
    ///
    /// # Errors
    ///
    /// [`LeaseLost`](crate::ErrorKind::LeaseLost) if one of the leases was lost before the future completed. The future
    /// is then dropped, and its work may be half done.
    ///
    /// # Cancel safety
    ///
    /// Dropping this future drops the one inside. The locks stay held.
    ///
    /// # Examples
    ///
    /// ```
    /// # redlatch_testkit::doc(async |url| {
    /// # async fn debit() -> i64 { -250 }
    /// # async fn credit() -> i64 { 250 }
    /// use redlatch::{ErrorKind, MultiLock};
    ///
    /// # let client = redlatch::Client::connect(url).await?;
    /// let transfer = MultiLock::new([client.lock("account:3"), client.lock("account:7")]);
    /// let guard = transfer.lock().await?;
    /// let difference = guard.run_until_lost(async { debit().await + credit().await }).await?;
    /// assert_eq!(difference, 0);
    ///
    /// client.lock("account:3").force_unlock().await?;
    /// let stopped = guard.run_until_lost(credit()).await; // does not begin
    /// assert_eq!(stopped.unwrap_err().kind(), ErrorKind::LeaseLost);
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
    pub async fn run_until_lost<F: Future>(&self, future: F) -> Result<F::Output, Error> {
        let loss = || self.leases().find_map(Lease::loss);
        run_until_lost(future, self.lost(), loss, |reason| self.lost_for(reason)).await
    }

    /// Returns the lease of each lock, in the order in which the locks were given.
    ///
    /// # Examples
    ///
    /// ```
    /// # redlatch_testkit::doc(async |url| {
    /// use redlatch::MultiLock;
    ///
    /// # let client = redlatch::Client::connect(url).await?;
    /// let names = ["room:101", "room:102", "room:103"];
    /// let guard = MultiLock::new(names.map(|name| client.lock(name))).lock().await?;
    /// # client.lock("room:102").force_unlock().await?;
    /// // An operator has freed one of the rooms. Which one?
    /// let mut rooms = names.iter().zip(guard.leases());
    /// let (name, _) = rooms.find(|(_, lease)| lease.is_lost()).expect("one is lost");
    /// assert_eq!(*name, "room:102");
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
    pub fn leases(&self) -> impl Iterator<Item = &Lease> {
        self.guards.iter().map(|guard| &**guard)
    }

    /// Returns the token of each lock, in the order in which the locks were given; `None` for a lock that is not
    /// fenced.
    ///
    /// # Examples
    ///
    /// ```
    /// # redlatch_testkit::doc(async |url| {
    /// # fn write(token: u64) {}
    /// use redlatch::{Member, MultiLock};
    ///
    /// # let client = redlatch::Client::connect(url).await?;
    /// let booking = MultiLock::new([
    ///     Member::from(client.lock("seat:12")),
    ///     client.fenced_lock("ledger").into(),
    /// ]);
    /// let guard = booking.lock().await?;
    /// let tokens: Vec<_> = guard.tokens().collect();
    /// assert!(tokens[0].is_none()); // the seat
    /// let ledger = tokens[1].expect("the ledger is fenced");
    /// write(ledger.get()); // the ledger refuses lower ones from now on
    /// guard.unlock().await?;
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
    pub fn tokens(&self) -> impl Iterator<Item = Option<FencingToken>> {
        self.leases().map(FencingToken::of)
    }

    /// Returns the error of the member that was lost.
    pub(super) fn lost_for(&self, reason: LossReason) -> Error {
        let lost = self.leases().find(|member| member.is_lost());
        let lost = lost.or_else(|| self.leases().next());
        lost.map_or_else(|| Error::lost(reason), Lease::lost_error)
    }
}
