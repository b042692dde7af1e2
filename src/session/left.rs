//! A hold that was given back, and is left for a waiter of its process.

use std::sync::Arc;

use super::hold::Hold;
use super::local_queue::Side;

/// The hold, with the release that is owed for it. If the undo is dropped, the release is sent in the background.
#[derive(Debug)]
pub(crate) struct Handoff<D> {
    pub(crate) hold: Arc<Hold>,
    pub(crate) undo: D,
}

/// What was left for a waiter of one side.
#[derive(Debug)]
pub(super) struct Left<D> {
    handoff: Option<(Side, Handoff<D>)>,
    /// How many handoffs have been left so far.
    count: u64,
    /// A task makes sure that no handoff lies for long.
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

    pub(super) fn is_for(&self, side: Side) -> bool {
        self.handoff.as_ref().is_some_and(|(of, _)| *of == side)
    }

    /// Leaves a handoff. Returns whether a task watches already.
    pub(super) fn put(&mut self, side: Side, handoff: Handoff<D>) -> bool {
        self.handoff = Some((side, handoff));
        self.count += 1;
        std::mem::replace(&mut self.is_watched, true)
    }

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
