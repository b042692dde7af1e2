//! What two of three seeds have instead: weather in which everything comes together in one corner. Calls that nobody
//! polls stand in front of others, levels pass between processes under one name, leases are lengthened and cut, sets
//! cross each other, requests arrive late or twice, or a server loses what somebody holds.
//!
//! It is drawn apart from the rest, so that the plans of the other seeds, and with them the seeds that are kept, stay
//! as they were before there was any of it.

mod copies;
mod leases;
mod outages;
mod rarities;
mod runs;
mod sets;
mod spans;
mod turns;

use fastrand::Rng;

use super::crowd::POLL_CAP;
use super::{
    Act, Ask, By, Care, Ending, Event, Fault, Kind, LONGEST_LEASE, Plan, Section, Shared, Step,
    Topology, odds, pick, steps,
};
use crate::chance::mixed;
use crate::server::Memory;

const LOCKS: [Kind; 4] = [Kind::Reentrant, Kind::Fair, Kind::Fenced, Kind::ReadWrite];

/// What the task with this number does with the name at this place.
type Draw = fn(&mut Rng, &[Shared], usize, usize) -> Act;

/// A corner: the kinds of its names, what tasks do there, and what else is different.
struct Corner {
    kinds: &'static [Kind],
    act: Draw,
    turn: fn(&mut Plan, &mut Rng),
}

impl Corner {
    const fn new(kinds: &'static [Kind], act: Draw, turn: fn(&mut Plan, &mut Rng)) -> Self {
        Self { kinds, act, turn }
    }
}

/// The corners that have seeds of their own.
const CORNERS: [Corner; 8] = {
    use Kind::{Counted, Expirable, Fair, Fenced, Latch, Plain, ReadWrite, Reentrant, Spin};
    const MOST: &[Kind] = &[Reentrant, Fair, Fenced, ReadWrite, Counted, Expirable];
    const SENT: &[Kind] = &[
        Reentrant, Fair, Fenced, ReadWrite, Counted, Expirable, Latch,
    ];
    const HELD: &[Kind] = &[Reentrant, Fair, Fenced, ReadWrite, Plain, Spin];
    [
        Corner::new(&LOCKS, unpolled, busy),
        Corner::new(&LOCKS, inherited, busy),
        Corner::new(&LOCKS, lengthened, busy),
        Corner::new(&LOCKS, shared_by_tasks, busy),
        Corner::new(&[Reentrant, Fair, Fenced], crossing, pair),
        Corner::new(MOST, sparse, few),
        Corner::new(SENT, late, slow),
        Corner::new(HELD, kept, forgetful),
    ]
};

/// The corners that take turns on the same seeds.
const FURTHER: &[&[Corner]] = &[
    copies::CORNERS,
    leases::CORNERS,
    outages::CORNERS,
    runs::CORNERS,
    sets::CORNERS,
    spans::CORNERS,
    turns::CORNERS,
    rarities::CORNERS,
];

/// Returns the number of the corner that a seed has.
pub fn corner_of(seed: u64) -> Option<usize> {
    let number = match seed % 40 {
        3 | 14 | 23 | 34 => 0,
        5 | 17 | 25 | 37 => 1,
        18 | 38 => 2,
        8 | 16 => 3,
        26 => 4,
        4 | 22 => 5,
        6 | 36 => 6,
        7 => 7,
        0 | 1 | 19 | 21 | 29..=31 | 39 => {
            let further: usize = FURTHER.iter().map(|some| some.len()).sum();
            CORNERS.len() + (seed / 40 + seed % 40) as usize % further
        }
        _ => return None,
    };
    Some(number)
}

fn corner(seed: u64) -> Option<&'static Corner> {
    let number = corner_of(seed)?;
    let further = FURTHER.iter().copied().flatten();
    CORNERS.iter().chain(further).nth(number)
}

