//! Decides when to renew a hold, when to check it, and until when to trust it.

use std::time::Duration;

use crate::clock::BootInstant;
use crate::options::LeaseTime;

/// The local promise of a lease, and what is due for it.
///
/// The deadline is counted from before the request that set the lease was sent, so the server's key outlives it. A
/// renewal that nobody confirmed does not move the deadline.
#[derive(Clone, Debug)]
pub(crate) struct Schedule {
    /// When the lock was requested, or was passed on to this hold.
    begun: BootInstant,
    /// The lease that each renewal sets.
    lease: LeaseTime,
    /// The longest lease ever requested.
    longest: LeaseTime,
    deadline: BootInstant,
    renew_at: Option<BootInstant>,
    check_at: Option<BootInstant>,
    /// When renewing ends, by `max_hold`.
    renew_until: BootInstant,
    /// Set while a request that cuts a longer lease may be in flight: the lease that it sets, and the end of the lease
    /// that it cuts.
    cut: Option<(LeaseTime, i64)>,
    /// Until this instant, such a request may have run, and may have undone earlier requests.
    cut_until: BootInstant,
}

/// What is due for a hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RenewalAction {
    /// The deadline has passed.
    Expire,
    Renew,
    Check,
    /// Nothing is due until this instant.
    Rest(BootInstant),
}

/// Returns the instant until which a lease that was requested at `sent` can be trusted.
pub(crate) fn deadline(sent: BootInstant, lease: LeaseTime) -> BootInstant {
    sent.plus(lease.get() - lease.margin())
}

impl Schedule {
    pub(crate) fn new(sent: BootInstant, lease: LeaseTime, max_hold: Option<Duration>) -> Self {
        let renew_until = max_hold.map_or(BootInstant::NEVER, |longest| sent.plus(longest));
        Self {
            begun: sent,
            lease,
            longest: lease,
            deadline: deadline(sent, lease),
            renew_at: None,
            check_at: None,
            renew_until,
            cut: None,
            cut_until: sent,
        }
    }

    /// Returns the schedule of the hold that this lease is passed on to. It keeps the deadline, since nothing has been
    /// confirmed for it yet.
    pub(crate) fn passed_on(&self, now: BootInstant, max_hold: Option<Duration>) -> Self {
        Self {
            deadline: self.deadline,
            cut_until: self.cut_until,
            ..Self::new(now, self.lease, max_hold)
        }
    }

    /// Returns whether the server was never asked for a lease other than this one.
    pub(crate) fn is_always(&self, lease: LeaseTime) -> bool {
        self.lease == lease && self.longest == lease && self.cut.is_none()
    }

    pub(crate) fn begun(&self) -> BootInstant {
        self.begun
    }

    pub(crate) fn deadline(&self) -> BootInstant {
        self.deadline
    }

    pub(crate) fn lease(&self) -> LeaseTime {
        self.lease
    }

    /// Returns the longest time that the server may keep the hold if it receives nothing more.
    pub(crate) fn longest(&self) -> LeaseTime {
        self.longest
    }

    /// Notes that a request for this lease is about to be sent.
    pub(crate) fn asks_for(&mut self, lease: LeaseTime) {
        self.longest = self.longest.max(lease);
    }

    /// Decides what is due for the hold at `now`.
    pub(crate) fn next_action(&self, now: BootInstant) -> RenewalAction {
        let due = |at: Option<BootInstant>| at.is_some_and(|at| at <= now);
        if now >= self.deadline {
            RenewalAction::Expire
        } else if due(self.renew_at) {
            // A renewal also finds out whether the hold stands, so it takes the place of a check.
            RenewalAction::Renew
        } else if due(self.check_at) {
            RenewalAction::Check
        } else {
            let sooner = |a: BootInstant, b: Option<BootInstant>| b.map_or(a, |b| a.min(b));
            RenewalAction::Rest(sooner(sooner(self.deadline, self.renew_at), self.check_at))
        }
    }

