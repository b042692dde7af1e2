//! The release request: works out what a server has in excess of a hold, releases it, and interprets the answer.
//!
//! Every release passes through [`Releaser::next`], which works out what is owed at the moment of sending, and through
//! [`Releaser::answered`], which passes the answer on: to the hold, the record's earlier holds, and the waiter that got
//! the lock. It also notes which other processes go first now.
//!
//! # Invariants
//!
//! 1. A release is worked out, sent and answered under its record's turn. If a `Drop` writes it, the turn goes to the
//!    code that waits for its answer. So two releases of one hold are sent one after the other, and the second does
//!    only what the first has left to do.
//! 2. An unanswered release leaves its record in doubt, even if its future is dropped. If the next release then finds
//!    nothing, that is no loss.
//! 3. A release that is marked as ahead was given to the connection that acquisitions use, before them, unless that
//!    connection has just broken.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use futures_util::FutureExt;
use tokio::task::yield_now;

use super::backend::{Answer, Posted};
use super::hold::{Hold, Remainder};
use super::record::{Outcome, Turn};
use super::releaser::Releaser;
use super::share::Sending;
use super::task::in_task;
use crate::clock::BootInstant;
use crate::error::Error;
use crate::protocol::answer::Released;
use crate::protocol::batch::{self, AllReleased};
use crate::protocol::lock::ShareTarget;
use crate::protocol::script::Call;

/// A release written by a `Drop`.
#[derive(Debug)]
pub(super) struct Written {
    pub(super) posted: Posted,
    /// The number of messages on the lock's channel before it. Later ones may be due to it.
    heard: u64,
    /// Kept until the answer is there. Another release of this hold would find nothing, and take that as a loss.
    turn: Turn,
}

impl Releaser {
    /// Writes the release of a hold that has ended, if the connection takes it at once and no other request for the
    /// hold is in flight. If others here share the record, the background releases what is left, in its turn.
    ///
    /// Returns `None` if nothing was written. The caller then leaves the release to the background.
    pub(super) fn write(&self, hold: &Hold, sending: &Sending) -> Option<Written> {
        // A `Drop` cannot wait for the turn, so with a request in flight it leaves the release to the background.
        let turn = hold.record.try_turn()?;
        // The background finds the same, and then owes nothing.
        if !hold.is_surely_ours() {
            return None;
        }
        let release = self.next(hold).filter(Releasing::is_last)?;
        let call = hold.key().release(release.to);
        let posted = self.backend.post(&call)?;
        self.is_ahead(hold, &call, sending);
        Some(Written {
            posted,
            heard: release.heard,
            turn,
        })
    }

    /// Lowers the server's record of a hold to the levels that the hold has here, and returns whether the hold still
    /// stood. The first try may have been `written` already.
    ///
    /// Sends one request, and another one each time other processes have taken levels over. Each may take the time of
    /// one request for this lease, or `patience` if that is longer. If the future is dropped after a send, the record
    /// is in doubt, and the caller's `Undo` or the background sends another.
    pub(super) async fn release(
        self: &Arc<Self>,
        hold: &Arc<Hold>,
        sending: Option<&Sending>,
        written: Option<Written>,
        patience: Duration,
    ) -> Result<bool, Error> {
        let (_turn, mut written) = match written {
            Some(written) => (written.turn, Some((written.posted, written.heard))),
            None => (self.turn(hold).await?, None),
        };
        if written.is_none() && !hold.is_surely_ours() {
            // Another process may hold the lock with the same value. Whatever is left of this hold ends with its lease.
            return Ok(false);
        }
        let began = BootInstant::now();
        loop {
            let Some(mut release) = self.next(hold) else {
                return Ok(Self::was_held(hold));
            };
            let budget = hold.time_left(began).max(patience);
            let answered = self
                .sent(&mut release, sending, written.take(), budget)
                .await;
            let answer = answered.inspect_err(|error| release.failed(error))?;
            let released =
                Released::decode(&answer.reply).inspect_err(|error| release.failed(error))?;
            if let Released::Fewer { taken } = released {
                let corrected = self.taken_over(hold, release.to, taken, &answer);
                corrected.inspect_err(|error| release.failed(error))?;
                continue;
            }
            let was_moved = matches!(released, Released::Moved { .. });
            let was_held = self.answered(&release, released, &answer);
            if was_moved {
                // Lets the next holder go on first. At best, its release goes ahead of the caller's next request, and
                // the server works on the second while the answer to the first travels.
                yield_now().await;
            }
            return Ok(was_held);
        }
    }

    /// Waits for the turn of a hold's record.
    async fn turn(&self, hold: &Hold) -> Result<Turn, Error> {
        let answers = || self.backend.answers(hold.key().name.key());
        let (turn, _) = hold.record.turn_since(hold.timeout, answers).await?;
        Ok(turn)
    }

