//! One request that releases what a server has in excess of a hold, and its answer.

use std::pin::pin;
use std::sync::Arc;

use futures_util::FutureExt;
use tokio::task::yield_now;

use super::backend::{Answer, Posted};
use super::hold::{Hold, Release};
use super::record::Outcome;
use super::releaser::Releaser;
use super::share::Sending;
use crate::error::Error;
use crate::protocol::answer::Released;
use crate::protocol::batch::{self, AllReleased};
use crate::protocol::hold_key::Kind;

/// A release written by a `Drop`, and how many messages had come in on the lock's channel before it.
pub(super) type Written = (Posted, u64);

impl Releaser {
    /// Writes the release of a hold that has ended, if the connection takes it at once and nothing else is on its way
    /// for the hold. What is left of a hold that others here share is released in the background, in its turn.
    pub(super) fn write(&self, hold: &Hold, sending: &Sending) -> Option<Written> {
        // A `Drop` cannot wait for the turn: a request in flight leaves this release to the background.
        let _turn = hold.record.turn.try_lock().ok()?;
        if !hold.is_surely_ours() {
            return None;
        }
        let release = self.next(hold).filter(|release| release.keep == 0)?;
        let posted = self.backend.post(&hold.key().release(release.keep))?;
        Self::is_ahead(hold, sending);
        Some((posted, release.heard))
    }

    /// Brings the server's record of a hold to the levels that the hold has here, and returns whether the hold still
    /// stood. The first try may have been `written` already.
    pub(super) async fn release(
        self: &Arc<Self>,
        hold: &Hold,
        sending: Option<&Sending>,
        written: Option<Written>,
    ) -> Result<bool, Error> {
        let _turn = hold.record.turn.lock().await;
        if written.is_none() && !hold.is_surely_ours() {
            // Another process may hold the lock by the same value. Whatever may be left of this hold ends by its lease.
            return Ok(false);
        }
        let Some(mut release) = self.next(hold) else {
            return Ok(true);
        };
        release.is_on_its_way = true;
        let call = hold.key().release(release.keep);
        let answered = if let Some((posted, heard)) = written {
            release.heard = heard;
            Box::pin(self.backend.conclude(posted, &call, hold.timeout)).await
        } else {
            let mut request = pin!(self.backend.run(&call, hold.timeout));
            // The first poll sends the request, unless there is no connection.
            let answered = request.as_mut().now_or_never();
            if let Some(sending) = sending
                && self.backend.silence(hold.key().name.key()).is_none()
            {
                Self::is_ahead(hold, sending);
            }
            match answered {
                Some(answered) => answered,
                None => request.await,
            }
        };
        if let (Err(_), Some(sending)) = (&answered, sending) {
            // It is sent again later, so requests from now on would overtake it.
            sending.is_ahead(false);
        }
        release.is_on_its_way = false;
        let answer = answered.inspect_err(|error| release.failed(error))?;
        let released =
            Released::decode(&answer.reply).inspect_err(|error| release.failed(error))?;
        let was_moved = matches!(released, Released::Moved { .. });
        let was_held = self.answered(&release, released, &answer);
        if was_moved {
            // Lets the next holder go on first: at best its release is sent ahead of what this caller asks for now, and
            // the server works on the second while the answer to the first travels.
            yield_now().await;
        }
        Ok(was_held)
    }

