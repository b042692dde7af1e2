//! A hold of this process: the local promise, and what the server should record of it.
//!
//! The life of a hold:
//!
//! 1. Made when an acquisition begins, before the first request, with a fresh acquisition id (`hold/attempt`). Nothing
//!    refers to it but the attempt and its `Undo`.
//! 2. Granted: it is noted in the local lock and in the watchdog's registry, and gets its first guard. Or it is made by
//!    [`pass_to`](Hold::pass_to) or [`join`](Hold::join) from a hold whose record it goes on with, and stands from the
//!    start.
//! 3. Levels and guards come and go. The deadline moves with each confirmed renewal. A level that was left to a named
//!    owner may be taken over by another process, and is counted here until a request finds that out.
//! 4. Ended, by its last level or because it was lost. A release may still be owed; the `Undo` for it keeps the hold.

use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tracing::Span;
use tracing::field::debug;

use super::hold_state::Phase;
pub(crate) use super::hold_state::{Release, State};
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
use crate::protocol::lock::Target;
use crate::protocol::renewal::Schedule;

/// One hold, shared by its guards, the watchdog and the reaper.
///
/// # Invariants
///
/// 1. `levels` is the share that the server should record for this hold, unless other holds have its record too; then
///    the record counts one level for all of them. A level is counted from before the request for it is sent until
///    before the request that gives it back is sent. Code that lowers `levels` owes the server a release, an
///    [`Undo`](super::undo::Undo). The server may have less of a named owner: see [`Known`](crate::protocol::lock::Known).
/// 2. A hold that has ended never becomes live again, and has no levels except those that were left to their owner.
/// 3. Requests that change the share are sent one at a time, under the record's turn. The acquisition id makes renewals
///    and checks harmless whenever they arrive.
/// 4. `state` is locked only briefly and never across an await; the watchdog's registry may be locked inside.
///
/// What changes is behind `state`; the rest is fixed when the hold is made.
#[derive(Debug)]
pub(crate) struct Hold {
    /// Tells the holds of this process apart, unlike the acquisition id, which holds that pass a record on have in
    /// common.
    pub(crate) id: u64,
    /// What the server has. Shared with the holds before and after this one, and with readers that have it at the same
    /// time.
    pub(crate) record: Arc<Record>,
    /// The owner by whom it is looked up here. The server may see another one: the first that had the record.
    pub(crate) owner: Owner,
    /// How long one request for this hold may take.
    pub(crate) timeout: Duration,
    /// Tells the tasks that wait for it that the hold has ended.
    ///
    /// Notified when `state` has the end.
    pub(super) ended: Notify,
    pub(super) state: Mutex<State>,
}

/// Returns 64 bits that nobody can foresee: a keyed hash of a counter and of the clock. The counter makes two ids of
/// this process equal only by chance. The clock makes two copies of a process diverge, as after a virtual machine was
/// copied. Cheaper than asking the system for each id.
///
/// So nobody else can make up a request that passes for one about this hold.
pub(crate) fn fresh_acquisition_id() -> u64 {
    static KEY: LazyLock<RandomState> = LazyLock::new(RandomState::new);
    static NEXT: AtomicU64 = AtomicU64::new(0);
    KEY.hash_one((NEXT.fetch_add(1, Ordering::Relaxed), BootInstant::now()))
}

/// What is left of a record when one of its holds has given a level back, and so who owes what for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Left {
    /// Levels of this hold: the server is to record fewer levels, and keeps the lock.
    Levels,
    /// Other holds: nothing is owed. The last of them releases the record.
    Others,
    /// No level: the record is passed on or released.
    Nothing,
}

impl Hold {
    /// Makes a hold that is about to be asked for. Its schedule has a deadline, but the hold is not live before
    /// [`granted`](Self::granted) is called.
    pub(crate) fn new(
        key: HoldKey,
        owner: Owner,
        lease: LeaseTime,
        timeout: Duration,
    ) -> Arc<Self> {
        let state = State::new(Schedule::new(BootInstant::now(), lease, None));
        Self::of(Record::new(key), owner, timeout, state)
    }

    /// Each has a number of its own, from here, whichever way it came about.
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

    /// Returns the owner as people read it.
    pub(crate) fn shown_owner(&self) -> impl fmt::Display {
        label::shown(self.key().label(), &self.owner)
    }

    /// The key that the server has it under: the name, the owner field and the acquisition id of the record.
    pub(crate) fn key(&self) -> &HoldKey {
        &self.record.key
    }

    /// Locks what changes about the hold. For several looks or changes in one step; never across an await, and the
    /// local lock's mutex must not be asked for meanwhile.
    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
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

