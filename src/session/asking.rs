//! The turn to ask the server: a mutex for each owner. One call at a time asks for an owner, and only behind the
//! releases that are in flight.
//!
//! The turn prevents two errors. Two calls of one owner carry two acquisition ids, so the second would find the lock
//! taken by its own owner. And a request that overtakes a release of this process would find the lock held by this
//! process, and wait for a message that its own release causes. So a call claims the turn ([`Asking`]). It gets the
//! turn once the releases in its way ([`Sending`]) are ahead or answered, as its [`Barrier`] says.

use super::local_lock::{LocalLockRef, LockState};
use super::local_queue::{LocalQueue, Side};
use super::outgoing::Barrier;
use super::owners::Claim;
use crate::owner::Owner;

impl<D> LockState<D> {
    /// Whether no release is in the way of an acquisition, or a handoff lies here.
    ///
    /// A handoff is taken in memory, so no release matters for it.
    fn is_clear(&self, side: Side, owner: &Owner, barrier: Barrier) -> bool {
        self.left.is_for(side) || !self.outgoing.is_in_the_way(side, owner, barrier)
    }

    /// Wakes the calls that a release has blocked, because it has ended or is now ahead of them.
    ///
    /// Each of them checks again whether anything is in its way.
    fn stir_blocked(&mut self) {
        for ticket in &self.outgoing.blocked {
            self.queue.stir(*ticket);
        }
    }
}

impl<D> LocalLockRef<D> {
    /// Returns the turn to ask, if no other call asks for this owner and no release is in the way. With a handoff here,
    /// releases do not matter.
    ///
    /// For calls that do not wait. Claims nothing if it returns `None`.
    pub(crate) fn turn_at_once<'a>(
        &'a self,
        owner: &'a Owner,
        barrier: Barrier,
    ) -> Option<Asking<'a, D>> {
        let mut state = self.lock();
        if !state.is_clear(self.side, owner, barrier) {
            return None;
        }
        let claim = state.owners.of_mut(self.side).claim_turn(owner)?;
        drop(state);
        Some(self.has_turn(owner, claim))
    }

    /// Returns the turn to ask if this side of the lock is idle here: no hold, no handoff, no release in flight, and no
    /// other process that goes first.
    ///
    /// For a call for several locks at once, once it is the first in the queue of each.
    pub(crate) fn turn_if_idle<'a>(&'a self, owner: &'a Owner) -> Option<Asking<'a, D>> {
        let mut state = self.lock();
        let idle = state.outgoing.is_empty()
            && state.left.is_empty()
            && state.turns.yield_period().is_none()
            && state.owners.of(self.side).holds().next().is_none();
        if !idle {
            return None;
        }
        let claim = state.owners.of_mut(self.side).claim_turn(owner)?;
        drop(state);
        Some(self.has_turn(owner, claim))
    }

    /// Waits for the releases in flight, unless a handoff lies here, and then for the turn to ask. Returns `None` if a
    /// call of this owner stands in a server queue: asking at the same time does no harm.
    ///
    /// Cancel safe: a claimed turn is returned in the same poll.
    pub(crate) async fn turn<'a>(
        &'a self,
        owner: &'a Owner,
        barrier: Barrier,
    ) -> Option<Asking<'a, D>> {
        let turn = |state: &mut LockState<D>| {
            if !state.is_clear(self.side, owner, barrier) {
                return None;
            }
            let owners = state.owners.of_mut(self.side);
            if owners.claim(owner).is_some_and(|it| it.queued.is_some()) {
                // Its grant may take as long as the whole queue.
                return Some(None);
            }
            owners.claim_turn(owner).map(Some)
        };
        let claim = self.until(owner, true, turn).await?;
        Some(self.has_turn(owner, claim))
    }

    /// Waits until no other call asks the server for this owner's first level. The owner may hold the lock by then.
    ///
    /// Does not wait for the releases in flight.
    pub(crate) async fn asking<'a>(&'a self, owner: &'a Owner) -> Asking<'a, D> {
        let claim = |state: &mut LockState<D>| state.owners.of_mut(self.side).claim_turn(owner);
        let claim = self.until(owner, false, claim).await;
        self.has_turn(owner, claim)
    }

    /// Returns the turn to ask for this owner, if a call has it.
    pub(crate) fn claim(&self, owner: &Owner) -> Option<Claim> {
        self.lock().owners.of(self.side).claim(owner)
    }

    /// Ends the turn of a call of this owner, and tells the owner's calls that wait for it. Another call may have the
    /// turn from then on.
    ///
    /// While that call lives, this may be called only if nobody polls it, or if it has had the turn for most of the
    /// time of a request. If it is polled all the same, its server is slow, and the lock may look busy to its owner.
    pub(crate) fn end_turn(&self, owner: &Owner, claim: Claim) {
        self.change(|state| {
            state.owners.of_mut(self.side).end_turn(owner, claim);
            // Only the calls with `Role::Apart` wait for this turn.
            state.tell(owner, LocalQueue::stir_apart);
        });
    }

    fn has_turn<'a>(&'a self, owner: &'a Owner, claim: Claim) -> Asking<'a, D> {
        Asking {
            local: self,
            owner,
            claim,
        }
    }
}

/// The turn to ask the server for an owner's first level, until dropped.
///
/// Other calls of the owner wait for its end. The drop tells them, whatever becomes of the call.
#[derive(Debug)]
pub(crate) struct Asking<'a, D> {
    local: &'a LocalLockRef<D>,
    owner: &'a Owner,
    claim: Claim,
}

impl<D> Asking<'_, D> {
    /// Records that the call stands in a server queue from now on, under this acquisition id.
    ///
    /// Calls that wait for the turn go on without it.
    pub(crate) fn stands_in_server_queue(&self, number: u64) {
        self.local.change(|state| {
            let owners = state.owners.of_mut(self.local.side);
            owners.queues(self.owner, self.claim, number);
            state.tell(self.owner, LocalQueue::stir_apart);
        });
    }
}

impl<D> Drop for Asking<'_, D> {
    fn drop(&mut self) {
        self.local.end_turn(self.owner, self.claim);
    }
}

/// Marks a release as in flight, until dropped.
///
/// Made before the release is sent, under the mutex under which acquisitions check. Calls that it blocks are told when
/// it is ahead, and when it has ended.
#[derive(Debug)]
pub(crate) struct Sending<D> {
    local: LocalLockRef<D>,
    /// Its number in the list of releases.
    number: u64,
}

impl<D> Sending<D> {
    /// Enters a release of this owner that is about to be sent.
    pub(crate) fn new(local: LocalLockRef<D>, owner: Owner) -> Self {
        let number = local.lock().outgoing.begin(local.side, owner);
        Self { local, number }
    }

    /// Records whether the release is ahead of every later request; `false` if it has to be sent again. The last
    /// release of one side of a read-write lock lets the other side ask.
    pub(crate) fn is_ahead(&self, is_ahead: bool) {
        let side = self.local.side;
        self.local.change(|state| {
            state.outgoing.is_ahead(self.number, is_ahead);
            state.stir_blocked();
            if is_ahead && !state.is_held(side) {
                state.queue.stir_first(side.other());
            }
        });
    }
}

impl<D> Drop for Sending<D> {
    fn drop(&mut self) {
        self.local.change(|state| {
            state.outgoing.end(self.number);
            state.stir_blocked();
        });
    }
}
