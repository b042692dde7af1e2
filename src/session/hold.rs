//! A hold of this process: the local promise, and what the server should record of it.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

use super::hold_state::Phase;
pub(crate) use super::hold_state::{Release, State};
use super::record::Record;
pub(crate) use super::successor::Successor;
use crate::clock::BootInstant;
use crate::options::{LeaseMode, LeaseTime};
use crate::owner::Owner;
use crate::protocol::acquired::Tokens;
use crate::protocol::fair::PLACE_KEPT;
use crate::protocol::hold_key::{HoldKey, Kind};
use crate::protocol::renewal::Schedule;

/// One hold, shared by its guards, the watchdog and the reaper.
///
/// # Invariants
///
/// 1. `levels` is the share that the server should record for this hold, unless other holds have its record too; then
///    the record counts one level for all of them. A level is counted from before the request for it is sent until
///    before the request that gives it back is sent. Code that lowers `levels` owes the server a release, an
///    [`Undo`](super::undo::Undo).
/// 2. A hold that has ended never becomes live again, and has no levels except those that were left to their owner.
/// 3. Requests that change the share are sent one at a time, under the record's turn. The acquisition id makes renewals
///    and checks harmless whenever they arrive.
/// 4. `state` is locked only briefly and never across an await; the watchdog's registry may be locked inside.
#[derive(Debug)]
pub(crate) struct Hold {
    pub(crate) id: u64,
    pub(crate) record: Arc<Record>,
    pub(crate) owner: Owner,
    /// How long one request for this hold may take.
    pub(crate) timeout: Duration,
    /// Tells the tasks that wait for it that the hold has ended.
    pub(super) ended: Notify,
    pub(super) state: Mutex<State>,
}

/// Returns 64 bits that nobody can foresee: a keyed hash of a counter and of the clock. The counter makes two ids of
/// this process equal only by chance. The clock makes two copies of a process diverge, as after a virtual machine was
/// copied. Cheaper than asking the system for each id.
pub(crate) fn fresh_acquisition_id() -> u64 {
    static KEY: LazyLock<RandomState> = LazyLock::new(RandomState::new);
    static NEXT: AtomicU64 = AtomicU64::new(0);
    KEY.hash_one((NEXT.fetch_add(1, Ordering::Relaxed), BootInstant::now()))
}

/// What is left of a record when one of its holds has given a level back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Left {
    /// Levels of this hold.
    Levels,
    /// Other holds: nothing is owed.
    Others,
    Nothing,
}

/// Why a hold was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Loss {
    /// The server says that it is no longer ours.
    Gone,
    /// No renewal was confirmed before the deadline.
    Expired,
    /// The lock was granted to another owner in this process.
    Displaced,
    Forced,
    Closed,
}

impl Loss {
    pub(crate) const REASONS: usize = Self::Closed as usize + 1;

    pub(crate) fn reason(self) -> &'static str {
        match self {
            Self::Gone => "the server no longer has this hold",
            Self::Expired => "its lease passed without a confirmed renewal",
            Self::Displaced => "the lock was granted to another owner",
            Self::Forced => "the lock was released by force",
            Self::Closed => "the client was closed",
        }
    }
}

impl Hold {
    pub(crate) fn new(
        key: HoldKey,
        owner: Owner,
        lease: LeaseTime,
        timeout: Duration,
    ) -> Arc<Self> {
        let state = State::new(Schedule::new(BootInstant::now(), lease, None));
        Self::of(Record::new(key), owner, timeout, state)
    }

