//! What the world does in a weather.

use fastrand::Rng;

use super::{odds, pick};
use crate::server::Memory;

/// What the world does.
#[derive(Clone, Debug)]
pub enum Fault {
    Slow(Option<usize>, Option<usize>, u64),
    Hold(Option<usize>, Option<usize>, [bool; 2]),
    HalfOpen(usize, usize, usize),
    Cut(Option<usize>, Option<usize>, usize),
    Refuse(Option<usize>, Option<usize>),
    Mute(Option<usize>, Option<usize>),
    Stop(usize, Memory),
    Hang(usize),
    Forget(usize),
    Deny(usize, &'static str),
    Kill(usize),
    Pause(usize),
}

#[derive(Clone, Debug)]
pub struct Event {
    pub at: u64,
    pub span: u64,
    pub fault: Fault,
}

pub(super) fn events(
    chance: &mut Rng,
    weather: &str,
    servers: usize,
    processes: usize,
    length: u64,
) -> Vec<Event> {
    if weather == "calm" {
        return Vec::new();
    }
    let count = chance.usize(1..=8);
    let mut events: Vec<_> = (0..count)
        .map(|_| {
            let kind = match weather {
                "everything" => pick(chance, &["links", "servers", "processes", "refusals"]),
                weather => weather,
            };
            Event {
                at: chance.u64(200..length),
                span: pick(chance, &[50, 300, 1_500, 4_000]),
                fault: fault(chance, kind, servers, processes),
            }
        })
        .collect();
    events.sort_by_key(|event| event.at);
    events
}

fn fault(chance: &mut Rng, kind: &str, servers: usize, processes: usize) -> Fault {
    let (one, other) = (chance.usize(..processes), chance.usize(..servers));
    let process = odds(chance, 60).then_some(one);
    let server = odds(chance, 60).then_some(other);
    let bytes = if odds(chance, 50) {
        chance.usize(..200)
    } else {
        0
    };
    match kind {
        "links" => match chance.u32(..7) {
            0 => Fault::Slow(process, server, pick(chance, &[30, 200, 900])),
            1 | 2 => Fault::Hold(
                process,
                server,
                pick(chance, &[[true, false], [false, true], [true; 2]]),
            ),
            3 => Fault::HalfOpen(one, other, chance.usize(..2)),
            4 => Fault::Cut(process, server, bytes),
            5 => Fault::Refuse(process, server),
            _ => Fault::Mute(process, server),
        },
        "servers" => match chance.u32(..6) {
            0 => Fault::Stop(other, Memory::All),
            1 => Fault::Stop(other, Memory::Earlier),
            2 => Fault::Stop(other, Memory::Nothing),
            3 => Fault::Forget(other),
            _ => Fault::Hang(other),
        },
        "processes" => match chance.bool() {
            true => Fault::Kill(one),
            false => Fault::Pause(one),
        },
        _ => Fault::Deny(
            other,
            pick(
                chance,
                &[
                    "OOM command not allowed when used memory > 'maxmemory'.",
                    "LOADING Redis is loading the dataset in memory",
                    "READONLY You can't write against a read only replica.",
                    "MISCONF Redis is configured to save RDB snapshots, but it is currently unable to persist to disk.",
                ],
            ),
        ),
    }
}