    /// Sends a release and waits for the answer, or only waits if it was `written`.
    async fn sent(
        &self,
        release: &mut Releasing<'_>,
        sending: Option<&Sending>,
        written: Option<(Posted, u64)>,
        budget: Duration,
    ) -> Result<Answer, Error> {
        // Set before the first poll, from which on the request may run.
        release.is_on_its_way = true;
        let hold = release.hold;
        let call = hold.key().release(release.to);
        let answered = if let Some((posted, heard)) = written {
            release.heard = heard;
            Box::pin(self.backend.conclude(posted, &call, budget)).await
        } else {
            let mut request = pin!(self.backend.give_back(&call, budget));
            // The first poll sends the request, unless there is no connection. It happens here, and not in the caller,
            // so that `is_ahead` is noted before any other task can run.
            let answered = request.as_mut().now_or_never();
            if let Some(sending) = sending {
                self.is_ahead(hold, &call, sending);
            }
            match answered {
                Some(answered) => answered,
                None => request.await,
            }
        };
        if let (Err(_), Some(sending)) = (&answered, sending) {
            // It is sent again later, so new requests would overtake it.
            sending.is_ahead(false);
        }
        release.is_on_its_way = false;
        answered
    }

    /// Handles the answer that other processes have taken over levels of a hold, to a request to record `to`. If none
    /// is left here, the hold ends, and the next release gives back whatever the server has. The watchdog drops the
    /// hold once it is due.
    pub(crate) fn taken_over(
        &self,
        hold: &Arc<Hold>,
        to: ShareTarget,
        taken: u32,
        answer: &Answer,
    ) -> Result<Remainder, Error> {
        // Each such answer takes a level off, so a call does not get them forever. The last one may have been given
        // back since the request.
        let left = (to.share > 0).then(|| hold.taken_over(taken)).flatten();
        let left = left.ok_or_else(|| answer.reply.unexpected())?;
        if left != Remainder::Levels {
            self.tell_unlocked(hold);
            hold.lock().schedule.stop_renewing();
            let local = self.local_locks.enter(hold.key().local_key());
            local.forget(hold);
        }
        Ok(left)
    }

