//! Drives one acquisition to a hold, a refusal or the deadline. An acquisition that is dropped is undone.
//!
//! The ways to a lock, in the order in which they are tried:
//!
//! 1. The owner holds it here: one level more, ahead of all waiters.
//! 2. It is a reader: the record of other readers here is joined in memory.
//! 3. The call makes a single attempt: it asks once, next to the local queue.
//! 4. The lock is fair: the call stands in the server queue.
//! 5. Otherwise it stands in the local queue, and asks as soon as it is at its front.
//!
//! The calls of one owner race with each other. So any of these may find that another call has brought the owner the
//! lock ([`FrontOutcome::Reenter`]), and then starts over at 1.
//!
//! Nothing has to be cleaned up here. An [`Attempt`] owns what its requests may have left, [`InQueue`] gives up the
//! place in the local queue, and both are dropped with the future.

use std::pin::pin;

use futures_util::FutureExt;
use tokio::task::consume_budget;
use tokio::time::timeout;
use tracing::{Instrument, Span, debug, debug_span};

use super::attempt::{Attempt, Attempted};
use super::guard::LockGuard;
use super::place::{FrontOutcome, InQueue};
use super::replication::acknowledged;
use super::request::AcquireRequest;
use crate::clock::BootInstant;
use crate::error::Error;
use crate::options::Deadline;
use crate::protocol::lock::AcquireMode;
use crate::protocol::read_write::WAITER_MARK_TTL;
use crate::protocol::wait::{Wait, WakeSource};
use crate::session::LocalLock;
use crate::session::place::Turn;
use crate::session::share::Place;

impl AcquireRequest {
    /// Acquires the lock, or re-enters it if this owner holds it. Returns `None` if the lock was busy until the
    /// limit.
    ///
    /// A `deadline` with a limit is an instant, so the time in queues counts.
    pub(crate) async fn acquire(&self, deadline: Deadline) -> Result<Option<LockGuard>, Error> {
        let call = self.counted();
        let taken = loop {
            // Nothing keeps room for the guard as long as the call waits.
            if let Some(taken) = self.acquire_member(deadline).then(acknowledged).await {
                break taken;
            }
        };
        call.ended(deadline, &taken);
        taken
    }

    /// Does the same for a lock of a set. The set counts its calls itself, since it asks for some locks several times.
    pub(super) async fn acquire_member(
        &self,
        deadline: Deadline,
    ) -> Result<Option<LockGuard>, Error> {
        self.client.ensure_open()?;
        // The wrapping future costs an allocation, so it is made only if the span is recorded or a long wait is logged.
        let acquired = match self.told_span() {
            None => self.take_in_time(deadline).await,
            Some(span) => {
                let told = self.tell_if_long(|| self.local(), self.take_in_time(deadline));
                Box::pin(told.instrument(span)).await
            }
        };
        if matches!(acquired, Ok(None)) {
            self.tell_busy(|| self.local());
        }
        acquired
    }

    /// Returns the span of an acquisition, if it is recorded or a long wait is logged.
    fn told_span(&self) -> Option<Span> {
        let span = debug_span!(target: "redlatch", "acquire", lock = %self.name.key(), owner = %self.shown_owner());
        let is_told = !span.is_disabled() || self.client.settings.long_wait.is_some();
        is_told.then_some(span)
    }

    /// Several steps of a call may each take the time of a request. Beyond its limit, it takes that time once.
    async fn take_in_time(&self, deadline: Deadline) -> Result<Option<LockGuard>, Error> {
        match deadline {
            Deadline::Never => self.take(deadline).await,
            _ => self.within(deadline.left(), self.take(deadline)).await,
        }
    }

    /// Tries the ways to the lock until one of them brings a guard or the limit is reached.
    async fn take(&self, deadline: Deadline) -> Result<Option<LockGuard>, Error> {
        let (now, wake_source) = (BootInstant::now(), self.wake_source.clone());
        let wait = Wait::new(now, deadline, self.patience(), wake_source);
        let mut wait = wait.attempts(self.attempts);
        let local = self.local();
        // Entered once: a call that starts over keeps its place.
        let mut in_queue = None;
        loop {
            // A re-entry never waits behind other waiters, so it comes before the local queue.
            while let Some(hold) = self.own(&local) {
                let error = match Box::pin(self.reenter(&local, &hold)).await {
                    Ok(Some(guard)) => {
                        let name = self.name.key();
                        self.client.tally.reentered((&self.kind).into(), name);
                        return Ok(Some(guard));
                    }
                    // The hold has ended in the meantime; there may be a newer one.
                    Ok(None) => continue,
                    Err(error) => error,
                };
                Box::pin(self.client.pause(self.name.key(), &mut wait, error)).await?;
            }
            if self.is_upgrade(&local) {
                // Checked before the call enters the local queue: the call at its front may be waiting for this very
                // owner.
                return Err(self.upgrade());
            }
            if self.may_join() {
                // Readers that join and leave in memory alone must let the other tasks of their thread run.
                consume_budget().await;
                let yields_to = self.yields_to(false);
                if let Some(joined) = self.join_readers(&local, wait.started(), yields_to) {
                    return joined.map(Some);
                }
            }
            let outcome = if wait.is_single_attempt() {
                Box::pin(self.ask_once(&local)).await?
            } else if let WakeSource::ServerQueue { priority } = self.wake_source {
                Box::pin(self.in_server_queue(&local, &mut wait, priority)).await?
            } else {
                // From here on, this call may get a handoff.
                let place = in_queue.get_or_insert_with(|| InQueue::new(self, &local));
                let behind = match place.now() {
                    Some(Turn::First) => None,
                    Some(Turn::Held) => Some(FrontOutcome::Reenter),
                    None => Box::pin(self.behind_others(&local, place, &wait)).await?,
                };
                match behind {
                    Some(outcome) => outcome,
                    // On the heap, so that a call that stands in the local queue does not carry this future.
                    None => Box::pin(self.at_front(&local, &mut wait, place)).await?,
                }
            };
            match outcome {
                FrontOutcome::Granted(guard) => {
                    debug!(target: "redlatch", waited = ?wait.waited(BootInstant::now()), "acquired");
                    return Ok(Some(guard));
                }
                // If the other call's hold has already ended, this one keeps its place.
                FrontOutcome::Reenter => {}
                FrontOutcome::GaveUp => return Ok(None),
            }
        }
    }

