//! A lock whose every hold has a token.

use std::fmt;
use std::ops::Deref;

use super::handle::Handle;
use super::verbs::verbs;
use crate::error::Error;
use crate::hold::guard::LockGuard;
use crate::hold::lease::Lease;
use crate::owner::Owner;

/// A lock whose every hold has a higher token than all before: on the wire Redisson's `RFencedLock`.
///
/// Made by [`Client::fenced_lock`](crate::Client::fenced_lock). It is a [`ReentrantLock`](crate::ReentrantLock)
/// whose guards carry a [`FencingToken`]. Send the token along with each write; the store keeps the highest that it
/// has seen and refuses a lower one. That stops what no lease can: the late write of a holder that was paused, lost
/// the lock and does not know. The idea is described by Kleppmann, [How to do distributed
/// locking](https://martin.kleppmann.com/2016/02/08/how-to-do-distributed-locking.html).
///
/// # When to use it, and when another
///
/// If the store can check a token. If it cannot, a [`ReentrantLock`](crate::ReentrantLock) costs less and gives as
/// much. If the store can refuse a stale write by itself, by a version column, say, that alone may be enough.
///
/// # Guarantee and limit
///
/// Exclusion as with a [`ReentrantLock`](crate::ReentrantLock), beside which it takes turns on one name. The token
/// of a hold is higher than those of all earlier holds, Java's among them, and stays the same on re-entry. It is
/// the last one plus 1, or the server's clock in microseconds if that is more; so it rises also over a `FLUSHALL`
/// or a restart without data, if the server's clock does not go back meanwhile. Up to 2^53 it is exact, to Lua and
/// JavaScript too; beyond, calls answer [`Refused`](crate::ErrorKind::Refused). The key of the last token,
/// `redisson_lock_token:{name}`, is never deleted; [`token_ttl`](crate::ClientBuilder::token_ttl) gives it an end.
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
#[derive(Clone, Debug)]
pub struct FencedLock(pub(crate) Handle);

verbs!(FencedLock, FencedGuard);

/// A number that rises with each hold of a [`FencedLock`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FencingToken(u64);

impl FencingToken {
    /// The number, 2^53 at the most.
    #[must_use]
    pub fn get(self) -> u64 {
        self.0
    }

    /// The token of a hold, if its kind has them.
    pub(super) fn of(lease: &Lease) -> Option<Self> {
        lease.hold.token().map(Self)
    }
}

impl fmt::Display for FencingToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// One level of a [`FencedLock`] that is held: a [`LockGuard`](crate::LockGuard) with the token of its hold.
#[must_use = "the lock is released as soon as the guard is dropped"]
#[clippy::has_significant_drop]
#[derive(Debug)]
pub struct FencedGuard {
    guard: LockGuard,
    token: FencingToken,
}

impl FencedGuard {
    /// The token of this hold, the same for all its levels.
    #[must_use]
    pub fn token(&self) -> FencingToken {
        self.token
    }

    /// As [`LockGuard::unlock`](crate::LockGuard::unlock).
    ///
    /// # Errors
    ///
    /// As [`LockGuard::unlock`](crate::LockGuard::unlock).
    ///
    /// # Cancel safety
    ///
    /// As [`LockGuard::unlock`](crate::LockGuard::unlock).
    pub async fn unlock(self) -> Result<(), Error> {
        self.guard.unlock().await
    }

    /// As [`LockGuard::reenter`](crate::LockGuard::reenter), with the same token.
    ///
    /// # Errors
    ///
    /// As [`LockGuard::reenter`](crate::LockGuard::reenter).
    ///
    /// # Cancel safety
    ///
    /// As [`LockGuard::reenter`](crate::LockGuard::reenter).
    pub async fn reenter(&self) -> Result<Self, Error> {
        self.guard.reenter().await.map(Self::from)
    }

    /// As [`LockGuard::detach`](crate::LockGuard::detach). Who adopts the level gets a guard with the same token.
    #[must_use = "the owner is who can adopt or unlock what was left"]
    pub fn detach(self) -> Owner {
        self.guard.detach()
    }
}

impl From<LockGuard> for FencedGuard {
    fn from(guard: LockGuard) -> Self {
        // A grant without a token is an error before there is a guard.
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
