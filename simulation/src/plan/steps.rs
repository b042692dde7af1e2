//! Names, and what tasks do with them.

use fastrand::Rng;

use super::{Act, Ask, By, Care, Ending, Kind, LONGEST_LEASE, Section, Shared, Step, odds, pick};

pub(super) fn names(chance: &mut Rng, clients: usize) -> Vec<Shared> {
    use Kind::{Counted, Expirable, Fair, Fenced, Latch, Plain, ReadWrite, Red, Reentrant, Spin};
    let kinds = [
        Reentrant, Reentrant, Fair, Fenced, Plain, Spin, ReadWrite, ReadWrite, Counted, Expirable,
        Latch,
    ];
    let count = chance.usize(1..=4);
    let mut names: Vec<_> = (0..count)
        .map(|at| {
            let kind = match clients {
                1 => pick(chance, &kinds),
                _ => pick(chance, &[Red, Red, Reentrant, Fair]),
            };
            let client = chance.usize(..clients);
            let total = chance.u32(1..=4);
            let name = format!("{}:{at}", format!("{kind:?}").to_lowercase());
            Shared {
                kind,
                name,
                client,
                total,
            }
        })
        .collect();
    // Two of one kind, for sets.
    if odds(chance, 40) {
        let kind = pick(chance, &[Reentrant, Fenced, Fair]);
        for at in 0..2 {
            let client = chance.usize(..clients);
            let name = format!("set:{at}");
            names.push(Shared {
                kind,
                name,
                client,
                total: 1,
            });
        }
    }
    names
}

pub(super) fn step(chance: &mut Rng, names: &[Shared], is_calm: bool) -> Step {
    let pause = pick(chance, &[0, 0, 0, 1, 5, 20]);
    let at = chance.usize(..names.len());
    let act = act(chance, names, at, is_calm);
    Step { pause, act }
}

/// Returns something that is done with a name.
pub(super) fn act(chance: &mut Rng, names: &[Shared], at: usize, is_calm: bool) -> Act {
    match names[at].kind {
        Kind::Latch => match odds(chance, 70) {
            true => Act::Await(at, pick(chance, &[0, 50, 500])),
            false => Act::CountDown(at),
        },
        Kind::Red | Kind::Counted | Kind::Expirable if odds(chance, 90) => {
            Act::Section(section(chance, names, at))
        }
        Kind::Red => Act::Run(section(chance, names, at)),
        kind => match chance.u32(..100) {
            0..72 => Act::Section(section(chance, names, at)),
            72..84 if kind != Kind::Counted && kind != Kind::Expirable => {
                Act::Run(section(chance, names, at))
            }
            84..95 => Act::Look(at),
            95 if !is_calm => Act::Force(at),
            _ => Act::Adopt,
        },
    }
}

pub(super) fn section(chance: &mut Rng, names: &[Shared], at: usize) -> Section {
    let kind = names[at].kind;
    let sets: Vec<_> = (0..names.len())
        .filter(|at| names[*at].is_of_set())
        .collect();
    let is_set = sets.contains(&at) && odds(chance, 60);
    let nests = !is_set
        && !matches!(
            kind,
            Kind::Plain | Kind::Red | Kind::Counted | Kind::Expirable
        );
    let lease = match odds(chance, 40) {
        true => Some(pick(chance, &[400, 1_500, LONGEST_LEASE])),
        false => None,
    };
    Section {
        names: if is_set { sets } else { vec![at] },
        reads: kind == Kind::ReadWrite && odds(chance, 60),
        ask: match chance.u32(..10) {
            0..3 => Ask::Wait,
            3..6 => Ask::Once,
            _ => Ask::For(pick(chance, &[10, 100, 1_000, 4_000])),
        },
        by: match chance.u32(..10) {
            0..7 => By::Task,
            7..9 => By::Unique,
            _ => By::Named(chance.u8(..2)),
        },
        lease,
        levels: if nests && odds(chance, 20) {
            chance.u32(2..=3)
        } else {
            1
        },
        permits: chance.u32(1..=names[at].total),
        work: match odds(chance, 4) {
            true => 1_000,
            false => pick(chance, &[0, 0, 0, 1, 3, 10, 40, 150]),
        },
        fails: false,
        // Permits are extended in corners only, so that other seeds do what they did before.
        extend: odds(chance, 10)
            .then(|| pick(chance, &[300, 2_000]))
            .filter(|_| kind != Kind::Expirable),
        verifies: odds(chance, 10),
        ending: match chance.u32(..100) {
            0..60 => Ending::Unlock,
            60..66 => Ending::Unfinished(chance.u32(0..4)),
            66..88 => Ending::Drop,
            88..89 => Ending::Forget,
            89..97 => Ending::Sent,
            _ => Ending::Detached,
        },
        care: Care {
            dropped: odds(chance, 15).then(|| (chance.u32(0..6), chance.bool())),
            unpolled: odds(chance, 5).then(|| (chance.u32(1..4), pick(chance, &[30, 500, 3_000]))),
        },
        held: Care::default(),
    }
}
