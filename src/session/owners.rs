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
pub(super) struct Owners(HashMap<Owner, Slot>);

/// What one owner has and wants.
#[derive(Debug, Default)]
pub(super) struct Slot {
    /// The hold that was granted last. It may have ended, or its deadline may have passed, until somebody removes it.
    hold: Option<Arc<Hold>>,
    /// A call asks the server for this owner's first level. A second call has an acquisition id of its own, to which
    /// the lock would look busy.
    ///
    /// Set by [`Owners::claim_turn`], and cleared when the turn is dropped.
    pub(super) is_asking: bool,
    /// That call stands in a server queue, which may take long. Another call finds out for itself what its owner has.
    pub(super) is_in_server_queue: bool,
    /// The calls that wait for something.
    ///
    /// They are told of a new hold and of the end of the turn. In the order of their arrival.
    waiting: Vec<Ticket>,
}

impl Owners {
    /// Returns the holds of all owners, those included that cannot be trusted any more.
    pub(super) fn holds(&self) -> impl Iterator<Item = &Arc<Hold>> {
        self.0.values().filter_map(|slot| slot.hold.as_ref())
    }

    /// Returns the hold of this owner, if it can be trusted.
    ///
    /// A hold whose deadline has passed is treated like none, whether or not that was noticed yet.
    pub(super) fn live(&self, owner: &Owner) -> Option<&Arc<Hold>> {
        let hold = self.0.get(owner)?.hold.as_ref()?;
        hold.is_live().then_some(hold)
    }

    /// Whether this owner has a hold here, or a call that asks for one.
    pub(super) fn is_engaged(&self, owner: &Owner) -> bool {
        let is_engaged = |slot: &Slot| slot.is_asking || slot.hold.is_some();
        self.0.get(owner).is_some_and(is_engaged)
    }

    pub(super) fn slot(&self, owner: &Owner) -> Option<&Slot> {
        self.0.get(owner)
    }

    /// Notes a hold of its owner. Returns the hold before it.
    pub(super) fn put(&mut self, hold: &Arc<Hold>) -> Option<Arc<Hold>> {
        let slot = self.0.entry(hold.owner.clone()).or_default();
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

    /// Takes the turn to ask for this owner. Returns `false` if another call has it.
    pub(super) fn claim_turn(&mut self, owner: &Owner) -> bool {
        let slot = self.0.entry(owner.clone()).or_default();
        !std::mem::replace(&mut slot.is_asking, true)
    }

    pub(super) fn waits(&mut self, owner: &Owner, ticket: Ticket) {
        let slot = self.0.entry(owner.clone()).or_default();
        slot.waiting.push(ticket);
    }

    pub(super) fn leaves(&mut self, owner: &Owner, ticket: Ticket) {
        self.edit(owner, |slot| slot.waiting.retain(|it| *it != ticket));
    }

    pub(super) fn waiting(&self, owner: &Owner) -> &[Ticket] {
        self.0.get(owner).map_or(&[], |slot| &slot.waiting)
    }

    /// Returns every call that waits, with its owner.
    pub(super) fn calls(&self) -> impl Iterator<Item = (Ticket, &Owner)> {
        let slots = self.0.iter();
        slots.flat_map(|(owner, slot)| slot.waiting.iter().map(move |ticket| (*ticket, owner)))
    }

    /// Changes what this owner has, and forgets the owner if nothing is left.
    pub(super) fn edit<T>(
        &mut self,
        owner: &Owner,
        change: impl FnOnce(&mut Slot) -> T,
    ) -> Option<T> {
        let slot = self.0.get_mut(owner)?;
        let value = change(slot);
        if slot.hold.is_none() && !slot.is_asking && slot.waiting.is_empty() {
            self.0.remove(owner);
        }
        Some(value)
    }
}
