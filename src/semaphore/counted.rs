//! The semaphore whose permits have no lease.

use std::sync::Arc;

use super::methods::methods;
use super::pool::{PermitUndo, Pool};
use crate::counter::check;
use crate::error::Error;
use crate::session::ClientHandle;

/// A number of permits that all processes share; wire-compatible with Redisson's `RSemaphore`.
///
/// Created by [`Client::semaphore`](crate::Client::semaphore). One client [sets](Self::try_set_permits) the number of
/// permits; at most that many are out at any time.
///
/// # When to use it, and when to use another
///
/// Use it to limit how many callers do something at the same time, where permits that are lost in a crash can be
/// restored by hand ([`release`](Self::release)): the permits of a process that was killed stay taken. Where that is
/// not acceptable, use an [`ExpirableSemaphore`](crate::semaphore::ExpirableSemaphore), whose permits have a lease. For
/// one caller at a time, use a [`ReentrantLock`](crate::ReentrantLock), which is renewed and reports its loss.
///
/// # Guarantee and limit
///
/// The semaphore never hands out more permits than it has, and each permit is released once, even if this client had to
/// send a request several times. A call that is dropped, cut off or answered late leaves no permit taken, provided that
/// the server comes back within an hour. Within one process, permits are granted in order of arrival, and a call that
/// waits for many permits is not starved by calls that want one. Between processes there is no order. A waiter is woken
/// by a message, or asks again within one [`poll_cap`](crate::ClientBuilder::poll_cap).
///
/// A failover to a lagging replica may lose changes that the old primary had confirmed. A permit whose acquisition is
/// lost may be granted twice. A permit whose release is lost stays taken although nobody holds it: each such permit
/// makes the semaphore smaller for good. The only sign of this is [`available_permits`](Self::available_permits) at an
/// instant when no permit is out; [`add_permits`](Self::add_permits) restores what is missing. The permits of an
/// [`ExpirableSemaphore`](crate::semaphore::ExpirableSemaphore) come back by themselves, at the end of their lease.
///
/// Each [`SemaphorePermit`] has a small key next to the semaphore, `redlatch_permit:{name}:..`. The key is removed when
/// the permits are released or [forgotten](SemaphorePermit::forget), and expires after a day; if they were held for
/// more than 23 hours, a day after their release. Permits that were held for more than 23 hours are given back whether
/// or not the server has that key. If the server has lost its data since, and the number was set again, the semaphore
/// then has more permits than were set. If the connection broke before a call was answered, a key by which the server
/// recognizes a repeated call may remain for two minutes. Java ignores both keys.
///
/// # Examples
///
/// ```
/// # redlatch_testkit::doc(async |url| {
/// use redlatch::Client;
///
/// let client = Client::connect(url).await?;
/// let uploads = client.semaphore("uploads");
/// uploads.try_set_permits(3).await?;
/// let permit = uploads.acquire().await?;
/// assert_eq!(uploads.available_permits().await?, 2);
/// permit.release().await?;
/// # Ok::<(), redlatch::Error>(()) });
/// ```
#[derive(Clone)]
pub struct Semaphore(pub(crate) Pool);

methods!(Semaphore, SemaphorePermit, "semaphore");

impl Semaphore {
    /// Adds `permits` free permits. Use it to release permits that no longer have a [`SemaphorePermit`]: forgotten
    /// ones, or those of a process that has crashed. If the number of permits was never set, this sets it.
    ///
    /// # Errors
    ///
    /// Same as [`add_permits`](Self::add_permits), and [`InvalidInput`](crate::ErrorKind::InvalidInput) for zero
    /// permits.
    ///
    /// # Cancel safety
    ///
    /// Same as [`add_permits`](Self::add_permits).
    ///
    /// # Examples
    ///
    /// ```
    /// # redlatch_testkit::doc(async |url| {
    /// # let client = redlatch::Client::connect(url).await?;
    /// let uploads = client.semaphore("uploads");
    /// uploads.try_set_permits(3).await?;
    /// uploads.acquire_many(2).await?.forget(); // as if this process had been killed
    /// assert_eq!(uploads.available_permits().await?, 1);
    /// uploads.release(2).await?; // by hand
    /// assert_eq!(uploads.available_permits().await?, 3);
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
    pub async fn release(&self, permits: u32) -> Result<(), Error> {
        let permits = check("the number of permits", permits, 1)?;
        self.0.add_permits(permits.into()).await
    }
}

/// Permits of a [`Semaphore`], held until they are released.
///
/// [`release`](Self::release) reports whether the permits were released. Dropping this value also releases them, from
/// any thread, with or without a runtime, as dropping a [`LockGuard`](crate::LockGuard) releases its lock. Note that
/// `let _ = semaphore.acquire().await?` releases the permit at once.
///
/// The permits have no lease. If the runtime of the client ends before they are released, they may stay taken: close
/// the client before that, or use [`Client::with`](crate::Client::with).
#[must_use = "the permits are given back as soon as this is dropped"]
#[clippy::has_significant_drop]
pub struct SemaphorePermit {
    undo: PermitUndo,
    client: Arc<ClientHandle>,
}

impl SemaphorePermit {
    /// Releases the permits, and wakes the waiters.
    ///
    /// # Errors
    ///
    /// [`LeaseLost`](crate::ErrorKind::LeaseLost) if the server no longer knows the permits, for example after a flush;
    /// the call then changes nothing. This is noticed of permits that were held for at most 23 hours. If the connection
    /// broke and the request was sent again, the call returns `Ok` even so: the first request may have released the
    /// permits. [`Timeout`](crate::ErrorKind::Timeout) or
    /// [`Backend`](crate::ErrorKind::Backend) if the server did not answer or refused; the release is retried in the
    /// background. [`Closed`](crate::ErrorKind::Closed) if the client was closed, which released the permits.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the permits are released in the background.
    ///
    /// # Examples
    ///
    /// ```
    /// # redlatch_testkit::doc(async |url| {
    /// # let client = redlatch::Client::connect(url).await?;
    /// # async fn crawl() {}
    /// use redlatch::ErrorKind;
    ///
    /// # let crawlers = client.semaphore("crawlers");
    /// # crawlers.try_set_permits(2).await?;
    /// let permit = crawlers.acquire().await?;
    /// crawl().await;
    /// match permit.release().await {
    ///     Err(error) if error.kind() == ErrorKind::LeaseLost => eprintln!("the server lost a permit"),
    ///     released => released?,
    /// }
    /// # assert_eq!(crawlers.available_permits().await?, 2);
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
    pub async fn release(self) -> Result<(), Error> {
        let Self { undo, client } = self;
        client.return_permits(undo).await
    }

    /// Consumes this value and leaves the permits taken. Any process can release them later with
    /// [`Semaphore::release`].
    ///
    /// # Examples
    ///
    /// ```
    /// # redlatch_testkit::doc(async |url| {
    /// # let client = redlatch::Client::connect(url).await?;
    /// # let jobs = client.semaphore("jobs");
    /// # jobs.try_set_permits(5).await?;
    /// jobs.acquire().await?.forget(); // this process starts a job, and another one finishes it
    ///
    /// let elsewhere = redlatch::Client::connect(url).await?;
    /// elsewhere.semaphore("jobs").release(1).await?;
    /// assert_eq!(jobs.available_permits().await?, 5);
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
    pub fn forget(self) {
        self.undo.leave();
    }
}
