//! What the owners of a lock have and want in this process.
//!
//! An owner has at most one hold of a side here, and one call that asks for its first level. Its other calls wait until
//! that has an answer: each carries an acquisition id of its own, and to the server they would be others. Entries exist
//! only while they say something.

use std::collections::HashMap;
use std::sync::Arc;

use super::hold::Hold;
use super::local_queue::Ticket;
use crate::owner::Owner;

/// What each owner has and wants of one side of a lock.
#[derive(Debug, Default)]
pub(super) struct Owners {
    /// The hold of each owner that was granted last. It may have ended, or its deadline may have passed, until somebody
    /// removes it.
    ///
    /// Apart from the calls: those are many where a crowd waits, and each that leaves looks through the holds.
    holds: HashMap<Owner, Arc<Hold>>,
    calls: HashMap<Owner, Calls>,
    /// How many times a call has taken the turn to ask for its owner.
    turns: u64,
}

/// The turn to ask for an owner, as the call that has it knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Claim {
    /// Never the same again for one owner.
    number: u64,
    /// The acquisition id by which the call stands in a server queue, which may take long.
    ///
    /// Another call finds out for itself what its owner has.
    pub(crate) queued: Option<u64>,
}

/// The calls of one owner.
#[derive(Debug, Default)]
struct Calls {
    /// A call asks the server for this owner's first level. A second call has an acquisition id of its own, to which
    /// the lock would look busy.
    ///
    /// Set by [`Owners::claim_turn`], and cleared when the turn is dropped or revoked.
    asking: Option<Claim>,
    /// The calls that wait for something.
    ///
    /// They are told of a new hold and of the end of the turn. In the order of their arrival.
    waiting: Vec<Ticket>,
}

impl Owners {
    /// Returns the holds of all owners, those included that cannot be trusted any more.
    pub(super) fn holds(&self) -> impl Iterator<Item = &Arc<Hold>> {
        self.holds.values()
    }

    /// Returns the hold of this owner, if it can be trusted.
    ///
    /// A hold whose deadline has passed is treated like none, whether or not that was noticed yet.
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

    /// Notes a hold of its owner. Returns the hold before it.
    pub(super) fn put(&mut self, hold: &Arc<Hold>) -> Option<Arc<Hold>> {
        self.holds.insert(hold.owner.clone(), hold.clone())
    }

    /// Removes a hold. A newer hold of its owner stays.
    ///
    /// The one that was granted after it belongs to another call.
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

    /// Notes that the call with this turn stands in a server queue by an acquisition id.
    pub(super) fn queues(&mut self, owner: &Owner, claim: Claim, queued: u64) {
        self.edit(owner, |calls| {
            let mine = calls.asking.iter_mut();
            for asking in mine.filter(|it| it.number == claim.number) {
                asking.queued = Some(queued);
            }
        });
    }

    /// Ends this turn to ask, unless another call has taken the turn by now.
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

    /// Changes the calls of this owner, and forgets them if none is left.
    fn edit(&mut self, owner: &Owner, change: impl FnOnce(&mut Calls)) {
        if let Some(calls) = self.calls.get_mut(owner) {
            change(calls);
            if calls.asking.is_none() && calls.waiting.is_empty() {
                self.calls.remove(owner);
            }
        }
    }
}
