//! What all locks with a name of their own have in common, as a trait.

use std::future::Future;
use std::time::Duration;

use super::distributed::DistributedLock;
use super::holder::Holder;
use crate::error::Error;
use crate::owner::Owner;

/// A [`DistributedLock`] that is one name on one server: it has a lease, an owner and queries.
///
/// All kinds implement it except the sets of locks, [`MultiLock`](crate::MultiLock) and [`RedLock`](crate::RedLock):
/// [`ReentrantLock`](crate::ReentrantLock), [`FencedLock`](crate::FencedLock), [`FairLock`](crate::FairLock),
/// [`SpinLock`](crate::SpinLock), [`PlainLock`](crate::PlainLock) and both sides of a
/// [`ReadWriteLock`](crate::ReadWriteLock). The methods do what the methods of these types with the same names do;
/// their pages have the errors, the cancel safety and what differs between the kinds.
///
/// Use it for functions that set a lease or an owner, ask who holds a lock, or adopt a hold. A function that only
/// acquires and releases should take a [`DistributedLock`]: it then works with all locks.
///
/// # Examples
///
/// One function for all kinds with a name:
///
/// ```
/// # redlatch_testkit::doc(async |url| {
/// # let client = redlatch::Client::connect(url).await?;
/// use std::time::Duration;
/// use redlatch::{DistributedGuard, Error, NamedLock};
///
/// /// Runs a job unless it runs already. Returns who runs it in that case.
/// async fn report(lock: impl NamedLock) -> Result<Option<String>, Error> {
///     let lock = lock.lease(Duration::from_secs(60));
///     let Some(guard) = lock.try_lock().await? else {
///         let holder = lock.holder().await?;
///         return Ok(holder.map(|holder| holder.owner().to_owned()));
///     };
///     // ...
///     guard.unlock().await?;
///     Ok(None)
/// }
///
/// assert_eq!(report(client.lock("report:daily")).await?, None);
/// assert_eq!(report(client.fair_lock("report:weekly")).await?, None);
/// # Ok::<(), redlatch::Error>(()) });
/// ```
///
/// In a test of such a function, a lock that needs no server answers with a [`Holder`] made by [`Holder::new`]. The
/// page of [`DistributedLock`] has an example of such a lock.
pub trait NamedLock: DistributedLock {
    /// Returns the name of the lock, with the prefix of its client.
    fn name(&self) -> &str;

    /// Sets a fixed lease: the lock is held for `lease` and is not renewed.
    #[must_use = "this makes a new handle and leaves the old one as it is"]
    fn lease(self, lease: Duration) -> Self;

    /// Makes the calls on this handle act for `owner` instead of the current task.
    #[must_use = "this makes a new handle and leaves the old one as it is"]
    fn owned_by(self, owner: &Owner) -> Self;

    /// Releases one level that this owner holds, without using its guard.
    ///
    /// # Errors
    ///
    /// Those of the lock's own method; [`NotHeld`](crate::ErrorKind::NotHeld) if this owner holds nothing.
    fn unlock(&self) -> impl Future<Output = Result<(), Error>> + Send;

    /// Returns a guard for one level that this owner already holds, or `None` if the owner holds nothing.
    ///
    /// # Errors
    ///
    /// Those of the lock's own method.
    fn adopt(&self) -> impl Future<Output = Result<Option<Self::Guard>, Error>> + Send;

    /// Returns `true` if any owner holds the lock.
    ///
    /// # Errors
    ///
    /// Those of the lock's own method.
    fn is_locked(&self) -> impl Future<Output = Result<bool, Error>> + Send;

    /// Returns `true` if this owner holds the lock, according to the server's record.
    ///
    /// # Errors
    ///
    /// Those of the lock's own method.
    fn is_held(&self) -> impl Future<Output = Result<bool, Error>> + Send;

    /// Returns the number of levels that this owner holds, or 0 if it does not hold the lock.
    ///
    /// # Errors
    ///
    /// Those of the lock's own method.
    fn hold_count(&self) -> impl Future<Output = Result<u64, Error>> + Send;

    /// Returns how long the lock remains held if no holder renews it, or `None` if it is free or has no end.
    ///
    /// # Errors
    ///
    /// Those of the lock's own method.
    fn remaining_lease(&self) -> impl Future<Output = Result<Option<Duration>, Error>> + Send;

    /// Returns who holds the lock, how many times and for how long, or `None` if the lock is free.
    ///
    /// # Errors
    ///
    /// Those of the lock's own method.
    fn holder(&self) -> impl Future<Output = Result<Option<Holder>, Error>> + Send;

    /// Frees the lock **no matter who holds it**. Returns `false` if the lock was already free.
    ///
    /// # Errors
    ///
    /// Those of the lock's own method.
    fn force_unlock(&self) -> impl Future<Output = Result<bool, Error>> + Send;
}
