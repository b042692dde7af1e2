//! What one seed in five is instead: a crowd that wants one or two names for moments, again and again.
//!
//! It is drawn apart from the rest, so that the plans of the other seeds, and with them the seeds that are kept, stay
//! as they were before there was any of it.

use fastrand::Rng;

use super::{
    Act, Ask, Care, Ending, Kind, LONGEST_LEASE, Plan, Section, Shared, Step, odds, pick, steps,
};
use crate::chance::mixed;

/// In calm weather. A waiter that is not told of a release waits until the judge sees it.
pub(super) const POLL_CAP: u64 = 30_000;

pub(super) fn gather(plan: &mut Plan) {
    if !matches!(plan.seed % 10, 0 | 9) {
        return;
    }
    let chance = &mut Rng::with_seed(mixed(!plan.seed));
    let is_lock = |at: &usize| plan.names[*at].kind != Kind::Latch;
    let mut wanted: Vec<_> = (0..plan.names.len()).filter(is_lock).collect();
    chance.shuffle(&mut wanted);
    wanted.truncate(chance.usize(1..=2));
    if wanted.is_empty() {
        return;
    }
    let is_calm = plan.weather == "calm";
    if is_calm {
        plan.poll_cap = POLL_CAP;
    }
    // Near the servers, and in short storms: far away or in a long outage, a crowd does little.
    plan.delay.least = chance.u64(..2);
    plan.spread = 0;
    plan.length = chance.u64(1_500..6_000);
    plan.events.retain(|event| event.at < plan.length);
    plan.events.truncate(2);
    for event in &mut plan.events {
        event.span = event.span.min(300);
    }
    let pauses = pick(
        chance,
        &[[0; 4], [0, 0, 0, 1], [0, 0, 5, 20], [5, 20, 60, 200]],
    );
    let tasks = pick(chance, &[2, 4, 12, 30]);
    for process in &mut plan.processes {
        process.tasks.clear();
        for _ in 0..tasks {
            let count = chance.usize(100..600);
            let step = |_| Step {
                pause: pick(chance, &pauses),
                act: act(chance, &plan.names, &wanted, is_calm),
            };
            process.tasks.push((0..count).map(step).collect());
        }
    }
}

fn act(chance: &mut Rng, names: &[Shared], wanted: &[usize], is_calm: bool) -> Act {
    let at = pick(chance, wanted);
    if odds(chance, 3) {
        return steps::act(chance, names, at, is_calm);
    }
    let section = steps::section(chance, names, at);
    let section = Section {
        ask: match chance.u32(..10) {
            0..6 => Ask::Wait,
            6..9 => Ask::For(4_000),
            _ => Ask::Once,
        },
        lease: section.lease.filter(|lease| *lease < LONGEST_LEASE),
        work: pick(chance, &[0, 0, 0, 0, 1, 2, 5]),
        extend: None,
        verifies: false,
        ending: match section.ending {
            // What nobody gives back keeps the whole crowd waiting until its lease ends.
            Ending::Forget | Ending::Detached => Ending::Drop,
            _ if odds(chance, 70) => Ending::Unlock,
            ending => ending,
        },
        care: match odds(chance, 90) {
            true => Care::default(),
            false => section.care,
        },
        ..section
    };
    Act::Section(section)
}
