//! What stands in for the meters without the feature `metrics`: nothing.

use std::time::Duration;

use super::tally::{Ending, Renewal};
use crate::clock::BootInstant;
use crate::loss::LossReason;
use crate::options::Settings;
use crate::stats::Counted;

/// See `meters`.
#[derive(Debug)]
pub(super) struct Meters;

/// When a call began, which nobody wants to know.
#[derive(Clone, Copy, Debug)]
pub(super) struct Begun;

impl Meters {
    pub(super) fn new(_: &Settings) -> Self {
        Self
    }

    pub(super) fn call_begins(&self, _: Counted, _: &str) -> Begun {
        Begun
    }

    pub(super) fn call_ended(&self, _: Counted, _: &str, _: Begun, _: Ending) {}

    pub(super) fn reentered(&self, _: Counted) {}

    pub(super) fn handed_over(&self, _: Counted) {}

    pub(super) fn taken(&self, _: Counted, _: &str, _: u32) {}

    pub(super) fn returned(&self, _: Counted, _: &str, _: u32, _: impl FnOnce() -> BootInstant) {}

    pub(super) fn lost(&self, _: &str, _: LossReason) {}

    pub(super) fn renewal_is_due(&self, _: Duration) {}

    pub(super) fn renewals(&self, _: Renewal, _: u64) {}

    pub(super) fn connected(&self, _: bool) {}

    pub(super) fn disconnected(&self) {}

    pub(super) fn requested(&self, _: u64) {}

    pub(super) fn received(&self, _: u64) {}

    pub(super) fn replied(&self, _: BootInstant) {}

    pub(super) fn message(&self) {}
}
