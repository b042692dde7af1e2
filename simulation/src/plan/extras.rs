//! What one seed in five has besides: clocks that are set, leaders and jobs.
//!
//! It is drawn apart from the rest, so that the plans of the other seeds, and with them the seeds that are kept, stay
//! as they were before there was any of it.

use fastrand::Rng;

use super::{Act, Attempt, By, Event, Fault, Kind, Plan, Section, Shared, Step, odds, pick, steps};
use crate::chance::mixed;

/// In place of the weather that was chosen.
const CLOCKS: &str = "clocks";

pub(super) fn add(plan: &mut Plan) {
    if plan.seed % 5 != 1 {
        return;
    }
    let chance = &mut Rng::with_seed(mixed(!plan.seed));
    if odds(chance, 40) {
        plan.weather = CLOCKS;
        plan.events.clear();
    }
    if matches!(plan.weather, CLOCKS | "everything") {
        for _ in 0..chance.usize(1..=4) {
            let fault = Fault::Clock(
                chance.usize(..plan.topology.servers()),
                step_of_clock(chance),
            );
            let at = chance.u64(200..plan.length);
            plan.events.push(Event { at, span: 0, fault });
        }
        plan.events.sort_by_key(|event| event.at);
    }
    for kind in [Kind::Leader, Kind::Job] {
        if odds(chance, 70) {
            let at = plan.names.len();
            plan.names.push(Shared {
                kind,
                name: format!("{kind:?}:0").to_lowercase(),
                client: chance.usize(..plan.topology.clients()),
                total: pick(chance, &[100, 400, 1_000, 4_000]),
            });
            for process in &mut plan.processes {
                let count = chance.usize(10..60);
                let step = |_| step(chance, &plan.names, at);
                process.tasks.push((0..count).map(step).collect());
            }
        }
    }
}

/// Returns by how many milliseconds a clock is set: within the margin of leases and far beyond it, or back by as much
/// as a wrong time zone.
fn step_of_clock(chance: &mut Rng) -> i64 {
    pick(
        chance,
        &[20, 400, 3_000, 8_000, -100, -1_500, -10_000, -3_600_000],
    )
}

fn step(chance: &mut Rng, names: &[Shared], at: usize) -> Step {
    let is_job = names[at].kind == Kind::Job;
    // Jobs begin by a timer.
    let pause = pick(chance, if is_job { &[20, 100, 500] } else { &[0, 5, 50] });
    let section = steps::section(chance, names, at);
    let act = match chance.u32(..10) {
        _ if is_job => Act::Job(Attempt {
            name: at,
            work: section.work,
            fails: odds(chance, 30),
            care: section.care,
        }),
        0 => Act::Look(at),
        which => {
            // Each campaign is a candidate of its own, and each term is renewed.
            let section = Section {
                by: By::Unique,
                lease: None,
                levels: 1,
                work: pick(chance, &[0, 10, 100, 100, 2_000]),
                ..section
            };
            match which {
                1 => Act::Run(section),
                2..5 => Act::Lead(section),
                _ => Act::Section(section),
            }
        }
    };
    Step { pause, act }
}
