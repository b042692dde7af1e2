//! What is rare elsewhere: tokens after a clock was set back, calls that nobody polls while their lock is taken by force,
//! work that fails while its server hangs, and an owner that has a lock for long and waits for it elsewhere.

use fastrand::Rng;

use super::copies::torn;
use super::runs::once;
use super::turns::{abandoning, hung};
use super::{
    Act, Ask, By, Care, Corner, Ending, Event, Fault, Kind, LONGEST_LEASE, POLL_CAP, Plan, Section,
    Shared, alone, few, lengthened, odds, one, pick, several, sparse, tasks,
};

pub(super) const CORNERS: &[Corner] = {
    use Kind::{Fair, Fenced, Job, Plain, ReadWrite, Reentrant};
    &[
        Corner::new(&[Fenced], handed_on, set_back),
        Corner::new(&[Reentrant, Fenced, Plain, ReadWrite], forced, few_alone),
        Corner::new(&[Reentrant, Fair, Plain, ReadWrite], failing, hung),
        Corner::new(&[Reentrant, Fair, Fenced], lengthened, hung),
        Corner::new(&[Reentrant, Fair, Fenced, ReadWrite], sparse, leaving),
        Corner::new(&[ReadWrite], mixed, small),
        Corner::new(&[Fair], known, small),
        Corner::new(&[Reentrant, Fair, Fenced], nested, small),
        Corner::new(&[Reentrant, Fenced, ReadWrite], released, farther),
        Corner::new(&[Job], once, keeping),
    ]
};

/// One server whose clock was set back, so that nothing but the last token keeps tokens rising, and to which connections
/// tear.
fn set_back(plan: &mut Plan, chance: &mut Rng) {
    torn(plan, chance);
    plan.handoffs = 16;
    let (at, fault) = (500, Fault::Clock(0, -3_600_000));
    plan.events.insert(0, Event { at, span: 0, fault });
}

/// Locks that are passed on within a process.
fn handed_on(chance: &mut Rng, names: &[Shared], at: usize, _: usize) -> Act {
    let section = one(chance, names, at);
    Act::Section(Section {
        ask: pick(chance, &[Ask::Wait, Ask::For(6_000)]),
        by: pick(chance, &[By::Task, By::Unique]),
        lease: None,
        work: pick(chance, &[0, 1, 10, 40]),
        ending: Ending::Unlock,
        ..section
    })
}

/// Few tasks. In a simulated cluster, holders do not hear what another server publishes.
fn few_alone(plan: &mut Plan, chance: &mut Rng) {
    few(plan, chance);
    alone(plan);
}

/// Locks that are taken by force, also from calls that have them and do not know it yet.
fn forced(chance: &mut Rng, names: &[Shared], at: usize, _: usize) -> Act {
    if odds(chance, 20) {
        return Act::Force(at);
    }
    let section = one(chance, names, at);
    let unpolled = odds(chance, 40).then(|| (1, pick(chance, &[700, 1_500, 2_500])));
    Act::Section(Section {
        ask: Ask::Once,
        by: By::Unique,
        lease: Some(LONGEST_LEASE),
        work: if unpolled.is_some() { 4_500 } else { 40 },
        ending: Ending::Unlock,
        care: Care {
            dropped: None,
            unpolled,
        },
        ..section
    })
}

/// Runs whose work fails.
fn failing(chance: &mut Rng, names: &[Shared], at: usize, _: usize) -> Act {
    let section = one(chance, names, at);
    Act::Run(Section {
        ask: Ask::For(4_000),
        by: pick(chance, &[By::Task, By::Unique]),
        lease: None,
        work: pick(chance, &[10, 100, 300]),
        fails: true,
        ..section
    })
}

/// Readers and writers, some of which do not wait.
fn mixed(chance: &mut Rng, names: &[Shared], at: usize, task: usize) -> Act {
    let section = one(chance, names, at);
    Act::Section(Section {
        reads: task > 0 || odds(chance, 40),
        ask: pick(chance, &[Ask::Wait, Ask::Wait, Ask::Once]),
        by: pick(chance, &[By::Task, By::Task, By::Unique]),
        lease: None,
        work: pick(chance, &[5, 60, 150]),
        ending: Ending::Unlock,
        ..section
    })
}

/// Two processes.
fn small(plan: &mut Plan, _: &mut Rng) {
    alone(plan);
    plan.names.truncate(1);
    plan.poll_cap = POLL_CAP;
    plan.watchdog = 6_000;
    plan.handoffs = 16;
    plan.processes.truncate(2);
    tasks(plan, 4);
}

/// An owner that waits in two processes at once, and keeps the lock for long in one of them.
fn known(chance: &mut Rng, names: &[Shared], at: usize, task: usize) -> Act {
    let section = one(chance, names, at);
    Act::Section(Section {
        ask: Ask::Wait,
        by: if task == 0 { By::Named(0) } else { By::Unique },
        lease: None,
        work: if task == 0 {
            4_500
        } else {
            pick(chance, &[40, 300])
        },
        ending: Ending::Unlock,
        ..section
    })
}

/// Levels of one owner, some by calls that nobody polls.
fn nested(chance: &mut Rng, names: &[Shared], at: usize, task: usize) -> Act {
    let section = one(chance, names, at);
    Act::Section(Section {
        ask: Ask::Wait,
        by: pick(chance, &[By::Named(0), By::Named(0), By::Unique]),
        lease: None,
        work: pick(chance, &[10, 100, 400]),
        ending: Ending::Unlock,
        care: Care {
            dropped: None,
            unpolled: (task == 0 && odds(chance, 60)).then(|| (chance.u32(1..3), 20_000)),
        },
        ..section
    })
}

/// Locks that are passed on, some to those whose releases nobody polls.
fn released(chance: &mut Rng, names: &[Shared], at: usize, task: usize) -> Act {
    let Act::Section(section) = handed_on(chance, names, at, task) else {
        return Act::Look(at);
    };
    Act::Section(Section {
        held: Care {
            dropped: None,
            unpolled: (task < 2 && odds(chance, 40)).then(|| (chance.u32(1..3), 5_000)),
        },
        work: 0,
        verifies: false,
        ..section
    })
}

/// The same, far away from their server, so that a lock is given back before its server has said that it stands.
fn farther(plan: &mut Plan, chance: &mut Rng) {
    small(plan, chance);
    plan.command_timeout = 500;
    plan.delay.least = chance.u64(10..20);
}

/// Two names, of which calls go on when each process closes its clients.
fn leaving(plan: &mut Plan, chance: &mut Rng) {
    abandoning(plan, chance);
    plan.length = 1_500;
    several(plan, 2, |at| format!("left:{at}"));
}

/// Several jobs, on one server that hangs for longer than their callers wait.
fn keeping(plan: &mut Plan, chance: &mut Rng) {
    hung(plan, chance);
    plan.watchdog = 1_200;
    plan.names[0].total = 1_500;
    several(plan, 4, |at| format!("job:{at}"));
    for event in &mut plan.events {
        event.span = 3_900;
    }
}