    /// Releases several holds of one server with one request, as `release` does for one.
    pub(super) async fn release_all(self: &Arc<Self>, holds: &[&Hold]) -> Result<Vec<bool>, Error> {
        let mut turns = Vec::with_capacity(holds.len());
        // All tasks that wait for several turns take them in one order, so that no two wait for each other.
        let mut in_order = holds.to_vec();
        in_order.sort_by_key(|hold| Arc::as_ptr(&hold.record));
        for hold in in_order {
            turns.push(hold.record.turn.lock().await);
        }
        let mut were_held = vec![true; holds.len()];
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
            .map(|(release, _)| (release.hold.key(), release.keep));
        let keys: Vec<_> = keys.collect();
        let call = batch::release(&keys);
        for (release, _) in &mut releases {
            release.is_on_its_way = true;
        }
        let answered = self.backend.run(&call, timeout).await;
        for (release, _) in &mut releases {
            release.is_on_its_way = false;
        }
        let answer = answered.inspect_err(|error| {
            for (release, _) in &releases {
                release.failed(error);
            }
        })?;
        let AllReleased(outcomes) = AllReleased::decode(&answer.reply, releases.len())?;
        for ((release, was_held), released) in releases.into_iter().zip(outcomes) {
            *was_held = self.answered(&release, released, &answer);
        }
        Ok(were_held)
    }

    /// Returns what to ask the server for; the caller has the hold's turn. Returns `None` if nothing is owed any more.
    fn next<'a>(&self, hold: &'a Hold) -> Option<Releasing<'a>> {
        // Guards dropped at the same time owe one release, and the first of them sends it for all. A hold that passed
        // its record on owes none. A hold that was never granted here may have been asked for again since, so it is
        // released again.
        if hold.release() == Release::Done && hold.was_granted() {
            return None;
        }
        let keep = hold.share();
        // A record that several holds have counts as one level, which the last of them owes.
        let is_held = || keep > 0 || hold.record.is_held();
        if hold.was_granted() && hold.record.was_joined() && is_held() {
            return None;
        }
        if keep == 0 {
            hold.record.releases();
        }
        Some(Releasing {
            hold,
            keep,
            is_on_its_way: false,
            heard: self.hub.heard_on(hold.key().name.channel()),
        })
    }

    /// Notes that a release is on its way, and that what is asked from now on comes behind it. That holds on one
    /// connection, but not for the releases of plain locks, which may be transactions.
    fn is_ahead(hold: &Hold, sending: &Sending) {
        if !matches!(hold.key().kind, Kind::Plain(_)) {
            sending.is_ahead(true);
        }
    }

    /// Handles the server's answer. Returns whether the hold still stood.
    fn answered(
        self: &Arc<Self>,
        release: &Releasing<'_>,
        released: Released,
        answer: &Answer,
    ) -> bool {
        let hold = release.hold;
        let is_done = !matches!(released, Released::Absent | Released::Taken);
        match is_done {
            true => release.note(Release::Done),
            false if answer.repeated => release.note(Release::InDoubt),
            false => {}
        }
        match released {
            Released::Freed { told } => self.yield_lock(hold, told, release.heard, answer.sent),
            Released::Moved { number } => self.granted(number.into(), answer.sent),
            // Any owner that has the lock by now took it after this hold.
            Released::Kept | Released::Absent | Released::Taken => {}
        }
        // An earlier send may have gone unanswered. The lease had not run out when the hold was given back, so the
        // server had the hold then, and this release removed it.
        let was_held = is_done || answer.repeated || hold.release() == Release::InDoubt;
        release.tell(&Ok(was_held));
        was_held
    }
}

/// A release that is about to be sent.
#[derive(Debug)]
struct Releasing<'a> {
    hold: &'a Hold,
    keep: u32,
    /// If it is dropped while this is set, nobody sees the answer: the next release may find that this one was carried
    /// out.
    is_on_its_way: bool,
    /// How many messages had come in on the lock's channel before.
    heard: u64,
}

impl Releasing<'_> {
    fn note(&self, release: Release) {
        if self.keep == 0 {
            self.hold.note_release(release);
        }
    }

    fn failed(&self, error: &Error) {
        if error.is_unanswered() {
            self.note(Release::InDoubt);
        }
        self.tell(&Err(error.clone()));
    }

    /// Tells every call that passed the record on before.
    fn tell(&self, outcome: &Outcome) {
        if self.keep == 0 {
            self.hold.record.released(outcome);
        }
    }
}

impl Drop for Releasing<'_> {
    fn drop(&mut self) {
        if self.is_on_its_way {
            self.note(Release::InDoubt);
        }
    }
}
