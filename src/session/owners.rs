//! The owners of a lock in this process: their holds and their waiting calls.
//!
//! On each side, an owner has at most one hold here, and at most one call that asks for its first level. Its other
//! calls wait for the answer to that one: each has its own acquisition id, so to the server they would be strangers.
//! Empty entries are removed.

use std::collections::HashMap;
use std::sync::Arc;

use super::hold::Hold;
use super::local_queue::Ticket;
use crate::owner::Owner;

/// The holds and calls of all owners, on one side of a lock.
#[derive(Debug, Default)]
pub(super) struct OwnerTable {
    /// The last granted hold of each owner. It may have ended or passed its deadline, and stays until somebody removes
    /// it.
    ///
    /// Separate from the calls, since these may be many, and each call that leaves goes through the holds.
    holds: HashMap<Owner, Arc<Hold>>,
    calls: HashMap<Owner, Calls>,
    /// The number of turns to ask that were taken so far.
    turns: u64,
}

/// Identifies a turn to ask for an owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Claim {
    /// Never reused for one owner.
    number: u64,
    /// The acquisition id under which the call stands in a server queue, which may take long.
    ///
    /// Other calls of the owner then ask the server themselves.
    pub(crate) queued: Option<u64>,
}

/// The calls of one owner.
#[derive(Debug, Default)]
struct Calls {
    /// The turn of the call that asks the server for this owner's first level. A second call would have a different
    /// acquisition id, to which the lock would look busy.
    ///
    /// Set by [`OwnerTable::claim_turn`], and cleared when the turn is dropped or revoked.
    asking: Option<Claim>,
    /// The waiting calls, in the order of arrival.
    ///
    /// They are told of a new hold and of the end of the turn.
    waiting: Vec<Ticket>,
}

impl OwnerTable {
    /// Returns the holds of all owners, including those that can no longer be trusted.
    pub(super) fn holds(&self) -> impl Iterator<Item = &Arc<Hold>> {
        self.holds.values()
    }

    /// Returns the hold of this owner, if it can be trusted.
    ///
    /// A hold whose deadline has passed does not count, whether or not anybody has noticed.
    pub(super) fn live(&self, owner: &Owner) -> Option<&Arc<Hold>> {
        self.holds.get(owner).filter(|hold| hold.is_live())
    }

    /// Whether this owner has a hold here, or a call that asks for one.
    pub(super) fn is_engaged(&self, owner: &Owner) -> bool {
        self.holds.contains_key(owner) || self.claim(owner).is_some()
    }

    /// Returns the turn to ask for this owner, if a call has it.
    pub(super) fn claim(&self, owner: &Owner) -> Option<Claim> {
        self.calls.get(owner)?.asking
    }

    /// Enters a hold of its owner. Returns the hold before it.
    pub(super) fn put(&mut self, hold: &Arc<Hold>) -> Option<Arc<Hold>> {
        self.holds.insert(hold.owner.clone(), hold.clone())
    }

    /// Removes a hold, unless its owner has a newer one.
    ///
    /// A newer hold belongs to another call.
    pub(super) fn remove(&mut self, hold: &Arc<Hold>) -> Option<Arc<Hold>> {
        let held = self.holds.get(&hold.owner)?;
        match Arc::ptr_eq(held, hold) {
            true => self.holds.remove(&hold.owner),
            false => None,
        }
    }

    /// Takes the turn to ask for this owner. Returns `None` if another call has it.
    pub(super) fn claim_turn(&mut self, owner: &Owner) -> Option<Claim> {
        let calls = self.calls.entry(owner.clone()).or_default();
        if calls.asking.is_some() {
            return None;
        }
        self.turns += 1;
        calls.asking = Some(Claim {
            number: self.turns,
            queued: None,
        });
        calls.asking
    }

    /// Notes that the call with this turn stands in a server queue under an acquisition id.
    pub(super) fn queues(&mut self, owner: &Owner, claim: Claim, queued: u64) {
        self.edit(owner, |calls| {
            let mine = calls.asking.iter_mut();
            for asking in mine.filter(|it| it.number == claim.number) {
                asking.queued = Some(queued);
            }
        });
    }

    /// Ends this turn to ask, unless another call has taken the turn since.
    pub(super) fn end_turn(&mut self, owner: &Owner, claim: Claim) {
        self.edit(owner, |calls| {
            calls.asking.take_if(|it| it.number == claim.number);
        });
    }

    pub(super) fn waits(&mut self, owner: &Owner, ticket: Ticket) {
        let calls = self.calls.entry(owner.clone()).or_default();
        calls.waiting.push(ticket);
    }

    pub(super) fn leaves(&mut self, owner: &Owner, ticket: Ticket) {
        self.edit(owner, |calls| calls.waiting.retain(|it| *it != ticket));
    }

    pub(super) fn waiting(&self, owner: &Owner) -> &[Ticket] {
        self.calls.get(owner).map_or(&[], |calls| &calls.waiting)
    }

    /// Returns every call that waits, with its owner.
    pub(super) fn calls(&self) -> impl Iterator<Item = (Ticket, &Owner)> {
        let calls = self.calls.iter();
        calls.flat_map(|(owner, calls)| calls.waiting.iter().map(move |ticket| (*ticket, owner)))
    }

    /// Changes the calls of this owner, and removes the entry if it is empty.
    fn edit(&mut self, owner: &Owner, change: impl FnOnce(&mut Calls)) {
        if let Some(calls) = self.calls.get_mut(owner) {
            change(calls);
            if calls.asking.is_none() && calls.waiting.is_empty() {
                self.calls.remove(owner);
            }
        }
    }
}
