//! What the server has of a hold. Holds of this process that follow each other may pass it on in memory.
//!
//! The server then goes on to see the first of them, by its acquisition's number. One request at a time asks whether it
//! still does. As long as it does nobody else can have had the lock, so the answer holds for everyone who gave the lock
//! back before that request was sent.
//!
//! # Invariants
//!
//! 1. At most one hold that has not ended has the record. Passing it on moves no deadline: the next hold starts with what
//!    the last request confirmed.
//! 2. Only the last hold releases the record. Whoever passed it on owes the server nothing.
//! 3. Of the requests that were sent for a record that is passed on, a late copy changes at most the hold count, or
//!    raises the lease; a release takes away all of it.

use std::sync::{Arc, PoisonError};

use super::sync::{Mutex, MutexGuard, oneshot};
use crate::error::Error;
use crate::protocol::hold_key::HoldKey;

/// How a lock was given back, as far as the server has said.
pub(crate) type Outcome = Result<Settled, Error>;

/// What the server said to a release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Settled {
    Done,
    /// The hold was not there; `repeated` if an earlier send of this release went unanswered and may have done it.
    Absent {
        repeated: bool,
    },
}

/// One lock's record on the server, shared by the holds that pass it on.
#[derive(Debug)]
pub(crate) struct Record {
    pub(crate) key: HoldKey,
    /// Held while a request that changes the hold count is on its way.
    pub(crate) turn: tokio::sync::Mutex<()>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// Everyone who gave the lock back and has yet to hear whether it was still held.
    waiting: Vec<oneshot::Sender<Outcome>>,
    /// It was passed on since the last request was sent that asks about it.
    was_passed: bool,
    /// A task sends such requests.
    is_asked_about: bool,
    can_pass: bool,
    release: Release,
}

#[derive(Debug)]
enum Release {
    NotSent,
    Sent,
    Ended(Outcome),
}

impl Record {
    pub(crate) fn new(key: HoldKey) -> Arc<Self> {
        let can_pass = key.kind.is_passed_on() && !key.is_named();
        Arc::new(Self {
            key,
            turn: tokio::sync::Mutex::new(()),
            state: Mutex::new(State {
                waiting: Vec::new(),
                was_passed: false,
                is_asked_about: false,
                can_pass,
                release: Release::NotSent,
            }),
        })
    }

    /// Whether a hold that is given back may pass the record on.
    pub(crate) fn can_pass(&self) -> bool {
        let state = self.lock();
        state.can_pass && matches!(state.release, Release::NotSent)
    }

    /// From now on the server has it back from the hold that has it: several releases may be owed for one that has had a
    /// second level, and each of them gives back what is left.
    pub(crate) fn stay(&self) {
        self.lock().can_pass = false;
    }

    /// Whether a request is on its way, or about to be sent, that raises the lease.
    pub(crate) fn is_being_confirmed(&self) -> bool {
        self.lock().is_asked_about
    }

    /// Where it is told how the lock was given back, once the server has answered a request that is sent from now on.
    pub(crate) fn outcome(&self) -> oneshot::Receiver<Outcome> {
        let (sender, receiver) = oneshot::channel();
        let mut state = self.lock();
        match &state.release {
            Release::Ended(outcome) => drop(sender.send(outcome.clone())),
            _ => state.waiting.push(sender),
        }
        receiver
    }

    /// It was passed on. Returns whether the caller has to ask the server about it, since nobody does.
    pub(crate) fn passed_on(&self) -> bool {
        let mut state = self.lock();
        state.was_passed = true;
        !std::mem::replace(&mut state.is_asked_about, true)
    }

    /// Everyone that the answer to a request is for which is sent now. `None` if there is nothing to ask: then the caller
    /// asks no more.
    pub(crate) fn next_unlocks(&self) -> Option<Unlocks<'_>> {
        let mut state = self.lock();
        // Whoever waits for a release is told by that.
        let is_owned = matches!(state.release, Release::NotSent);
        state.is_asked_about = is_owned && std::mem::take(&mut state.was_passed);
        state.is_asked_about.then(|| Unlocks {
            record: self,
            waiting: std::mem::take(&mut state.waiting),
        })
    }

    /// The release is about to be sent: a request that was sent before, and is sent again, may find nothing.
    pub(crate) fn releases(&self) {
        self.lock().release = Release::Sent;
    }

    /// How the release ended.
    pub(crate) fn released(&self, outcome: &Outcome) {
        let waiting = {
            let mut state = self.lock();
            state.release = Release::Ended(outcome.clone());
            std::mem::take(&mut state.waiting)
        };
        tell(waiting, outcome);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Everyone who waits for the answer to one request.
#[derive(Debug)]
#[must_use = "whoever waits is told nothing if it is dropped"]
pub(crate) struct Unlocks<'a> {
    record: &'a Record,
    waiting: Vec<oneshot::Sender<Outcome>>,
}

impl Unlocks<'_> {
    /// The record stood when the request ran.
    pub(crate) fn stood(self) {
        tell(self.waiting, &Ok(Settled::Done));
    }

    /// It did not. `true` if it was lost: it was not our own release that took it away.
    pub(crate) fn was_gone(self) -> bool {
        let mut state = self.record.lock();
        state.can_pass = false;
        let outcome = match &state.release {
            Release::NotSent => Ok(Settled::Absent { repeated: false }),
            Release::Ended(outcome) => {
                let outcome = outcome.clone();
                drop(state);
                tell(self.waiting, &outcome);
                return false;
            }
            // A copy of the request may have come behind the release, which will tell.
            Release::Sent => {
                state.waiting.extend(self.waiting);
                return false;
            }
        };
        drop(state);
        tell(self.waiting, &outcome);
        true
    }

    /// It went unanswered, or was refused. Whoever has the record now gives it back to the server.
    pub(crate) fn failed(self, error: Error) {
        self.record.stay();
        tell(self.waiting, &Err(error));
    }
}

fn tell(waiting: Vec<oneshot::Sender<Outcome>>, outcome: &Outcome) {
    for unlock in waiting {
        // Nobody may wait for it any more.
        unlock.send(outcome.clone()).ok();
    }
}
