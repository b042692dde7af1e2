//! A lock whose waiters ask again and again.

use super::handle::Handle;
use super::verbs::verbs;
use crate::backoff::Backoff;
use crate::hold::guard::LockGuard;

/// A lock whose waiters ask again after pauses instead of listening: on the wire Redisson's `RSpinLock`.
///
/// Made by [`Client::spin_lock`](crate::Client::spin_lock). It is a [`ReentrantLock`](crate::ReentrantLock) without
/// messages: nothing is subscribed to and nothing published. A reentrant, fair or fenced lock of the same name
/// excludes it, and it them; but their waiters are not told of its release, and find out by the end of its lease or
/// their [`poll_cap`](crate::ClientBuilder::poll_cap).
///
/// # When to use it, and when another
///
/// Behind a proxy that passes no messages on, and in very large clusters, where each message goes to every node.
/// Else the [`ReentrantLock`](crate::ReentrantLock): it is woken within a round trip or two and asks nothing
/// meanwhile. Between processes there is no order here at all; one that is unlucky waits for several pauses.
///
/// # Guarantee and limit
///
/// As [`ReentrantLock`](crate::ReentrantLock). Within one process waiters are served in the order in which they
/// came, and only the first of them asks.
///
/// # Examples
///
/// ```
/// # redlatch_testkit::doc(async |url| {
/// use std::time::Duration;
/// use redlatch::{Backoff, Client};
///
/// let client = Client::connect(url).await?;
/// let lock = client
///     .spin_lock("report")
///     .backoff(Backoff::fixed(Duration::from_secs(3)).jitter(Duration::from_secs(1)))
///     .max_attempts(5);
/// if let Some(guard) = lock.try_lock_for(Duration::from_secs(60)).await? {
///     guard.unlock().await?;
/// }
/// # Ok::<(), redlatch::Error>(()) });
/// ```
#[derive(Clone, Debug)]
pub struct SpinLock(Handle);

impl SpinLock {
    pub(crate) fn new(handle: Handle) -> Self {
        Self(handle).backoff(Backoff::exponential())
    }

    /// Pauses like this between two tries; [`Backoff::exponential`] by default. A pause ends early when the
    /// holder's lease does, and when the lock is given back in this process, and never outlasts the caller's limit.
    #[must_use = "this makes a new handle and leaves the old one as it is"]
    pub fn backoff(mut self, backoff: Backoff) -> Self {
        self.0.pauses(backoff);
        self
    }

    /// Gives up when the lock was found busy so often: [`try_lock_for`](Self::try_lock_for) then answers None, before
    /// its limit. [`lock`](Self::lock), which cannot answer so, is [`InvalidInput`](crate::ErrorKind::InvalidInput)
    /// with it; so is every verb with 0.
    #[must_use = "this makes a new handle and leaves the old one as it is"]
    pub fn max_attempts(mut self, attempts: u32) -> Self {
        self.0.attempts = Some(attempts);
        self
    }
}

verbs!(SpinLock, LockGuard);
