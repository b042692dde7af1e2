//! The guard of a held lock: releases it, acquires it again, or leaves it to its owner.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use tracing::field::Empty;
use tracing::info_span;

use super::lease::Lease;
use super::request::AcquireRequest;
use crate::clock::BootInstant;
use crate::error::Error;
use crate::loss::LossReason;
use crate::options::Deadline;
use crate::owner::Owner;
use crate::session::LocalLock;
use crate::session::hold::Hold;
use crate::session::unlock::LevelRelease;

/// One level of a held lock, which lasts until the guard is unlocked or dropped.
///
/// [`unlock`](Self::unlock) reports whether the lock was still held. Dropping the guard releases the level, from any
/// thread, with or without a runtime, and also while a panic unwinds. A guard may be moved to another task and released
/// there. It derefs to its [`Lease`], which reports when the lock is lost. The lock is free once all levels of its
/// owner have been released.
///
/// `drop` never waits: it writes the release to the connection, so that a `?` out of `main` leaves the lock free. A
/// background task, which ends with the runtime, sends some releases instead: a release that the connection does not
/// accept at once, the release of one level of several, and that of a plain lock without scripts. If a task of this
/// process waits for the lock, the lock is left to that task. If the runtime ends before the release is sent, the lock
/// is free when its lease has passed.
///
/// `let _ = lock.lock().await?` drops the guard at once, and so releases the lock. A guard that is leaked with
/// `mem::forget` keeps its lock until its fixed lease ends. Without a fixed lease, it keeps the lock as long as the
/// process lives, or for [`max_hold`](crate::ClientBuilder::max_hold).
#[doc(alias = "MutexGuard")]
#[must_use = "the lock is released as soon as the guard is dropped"]
#[clippy::has_significant_drop]
pub struct LockGuard {
    lease: Lease,
    /// Whether the level was released, or left to its owner.
    done: bool,
}

impl LockGuard {
    pub(crate) fn new(lease: Lease) -> Self {
        Self { lease, done: false }
    }

    /// Releases this level of the lock, and reports whether the lock was still held.
    ///
    /// With the last level, the lock becomes free and a waiter is woken, in this process or another. Renewal stops
    /// before the release is sent.
    ///
    /// If a waiter of this process wants the same lease, the lock is passed on to it in memory, and it may start at
    /// once. The call then sends no release, and returns once the server has confirmed that the lock was held. A reader
    /// that is not the last of its process may rely on what the server confirmed up to 10 ms ago: it is not told of a
    /// loss within that time.
    ///
    /// # Errors
    ///
    /// [`LeaseLost`](crate::ErrorKind::LeaseLost) if the lock was no longer held: the work done since its loss may have
    /// overlapped with that of another holder. If the connection broke before the answer, the release is sent again. If
    /// the second request finds no hold, or another holder, that does not count as a loss, since the first one may have
    /// released the lock. [`Timeout`](crate::ErrorKind::Timeout) and [`Backend`](crate::ErrorKind::Backend) if the
    /// server did not answer or refused; the release is retried in the background until the lease has passed, so the
    /// lock is free by then. If the lock was passed on, the next task has it, and there is nothing to retry.
    ///
    /// # Cancel safety
    ///
    /// Once the future has been polled, the release continues in the background if the future is dropped.
    ///
    /// # Examples
    ///
    /// ```
    /// # redlatch_testkit::doc(async |url| {
    /// # let client = redlatch::Client::connect(url).await?;
    /// use redlatch::ErrorKind;
    ///
    /// let lock = client.lock("nightly-report");
    /// let guard = lock.lock().await?;
    /// lock.force_unlock().await?; // an operator was impatient
    /// let error = guard.unlock().await.unwrap_err();
    /// assert_eq!(error.kind(), ErrorKind::LeaseLost); // the report may have been sent twice
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
    pub async fn unlock(mut self) -> Result<(), Error> {
        // Given back before the first await. From here on, the release goes on even if the future is dropped.
        let given_back = self.give_back();
        let released = self.released(given_back);
        self.lease.request.client.within(released).await
    }

