//! A hold over several servers: whether those that grant it are a majority, and until when.
//!
//! A round that is won makes a [`QuorumHold`] and fills it with the guards of the members. Later grants join through a
//! [`LateJoin`]. No task watches a hold. It is lost as soon as the leases of its members no longer make a majority.
//! Whoever looks at it, or waits in [`lost`](QuorumHold::lost), finds out.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::sync::Notify;

use super::guard::LockGuard;
use super::lease::Lease;
use crate::loss::LossReason;
use crate::protocol::quorum::trusted_for;
use crate::session::LocalLock;

/// A hold over several servers.
///
/// # Invariants
///
/// 1. Once the majority is lost, it stays lost: a member that joins later does not bring it back, since others may have
///    had the lock in between.
/// 2. Once it was given back, nobody joins: a late grant is dropped, and so given back.
/// 3. The mutex of `state` is locked only briefly. The holds of the members may be looked at inside, but no guard is
///    dropped there.
#[derive(Debug)]
pub(crate) struct QuorumHold(Arc<Shared>);

/// The way in for grants that come late. It does not keep the hold alive.
#[derive(Clone, Debug)]
pub(crate) struct LateJoin(Weak<Shared>);

#[derive(Debug)]
struct Shared {
    /// The number of members, held or not. A majority is counted of these.
    servers: usize,
    state: Mutex<QuorumHoldState>,
    /// Signals that a member has joined, which may change the time of the loss.
    joined: Notify,
    /// The local lock in whose queue the waiters of this process stand.
    local: LocalLock,
}

#[derive(Debug)]
struct QuorumHoldState {
    /// One entry for each member, `None` if it is not held. Empty once the hold was given back.
    guards: Vec<Option<LockGuard>>,
    phase: QuorumPhase,
}

/// The phases follow each other in this order, and some may be left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum QuorumPhase {
    /// The round adds its grants one by one.
    Open,
    /// The round is over: a member may join, but only while there is a majority.
    Held,
    /// Somebody found that there was no majority, for this reason. Nothing brings it back.
    Lost(LossReason),
    GivenBack,
}

impl QuorumHold {
    pub(crate) fn new(servers: usize, local: LocalLock) -> Self {
        let guards = (0..servers).map(|_| None).collect();
        Self(Arc::new(Shared {
            servers,
            state: Mutex::new(QuorumHoldState {
                guards,
                phase: QuorumPhase::Open,
            }),
            joined: Notify::new(),
            local,
        }))
    }

    /// Enters what the member `at` has granted in the round.
    pub(crate) fn join(&self, at: usize, guard: LockGuard) {
        self.0.join(at, guard);
    }

    /// Ends the round, and returns the way in for its late answers.
    pub(crate) fn late_join(&self) -> LateJoin {
        // The round's grants are all in. From here on, a majority is required.
        self.0.lock().phase = QuorumPhase::Held;
        LateJoin(Arc::downgrade(&self.0))
    }

    pub(crate) fn is_lost(&self) -> bool {
        self.loss().is_some()
    }

    /// Returns why no majority can be trusted, or `None` if one can.
    pub(crate) fn loss(&self) -> Option<LossReason> {
        self.0.lock().loss()
    }

    /// Returns how long a majority can be trusted. Zero once it is lost.
    pub(crate) fn remaining(&self) -> Duration {
        self.0.lock().remaining()
    }

    /// Waits until a majority can no longer be trusted, and returns why. Checks again whenever a member is lost or
    /// joins.
    pub(crate) async fn lost(&self) -> LossReason {
        loop {
            // Registered before the leases are read, so that no member joins unseen.
            let joined = self.0.joined.notified();
            tokio::pin!(joined);
            joined.as_mut().enable();
            let leases = self.leases();
            let standing = leases.iter().filter(|lease| !lease.is_lost());
            let mut losses: FuturesUnordered<_> = standing.map(Lease::lost).collect();
            // Checked last: if a lease is lost after this check, it wakes this task.
            if let Some(reason) = self.loss() {
                return reason;
            }
            tokio::select! {
                Some(_) = losses.next() => {}
                () = joined => {}
            }
        }
    }

    pub(crate) fn servers(&self) -> usize {
        self.0.servers
    }

    /// Returns the leases of the members that are held. For requests to all members, which must not be made under the
    /// mutex. A lease keeps its hold in memory, but neither renews nor releases it.
    pub(crate) fn leases(&self) -> Vec<Lease> {
        let state = self.0.lock();
        let lease = |guard: &LockGuard| Lease::new(guard.request.clone(), guard.hold.clone());
        state.guards.iter().flatten().map(lease).collect()
    }

    /// Takes out the guards, to give them back. From then on nothing joins, so a grant during the release is released
    /// as well.
    pub(crate) fn leave(&self) -> Vec<LockGuard> {
        let mut state = self.0.lock();
        state.phase = QuorumPhase::GivenBack;
        state.guards.drain(..).flatten().collect()
    }
}

impl Drop for QuorumHold {
    fn drop(&mut self) {
        drop(self.leave());
        // The next call of this process waits for the end of this hold, which no single member announces to its queue.
        self.0.local.stir();
    }
}

impl LateJoin {
    /// Enters a late grant. If the hold is gone, drops the grant and so gives it back.
    pub(crate) fn join(&self, at: usize, guard: LockGuard) {
        if let Some(shared) = self.0.upgrade() {
            shared.join(at, guard);
        }
    }
}

impl Shared {
    /// Enters a guard if it still counts. Drops a guard that it replaces, or that comes too late.
    fn join(&self, at: usize, guard: LockGuard) {
        let mut state = self.lock();
        let counts = match state.phase {
            QuorumPhase::Open => true,
            QuorumPhase::Held => !state.remaining().is_zero(),
            QuorumPhase::Lost(_) | QuorumPhase::GivenBack => false,
        };
        let refused = match state.guards.get_mut(at) {
            Some(seat) if counts => seat.replace(guard),
            _ => Some(guard),
        };
        drop(state);
        // Dropped outside of the mutex, since a guard that is dropped releases its hold.
        drop(refused);
        self.joined.notify_waiters();
    }

    fn lock(&self) -> MutexGuard<'_, QuorumHoldState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl QuorumHoldState {
    /// Returns how long a majority can be trusted, and notes the loss if that is zero.
    fn remaining(&mut self) -> Duration {
        let leases = self.guards.iter().flatten();
        let left = match self.phase {
            QuorumPhase::Open | QuorumPhase::Held => {
                trusted_for(leases.map(|guard| guard.remaining()), self.guards.len())
            }
            QuorumPhase::Lost(_) | QuorumPhase::GivenBack => Duration::ZERO,
        };
        // Noted as soon as it is seen. A member joins only after this check, so it cannot bring the majority back.
        if left.is_zero() && self.phase == QuorumPhase::Held {
            let members = self.guards.iter().flatten();
            let losses = members.filter_map(|guard| guard.hold.loss());
            self.phase = QuorumPhase::Lost(LossReason::of_majority(losses));
        }
        left
    }

    fn loss(&mut self) -> Option<LossReason> {
        let is_lost = self.remaining().is_zero();
        is_lost.then_some(match self.phase {
            QuorumPhase::Lost(reason) => reason,
            QuorumPhase::Open | QuorumPhase::Held | QuorumPhase::GivenBack => LossReason::Unlocked,
        })
    }
}