    /// Renews from now on, every third of this lease. `jitter` in 0..1 takes off up to a fifth, so that leases taken
    /// together are not renewed in one burst. Rounding to a grid lets renewals that are due at nearly the same time
    /// share a script.
    pub(crate) fn renew(&mut self, now: BootInstant, lease: LeaseTime, jitter: f64) {
        self.lease = lease;
        self.asks_for(lease);
        let period = lease.get() / 3;
        let at = now
            .plus(period.mul_f64(1.0 - 0.2 * jitter.clamp(0.0, 1.0)))
            .round_down(period / 50);
        self.renew_at = (at < self.renew_until).then_some(at);
    }

    pub(crate) fn stop_renewing(&mut self) {
        self.renew_at = None;
    }

    /// Notes that the server confirmed a TTL of at least `lease` after `sent`. Changes nothing while a cut is in doubt,
    /// or if the request was sent before the last cut was over.
    pub(crate) fn confirmed(&mut self, sent: BootInstant, lease: LeaseTime) {
        if self.cut.is_none() && sent >= self.cut_until {
            self.deadline = self.deadline.max(deadline(sent, lease));
        }
    }

    /// Notes that the request of [`cuts`](Self::cuts), or a request that only raises, was answered: the lease was set
    /// after `sent`.
    pub(crate) fn set(&mut self, sent: BootInstant, now: BootInstant, lease: LeaseTime) {
        self.deadline = self.deadline.max(deadline(sent, lease));
        self.cut_is_over(now);
    }

    /// Notes that a request is about to be sent that cuts the lease ending at `ends` to this one.
    pub(crate) fn cuts(&mut self, now: BootInstant, lease: LeaseTime, ends: i64) {
        // From now on, the server may have cut the lease, whether it answers or not.
        self.deadline = self.deadline.min(deadline(now, lease));
        self.cut = Some((lease, ends));
    }

    /// Returns the request of [`cuts`](Self::cuts) while it has no answer.
    pub(crate) fn cut_in_doubt(&self) -> Option<(LeaseTime, i64)> {
        self.cut
    }

    /// Notes that no copy of that request can cut anything any more, since the lease no longer ends at the time that it
    /// names.
    pub(crate) fn cut_is_over(&mut self, now: BootInstant) {
        if self.cut.take().is_some() {
            self.cut_until = now;
        }
    }

    /// Schedules a check at this instant or earlier.
    pub(crate) fn check(&mut self, at: BootInstant) {
        self.check_at = Some(self.check_at.map_or(at, |earlier| earlier.min(at)));
    }

    /// Notes that a request about this hold is in flight. Until it is answered, no check is due, and no renewal either
    /// if it is one.
    pub(crate) fn asked(&mut self, renewing: bool) {
        if renewing {
            self.renew_at = None;
        }
        self.check_at = None;
    }

