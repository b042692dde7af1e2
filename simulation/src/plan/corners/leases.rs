//! What becomes of leases: of those that are short, that a repeated request has set, that pass while nobody polls a
//! call, or that are measured by a clock that is set back.

use fastrand::Rng;

use super::runs::{apart, nested};
use super::turns::{distant, unpolled};
use super::{
    Act, Ask, By, Care, Corner, Ending, Fault, Kind, LOCKS, POLL_CAP, Plan, Section, Shared, alone,
    busy, events, few, odds, one, pick, several, sparse, steps, tasks,
};

pub(super) const CORNERS: &[Corner] = {
    use Kind::{Counted, Expirable, Fair, Fenced, Plain, ReadWrite, Reentrant};
    &[
        Corner::new(&[Reentrant, Fenced], sparse, set_back),
        Corner::new(&[Plain], repeated, broken),
        Corner::new(&[Reentrant, Fair, Fenced], passing, busy),
        Corner::new(&[Fair, Counted], lying, thronged),
        Corner::new(&LOCKS, nested, apart),
        Corner::new(&[Reentrant], chained, six),
        Corner::new(&[ReadWrite], reading, unhandy),
        Corner::new(&[Reentrant, Fenced], withheld, thronged),
        Corner::new(&[Counted, Expirable], given_up, few),
        Corner::new(&[Reentrant], forced, pairs),
    ]
};

/// One server, whose clock is set back now and then.
fn set_back(plan: &mut Plan, chance: &mut Rng) {
    few(plan, chance);
    alone(plan);
    plan.weather = "clocks";
    // A turn that was told lasts until its client comes.
    plan.delay.least = 15;
    let fault = |chance: &mut Rng| Fault::Clock(0, pick(chance, &[-10_000, -3_600_000]));
    let count = chance.usize(20..=30);
    events(plan, chance, count, &[0], fault);
}

/// A distant server, to which connections tear.
fn broken(plan: &mut Plan, chance: &mut Rng) {
    distant(plan, chance.u64(20..40), 1_000, 4);
    plan.weather = "links";
    let fault = |chance: &mut Rng| Fault::Tear(None, Some(0), pick(chance, &[300, 900]));
    events(plan, chance, 8, &[700, 1_500], fault);
}

/// A plain lock with a lease that is short for its distance.
fn repeated(chance: &mut Rng, names: &[Shared], at: usize, _: usize) -> Act {
    let section = one(chance, names, at);
    Act::Section(Section {
        ask: pick(chance, &[Ask::For(2_000), Ask::Once]),
        by: pick(chance, &[By::Task, By::Unique]),
        lease: pick(chance, &[Some(400), Some(1_500)]),
        work: pick(chance, &[10, 300, 1_000]),
        verifies: false,
        ending: pick(chance, &[Ending::Unlock, Ending::Drop]),
        ..section
    })
}

/// Calls that nobody polls for as long as a lease lasts, or half of it.
fn passing(chance: &mut Rng, names: &[Shared], at: usize, task: usize) -> Act {
    let section = one(chance, names, at);
    let is_polled = odds(chance, [30, 60, 100, 100, 100][task]);
    Act::Section(Section {
        ask: pick(chance, &[Ask::Wait, Ask::For(6_000), Ask::Once]),
        by: pick(chance, &[By::Named(0), By::Named(0), By::Unique]),
        lease: pick(chance, &[Some(400), Some(1_500)]),
        work: pick(chance, &[0, 300, 1_000]),
        verifies: false,
        ending: Ending::Unlock,
        care: Care {
            dropped: None,
            unpolled: (!is_polled).then(|| (chance.u32(1..4), pick(chance, &[250, 700, 850]))),
        },
        ..section
    })
}

