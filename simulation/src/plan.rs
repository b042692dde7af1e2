//! What a seed chooses: servers, names, processes with their tasks and what those do, and the weather.

use std::fmt;

use fastrand::Rng;

use crate::chance::mixed;
use crate::network::Delay;
use crate::server::Memory;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Reentrant,
    Fair,
    Fenced,
    Plain,
    Spin,
    ReadWrite,
    Red,
    Counted,
    Expirable,
    Latch,
}

/// A name that processes share.
#[derive(Clone, Debug)]
pub struct Shared {
    pub kind: Kind,
    pub name: String,
    /// The server that it is on. A RedLock is on all of them.
    pub server: usize,
    /// How many permits there are, or what a latch counts.
    pub total: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ask {
    Wait,
    Once,
    For(u64),
}

#[derive(Clone, Copy, Debug)]
pub enum By {
    Task,
    Unique,
    Named(u8),
}

/// How a guard ends.
#[derive(Clone, Copy, Debug)]
pub enum Ending {
    Unlock,
    /// The future of the unlock is dropped after so many polls.
    Unfinished(u32),
    Drop,
    Forget,
    Sent,
    Detached,
}

/// What happens to the future of a call.
#[derive(Clone, Copy, Debug, Default)]
pub struct Care {
    /// Dropped after so many polls: at once, or when it would be polled again.
    pub dropped: Option<(u32, bool)>,
    /// After so many polls, not polled for so many milliseconds.
    pub unpolled: Option<(u32, u64)>,
}

/// A lock or permits that are acquired and given back.
#[derive(Clone, Debug)]
pub struct Section {
    /// Several are taken as a set.
    pub names: Vec<usize>,
    pub reads: bool,
    pub ask: Ask,
    pub by: By,
    pub lease: Option<u64>,
    pub levels: u32,
    pub permits: u32,
    pub work: u64,
    pub extend: Option<u64>,
    pub verifies: bool,
    pub ending: Ending,
    pub care: Care,
}

#[derive(Clone, Debug)]
pub enum Act {
    Section(Section),
    /// The same by `try_run_for`.
    Run(Section),
    Look(usize),
    Force(usize),
    Adopt,
    CountDown(usize),
    Await(usize, u64),
}

#[derive(Clone, Debug)]
pub struct Step {
    pub pause: u64,
    pub act: Act,
}

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

#[derive(Clone, Debug)]
pub struct Process {
    pub tasks: Vec<Vec<Step>>,
    pub is_lazy: bool,
}

#[derive(Clone, Debug)]
pub struct Plan {
    pub seed: u64,
    pub weather: &'static str,
    pub servers: usize,
    /// How many millionths faster each server's clock is.
    pub clocks: Vec<i64>,
    pub delay: Delay,
    /// By how much the ways of some links are longer, at most.
    pub spread: u64,
    pub names: Vec<Shared>,
    pub processes: Vec<Process>,
    pub events: Vec<Event>,
    /// Until when steps begin and faults happen.
    pub length: u64,
    pub watchdog: u64,
    pub command_timeout: u64,
    pub poll_cap: u64,
    pub max_hold: u64,
    pub handoffs: u32,
}

/// What is left out of a plan.
#[derive(Clone, Copy, Debug)]
pub enum Cut {
    Event(usize),
    /// All that a process does.
    Process(usize),
    /// Steps of a task of a process, from one to before another.
    Steps(usize, usize, usize, usize),
}

impl fmt::Display for Cut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Event(event) => write!(f, "event.{event}"),
            Self::Process(process) => write!(f, "process.{process}"),
            Self::Steps(process, task, from, to) => write!(f, "steps.{process}.{task}.{from}.{to}"),
        }
    }
}

impl Cut {
    /// Reads what the display of a cut shows.
    pub fn read(text: &str) -> Option<Self> {
        let (kind, numbers) = text.split_once('.')?;
        let numbers: Option<Vec<_>> = numbers.split('.').map(|one| one.parse().ok()).collect();
        match (kind, &numbers?[..]) {
            ("event", &[event]) => Some(Self::Event(event)),
            ("process", &[process]) => Some(Self::Process(process)),
            ("steps", &[process, task, from, to]) => Some(Self::Steps(process, task, from, to)),
            _ => None,
        }
    }
}

/// The longest lease that is asked for.
pub const LONGEST_LEASE: u64 = 8_000;

const WEATHERS: [&str; 8] = [
    "calm",
    "calm",
    "links",
    "links",
    "servers",
    "processes",
    "refusals",
    "everything",
];

fn pick<T: Clone>(chance: &mut Rng, from: &[T]) -> T {
    from[chance.usize(..from.len())].clone()
}

fn odds(chance: &mut Rng, percent: u32) -> bool {
    chance.u32(..100) < percent
}

