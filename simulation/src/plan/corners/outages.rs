//! Servers that are away or replaced, and slots that move, while locks are wanted all the time.

use fastrand::Rng;

use super::{
    Act, Ask, By, Corner, Ending, Event, Fault, Kind, LOCKS, LONGEST_LEASE, Memory, POLL_CAP, Plan,
    Section, Shared, Topology, alone, events, one, pick, several, tasks,
};
use crate::plan::{Failover, Fall};

pub(super) const CORNERS: &[Corner] = {
    use Kind::{Fair, Fenced, ReadWrite, Reentrant, Spin};
    &[
        Corner::new(&LOCKS, settled, moving),
        Corner::new(&LOCKS, settled, failed_over),
        Corner::new(&LOCKS, settled, taken_over),
        Corner::new(&[Reentrant, Fair, Fenced, ReadWrite, Spin], renewed, away),
    ]
};

/// Has so many names of the kind of the first.
fn name_all(plan: &mut Plan, count: usize) {
    let first = plan.names[0].name.clone();
    several(plan, count, |at| format!("{first}:{at}"));
}

/// Servers that have each other's data, for a few processes.
fn together(plan: &mut Plan, topology: Topology, names: usize) {
    plan.topology = topology;
    plan.clocks = vec![plan.clocks[0]; topology.servers()];
    plan.names[0].client = 0;
    name_all(plan, names);
    plan.command_timeout = 500;
    plan.processes.truncate(4);
    tasks(plan, 3);
}

/// A cluster whose slots move now and then. Nothing is lost by that, so the weather stays calm.
fn moving(plan: &mut Plan, chance: &mut Rng) {
    // Most often on two servers.
    together(plan, Topology::Cluster, 2);
    plan.poll_cap = POLL_CAP;
    plan.watchdog = 6_000;
    let fault = |chance: &mut Rng| Fault::Move(chance.usize(..2), chance.usize(..2));
    let count = chance.usize(3..=6);
    events(plan, chance, count, &[20, 100, 900], fault);
}

/// Locks that are held for moments, or for long.
fn settled(chance: &mut Rng, names: &[Shared], at: usize, _: usize) -> Act {
    let section = one(chance, names, at);
    Act::Section(Section {
        ask: pick(chance, &[Ask::Wait, Ask::Wait, Ask::For(6_000), Ask::Once]),
        by: pick(chance, &[By::Task, By::Unique]),
        lease: pick(chance, &[None, None, Some(LONGEST_LEASE)]),
        work: pick(chance, &[0, 5, 40, 300, 2_500]),
        ending: pick(chance, &[Ending::Unlock, Ending::Unlock, Ending::Drop]),
        ..section
    })
}

/// A primary that some processes, or all, can still reach after a replica was promoted, of which the sentinels learn
/// one after the other.
fn failed_over(plan: &mut Plan, chance: &mut Rng) {
    together(plan, Topology::Sentinels, 2);
    plan.weather = "servers";
    plan.watchdog = 1_200;
    plan.length = 20_000;
    let mut told = [0, 400, 1_200];
    chance.shuffle(&mut told);
    let failover = Failover {
        heir: chance.usize(1..3),
        fall: pick(chance, &[Fall::CutOff, Fall::CutOff, Fall::Hang]),
        lag: pick(chance, &[0, 5]),
        promoted: pick(chance, &[50, 500]),
        told,
        back: 0,
        converted: 6_000,
        apart: chance.u8(..),
    };
    plan.events.push(Event {
        at: 1_500,
        span: failover.span(),
        fault: Fault::Failover(failover),
    });
}

/// A server of a cluster that is gone. Another one has its slots and its data.
fn taken_over(plan: &mut Plan, chance: &mut Rng) {
    together(plan, Topology::Cluster, 3);
    plan.weather = "servers";
    plan.watchdog = 1_200;
    plan.length = 20_000;
    let gone = chance.usize(..3);
    let fault = Fault::Inherit(gone, chance.usize(..2), chance.bool());
    plan.events.push(Event {
        at: 1_500,
        span: 1_500,
        fault,
    });
}

/// One server that is away twice, and a process that never asks for anything.
fn away(plan: &mut Plan, chance: &mut Rng) {
    alone(plan);
    name_all(plan, 6);
    plan.weather = "servers";
    plan.watchdog = 1_200;
    plan.command_timeout = 500;
    plan.length = 24_000;
    plan.processes.truncate(2);
    if let Some(last) = plan.processes.last_mut() {
        last.tasks.clear();
        last.is_lazy = false;
    }
    for (at, span) in [(1_500, 4_000), (8_500, 2_500)] {
        let memory = pick(chance, &[Memory::Nothing, Memory::All]);
        let fault = Fault::Stop(0, memory);
        plan.events.push(Event { at, span, fault });
    }
}

/// Locks that are held for long, and renewed.
fn renewed(chance: &mut Rng, names: &[Shared], at: usize, _: usize) -> Act {
    let section = one(chance, names, at);
    Act::Section(Section {
        ask: pick(chance, &[Ask::For(6_000), Ask::Once]),
        by: pick(chance, &[By::Task, By::Unique]),
        lease: None,
        work: pick(chance, &[300, 3_000, 5_000]),
        ending: pick(chance, &[Ending::Unlock, Ending::Drop]),
        ..section
    })
}
