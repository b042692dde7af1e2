//! A lock whose type is chosen while the program runs, and its guard.

use std::fmt;
use std::pin::pin;
use std::time::Duration;

use futures_util::future::BoxFuture;

use super::distributed::{DistributedGuard, DistributedLock, run, try_run, until_lost};
use crate::error::Error;
use crate::hold::lease::shown_remaining;
use crate::loss::LossReason;
use crate::owner::Owner;

/// What an object calls. Its methods have names of their own, and nobody else can call them, so that a lock which is of
/// both traits has each method once.
#[allow(
    unnameable_types,
    reason = "sealed: a lock is a `DistributedLock`, from which the rest follows"
)]
pub trait ErasedLock: Send + Sync + 'static {
    fn boxed_lock(&self) -> BoxFuture<'_, Result<DynGuard, Error>>;
    fn boxed_try_lock(&self) -> BoxFuture<'_, Result<Option<DynGuard>, Error>>;
    fn boxed_try_lock_for(&self, wait: Duration) -> BoxFuture<'_, Result<Option<DynGuard>, Error>>;
}

impl<L: DistributedLock> ErasedLock for L {
    fn boxed_lock(&self) -> BoxFuture<'_, Result<DynGuard, Error>> {
        Box::pin(async { self.lock().await.map(DynGuard::new) })
    }

    fn boxed_try_lock(&self) -> BoxFuture<'_, Result<Option<DynGuard>, Error>> {
        Box::pin(async { Ok(self.try_lock().await?.map(DynGuard::new)) })
    }

    fn boxed_try_lock_for(&self, wait: Duration) -> BoxFuture<'_, Result<Option<DynGuard>, Error>> {
        Box::pin(async move { Ok(self.try_lock_for(wait).await?.map(DynGuard::new)) })
    }
}

trait ErasedGuard: Send + Sync {
    fn boxed_unlock(self: Box<Self>) -> BoxFuture<'static, Result<(), Error>>;
    fn boxed_lost(&self) -> BoxFuture<'_, LossReason>;
    fn is_gone(&self) -> bool;
    fn left(&self) -> Duration;
    fn holder(&self) -> Option<&Owner>;
    fn error(&self, reason: LossReason) -> Error;
}

impl<G: DistributedGuard> ErasedGuard for G {
    fn boxed_unlock(self: Box<Self>) -> BoxFuture<'static, Result<(), Error>> {
        Box::pin(self.unlock())
    }

    fn boxed_lost(&self) -> BoxFuture<'_, LossReason> {
        Box::pin(self.lost())
    }

    fn is_gone(&self) -> bool {
        self.is_lost()
    }

    fn left(&self) -> Duration {
        self.remaining()
    }

    fn holder(&self) -> Option<&Owner> {
        self.held_by()
    }

    fn error(&self, reason: LossReason) -> Error {
        self.lost_error(reason)
    }
}

/// A dyn compatible [`DistributedLock`], for an application that stores its lock as an `Arc<dyn DynLock>`, and replaces
/// it in its tests.
///
/// Every `DistributedLock` implements it, those of this crate and those that you write for a test. The methods are
/// those of `dyn DynLock`, and do what the lock's own methods do.
///
/// If the type of the lock is known where it is used, or is a type parameter there, use the [`DistributedLock`] itself.
///
/// # Examples
///
/// ```
/// # redlatch_testkit::doc(async |url| {
/// # let client = redlatch::Client::connect(url).await?;
/// use std::sync::Arc;
/// use redlatch::{DynLock, Error};
///
/// struct Reports {
///     lock: Arc<dyn DynLock>,
/// }
///
/// impl Reports {
///     /// Sends the report unless another process is about to. Returns whether it was sent.
///     async fn send(&self) -> Result<bool, Error> {
///         let sent = self.lock.try_run(async { Ok::<_, Error>(true) }).await?;
///         Ok(sent.unwrap_or(false))
///     }
/// }
///
/// let reports = Reports { lock: Arc::new(client.lock("report:daily")) };
/// assert!(reports.send().await?);
/// # Ok::<(), redlatch::Error>(()) });
/// ```
///
/// The example `mocked` replaces the lock by one that is busy, by a broken one and by one that is lost, without a
/// server. The page of [`DistributedLock`] has such a lock too.
pub trait DynLock: ErasedLock {}