impl Plan {
    pub fn of(seed: u64) -> Self {
        let mut chance = Rng::with_seed(mixed(seed));
        let chance = &mut chance;
        let servers = pick(chance, &[1, 1, 5]);
        let weather = pick(chance, &WEATHERS);
        let is_calm = weather == "calm";
        let least = pick(
            chance,
            if is_calm {
                &[0, 0, 1, 3]
            } else {
                &[0, 1, 5, 15]
            },
        );
        let jitter = pick(chance, &[0, 1, 4]);
        let names = names(chance, servers);
        let length = chance.u64(4_000..16_000);
        let count = chance.usize(2..=6);
        let tasks = chance.usize(2..=8);
        let mut processes = Vec::new();
        for _ in 0..count {
            let steps = |_| {
                let count = chance.usize(40..160);
                (0..count).map(|_| step(chance, &names, is_calm)).collect()
            };
            let tasks = (0..tasks).map(steps).collect();
            let is_lazy = odds(chance, 20);
            processes.push(Process { tasks, is_lazy });
        }
        let events = events(chance, weather, servers, count, length);
        Self {
            seed,
            weather,
            servers,
            clocks: (0..servers).map(|_| chance.i64(-8_000..=8_000)).collect(),
            delay: Delay { least, jitter },
            spread: pick(chance, &[0, 0, 0, 20]),
            names,
            processes,
            events,
            length,
            watchdog: pick(chance, &[1_200, 3_000, 6_000]),
            command_timeout: pick(chance, &[500, 1_000]),
            poll_cap: pick(chance, &[1_000, 5_000]),
            max_hold: 5_000,
            handoffs: pick(chance, &[0, 2, 16]),
        }
    }

    /// Returns what a person wants to know first.
    pub fn described(&self) -> String {
        let Delay { least, jitter } = self.delay;
        let tasks: Vec<_> = self.processes.iter().map(|one| one.tasks.len()).collect();
        format!(
            "seed {}, weather {}: {} servers, whose clocks are faster by {:?} millionths; {least} to {} ms each way, some links up to {} more; \
             processes with {tasks:?} tasks; watchdog lease {} ms, command timeout {} ms, poll cap {} ms, handoffs {}",
            self.seed,
            self.weather,
            self.servers,
            self.clocks,
            least + jitter,
            self.spread,
            self.watchdog,
            self.command_timeout,
            self.poll_cap,
            self.handoffs,
        )
    }

    /// Returns the plan without some of it. The numbers of what is left out are those of the whole plan.
    #[must_use]
    pub fn without(mut self, cuts: &[Cut]) -> Self {
        let is_cut = |process, task, step| {
            cuts.iter().any(|cut| match *cut {
                Cut::Event(_) => false,
                Cut::Process(one) => one == process,
                Cut::Steps(one, other, from, to) => {
                    (one, other) == (process, task) && (from..to).contains(&step)
                }
            })
        };
        for (process, plan) in self.processes.iter_mut().enumerate() {
            for (task, steps) in plan.tasks.iter_mut().enumerate() {
                let mut step = 0;
                steps.retain(|_| {
                    step += 1;
                    !is_cut(process, task, step - 1)
                });
            }
        }
        let mut event = 0;
        self.events.retain(|_| {
            event += 1;
            !cuts
                .iter()
                .any(|cut| matches!(cut, Cut::Event(one) if *one == event - 1))
        });
        self
    }
}

fn names(chance: &mut Rng, servers: usize) -> Vec<Shared> {
    use Kind::{Counted, Expirable, Fair, Fenced, Latch, Plain, ReadWrite, Red, Reentrant, Spin};
    let kinds = [
        Reentrant, Reentrant, Fair, Fenced, Plain, Spin, ReadWrite, ReadWrite, Counted, Expirable,
        Latch,
    ];
    let count = chance.usize(1..=4);
    let mut names: Vec<_> = (0..count)
        .map(|at| {
            let kind = match servers {
                1 => pick(chance, &kinds),
                _ => pick(chance, &[Red, Red, Reentrant, Fair]),
            };
            let server = chance.usize(..servers);
            let total = chance.u32(1..=4);
            let name = format!("{}:{at}", format!("{kind:?}").to_lowercase());
            Shared {
                kind,
                name,
                server,
                total,
            }
        })
        .collect();
    // Two of one kind, for sets.
    if odds(chance, 40) {
        let kind = pick(chance, &[Reentrant, Fenced, Fair]);
        for at in 0..2 {
            let server = chance.usize(..servers);
            let name = format!("set:{at}");
            names.push(Shared {
                kind,
                name,
                server,
                total: 1,
            });
        }
    }
    names
}

fn step(chance: &mut Rng, names: &[Shared], is_calm: bool) -> Step {
    let pause = pick(chance, &[0, 0, 0, 1, 5, 20]);
    let at = chance.usize(..names.len());
    let act = match names[at].kind {
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
    };
    Step { pause, act }
}

fn section(chance: &mut Rng, names: &[Shared], at: usize) -> Section {
    let kind = names[at].kind;
    let sets: Vec<_> = (0..names.len())
        .filter(|at| names[*at].name.starts_with("set:"))
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
        extend: odds(chance, 10).then(|| pick(chance, &[300, 2_000])),
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
    }
}

fn events(
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