    /// Notes that a renewal or a check went unanswered. It is then due again soon, several times before the deadline.
    pub(crate) fn unanswered(&mut self, now: BootInstant, renewing: bool) {
        let again = now
            .plus((self.lease.get() / 24).clamp(Duration::from_millis(5), Duration::from_secs(1)));
        if !renewing {
            self.check(again);
        } else if again < self.renew_until {
            self.renew_at = Some(again);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn lease(millis: u64) -> LeaseTime {
        LeaseTime::new(Duration::from_millis(millis)).unwrap()
    }

    fn moment(millis: u64) -> BootInstant {
        BootInstant::from_millis(millis)
    }

    proptest! {
        #[test]
        fn the_promise_ends_before_the_servers(sent in 0u64..1_000_000, millis in 50u64..10_000_000) {
            let ends = deadline(moment(sent), lease(millis));
            let server = moment(sent).plus(Duration::from_millis(millis));
            prop_assert!(ends < server);
            prop_assert!(ends.until(server) >= Duration::from_millis(2) + Duration::from_millis(millis) / 100);
        }

        #[test]
        fn an_unconfirmed_renewal_moves_nothing(millis in 50u64..100_000, tries in 0u64..50) {
            let mut schedule = Schedule::new(moment(0), lease(millis), None);
            schedule.renew(moment(0), lease(millis), 0.5);
            let promised = schedule.deadline();
            for t in 0..tries {
                schedule.asked(true);
                schedule.unanswered(moment(t), true);
            }
            prop_assert_eq!(schedule.deadline(), promised);
            prop_assert_eq!(schedule.next_action(promised), RenewalAction::Expire);
        }

        #[test]
        fn a_renewed_lease_has_time_for_further_tries(millis in 50u64..10_000_000, jitter in 0.0f64..1.0) {
            let mut schedule = Schedule::new(moment(0), lease(millis), None);
            schedule.renew(moment(0), lease(millis), jitter);
            let RenewalAction::Rest(at) = schedule.next_action(moment(0)) else { panic!("due at once") };
            prop_assert!(at <= moment(0).plus(lease(millis).get() / 3));
            prop_assert!(at.until(schedule.deadline()) >= lease(millis).get() / 2);
        }

        #[test]
        fn a_confirmation_never_shortens(sent in 0u64..100_000, first in 50u64..100_000, second in 50u64..100_000) {
            let mut schedule = Schedule::new(moment(sent), lease(first), None);
            let before = schedule.deadline();
            schedule.confirmed(moment(sent), lease(second));
            prop_assert!(schedule.deadline() >= before);
            schedule.cuts(moment(sent), lease(50), 1);
            prop_assert_eq!(schedule.deadline(), deadline(moment(sent), lease(50)));
        }

        #[test]
        fn what_was_sent_before_a_cut_was_over_promises_nothing(
            sent in 0u64..100_000, cut in 0u64..100_000, took in 0u64..1_000, millis in 50u64..100_000
        ) {
            let mut schedule = Schedule::new(moment(0), lease(100_000), None);
            schedule.cuts(moment(cut), lease(50), 1);
            let promised = schedule.deadline();
            schedule.confirmed(moment(sent), lease(millis));
            prop_assert_eq!(schedule.deadline(), promised, "the cut may be on its way");
            let over = moment(cut + took);
            schedule.cut_is_over(over);
            schedule.confirmed(moment(sent), lease(millis));
            let expected = match moment(sent) < over {
                true => promised,
                false => promised.max(deadline(moment(sent), lease(millis))),
            };
            prop_assert_eq!(schedule.deadline(), expected);
        }

        #[test]
        fn renewing_ends_with_max_hold(max_hold in 100u64..10_000) {
            let mut schedule = Schedule::new(moment(0), lease(300), Some(Duration::from_millis(max_hold)));
            let mut now = moment(0);
            loop {
                schedule.renew(now, lease(300), 0.0);
                match schedule.next_action(now) {
                    RenewalAction::Rest(next) if next < schedule.deadline() => {
                        now = next;
                        prop_assert!(now.millis() < max_hold);
                        schedule.asked(true);
                        schedule.confirmed(now, lease(300));
                    }
                    _ => break,
                }
            }
            prop_assert!(schedule.deadline().millis() <= max_hold + 300);
        }
    }

    #[test]
    fn a_check_is_due_before_a_later_renewal() {
        let mut schedule = Schedule::new(moment(0), lease(30_000), None);
        schedule.renew(moment(0), lease(30_000), 0.0);
        schedule.check(moment(5_000));
        assert_eq!(
            schedule.next_action(moment(0)),
            RenewalAction::Rest(moment(5_000))
        );
        assert_eq!(schedule.next_action(moment(5_000)), RenewalAction::Check);
        schedule.asked(false);
        assert_eq!(
            schedule.next_action(moment(5_000)),
            RenewalAction::Rest(moment(10_000))
        );
        assert_eq!(schedule.next_action(moment(10_000)), RenewalAction::Renew);
    }
}