impl<L: DistributedLock> DynLock for L {}

impl dyn DynLock {
    /// Acquires the lock, waiting until it is available; see [`DistributedLock::lock`].
    ///
    /// # Errors
    ///
    /// Those of the lock's own method.
    ///
    /// # Cancel safety
    ///
    /// That of the lock's own method.
    ///
    /// # Examples
    ///
    /// ```
    /// # redlatch_testkit::doc(async |url| {
    /// # let client = redlatch::Client::connect(url).await?;
    /// use std::sync::Arc;
    /// use redlatch::DynLock;
    ///
    /// let lock: Arc<dyn DynLock> = Arc::new(client.lock("report:daily"));
    /// let guard = lock.lock().await?;
    /// guard.unlock().await?;
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
    pub async fn lock(&self) -> Result<DynGuard, Error> {
        self.boxed_lock().await
    }

    /// Attempts to acquire the lock without waiting. Returns `None` if the lock is busy; see
    /// [`DistributedLock::try_lock`].
    ///
    /// # Errors
    ///
    /// Those of the lock's own method.
    ///
    /// # Cancel safety
    ///
    /// That of the lock's own method.
    ///
    /// # Examples
    ///
    /// ```
    /// # redlatch_testkit::doc(async |url| {
    /// # let client = redlatch::Client::connect(url).await?;
    /// use std::sync::Arc;
    /// use redlatch::DynLock;
    ///
    /// let lock: Arc<dyn DynLock> = Arc::new(client.lock("report:daily"));
    /// if let Some(guard) = lock.try_lock().await? {
    ///     guard.unlock().await?;
    /// }
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
    pub async fn try_lock(&self) -> Result<Option<DynGuard>, Error> {
        self.boxed_try_lock().await
    }

    /// Acquires the lock, waiting for at most `wait`. Returns `None` if the lock stayed busy; see
    /// [`DistributedLock::try_lock_for`].
    ///
    /// # Errors
    ///
    /// Those of the lock's own method.
    ///
    /// # Cancel safety
    ///
    /// That of the lock's own method.
    ///
    /// # Examples
    ///
    /// ```
    /// # redlatch_testkit::doc(async |url| {
    /// # let client = redlatch::Client::connect(url).await?;
    /// use std::sync::Arc;
    /// use std::time::Duration;
    /// use redlatch::DynLock;
    ///
    /// let lock: Arc<dyn DynLock> = Arc::new(client.lock("report:daily"));
    /// if let Some(guard) = lock.try_lock_for(Duration::from_secs(2)).await? {
    ///     guard.unlock().await?;
    /// }
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
    pub async fn try_lock_for(&self, wait: Duration) -> Result<Option<DynGuard>, Error> {
        self.boxed_try_lock_for(wait).await
    }

    /// Runs a future under the lock, for an owner of its own, waiting until the lock is available; see
    /// [`ReentrantLock::run`](crate::ReentrantLock::run).
    ///
    /// # Errors
    ///
    /// Those of [`lock`](DistributedLock::lock) and of the guard.
    ///
    /// # Cancel safety
    ///
    /// Same as [`ReentrantLock::run`](crate::ReentrantLock::run).
    ///
    /// # Examples
    ///
    /// ```
    /// # redlatch_testkit::doc(async |url| {
    /// # let client = redlatch::Client::connect(url).await?;
    /// use std::sync::Arc;
    /// use redlatch::DynLock;
    ///
    /// let lock: Arc<dyn DynLock> = Arc::new(client.lock("report:daily"));
    /// let pages = lock.run(async { 12 }).await?;
    /// assert_eq!(pages, 12);
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
    pub async fn run<F: Future>(&self, future: F) -> Result<F::Output, Error> {
        run(self.boxed_lock(), pin!(Some(future))).await
    }

