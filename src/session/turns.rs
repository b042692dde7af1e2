//! Decides whether this process may take a lock once more, or lets other processes go first.
//!
//! Two rules are here, both for the sake of other processes. While the lock is passed on in memory, nobody else can
//! have it, so that is limited in number and time once others wait ([`Turns::may_pass`]). And after a release that
//! others were told of, this process leaves the lock alone until each of them has had it, or none wants it
//! ([`YieldPeriod`]). These are pure functions of the state and the time; `hold/front` carries them out.

use std::time::Duration;

use crate::clock::BootInstant;

/// How long others count as waiting after they were last known to wait.
const REMEMBERED: Duration = Duration::from_secs(1);
/// How long the lock is passed on within this process while others wait. The first holder to finish after that releases
/// it to them.
const LONGEST_STREAK: Duration = Duration::from_millis(5);

/// What is known of other processes that want the lock.
#[derive(Debug, Default)]
pub(crate) struct Turns {
    /// How many times in a row the lock was passed on within this process.
    ///
    /// Zero again when the streak has ended.
    streak: u32,
    /// The first time in this streak that passing on was considered.
    passing_since: Option<BootInstant>,
    /// When others were last known to wait for the lock.
    ///
    /// Known from a release that told others, or from an answer to the question whether the record stands.
    others_waited: Option<BootInstant>,
    /// Set while others that wait go first.
    ///
    /// Ends with the next grant here.
    yield_period: Option<YieldPeriod>,
    /// How many requests may have given this process its place in the turn order. None if it has no place.
    ///
    /// Each is counted before it is sent, so that a leave is sent even if the answer is lost.
    pub(crate) placed: u64,
    /// The round trip of the last request for the lock that a waiting call sent.
    ///
    /// The turn of this process has to last longer than that.
    pub(crate) trip: Duration,
}

/// The period in which a process that had the lock lets others go first: as many as were told that the lock is free.
/// Each of them sends a message when it gives the lock back.
#[derive(Clone, Copy, Debug)]
pub(crate) struct YieldPeriod {
    /// The last of their messages, by the hub's count.
    pub(crate) last_message: u64,
    /// If no message comes for this long, nobody else wants the lock just now.
    pub(crate) pause: Duration,
}

impl Turns {
    /// Whether the lock may be passed on within this process once more. While others wait, it is passed on at most
    /// `streak` times in a row, and for a limited time. `counts` says that the server tells whether others wait.
    ///
    /// Starts the clock of this streak if it is not running.
    pub(crate) fn may_pass(&mut self, now: BootInstant, streak: u32, counts: bool) -> bool {
        let since = *self.passing_since.get_or_insert(now);
        // If that is unknown, others count as waiting.
        let others_wait = !counts || self.is_wanted_elsewhere(now);
        !others_wait || self.streak < streak && since.until(now) < LONGEST_STREAK
    }

    /// Whether others were recently known to wait.
    pub(crate) fn is_wanted_elsewhere(&self, now: BootInstant) -> bool {
        let lately = |waited: BootInstant| waited.until(now) < REMEMBERED;
        self.others_waited.is_some_and(lately)
    }

    /// Notes whether others wait for the lock, according to the server.
    pub(crate) fn others_wait(&mut self, waiting: bool) {
        self.others_waited = waiting.then(BootInstant::now);
    }

    /// Notes that the lock was passed on within this process once more. `false` ends the streak.
    pub(crate) fn count(&mut self, passed_on: bool) {
        if passed_on {
            self.streak = self.streak.saturating_add(1);
        } else {
            self.streak = 0;
            self.passing_since = None;
        }
    }

    /// Returns how many times in a row the lock was passed on within this process.
    pub(crate) fn streak(&self) -> u32 {
        self.streak
    }

    /// Lets others that wait go first, until the lock is granted here again.
    pub(crate) fn yield_lock(&mut self, yield_period: YieldPeriod) {
        self.count(false);
        self.others_wait(true);
        self.yield_period = Some(yield_period);
    }

    /// Returns the present yield period, if there is one.
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
