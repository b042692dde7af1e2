//! A rate limit for log lines, which keeps a log readable when the same thing goes wrong many times.
//!
//! The first event of a kind is logged at its level; those that follow within the interval are counted, and usually
//! logged at `debug`. The next one that is logged says how many were not.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::clock::BootInstant;

/// One kind of news, told at most once in each interval.
///
/// One for each kind of news. Tasks may share it.
#[derive(Debug)]
pub(crate) struct Pace {
    /// The shortest time between two that are told.
    apart: Duration,
    state: Mutex<PaceState>,
}

#[derive(Debug, Default)]
struct PaceState {
    /// When one was last told.
    told: Option<BootInstant>,
    /// How much was not told since then.
    untold: u64,
}

impl Default for Pace {
    /// Once a second.
    fn default() -> Self {
        Self::new(Duration::from_secs(1))
    }
}

impl Pace {
    pub(crate) fn new(apart: Duration) -> Self {
        Self {
            apart,
            state: Mutex::default(),
        }
    }

    /// Whether to tell something of this kind now. If so, returns how much of the kind was not told since the last
    /// time.
    pub(crate) fn tell(&self) -> Option<u64> {
        self.tell_at(BootInstant::now())
    }

    /// Whether something of this kind would be told now.
    pub(crate) fn is_due(&self) -> bool {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.is_due(self.apart, BootInstant::now())
    }

    fn tell_at(&self, now: BootInstant) -> Option<u64> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if !state.is_due(self.apart, now) {
            state.untold += 1;
            return None;
        }
        state.told = Some(now);
        Some(std::mem::take(&mut state.untold))
    }
}

impl PaceState {
    fn is_due(&self, apart: Duration, now: BootInstant) -> bool {
        self.told.is_none_or(|told| told.until(now) >= apart)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_a_second_is_told_and_the_others_are_counted() {
        let pace = Pace::default();
        let told = [0, 1, 500, 999, 1_000, 1_001, 5_000]
            .map(|millis| pace.tell_at(BootInstant::from_millis(10_000 + millis)));
        assert_eq!(told, [Some(0), None, None, None, Some(3), None, Some(1)]);
    }
}