    /// Runs a future under the lock, waiting for at most `wait`. A lock that stayed busy is an error; see
    /// [`ReentrantLock::run_for`](crate::ReentrantLock::run_for).
    ///
    /// # Errors
    ///
    /// That of the future, or those of [`try_lock_for`](DistributedLock::try_lock_for) and of the guard, or
    /// [`Busy`](crate::ErrorKind::Busy).
    ///
    /// # Cancel safety
    ///
    /// Same as [`ReentrantLock::run`](crate::ReentrantLock::run).
    ///
    /// # Examples
    ///
    /// ```
    /// # redlatch_testkit::doc(async |url| {
    /// # let client = redlatch::Client::connect(url).await?;
    /// use std::sync::Arc;
    /// use std::time::Duration;
    /// use redlatch::{DynLock, Error};
    ///
    /// let lock: Arc<dyn DynLock> = Arc::new(client.lock("report:daily"));
    /// let pages = lock.run_for(Duration::from_secs(2), async { Ok::<_, Error>(12) }).await?;
    /// assert_eq!(pages, 12);
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
    pub async fn run_for<T, E: From<Error>>(
        &self,
        wait: Duration,
        future: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E> {
        let ran = try_run(self.boxed_try_lock_for(wait), pin!(Some(future))).await?;
        ran.ok_or_else(|| Error::busy(wait).into())
    }

    /// Runs a future under the lock, unless the lock is busy: then it returns `None` without waiting; see
    /// [`ReentrantLock::try_run`](crate::ReentrantLock::try_run).
    ///
    /// # Errors
    ///
    /// That of the future, or those of [`try_lock`](DistributedLock::try_lock) and of the guard.
    ///
    /// # Cancel safety
    ///
    /// Same as [`ReentrantLock::run`](crate::ReentrantLock::run).
    ///
    /// # Examples
    ///
    /// ```
    /// # redlatch_testkit::doc(async |url| {
    /// # let client = redlatch::Client::connect(url).await?;
    /// use std::sync::Arc;
    /// use redlatch::{DynLock, Error};
    ///
    /// let lock: Arc<dyn DynLock> = Arc::new(client.lock("report:daily"));
    /// let pages = lock.try_run(async { Ok::<_, Error>(12) }).await?;
    /// assert_eq!(pages, Some(12));
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
    pub async fn try_run<T, E: From<Error>>(
        &self,
        future: impl Future<Output = Result<T, E>>,
    ) -> Result<Option<T>, E> {
        try_run(self.boxed_try_lock(), pin!(Some(future))).await
    }

    /// Runs a future under the lock, waiting for at most `wait`. Returns `None` if the lock stayed busy; see
    /// [`ReentrantLock::try_run_for`](crate::ReentrantLock::try_run_for).
    ///
    /// # Errors
    ///
    /// That of the future, or those of [`try_lock_for`](DistributedLock::try_lock_for) and of the guard.
    ///
    /// # Cancel safety
    ///
    /// Same as [`ReentrantLock::run`](crate::ReentrantLock::run).
    ///
    /// # Examples
    ///
    /// ```
    /// # redlatch_testkit::doc(async |url| {
    /// # let client = redlatch::Client::connect(url).await?;
    /// use std::sync::Arc;
    /// use std::time::Duration;
    /// use redlatch::{DynLock, Error};
    ///
    /// let lock: Arc<dyn DynLock> = Arc::new(client.lock("report:daily"));
    /// let pages = lock.try_run_for(Duration::from_secs(2), async { Ok::<_, Error>(12) }).await?;
    /// assert_eq!(pages, Some(12));
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
    pub async fn try_run_for<T, E: From<Error>>(
        &self,
        wait: Duration,
        future: impl Future<Output = Result<T, E>>,
    ) -> Result<Option<T>, E> {
        try_run(self.boxed_try_lock_for(wait), pin!(Some(future))).await
    }
}

impl fmt::Debug for dyn DynLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DynLock").finish_non_exhaustive()
    }
}

/// The guard of a [`DynLock`]: a [`DistributedGuard`] of any type. Dropping it releases the lock.
#[must_use = "the lock is released as soon as the guard is dropped"]
#[clippy::has_significant_drop]
pub struct DynGuard(Box<dyn ErasedGuard>);

impl fmt::Debug for DynGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("DynGuard");
        if let Some(owner) = self.held_by() {
            shown.field("owner", &format_args!("{owner}"));
        }
        shown
            .field("remaining", &shown_remaining(self.remaining()))
            .finish()
    }
}

impl DistributedGuard for DynGuard {
    fn unlock(self) -> impl Future<Output = Result<(), Error>> + Send {
        self.0.boxed_unlock()
    }

    fn lost(&self) -> impl Future<Output = LossReason> + Send {
        self.0.boxed_lost()
    }

    fn is_lost(&self) -> bool {
        self.0.is_gone()
    }

