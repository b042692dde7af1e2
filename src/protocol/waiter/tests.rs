//! Whatever happens to a waiting call, it parks, asks and gives up by the rules.

use std::time::Duration;

use proptest::prelude::*;

use crate::backoff::Backoff;
use crate::clock::BootInstant;
use crate::options::Deadline;
use crate::protocol::answer::Ttl;
use crate::protocol::policy::{COUNTER, Policy};
use crate::protocol::wait::{Wait, WakeSource};
use crate::protocol::waiter::{
    BusyAnswer, CallChannels, Listening, Local, Start, UNCONFIRMED_POLL, Waiter, WaiterStep,
};

const CAP: Duration = Duration::from_secs(5);
const SHORTEST: Duration = Duration::from_millis(1);

/// One round of a wait: the state before the request, the answer, and what is received after it.
#[derive(Clone, Copy, Debug)]
struct Round {
    before: CallChannels,
    after: CallChannels,
    is_held: bool,
    is_renewed: bool,
    has_had_its_share: bool,
    yields: bool,
    refusal: BusyAnswer,
    elapsed: Duration,
    woken: Listening,
}

impl Local for Round {
    fn is_held(&self) -> bool {
        self.is_held
    }

    fn is_renewed(&self) -> bool {
        self.is_renewed
    }

    fn has_had_its_share(&self) -> bool {
        self.has_had_its_share
    }
}

fn listening() -> impl Strategy<Value = Listening> {
    prop_oneof![
        Just(Listening::No),
        Just(Listening::Unconfirmed),
        (0u64..3).prop_map(Listening::Confirmed)
    ]
}

fn channels() -> impl Strategy<Value = CallChannels> {
    (listening(), listening()).prop_map(|(own, common)| CallChannels { own, common })
}

fn millis() -> impl Strategy<Value = Duration> {
    (0u64..20_000).prop_map(Duration::from_millis)
}

fn refusal() -> impl Strategy<Value = BusyAnswer> {
    let ttl = proptest::option::of(millis()).prop_map(|left| left.map_or(Ttl::Never, Ttl::Ends));
    let remind_in = proptest::option::of((1u64..20_000).prop_map(Duration::from_millis));
    (ttl, any::<bool>(), remind_in).prop_map(|(ttl, is_told_with_all, remind_in)| BusyAnswer {
        ttl,
        is_told_with_all,
        remind_in,
    })
}

fn round() -> impl Strategy<Value = Round> {
    let flags = any::<[bool; 4]>();
    let changed = proptest::option::of(channels());
    let heard = (channels(), changed, listening());
    (heard, flags, refusal(), millis()).prop_map(|(heard, flags, refusal, elapsed)| {
        let (before, changed, woken) = heard;
        let [is_held, is_renewed, has_had_its_share, yields] = flags;
        Round {
            before,
            after: changed.unwrap_or(before),
            is_held,
            is_renewed,
            has_had_its_share,
            yields,
            refusal,
            elapsed,
            woken,
        }
    })
}

fn policy() -> impl Strategy<Value = Policy> {
    any::<[bool; 3]>().prop_map(|[listens, takes_turns, trusts_local_holds]| Policy {
        listens,
        takes_turns: takes_turns && listens,
        trusts_local_holds,
        ..COUNTER
    })
}

proptest! {
    #[test]
    fn whatever_happens_parks_end_and_questions_have_a_cause(
        policy in policy(), deadline in millis(), rounds in proptest::collection::vec(round(), 1..12)
    ) {
        let mut now = BootInstant::from_millis(1_000);
        let end = now.plus(deadline);
        let wake_source = match policy.listens {
            true => WakeSource::Messages { poll_cap: CAP },
            false => WakeSource::pauses(Backoff::exponential(), CAP),
        };
        let mut wait = Wait::new(now, Deadline::At(end), CAP, wake_source);
        let mut waiter = Waiter::new(policy);
        // Computed independently of the waiter.
        let (mut trusts, mut woken) = (policy.trusts_local_holds, false);
        let mut spared_since = None;
        for round in rounds {
            let start = waiter.start(now, round.before, &round);
            let step = match start {
                Start::Ask if round.yields => waiter.yielded(&mut wait, now, 0.5),
                Start::Ask => waiter.refused(&mut wait, now, round.refusal, 0.5),
                Start::Yield => waiter.yielded(&mut wait, now, 0.5),
                Start::Spare => waiter.spared(&mut wait, now, CAP, 0.5),
            };
            let is_due = spared_since.is_some_and(|since: BootInstant| since.until(now) >= CAP);
            let trusted = trusts && round.is_held && (policy.listens || round.is_renewed && !is_due);
            prop_assert_eq!(start == Start::Spare, trusted);
            match start {
                Start::Ask => spared_since = None,
                Start::Spare => _ = spared_since.get_or_insert(now),
                Start::Yield => {}
            }
            prop_assert!(start != Start::Yield || round.has_had_its_share && !trusted);
            let was_refused = start == Start::Ask && !round.yields;
            let (park, own) = match step {
                WaiterStep::GiveUp => {
                    prop_assert!(now >= end, "gave up early");
                    return Ok(());
                }
                WaiterStep::Ask => {
                    prop_assert!(!was_refused && (policy.listens || now >= end), "a hot loop");
                    continue;
                }
                WaiterStep::Pause(pause) => {
                    prop_assert!(!policy.listens && !was_refused);
                    prop_assert!(pause <= now.until(end) && pause <= CAP && !pause.is_zero());
                    now = now.plus(pause);
                    continue;
                }
                WaiterStep::Park(park) => {
                    prop_assert!(!policy.listens);
                    (park, Listening::No)
                }
                WaiterStep::Listen { common, at_most } => {
                    prop_assert!(policy.listens);
                    let is_unplaced = policy.takes_turns && woken && !waiter.is_in_turn();
                    let wanted = was_refused && (round.refusal.is_told_with_all || is_unplaced);
                    prop_assert_eq!(common, wanted);
                    let is_new = |before: Listening, after: Listening| {
                        after.is_confirmed() && before != after
                    };
                    let (before, after) = (round.before, round.after);
                    let is_told = is_new(before.own, after.own) || is_new(before.common, after.common);
                    let Some(park) = waiter.listens(after, at_most) else {
                        prop_assert!(is_told, "asks without a cause");
                        let told = |before: Listening, after| before.is_confirmed() && is_new(before, after);
                        if told(before.own, after.own) || told(before.common, after.common) {
                            (trusts, woken) = (false, true);
                        }
                        continue;
                    };
                    prop_assert!(!is_told, "what was told meanwhile is slept over");
                    let is_deaf = after.own == Listening::Unconfirmed || after.common == Listening::Unconfirmed;
                    prop_assert!(!is_deaf || park <= UNCONFIRMED_POLL, "sleeps while messages may not arrive");
                    (park, after.own)
                }
            };
            prop_assert!(!park.is_zero() || now == end, "a hot loop");
            prop_assert!(park <= now.until(end), "sleeps past the limit");
            prop_assert!(park <= CAP, "sleeps past the poll cap");
            if let (true, Ttl::Ends(left)) = (was_refused, round.refusal.ttl) {
                prop_assert!(park <= left.max(SHORTEST), "sleeps past the holder's lease");
            }
            if let (true, Some(soon)) = (was_refused, round.refusal.remind_in) {
                prop_assert!(park <= soon, "is forgotten");
            }
            now = now.plus(park.min(round.elapsed));
            waiter.woken(round.woken);
            if policy.listens {
                woken = true;
                trusts &= !own.is_confirmed() && round.woken.is_confirmed();
            }
        }
    }
}

