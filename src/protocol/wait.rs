//! Decides, given the time and the last answer, whether a waiting call tries again, parks or gives up.

use std::sync::Arc;
use std::time::Duration;

use crate::backoff::Backoff;
use crate::clock::BootInstant;
use crate::options::Deadline;
use crate::protocol::answer::Ttl;

/// The shortest park. It keeps a lock that is about to expire from being asked for in a hot loop.
const SHORTEST_PARK: Duration = Duration::from_millis(1);
const FIRST_PAUSE: Duration = Duration::from_millis(20);
pub(crate) const LONGEST_PAUSE: Duration = Duration::from_millis(500);

/// What tells a waiter that it is time to ask again, in addition to the end of the holder's lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum WakeSource {
    /// A message does; `poll_cap` limits the park in case a message is lost.
    Messages { poll_cap: Duration },
    /// The waiter has a place in a server queue, and is told.
    ServerQueue { priority: i32 },
    /// Nothing does: the waiter asks after pauses. On the heap, because most waiters are told.
    Pauses(Arc<Pauses>),
}

/// Pauses between attempts, each of them at most as long as `cap`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pauses {
    pub(crate) backoff: Backoff,
    pub(crate) cap: Duration,
}

impl WakeSource {
    pub(crate) fn pauses(backoff: Backoff, cap: Duration) -> Self {
        Self::Pauses(Arc::new(Pauses { backoff, cap }))
    }

    /// Returns the longest pause of a call that asks after pauses.
    pub(crate) fn longest_pause(&self) -> Option<Duration> {
        match self {
            Self::Pauses(pauses) => Some(pauses.backoff.longest_pause().min(pauses.cap)),
            Self::Messages { .. } | Self::ServerQueue { .. } => None,
        }
    }
}

/// The limits of one acquisition that waits.
#[derive(Clone, Debug)]
pub(crate) struct Wait {
    deadline: Deadline,
    wake_source: WakeSource,
    /// How many more times the lock may be found busy before the wait ends.
    attempts: Option<u32>,
    /// How many times in a row the lock was found busy.
    busy: u32,
    /// How long the server may leave every request unanswered before a wait without a limit gives up.
    patience: Duration,
    started: BootInstant,
    /// How many times in a row a request has failed.
    failures: u32,
    /// Since when the requests of this call have had no answer in time, whatever others hear from the server. One that
    /// always answers too late for a short lease is not silent.
    unanswered: Option<BootInstant>,
}

/// What the call does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Ask again when something happens, or after this time at the latest.
    Park(Duration),
    GiveUp,
}

impl Wait {
    pub(crate) fn new(
        now: BootInstant,
        deadline: Deadline,
        patience: Duration,
        wake_source: WakeSource,
    ) -> Self {
        Self {
            deadline,
            wake_source,
            attempts: None,
            busy: 0,
            patience,
            started: now,
            failures: 0,
            unanswered: None,
        }
    }

    /// Limits how many times the lock may be found busy: the wait ends at the last of them. `None` sets no such limit.
    pub(crate) fn attempts(mut self, attempts: Option<u32>) -> Self {
        self.attempts = attempts;
        self
    }

    /// Changes what tells the waiter that it is time to ask again.
    pub(crate) fn listen_for(&mut self, wake_source: WakeSource) {
        self.wake_source = wake_source;
    }

    pub(crate) fn is_single_attempt(&self) -> bool {
        self.deadline == Deadline::Once
    }

    pub(crate) fn started(&self) -> BootInstant {
        self.started
    }

    pub(crate) fn waited(&self, now: BootInstant) -> Duration {
        self.started.until(now)
    }

    /// Handles the answer that another owner holds the lock, for at most `ttl`. A message tells when it is free. The
    /// TTL covers a holder that dies, and the poll cap, less up to a tenth by `jitter` in 0..1, covers a lost message.
    pub(crate) fn busy(&mut self, now: BootInstant, ttl: Ttl, jitter: f64) -> Step {
        self.answered();
        if let Some(attempts) = &mut self.attempts {
            *attempts = attempts.saturating_sub(1);
            if *attempts == 0 {
                return Step::GiveUp;
            }
        }
        let early = |cap: Duration| cap.mul_f64(1.0 - 0.1 * jitter.clamp(0.0, 1.0));
        let cap = match &self.wake_source {
            WakeSource::Messages { poll_cap } => early(*poll_cap),
            WakeSource::ServerQueue { .. } => self.patience,
            WakeSource::Pauses(pauses) => pauses.backoff.pause(self.busy, jitter).min(pauses.cap),
        };
        self.busy = self.busy.saturating_add(1);
        let park = ttl
            .left()
            .map_or(cap, |left| left.min(cap))
            .max(SHORTEST_PARK);
        self.clamp(now, park)
    }

