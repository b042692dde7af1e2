//! What is not promised once the clock of a server was set.

use super::Judge;
use crate::judge::holds::PASSED_ON;
use crate::machine::now;

impl Judge {
    /// The clock of a server that has a name was set ahead by so many milliseconds, or back.
    pub fn clock_set(&mut self, name: usize, by: i64) {
        let longest = self.plan().longest();
        let known = &mut self.names[name];
        if by > 0 {
            // Leases end early, so two may have it.
            known.ahead = Some(now());
            return;
        }
        // Whatever is there lasts longer, unless it is given back.
        let back = by.unsigned_abs();
        if known.haunted > now() {
            known.haunted += back;
        }
        known.stretched = known.stretched.max(now() + longest) + back;
    }

    /// Whether there may be a lease from before a clock was set ahead. Whoever had one has noticed by its end.
    pub(super) fn is_still_ahead(&self, name: usize) -> bool {
        let ahead = self.names[name].ahead;
        ahead.is_some_and(|ahead| now() <= ahead + self.plan().longest() + PASSED_ON)
    }

    /// Whether somebody of whom nothing is known may have a name for as long as a clock was set back.
    pub(super) fn is_stretched(&self, name: usize) -> bool {
        let known = &self.names[name];
        known.haunted.min(known.stretched) > now()
    }
}
