//! A hold of this process: the local promise, and the record that the server should have of it.
//!
//! The life of a hold:
//!
//! 1. Made when an acquisition begins, before the first request, with a fresh acquisition id (`hold/attempt`). Only the
//!    attempt and its `Undo` refer to it.
//! 2. Granted: it is entered in the local lock and in the watchdog's registry, and gets its first guard. Alternatively,
//!    [`pass_to`](Hold::pass_to) or [`join`](Hold::join) makes it from a hold whose record it takes over, and it stands
//!    from the start.
//! 3. Levels and guards come and go. The deadline moves with each confirmed renewal. Another process may take over a
//!    level that was left to a named owner. That level counts here until a request finds out.
//! 4. Ended, by giving back its last level or by its loss. A release may still be owed; the `Undo` for it keeps the
//!    hold.

use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tracing::Span;
use tracing::field::debug;

pub(crate) use super::hold_state::HoldState;
use super::hold_state::Phase;
use super::record::Record;
pub(crate) use super::successor::Successor;
use crate::clock::BootInstant;
use crate::label;
use crate::loss::LossReason;
use crate::options::{LeaseMode, LeaseTime, SHORTEST_TIMEOUT};
use crate::owner::Owner;
use crate::protocol::acquired::Tokens;
use crate::protocol::fair::PLACE_KEPT;
use crate::protocol::hold_key::{HoldKey, Kind};
use crate::protocol::lock::ShareTarget;
use crate::protocol::renewal::Schedule;

/// One hold, shared by its guards, the watchdog and the reaper.
///
/// # Invariants
///
/// 1. `levels` is the share that the server should record for this hold, unless other holds have its record too. The
///    record then counts one level for all of them. A level counts from before the request for it is sent until before
///    the request that gives it back is sent. Code that lowers `levels` owes the server a release, an
///    [`Undo`](super::undo::Undo). The server may have less of a named owner: see
///    [`Known`](crate::protocol::lock::Known).
/// 2. A hold that has ended never becomes live again, and has no levels except those that were left to their owner.
/// 3. Requests that change the share are sent one at a time, under the record's turn. The acquisition id makes renewals
///    and checks harmless whenever they arrive.
/// 4. `state` is locked only briefly and never across an await; the watchdog's registry may be locked inside.
///
/// Only `state` changes; the rest is fixed when the hold is made.
#[derive(Debug)]
pub(crate) struct Hold {
    /// Unique in this process, unlike the acquisition id, which holds that pass a record on share.
    pub(crate) id: u64,
    /// The server's record. Shared with the holds before and after this one, and with readers that have it at the same
    /// time.
    pub(crate) record: Arc<Record>,
    /// The owner under whom this process finds it. The server may see another one: the first that had the record.
    pub(crate) owner: Owner,
    /// How long one request for this hold may take.
    pub(crate) timeout: Duration,
    /// Signals that the hold has ended.
    ///
    /// Notified after `state` is set to ended.
    pub(super) ended: Notify,
    pub(super) state: Mutex<HoldState>,
}

/// Returns 64 unpredictable bits: a keyed hash of a counter and of the clock. The counter makes two ids of this process
/// equal only by chance. The clock makes copies of a process diverge, as after a virtual machine was copied. This is
/// cheaper than asking the system for each id.
///
/// So nobody else can forge a request about this hold.
pub(crate) fn fresh_acquisition_id() -> u64 {
    static KEY: LazyLock<RandomState> = LazyLock::new(RandomState::new);
    static NEXT: AtomicU64 = AtomicU64::new(0);
    KEY.hash_one((NEXT.fetch_add(1, Ordering::Relaxed), BootInstant::now()))
}

/// What is left of a record after one of its holds has given a level back. Decides who owes what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Remainder {
    /// Levels of this hold: the server is to record fewer levels, and keeps the lock.
    Levels,
    /// Other holds: nothing is owed. The last of them releases the record.
    Others,
    /// No level: the record is passed on or released.
    Nothing,
}

impl Hold {
    /// Makes a hold that is about to be requested. Its schedule has a deadline, but the hold is not live before
    /// [`granted`](Self::granted) is called.
    pub(crate) fn new(
        key: HoldKey,
        owner: Owner,
        lease: LeaseTime,
        timeout: Duration,
    ) -> Arc<Self> {
        let state = HoldState::new(Schedule::new(BootInstant::now(), lease, None));
        Self::of(Record::new(key), owner, timeout, state)
    }

