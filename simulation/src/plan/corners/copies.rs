//! Corners in which requests come twice or count twice, three servers of five forget, and one process wants a lock for
//! ever.

use fastrand::Rng;

use super::{
    Act, Ask, By, Care, Corner, Ending, Event, Fault, Kind, LOCKS, LONGEST_LEASE, Memory, POLL_CAP,
    Plan, Section, Shared, Topology, alone, events, kept, odds, one, pick, sparse, tasks,
};
use crate::plan::LONGEST_SPAN;

pub(super) const CORNERS: &[Corner] = {
    use Kind::{Counted, Expirable, Fair, Fenced, Latch, Plain, ReadWrite, Red, Reentrant};
    const COPIED: &[Kind] = &[
        Reentrant, Fair, Fenced, Plain, ReadWrite, Counted, Expirable, Latch,
    ];
    &[
        Corner::new(COPIED, copied, torn),
        Corner::new(&[Red], kept, rolling),
        Corner::new(&[Reentrant, Fenced], passed, two),
    ]
};

/// One server, to which connections tear, so that it carries out requests twice.
pub(super) fn torn(plan: &mut Plan, chance: &mut Rng) {
    alone(plan);
    plan.weather = "links";
    plan.delay.least = pick(chance, &[1, 5, 15]);
    for shared in &mut plan.names {
        if shared.kind == Kind::Latch {
            // More than are counted down before the weather begins.
            shared.total = 10_000;
        }
    }
    let fault = |chance: &mut Rng| Fault::Tear(None, Some(0), pick(chance, &[300, 900, 1_500]));
    let count = chance.usize(4..=8);
    events(plan, chance, count, &[300, 700, 1_500], fault);
}

/// What changes a hold before a late copy of an earlier request arrives. Nothing is taken by force or forgotten, which
/// would excuse everything.
fn copied(chance: &mut Rng, names: &[Shared], at: usize, _: usize) -> Act {
    let kind = names[at].kind;
    if kind == Kind::Latch {
        return Act::CountDown(at);
    }
    let section = one(chance, names, at);
    Act::Section(Section {
        ask: pick(chance, &[Ask::For(300), Ask::For(2_000), Ask::Once]),
        by: match kind {
            // The value of a plain lock of an owner with a name is the same for all of its holds.
            Kind::Plain => pick(chance, &[By::Task, By::Unique]),
            _ => pick(chance, &[By::Task, By::Unique, By::Named(0)]),
        },
        lease: pick(chance, &[None, Some(1_500), Some(LONGEST_LEASE)]),
        levels: match LOCKS.contains(&kind) {
            true => chance.u32(1..=3),
            false => 1,
        },
        work: pick(chance, &[0, 10, 150, 700, 2_000]),
        extend: odds(chance, 60).then(|| pick(chance, &[300, 2_000, 6_000])),
        ending: pick(
            chance,
            &[
                Ending::Unlock,
                Ending::Unlock,
                Ending::Unlock,
                Ending::Drop,
                Ending::Detached,
            ],
        ),
        ..section
    })
}

/// Most servers forget what they granted, one after the other, while all processes but one are away and do not notice.
fn rolling(plan: &mut Plan, chance: &mut Rng) {
    plan.topology = Topology::Independent;
    let servers = plan.topology.servers();
    plan.clocks = vec![0; servers];
    plan.weather = "servers";
    plan.watchdog = 6_000;
    let begin = chance.u64(2_500..4_000);
    let first = chance.usize(..servers);
    let memory = pick(chance, &[Memory::Nothing, Memory::Earlier]);
    // What was granted since is not in the earlier data.
    let span = match memory {
        Memory::Earlier => 1_500,
        _ => 50,
    };
    let most = (0..3).map(|number| Event {
        at: begin + 150 * (number as u64 + 1) - span,
        span,
        fault: Fault::Stop((first + number) % servers, memory),
    });
    let away = (1..plan.processes.len()).map(|process| Event {
        at: begin,
        span: LONGEST_SPAN,
        fault: Fault::Pause(process),
    });
    plan.events = most.chain(away).collect();
    plan.events.sort_by_key(|event| event.at);
    tasks(plan, 2);
}

/// Two processes, each with enough tasks to pass a lock on among them for ever.
pub(super) fn two(plan: &mut Plan, chance: &mut Rng) {
    plan.names.truncate(1);
    plan.poll_cap = POLL_CAP;
    plan.watchdog = 6_000;
    plan.handoffs = pick(chance, &[0, 2]);
    plan.processes.truncate(2);
    for process in &mut plan.processes {
        process.tasks.resize(5, Vec::new());
    }
}

/// Locks that somebody of the same process always waits for.
fn passed(chance: &mut Rng, names: &[Shared], at: usize, task: usize) -> Act {
    let Act::Section(section) = sparse(chance, names, at, task) else {
        return Act::Look(at);
    };
    Act::Section(Section {
        ask: Ask::Wait,
        work: pick(chance, &[10, 20, 40]),
        ending: Ending::Unlock,
        care: Care::default(),
        ..section
    })
}
