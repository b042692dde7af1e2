//! Leases that outlast every wait, runs that are over soon, outages that outlast leases, and links that outlast turns.
//! Many of them have several names at once, each with tasks of its own.

use fastrand::Rng;

use super::{
    Act, Ask, By, Care, Corner, Ending, Fault, Kind, Memory, POLL_CAP, Plan, Section, Shared,
    alone, copies, events, odds, one, pair, pick, several, shared, sparse, turns,
};
use crate::plan::{Attempt, LONGEST_SPAN};

pub(super) const CORNERS: &[Corner] = {
    use Kind::{Counted, Expirable, Fair, Fenced, Leader, Reentrant};
    &[
        Corner::new(&[Reentrant], left, lasting_all),
        Corner::new(&[Reentrant, Fair, Fenced], left_sets, lasting_pair),
        Corner::new(&[Counted, Expirable], of_one, brief),
        Corner::new(&[Leader], interrupted, severed),
        Corner::new(&[Fenced], handed_on, wiped),
        Corner::new(&[Reentrant, Fenced], handed_on, outnumbered),
        Corner::new(&[Reentrant, Fenced], handed_on, farthest),
    ]
};

fn name_all(plan: &mut Plan, chance: &mut Rng, kinds: &[Kind]) {
    let kinds = kinds.iter().enumerate();
    plan.names = kinds
        .map(|(at, kind)| shared(chance, *kind, at, 1))
        .collect();
}

/// How many tasks of a process want one name.
const CROWD: usize = 12;

/// Has each process have so many tasks for each name: that with the number `task` is for the name at
/// `task % names.len()`.
fn staff(plan: &mut Plan, each: usize) {
    let count = plan.names.len() * each;
    for process in &mut plan.processes {
        process.tasks.resize(count, Vec::new());
    }
}

/// One server, and leases that last for longer than anybody waits: what a call leaves is in the way of others unless it
/// is given back.
fn lasting(plan: &mut Plan, chance: &mut Rng) {
    alone(plan);
    plan.watchdog = 60_000;
    plan.poll_cap = POLL_CAP;
    plan.processes.truncate(chance.usize(1..=2));
}

fn lasting_pair(plan: &mut Plan, chance: &mut Rng) {
    pair(plan, chance);
    lasting(plan, chance);
    staff(plan, 4);
}

/// One name for a crowd, and some of each kind.
fn lasting_all(plan: &mut Plan, chance: &mut Rng) {
    use Kind::{Fair, Fenced, ReadWrite, Reentrant};
    let each = [Fair, Fenced, ReadWrite, ReadWrite].repeat(3);
    name_all(plan, chance, &[&[Reentrant][..], &each].concat());
    lasting(plan, chance);
    for process in &mut plan.processes {
        process.tasks.resize(CROWD + 5 * each.len(), Vec::new());
    }
}

/// Calls that are left unpolled for long, beside others. There are so many of them for the first name that a second for
/// each would be too long.
fn left(chance: &mut Rng, names: &[Shared], _: usize, task: usize) -> Act {
    let Some(task) = task.checked_sub(CROWD) else {
        let unpolled = (task < CROWD - 3).then_some(1);
        return wanted(chance, names, vec![0], &[Ask::Wait], unpolled);
    };
    let (number, at) = (task / (names.len() - 1), 1 + task % (names.len() - 1));
    let unpolled = (number < 3 && odds(chance, 90)).then(|| chance.u32(1..4));
    // Only calls that wait for a fair lock have what a single attempt was granted given back.
    let other = match names[at].kind {
        Kind::Fair => Ask::For(6_000),
        _ => Ask::Once,
    };
    wanted(chance, names, vec![at], &[Ask::Wait, other], unpolled)
}

/// Sets that are left unpolled, beside single locks.
fn left_sets(chance: &mut Rng, names: &[Shared], at: usize, task: usize) -> Act {
    let unpolled = (task < 4 && odds(chance, 90)).then(|| chance.u32(1..4));
    let names_wanted = unpolled.map_or_else(|| vec![at], |_| vec![0, 1]);
    wanted(
        chance,
        names,
        names_wanted,
        &[Ask::Wait, Ask::Once],
        unpolled,
    )
}

