//! A lock in the format that other languages share.

use super::handle::Handle;
use super::verbs::verbs;
use crate::backoff::Backoff;
use crate::hold::guard::LockGuard;
use crate::options::ReleaseBy;
use crate::protocol::hold_key::Kind;

/// A lock that is one string: `SET name value NX PX lease`, and a delete if the value is still ours. redis-py's
/// `Lock`, Go's redsync and many others use this format, and take turns with it on one name.
///
/// Made by [`Client::plain_lock`](crate::Client::plain_lock). **It is not reentrant**: an owner that holds it
/// finds it busy like everybody else. `lock()` in a task that holds the lock already waits until the lease ends,
/// which with renewal is never; [`LockGuard::reenter`](crate::LockGuard::reenter) answers
/// [`Refused`](crate::ErrorKind::Refused).
///
/// # When to use it, and when another
///
/// To take turns with a process in another language that uses this format; and where the server does not let you
/// run scripts, since this lock alone does without. Else a [`ReentrantLock`](crate::ReentrantLock): the others'
/// waiters are woken by a message, while of a plain lock nobody is told. A reentrant, fair, fenced or spin lock of
/// the same name is another shape, and answers [`WrongKind`](crate::ErrorKind::WrongKind) while this lock is held,
/// as this one does while one of them is.
///
/// # Waiting
///
/// Nothing is published and nothing subscribed to. The waiters of one process stand in one line; the first of them
/// asks after pauses as of [`Backoff::exponential`], which end early when the holder's lease does or the lock is
/// given back in this process, and never outlast [`poll_cap`](crate::ClientBuilder::poll_cap) or the caller's
/// limit. Between processes there is no order. After a [`local_handoff_limit`](crate::ClientBuilder::local_handoff_limit) of holds in this
/// process the first in line pauses once before it asks, so that others get in.
///
/// # Guarantee and limit
///
/// Exclusion, lease, renewal and [`lost`](crate::Lease::lost) as with a [`ReentrantLock`](crate::ReentrantLock).
/// The value of a hold is text that no other hold has, so that what comes late cannot touch the next holder's key.
///
/// **The value of a named owner is its name**, so that other processes can know it. It cannot tell two holds under
/// one name apart. A process that tries under the name of a holder finds the lock busy. A call that is dropped before
/// its answer or goes unanswered is not undone, since that could free the holder's lock: if it did take the lock, this
/// ends by its lease. Neither is a hold given back that was lost here. But a release or renewal that comes late is the
/// next holder's, and a hold that was [adopted](Self::adopt) elsewhere is not lost here. And an acquisition whose first
/// answer was lost finds the lock busy until its lease ends. So use a name to hand a hold over, by one process at a
/// time; else leave the owner as it is.
///
/// # Without scripts
///
/// Compare-and-delete takes a script. Where this user may run none ([`ReleaseBy::Auto`] finds out), it is done by
/// transaction: `WATCH`, `GET`, then `MULTI`, `DEL` or `PEXPIRE`, `EXEC`. That takes two round trips in place of
/// one, on a third connection, one after the other for all locks of the client. If the key changes meanwhile,
/// nothing is done. The user needs the commands `SET`, `GET`, `PTTL`, `DEL`, `PEXPIRE`, `WATCH`, `UNWATCH`,
/// `MULTI` and `EXEC`.
///
/// # Examples
///
/// ```
/// # redlatch_testkit::doc(async |url| {
/// use std::time::Duration;
/// use redlatch::{Client, ReleaseBy};
///
/// let client = Client::connect(url).await?;
/// let lock = client.plain_lock("report").release_by(ReleaseBy::Transaction);
/// let Some(guard) = lock.try_lock_for(Duration::from_secs(2)).await? else {
///     return Ok(()); // a Python process has it
/// };
/// assert!(lock.try_lock().await?.is_none()); // busy, for its holder too
/// guard.unlock().await?;
/// # Ok::<(), redlatch::Error>(()) });
/// ```
#[derive(Clone, Debug)]
pub struct PlainLock(Handle);

impl PlainLock {
    pub(crate) fn new(mut handle: Handle) -> Self {
        handle.polls(Backoff::exponential());
        Self(handle)
    }

    /// Gives back, renews, extends and verifies in this way; [`ReleaseBy::Auto`] by default.
    #[must_use = "this makes a new handle and leaves the old one as it is"]
    pub fn release_by(mut self, by: ReleaseBy) -> Self {
        self.0.of_kind(Kind::Plain(by));
        self
    }
}

verbs!(PlainLock, LockGuard);