pub(super) fn turn(plan: &mut Plan) {
    let Some(corner) = corner(plan.seed) else {
        return;
    };
    let chance = &mut Rng::with_seed(mixed(!plan.seed));
    plan.weather = "calm";
    plan.events.clear();
    plan.spread = 0;
    plan.delay.least = chance.u64(..3);
    plan.length = chance.u64(6_000..14_000);
    tasks(plan, 5);
    corner.fill(plan, chance);
}

impl Corner {
    fn fill(&self, plan: &mut Plan, chance: &mut Rng) {
        let clients = plan.topology.clients();
        plan.names = (0..)
            .zip(self.kinds)
            .map(|(at, kind)| shared(chance, *kind, at, clients))
            .collect();
        chance.shuffle(&mut plan.names);
        plan.names.truncate(chance.usize(1..=2));
        (self.turn)(plan, chance);
        for process in &mut plan.processes {
            for (number, task) in process.tasks.iter_mut().enumerate() {
                let count = chance.usize(30..120);
                let step = |_| {
                    let at = chance.usize(..plan.names.len());
                    let act = (self.act)(chance, &plan.names, at, number);
                    let pause = pick(chance, &[0, 1, 5, 20, 60]);
                    Step { pause, act }
                };
                *task = (0..count).map(step).collect();
            }
        }
    }
}

fn shared(chance: &mut Rng, kind: Kind, at: usize, clients: usize) -> Shared {
    Shared {
        kind,
        name: format!("{kind:?}:{at}").to_lowercase(),
        client: chance.usize(..clients),
        total: match kind {
            Kind::Counted | Kind::Expirable => chance.u32(1..=3),
            Kind::Latch => 200,
            Kind::Job => pick(chance, &[400, 4_000]),
            _ => 1,
        },
    }
}

fn busy(_: &mut Plan, _: &mut Rng) {}

/// Few tasks, so that nothing else wakes a waiter that was not told.
fn few(plan: &mut Plan, chance: &mut Rng) {
    plan.poll_cap = POLL_CAP;
    plan.watchdog = 6_000;
    plan.delay.least = chance.u64(..5);
    plan.processes.truncate(4);
    for process in &mut plan.processes {
        process.tasks.truncate(chance.usize(1..=2));
    }
}

/// One server, which loses its data or its connections while locks are held.
fn forgetful(plan: &mut Plan, chance: &mut Rng) {
    alone(plan);
    plan.weather = "servers";
    plan.watchdog = 6_000;
    let fault = |chance: &mut Rng| {
        let memory = pick(chance, &[Memory::Nothing, Memory::Nothing, Memory::All]);
        pick(
            chance,
            &[Fault::Stop(0, memory), Fault::Cut(None, Some(0), 0)],
        )
    };
    let count = chance.usize(1..=3);
    events(plan, chance, count, &[20, 100, 300], fault);
    tasks(plan, 3);
}

/// One server, which some requests reach long after they were sent.
fn slow(plan: &mut Plan, chance: &mut Rng) {
    alone(plan);
    plan.weather = "links";
    let processes = plan.processes.len();
    let fault = |chance: &mut Rng| {
        let process = odds(chance, 80).then(|| chance.usize(..processes));
        match chance.u32(..8) {
            0..3 => Fault::Hold(process, Some(0), [true, false]),
            3 => Fault::Hold(process, Some(0), [false, true]),
            4..6 => Fault::Slow(process, Some(0), pick(chance, &[300, 900, 1_500])),
            6 => Fault::Cut(process, Some(0), chance.usize(..400)),
            _ => Fault::HalfOpen(chance.usize(..processes), 0, chance.usize(..2)),
        }
    };
    let count = chance.usize(5..=12);
    events(plan, chance, count, &[300, 700, 1_500, 2_500], fault);
}

/// Has so many names of one kind.
fn several(plan: &mut Plan, count: usize, name: impl Fn(usize) -> String) {
    let one = plan.names[0].clone();
    let shared = |at| Shared {
        name: name(at),
        ..one.clone()
    };
    plan.names = (0..count).map(shared).collect();
}