    fn remaining(&self) -> Duration {
        self.0.left()
    }

    fn held_by(&self) -> Option<&Owner> {
        self.0.holder()
    }

    fn lost_error(&self, reason: LossReason) -> Error {
        self.0.error(reason)
    }
}

impl DynGuard {
    fn new(guard: impl DistributedGuard) -> Self {
        Self(Box::new(guard))
    }

    /// Releases the lock, and waits until the server has answered; see [`DistributedGuard::unlock`].
    ///
    /// # Errors
    ///
    /// Those of the guard's own method; [`LeaseLost`](crate::ErrorKind::LeaseLost) if the lock was no longer held.
    ///
    /// # Cancel safety
    ///
    /// That of the guard's own method.
    ///
    /// # Examples
    ///
    /// ```
    /// # redlatch_testkit::doc(async |url| {
    /// # let client = redlatch::Client::connect(url).await?;
    /// use std::sync::Arc;
    /// use redlatch::DynLock;
    ///
    /// let lock: Arc<dyn DynLock> = Arc::new(client.lock("report:daily"));
    /// lock.lock().await?.unlock().await?;
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
    pub async fn unlock(self) -> Result<(), Error> {
        self.0.boxed_unlock().await
    }

    /// Waits until the lock is lost, and returns why; see [`DistributedGuard::lost`].
    ///
    /// # Cancel safety
    ///
    /// This method is cancel safe: dropping the future loses nothing.
    ///
    /// # Examples
    ///
    /// ```
    /// # redlatch_testkit::doc(async |url| {
    /// # let client = redlatch::Client::connect(url).await?;
    /// use std::sync::Arc;
    /// use redlatch::DynLock;
    ///
    /// let lock: Arc<dyn DynLock> = Arc::new(client.lock("report:daily"));
    /// let guard = lock.lock().await?;
    /// client.lock("report:daily").force_unlock().await?; // an operator was impatient
    /// println!("stopped: {}", guard.lost().await);
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
    pub async fn lost(&self) -> LossReason {
        self.0.boxed_lost().await
    }

    /// Returns `true` if the lock is lost. Asks no server.
    ///
    /// # Examples
    ///
    /// ```
    /// # redlatch_testkit::doc(async |url| {
    /// # let client = redlatch::Client::connect(url).await?;
    /// use std::sync::Arc;
    /// use redlatch::DynLock;
    ///
    /// let lock: Arc<dyn DynLock> = Arc::new(client.lock("report:daily"));
    /// let guard = lock.lock().await?;
    /// assert!(!guard.is_lost());
    /// # guard.unlock().await?;
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.0.is_gone()
    }

    /// Returns for how long the lease can still be trusted, as far as this process knows.
    ///
    /// # Examples
    ///
    /// ```
    /// # redlatch_testkit::doc(async |url| {
    /// # let client = redlatch::Client::connect(url).await?;
    /// use std::sync::Arc;
    /// use redlatch::DynLock;
    ///
    /// let lock: Arc<dyn DynLock> = Arc::new(client.lock("report:daily"));
    /// let guard = lock.lock().await?;
    /// println!("held for {:?}", guard.remaining());
    /// # guard.unlock().await?;
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.0.left()
    }

    /// Runs a future as long as the lease can be trusted; see [`Lease::run_until_lost`](crate::Lease::run_until_lost).
    ///
    /// # Errors
    ///
    /// [`LeaseLost`](crate::ErrorKind::LeaseLost) if the lease was lost before the future completed. The future is then
    /// dropped, and its work may be half done.
    ///
    /// # Cancel safety
    ///
    /// Dropping this future drops the inner one. The lock stays held.
    ///
    /// # Examples
    ///
    /// ```
    /// # redlatch_testkit::doc(async |url| {
    /// # let client = redlatch::Client::connect(url).await?;
    /// use std::sync::Arc;
    /// use redlatch::DynLock;
    ///
    /// let lock: Arc<dyn DynLock> = Arc::new(client.lock("report:daily"));
    /// let guard = lock.lock().await?;
    /// let pages = guard.run_until_lost(async { 12 }).await?;
    /// assert_eq!(pages, 12);
    /// guard.unlock().await?;
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
    pub async fn run_until_lost<F: Future>(&self, future: F) -> Result<F::Output, Error> {
        until_lost(self, future).await
    }
}