    /// Returns why the hold cannot be trusted, or `None` if it can. That its deadline has passed counts as
    /// [`Expired`](LossReason::Expired) before anybody has ended it.
    pub(crate) fn loss(&self) -> Option<LossReason> {
        self.lock().loss(BootInstant::now())
    }

    /// Notes that the server granted the first level, by a request sent at `sent`.
    ///
    /// Called in one step without an await with noting the hold in the local lock and the watchdog, so that no hold
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
    /// The level counts from now on, whether the request succeeds or not, so that a release which is sent meanwhile
    /// leaves it on the server. The caller gives it back by [`Session::release_level`](super::Session::release_level)
    /// if it is not granted.
    pub(crate) fn claim_level(&self) -> bool {
        // A record that several holds have is one level on the server, whatever each of them has.
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
    /// Returns `false` if the hold cannot be trusted any more. What is owed for it then is worked out when it is lost.
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

    /// Returns how many levels the server should count for what this hold has.
    ///
    /// A request reads it when it is about to be sent, under the record's turn. For a release, that is not when it came
    /// to be owed: levels that came and went in between are then included.
    pub(crate) fn target(&self) -> Target {
        let most = match self.record.was_joined() {
            true => 1,
            false => u32::MAX,
        };
        let state = self.lock();
        Target {
            share: state.levels.min(most),
            known: state.is_compared.then_some(state.known),
        }
    }

    /// Notes the share that the server has recorded, by its answer. The caller has the record's turn.
    pub(crate) fn recorded(&self, share: u32) {
        self.lock().known.recorded = share;
    }

    /// Notes a release without an answer. Where it said what is known, the server can tell whether it was carried out.
    pub(crate) fn may_be_lowered(&self, to: Target) {
        let recorded = &mut self.lock().known.recorded;
        if to.known.is_none() {
            *recorded = to.share.min(*recorded);
        }
    }

    /// Notes how many levels other processes have taken over, and takes them off. Returns what is left here, or `None`
    /// if that many were known.
    pub(crate) fn taken_over(&self, taken: u32) -> Option<Left> {
        if !self.lock().taken_over(taken) {
            return None;
        }
        Some(self.lower(|_| ()).unwrap_or(Left::Levels))
    }

    /// Takes one level off, which the caller then gives back to the server or leaves to others, as the answer says.
    /// `guard` is the lease mode of the guard that goes with it, if one does. Returns `None` if the hold had ended
    /// before.
    ///
    /// A hold without a level has ended: its guards learn of it here, before anything is sent.
    pub(crate) fn remove_level(&self, guard: Option<LeaseMode>) -> Option<Left> {
        self.lower(|state| {
            // A handle's `unlock` names no guard. The guard that is left without a level learns of it when the hold
            // ends.
            if let Some(lease_mode) = guard {
                state.remove_guard(lease_mode);
            }
            state.levels = state.levels.saturating_sub(1);
            state.bound_detached();
        })
    }

    /// Takes levels off, and ends the hold if none is left. Returns `None` if it had ended before.
    fn lower(&self, take_off: impl FnOnce(&mut State)) -> Option<Left> {
        let span = {
            let mut state = self.lock();
            if state.phase != Phase::Held {
                return None;
            }
            take_off(&mut state);
            if state.levels > 0 {
                return Some(Left::Levels);
            }
            state.phase = Phase::Ended(LossReason::Unlocked);
            state.span.take()
        };
        // A subscriber may do anything with the end of a span, so not under the mutex.
        drop(span);
        // If a handle gave back the level of a guard, that guard is still there and learns of the end.
        self.ended.notify_waiters();
        Some(self.leave_record())
    }

    /// Notes that this hold no longer has its record, and returns whether others do.
    fn leave_record(&self) -> Left {
        match self.record.leave() {
            true => Left::Others,
            false => Left::Nothing,
        }
    }

    /// Whether other processes may have levels of this owner, and take over those of this hold.
    pub(crate) fn may_be_elsewhere(&self) -> bool {
        self.key().is_named() && self.key().kind.is_reentrant()
    }

    /// Has requests say from now on what is known of levels that other processes have taken over.
    pub(crate) fn compare(&self) {
        self.lock().is_compared |= self.may_be_elsewhere();
    }

    /// Takes a guard off and leaves its level to the owner, as a guard's `detach` does. Returns whether other guards
    /// are left: if not, nobody renews the lease any more, and the hold lasts until its deadline.
    pub(crate) fn detach(&self, lease_mode: LeaseMode) -> bool {
        let mut state = self.lock();
        state.remove_guard(lease_mode);
        state.detached += 1;
        state.is_compared |= self.may_be_elsewhere();
        state.bound_detached();
        state.guards > 0
    }

    /// Ends the hold for good, for this reason, except for levels left to their owner. Returns what is left of the
    /// record, or `None` if the hold had ended before.
    ///
    /// Called by the watchdog alone: it works out what is owed for the loss.
    pub(crate) fn end(&self, loss: LossReason) -> Option<Left> {
        let (lives, reason, span) = {
            let mut state = self.lock();
            let is_live = state.is_live(BootInstant::now());
            if state.phase != Phase::Held {
                return None;
            }
            // In one step, so that nobody sees an end without its reason. Who has seen the deadline pass was told that
            // the lease expired, and is not told otherwise now.
            let reason = match is_live {
                true => loss,
                false => LossReason::Expired,
            };
            state.phase = Phase::Ended(reason);
            state.levels = state.detached;
            // With a lease that has passed, detached levels are gone too.
            (is_live && state.levels > 0, reason, state.span.take())
        };
        if let Some(span) = span {
            span.record("lost", debug(reason));
        }
        self.ended.notify_waiters();
        // Levels left to their owner keep the record until its lease ends.
        if lives {
            return Some(Left::Levels);
        }
        Some(self.leave_record())
    }

    /// Returns how many levels the hold has here, those without a guard included.
    pub(crate) fn levels(&self) -> u32 {
        self.lock().levels
    }

    /// Returns what became of the release of the last level so far.
    pub(crate) fn release(&self) -> Release {
        self.lock().release
    }

    /// Notes what became of the release of the last level. Only the request that releases calls this, under the
    /// record's turn.
    pub(crate) fn note_release(&self, release: Release) {
        self.lock().release = release;
    }

    /// Notes the span of the time for which it is held. It ends with the hold.
    pub(crate) fn trace(&self, span: Span) {
        let span = Box::new(span);
        let mut state = self.lock();
        if state.phase == Phase::Held {
            state.span = Some(span);
        }
    }

    /// Returns for how long it has been held.
    pub(crate) fn held_for(&self) -> Duration {
        self.lock().since.until(BootInstant::now())
    }

    /// Whether anybody here relies on the hold: a loss without a guard is not reported.
    pub(crate) fn is_guarded(&self) -> bool {
        self.lock().guards > 0
    }

    /// Whether a guard asks for renewal, which soon shows when the hold is gone.
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

    /// Whether the hold has one level, which was left to its owner, perhaps until it was lost.
    pub(crate) fn has_one_left(&self) -> bool {
        let state = self.lock();
        state.detached == 1 && state.levels == 1
    }

    /// Whether the hold was ever granted to this process.
    ///
    /// A hold that was not may still stand on the server, by a request whose answer is missing.
    pub(crate) fn was_granted(&self) -> bool {
        self.lock().phase != Phase::Pending
    }

    /// Whether a release by this hold's key surely gives back this hold. A hold that is not told apart from others is
    /// surely ours only while a lease that was granted here can be trusted.
    ///
    /// With a named owner under a plain lock, for one, the server has nothing but the owner's value. A release by it
    /// could take the lock from another process that has the same name.
    pub(crate) fn is_surely_ours(&self) -> bool {
        let state = self.lock();
        let granted = state.phase != Phase::Pending;
        // A lease that is over here may be over there, and the value may stand for somebody else by now.
        self.key().is_told_apart() || granted && BootInstant::now() < state.schedule.deadline()
    }

    /// Notes that the server has the hold, by a request sent at `sent`, and that it is given back at once.
    ///
    /// For an `unlock` of a level that another process acquired: it never has a guard here.
    pub(crate) fn taken_over_to_release(&self, sent: BootInstant) {
        let mut state = self.lock();
        state.phase = Phase::Ended(LossReason::Unlocked);
        // `is_surely_ours` counts on this deadline.
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

    /// Returns how much of the time of one request is left, for what began at `began`. Behind the longest wait for a
    /// turn, enough for a server that is far away.
    pub(crate) fn time_left(&self, began: BootInstant) -> Duration {
        let spent = began.until(BootInstant::now()).min(self.longest_turn());
        SHORTEST_TIMEOUT.max(self.timeout - spent)
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

    /// Notes that this is the term of a leader: its loss is told as that, and others wait for it as long as it lasts by
    /// its nature.
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
    /// Each hold that goes on with the record has the next one, so tokens grow in the order of the holds.
    pub(crate) fn token(&self) -> Option<u64> {
        self.lock().tokens.map(|tokens| tokens.first)
    }

    /// Returns the longest that the server may keep this hold, or its place in a queue, if no further request reaches
    /// it.
    ///
    /// Until then a request that was not answered may show its effect, and what is owed is worth sending.
    pub(crate) fn longest_kept(&self) -> Duration {
        let lease = self.lock().schedule.longest().get();
        match self.key().kind {
            Kind::Fair(_) => lease + PLACE_KEPT,
            _ => lease,
        }
    }
}
