//! The faults of each weather.

use fastrand::Rng;

use super::{Topology, odds, pick};
use crate::server::Memory;

/// The longest time that a fault lasts, but for a failover.
pub const LONGEST_SPAN: u64 = 4_000;

/// A fault.
#[derive(Clone, Debug)]
pub enum Fault {
    Slow(Option<usize>, Option<usize>, u64),
    Hold(Option<usize>, Option<usize>, [bool; 2]),
    HalfOpen(usize, usize, usize),
    Cut(Option<usize>, Option<usize>, usize),
    Refuse(Option<usize>, Option<usize>),
    Mute(Option<usize>, Option<usize>),
    /// Connections break at what is sent over them. A request arrives all the same, so many milliseconds later; an
    /// answer is lost.
    Tear(Option<usize>, Option<usize>, u64),
    Stop(usize, Memory),
    Hang(usize),
    Forget(usize),
    Deny(usize, &'static str),
    /// Moves the clock of a server by this many milliseconds, or those of all servers, if they share data.
    Clock(usize, i64),
    Kill(usize),
    Pause(usize),
    Failover(Failover),
    /// Moves the slot of a name. The number chooses the server, counted on from the present one.
    Move(usize, usize),
    /// Stops a server of a cluster. Later, another one, counted on from it, takes over its slots and its data. The
    /// first may then be back, empty.
    Inherit(usize, usize, bool),
}

/// What becomes of a primary when a replica is promoted in its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fall {
    Stop,
    Hang,
    /// Some processes cannot reach it. It goes on for the others.
    CutOff,
}

/// A failover to a replica.
#[derive(Clone, Copy, Debug)]
pub struct Failover {
    /// Which of the other servers takes over.
    pub heir: usize,
    pub fall: Fall,
    /// How many milliseconds the replica is behind.
    pub lag: u64,
    /// After how long it is promoted.
    pub promoted: u64,
    /// How long after that each sentinel learns of it.
    pub told: [u64; 3],
    /// How long after that the old primary is back, as a primary.
    pub back: u64,
    /// How long it then remains a primary.
    pub converted: u64,
    /// The processes that cannot reach a primary that is cut off.
    pub apart: u8,
}

impl Failover {
    fn draw(chance: &mut Rng) -> Self {
        let mut told = [0; 3].map(|_| pick(chance, &[0, 20, 400, 1_200]));
        told[chance.usize(..3)] = 0;
        Self {
            heir: chance.usize(1..3),
            fall: pick(chance, &[Fall::Stop, Fall::Hang, Fall::CutOff]),
            lag: pick(chance, &[0, 1, 5, 30]),
            promoted: pick(chance, &[50, 500, 2_000]),
            told,
            back: pick(chance, &[0, 500, 2_000]),
            converted: pick(chance, &[0, 300, 6_000]),
            apart: chance.u8(..),
        }
    }

    /// Returns how long the whole failover takes.
    pub fn span(&self) -> u64 {
        let told = self.told.into_iter().max().unwrap_or(0);
        self.lag + self.promoted + told.max(self.back + self.converted)
    }
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
    topology: Topology,
    processes: usize,
    names: usize,
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
            let at = chance.u64(200..length);
            let span = pick(chance, &[50, 300, 1_500, LONGEST_SPAN]);
            let fault = fault(chance, kind, topology, processes, names);
            let span = match &fault {
                Fault::Failover(failover) => failover.span(),
                _ => span,
            };
            Event { at, span, fault }
        })
        .collect();
    events.sort_by_key(|event| event.at);
    events
}

fn fault(
    chance: &mut Rng,
    kind: &str,
    topology: Topology,
    processes: usize,
    names: usize,
) -> Fault {
    let is_link = kind == "links";
    let hosts = if is_link {
        topology.hosts()
    } else {
        topology.servers()
    };
    let (one, other) = (chance.usize(..processes), chance.usize(..hosts));
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
        "servers" if topology == Topology::Sentinels && odds(chance, 60) => {
            Fault::Failover(Failover::draw(chance))
        }
        "servers" if topology == Topology::Cluster && odds(chance, 60) => match chance.u32(..4) {
            0 => Fault::Inherit(other, chance.usize(..2), chance.bool()),
            _ => Fault::Move(chance.usize(..names), chance.usize(..2)),
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
