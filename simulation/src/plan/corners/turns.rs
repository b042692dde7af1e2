//! Calls that stand behind each other, readers that share, owners with one name, and calls that nobody polls.

use fastrand::Rng;

use super::{
    Act, Ask, By, Care, Corner, Ending, Fault, Kind, LOCKS, POLL_CAP, Plan, Section, Shared, alone,
    busy, events, few, odds, one, pick, sparse, tasks,
};

pub(super) const CORNERS: &[Corner] = {
    use Kind::{Counted, Fair, Fenced, Plain, ReadWrite, Reentrant};
    &[
        Corner::new(&[ReadWrite], joined, far),
        Corner::new(&[Reentrant, Fenced, Fair], queued, farther),
        Corner::new(&[Reentrant, Fenced, Fair], tried, hung),
        Corner::new(&[Plain], expiring, paused),
        Corner::new(&[Plain], dropped, busy),
        Corner::new(&[Reentrant, Fair, Counted, ReadWrite], idle, packed),
        Corner::new(&LOCKS, sparse, abandoning),
    ]
};

/// One server, that far away in milliseconds, for so many processes.
pub(super) fn distant(plan: &mut Plan, least: u64, command_timeout: u64, processes: usize) {
    alone(plan);
    plan.delay.least = least;
    plan.delay.jitter = 1;
    plan.command_timeout = command_timeout;
    plan.watchdog = 6_000;
    plan.processes.truncate(processes);
}

/// A server that is far away.
fn far(plan: &mut Plan, chance: &mut Rng) {
    distant(plan, chance.u64(18..40), 1_000, 3);
}

/// Readers that share what one of them was granted, and now and then a writer.
fn joined(chance: &mut Rng, names: &[Shared], at: usize, task: usize) -> Act {
    let section = one(chance, names, at);
    Act::Section(Section {
        reads: task > 0 || odds(chance, 50),
        ask: pick(chance, &[Ask::Wait, Ask::Wait, Ask::For(6_000)]),
        by: pick(chance, &[By::Task, By::Unique]),
        lease: None,
        levels: pick(chance, &[1, 1, 1, 2]),
        work: pick(chance, &[0, 5, 25, 60, 300]),
        verifies: false,
        ending: pick(chance, &[Ending::Unlock, Ending::Unlock, Ending::Drop]),
        ..section
    })
}

/// A server so far away that the calls of one owner stand behind each other for longer than one may take.
fn farther(plan: &mut Plan, chance: &mut Rng) {
    distant(plan, chance.u64(72..80), 500, 2);
    tasks(plan, 4);
}

/// One server, which hangs now and then.
pub(super) fn hung(plan: &mut Plan, chance: &mut Rng) {
    alone(plan);
    plan.weather = "servers";
    plan.command_timeout = 500;
    plan.watchdog = 6_000;
    plan.processes.truncate(3);
    let count = chance.usize(2..=4);
    events(plan, chance, count, &[1_500, 2_500], |_| Fault::Hang(0));
}

/// Levels that several tasks take under one name.
fn level(chance: &mut Rng, names: &[Shared], at: usize, ask: Ask, extend: Option<u64>) -> Act {
    let section = one(chance, names, at);
    Act::Section(Section {
        ask,
        by: By::Named(0),
        lease: None,
        work: pick(chance, &[0, 1, 10, 100]),
        extend,
        verifies: false,
        ending: Ending::Unlock,
        ..section
    })
}

/// By calls that may wait, some of which lengthen the lease.
fn queued(chance: &mut Rng, names: &[Shared], at: usize, _: usize) -> Act {
    // Never a cut, which takes two requests in one turn.
    let extend = odds(chance, 50).then_some(7_000);
    level(chance, names, at, Ask::For(6_000), extend)
}

/// By calls that ask once.
fn tried(chance: &mut Rng, names: &[Shared], at: usize, _: usize) -> Act {
    let ask = pick(chance, &[Ask::Once, Ask::Once, Ask::For(6_000)]);
    level(chance, names, at, ask, None)
}

/// One server, and processes that are paused for longer than some leases.
fn paused(plan: &mut Plan, chance: &mut Rng) {
    alone(plan);
    plan.weather = "processes";
    plan.processes.truncate(4);
    let processes = plan.processes.len();
    let fault = |chance: &mut Rng| Fault::Pause(chance.usize(..processes));
    let count = chance.usize(10..=20);
    events(plan, chance, count, &[300, 700, 1_500], fault);
}

/// A plain lock, by owners of whom several have the same name.
fn plain(chance: &mut Rng, names: &[Shared], at: usize, lease: u64, work: u64) -> Section {
    let section = one(chance, names, at);
    Section {
        ask: pick(chance, &[Ask::Wait, Ask::For(4_000), Ask::Once]),
        by: pick(chance, &[By::Named(0), By::Named(0), By::Named(1)]),
        lease: Some(lease),
        work,
        verifies: false,
        ending: Ending::Unlock,
        ..section
    }
}

/// Each is lost before its work is done, so that no release is sent that may be late.
fn expiring(chance: &mut Rng, names: &[Shared], at: usize, _: usize) -> Act {
    let lease = pick(chance, &[400, 400, 1_500]);
    Act::Section(plain(chance, names, at, lease, lease + 200))
}

/// Some of their calls are dropped while they wait.
fn dropped(chance: &mut Rng, names: &[Shared], at: usize, _: usize) -> Act {
    let work = pick(chance, &[5, 40, 300]);
    let section = plain(chance, names, at, 3_000, work);
    let care = Care {
        dropped: odds(chance, 40).then(|| (chance.u32(1..5), chance.bool())),
        unpolled: None,
    };
    Act::Section(Section { care, ..section })
}

/// One process with many tasks, or two.
fn packed(plan: &mut Plan, chance: &mut Rng) {
    plan.poll_cap = POLL_CAP;
    plan.processes.truncate(chance.usize(1..=2));
    for process in &mut plan.processes {
        process.tasks.resize(12, Vec::new());
    }
}

/// Most tasks make calls that they do not poll for long, all at the same time.
fn idle(chance: &mut Rng, names: &[Shared], at: usize, task: usize) -> Act {
    let polls = |chance: &mut Rng| (task < 8 && odds(chance, 70)).then(|| chance.u32(1..3));
    unpolled(chance, names, at, polls)
}

/// A call that waits, and is not polled any more after so many polls.
pub(super) fn unpolled(
    chance: &mut Rng,
    names: &[Shared],
    at: usize,
    polls: impl FnOnce(&mut Rng) -> Option<u32>,
) -> Act {
    let section = one(chance, names, at);
    Act::Section(Section {
        ask: Ask::Wait,
        by: By::Unique,
        lease: None,
        permits: names[at].total,
        work: pick(chance, &[0, 1, 5]),
        verifies: false,
        ending: Ending::Unlock,
        care: Care {
            dropped: None,
            unpolled: polls(chance).map(|polls| (polls, 20_000)),
        },
        ..section
    })
}

/// Few tasks, after which each process closes its clients while calls go on.
pub(super) fn abandoning(plan: &mut Plan, chance: &mut Rng) {
    few(plan, chance);
    plan.length = 3_000;
    plan.abandons = true;
}
