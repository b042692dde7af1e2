//! A lock whose waiters ask again after pauses.

use super::handle::Handle;
use super::methods::methods;
use crate::backoff::Backoff;
use crate::hold::guard::LockGuard;

/// A lock whose waiters ask again after pauses instead of listening for messages; wire-compatible with Redisson's
/// `RSpinLock`.
///
/// Created by [`Client::spin_lock`](crate::Client::spin_lock). It is a [`ReentrantLock`](crate::ReentrantLock) without
/// messages: it subscribes to nothing, and publishes nothing while no other process has a place in the [turn
/// order](crate::ReentrantLock#who-is-next). It excludes a reentrant, fair or fenced lock of the same name, and they
/// exclude it. But the waiters of a fair lock, and Redisson's, are not told when a spin lock is released; they find out
/// at the end of its lease or after their [`poll_cap`](crate::ClientBuilder::poll_cap).
///
/// # When to use it, and when to use another
///
/// Use it behind a proxy that does not pass messages on, and in very large clusters, where each message goes to every
/// node. Otherwise use a [`ReentrantLock`](crate::ReentrantLock): its waiters are woken within a round trip or two and
/// send no requests until then. For its first second, a waiter of a spin lock is overtaken by waiters of other
/// processes. After that, it has a place in the turn order, unless its [`backoff`](Self::backoff) has pauses of more
/// than a second.
///
/// # Guarantee and limit
///
/// Same as [`ReentrantLock`](crate::ReentrantLock). Within one process, waiters are served in the order in which they
/// came, and only the first of them asks the server.
///
/// # Examples
///
/// ```
/// # redlatch_testkit::doc(async |url| {
/// use std::time::Duration;
/// use redlatch::config::Backoff;
/// use redlatch::Client;
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
#[derive(Clone)]
pub struct SpinLock(Handle);

impl SpinLock {
    pub(crate) fn new(handle: Handle) -> Self {
        Self(handle).backoff(Backoff::exponential())
    }

    /// Sets the pauses between two attempts; [`Backoff::exponential`] by default.
    ///
    /// A pause ends early when the holder's lease ends or when the lock is released in this process, and is never
    /// longer than the rest of the caller's limit.
    ///
    /// # Examples
    ///
    /// ```
    /// # redlatch_testkit::doc(async |url| {
    /// # let client = redlatch::Client::connect(url).await?;
    /// use std::time::Duration;
    /// use redlatch::config::Backoff;
    ///
    /// // A waiter may be a second late, and sends two requests per second at most.
    /// let pauses = Backoff::fixed(Duration::from_millis(500)).jitter(Duration::from_millis(500));
    /// let lock = client.spin_lock("nightly-report").backoff(pauses);
    /// let guard = lock.lock().await?;
    /// guard.unlock().await?;
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
    #[must_use = "this makes a new handle and leaves the old one as it is"]
    pub fn backoff(mut self, backoff: Backoff) -> Self {
        self.0.pauses(backoff);
        self
    }

    /// Makes [`try_lock_for`](Self::try_lock_for) return `None` before its time limit, once it has found the lock busy
    /// `attempts` times.
    ///
    /// [`lock`](Self::lock) cannot return `None`, so with this setting it returns
    /// [`InvalidInput`](crate::ErrorKind::InvalidInput). With 0, so does every call that acquires, unlocks or adopts.
    ///
    /// # Examples
    ///
    /// ```
    /// # redlatch_testkit::doc(async |url| {
    /// # let client = redlatch::Client::connect(url).await?;
    /// # let other = redlatch::Client::connect(url).await?;
    /// use std::time::Duration;
    ///
    /// let guard = other.spin_lock("orders:42").lock().await?; // in another process
    ///
    /// let lock = client.spin_lock("orders:42").max_attempts(3);
    /// let busy = lock.try_lock_for(Duration::from_secs(60)).await?;
    /// assert!(busy.is_none()); // after three attempts, which take a few milliseconds
    /// guard.unlock().await?;
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
    #[must_use = "this makes a new handle and leaves the old one as it is"]
    pub fn max_attempts(mut self, attempts: u32) -> Self {
        self.0.attempts = Some(attempts);
        self
    }
}

methods!(SpinLock, LockGuard, "spin_lock");
