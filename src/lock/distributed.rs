//! What all locks have in common, as traits.

use std::future::Future;
use std::time::Duration;

use crate::error::Error;
use crate::loss::LossReason;

/// A lock of any kind: for functions that work with all of them, and for tests that replace the lock.
///
/// All locks of this crate implement it: [`ReentrantLock`](crate::ReentrantLock), [`FencedLock`](crate::FencedLock),
/// [`FairLock`](crate::FairLock), [`SpinLock`](crate::SpinLock), [`PlainLock`](crate::PlainLock), both sides of a
/// [`ReadWriteLock`](crate::ReadWriteLock), [`MultiLock`](crate::MultiLock) and [`RedLock`](crate::RedLock). The methods do what the
/// methods of these types with the same names do; their pages have the errors, the cancel safety and what differs
/// between the kinds. Settings belong to the types and are chosen before a lock is passed as a `DistributedLock`. A
/// lease and an owner can also be set by [`NamedLock`](crate::NamedLock), which has the queries too.
///
/// The trait cannot be made into an object; use a type parameter.
///
/// # Examples
///
/// One function for all kinds:
///
/// ```
/// # redlatch_testkit::doc(async |url| {
/// # let client = redlatch::Client::connect(url).await?;
/// use redlatch::{DistributedGuard, DistributedLock, Error};
///
/// /// Sends the report unless somebody else is about to. Returns whether it was sent.
/// async fn send_report(lock: &impl DistributedLock) -> Result<bool, Error> {
///     let Some(guard) = lock.try_lock().await? else {
///         return Ok(false);
///     };
///     // ...
///     guard.unlock().await?;
///     Ok(true)
/// }
///
/// assert!(send_report(&client.lock("report:daily")).await?);
/// assert!(send_report(&client.fair_lock("report:weekly")).await?);
/// # Ok::<(), redlatch::Error>(()) });
/// ```
///
/// A lock for a test of that function, which needs no server:
///
/// ```
/// use std::time::Duration;
/// use redlatch::{DistributedGuard, DistributedLock, Error, LossReason};
///
/// /// A lock that somebody else holds for good.
/// #[derive(Clone)]
/// struct Busy;
///
/// struct NoGuard;
///
/// impl DistributedLock for Busy {
///     type Guard = NoGuard;
///
///     async fn lock(&self) -> Result<NoGuard, Error> {
///         std::future::pending().await
///     }
///
///     async fn try_lock(&self) -> Result<Option<NoGuard>, Error> {
///         Ok(None)
///     }
///
///     async fn try_lock_for(&self, _: Duration) -> Result<Option<NoGuard>, Error> {
///         Ok(None)
///     }
/// }
///
/// impl DistributedGuard for NoGuard {
///     async fn unlock(self) -> Result<(), Error> {
///         Ok(())
///     }
///
///     async fn lost(&self) -> LossReason {
///         LossReason::Gone
///     }
///
///     fn is_lost(&self) -> bool {
///         true
///     }
///
///     fn remaining(&self) -> Duration {
///         Duration::ZERO
///     }
/// }
/// ```
pub trait DistributedLock: Clone + Send + Sync + 'static {
    /// The guard of this lock: dropping it releases the lock.
    type Guard: DistributedGuard;

    /// Acquires the lock, waiting until it is available.
    ///
    /// # Errors
    ///
    /// Those of the lock's own method.
    fn lock(&self) -> impl Future<Output = Result<Self::Guard, Error>> + Send;

    /// Attempts to acquire the lock without waiting. Returns `None` if the lock is busy.
    ///
    /// # Errors
    ///
    /// Those of the lock's own method.
    fn try_lock(&self) -> impl Future<Output = Result<Option<Self::Guard>, Error>> + Send;

    /// Acquires the lock, waiting for at most `wait`. Returns `None` if the lock stayed busy.
    ///
    /// # Errors
    ///
    /// Those of the lock's own method.
    fn try_lock_for(
        &self,
        wait: Duration,
    ) -> impl Future<Output = Result<Option<Self::Guard>, Error>> + Send;
}

/// The guard of a [`DistributedLock`]: the lock is held until it is unlocked, dropped or lost.
pub trait DistributedGuard: Send + Sync + 'static {
    /// Releases the lock, and waits until the server has answered.
    ///
    /// # Errors
    ///
    /// Those of the guard's own method; [`LeaseLost`](crate::ErrorKind::LeaseLost) if the lock was no longer held.
    fn unlock(self) -> impl Future<Output = Result<(), Error>> + Send;

    /// Waits until the lock is lost, which is when the lease can no longer be trusted, and returns why.
    fn lost(&self) -> impl Future<Output = LossReason> + Send;

    /// Returns `true` if the lock is lost. Asks no server.
    fn is_lost(&self) -> bool;

    /// Returns for how long the lease can still be trusted, as far as this process knows.
    fn remaining(&self) -> Duration;
}
