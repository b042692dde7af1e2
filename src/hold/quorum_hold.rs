//! The servers on which a lock over several is held: whether they are a majority, and until when.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::sync::Notify;

use super::guard::LockGuard;
use super::lease::Lease;
use crate::clock::BootInstant;
use crate::protocol::quorum::trusted_until;
use crate::session::LocalLock;

/// What is held of a lock over several servers.
///
/// # Invariants
///
/// 1. Once there was no majority, there is none any more: a member that joins later does not bring it back, since
///    others may have had the lock in between.
/// 2. Once it was given back, nobody joins: a grant that comes late is given back by being dropped.
#[derive(Debug)]
pub(crate) struct QuorumHold(Arc<Shared>);

/// The way in for grants that come late. It does not keep the hold alive.
#[derive(Clone, Debug)]
pub(crate) struct LateJoin(Weak<Shared>);

#[derive(Debug)]
struct Shared {
    servers: usize,
    state: Mutex<State>,
    joined: Notify,
    /// The local lock in whose queue the waiters of this process stand.
    local: LocalLock,
}

#[derive(Debug)]
struct State {
    guards: Vec<Option<LockGuard>>,
    phase: Phase,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Filled one by one with what the round brought. It stays so if no answer is outstanding by then.
    Open,
    Held,
    Lost,
    GivenBack,
}

impl QuorumHold {
    pub(crate) fn new(servers: usize, local: LocalLock) -> Self {
        let guards = (0..servers).map(|_| None).collect();
        Self(Arc::new(Shared {
            servers,
            state: Mutex::new(State {
                guards,
                phase: Phase::Open,
            }),
            joined: Notify::new(),
            local,
        }))
    }

    pub(crate) fn join(&self, at: usize, guard: LockGuard) {
        self.0.join(at, guard);
    }

    pub(crate) fn late_join(&self) -> LateJoin {
        // The round's grants are all in: from here on it counts whether they are a majority.
        self.0.lock().phase = Phase::Held;
        LateJoin(Arc::downgrade(&self.0))
    }

    pub(crate) fn is_lost(&self) -> bool {
        self.remaining().is_zero()
    }

    /// Returns how long a majority can be trusted. Zero once it is lost.
    pub(crate) fn remaining(&self) -> Duration {
        self.0.lock().remaining()
    }

    /// Waits until a majority can no longer be trusted.
    pub(crate) async fn lost(&self) {
        loop {
            // Registered before the leases are read, so that no member joins unseen.
            let joined = self.0.joined.notified();
            tokio::pin!(joined);
            joined.as_mut().enable();
            let leases = self.leases();
            let standing = leases.iter().filter(|lease| !lease.is_lost());
            let mut losses: FuturesUnordered<_> = standing.map(Lease::lost).collect();
            // Checked last: a lease that is lost after it was found to stand wakes this task.
            if self.is_lost() {
                return;
            }
            tokio::select! {
                Some(()) = losses.next() => {}
                () = joined => {}
            }
        }
    }

    pub(crate) fn servers(&self) -> usize {
        self.0.servers
    }

    /// Returns the leases of what is held, server by server.
    pub(crate) fn leases(&self) -> Vec<Lease> {
        let state = self.0.lock();
        let lease = |guard: &LockGuard| Lease::new(guard.request.clone(), guard.hold.clone());
        state.guards.iter().flatten().map(lease).collect()
    }

    /// Takes out the guards, to give back what is held.
    pub(crate) fn leave(&self) -> Vec<LockGuard> {
        let mut state = self.0.lock();
        state.phase = Phase::GivenBack;
        state.guards.drain(..).flatten().collect()
    }
}

impl Drop for QuorumHold {
    fn drop(&mut self) {
        drop(self.leave());
        self.0.local.stir();
    }
}

impl LateJoin {
    pub(crate) fn join(&self, at: usize, guard: LockGuard) {
        if let Some(shared) = self.0.upgrade() {
            shared.join(at, guard);
        }
    }
}

impl Shared {
    fn join(&self, at: usize, guard: LockGuard) {
        let mut state = self.lock();
        let counts = match state.phase {
            Phase::Open => true,
            Phase::Held => !state.remaining().is_zero(),
            Phase::Lost | Phase::GivenBack => false,
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

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn remaining(&mut self) -> Duration {
        let now = BootInstant::now();
        let promises = self
            .guards
            .iter()
            .flatten()
            .filter(|guard| !guard.is_lost())
            .map(|guard| guard.trusted_until());
        let left = match self.phase {
            Phase::Open | Phase::Held => trusted_until(promises, self.guards.len()),
            Phase::Lost | Phase::GivenBack => None,
        };
        let left = left.map_or(Duration::ZERO, |until| now.until(until));
        // Noted once it is seen. A member joins only after this was checked, so it cannot bring the majority back.
        if left.is_zero() && self.phase == Phase::Held {
            self.phase = Phase::Lost;
        }
        left
    }
}