/// Two names of one kind, which are taken together and each by itself.
fn pair(plan: &mut Plan, _: &mut Rng) {
    several(plan, 2, |at| format!("set:{at}"));
}

/// Each process has at most so many tasks.
fn tasks(plan: &mut Plan, most: usize) {
    for process in &mut plan.processes {
        process.tasks.truncate(most);
    }
}

fn alone(plan: &mut Plan) {
    plan.topology = Topology::Single;
    plan.clocks.truncate(1);
    for shared in &mut plan.names {
        shared.client = 0;
    }
}

fn events(
    plan: &mut Plan,
    chance: &mut Rng,
    count: usize,
    spans: &[u64],
    fault: impl Fn(&mut Rng) -> Fault,
) {
    let event = |_| Event {
        at: chance.u64(1_000..plan.length),
        span: pick(chance, spans),
        fault: fault(chance),
    };
    plan.events = (0..count).map(event).collect();
    plan.events.sort_by_key(|event| event.at);
}

/// A section of one lock, whose lease stays as it is, by calls that are polled.
fn one(chance: &mut Rng, names: &[Shared], at: usize) -> Section {
    Section {
        names: vec![at],
        levels: 1,
        extend: None,
        care: Care::default(),
        ..steps::section(chance, names, at)
    }
}

/// Some tasks of each process make calls that they do not poll for long.
fn unpolled(chance: &mut Rng, names: &[Shared], at: usize, task: usize) -> Act {
    let share = [50, 50, 20, 0, 0][task];
    let section = one(chance, names, at);
    Act::Section(Section {
        ask: pick(chance, &[Ask::Wait, Ask::Wait, Ask::For(6_000)]),
        by: pick(chance, &[By::Task, By::Unique]),
        lease: None,
        work: pick(chance, &[0, 1, 5, 40]),
        ending: pick(chance, &[Ending::Unlock, Ending::Unlock, Ending::Drop]),
        care: Care {
            dropped: None,
            unpolled: odds(chance, share).then(|| (chance.u32(1..4), 20_000)),
        },
        ..section
    })
}

/// Levels of two owners with names are left, taken over, and lengthened.
fn inherited(chance: &mut Rng, names: &[Shared], at: usize, _: usize) -> Act {
    match chance.u32(..100) {
        0..25 => return Act::Adopt,
        25..32 => return Act::Look(at),
        _ => {}
    }
    let section = one(chance, names, at);
    Act::Section(Section {
        ask: pick(chance, &[Ask::For(300), Ask::For(2_000), Ask::Once]),
        by: By::Named(chance.u8(..2)),
        levels: chance.u32(1..=3),
        work: pick(chance, &[0, 1, 10, 40, 300]),
        extend: odds(chance, 30).then(|| pick(chance, &[300, 2_000, 6_000])),
        ending: match chance.u32(..10) {
            0..4 => Ending::Detached,
            4..8 => Ending::Unlock,
            _ => Ending::Drop,
        },
        ..section
    })
}

/// Leases are lengthened and cut, of levels beside others, and renewed after that.
fn lengthened(chance: &mut Rng, names: &[Shared], at: usize, _: usize) -> Act {
    let section = one(chance, names, at);
    Act::Section(Section {
        ask: pick(chance, &[Ask::For(300), Ask::For(2_000), Ask::Once]),
        by: pick(chance, &[By::Task, By::Unique, By::Named(0), By::Named(1)]),
        lease: pick(chance, &[None, None, Some(1_500)]),
        levels: chance.u32(1..=2),
        work: pick(chance, &[0, 10, 150, 700, 2_000]),
        extend: odds(chance, 70).then(|| pick(chance, &[300, 2_000, 6_000])),
        ending: pick(chance, &[Ending::Unlock, Ending::Unlock, Ending::Drop]),
        ..section
    })
}

