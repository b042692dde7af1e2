//! A lock in a format that clients in other languages share.

use super::handle::Handle;
use super::methods::methods;
use crate::backoff::Backoff;
use crate::hold::guard::LockGuard;
use crate::options::ReleaseBy;
use crate::protocol::hold_key::Kind;

/// A lock stored as a single string: `SET name value NX PX lease`, and a delete if the value is still ours. redis-py's
/// `Lock`, Go's redsync and many others use this format, and take turns with this lock on one name.
///
/// Created by [`Client::plain_lock`](crate::Client::plain_lock). **It is not reentrant**: an owner that holds the lock
/// finds it busy, as all others do. In a task that already holds the lock, `lock()` waits until the lease ends; with
/// renewal, the lease never ends. [`LockGuard::reenter`](crate::LockGuard::reenter) returns
/// [`Refused`](crate::ErrorKind::Refused).
///
/// # When to use it, and when to use another
///
/// Use it to take turns with a process in another language that uses this format, or where the server does not let you
/// run scripts, since this is the only lock that works without them. Otherwise use a
/// [`ReentrantLock`](crate::ReentrantLock): its waiters are woken by a message, while the release of a plain lock
/// notifies nobody. A reentrant, fair, fenced or spin lock stores another type of value under the same name: it returns
/// [`WrongKind`](crate::ErrorKind::WrongKind) while this lock is held, as this lock does while one of them is held.
///
/// A string without a lease may be other data of the application, and its value may be secret. So queries do not show
/// it and [`force_unlock`](Self::force_unlock) does not release it: they return
/// [`WrongKind`](crate::ErrorKind::WrongKind). The exception is the token of redis-py's `Lock`, which has no timeout by
/// default. Any such string still excludes this lock.
///
/// # Waiting
///
/// A plain lock publishes nothing and subscribes to nothing. The waiters of one process form one local queue. The first
/// of them asks the server again after the pauses of [`Backoff::exponential`]. A pause ends early when the holder's
/// lease ends or when the lock is released in this process, and is never longer than
/// [`poll_cap`](crate::ClientBuilder::poll_cap) or than the rest of the caller's limit. There is no order between
/// processes. After [`local_handoff_limit`](crate::ClientBuilder::local_handoff_limit) holds in a row in this process,
/// the first waiter pauses once before it asks, to let other processes in.
///
/// # Guarantee and limit
///
/// Exclusion, lease, renewal and [`lost`](crate::Lease::lost) are those of a [`ReentrantLock`](crate::ReentrantLock).
/// Each hold has a value of its own, so a request that arrives late cannot change the key of the next holder.
///
/// **The value of a named owner is its name**, so that other processes can know it. Such a value does not distinguish
/// two holds under one name:
///
/// - A process that tries to acquire the lock under the name of its holder finds it busy.
/// - A call that is dropped before its answer, or that gets no answer, is not undone, since that could free the
///   holder's lock. If the call did acquire the lock, the lock is free when its lease ends. A hold that was lost in
///   this process is not released either.
/// - A release or renewal that arrives late affects the next holder, and a hold that was [adopted](Self::adopt)
///   elsewhere is not lost here.
/// - An acquisition whose first answer was lost finds the lock busy until its lease ends.
///
/// So use a named owner only to hand a hold over between processes, and only in one process at a time. Otherwise keep
/// the default owner.
///
/// # Without scripts
///
/// Compare-and-delete needs a script. If this user may not run scripts, which [`ReleaseBy::Auto`] finds out, the lock
/// uses a transaction instead: `WATCH`, `GET`, then `MULTI`, `DEL` or `PEXPIRE`, `EXEC`. That takes two round trips
/// instead of one, on a third connection, where all locks of the client take turns. If the key changes in between, the
/// transaction does nothing. The user needs the commands `SET`, `GET`, `PTTL`, `DEL`, `PEXPIRE`, `WATCH`, `UNWATCH`,
/// `MULTI` and `EXEC`.
///
/// # Examples
///
/// ```
/// # redlatch_testkit::doc(async |url| {
/// use std::time::Duration;
/// use redlatch::config::ReleaseBy;
/// use redlatch::Client;
///
/// let client = Client::connect(url).await?;
/// let lock = client.plain_lock("report").release_by(ReleaseBy::Transaction);
/// let Some(guard) = lock.try_lock_for(Duration::from_secs(2)).await? else {
///     return Ok(()); // another process holds it, perhaps one in Python
/// };
/// assert!(lock.try_lock().await?.is_none()); // busy, for its holder too
/// guard.unlock().await?;
/// # Ok::<(), redlatch::Error>(()) });
/// ```
#[doc(alias = "SETNX")]
#[derive(Clone)]
pub struct PlainLock(Handle);

impl PlainLock {
    pub(crate) fn new(mut handle: Handle) -> Self {
        handle.polls(Backoff::exponential());
        Self(handle)
    }

    /// Sets how the lock is released, renewed, extended and verified; [`ReleaseBy::Auto`] by default.
    ///
    /// # Examples
    ///
    /// ```
    /// # redlatch_testkit::doc(async |url| {
    /// # let client = redlatch::Client::connect(url).await?;
    /// use redlatch::config::ReleaseBy;
    ///
    /// // This server is known to refuse scripts: there is no need to try one first.
    /// let lock = client.plain_lock("orders:42").release_by(ReleaseBy::Transaction);
    /// let guard = lock.lock().await?;
    /// guard.unlock().await?;
    /// assert!(!lock.is_locked().await?);
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
    #[must_use = "this makes a new handle and leaves the old one as it is"]
    pub fn release_by(mut self, by: ReleaseBy) -> Self {
        self.0.of_kind(Kind::Plain(by));
        self
    }
}

methods!(PlainLock, LockGuard, "plain_lock");