    pub(super) fn of(
        record: Arc<Record>,
        owner: Owner,
        timeout: Duration,
        state: State,
    ) -> Arc<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Arc::new(Self {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            record,
            owner,
            timeout,
            ended: Notify::new(),
            state: Mutex::new(state),
        })
    }

    /// The key that the server has it under.
    pub(crate) fn key(&self) -> &HoldKey {
        &self.record.key
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the hold has ended.
    pub(crate) async fn ended(&self) {
        let signal = self.ended.notified();
        tokio::pin!(signal);
        // Registered before the check, so that an end in between is not missed.
        signal.as_mut().enable();
        if !self.lock().has_ended() {
            signal.await;
        }
    }

    /// Notes that the server granted the first level, by a request sent at `sent`.
    pub(crate) fn granted(
        &self,
        sent: BootInstant,
        lease_mode: LeaseMode,
        max_hold: Option<Duration>,
        tokens: Option<Tokens>,
    ) {
        self.record.enter();
        let mut state = self.lock();
        state.schedule = Schedule::new(sent, lease_mode.lease(), max_hold);
        state.hold(lease_mode, tokens);
        state.look_after(self.key(), sent);
    }

    /// Counts one more level, which the caller is about to ask for. Returns the share to ask for, or `None` if the hold
    /// has ended.
    pub(crate) fn claim_level(&self) -> Option<u32> {
        // A record that several holds have is one level on the server, whatever each of them has.
        if !self.record.was_joined() {
            // The hold may come to owe several releases, so its record is not passed on.
            self.record.stay();
        }
        {
            let mut state = self.lock();
            if !state.is_live(BootInstant::now()) {
                return None;
            }
            state.levels += 1;
        }
        Some(self.share())
    }

    /// Returns how many levels the server should count for what this hold has.
    pub(crate) fn share(&self) -> u32 {
        match self.record.was_joined() {
            true => self.levels().min(1),
            false => self.levels(),
        }
    }

    /// Adds a guard to a level counted before. The server confirmed a lease of at least that of `lease_mode` after
    /// `sent`.
    pub(crate) fn guard_level(&self, sent: BootInstant, lease_mode: LeaseMode) -> bool {
        let mut state = self.lock();
        if !state.is_live(BootInstant::now()) {
            return false;
        }
        state.schedule.confirmed(sent, lease_mode.lease());
        state.add_guard(lease_mode);
        true
    }

    /// Whether a level of this hold has no guard.
    pub(crate) fn has_spare_level(&self) -> bool {
        let state = self.lock();
        state.guards < state.levels
    }

    /// Gives one level back; `guard` is the lease mode of the guard that goes with it. Returns what is left of the
    /// record, or `None` if the hold had ended before. A hold with no level left has ended.
    pub(crate) fn remove_level(&self, guard: Option<LeaseMode>) -> Option<Left> {
        {
            let mut state = self.lock();
            if state.phase != Phase::Held {
                return None;
            }
            if let Some(lease_mode) = guard {
                state.remove_guard(lease_mode);
            }
            state.levels = state.levels.saturating_sub(1);
            state.bound_detached();
            if state.levels > 0 {
                return Some(Left::Levels);
            }
            state.phase = Phase::Ended;
        }
        // If a handle gave back the level of a guard, that guard is still there and learns of the end.
        self.ended.notify_waiters();
        Some(self.leave_record())
    }

    fn leave_record(&self) -> Left {
        match self.record.leave() {
            true => Left::Others,
            false => Left::Nothing,
        }
    }

    /// Takes a guard off and leaves its level as it is. Returns whether other guards are left.
    pub(crate) fn detach(&self, lease_mode: LeaseMode) -> bool {
        let mut state = self.lock();
        state.remove_guard(lease_mode);
        state.detached += 1;
        state.bound_detached();
        state.guards > 0
    }

    /// Ends the hold for good, except for levels left to their owner. Returns what is left of the record, or `None` if
    /// the hold had ended before.
    pub(crate) fn end(&self) -> Option<Left> {
        let lives = {
            let mut state = self.lock();
            let is_live = state.is_live(BootInstant::now());
            if state.phase != Phase::Held {
                return None;
            }
            state.phase = Phase::Ended;
            state.levels = state.detached;
            is_live && state.levels > 0
        };
        self.ended.notify_waiters();
        // Levels left to their owner keep the record until its lease ends.
        if lives {
            return Some(Left::Levels);
        }
        Some(self.leave_record())
    }

    /// Returns how many levels the hold has here.
    pub(crate) fn levels(&self) -> u32 {
        self.lock().levels
    }

    /// Returns what became of the release of the last level so far.
    pub(crate) fn release(&self) -> Release {
        self.lock().release
    }

    /// Notes what became of the release of the last level.
    pub(crate) fn note_release(&self, release: Release) {
        self.lock().release = release;
    }

    pub(crate) fn is_guarded(&self) -> bool {
        self.lock().guards > 0
    }

    /// Whether a guard asks for renewal, which soon shows when the hold is gone.
    pub(crate) fn is_renewed(&self) -> bool {
        self.lock().renewed > 0
    }

    /// Whether the hold has one level and one guard, so that nobody else depends on its lease.
    pub(crate) fn has_one_guard(&self) -> bool {
        let state = self.lock();
        state.levels == 1 && state.guards == 1
    }

    /// Whether the hold was ever granted to this process.
    pub(crate) fn was_granted(&self) -> bool {
        self.lock().phase != Phase::Pending
    }

    /// Whether a release by this hold's key surely gives back this hold. A hold that is not told apart from others is
    /// surely ours only while a lease that was granted here can be trusted.
    pub(crate) fn is_surely_ours(&self) -> bool {
        let state = self.lock();
        let granted = state.phase != Phase::Pending;
        self.key().is_told_apart() || granted && BootInstant::now() < state.schedule.deadline()
    }

    /// Notes that the server has the hold, by a request sent at `sent`, and that it is given back at once.
    pub(crate) fn taken_over_to_release(&self, sent: BootInstant) {
        let mut state = self.lock();
        state.phase = Phase::Ended;
        // `is_surely_ours` counts on this deadline.
        state.schedule = Schedule::new(sent, state.schedule.lease(), None);
    }

    /// Whether the hold was granted, has not ended, and has a lease that can be trusted.
    pub(crate) fn is_live(&self) -> bool {
        self.lock().is_live(BootInstant::now())
    }

    /// Returns what is left of the local promise; zero if the hold is not live.
    pub(crate) fn remaining(&self) -> Duration {
        let now = BootInstant::now();
        let state = self.lock();
        if state.is_live(now) {
            now.until(state.schedule.deadline())
        } else {
            Duration::ZERO
        }
    }

    /// Returns the fencing token, of a fenced lock.
    pub(crate) fn token(&self) -> Option<u64> {
        self.lock().tokens.map(|tokens| tokens.first)
    }

    /// Returns the longest that the server may keep this hold, or its place in a queue, if no further request reaches
    /// it.
    pub(crate) fn longest_kept(&self) -> Duration {
        let lease = self.lock().schedule.longest().get();
        match self.key().kind {
            Kind::Fair(_) => lease + PLACE_KEPT,
            _ => lease,
        }
    }
}
