//! The mutable state of a hold: its phase, its levels and guards, and when its lease has to be renewed.
//!
//! # Invariants
//!
//! 1. `guards <= levels` as long as a hold is held, with two exceptions: between a handle's `unlock` and the end of the
//!    guard whose level it took, and after a level that has a guard was adopted again, here or by another process.
//! 2. `detached <= levels - guards`: a level that was left to its owner has no guard.
//! 3. `renewed <= guards`, and the schedule renews only while `renewed > 0`.
//! 4. `Ended` is final. `levels` then counts what was left to the owner, or is zero.

use std::time::Duration;

use tracing::Span;

use crate::clock::BootInstant;
use crate::loss::LossReason;
use crate::options::{LeaseMode, LeaseTime};
use crate::protocol::acquired::Tokens;
use crate::protocol::hold_key::HoldKey;
use crate::protocol::lock::Known;
use crate::protocol::renewal::Schedule;

/// How often to check a hold whose lease others may shorten. Each renewal by a Redisson reader sets the lease of the
/// whole hash to its own, which is three seconds or more. So a check comes in time to raise it again.
const CARE: Duration = Duration::from_secs(1);

/// The mutable state of a [`Hold`](super::hold::Hold), under its mutex.
#[derive(Debug)]
pub(crate) struct HoldState {
    /// Only ever moves down the list.
    pub(super) phase: Phase,
    /// How many levels the server should count, those being requested included: see `Hold::target`.
    pub(super) levels: u32,
    /// How many guards there are in this process. While there is none, a loss concerns nobody.
    pub(super) guards: u32,
    /// Levels without a guard that were left to their owner: at most as many as there are levels without a guard.
    pub(super) detached: u32,
    /// What is known of the server's record. Other processes may take levels from it.
    pub(super) known: Known,
    /// Whether requests state what is known: a level was left to a named owner here, or adopted by it.
    pub(super) is_compared: bool,
    /// How many of the guards have no fixed lease.
    ///
    /// At zero the lease runs out by itself, as it should for guards with a fixed lease.
    pub(super) renewed: u32,
    /// Whether it has had a second level or guard, so that another call may need the turn of its record during a
    /// release.
    pub(super) was_nested: bool,
    /// The tracing span of the hold, if the client traces holds.
    pub(super) span: Option<Box<Span>>,
    /// Whether its record was passed on, so that it owes no release.
    pub(super) was_passed_on: bool,
    /// The deadline, and when the hold is due for a renewal or a check.
    pub(crate) schedule: Schedule,
    /// Since when it is held: an instant before the request was sent, or the instant of the takeover in memory.
    pub(super) since: BootInstant,
    /// The fencing tokens of a fenced lock.
    ///
    /// Includes the token of this hold and those that its successors may use.
    pub(super) tokens: Option<Tokens>,
    /// Whether a call that may wait for this hold forever has been logged.
    ///
    /// Logged once for each hold, since its holder may simply have much to do.
    is_wait_known: bool,
    /// Whether it is the term of a leader.
    pub(super) is_term: bool,
    /// The first part of this hold's key in the watchdog's registry. `None` if it is not in the registry. Differs from
    /// the registry only for a hold that the watchdog has just taken out as due.
    pub(crate) watched: Option<BootInstant>,
}

/// The phases of a hold, in the order of its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Requested and not granted. The server may have it all the same.
    Pending,
    /// Granted. Whether it is live depends on the deadline too.
    Held,
    /// Given back or lost, with the reason: [`Unlocked`](LossReason::Unlocked) if it was given back.
    Ended(LossReason),
}

impl HoldState {
    /// Returns the state of a hold that is being requested, or that `hold` is about to be called on.
    pub(super) fn new(schedule: Schedule) -> Self {
        Self {
            phase: Phase::Pending,
            levels: 0,
            guards: 0,
            detached: 0,
            known: Known::default(),
            is_compared: false,
            renewed: 0,
            was_nested: false,
            span: None,
            was_passed_on: false,
            schedule,
            since: BootInstant::NEVER,
            tokens: None,
            is_wait_known: false,
            is_term: false,
            watched: None,
        }
    }

    /// Makes the hold stand from now on, with one level and its guard. It counts as held since `since`.
    ///
    /// Called for a grant by the server and for a takeover in memory.
    pub(super) fn hold(
        &mut self,
        since: BootInstant,
        lease_mode: LeaseMode,
        tokens: Option<Tokens>,
    ) {
        self.phase = Phase::Held;
        self.since = since;
        self.levels = 1;
        self.known.recorded = 1;
        self.tokens = tokens;
        self.add_guard(lease_mode);
    }

