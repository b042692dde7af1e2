//! A lock that gives every hold a token.

use std::fmt;
use std::ops::Deref;
use std::time::Duration;

use super::handle::Handle;
use super::methods::methods;
use crate::error::Error;
use crate::hold::guard::LockGuard;
use crate::hold::lease::Lease;
use crate::owner::Owner;

/// A [`ReentrantLock`](crate::ReentrantLock) that gives each hold a higher token than all earlier holds;
/// wire-compatible with Redisson's `RFencedLock`.
///
/// Created by [`Client::fenced_lock`](crate::Client::fenced_lock). Its guards carry a [`FencingToken`]. Send the token
/// along with each write; the store keeps the highest token that it has seen and refuses a lower one. This stops the
/// late write of a holder that was paused and has lost the lock without noticing, which no lease can stop. The idea is
/// described by Kleppmann, [How to do distributed
/// locking](https://martin.kleppmann.com/2016/02/08/how-to-do-distributed-locking.html).
///
/// # When to use it, and when to use another
///
/// Use it if the store can check a token. If it cannot, a [`ReentrantLock`](crate::ReentrantLock) costs less and
/// protects as much. If the store can refuse a stale write by itself, for example by a version column, that alone may
/// be enough.
///
/// The future of a [`run`](Self::run) is not given the token. To use the token, call [`lock`](Self::lock), and run the
/// work in [`run_until_lost`](crate::Lease::run_until_lost) of the guard.
///
/// # Guarantee and limit
///
/// Exclusion is that of a [`ReentrantLock`](crate::ReentrantLock), and on one name the two kinds exclude each other.
/// The token of a hold is higher than those of all earlier holds, including Java's, and stays the same on re-entry. A
/// hold that a named owner acquired through another kind of lock has no token: re-entering it here returns
/// [`WrongKind`](crate::ErrorKind::WrongKind). A hold that Java acquired without a token, by an `RLock`, cannot be told
/// from one with a token: to re-enter or adopt it here returns the token of an earlier hold.
///
/// The token is the last one plus 1, or the server's clock in microseconds if that is higher. It therefore keeps rising
/// across a `FLUSHALL` or a restart without data, provided that the server's clock does not go back in between. Tokens
/// are exact up to 2^53, in Lua and JavaScript too; beyond that, calls return [`Refused`](crate::ErrorKind::Refused).
/// The key of the last token, `redisson_lock_token:{name}`, is never deleted, unless
/// [`token_ttl`](Self::token_ttl) sets an expiry.
///
/// # Examples
///
/// ```
/// # redlatch_testkit::doc(async |url| {
/// # fn write(token: u64) {}
/// use redlatch::Client;
///
/// let client = Client::connect(url).await?;
/// let guard = client.fenced_lock("invoice:42").lock().await?;
/// write(guard.token().get()); // UPDATE .. SET token = $1 WHERE id = 42 AND token <= $1
/// guard.unlock().await?;
/// # Ok::<(), redlatch::Error>(()) });
/// ```
#[derive(Clone)]
pub struct FencedLock(pub(crate) Handle);

impl FencedLock {
    /// Sets how long the last token is remembered after its grant, without limit by default. A hold that lasts longer
    /// keeps its own token.
    ///
    /// The time must be from 50 ms to 100 years, and no shorter than the lease of this handle, which is the client's
    /// [`watchdog_lease`](crate::ClientBuilder::watchdog_lease) if no other is set. With any other value, every call
    /// that acquires, unlocks or adopts returns [`InvalidInput`](crate::ErrorKind::InvalidInput).
    ///
    /// If the handles of one lock have different values, in one process or several, the value of the handle that last
    /// got the lock from the server applies. Within a process, such handles do not pass a hold on in memory.
    ///
    /// Use it only in fleets without Redisson's Java clients: their `INCR` does not extend this time, and starts again
    /// at 1 once it has passed, while the tokens of this crate then continue from the server's clock.
    ///
    /// # Examples
    ///
    /// ```
    /// # redlatch_testkit::doc(async |url| {
    /// # let client = redlatch::Client::connect(url).await?;
    /// # fn write(_token: u64) {}
    /// use std::time::Duration;
    ///
    /// let day = Duration::from_secs(24 * 60 * 60);
    /// for order in 1..=3 {
    ///     // Each name has a key for its last token, which is kept for a day instead of for good.
    ///     let lock = client.fenced_lock(format!("orders:{order}")).token_ttl(day);
    ///     let guard = lock.lock().await?;
    ///     write(guard.token().get());
    ///     guard.unlock().await?;
    /// }
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
    #[must_use = "this makes a new handle and leaves the old one as it is"]
    pub fn token_ttl(mut self, ttl: Duration) -> Self {
        self.0.token_ttl(ttl);
        self
    }
}

methods!(FencedLock, FencedGuard, "fenced_lock");

/// A number that rises with each hold of a [`FencedLock`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FencingToken(u64);

impl FencingToken {
    /// Returns the number, which is at most 2^53.
    ///
    /// # Examples
    ///
    /// ```
    /// # redlatch_testkit::doc(async |url| {
    /// # let client = redlatch::Client::connect(url).await?;
    /// let guard = client.fenced_lock("orders:42").lock().await?;
    /// assert!(guard.token().get() > 0);
    /// guard.unlock().await?;
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
    #[must_use]
    pub fn get(self) -> u64 {
        self.0
    }