/// A hold of this process that is renewed.
struct Held;

impl Local for Held {
    fn is_held(&self) -> bool {
        true
    }

    fn is_renewed(&self) -> bool {
        true
    }
}

#[test]
fn hold_of_this_process_spares_the_question_until_the_first_wake_up() {
    let policy = Policy {
        trusts_local_holds: true,
        ..COUNTER
    };
    let now = BootInstant::from_millis(0);
    let mut waiter = Waiter::new(policy);
    let channels = |own| CallChannels {
        own,
        common: Listening::No,
    };
    let (unconfirmed, confirmed) = (Listening::Unconfirmed, Listening::Confirmed(0));
    assert_eq!(
        waiter.start(now, channels(Listening::No), &Held),
        Start::Spare
    );
    waiter.listens(channels(unconfirmed), CAP);
    waiter.woken(confirmed);
    // The acknowledgement that messages arrive says nothing about the holder.
    assert_eq!(waiter.start(now, channels(confirmed), &Held), Start::Spare);
    waiter.listens(channels(confirmed), CAP);
    waiter.woken(Listening::Confirmed(1));
    assert_eq!(
        waiter.start(now, channels(Listening::Confirmed(1)), &Held),
        Start::Ask
    );
}

/// The server may have lost the hold, and the next renewal may be far away.
#[test]
fn call_without_messages_asks_once_a_poll_cap_though_a_hold_of_this_process_stands() {
    let policy = Policy {
        listens: false,
        trusts_local_holds: true,
        ..COUNTER
    };
    let mut now = BootInstant::from_millis(0);
    let wake_source = WakeSource::pauses(Backoff::exponential(), CAP);
    let mut wait = Wait::new(now, Deadline::Never, CAP, wake_source);
    let mut waiter = Waiter::new(policy);
    let start = |waiter: &mut Waiter, now| waiter.start(now, CallChannels::default(), &Held);
    for _ in 0..2 {
        let until = now.plus(CAP);
        // What happens here wakes the call, and is no reason to trust the hold for longer.
        while now < until {
            assert_eq!(start(&mut waiter, now), Start::Spare);
            let WaiterStep::Park(at_most) = waiter.spared(&mut wait, now, CAP, 0.5) else {
                panic!("it does not park");
            };
            assert_eq!(now.plus(at_most), until);
            now = now.plus(at_most.min(CAP * 2 / 5));
            waiter.woken(Listening::No);
        }
        assert_eq!(start(&mut waiter, now), Start::Ask);
        waiter.refused(&mut wait, now, Ttl::Never.into(), 0.5);
    }
}

#[test]
fn others_go_first_until_they_had_their_turn_or_there_is_no_time_for_it() {
    let now = BootInstant::from_millis(0);
    let (pause, wake_source) = (
        Duration::from_millis(7),
        WakeSource::Messages { poll_cap: CAP },
    );
    let waiter = Waiter::new(COUNTER);
    let wait = |deadline| Wait::new(now, deadline, CAP, wake_source.clone());
    let gives = |deadline, is_over| waiter.yields(&wait(deadline), now, pause, is_over);
    assert_eq!(gives(Deadline::Never, false), Some(pause));
    assert_eq!(gives(Deadline::Never, true), None);
    assert_eq!(
        gives(Deadline::At(now.plus(SHORTEST)), false),
        Some(SHORTEST)
    );
    assert_eq!(gives(Deadline::At(now), false), None);
}
