//! What a quarter of the seeds have instead: calm weather, in which everything comes together in one corner. Calls that
//! nobody polls stand in front of others, levels pass between processes under one name, or leases are lengthened and cut.
//!
//! It is drawn apart from the rest, so that the plans of the other seeds, and with them the seeds that are kept, stay
//! as they were before there was any of it.

use fastrand::Rng;

use super::{Act, Ask, By, Care, Ending, Kind, Plan, Section, Shared, Step, odds, pick, steps};
use crate::chance::mixed;

pub(super) fn turn(plan: &mut Plan) {
    let step = match plan.seed % 20 {
        3 | 14 => unpolled,
        5 | 17 => inherited,
        18 => lengthened,
        _ => return,
    };
    let chance = &mut Rng::with_seed(mixed(!plan.seed));
    plan.weather = "calm";
    plan.events.clear();
    plan.spread = 0;
    plan.delay.least = chance.u64(..3);
    plan.length = chance.u64(6_000..14_000);
    let kinds = [Kind::Reentrant, Kind::Fair, Kind::Fenced, Kind::ReadWrite];
    plan.names = kinds
        .map(|kind| shared(chance, kind, plan.topology.clients()))
        .into();
    chance.shuffle(&mut plan.names);
    plan.names.truncate(chance.usize(1..=2));
    for process in &mut plan.processes {
        process.tasks.truncate(5);
        for (number, task) in process.tasks.iter_mut().enumerate() {
            let count = chance.usize(30..120);
            let step = |_| {
                let at = chance.usize(..plan.names.len());
                let act = step(chance, &plan.names, at, number);
                let pause = pick(chance, &[0, 1, 5, 20, 60]);
                Step { pause, act }
            };
            *task = (0..count).map(step).collect();
        }
    }
}

fn shared(chance: &mut Rng, kind: Kind, clients: usize) -> Shared {
    Shared {
        kind,
        name: format!("{kind:?}:0").to_lowercase(),
        client: chance.usize(..clients),
        total: 1,
    }
}

/// One task of each process makes calls that it does not poll for long.
fn unpolled(chance: &mut Rng, names: &[Shared], at: usize, task: usize) -> Act {
    let section = steps::section(chance, names, at);
    Act::Section(Section {
        names: vec![at],
        ask: pick(chance, &[Ask::Wait, Ask::Wait, Ask::For(6_000)]),
        by: pick(chance, &[By::Task, By::Unique]),
        lease: None,
        levels: 1,
        work: pick(chance, &[0, 1, 5, 40]),
        extend: None,
        ending: pick(chance, &[Ending::Unlock, Ending::Unlock, Ending::Drop]),
        care: Care {
            dropped: None,
            unpolled: (task == 0 && odds(chance, 50)).then(|| (chance.u32(1..4), 20_000)),
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
    let section = steps::section(chance, names, at);
    Act::Section(Section {
        names: vec![at],
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
        care: Care::default(),
        ..section
    })
}

/// Leases are lengthened and cut, of levels beside others, and renewed after that.
fn lengthened(chance: &mut Rng, names: &[Shared], at: usize, _: usize) -> Act {
    let section = steps::section(chance, names, at);
    Act::Section(Section {
        names: vec![at],
        ask: pick(chance, &[Ask::For(300), Ask::For(2_000), Ask::Once]),
        by: pick(chance, &[By::Task, By::Unique, By::Named(0), By::Named(1)]),
        lease: pick(chance, &[None, None, Some(1_500)]),
        levels: chance.u32(1..=2),
        work: pick(chance, &[0, 10, 150, 700, 2_000]),
        extend: odds(chance, 70).then(|| pick(chance, &[300, 2_000, 6_000])),
        ending: pick(chance, &[Ending::Unlock, Ending::Unlock, Ending::Drop]),
        care: Care::default(),
        ..section
    })
}