    /// Handles a request that failed in a way that may pass: it was refused, or not answered in time. `silence` is the
    /// instant at which the server fell silent, if it is silent now.
    pub(crate) fn failed(
        &mut self,
        now: BootInstant,
        is_refused: bool,
        silence: Option<BootInstant>,
    ) -> Step {
        self.unanswered = (!is_refused).then(|| self.unanswered.unwrap_or(now));
        let since = [self.unanswered, silence].into_iter().flatten().min();
        if self.patience_left(now, since).is_zero() {
            return Step::GiveUp;
        }
        let doubled = 2_u32.saturating_pow(self.failures);
        self.failures = self.failures.saturating_add(1);
        self.clamp(now, FIRST_PAUSE.saturating_mul(doubled).min(LONGEST_PAUSE))
    }

    /// Handles servers that answer, but grant the lock to nobody for the time `left`. That is not silence.
    pub(crate) fn abstained(&mut self, now: BootInstant, left: Duration) -> Step {
        self.answered();
        // Another server may come back before then, and form a majority without those that abstain.
        self.clamp(now, left.clamp(SHORTEST_PARK, LONGEST_PAUSE))
    }

    fn answered(&mut self) {
        (self.failures, self.unanswered) = (0, None);
    }

    /// Handles a call that waits in a queue and sends no requests itself. `silence` is as in [`failed`](Self::failed).
    pub(crate) fn in_queue(&self, now: BootInstant, silence: Option<BootInstant>) -> Step {
        match self.patience_left(now, silence) {
            Duration::ZERO => Step::GiveUp,
            left => self.clamp(now, left),
        }
    }

    /// Returns how much longer the servers may be silent, which is so since then.
    fn patience_left(&self, now: BootInstant, since: Option<BootInstant>) -> Duration {
        let since = since.filter(|_| self.deadline == Deadline::Never);
        let endured = since.map(|since| since.max(self.started).until(now));
        self.patience.saturating_sub(endured.unwrap_or_default())
    }