    /// Waits until what was given back is released.
    fn released(&self, given: Result<LevelRelease, Error>) -> BoxFuture<'_, Result<(), Error>> {
        let request = &self.lease.request;
        Box::pin(async move { request.client.finish_release(given?, &request.name).await })
    }

    /// Gives the level back in this process. The caller then runs the release on the server, or drops it, which leaves
    /// it to the background. For `unlock`, and for the release of a set, which runs several of them as one.
    ///
    /// The guard is finished in any case, even after an error: a second release by its drop could give back a level of
    /// another guard.
    pub(crate) fn give_back(&mut self) -> Result<LevelRelease, Error> {
        self.done = true;
        let Lease { request, hold } = &self.lease;
        request.client.ensure_open()?;
        if self.lease.is_lost() {
            // The watchdog may not have seen the deadline pass yet. The release that is owed, if any, goes to the
            // background.
            drop(request.client.watchdog.lose(hold, LossReason::Expired));
            return Err(self.lease.lost_error());
        }
        let given_back =
            request
                .client
                .release_level(&request.local(), hold, Some(request.lease_mode));
        given_back.ok_or_else(|| self.lease.lost_error())
    }

    /// Acquires one more level of the lock, for the same owner and with the same lease. Any task may call this: the
    /// guard proves the ownership.
    ///
    /// A holder's re-entry never waits behind other waiters.
    ///
    /// # Errors
    ///
    /// [`LeaseLost`](crate::ErrorKind::LeaseLost) if the lock is no longer held;
    /// [`Refused`](crate::ErrorKind::Refused) at 2³¹ − 1 levels, and for a [`PlainLock`](crate::PlainLock);
    /// [`Timeout`](crate::ErrorKind::Timeout) and [`Backend`](crate::ErrorKind::Backend) if the server did not
    /// answer or refused.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, a level that it may have acquired is released in the background; the other levels
    /// stay.
    ///
    /// # Examples
    ///
    /// ```
    /// # redlatch_testkit::doc(async |url| {
    /// # let client = redlatch::Client::connect(url).await?;
    /// # async fn notify() {}
    /// let guard = client.lock("orders:42").lock().await?;
    /// let inner = guard.reenter().await?;
    /// let task = tokio::spawn(async move {
    ///     notify().await;
    ///     inner.unlock().await
    /// });
    /// guard.unlock().await?; // the lock stays held until the task is done as well
    /// task.await.unwrap()?;
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
    pub async fn reenter(&self) -> Result<Self, Error> {
        self.lease.request.client.within(self.reentered()).await
    }

    fn reentered(&self) -> BoxFuture<'_, Result<Self, Error>> {
        let Lease { request, hold } = &self.lease;
        Box::pin(async move {
            let call = request.counted();
            request.client.ensure_open()?;
            let reentered = request.reenter(&request.local(), hold).await;
            if let Ok(Some(_)) = &reentered {
                let (kind, name) = (&request.kind, request.name.key());
                request.client.tally.reentered(kind.into(), name);
            }
            call.ended(Deadline::Never, &reentered);
            reentered?.ok_or_else(|| self.lease.lost_error())
        })
    }

    /// Leaves the level to its owner, and returns the owner. From now on this process neither renews nor releases the
    /// level, which lasts until its lease ends. The owner can [`adopt`](crate::ReentrantLock::adopt) or
    /// [`unlock`](crate::ReentrantLock::unlock) it; if the owner is named, it can do so from any process.
    ///
    /// Other guards of the same owner in this process are not affected.
    ///
    /// # Examples
    ///
    /// ```
    /// # redlatch_testkit::doc(async |url| {
    /// # let client = redlatch::Client::connect(url).await?;
    /// let lock = client.lock("orders:42");
    /// let owner = lock.lock().await?.detach();
    /// assert!(lock.is_locked().await?); // without a guard
    /// // Any task that has the owner can release the lock.
    /// let task = tokio::spawn(async move { lock.owned_by(&owner).unlock().await });
    /// task.await.unwrap()?;
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
    #[must_use = "only this owner can adopt or unlock what was left"]
    pub fn detach(self) -> Owner {
        self.leave().request.owner.clone()
    }

    /// Leaves the level to its owner, and returns its lease, which this process no longer renews.
    pub(crate) fn leave(mut self) -> Lease {
        self.done = true;
        let Lease { request, hold } = &self.lease;
        if !hold.detach(request.lease_mode) {
            // Without a guard the hold no longer counts as held here, and the front of the local queue asks the
            // server again.
            request.local().stir();
        }
        request.client.watchdog.watch(hold);
        Lease::new(request.clone(), hold.clone())
    }
}

impl AcquireRequest {
    /// Creates the guard of a hold that stands from now on. Dropping the guard gives the hold back.
    ///
    /// The hold is in the local lock already. If an `Undo` is armed for it, the caller disarms that after this call,
    /// without an await in between.
    pub(super) fn hand_out(&self, local: &LocalLock, hold: &Arc<Hold>) -> Result<LockGuard, Error> {
        if self.kind.sides().is_some() {
            for there in local.held_by_other_side() {
                if there.owner == self.owner {
                    // No other owner may share the record of a reader that also writes.
                    hold.record.stay();
                } else {
                    // A writer excludes everybody else, so one of the two holds was taken away: a check tells which.
                    for hold in [&there, hold] {
                        hold.record.stay();
                        hold.lock().schedule.check(BootInstant::now());
                    }
                    self.client.watchdog.watch(&there);
                }
            }
        }
        if let Some(caller) = &self.caller {
            let (lock, owner) = (self.name.key(), self.shown_owner());
            hold.trace(
                info_span!(target: "redlatch", parent: caller, "hold", %lock, %owner, lost = Empty),
            );
        }
        self.client.watchdog.watch(hold);
        self.client.tally.hold_begins(hold);
        let guard = LockGuard::new(Lease::new(self.clone(), hold.clone()));
        // From here on, an early return drops the guard, which gives the hold back. A client that is closed behind this
        // check finds the hold in the local lock, and ends it.
        self.client.ensure_open()?;
        self.timely(guard)
    }

    /// Returns a guard if enough of its lease is left to hand it out.
    pub(super) fn timely(&self, guard: LockGuard) -> Result<LockGuard, Error> {
        match guard.is_timely() {
            true => Ok(guard),
            false => Err(self.too_late()),
        }
    }
}

impl LockGuard {
    /// Whether enough of its lease is left to hand it out.
    pub(super) fn is_timely(&self) -> bool {
        !self.is_lost() && self.remaining() >= self.request.min_validity
    }
}

impl fmt::Debug for LockGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.lease.show("LockGuard", f).finish()
    }
}

impl Deref for LockGuard {
    type Target = Lease;

    fn deref(&self) -> &Lease {
        &self.lease
    }
}

impl Drop for LockGuard {
    fn drop(&mut self) {
        if !self.done {
            let Lease { request, hold } = &self.lease;
            drop(
                request
                    .client
                    .release_level(&request.local(), hold, Some(request.lease_mode)),
            );
        }
    }
}
