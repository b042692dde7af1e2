//! Whether this process may have a lock once more, or lets others have it.
//!
//! Two limits are kept here, both for the sake of other processes. While the lock is passed on in memory nobody else
//! can have it, so that is limited in number and time once others wait ([`Turns::may_pass`]). And after a release of
//! which others were told, this process leaves the lock alone until each of them has had it, or none wants it
//! ([`YieldPeriod`]). Only functions of what is known and the time; `hold/front` carries out what they say.

use std::time::Duration;

use crate::clock::BootInstant;

/// How long others count as waiting after they were last known to wait.
const REMEMBERED: Duration = Duration::from_secs(1);
/// How long the lock is passed on within this process while others wait. After the first section that ends later than
/// that, it is their turn.
const LONGEST_STREAK: Duration = Duration::from_millis(5);

/// What is known of others that want the lock.
#[derive(Debug, Default)]
pub(crate) struct Turns {
    /// How often in a row the lock was passed on within this process, and since when.
    ///
    /// Back to zero when this row of calls has ended.
    streak: u32,
    /// The first time in this row that passing on was considered.
    passing_since: Option<BootInstant>,
    /// When others were last known to wait for the lock.
    ///
    /// By a release that told others, or by an answer to the question whether the record stands.
    others_waited: Option<BootInstant>,
    /// Others that wait go first.
    ///
    /// Ends with the next grant here.
    yield_period: Option<YieldPeriod>,
    /// This process has a place in the turn order, or may have one.
    ///
    /// Set before the request that may make one, so that a leave is sent even if the answer is lost.
    pub(crate) is_placed: bool,
    /// How long the last request for the lock took that a waiting call sent.
    ///
    /// The turn of this process has to last for longer.
    pub(crate) trip: Duration,
}

/// The others that a process that had the lock lets go first: as many as were told that the lock is free. Each of them
/// sends a message when it gives the lock back in turn.
#[derive(Clone, Copy, Debug)]
pub(crate) struct YieldPeriod {
    /// The last of their messages, by the hub's count.
    pub(crate) last_message: u64,
    /// If no message comes for this long, nobody else wants the lock just now.
    pub(crate) pause: Duration,
}

impl Turns {
    /// Whether the lock may be passed on within this process once more. While others wait, it is passed on at most
    /// `streak` times in a row, and for a limited time. With `counts`, it is known whether others wait.
    ///
    /// Starts the clock of this row if it does not run.
    pub(crate) fn may_pass(&mut self, now: BootInstant, streak: u32, counts: bool) -> bool {
        let since = *self.passing_since.get_or_insert(now);
        // If it is not known, others count as waiting.
        let others_wait = !counts || self.is_wanted_elsewhere(now);
        !others_wait || self.streak < streak && since.until(now) < LONGEST_STREAK
    }

    /// Whether others were recently known to wait.
    pub(crate) fn is_wanted_elsewhere(&self, now: BootInstant) -> bool {
        let lately = |waited: BootInstant| waited.until(now) < REMEMBERED;
        self.others_waited.is_some_and(lately)
    }

    /// Notes whether others wait for the lock, by the server's account.
    pub(crate) fn others_wait(&mut self, waiting: bool) {
        self.others_waited = waiting.then(BootInstant::now);
    }

    /// Notes that this process had the lock once more, one call behind the other; `false` if this row of calls has
    /// ended.
    pub(crate) fn count(&mut self, passed_on: bool) {
        if passed_on {
            self.streak = self.streak.saturating_add(1);
        } else {
            self.streak = 0;
            self.passing_since = None;
        }
    }

    /// Returns how often in a row the lock was had here, one call behind the other.
    pub(crate) fn streak(&self) -> u32 {
        self.streak
    }

    /// Lets others that wait go first, until the lock is granted here again.
    pub(crate) fn yield_lock(&mut self, yield_period: YieldPeriod) {
        self.count(false);
        self.others_wait(true);
        self.yield_period = Some(yield_period);
    }

    /// Returns which others go first now, if any do.
    pub(crate) fn yield_period(&self) -> Option<YieldPeriod> {
        self.yield_period
    }

    /// Notes that the lock was granted here.
    pub(super) fn is_had(&mut self) {
        self.yield_period = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lock_is_passed_on_a_few_times_only_while_others_wait() {
        let mut turns = Turns::default();
        let now = BootInstant::now();
        let pass = |turns: &mut Turns, times, counts| {
            turns.count(false);
            let passed = (0..times).take_while(|_| {
                let may_pass = turns.may_pass(now, 3, counts);
                turns.count(true);
                may_pass
            });
            passed.count()
        };
        let both = |turns: &mut Turns| [true, false].map(|counts| pass(turns, 10, counts));
        assert_eq!(
            both(&mut turns),
            [10, 3],
            "nobody is known to wait, or nobody can tell"
        );
        turns.others_wait(true);
        assert_eq!(both(&mut turns), [3, 3]);
        turns.others_wait(false);
        assert_eq!(both(&mut turns), [10, 3]);
    }
}
