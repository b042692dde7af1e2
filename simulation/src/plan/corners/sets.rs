//! Sets whose locks others have for long, in any order.

use fastrand::Rng;

use super::{
    Act, Ask, By, Care, Corner, Ending, Fault, Kind, Plan, Section, Shared, Topology, events, odds,
    pair, pick, several, steps, tasks,
};

pub(super) const CORNERS: &[Corner] = {
    use Kind::{Fair, Fenced, Reentrant};
    &[
        Corner::new(&[Reentrant, Fair, Fenced], crossed, pair),
        Corner::new(&[Reentrant, Fair, Fenced], crossed, single),
        Corner::new(&[Reentrant, Fair, Fenced], hasty, pair),
        Corner::new(&[Reentrant, Fenced], crossed, four),
        Corner::new(&[Reentrant, Fenced], crossed, pair_apart),
    ]
};

/// All names together, in any order, or one by itself for longer.
fn taken(chance: &mut Rng, names: &[Shared], at: usize, asks: &[Ask]) -> Act {
    let section = steps::section(chance, names, at);
    let mut all: Vec<_> = (0..names.len()).collect();
    chance.shuffle(&mut all);
    let is_set = odds(chance, 50);
    Act::Section(Section {
        names: if is_set { all } else { vec![at] },
        ask: match is_set {
            true => pick(chance, asks),
            false => pick(chance, &[Ask::Wait, Ask::For(4_000)]),
        },
        by: pick(chance, &[By::Task, By::Unique]),
        lease: pick(chance, &[None, None, Some(400)]),
        levels: 1,
        // A lease of 400 ms is lost by work that is longer.
        work: pick(chance, &[0, 10, 100, 100, 3_000]),
        extend: None,
        ending: pick(chance, &[Ending::Unlock, Ending::Unlock, Ending::Drop]),
        care: Care::default(),
        ..section
    })
}

/// Sets that wait.
fn crossed(chance: &mut Rng, names: &[Shared], at: usize, _: usize) -> Act {
    let asks = [Ask::Wait, Ask::For(4_000), Ask::For(300), Ask::Once];
    taken(chance, names, at, &asks)
}

/// Sets that soon give up.
fn hasty(chance: &mut Rng, names: &[Shared], at: usize, _: usize) -> Act {
    taken(chance, names, at, &[Ask::For(300), Ask::Once])
}

/// Two names, and one task of each process, so that nobody passes a lock on within a process.
fn single(plan: &mut Plan, chance: &mut Rng) {
    pair(plan, chance);
    tasks(plan, 1);
}

/// Four names of one kind.
fn four(plan: &mut Plan, _: &mut Rng) {
    several(plan, 4, |at| format!("set:{at}"));
}

/// Two names on servers of their own, one of which some processes do not reach for a while.
fn pair_apart(plan: &mut Plan, chance: &mut Rng) {
    pair(plan, chance);
    plan.topology = Topology::Independent;
    plan.clocks = (0..plan.topology.servers())
        .map(|_| chance.i64(-8_000..=8_000))
        .collect();
    plan.weather = "links";
    plan.watchdog = 1_200;
    for (at, shared) in plan.names.iter_mut().enumerate() {
        shared.client = at;
    }
    let processes = plan.processes.len();
    let fault = |chance: &mut Rng| Fault::Mute(Some(chance.usize(..processes)), Some(0));
    events(plan, chance, 6, &[500, 800, 1_100], fault);
}