    /// Returns the number for a column of the type `BIGINT`, which every token fits into.
    ///
    /// [`recipes/fencing-postgres`](https://github.com/redlatch/redlatch/tree/HEAD/examples/recipes/fencing-postgres)
    /// has the statements that refuse a lower one.
    ///
    /// # Examples
    ///
    /// ```
    /// # redlatch_testkit::doc(async |url| {
    /// # let client = redlatch::Client::connect(url).await?;
    /// # fn bind(token: i64) {}
    /// let guard = client.fenced_lock("orders:42").lock().await?;
    /// bind(guard.token().as_i64()); // UPDATE .. SET token = $1 WHERE id = 42 AND token <= $1
    /// guard.unlock().await?;
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
    #[must_use]
    pub fn as_i64(self) -> i64 {
        self.0.cast_signed()
    }

    /// Returns the token of a hold, or `None` if its kind has no tokens.
    pub(super) fn of(lease: &Lease) -> Option<Self> {
        lease.hold.token().map(Self)
    }
}

impl fmt::Display for FencingToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// One level of a [`FencedLock`] that is held: a [`LockGuard`] with the token of its hold.
#[must_use = "the lock is released as soon as the guard is dropped"]
#[clippy::has_significant_drop]
pub struct FencedGuard {
    pub(crate) guard: LockGuard,
    pub(crate) token: FencingToken,
}

impl fmt::Debug for FencedGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = self.guard.show("FencedGuard", f);
        shown.field("token", &self.token.get()).finish()
    }
}

impl FencedGuard {
    /// Returns the token of this hold, which is the same for all its levels.
    ///
    /// # Examples
    ///
    /// ```
    /// # redlatch_testkit::doc(async |url| {
    /// # let client = redlatch::Client::connect(url).await?;
    /// let lock = client.fenced_lock("orders:42");
    /// let paused = lock.lock().await?;
    /// let stale = paused.token();
    /// lock.force_unlock().await?;
    ///
    /// let guard = lock.lock().await?;
    /// assert!(guard.token() > stale); // so the store can refuse a write with the stale token
    /// guard.unlock().await?;
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
    #[must_use]
    pub fn token(&self) -> FencingToken {
        self.token
    }

    /// Releases one level of the lock, and reports whether it was still held. Same as
    /// [`LockGuard::unlock`](crate::LockGuard::unlock).
    ///
    /// # Errors
    ///
    /// Same as [`LockGuard::unlock`](crate::LockGuard::unlock).
    ///
    /// # Cancel safety
    ///
    /// Same as [`LockGuard::unlock`](crate::LockGuard::unlock).
    ///
    /// # Examples
    ///
    /// ```
    /// # redlatch_testkit::doc(async |url| {
    /// # let client = redlatch::Client::connect(url).await?;
    /// # async fn store(token: u64) {}
    /// let guard = client.fenced_lock("orders:42").lock().await?;
    /// store(guard.token().get()).await;
    /// if let Err(error) = guard.unlock().await {
    ///     eprintln!("the store may have refused a late write: {error}");
    /// }
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
    pub async fn unlock(self) -> Result<(), Error> {
        self.guard.unlock().await
    }

    /// Acquires one more level, with the same token. Same as [`LockGuard::reenter`](crate::LockGuard::reenter).
    ///
    /// # Errors
    ///
    /// Same as [`LockGuard::reenter`](crate::LockGuard::reenter).
    ///
    /// # Cancel safety
    ///
    /// Same as [`LockGuard::reenter`](crate::LockGuard::reenter).
    ///
    /// # Examples
    ///
    /// ```
    /// # redlatch_testkit::doc(async |url| {
    /// # let client = redlatch::Client::connect(url).await?;
    /// let guard = client.fenced_lock("orders:42").lock().await?;
    /// let inner = guard.reenter().await?; // to give to another task
    /// assert_eq!(inner.token(), guard.token());
    /// inner.unlock().await?;
    /// guard.unlock().await?;
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
    pub async fn reenter(&self) -> Result<Self, Error> {
        self.guard.reenter().await.map(Self::from)
    }

    /// Leaves the level to its owner and returns the owner. Same as [`LockGuard::detach`](crate::LockGuard::detach);
    /// the guard that adopts the level has the same token.
    ///
    /// # Examples
    ///
    /// ```
    /// # redlatch_testkit::doc(async |url| {
    /// # let client = redlatch::Client::connect(url).await?;
    /// # let other = redlatch::Client::connect(url).await?;
    /// use redlatch::Owner;
    ///
    /// let import = client.fenced_lock("import").owned_by(&Owner::named("import-7"));
    /// let guard = import.lock().await?;
    /// let token = guard.token();
    /// let owner = guard.detach();
    ///
    /// // The process that takes over writes with the same token.
    /// let adopted = other.fenced_lock("import").owned_by(&owner).adopt().await?;
    /// let guard = adopted.expect("the lease has not ended");
    /// assert_eq!(guard.token(), token);
    /// guard.unlock().await?;
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
    #[must_use = "only this owner can adopt or unlock what was left"]
    pub fn detach(self) -> Owner {
        self.guard.detach()
    }
}

impl From<LockGuard> for FencedGuard {
    fn from(guard: LockGuard) -> Self {
        // A grant without a token is an error before a guard is made.
        let token = FencingToken(guard.hold.token().unwrap_or_default());
        Self { guard, token }
    }
}

impl Deref for FencedGuard {
    type Target = Lease;

    fn deref(&self) -> &Lease {
        &self.guard
    }
}