    /// Makes a hold of this record, with a fresh number.
    pub(super) fn of(
        record: Arc<Record>,
        owner: Owner,
        timeout: Duration,
        state: HoldState,
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

    /// Returns the owner as people read it.
    pub(crate) fn shown_owner(&self) -> impl fmt::Display {
        label::shown(self.key().label(), &self.owner)
    }

    /// Returns the key of the server's record: the name, the owner field and the acquisition id.
    pub(crate) fn key(&self) -> &HoldKey {
        &self.record.key
    }

    /// Locks the state of the hold, for several reads or changes in one step. Must not be held across an await, nor
    /// while locking the local lock's mutex.
    pub(crate) fn lock(&self) -> MutexGuard<'_, HoldState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the hold has ended, and returns why. Returns at once if it has ended before. Cancel safe.
    pub(crate) async fn ended(&self) -> LossReason {
        loop {
            let signal = self.ended.notified();
            tokio::pin!(signal);
            // Registered before the check, so that an end in between is not missed.
            signal.as_mut().enable();
            if let Phase::Ended(reason) = self.lock().phase {
                return reason;
            }
            signal.await;
        }
    }

    /// Returns why the hold cannot be trusted, or `None` if it can. A passed deadline counts as
    /// [`Expired`](LossReason::Expired), even before anybody has ended the hold.
    pub(crate) fn loss(&self) -> Option<LossReason> {
        self.lock().loss(BootInstant::now())
    }

    /// Notes that the server granted the first level, by a request sent at `sent`.
    ///
    /// Called in one step, without an await, with entering the hold in the local lock and the watchdog. So no hold
    /// stands that nobody renews.
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
        state.hold(sent, lease_mode, tokens);
        state.look_after(self.key(), sent);
    }

    /// Counts one more level, which the caller is about to ask for. Returns `false` if the hold has ended.
    ///
    /// The level counts from now on, whether the request succeeds or not, so that a release in the meantime leaves it
    /// on the server. The caller gives it back by [`Session::release_level`](super::Session::release_level) if it is
    /// not granted.
    pub(crate) fn claim_level(&self) -> bool {
        // A record that several holds share is one level on the server, however many levels each has.
        if !self.record.was_joined() {
            // The hold may come to owe several releases, so its record is not passed on.
            self.record.stay();
        }
        {
            let mut state = self.lock();
            if !state.is_live(BootInstant::now()) {
                return false;
            }
            state.levels += 1;
            state.was_nested = true;
        }
        true
    }

    /// Adds a guard to a level counted before. The server confirmed a lease of at least that of `lease_mode` after
    /// `sent`.
    ///
    /// Returns `false` if the hold cannot be trusted any more. What is owed then is worked out when the hold is lost.
    pub(crate) fn guard_level(&self, sent: BootInstant, lease_mode: LeaseMode) -> bool {
        let mut state = self.lock();
        if !state.is_live(BootInstant::now()) {
            return false;
        }
        state.schedule.confirmed(sent, lease_mode.lease());
        state.add_guard(lease_mode);
        true
    }

    /// Whether a level of this hold has no guard: it was left to its owner, and a call of that owner can take it
    /// without a request.
    pub(crate) fn has_spare_level(&self) -> bool {
        let state = self.lock();
        state.guards < state.levels
    }

    /// Returns how many levels the server should record for this hold.
    ///
    /// A request reads it under the record's turn, directly before it is sent. A release so includes levels that came
    /// and went since it was owed.
    pub(crate) fn target(&self) -> ShareTarget {
        let most = match self.record.was_joined() {
            true => 1,
            false => u32::MAX,
        };
        let state = self.lock();
        ShareTarget {
            share: state.levels.min(most),
            known: state.is_compared.then_some(state.known),
        }
    }

    /// Notes the share that the server has recorded according to its answer. The caller has the record's turn.
    pub(crate) fn recorded(&self, share: u32) {
        self.lock().known.recorded = share;
    }

    /// Notes a release without an answer. If the request stated what is known, the server can tell whether it was
    /// carried out.
    pub(crate) fn may_be_lowered(&self, to: ShareTarget) {
        let recorded = &mut self.lock().known.recorded;
        if to.known.is_none() {
            *recorded = to.share.min(*recorded);
        }
    }

    /// Notes how many levels other processes have taken over, and takes them off. Returns what is left here, or `None`
    /// if that many were known.
    pub(crate) fn taken_over(&self, taken: u32) -> Option<Remainder> {
        if !self.lock().taken_over(taken) {
            return None;
        }
        Some(self.lower(|_| ()).unwrap_or(Remainder::Levels))
    }