/// Locks that are wanted by few, for moments.
fn sparse(chance: &mut Rng, names: &[Shared], at: usize, _: usize) -> Act {
    let section = one(chance, names, at);
    Act::Section(Section {
        ask: pick(chance, &[Ask::Wait, Ask::Wait, Ask::For(6_000)]),
        by: pick(chance, &[By::Task, By::Unique]),
        lease: pick(chance, &[None, Some(LONGEST_LEASE)]),
        work: pick(chance, &[0, 1, 3, 10, 40, 150]),
        ending: pick(chance, &[Ending::Unlock, Ending::Unlock, Ending::Drop]),
        care: Care {
            dropped: odds(chance, 10).then(|| (chance.u32(0..6), chance.bool())),
            unpolled: None,
        },
        ..section
    })
}

/// Locks that are held for long.
fn kept(chance: &mut Rng, names: &[Shared], at: usize, _: usize) -> Act {
    if odds(chance, 4) {
        return Act::Force(at);
    }
    let section = steps::section(chance, names, at);
    Act::Section(Section {
        names: vec![at],
        ask: pick(chance, &[Ask::For(6_000), Ask::Wait, Ask::Once]),
        by: pick(chance, &[By::Task, By::Unique]),
        lease: pick(chance, &[None, Some(LONGEST_LEASE), Some(LONGEST_LEASE)]),
        work: pick(chance, &[300, 3_000, 5_000]),
        extend: None,
        ending: pick(chance, &[Ending::Unlock, Ending::Drop]),
        care: Care::default(),
        ..section
    })
}

/// Levels of one owner that several tasks have, some of which begin a call about it and do not poll that.
fn shared_by_tasks(chance: &mut Rng, names: &[Shared], at: usize, task: usize) -> Act {
    let section = one(chance, names, at);
    Act::Section(Section {
        ask: pick(chance, &[Ask::For(2_000), Ask::For(6_000), Ask::Once]),
        by: pick(chance, &[By::Task, By::Named(0), By::Named(0)]),
        lease: pick(chance, &[None, Some(LONGEST_LEASE)]),
        levels: chance.u32(1..=2),
        work: pick(chance, &[0, 1, 10, 40]),
        extend: odds(chance, 50).then(|| pick(chance, &[2_000, 6_000])),
        verifies: odds(chance, 30),
        ending: pick(chance, &[Ending::Unlock, Ending::Unlock, Ending::Drop]),
        held: Care {
            dropped: None,
            unpolled: (task == 0 && odds(chance, 50)).then(|| (chance.u32(1..3), 20_000)),
        },
        ..section
    })
}

/// Sets beside single locks.
fn crossing(chance: &mut Rng, names: &[Shared], at: usize, _: usize) -> Act {
    let section = steps::section(chance, names, at);
    Act::Section(Section {
        names: if odds(chance, 60) {
            vec![0, 1]
        } else {
            vec![at]
        },
        ask: pick(chance, &[Ask::Wait, Ask::For(4_000), Ask::Once]),
        by: pick(chance, &[By::Task, By::Unique]),
        levels: 1,
        work: pick(chance, &[0, 1, 10, 100, 400]),
        extend: None,
        ending: pick(chance, &[Ending::Unlock, Ending::Unlock, Ending::Drop]),
        ..section
    })
}

/// Levels and permits, whose requests may be late.
fn late(chance: &mut Rng, names: &[Shared], at: usize, _: usize) -> Act {
    if names[at].kind == Kind::Latch {
        return Act::CountDown(at);
    }
    if odds(chance, 10) {
        return Act::Adopt;
    }
    let section = steps::section(chance, names, at);
    Act::Section(Section {
        names: vec![at],
        ask: pick(chance, &[Ask::For(300), Ask::For(2_000), Ask::Once]),
        by: pick(chance, &[By::Task, By::Named(0), By::Named(1)]),
        levels: match names[at].kind {
            Kind::Counted | Kind::Expirable => 1,
            _ => chance.u32(1..=3),
        },
        work: pick(chance, &[0, 1, 10, 40, 150]),
        extend: odds(chance, 30).then(|| pick(chance, &[300, 2_000, 6_000])),
        ..section
    })
}
