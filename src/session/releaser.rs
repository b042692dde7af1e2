//! Decides who gets a lock that is given back: other processes that were told, or the waiter that the server moved it
//! to.
//!
//! The answer to a release says how many subscribers heard it. Where processes do not take turns, a process that locks
//! in a loop would ask again before the message has reached anybody, and win each time. So if others were told, it
//! leaves the free lock alone for a moment ([`Releaser::yield_lock`]). The release of a fair lock gives it to the first
//! in its queue. If that one waits in this process, it is told here ([`Releaser::granted`]).

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;
use tracing::debug;

use super::backend::Backend;
use super::grants::Grants;
use super::hold::Hold;
use super::hub::Hub;
use super::local_lock::LocalLocks;
use super::reaper::Reaper;
use super::share::Share;
use super::sync::Spawner;
use super::tally::Tally;
use super::turns::YieldPeriod;
use super::undo::Undo;
use crate::clock::BootInstant;
use crate::protocol::hold_key::HoldKey;

/// How long this process leaves a free lock to others that were told of it, in round trips. It covers a message to
/// them, and their request.
///
/// If it were shorter, the message would be useless. If it were longer, a lock that nobody wants would lie idle.
const QUIET_TRIPS: u32 = 3;
const SHORTEST_QUIET: Duration = Duration::from_millis(1);
const LONGEST_QUIET: Duration = Duration::from_millis(100);

/// Gives holds back.
///
/// Shared by the session, its watchdog and each [`Share`]. The requests themselves are in `release_request`.
pub(crate) struct Releaser {
    pub(super) local_locks: Arc<LocalLocks<Undo<Share>>>,
    /// Counts the incoming messages, and the subscribers that are this process.
    pub(super) hub: Arc<Hub>,
    pub(super) backend: Arc<Backend>,
    /// The waiters here that stand in server queues.
    pub(crate) grants: Arc<Grants>,
    pub(super) reaper: Reaper,
    /// How long the background waits for the answer to a release.
    pub(super) command_timeout: Duration,
    /// For tasks that outlive the call that needs them.
    pub(crate) runtime: Spawner,
    pub(super) tally: Arc<Tally>,
}

impl Releaser {
    /// Leaves a lock to others if some were `told` that it is free. `heard` is the number of messages before the
    /// release was sent, at `sent`. How long the request took shows how far away the server is.
    pub(super) fn yield_lock(&self, hold: &Hold, told: u64, heard: u64, sent: BootInstant) {
        // Readers share the lock, and are told who goes first. Where processes take turns, the server decides.
        let kind = &hold.key().kind;
        // If only this process was told, there is nobody to leave the lock to.
        let in_reach = || self.hub.listeners(hold.key().name.channel());
        if told == 0 || kind.is_shared() || kind.takes_turns() || told <= in_reach() {
            return;
        }
        let trip = sent.until(BootInstant::now());
        let pause = (trip * QUIET_TRIPS).clamp(SHORTEST_QUIET, LONGEST_QUIET);
        let local = self.local_locks.enter(hold.key().local_key());
        let yield_period = YieldPeriod {
            // The message to this process itself counts on both sides.
            last_message: heard + told,
            pause,
        };
        local.turns(|turns| turns.yield_lock(yield_period));
        // Keeps the local lock for a while, even if no call here uses it.
        self.runtime.spawn(async move {
            sleep(pause).await;
            drop(local);
        });
    }

    /// Returns how many subscribers to a lock's channel are this process, if all subscribers can be counted.
    ///
    /// Sent along with a question whose answer depends on other subscribers. In a cluster with plain channels, a server
    /// knows only its own subscribers, so the count would be wrong.
    pub(super) fn listeners(&self, key: &HoldKey) -> Option<u64> {
        let counts = self.backend.counts_listeners();
        counts.then(|| self.hub.listeners(key.name.channel()))
    }

    /// Leaves every server queue, and releases every lock that was moved to a waiter and not accepted. Called when the
    /// client closes.
    pub(crate) fn leave_queues(self: &Arc<Self>) {
        for hold in self.grants.give_up_all() {
            self.release_unused(&hold);
        }
    }

    /// Reports the end of a hold that has given back its last level.
    pub(super) fn tell_unlocked(&self, hold: &Hold) {
        let (lock, owner) = (hold.key().name.key(), hold.shown_owner());
        debug!(target: "redlatch", %lock, %owner, held = ?hold.held_for(), "unlocked");
        self.tally.hold_ended(hold);
    }

    /// Releases whatever the server has of a hold in the background: the lock, a place in the queue, or nothing.
    pub(super) fn release_unused(self: &Arc<Self>, hold: &Arc<Hold>) {
        let local = self.local_locks.enter(hold.key().local_key());
        drop(self.undo(hold, &local));
    }
}

impl fmt::Debug for Releaser {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Releaser").finish_non_exhaustive()
    }
}
