//! The slot for a handoff: a hold that was given back and is left for a waiter of its process.
//!
//! Plain data under the mutex of the local lock. `handoff` fills and empties the slot, and runs the task that watches
//! it.

use std::sync::Arc;

use super::hold::Hold;
use super::local_queue::Side;

/// A hold with the release that is owed for it. Dropping the undo sends the release in the background.
#[derive(Debug)]
pub(crate) struct Handoff<D> {
    /// The hold that was given back. It has ended; its record is to be passed on.
    pub(crate) hold: Arc<Hold>,
    /// Releases the record if nobody takes it over.
    pub(crate) undo: D,
}

/// The slot: at most one handoff, for one side.
#[derive(Debug)]
pub(super) struct Left<D> {
    handoff: Option<(Side, Handoff<D>)>,
    /// The number of handoffs left so far.
    ///
    /// Distinguishes the handoff that a watch began with from a later one.
    count: u64,
    /// Whether a task ensures that no handoff lies for long.
    ///
    /// Each handoff has one, and no second one is started.
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

    /// Takes the handoff out if it is for this side. The watch goes on, and ends by itself.
    pub(super) fn take(&mut self, side: Side) -> Option<Handoff<D>> {
        let left = self.handoff.take_if(|(of, _)| *of == side);
        left.map(|(_, handoff)| handoff)
    }

    /// Returns the number of the handoff that lies here. Returns `None` if there is none. The watch is then over, and
    /// the next handoff needs a new one.
    pub(super) fn lies(&mut self) -> Option<u64> {
        self.is_watched = self.handoff.is_some();
        self.is_watched.then_some(self.count)
    }

    /// Takes back the handoff with this number, if it still lies here.
    pub(super) fn take_back(&mut self, count: u64) -> Option<Handoff<D>> {
        let is_it = self.count == count;
        let left = self.handoff.take_if(|_| is_it);
        left.map(|(_, handoff)| handoff)
    }
}