    /// Waits for the front, with others ahead. The wait may end earlier: a named owner joins its hold in another
    /// process, or another call here brings its owner the lock. Returns `None` once this call has to ask the server:
    /// it has come to the front, or is a reader that has waited long enough.
    async fn behind_others(
        &self,
        local: &LocalLock,
        place: &Place<'_>,
        wait: &Wait,
    ) -> Result<Option<FrontOutcome>, Error> {
        // Until then, the call may be polled for an answer instead of at its place.
        place.catch_up(BootInstant::now().plus(self.timeout()));
        if let Some(outcome) = Box::pin(self.join(local)).await? {
            return Ok(Some(outcome));
        }
        let turn = pin!(async {
            // Nobody may poll the call of the other side that is ahead, or it may wait for one of Redisson's clients,
            // which would let this call in. So the local order applies for at most this long. The server keeps the
            // order too.
            if self.role().waits_for_other_side()
                && let Ok(turn) = Box::pin(timeout(WAITER_MARK_TTL, place.comes())).await
            {
                return turn;
            }
            place.keeps_no_order();
            place.comes().await
        });
        let turn = self.client.in_queue(Some(&self.name), wait, turn).await?;
        Ok(match turn {
            Some(Turn::First) => None,
            Some(Turn::Held) => Some(FrontOutcome::Reenter),
            // This reader has not asked yet, and may be admitted along with the readers that have the lock.
            None if self.kind.is_shared() => {
                place.goes_beside();
                None
            }
            None => Some(FrontOutcome::GaveUp),
        })
    }

    /// Attempts to join a hold that a named owner may have through another process. That is a re-entry, which never
    /// queues. Returns `None` if the call has to queue.
    ///
    /// Only for a call that finds others ahead of it; at the front, a request for the lock joins such a hold too. Uses
    /// a separate attempt that only joins, so that it does not take a free lock ahead of other waiters.
    async fn join(&self, local: &LocalLock) -> Result<Option<FrontOutcome>, Error> {
        if !self.owner.is_named() || !self.kind.is_reentrant() {
            return Ok(None);
        }
        let beside = InQueue::beside(self, local);
        let mut attempt = Attempt::new(self, local).at(&beside);
        let _asking = attempt.turn().await?;
        // Another call of this owner may have acquired the lock while this one waited for its turn.
        if self.own(local).is_some() {
            return Ok(Some(FrontOutcome::Reenter));
        }
        match Box::pin(attempt.send(AcquireMode::JoinOnly)).await {
            Ok(Attempted::Granted(guard)) => Ok(Some(FrontOutcome::Granted(guard))),
            Err(error) if !error.is_passing() => Err(error),
            // An error that may pass does not end the wait: the call queues like any other.
            Ok(Attempted::Busy(_) | Attempted::Yielded) | Err(_) => Ok(None),
        }
    }

    /// Attempts to acquire the lock once, next to the local queue: it may overtake the calls that wait here. If nobody
    /// polls it, what it was granted is released for them. It asks behind the releases of this process that are in
    /// flight.
    async fn ask_once(&self, local: &LocalLock) -> Result<FrontOutcome, Error> {
        let beside = InQueue::beside(self, local);
        let mut attempt = Attempt::new(self, local).at(&beside);
        let _asking = attempt.turn().await?;
        // As in `join`: the server would refuse the lock to a second acquisition id of this owner.
        if self.own(local).is_some() {
            return Ok(FrontOutcome::Reenter);
        }
        match attempt.send(AcquireMode::Free).await? {
            Attempted::Granted(guard) => {
                // This hold was not passed on: the count of handoffs in a row begins again.
                local.turns(|turns| turns.count(false));
                Ok(FrontOutcome::Granted(guard))
            }
            // A client that closes takes the grant out, and asks for no other.
            Attempted::Yielded => self.client.ensure_open().map(|()| FrontOutcome::Reenter),
            Attempted::Busy(_) => Ok(FrontOutcome::GaveUp),
        }
    }
}
