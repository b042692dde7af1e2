//! Releases a lease when the caller is done with it.

use std::ops::Deref;
use std::sync::Arc;

use super::lease::Lease;
use super::request::AcquireRequest;
use crate::clock::BootInstant;
use crate::error::Error;
use crate::owner::Owner;
use crate::session::LocalLock;
use crate::session::give_back::GivenBack;
use crate::session::hold::{Hold, Loss};

/// One level of a lock that is held, until the guard is unlocked or dropped.
///
/// [`unlock`](Self::unlock) says whether the lock was still held; dropping the guard releases it from any thread, with or
/// without a runtime, also when a panic unwinds. A guard may move to another task and be released there. It derefs to its
/// [`Lease`], which tells when the lock is lost.
///
/// `drop` waits for nothing: it writes the release to the connection, so that a `?` out of `main` leaves the lock free.
/// What the connection does not take at once is sent in the background, which ends with the runtime; so is every release
/// over TLS, that of one level of several, and that of a plain lock without scripts; and a lock that a task of this process
/// waits for is left to that. Then the lock is free when its lease has passed.
///
/// `let _ = lock.lock().await?` drops the guard, and so releases the lock, at once. A guard that is leaked with
/// `mem::forget` keeps its lock for as long as the process lives, or for
/// [`max_hold`](crate::ClientBuilder::max_hold).
#[must_use = "the lock is released as soon as the guard is dropped"]
#[clippy::has_significant_drop]
#[derive(Debug)]
pub struct LockGuard {
    lease: Lease,
    /// The level was given back, or left to its owner.
    done: bool,
}

impl LockGuard {
    pub(crate) fn new(lease: Lease) -> Self {
        Self { lease, done: false }
    }

    /// Gives the lock back, one level, and says whether it was still held.
    ///
    /// With the last level the lock becomes free and a waiter is woken, in whatever process. Renewal has stopped
    /// before the request is sent.
    ///
    /// A waiter of this process that wants the same lease has the lock passed on to it in memory, and may start at once.
    /// The call then waits until the server has confirmed that the lock was held, and owes it nothing.
    ///
    /// # Errors
    ///
    /// [`LeaseLost`](crate::ErrorKind::LeaseLost) if the lock was not held any more: what was done under it since
    /// may have overlapped with somebody else's work. If the connection broke before the answer, the release is sent
    /// again, and that it then finds nothing, or somebody else, is no loss: the first try gave the lock back.
    /// [`Timeout`](crate::ErrorKind::Timeout) and [`Backend`](crate::ErrorKind::Backend) if the server did not answer
    /// or refused; the release is tried again in the background until the lease has passed, so the lock is free by
    /// then. A lock that was passed on is with the next task then, and nothing is owed for this one.
    ///
    /// # Cancel safety
    ///
    /// Once polled, the release goes on in the background if the future is dropped.
    pub async fn unlock(mut self) -> Result<(), Error> {
        let given_back = self.give_back();
        let request = &self.lease.request;
        let unlock = async { request.client.released(given_back?, &request.name).await };
        request.client.within(Box::pin(unlock)).await
    }

    /// Gives the level back here. What is to be done on the server for that is the caller's.
    pub(crate) fn give_back(&mut self) -> Result<GivenBack, Error> {
        self.done = true;
        let Lease { request, hold } = &self.lease;
        request.client.ensure_open()?;
        if self.lease.is_lost() {
            drop(request.client.watchdog.lose(hold, Loss::Expired));
            return Err(self.lease.lost_error());
        }
        let given_back = request
            .client
            .give_back(&request.local(), hold, Some(request.lease_mode));
        given_back.ok_or_else(|| self.lease.lost_error())
    }

    /// Takes the lock once more, on the same terms, from whatever task: the guard is the proof.
    ///
    /// A holder's re-entry never waits behind other waiters.
    ///
    /// # Errors
    ///
    /// [`LeaseLost`](crate::ErrorKind::LeaseLost) if the lock is not held any more;
    /// [`Refused`](crate::ErrorKind::Refused) at 2³¹ − 1 levels, and for a [`PlainLock`](crate::PlainLock);
    /// [`Timeout`](crate::ErrorKind::Timeout) and [`Backend`](crate::ErrorKind::Backend) if the server did not
    /// answer or refused.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the level that it may have taken is given back in the background; the other levels
    /// stay.
    pub async fn reenter(&self) -> Result<Self, Error> {
        let Lease { request, hold } = &self.lease;
        let reenter = async {
            request.client.ensure_open()?;
            request
                .reenter(&request.local(), hold)
                .await?
                .ok_or_else(|| self.lease.lost_error())
        };
        request.client.within(Box::pin(reenter)).await
    }

    /// Leaves the level to its owner: from now on this process neither renews nor releases it, and it lives until
    /// its lease ends. Whoever is that owner can [`adopt`](crate::ReentrantLock::adopt) or
    /// [`unlock`](crate::ReentrantLock::unlock) it: of a named owner, any process.
    ///
    /// Other guards of the same owner here go on as before.
    #[must_use = "the owner is who can adopt or unlock what was left"]
    pub fn detach(mut self) -> Owner {
        self.done = true;
        let Lease { request, hold } = &self.lease;
        if !hold.detach(request.lease_mode) {
            request.local().stir();
        }
        request.client.watchdog.watch(hold);
        request.owner.clone()
    }
}

impl AcquireRequest {
    /// The guard of a hold that stands from now on: dropped, it gives that back.
    pub(super) fn hand_out(&self, local: &LocalLock, hold: &Arc<Hold>) -> Result<LockGuard, Error> {
        if self.kind.sides().is_some() {
            for there in local.held_by_other_side() {
                if there.owner == self.owner {
                    // Nobody else may read by the record of one that writes.
                    hold.record.stay();
                } else {
                    // One of them was taken away.
                    for hold in [&there, hold] {
                        hold.record.stay();
                        hold.lock().schedule.check(BootInstant::now());
                    }
                    self.client.watchdog.watch(&there);
                }
            }
        }
        self.client.watchdog.watch(hold);
        let guard = LockGuard::new(Lease::new(self.clone(), hold.clone()));
        self.client.ensure_open()?;
        match guard.remaining() < self.min_validity {
            true => Err(self.too_late()),
            false => Ok(guard),
        }
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
                    .give_back(&request.local(), hold, Some(request.lease_mode)),
            );
        }
    }
}
