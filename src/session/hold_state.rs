//! What a hold has here: its levels and guards, and when its lease has to be renewed.

use std::time::Duration;

use crate::clock::BootInstant;
use crate::options::{LeaseMode, LeaseTime};
use crate::protocol::answer::Tokens;
use crate::protocol::hold_key::HoldKey;
use crate::protocol::renewal::Schedule;

/// How often a hold is checked whose hash others may cut down. Redisson's readers do so with each renewal, to their own
/// lease, which is three seconds or more.
const CARE: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(crate) struct State {
    pub(super) phase: Phase,
    pub(super) levels: u32,
    pub(super) guards: u32,
    /// Levels without a guard that were left to their owner: at most as many as there are levels without a guard.
    pub(super) detached: u32,
    /// How many of the guards have no fixed lease.
    pub(super) renewed: u32,
    pub(super) release: Release,
    pub(crate) schedule: Schedule,
    /// The fencing tokens, of a fenced lock.
    pub(super) tokens: Option<Tokens>,
    /// Where this hold stands in the watchdog's registry.
    pub(crate) watched: Option<BootInstant>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Asked for, not granted.
    Pending,
    Held,
    Ended,
}

/// What became of the release of the last level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Release {
    Owed,
    /// Sent and not answered: the server may have carried it out.
    InDoubt,
    Done,
}

impl State {
    /// The state of a hold that is asked for.
    pub(super) fn new(schedule: Schedule) -> Self {
        Self {
            phase: Phase::Pending,
            levels: 0,
            guards: 0,
            detached: 0,
            renewed: 0,
            release: Release::Owed,
            schedule,
            tokens: None,
            watched: None,
        }
    }

    /// Makes the hold stand from now on, with one level and its guard.
    pub(super) fn hold(&mut self, lease_mode: LeaseMode, tokens: Option<Tokens>) {
        self.phase = Phase::Held;
        self.levels = 1;
        self.tokens = tokens;
        self.add_guard(lease_mode);
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.phase == Phase::Ended
    }

    /// Whether it is held and has no guard.
    pub(crate) fn is_left(&self) -> bool {
        self.phase == Phase::Held && self.guards == 0
    }

    /// Schedules an early check of a hold with this key, if others may cut down what the hold depends on.
    pub(crate) fn look_after(&mut self, key: &HoldKey, now: BootInstant) {
        if key.kind.is_shared() && self.schedule.longest().get() > CARE * 3 {
            self.schedule.check(now.plus(CARE));
        }
    }

    /// Notes that a renewal sent at `sent` was confirmed. The guards that asked for it may be gone by now.
    pub(crate) fn renewed(&mut self, sent: BootInstant, lease: LeaseTime) {
        self.schedule.confirmed(sent, lease);
        if self.renewed > 0 {
            self.schedule.renew(sent, lease, fastrand::f64());
        }
    }

    pub(crate) fn unanswered(&mut self, now: BootInstant, renewing: bool) {
        self.schedule.unanswered(now, renewing && self.renewed > 0);
    }

    pub(super) fn is_live(&self, now: BootInstant) -> bool {
        self.phase == Phase::Held && now < self.schedule.deadline()
    }

    pub(super) fn bound_detached(&mut self) {
        self.detached = self.detached.min(self.levels.saturating_sub(self.guards));
    }

    pub(super) fn add_guard(&mut self, lease_mode: LeaseMode) {
        self.guards += 1;
        self.bound_detached();
        if lease_mode.is_renewed() {
            self.renewed += 1;
            self.schedule
                .renew(BootInstant::now(), lease_mode.lease(), fastrand::f64());
        }
    }

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