    /// Takes one level off. The caller then gives it back to the server or leaves it to others, as the returned value
    /// says. `guard` is the lease mode of the guard that is dropped with it, if any. Returns `None` if the hold had
    /// ended before.
    ///
    /// A hold without a level has ended: its guards learn of it here, before anything is sent.
    pub(crate) fn remove_level(&self, guard: Option<LeaseMode>) -> Option<Remainder> {
        self.lower(|state| {
            // A handle's `unlock` names no guard. A guard that is left without a level learns of it when the hold ends.
            if let Some(lease_mode) = guard {
                state.remove_guard(lease_mode);
            }
            state.levels = state.levels.saturating_sub(1);
            state.bound_detached();
        })
    }

    /// Takes levels off, and ends the hold if none is left. Returns `None` if it had ended before.
    fn lower(&self, take_off: impl FnOnce(&mut HoldState)) -> Option<Remainder> {
        let span = {
            let mut state = self.lock();
            if state.phase != Phase::Held {
                return None;
            }
            take_off(&mut state);
            if state.levels > 0 {
                return Some(Remainder::Levels);
            }
            state.phase = Phase::Ended(LossReason::Unlocked);
            state.span.take()
        };
        // Dropped outside the mutex: a subscriber may run any code at the end of a span.
        drop(span);
        // If a handle gave back the level of a guard, that guard is still there and learns of the end.
        self.ended.notify_waiters();
        Some(self.leave_record())
    }

    /// Detaches this hold from its record, and returns whether other holds have it.
    fn leave_record(&self) -> Remainder {
        match self.record.leave() {
            true => Remainder::Others,
            false => Remainder::Nothing,
        }
    }

    /// Whether other processes may have levels of this owner, and take over those of this hold.
    pub(crate) fn may_be_elsewhere(&self) -> bool {
        self.key().is_named() && self.key().kind.is_reentrant()
    }

    /// Makes requests state, from now on, what is known of levels that other processes have taken over.
    pub(crate) fn compare(&self) {
        self.lock().is_compared |= self.may_be_elsewhere();
    }

    /// Takes a guard off and leaves its level to the owner, as a guard's `detach` does. Returns whether other guards
    /// are left. If not, nobody renews the lease any more, and the hold lasts until its deadline.
    pub(crate) fn detach(&self, lease_mode: LeaseMode) -> bool {
        let mut state = self.lock();
        state.remove_guard(lease_mode);
        state.detached += 1;
        state.is_compared |= self.may_be_elsewhere();
        state.bound_detached();
        state.guards > 0
    }

    /// Ends the hold for good, for this reason, except for levels left to their owner. Returns what is left of the
    /// record, and whether a guard relied on the hold; or `None` if the hold had ended before.
    ///
    /// Only the watchdog calls this, and works out what is owed for the loss.
    pub(crate) fn end(&self, loss: LossReason) -> Option<(Remainder, bool)> {
        let (lives, guarded, reason, span) = {
            let mut state = self.lock();
            let is_live = state.is_live(BootInstant::now());
            if state.phase != Phase::Held {
                return None;
            }
            // Set in one step, so that nobody sees an end without its reason. A caller that saw the deadline pass was
            // told that the lease expired, so the reason stays that.
            let reason = match is_live {
                true => loss,
                false => LossReason::Expired,
            };
            state.phase = Phase::Ended(reason);
            // Once the lease has passed, detached levels are gone too, unless their owner has extended them elsewhere.
            state.levels = match is_live || self.key().is_named() {
                true => state.detached,
                false => 0,
            };
            let lives = is_live && state.levels > 0;
            (lives, state.guards > 0, reason, state.span.take())
        };
        if let Some(span) = span {
            span.record("lost", debug(reason));
        }
        self.ended.notify_waiters();
        // Levels left to their owner keep the record until its lease ends.
        let left = match lives {
            true => Remainder::Levels,
            false => self.leave_record(),
        };
        Some((left, guarded))
    }

    /// Returns how many levels the hold has here, those without a guard included.
    pub(crate) fn levels(&self) -> u32 {
        self.lock().levels
    }

    /// Whether its record was passed on, so that it owes no release.
    pub(crate) fn was_passed_on(&self) -> bool {
        self.lock().was_passed_on
    }

