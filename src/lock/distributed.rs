//! What all locks have in common, as traits, and how a future runs under any of them.
//!
//! The kinds are types of their own with these traits, not one generic type: their settings and guards differ, and
//! a test can replace a trait. [`DistributedLock`] has what holds for sets and RedLocks too.

use std::future::Future;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::Duration;

use crate::error::Error;
use crate::hold::lease::run_until_lost;
use crate::loss::LossReason;
use crate::owner::Owner;
use crate::scope::within;

/// A lock of any kind: for functions that work with all of them, and for tests that replace the lock.
///
/// All locks of this crate implement it: [`ReentrantLock`](crate::ReentrantLock), [`FencedLock`](crate::FencedLock),
/// [`FairLock`](crate::FairLock), [`SpinLock`](crate::SpinLock), [`PlainLock`](crate::PlainLock), both sides of a
/// [`ReadWriteLock`](crate::ReadWriteLock), [`MultiLock`](crate::MultiLock) and [`RedLock`](crate::RedLock). The
/// methods do what the methods of these types with the same names do; their pages have the errors, the cancel safety
/// and what differs between the kinds. Settings belong to the types and are chosen before a lock is passed as a
/// `DistributedLock`. A lease and an owner can also be set by [`NamedLock`](crate::NamedLock), which has the queries
/// too.
///
/// The trait is not dyn compatible. Use a type parameter, or the trait [`DynLock`](crate::DynLock), which every
/// `DistributedLock` implements.
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

    /// Runs a future under the lock, for an owner of its own, waiting until the lock is available; see
    /// [`ReentrantLock::run`](crate::ReentrantLock::run).
    ///
    /// # Errors
    ///
    /// Those of [`lock`](Self::lock) and of the guard.
    fn run<F>(&self, future: F) -> impl Future<Output = Result<F::Output, Error>> + Send
    where
        F: Future<Output: Send> + Send,
    {
        async move { run(pin!(self.lock()), pin!(Some(future))).await }
    }

    /// Runs a future under the lock, waiting for at most `wait`. A lock that stayed busy is an error; see
    /// [`ReentrantLock::run_for`](crate::ReentrantLock::run_for).
    ///
    /// # Errors
    ///
    /// That of the future, or those of [`try_lock_for`](Self::try_lock_for) and of the guard, or
    /// [`Busy`](crate::ErrorKind::Busy).
    fn run_for<T, E>(
        &self,
        wait: Duration,
        future: impl Future<Output = Result<T, E>> + Send,
    ) -> impl Future<Output = Result<T, E>> + Send
    where
        T: Send,
        E: From<Error> + Send,
    {
        async move {
            let ran = self.try_run_for(wait, future).await?;
            ran.ok_or_else(|| Error::busy(wait).into())
        }
    }

    /// Runs a future under the lock, unless the lock is busy: then it returns `None` without waiting; see
    /// [`ReentrantLock::try_run`](crate::ReentrantLock::try_run).
    ///
    /// # Errors
    ///
    /// That of the future, or those of [`try_lock`](Self::try_lock) and of the guard.
    fn try_run<T, E>(
        &self,
        future: impl Future<Output = Result<T, E>> + Send,
    ) -> impl Future<Output = Result<Option<T>, E>> + Send
    where
        T: Send,
        E: From<Error> + Send,
    {
        async move { try_run(pin!(self.try_lock()), pin!(Some(future))).await }
    }

    /// Runs a future under the lock, waiting for at most `wait`. Returns `None` if the lock stayed busy; see
    /// [`ReentrantLock::try_run_for`](crate::ReentrantLock::try_run_for).
    ///
    /// # Errors
    ///
    /// That of the future, or those of [`try_lock_for`](Self::try_lock_for) and of the guard.
    fn try_run_for<T, E>(
        &self,
        wait: Duration,
        future: impl Future<Output = Result<T, E>> + Send,
    ) -> impl Future<Output = Result<Option<T>, E>> + Send
    where
        T: Send,
        E: From<Error> + Send,
    {
        async move { try_run(pin!(self.try_lock_for(wait)), pin!(Some(future))).await }
    }
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

    /// Returns the owner that holds the lock. Returns `None` by default, which is enough for a guard that replaces a
    /// real one.
    fn held_by(&self) -> Option<&Owner> {
        None
    }

    /// Returns the error of work that was stopped because the lock was lost for this reason. The guards of this crate
    /// name the lock in it.
    fn lost_error(&self, reason: LossReason) -> Error {
        Error::lost(reason)
    }
}

/// Acquires a lock with this call, for a fresh owner, and runs a future under it until it ends or the lock is lost.
///
/// What is awaited here is pinned by the caller, since a future that is passed on by value takes up its space twice.
/// The `future` is dropped before the lock is released.
pub(crate) async fn run<G: DistributedGuard, F: Future>(
    lock: impl Future<Output = Result<G, Error>>,
    future: Pin<&mut Option<F>>,
) -> Result<F::Output, Error> {
    let own = Owner::unique();
    let section = pin!(async {
        let guard = lock.await?;
        let output = in_section(&guard, &own, Body(future)).await?;
        guard.unlock().await?;
        Ok(output)
    });
    within(own.clone(), section).await
}

/// Like [`run`], with a call that returns `None` if the lock is busy, and for a future whose error takes precedence
/// over that of the release.
pub(crate) async fn try_run<G: DistributedGuard, T, E: From<Error>>(
    try_lock: impl Future<Output = Result<Option<G>, Error>>,
    future: Pin<&mut Option<impl Future<Output = Result<T, E>>>>,
) -> Result<Option<T>, E> {
    let own = Owner::unique();
    let section = pin!(async {
        let Some(guard) = try_lock.await? else {
            return Ok(None);
        };
        let outcome = in_section(&guard, &own, Body(future)).await?;
        let released = guard.unlock().await;
        let value = outcome?;
        released?;
        Ok(Some(value))
    });
    within(own.clone(), section).await
}

/// A future that its caller has pinned, and that ends where this is dropped.
struct Body<'a, F>(Pin<&'a mut Option<F>>);

impl<F: Future> Future for Body<'_, F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let body = self.0.as_mut().as_pin_mut();
        body.map_or(Poll::Pending, |body| body.poll(context))
    }
}

impl<F> Drop for Body<'_, F> {
    fn drop(&mut self) {
        self.0.set(None);
    }
}

/// Runs a future for the owner of this guard. This is not always a fresh owner: a handle may have one, and a lock that
/// is held around the section was re-entered for the owner that holds it.
async fn in_section<G: DistributedGuard, F: Future>(
    guard: &G,
    own: &Owner,
    future: F,
) -> Result<F::Output, Error> {
    match guard.held_by() {
        Some(owner) if owner != own => until_lost(guard, within(owner.clone(), future)).await,
        _ => until_lost(guard, future).await,
    }
}

pub(crate) async fn until_lost<G: DistributedGuard, F: Future>(
    guard: &G,
    future: F,
) -> Result<F::Output, Error> {
    // If the clock shows the loss before the signal does, expiry is the only known reason.
    let loss = || guard.is_lost().then_some(LossReason::Expired);
    let (future, lost) = (pin!(future), pin!(guard.lost()));
    run_until_lost(future, lost, loss, |reason| guard.lost_error(reason)).await
}
