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
        Corner::new(&[Reentrant, Fair, Fenced], left, lasting_pair),
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

/// One name of each kind.
fn lasting_all(plan: &mut Plan, chance: &mut Rng) {
    use Kind::{Fair, Fenced, Plain, ReadWrite, Reentrant};
    name_all(plan, chance, &[Reentrant, Fair, Fenced, ReadWrite, Plain]);
    lasting(plan, chance);
    staff(plan, 12);
}

/// Most calls are left unpolled for long, all at the same time: while they wait, or while they give back what they have.
fn left(chance: &mut Rng, names: &[Shared], _: usize, task: usize) -> Act {
    let (at, number) = (task % names.len(), task / names.len());
    let (kind, is_of_set) = (names[at].kind, names[at].is_of_set());
    // So many that a second for each of them would be too long.
    let are_all = at == 0 && !is_of_set;
    let (most, share, polls) = match are_all {
        true => (9, 100, 1),
        false if is_of_set => (2, 90, chance.u32(1..4)),
        false => (7, 90, chance.u32(1..4)),
    };
    let unpolled = (number < most && odds(chance, share)).then_some((polls, 20_000));
    let left = Care {
        dropped: None,
        unpolled,
    };
    // A plain lock that an owner with a name was granted is kept, since it may be that of another call.
    let [care, held] = match kind != Kind::Plain && (are_all || odds(chance, 70)) {
        true => [left, Care::default()],
        false => [Care::default(), left],
    };
    // Only calls that wait for a fair lock have what a single attempt was granted given back.
    let asks = match kind {
        Kind::Fair => [Ask::Wait, Ask::For(6_000)],
        _ if are_all => [Ask::Wait; 2],
        _ => [Ask::Wait, Ask::Once],
    };
    let section = one(chance, names, at);
    Act::Section(Section {
        names: match is_of_set && unpolled.is_some() {
            true => vec![0, 1],
            false => vec![at],
        },
        ask: pick(chance, &asks),
        by: pick(chance, &[By::Unique, By::Named(0)]),
        lease: None,
        work: pick(chance, &[0, 5, 40]),
        verifies: false,
        ending: Ending::Unlock,
        care,
        held,
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
    several(plan, 4, |at| format!("wiped:{at}"));
    alone(plan);
    plan.weather = "servers";
    plan.watchdog = 6_000;
    plan.processes.truncate(3);
    events(plan, chance, 6, &[5, 20, 100], |_| {
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