    /// Returns a park of this length, shortened to the time that is left, or [`Step::GiveUp`] if none is left.
    pub(crate) fn clamp(&self, now: BootInstant, park: Duration) -> Step {
        match self.deadline {
            Deadline::Never => Step::Park(park),
            Deadline::Once => Step::GiveUp,
            Deadline::At(end) if now >= end => Step::GiveUp,
            Deadline::At(end) => Step::Park(park.min(now.until(end))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PATIENCE: Duration = Duration::from_secs(30);
    const CAP: Duration = Duration::from_secs(5);
    const REFUSED: bool = true;
    const UNANSWERED: bool = false;
    const MESSAGES: WakeSource = WakeSource::Messages { poll_cap: CAP };

    fn moment(millis: u64) -> BootInstant {
        BootInstant::from_millis(millis)
    }

    fn ttl() -> impl Strategy<Value = Ttl> {
        prop_oneof![
            Just(Ttl::Never),
            (0u64..10_000_000).prop_map(|millis| Ttl::Ends(Duration::from_millis(millis)))
        ]
    }

    proptest! {
        #[test]
        fn a_park_ends_by_limit_ttl_and_poll_cap(
            wait in 1u64..100_000, elapsed in 0u64..200_000, ttl in ttl(), jitter in 0.0f64..1.0
        ) {
            let start = moment(1_000);
            let end = start.plus(Duration::from_millis(wait));
            let now = start.plus(Duration::from_millis(elapsed));
            let mut decision = Wait::new(start, Deadline::At(end), PATIENCE, MESSAGES);
            match decision.busy(now, ttl, jitter) {
                Step::GiveUp => prop_assert!(now >= end, "gave up early"),
                Step::Park(park) => {
                    prop_assert!(now < end, "parked after the limit");
                    prop_assert!(park <= now.until(end), "sleeps past the limit");
                    prop_assert!(park <= CAP, "sleeps past the poll cap");
                    if let Ttl::Ends(left) = ttl {
                        prop_assert!(park <= left.max(SHORTEST_PARK), "sleeps past the holder's lease");
                    }
                    prop_assert!(!park.is_zero(), "a hot loop");
                }
            }
        }

        #[test]
        fn a_wait_without_limit_gives_up_only_on_silence(
            ttl in ttl(), at in 0u64..1_000_000, silent_for in 0u64..100_000
        ) {
            let start = moment(500);
            let now = start.plus(Duration::from_millis(at));
            let mut decision = Wait::new(start, Deadline::Never, PATIENCE, MESSAGES);
            prop_assert!(matches!(decision.busy(now, ttl, 0.5), Step::Park(_)), "busy is no reason to give up");
            prop_assert!(matches!(decision.failed(now, REFUSED, None), Step::Park(_)), "a server that answers is waited for");

            let since = BootInstant::from_millis(now.millis().saturating_sub(silent_for));
            let endured = since.max(start).until(now);
            let gave_up = decision.failed(now, REFUSED, Some(since)) == Step::GiveUp;
            prop_assert_eq!(gave_up, endured >= PATIENCE);
            prop_assert_eq!(decision.in_queue(now, Some(since)) == Step::GiveUp, endured >= PATIENCE);
        }

        #[test]
        fn pauses_grow_while_failures_last_and_start_over(failures in 1usize..20) {
            let mut decision = Wait::new(moment(0), Deadline::Never, PATIENCE, MESSAGES);
            let mut last = Duration::ZERO;
            for _ in 0..failures {
                let Step::Park(pause) = decision.failed(moment(1), REFUSED, None) else { panic!("gave up") };
                prop_assert!(pause >= last && pause <= LONGEST_PAUSE && pause >= FIRST_PAUSE);
                last = pause;
            }
            decision.busy(moment(2), Ttl::Never, 0.0);
            prop_assert_eq!(decision.failed(moment(3), REFUSED, None), Step::Park(FIRST_PAUSE));
        }
    }

    #[test]
    fn a_wait_in_a_queue_ends_with_the_patience_for_a_silent_server() {
        let wait = Wait::new(moment(0), Deadline::Never, PATIENCE, MESSAGES);
        let since = Some(moment(1_000));
        assert_eq!(wait.in_queue(moment(1_000), None), Step::Park(PATIENCE));
        let left = Step::Park(Duration::from_secs(1));
        assert_eq!(wait.in_queue(moment(30_000), since), left);
        assert_eq!(wait.in_queue(moment(31_000), since), Step::GiveUp);
    }

    #[test]
    fn a_wait_without_limit_gives_up_on_answers_that_are_always_too_late() {
        let late = UNANSWERED;
        let end = moment(PATIENCE.as_millis() as u64 + 5);
        let mut decision = Wait::new(moment(0), Deadline::Never, PATIENCE, MESSAGES);
        let mut answered = decision.clone();
        assert!(matches!(
            decision.failed(moment(5), late, None),
            Step::Park(_)
        ));
        assert!(matches!(
            decision.failed(end.minus(Duration::from_millis(1)), late, None),
            Step::Park(_)
        ));
        assert_eq!(decision.failed(end, late, None), Step::GiveUp);

        answered.failed(moment(5), late, None);
        answered.busy(moment(6), Ttl::Never, 0.0);
        assert!(
            matches!(answered.failed(end, late, None), Step::Park(_)),
            "one was answered"
        );
        answered.failed(moment(6), late, None);
        answered.failed(moment(7), REFUSED, None);
        assert!(
            matches!(answered.failed(end, late, None), Step::Park(_)),
            "one was refused"
        );
    }

    #[test]
    fn servers_that_abstain_are_waited_for_without_end_and_asked_now_and_then() {
        let mut decision = Wait::new(moment(0), Deadline::Never, PATIENCE, MESSAGES);
        let late = moment(1_000_000);
        let step = decision.abstained(late, PATIENCE);
        assert_eq!(step, Step::Park(LONGEST_PAUSE));
        let soon = Duration::from_millis(7);
        assert_eq!(decision.abstained(late, soon), Step::Park(soon));
        let mut limited = Wait::new(moment(0), Deadline::At(moment(5)), PATIENCE, MESSAGES);
        assert_eq!(limited.abstained(moment(5), soon), Step::GiveUp);
    }

    #[test]
    fn one_attempt_never_parks() {
        let mut decision = Wait::new(moment(0), Deadline::Once, PATIENCE, MESSAGES);
        assert_eq!(decision.busy(moment(0), Ttl::Never, 0.0), Step::GiveUp);
        assert_eq!(decision.failed(moment(0), REFUSED, None), Step::GiveUp);
    }

    #[test]
    fn a_wait_ends_after_its_attempts() {
        let mut decision =
            Wait::new(moment(0), Deadline::Never, PATIENCE, MESSAGES).attempts(Some(3));
        let mut busy = || decision.busy(moment(0), Ttl::Never, 0.0);
        assert!(matches!(busy(), Step::Park(_)) && matches!(busy(), Step::Park(_)));
        assert_eq!(busy(), Step::GiveUp);
    }

    #[test]
    fn pauses_stay_below_their_cap_and_the_holders_lease() {
        let (second, cap) = (Duration::from_secs(1), Duration::from_millis(300));
        let wake_source = |cap| WakeSource::pauses(Backoff::fixed(second), cap);
        let pause = |cap, ttl| {
            Wait::new(moment(0), Deadline::Never, PATIENCE, wake_source(cap)).busy(
                moment(0),
                ttl,
                0.0,
            )
        };
        assert_eq!(pause(Duration::MAX, Ttl::Never), Step::Park(second));
        assert_eq!(pause(cap, Ttl::Never), Step::Park(cap));
        let left = Duration::from_millis(7);
        assert_eq!(pause(cap, Ttl::Ends(left)), Step::Park(left));
    }
}
