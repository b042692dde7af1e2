//! Releases a level, from its guard down to all calls that wait for the answer. From top to bottom:
//!
//! 1. The level is taken off its hold. If other holds here have the record, nothing is owed.
//! 2. The last level is left as a handoff to the call that waits for the lock here,
//! 3. or a release lowers the server's record, written by a `Drop` or sent by `unlock` (`share`, `release_request`);
//! 4. the server answers the release,
//! 5. and every call that gave the lock back under this record learns the outcome.
//!
//! [`Session::release_level`] does steps 1 and 2 without an await, so a caller that is dropped there loses nothing. The
//! rest belongs to the [`Undo`] and to the record, and happens whether or not anybody waits for it.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout;

use super::Session;
use super::hold::{Hold, Remainder};
use super::record::Outcome;
use super::share::{LocalLockRef, Share};
use super::sync::oneshot;
use super::undo::Undo;
use crate::clock::BootInstant;
use crate::error::{Error, ErrorKind};
use crate::loss::LossReason;
use crate::name::LockName;
use crate::options::LeaseMode;

/// How many request timeouts an `unlock` waits for an outcome that another task asks for. The handoff may lie for a
/// while, and another request may be in flight before the one that tells.
const UNCONFIRMED: u32 = 3;

/// A level that was given back.
///
/// Made by [`Session::release_level`], and waited for by [`Session::finish_release`].
#[derive(Debug)]
#[must_use = "dropping it has the level released in the background"]
pub(crate) enum LevelRelease {
    /// The server has more levels than the hold has here now, so a release has to be sent.
    Undo(Undo<Share>),
    /// Other holds here have the record, and the last of them releases it. The caller only learns whether the record
    /// still stands.
    Shared(Arc<Hold>),
    /// It was left for a waiter here. The receiver learns from the server whether the record still stood.
    Remainder(Arc<Hold>, oneshot::Receiver<Outcome>),
}

impl Session {
    /// Takes one level off a hold, together with its guard, and leaves the lock to a waiter here if possible. Sends
    /// nothing. Returns `None` if the hold had ended before: then other code owes whatever is owed.
    ///
    /// If this was the last level, the hold leaves the watchdog's registry first, so that no renewal is sent after the
    /// release.
    pub(crate) fn release_level(
        &self,
        local: &LocalLockRef,
        hold: &Arc<Hold>,
        guard: Option<LeaseMode>,
    ) -> Option<LevelRelease> {
        let left = hold.remove_level(guard)?;
        if left != Remainder::Levels {
            self.releaser.tell_unlocked(hold);
        }
        if left == Remainder::Others {
            self.watchdog.unwatch(hold);
            local.forget(hold);
            return Some(LevelRelease::Shared(hold.clone()));
        }
        // The hold goes on, and keeps its place in the local lock.
        if left == Remainder::Levels && hold.record.was_joined() {
            // The server counts one level for all readers of the record, so nothing is released.
            return Some(LevelRelease::Shared(hold.clone()));
        }
        let undo = self.releaser.undo(hold, local);
        if left == Remainder::Levels {
            return Some(LevelRelease::Undo(undo));
        }
        self.watchdog.unwatch(hold);
        // The next waiter here has to ask the server, so there is no handoff.
        if !hold.record.can_pass() {
            local.forget(hold);
            return Some(LevelRelease::Undo(undo));
        }
        Some(match local.leave(undo, hold, &self.releaser.runtime) {
            Ok(outcome) => LevelRelease::Remainder(hold.clone(), outcome),
            Err(undo) => LevelRelease::Undo(undo),
        })
    }

    /// Waits for the release of a level that was given back. Fails if the hold no longer stood.
    ///
    /// If this future is dropped, the release goes on in the background: the [`Undo`] posts it.
    pub(crate) async fn finish_release(
        &self,
        release: LevelRelease,
        name: &LockName,
    ) -> Result<(), Error> {
        let was_held = match release {
            LevelRelease::Undo(undo) => undo.run().await?,
            // The server has just confirmed the record, so readers need not wait for another answer.
            LevelRelease::Shared(hold) | LevelRelease::Remainder(hold, _)
                if hold.record.is_seen(BootInstant::now()) =>
            {
                true
            }
            LevelRelease::Shared(hold) => {
                let outcome = hold.record.outcome();
                self.told(&hold, outcome, name).await?
            }
            LevelRelease::Remainder(hold, outcome) => self.told(&hold, outcome, name).await?,
        };
        still_held(was_held, name)
    }

    /// Waits until the server has said whether a record that was left to others still stood. This depends on no waiter:
    /// a task asks about the record as soon as it is passed on, and releases it if it is not.
    async fn told(
        &self,
        hold: &Hold,
        outcome: oneshot::Receiver<Outcome>,
        name: &LockName,
    ) -> Result<bool, Error> {
        // While others read under this record, its release may be far off, so the server is asked now.
        if hold.record.was_joined() {
            self.watchdog.confirm(hold);
        }
        let at_most = hold.timeout * UNCONFIRMED;
        let told = timeout(at_most, self.unless_ended(outcome)).await;
        let outcome = told.map_err(|late| unconfirmed(name, at_most).caused_by(late))??;
        outcome.map_err(|_| Error::closed())?
    }
}

/// Returns the error of a lock that was left to a waiter here, if the server has not confirmed it. The outcome is
/// unknown, so it counts as unanswered.
fn unconfirmed(name: &LockName, waited: Duration) -> Error {
    let name = name.key();
    let text =
        format!("it is not known after {waited:?} whether {name:?} was held until it was unlocked");
    Error::new(ErrorKind::Timeout, text).unanswered()
}

/// Converts the outcome of a release into the caller's result. A lock that was no longer held is an error, since
/// somebody else may have been inside.
pub(crate) fn still_held(was_held: bool, name: &LockName) -> Result<(), Error> {
    if was_held {
        return Ok(());
    }
    let name = name.key();
    let reason = LossReason::Gone;
    Err(Error::lost(reason).saying(format!(
        "{name:?} was no longer held when it was unlocked: {reason}; the work done under it may have overlapped with \
         that of another holder"
    )))
}