    /// Whether the hold has ended. A hold whose deadline has passed ends only when the watchdog or a guard notices.
    pub(crate) fn has_ended(&self) -> bool {
        matches!(self.phase, Phase::Ended(_))
    }

    /// Whether it is held and has no guard. It was left to its owner then, and lasts until its present deadline, which
    /// no answer about the record moves.
    pub(crate) fn is_left(&self) -> bool {
        self.phase == Phase::Held && self.guards == 0
    }

    /// Schedules an early check of a hold with this key, if others may shorten its lease.
    ///
    /// For a lease of less than three times [`CARE`], the renewals come often enough.
    pub(crate) fn look_after(&mut self, key: &HoldKey, now: BootInstant) {
        if key.kind.is_shared() && self.schedule.longest().get() > CARE * 3 {
            self.schedule.check(now.plus(CARE));
        }
    }

    /// Notes that a renewal sent at `sent` was confirmed. The guards that asked for it may be gone by now.
    ///
    /// The new deadline counts from `sent`. It takes effect only if it is later than the present one.
    pub(crate) fn renewed(&mut self, sent: BootInstant, lease: LeaseTime) {
        self.schedule.confirmed(sent, lease);
        // Otherwise the confirmed lease is the last one.
        if self.renewed > 0 {
            self.schedule.renew(sent, lease, fastrand::f64());
        }
    }

    /// Returns the lease of a hold that has stood for at least that long, if no call that waits for it was logged yet.
    pub(super) fn outlasts_its_lease(&self, now: BootInstant) -> Option<Duration> {
        let lease = self.schedule.lease().get();
        let stands = self.phase == Phase::Held && self.schedule.begun().until(now) >= lease;
        (stands && !self.is_wait_known).then_some(lease)
    }

    /// Suppresses further warnings about calls that wait for this hold.
    pub(crate) fn wait_is_known(&mut self) {
        self.is_wait_known = true;
    }

    /// Notes that a request about the hold failed, and schedules the next. A renewal is repeated only while a guard
    /// asks for one.
    pub(crate) fn unanswered(&mut self, now: BootInstant, renewing: bool) {
        self.schedule.unanswered(now, renewing && self.renewed > 0);
    }

    /// Returns why a hold that was granted cannot be relied on at `now`, or `None`.
    pub(super) fn loss(&self, now: BootInstant) -> Option<LossReason> {
        match self.phase {
            Phase::Ended(reason) => Some(reason),
            Phase::Held if now >= self.schedule.deadline() => Some(LossReason::Expired),
            Phase::Held | Phase::Pending => None,
        }
    }

    /// Whether the hold can be relied on at `now`.
    pub(super) fn is_live(&self, now: BootInstant) -> bool {
        self.phase == Phase::Held && now < self.schedule.deadline()
    }

    /// Restores invariant 2 after levels or guards have changed: a level with a guard never counts as left to the
    /// owner.
    pub(super) fn bound_detached(&mut self) {
        self.detached = self.detached.min(self.levels.saturating_sub(self.guards));
    }

    /// Takes off the levels that other processes have taken over: first those that were left to the owner. Returns
    /// `false` if `taken` is no more than was known.
    pub(super) fn taken_over(&mut self, taken: u32) -> bool {
        let gone = taken.saturating_sub(self.known.taken);
        self.known.taken += gone;
        self.known.recorded = self.known.recorded.saturating_sub(gone);
        self.detached = self.detached.saturating_sub(gone);
        self.levels = self.levels.saturating_sub(gone);
        self.bound_detached();
        gone > 0
    }

    /// Adds a guard to a level that has none. Renews from now on if its lease mode asks for it. Renewals set the lease
    /// of the guard that came last.
    pub(super) fn add_guard(&mut self, lease_mode: LeaseMode) {
        self.guards += 1;
        self.was_nested |= self.guards > 1;
        self.bound_detached();
        if lease_mode.is_renewed() {
            self.renewed += 1;
            self.schedule
                .renew(BootInstant::now(), lease_mode.lease(), fastrand::f64());
        }
    }

    /// Takes a guard off. Renewing stops with the last renewed guard: a renewal after the release would concern a hold
    /// that is gone.
    pub(super) fn remove_guard(&mut self, lease_mode: LeaseMode) {
        self.guards = self.guards.saturating_sub(1);
        if lease_mode.is_renewed() {
            self.renewed = self.renewed.saturating_sub(1);
            if self.renewed == 0 {
                self.schedule.stop_renewing();
            }
        }
    }
}