    /// Runs a release of these holds. If other calls may wait for its turns or its answer, it goes on in a task once the
    /// caller has polled it: so the request is sent even if the process ends right after, and nobody waits for the
    /// caller. Acquisitions wait for its answer unless it `is_ahead` of them. If it is, and its answer is lost while
    /// nobody polls the caller, the hold ends with its lease.
    ///
    /// The release is on the heap, since it is large, and would be a part of both ways.
    pub(super) async fn polled<T: Send + 'static>(
        &self,
        mut release: Pin<Box<impl Future<Output = Result<T, Error>> + Send + 'static>>,
        holds: &[Arc<Hold>],
        is_ahead: impl Fn() -> bool,
    ) -> Result<T, Error> {
        let others_may_wait = |hold: &Arc<Hold>| {
            let record = &hold.record;
            hold.was_nested() || record.was_joined() || record.is_awaited()
        };
        let released = poll_fn(|context| match release.as_mut().poll(context) {
            Poll::Ready(released) => Poll::Ready(Some(released)),
            Poll::Pending if is_ahead() && !holds.iter().any(others_may_wait) => Poll::Pending,
            Poll::Pending => Poll::Ready(None),
        });
        match released.await {
            Some(released) => released,
            None => Box::pin(in_task(&self.runtime, holds, release)).await,
        }
    }

    /// Releases several holds of one server with one request, as `release` does for one.
    ///
    /// The calls of all these records are told of an error of the request.
    pub(super) async fn release_all(
        self: &Arc<Self>,
        holds: &[Arc<Hold>],
    ) -> Result<Vec<bool>, Error> {
        let mut turns = Vec::with_capacity(holds.len());
        // All tasks take several turns in one order, so that no two wait for each other.
        let mut in_order: Vec<_> = holds.iter().map(|hold| (hold.key(), hold)).collect();
        in_order.sort_by_key(|(key, _)| (key.name.key(), key.number()));
        for (_, hold) in in_order {
            turns.push(self.turn(hold).await?);
        }
        let mut were_held: Vec<_> = holds.iter().map(|hold| Self::was_held(hold)).collect();
        let mut releases: Vec<_> = holds
            .iter()
            .zip(&mut were_held)
            .filter_map(|(hold, was_held)| Some((self.next(hold)?, was_held)))
            .collect();
        let timeout = releases.iter().map(|(release, _)| release.hold.timeout);
        let Some(timeout) = timeout.min() else {
            return Ok(were_held);
        };
        let keys = releases
            .iter()
            .map(|(release, _)| (release.hold.key(), release.to.share));
        let keys: Vec<_> = keys.collect();
        let call = batch::release(&keys);
        for (release, _) in &mut releases {
            release.is_on_its_way = true;
        }
        let answered = self.backend.give_back(&call, timeout).await;
        for (release, _) in &mut releases {
            release.is_on_its_way = false;
        }
        let failed = |error: &Error| releases.iter().for_each(|(one, _)| one.failed(error));
        let answer = answered.inspect_err(failed)?;
        let AllReleased(outcomes) = AllReleased::decode(&answer.reply, releases.len())?;
        for ((release, was_held), released) in releases.into_iter().zip(outcomes) {
            *was_held = self.answered(&release, released, &answer);
        }
        Ok(were_held)
    }

    /// Returns what to ask the server for. The caller has the hold's turn. Returns `None` if nothing is owed any more.
    ///
    /// Marks the record as being released if this is its last level, so that it is no longer passed on.
    fn next<'a>(&self, hold: &'a Hold) -> Option<Releasing<'a>> {
        // Guards dropped at the same time owe one release, which the first of them sends for all. A hold that passed its
        // record on owes none. A hold that was never granted here may have been requested again since, so it is released
        // again.
        let is_done = || hold.was_passed_on() || hold.record.was_held().is_some();
        if hold.was_granted() && is_done() {
            return None;
        }
        let to = hold.target();
        if to.share == 0 {
            hold.record.releases();
        }
        Some(Releasing {
            hold,
            to,
            is_on_its_way: false,
            heard: self.hub.heard_on(hold.key().name.channel()),
        })
    }

    /// Whether a hold still stood for which nothing is owed any more, because it passed its record on or another
    /// release has done it.
    fn was_held(hold: &Hold) -> bool {
        hold.was_passed_on() || hold.record.was_held() != Some(false)
    }

    /// Notes that a release is in flight, and that later requests come behind it on their connection.
    ///
    /// Not if there is no connection, or if it goes over the one for transactions; nor for a plain lock of a named owner,
    /// since the release may be sent again, and would then end the owner's next hold. Acquisitions wait for the answer
    /// to these.
    fn is_ahead(&self, hold: &Hold, call: &Call<'_>, sending: &Sending) {
        if hold.key().is_told_apart() && self.backend.is_in_order(call) {
            sending.is_ahead(true);
        }
    }

    /// Handles the server's answer. Returns whether the hold still stood.
    ///
    /// Called with the turn held, once for each release.
    fn answered(
        self: &Arc<Self>,
        release: &Releasing<'_>,
        released: Released,
        answer: &Answer,
    ) -> bool {
        let hold = release.hold;
        hold.recorded(release.to.share);
        let is_done = !matches!(released, Released::Absent | Released::Taken);
        if !is_done && answer.repeated {
            // Nothing was there, and an earlier send of this request may be why.
            release.is_in_doubt();
        }
        match released {
            Released::Freed { told } => self.yield_lock(hold, told, release.heard, answer.sent),
            // The answer identifies the hold by the acquisition id that the script found in the server queue.
            Released::Moved { number } => self.granted(hold.key(), &number, answer.sent),
            // Any owner that has the lock now took it after this hold.
            Released::Kept | Released::Absent | Released::Taken | Released::Fewer { .. } => {}
        }
        // An earlier send may have gone unanswered. The lease had not expired when the hold was given back, so the
        // server still had the hold, and this release removed it.
        let was_held = is_done || answer.repeated || hold.record.is_in_doubt();
        if was_held && !is_done {
            // The answer that was lost may have named a waiter here that has the lock now.
            self.grants.tell_all(&hold.key().local_key());
        }
        release.tell(&Ok(was_held));
        was_held
    }
}

/// A release that is about to be sent or in flight. Dropping it in flight leaves the record in doubt.
#[derive(Debug)]
struct Releasing<'a> {
    /// The hold whose turn the caller has.
    hold: &'a Hold,
    /// The levels that the server is to keep. Only the release of the last one ends the record.
    to: ShareTarget,
    /// Whether the request may run. If dropped while this is set, the answer is lost, and the next release may find
    /// that this one was carried out.
    is_on_its_way: bool,
    /// The number of messages on the lock's channel before it.
    ///
    /// Together with the number of subscribers that were told of the release, this tells which message is their last.
    heard: u64,
}

impl Releasing<'_> {
    /// Whether the server is to keep no level.
    fn is_last(&self) -> bool {
        self.to.share == 0
    }

    /// Notes that the outcome of the release is unknown. One that keeps levels can be repeated, and leaves no doubt.
    fn is_in_doubt(&self) {
        match self.is_last() {
            true => self.hold.record.doubts_release(),
            false => self.hold.may_be_lowered(self.to),
        }
    }

    /// Notes a release that failed. If it was refused or never sent, it did nothing, and the hold is as it was.
    fn failed(&self, error: &Error) {
        if error.is_unanswered() {
            self.is_in_doubt();
        }
        self.tell(&Err(error.clone()));
    }

    /// Tells every call that passed the record on before.
    fn tell(&self, outcome: &Outcome) {
        if self.is_last() {
            self.hold.record.released(outcome);
        }
    }
}

impl Drop for Releasing<'_> {
    fn drop(&mut self) {
        if self.is_on_its_way {
            self.is_in_doubt();
        }
    }
}