    /// Attaches a tracing span, which ends with the hold.
    pub(crate) fn trace(&self, span: Span) {
        let span = Box::new(span);
        let mut state = self.lock();
        if state.phase == Phase::Held {
            state.span = Some(span);
        }
    }

    /// Returns how long it has been held.
    pub(crate) fn held_for(&self) -> Duration {
        self.lock().since.until(BootInstant::now())
    }

    /// Whether anybody here relies on the hold: a loss without a guard is not reported.
    pub(crate) fn is_guarded(&self) -> bool {
        self.lock().guards > 0
    }

    /// Whether a guard asks for renewal. A renewal soon shows that a hold is gone.
    pub(crate) fn is_renewed(&self) -> bool {
        self.lock().renewed > 0
    }

    /// Whether it has had a second level or guard, so that several calls may release it.
    pub(super) fn was_nested(&self) -> bool {
        self.lock().was_nested
    }

    /// Whether the hold has one level and one guard, so that nobody else depends on its lease.
    pub(crate) fn has_one_guard(&self) -> bool {
        let state = self.lock();
        state.levels == 1 && state.guards == 1
    }

    /// Whether the hold has only a level that was left to its owner, or had until it was lost.
    pub(crate) fn has_one_left(&self) -> bool {
        let state = self.lock();
        state.detached == 1 && state.levels == 1
    }

    /// Whether the hold was ever granted to this process.
    ///
    /// A hold that was not may still stand on the server, by a request that was not answered.
    pub(crate) fn was_granted(&self) -> bool {
        self.lock().phase != Phase::Pending
    }

    /// Whether a release by this hold's key can give back nothing but this hold. If the key does not distinguish the
    /// hold from others, that is certain only while a lease that was granted here can be trusted.
    ///
    /// For a named owner of a plain lock, for example, the server has only the owner's value. A release by it could
    /// take the lock from another process with the same name.
    pub(crate) fn is_surely_ours(&self) -> bool {
        let state = self.lock();
        let granted = state.phase != Phase::Pending;
        // A lease that is over here may be over on the server, and the value may now stand for somebody else.
        self.key().is_told_apart() || granted && BootInstant::now() < state.schedule.deadline()
    }

    /// Notes that the server has the hold, by a request sent at `sent`, and that it is given back at once.
    ///
    /// For an `unlock` of a level that another process acquired. It never has a guard here.
    pub(crate) fn taken_over_to_release(&self, sent: BootInstant) {
        let mut state = self.lock();
        state.phase = Phase::Ended(LossReason::Unlocked);
        // `is_surely_ours` relies on this deadline.
        state.schedule = Schedule::new(sent, state.schedule.lease(), None);
    }

    /// Whether the hold was granted, has not ended, and has a lease that can be trusted.
    ///
    /// The deadline is the local promise: the server's key outlives it by a margin.
    pub(crate) fn is_live(&self) -> bool {
        self.lock().is_live(BootInstant::now())
    }

    /// How long a request may wait for its turn.
    pub(crate) fn longest_turn(&self) -> Duration {
        self.timeout / 4 * 3
    }

    /// Returns how much of the time of one request is left for work that began at `began`. Even after the longest wait
    /// for a turn, leaves enough for a distant server.
    pub(crate) fn time_left(&self, began: BootInstant) -> Duration {
        let spent = began.until(BootInstant::now()).min(self.longest_turn());
        SHORTEST_TIMEOUT.max(self.timeout.saturating_sub(spent))
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

    /// Marks the hold as the term of a leader. Its loss is logged as such, and a long wait for it is no reason for a
    /// warning.
    pub(crate) fn begins_a_term(&self) {
        let mut state = self.lock();
        state.is_term = true;
        state.wait_is_known();
    }

    /// Whether it is the term of a leader.
    pub(super) fn is_term(&self) -> bool {
        self.lock().is_term
    }

    /// Returns the fencing token, of a fenced lock.
    ///
    /// Each hold that takes over the record has the next one, so tokens grow in the order of the holds.
    pub(crate) fn token(&self) -> Option<u64> {
        self.lock().tokens.map(|tokens| tokens.first)
    }

    /// Returns how long the server may keep this hold, or its place in a queue, if no further request reaches it.
    ///
    /// Until then, an unanswered request may have an effect, and what is owed is worth sending.
    pub(crate) fn longest_kept(&self) -> Duration {
        let lease = self.lock().schedule.longest().get();
        match self.key().kind {
            Kind::Fair(_) => lease + PLACE_KEPT,
            _ => lease,
        }
    }
}
