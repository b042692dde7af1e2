//! A hold that was given back, and is left for a waiter of its process.
//!
//! Plain data under the mutex of the local lock; `handoff` leaves and takes, and runs the task that watches.

use std::sync::Arc;

use super::hold::Hold;
use super::local_queue::Side;

/// The hold, with the release that is owed for it. If the undo is dropped, the release is sent in the background.
#[derive(Debug)]
pub(crate) struct Handoff<D> {
    /// The hold that was given back. It has ended, and its record is to be passed on.
    pub(crate) hold: Arc<Hold>,
    /// What releases the record, should nobody take it over.
    pub(crate) undo: D,
}

/// What was left for a waiter: at most one handoff, for one side.
#[derive(Debug)]
pub(super) struct Left<D> {
    handoff: Option<(Side, Handoff<D>)>,
    /// How many handoffs have been left so far.
    ///
    /// Tells the handoff that a watch began with from a later one in its place.
    count: u64,
    /// A task makes sure that no handoff lies for long.
    ///
    /// So each handoff has one, and no second one is started.
    is_watched: bool,
}

impl<D> Default for Left<D> {
    fn default() -> Self {
        Self {
            handoff: None,
            count: 0,
            is_watched: false,
        }
    }
}

impl<D> Left<D> {
    pub(super) fn is_empty(&self) -> bool {
        self.handoff.is_none()
    }

    /// Whether a handoff lies here that this side may take.
    pub(super) fn is_for(&self, side: Side) -> bool {
        self.handoff.as_ref().is_some_and(|(of, _)| *of == side)
    }

    /// Leaves a handoff. Returns whether a task watches already.
    ///
    /// The caller has seen that none lies here, and starts a watch if there is none.
    pub(super) fn put(&mut self, side: Side, handoff: Handoff<D>) -> bool {
        self.handoff = Some((side, handoff));
        self.count += 1;
        std::mem::replace(&mut self.is_watched, true)
    }

    /// Takes the handoff out if it is for this side. The watch stays, and ends by itself.
    pub(super) fn take(&mut self, side: Side) -> Option<Handoff<D>> {
        let left = self.handoff.take_if(|(of, _)| *of == side);
        left.map(|(_, handoff)| handoff)
    }

    /// Returns the number of the handoff that lies here. `None` if there is none: then the watch is over, and the next
    /// handoff needs a new one.
    pub(super) fn lies(&mut self) -> Option<u64> {
        self.is_watched = self.handoff.is_some();
        self.is_watched.then_some(self.count)
    }

    /// Takes back the handoff that was left by this number, if it still lies here.
    pub(super) fn take_back(&mut self, count: u64) -> Option<Handoff<D>> {
        let is_it = self.count == count;
        let left = self.handoff.take_if(|_| is_it);
        left.map(|(_, handoff)| handoff)
    }
}
