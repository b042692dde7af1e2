//! What changes about a hold: its phase, its levels and guards, and when its lease has to be renewed.
//!
//! # Invariants
//!
//! 1. `guards <= levels` as long as a hold is held, except between a handle's `unlock` and the end of the guard whose
//!    level that took, and after a level that has a guard was adopted again, here or by another process.
//! 2. `detached <= levels - guards`: a level that was left to its owner has no guard.
//! 3. `renewed <= guards`, and the schedule renews only while `renewed > 0`.
//! 4. `Ended` is final. `levels` is then what was left to the owner, or zero.

use std::time::Duration;

use tracing::Span;

use crate::clock::BootInstant;
use crate::loss::LossReason;
use crate::options::{LeaseMode, LeaseTime};
use crate::protocol::acquired::Tokens;
use crate::protocol::hold_key::HoldKey;
use crate::protocol::lock::Known;
use crate::protocol::renewal::Schedule;

/// How often a hold is checked whose hash others may cut down. Redisson's readers do so with each renewal, to their own
/// lease, which is three seconds or more; so a check comes in time to raise it again.
const CARE: Duration = Duration::from_secs(1);

/// What changes about a hold, under the mutex of the [`Hold`](super::hold::Hold).
#[derive(Debug)]
pub(crate) struct State {
    /// Only ever moves down the list.
    pub(super) phase: Phase,
    /// How many levels the server should count, those that are being asked for included: see `Hold::target`.
    pub(super) levels: u32,
    /// How many guards there are in this process. While there is none, a loss concerns nobody.
    pub(super) guards: u32,
    /// Levels without a guard that were left to their owner: at most as many as there are levels without a guard.
    pub(super) detached: u32,
    /// What is known of the server's record, which other processes may take levels from.
    pub(super) known: Known,
    /// Requests say what is known of that: a level was left to a named owner here, or adopted by it.
    pub(super) is_compared: bool,
    /// How many of the guards have no fixed lease.
    ///
    /// At zero the lease runs out by itself, as it should for guards with a fixed lease.
    pub(super) renewed: u32,
    /// It has had a second level or guard, so another call may need the turn of its record while one releases.
    pub(super) was_nested: bool,
    /// The span of the time for which it is held, if the client traces holds.
    pub(super) span: Option<Box<Span>>,
    /// What became of the release that is owed for the last level. Means nothing before.
    pub(super) release: Release,
    /// The deadline, and when the hold is due for a renewal or a check.
    pub(crate) schedule: Schedule,
    /// Since when it is held: an instant before the request was sent, or the takeover in memory.
    pub(super) since: BootInstant,
    /// The fencing tokens, of a fenced lock.
    ///
    /// The one that this hold has, and those that its successors may have.
    pub(super) tokens: Option<Tokens>,
    /// No warning is logged any more of a call that may wait for this hold without end.
    ///
    /// There is one for each hold: its holder may just as well work for long.
    is_wait_known: bool,
    /// It is the term of a leader.
    pub(super) is_term: bool,
    /// Where this hold stands in the watchdog's registry: the first part of its key there. `None` if it is not in it.
    /// Behind the registry only for a hold that the watchdog has just taken out as due.
    pub(crate) watched: Option<BootInstant>,
}

/// The phases of a hold, in the order of its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Asked for, not granted. The server may have it all the same.
    Pending,
    /// Granted. Whether it is live depends on the deadline too.
    Held,
    /// Given back or lost, and why: [`Unlocked`](LossReason::Unlocked) if it was given back.
    Ended(LossReason),
}

/// What became of the release of the last level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Release {
    /// Not sent so far, or not carried out as far as is known.
    Owed,
    /// Carried out, or nothing is owed: the record was passed on.
    Done,
}

impl State {
    /// The state of a hold that is asked for, or that `hold` is about to be called on.
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
            release: Release::Owed,
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
    /// Both the grant by the server and the takeover in memory end here.
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

    /// Whether the hold has ended. One whose deadline has passed has not, until the watchdog or a guard notices.
    pub(crate) fn has_ended(&self) -> bool {
        matches!(self.phase, Phase::Ended(_))
    }

    /// Whether it is held and has no guard: it was left to its owner, and lasts until the deadline that it has. An
    /// answer about the record moves that deadline no more.
    pub(crate) fn is_left(&self) -> bool {
        self.phase == Phase::Held && self.guards == 0
    }

    /// Schedules an early check of a hold with this key, if others may cut down what the hold depends on.
    ///
    /// A lease of less than three times that is looked at often enough by its renewals.
    pub(crate) fn look_after(&mut self, key: &HoldKey, now: BootInstant) {
        if key.kind.is_shared() && self.schedule.longest().get() > CARE * 3 {
            self.schedule.check(now.plus(CARE));
        }
    }

    /// Notes that a renewal sent at `sent` was confirmed. The guards that asked for it may be gone by now.
    ///
    /// The schedule takes the deadline from `sent`, and only if it is later than the present one.
    pub(crate) fn renewed(&mut self, sent: BootInstant, lease: LeaseTime) {
        self.schedule.confirmed(sent, lease);
        // Otherwise the lease that is confirmed is the last one.
        if self.renewed > 0 {
            self.schedule.renew(sent, lease, fastrand::f64());
        }
    }

    /// Returns the lease of a hold that has stood for at least as long, if a call that waits for it would be news.
    pub(super) fn outlasts_its_lease(&self, now: BootInstant) -> Option<Duration> {
        let lease = self.schedule.lease().get();
        let stands = self.phase == Phase::Held && self.schedule.begun().until(now) >= lease;
        (stands && !self.is_wait_known).then_some(lease)
    }

    /// Has no warning logged any more of calls that wait for this hold.
    pub(crate) fn wait_is_known(&mut self) {
        self.is_wait_known = true;
    }

    /// Notes that a request about the hold failed, and schedules the next. A renewal is only tried again while a guard
    /// asks for one.
    pub(crate) fn unanswered(&mut self, now: BootInstant, renewing: bool) {
        self.schedule.unanswered(now, renewing && self.renewed > 0);
    }

    /// Returns why the hold cannot be relied on at `now`, if it was granted and cannot.
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

    /// Restores invariant 2 after levels or guards have changed: whichever level goes first, one with a guard is not
    /// counted as left to the owner.
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

    /// Adds a guard to a level that has none. Renews from now on if its lease mode asks for it; the lease of the guard
    /// that came last is the one that renewals set.
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

    /// Takes a guard off. With the last that is renewed, renewing stops at once: a renewal after the release would be
    /// about a hold that is gone.
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