/// A call that is not polled any more after so many polls.
fn wanted(
    chance: &mut Rng,
    names: &[Shared],
    wanted: Vec<usize>,
    asks: &[Ask],
    unpolled: Option<u32>,
) -> Act {
    let section = one(chance, names, wanted[0]);
    Act::Section(Section {
        names: wanted,
        ask: pick(chance, asks),
        by: pick(chance, &[By::Unique, By::Named(0)]),
        lease: None,
        work: pick(chance, &[0, 5, 40]),
        verifies: false,
        ending: Ending::Unlock,
        care: Care {
            dropped: None,
            unpolled: unpolled.map(|polls| (polls, 20_000)),
        },
        ..section
    })
}

/// Two tasks for each of many names, which soon begin nothing new, so that nobody wakes one that was told nothing.
fn brief(plan: &mut Plan, chance: &mut Rng) {
    plan.names[0].total = 1;
    several(plan, 30, |at| format!("brief:{at}"));
    alone(plan);
    plan.poll_cap = POLL_CAP;
    plan.delay.least = chance.u64(2..8);
    plan.length = chance.u64(1_200..2_500);
    plan.processes.truncate(2);
    staff(plan, 1);
}

fn of_one(chance: &mut Rng, names: &[Shared], _: usize, task: usize) -> Act {
    sparse(chance, names, task, task)
}

/// Two processes, one of which does not reach the only server for longer than a lease.
fn severed(plan: &mut Plan, chance: &mut Rng) {
    use Kind::{Job, Leader};
    name_all(
        plan,
        chance,
        &[Leader, Job, Job, Job, Leader, Job, Job, Job],
    );
    for shared in &mut plan.names {
        shared.total = 1_000;
    }
    alone(plan);
    plan.weather = "links";
    plan.length = 8_000;
    plan.watchdog = 1_200;
    plan.command_timeout = 500;
    plan.processes.truncate(2);
    let fault = |chance: &mut Rng| Fault::Mute(Some(chance.usize(..2)), Some(0));
    events(plan, chance, 4, &[LONGEST_SPAN], fault);
    staff(plan, 1);
}

/// Terms that last longer than such an outage, and jobs that succeed.
fn interrupted(chance: &mut Rng, names: &[Shared], _: usize, task: usize) -> Act {
    if names[task].kind == Kind::Job {
        return Act::Job(Attempt {
            name: task,
            work: 800,
            fails: false,
            care: Care::default(),
        });
    }
    let section = one(chance, names, task);
    Act::Lead(Section {
        by: By::Unique,
        lease: None,
        work: 5_000,
        ..section
    })
}

/// One server that is back without its data again and again, so soon that clients have not noticed.
fn wiped(plan: &mut Plan, chance: &mut Rng) {
    several(plan, 6, |at| format!("wiped:{at}"));
    alone(plan);
    plan.weather = "servers";
    plan.watchdog = 6_000;
    plan.processes.truncate(3);
    events(plan, chance, 6, &[5, 20], |_| {
        Fault::Stop(0, Memory::Nothing)
    });
    staff(plan, 3);
}

/// Locks that tasks of a process pass on to each other all the time.
fn handed_on(chance: &mut Rng, names: &[Shared], _: usize, task: usize) -> Act {
    let section = one(chance, names, task % names.len());
    Act::Section(Section {
        ask: Ask::Wait,
        by: By::Unique,
        lease: None,
        work: pick(chance, &[5, 20, 60]),
        verifies: false,
        ending: Ending::Unlock,
        ..section
    })
}

/// One task, beside a process with so many that one of them always waits.
fn outnumbered(plan: &mut Plan, chance: &mut Rng) {
    copies::two(plan, chance);
    plan.handoffs = 0;
    for (process, count) in plan.processes.iter_mut().zip([12, 1]) {
        process.tasks.resize(count, Vec::new());
    }
}

/// A server so far away that a round trip lasts for longer than the shortest turn.
fn farthest(plan: &mut Plan, chance: &mut Rng) {
    turns::distant(plan, chance.u64(155..200), 1_000, 4);
    plan.poll_cap = POLL_CAP;
    several(plan, 4, |at| format!("far:{at}"));
    // Somebody always waits, so that clients do not forget how far away it is.
    plan.handoffs = 0;
    staff(plan, 6);
}
