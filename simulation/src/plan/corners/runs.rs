//! Terms, jobs and runs: what is done while a lock is held, and what becomes of it when the lock is lost.

use fastrand::Rng;

use super::{
    Act, Ask, By, Care, Corner, Ending, Fault, Kind, LOCKS, LONGEST_LEASE, Plan, Section, Shared,
    alone, busy, events, few, odds, one, pick, steps, tasks,
};
use crate::plan::{Attempt, LONGEST_SPAN};

pub(super) const CORNERS: &[Corner] = {
    use Kind::{Fair, Fenced, Job, Leader, Plain, ReadWrite, Reentrant, Spin};
    &[
        Corner::new(&[Leader], candidates, few),
        Corner::new(&[Leader], candidates, apart),
        Corner::new(&LOCKS, nested, few),
        Corner::new(&[Job], once, few),
        Corner::new(&[Job], once, brief),
        Corner::new(&[Job], once, apart),
        Corner::new(&[Reentrant, Fair, Plain, ReadWrite], left_alone, busy),
        Corner::new(
            &[Reentrant, Fair, Fenced, ReadWrite, Plain, Spin],
            outlived,
            busy,
        ),
        Corner::new(&LOCKS, looked_at, passed_on),
        Corner::new(&[ReadWrite], readers, busy),
    ]
};

/// One server, which some processes cannot reach, many of them for longer than a lease.
pub(super) fn apart(plan: &mut Plan, chance: &mut Rng) {
    alone(plan);
    plan.weather = "links";
    plan.watchdog = 1_200;
    let processes = plan.processes.len();
    let fault = |chance: &mut Rng| {
        let process = Some(chance.usize(..processes));
        match chance.u32(..3) {
            0 => Fault::Refuse(process, Some(0)),
            1 => Fault::Mute(process, Some(0)),
            _ => Fault::Hold(process, Some(0), [true; 2]),
        }
    };
    let count = chance.usize(3..=6);
    events(
        plan,
        chance,
        count,
        &[400, 1_500, 2_500, LONGEST_SPAN],
        fault,
    );
    tasks(plan, 2);
}

/// Few tasks, and short leases.
fn brief(plan: &mut Plan, chance: &mut Rng) {
    few(plan, chance);
    plan.watchdog = 1_200;
}

/// Locks are passed on within a process for long.
fn passed_on(plan: &mut Plan, _: &mut Rng) {
    plan.handoffs = 16;
}

/// Terms, many of which last longer than it takes to tell of them.
fn candidates(chance: &mut Rng, names: &[Shared], at: usize, _: usize) -> Act {
    if odds(chance, 10) {
        return Act::Look(at);
    }
    let section = one(chance, names, at);
    let section = Section {
        ask: pick(chance, &[Ask::Wait, Ask::Wait, Ask::For(4_000)]),
        by: By::Unique,
        lease: None,
        work: pick(chance, &[0, 10, 400, 3_000, 3_000]),
        ending: pick(chance, &[Ending::Unlock, Ending::Unlock, Ending::Drop]),
        ..section
    };
    match chance.u32(..4) {
        0 => Act::Run(section),
        1 => Act::Lead(section),
        _ => Act::Section(section),
    }
}

/// Runs, in branches and within each other.
pub(super) fn nested(chance: &mut Rng, _: &[Shared], at: usize, _: usize) -> Act {
    Act::Nest(at, pick(chance, &[0, 1, 10, 100, 1_100]))
}

/// Runs of a job, many of which fail or are dropped.
pub(super) fn once(chance: &mut Rng, _: &[Shared], at: usize, _: usize) -> Act {
    Act::Job(Attempt {
        name: at,
        work: pick(chance, &[0, 10, 100, 800, 1_100]),
        fails: odds(chance, 50),
        care: Care {
            dropped: odds(chance, 20).then(|| (chance.u32(2..9), chance.bool())),
            unpolled: None,
        },
    })
}

/// Calls of two owners with names, some of which nobody polls.
fn left_alone(chance: &mut Rng, names: &[Shared], at: usize, task: usize) -> Act {
    let share = [60, 30, 0, 0, 0][task];
    let section = one(chance, names, at);
    Act::Section(Section {
        ask: pick(chance, &[Ask::Wait, Ask::For(6_000), Ask::Once]),
        by: pick(
            chance,
            &[By::Named(0), By::Named(0), By::Named(1), By::Unique],
        ),
        lease: pick(chance, &[None, None, Some(400)]),
        work: pick(chance, &[1, 40, 300, 300]),
        ending: pick(chance, &[Ending::Unlock, Ending::Unlock, Ending::Drop]),
        care: Care {
            dropped: None,
            unpolled: odds(chance, share)
                .then(|| (chance.u32(1..4), pick(chance, &[250, 700, 20_000]))),
        },
        ..section
    })
}

/// Runs that last longer than their lease.
fn outlived(chance: &mut Rng, names: &[Shared], at: usize, _: usize) -> Act {
    let section = one(chance, names, at);
    let section = Section {
        ask: pick(chance, &[Ask::For(4_000), Ask::For(300)]),
        by: pick(chance, &[By::Task, By::Unique]),
        lease: Some(400),
        work: pick(chance, &[10, 300, 1_000, 1_000]),
        ending: Ending::Unlock,
        ..section
    };
    match odds(chance, 50) {
        true => Act::Run(section),
        false => Act::Section(section),
    }
}

/// Owners that look at what they have, among locks that are passed on.
fn looked_at(chance: &mut Rng, names: &[Shared], at: usize, _: usize) -> Act {
    if odds(chance, 40) {
        return Act::Look(at);
    }
    let section = steps::section(chance, names, at);
    Act::Section(Section {
        names: vec![at],
        ask: pick(chance, &[Ask::Wait, Ask::For(4_000)]),
        by: By::Task,
        lease: None,
        work: pick(chance, &[0, 10, 40, 150]),
        extend: None,
        ending: Ending::Unlock,
        care: Care::default(),
        ..section
    })
}

/// Readers of one process that share a record, some of which cut its lease.
fn readers(chance: &mut Rng, names: &[Shared], at: usize, _: usize) -> Act {
    let section = one(chance, names, at);
    Act::Section(Section {
        reads: odds(chance, 85),
        ask: pick(chance, &[Ask::Wait, Ask::For(4_000)]),
        by: pick(chance, &[By::Task, By::Unique]),
        lease: Some(LONGEST_LEASE),
        levels: chance.u32(1..=2),
        work: pick(chance, &[1, 40, 300, 1_000]),
        extend: odds(chance, 40).then(|| pick(chance, &[300, 2_000])),
        ending: Ending::Unlock,
        ..section
    })
}
