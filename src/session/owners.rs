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
    slots: HashMap<Owner, Slot>,
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

/// What one owner has and wants.
#[derive(Debug, Default)]
pub(super) struct Slot {
    /// The hold that was granted last. It may have ended, or its deadline may have passed, until somebody removes it.
    hold: Option<Arc<Hold>>,
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
        self.slots.values().filter_map(|slot| slot.hold.as_ref())
    }

    /// Returns the hold of this owner, if it can be trusted.
    ///
    /// A hold whose deadline has passed is treated like none, whether or not that was noticed yet.
    pub(super) fn live(&self, owner: &Owner) -> Option<&Arc<Hold>> {
        let hold = self.slots.get(owner)?.hold.as_ref()?;
        hold.is_live().then_some(hold)
    }

    /// Whether this owner has a hold here, or a call that asks for one.
    pub(super) fn is_engaged(&self, owner: &Owner) -> bool {
        let is_engaged = |slot: &Slot| slot.asking.is_some() || slot.hold.is_some();
        self.slots.get(owner).is_some_and(is_engaged)
    }

    /// Returns the turn to ask for this owner, if a call has it.
    pub(super) fn claim(&self, owner: &Owner) -> Option<Claim> {
        self.slots.get(owner)?.asking
    }

    /// Notes a hold of its owner. Returns the hold before it.
    pub(super) fn put(&mut self, hold: &Arc<Hold>) -> Option<Arc<Hold>> {
        let slot = self.slots.entry(hold.owner.clone()).or_default();
        slot.hold.replace(hold.clone())
    }

    /// Removes a hold. A newer hold of its owner stays.
    ///
    /// The one that was granted after it belongs to another call.
    pub(super) fn remove(&mut self, hold: &Arc<Hold>) -> Option<Arc<Hold>> {
        self.edit(&hold.owner, |slot| {
            slot.hold.take_if(|held| Arc::ptr_eq(held, hold))
        })?
    }

    /// Takes the turn to ask for this owner. Returns `None` if another call has it.
    pub(super) fn claim_turn(&mut self, owner: &Owner) -> Option<Claim> {
        let slot = self.slots.entry(owner.clone()).or_default();
        if slot.asking.is_some() {
            return None;
        }
        self.turns += 1;
        slot.asking = Some(Claim {
            number: self.turns,
            queued: None,
        });
        slot.asking
    }

    /// Notes that the call with this turn stands in a server queue by an acquisition id.
    pub(super) fn queues(&mut self, owner: &Owner, claim: Claim, queued: u64) {
        self.edit(owner, |slot| {
            let mine = slot.asking.iter_mut();
            for asking in mine.filter(|it| it.number == claim.number) {
                asking.queued = Some(queued);
            }
        });
    }

    /// Ends this turn to ask, unless another call has taken the turn by now.
    pub(super) fn end_turn(&mut self, owner: &Owner, claim: Claim) {
        self.edit(owner, |slot| {
            slot.asking.take_if(|it| it.number == claim.number);
        });
    }

    pub(super) fn waits(&mut self, owner: &Owner, ticket: Ticket) {
        let slot = self.slots.entry(owner.clone()).or_default();
        slot.waiting.push(ticket);
    }

    pub(super) fn leaves(&mut self, owner: &Owner, ticket: Ticket) {
        self.edit(owner, |slot| slot.waiting.retain(|it| *it != ticket));
    }

    pub(super) fn waiting(&self, owner: &Owner) -> &[Ticket] {
        self.slots.get(owner).map_or(&[], |slot| &slot.waiting)
    }

    /// Returns every call that waits, with its owner.
    pub(super) fn calls(&self) -> impl Iterator<Item = (Ticket, &Owner)> {
        let slots = self.slots.iter();
        slots.flat_map(|(owner, slot)| slot.waiting.iter().map(move |ticket| (*ticket, owner)))
    }

    /// Changes what this owner has, and forgets the owner if nothing is left.
    fn edit<T>(&mut self, owner: &Owner, change: impl FnOnce(&mut Slot) -> T) -> Option<T> {
        let slot = self.slots.get_mut(owner)?;
        let value = change(slot);
        if slot.hold.is_none() && slot.asking.is_none() && slot.waiting.is_empty() {
            self.slots.remove(owner);
        }
        Some(value)
    }
}