/// One process with more calls that nobody polls than may each keep the others waiting.
fn thronged(plan: &mut Plan, _: &mut Rng) {
    plan.poll_cap = POLL_CAP;
    plan.processes.truncate(1);
    plan.names.truncate(1);
    plan.processes[0].tasks.resize(24, Vec::new());
    plan.handoffs = 16;
    plan.command_timeout = 500;
}

fn lying(chance: &mut Rng, names: &[Shared], at: usize, task: usize) -> Act {
    unpolled(chance, names, at, |chance| {
        (task < 20).then(|| chance.u32(1..6))
    })
}

/// Six names of one kind, for one process with a task for each of them.
fn six(plan: &mut Plan, _: &mut Rng) {
    several(plan, 6, |at| format!("set:{at}"));
    plan.processes.truncate(1);
    plan.processes[0].tasks.resize(7, Vec::new());
}

/// Sets that wait for each of their locks for a part of their lease.
fn chained(chance: &mut Rng, names: &[Shared], _: usize, task: usize) -> Act {
    let section = steps::section(chance, names, 0);
    Act::Section(Section {
        names: match task {
            0 => (0..names.len()).collect(),
            _ => vec![task - 1],
        },
        ask: Ask::Wait,
        by: By::Unique,
        lease: (task == 0).then_some(400),
        levels: 1,
        work: pick(chance, &[90, 120]),
        extend: None,
        verifies: false,
        ending: Ending::Unlock,
        care: Care::default(),
        ..section
    })
}

/// Nobody passes a lock on within a process.
fn unhandy(plan: &mut Plan, _: &mut Rng) {
    plan.handoffs = 0;
    plan.poll_cap = POLL_CAP;
    plan.processes.truncate(3);
    for process in &mut plan.processes {
        process.tasks.resize(6, Vec::new());
    }
}

/// Readers that share a record for long, and come again while a writer waits.
fn reading(chance: &mut Rng, names: &[Shared], at: usize, task: usize) -> Act {
    let section = one(chance, names, at);
    Act::Section(Section {
        reads: task > 0 || odds(chance, 30),
        ask: pick(chance, &[Ask::Wait, Ask::Wait, Ask::For(6_000)]),
        by: By::Task,
        lease: None,
        work: pick(chance, &[25, 300, 900, 1_500]),
        verifies: false,
        ending: Ending::Unlock,
        ..section
    })
}

/// Releases that nobody polls, before calls that wait.
fn withheld(chance: &mut Rng, names: &[Shared], at: usize, task: usize) -> Act {
    let section = one(chance, names, at);
    Act::Section(Section {
        ask: Ask::Wait,
        by: By::Unique,
        lease: None,
        work: pick(chance, &[1, 5]),
        verifies: false,
        ending: Ending::Unlock,
        held: Care {
            dropped: None,
            unpolled: (task < 16 && odds(chance, 40)).then(|| (chance.u32(1..3), 3_000)),
        },
        ..section
    })
}

/// Calls for permits that are dropped while their requests are on their way.
fn given_up(chance: &mut Rng, names: &[Shared], at: usize, _: usize) -> Act {
    let section = one(chance, names, at);
    Act::Section(Section {
        ask: pick(chance, &[Ask::Wait, Ask::For(2_000), Ask::Once]),
        work: pick(chance, &[0, 5, 40]),
        ending: Ending::Unlock,
        care: Care {
            dropped: odds(chance, 60).then(|| (chance.u32(1..5), chance.bool())),
            unpolled: None,
        },
        ..section
    })
}

/// Two tasks of each process, in weather in which locks are taken by force.
fn pairs(plan: &mut Plan, _: &mut Rng) {
    plan.weather = "servers";
    plan.poll_cap = POLL_CAP;
    tasks(plan, 2);
}

/// A lock that some release by force while others wait for it.
fn forced(chance: &mut Rng, names: &[Shared], at: usize, task: usize) -> Act {
    match odds(chance, 10) {
        true => Act::Force(at),
        false => sparse(chance, names, at, task),
    }
}
