//! The plan that a seed chooses: servers, names, processes with their tasks and steps, and the weather.

mod corners;
mod crowd;
mod cut;
mod extras;
mod faults;
mod steps;
mod topology;

use fastrand::Rng;

use crate::chance::mixed;
use crate::network::Delay;

pub use corners::corner_of;
pub use cut::Cut;
pub use faults::{Event, Failover, Fall, Fault, LONGEST_SPAN};
use topology::TOPOLOGIES;
pub use topology::Topology;

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
    /// An election.
    Leader,
    Job,
}

/// A name that processes share.
#[derive(Clone, Debug)]
pub struct Shared {
    pub kind: Kind,
    pub name: String,
    /// The client that asks for it. All clients ask for a RedLock.
    pub client: usize,
    /// The number of permits, the count of a latch, or how many milliseconds a job is kept for.
    pub total: u32,
}

impl Shared {
    /// Whether it is taken together with others.
    pub fn is_of_set(&self) -> bool {
        self.name.starts_with("set:")
    }
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
    /// The future of the unlock is dropped after this many polls.
    Unfinished(u32),
    Drop,
    Forget,
    Sent,
    Detached,
}

/// What happens to the future of a call.
#[derive(Clone, Copy, Debug, Default)]
pub struct Care {
    /// Dropped after this many polls: at once, or when it would be polled again.
    pub dropped: Option<(u32, bool)>,
    /// After this many polls, not polled for this many milliseconds.
    pub unpolled: Option<(u32, u64)>,
}

impl Care {
    /// For what runs under a lock: it drops what it has when the lock is lost, if it is polled.
    pub fn polled(self) -> Self {
        Self {
            unpolled: None,
            ..self
        }
    }
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
    /// Whether the work fails, if it is run.
    pub fails: bool,
    pub extend: Option<u64>,
    pub verifies: bool,
    pub ending: Ending,
    pub care: Care,
    /// The same for the calls of its guard.
    pub held: Care,
}

/// An attempt to run a job.
#[derive(Clone, Debug)]
pub struct Attempt {
    pub name: usize,
    pub work: u64,
    pub fails: bool,
    pub care: Care,
}

#[derive(Clone, Debug)]
pub enum Act {
    Section(Section),
    /// The same by `try_run_for`.
    Run(Section),
    Lead(Section),
    Job(Attempt),
    /// Runs under a lock in branches of one task, for so many milliseconds each, and once more within each.
    Nest(usize, u64),
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

#[derive(Clone, Debug)]
pub struct Process {
    pub tasks: Vec<Vec<Step>>,
    pub is_lazy: bool,
}

#[derive(Clone, Debug)]
pub struct Plan {
    pub seed: u64,
    pub weather: &'static str,
    pub topology: Topology,
    /// How much faster each server's clock is, in millionths.
    pub clocks: Vec<i64>,
    pub delay: Delay,
    /// The largest additional delay of a link.
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
    /// Whether clients are closed while calls go on.
    pub abandons: bool,
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

/// Servers that may take over each other's data have clocks of the same speed, so that a lease lasts equally long on
/// all.
fn clocks(chance: &mut Rng, topology: Topology) -> Vec<i64> {
    let mut drawn = || chance.i64(-8_000..=8_000);
    let shared = drawn();
    let one = |_| match topology.shares_data() {
        true => shared,
        false => drawn(),
    };
    (0..topology.servers()).map(one).collect()
}

impl Plan {
    /// Returns how long a server may keep a hold that nobody renews or gives back.
    pub fn longest(&self) -> u64 {
        LONGEST_LEASE.max(self.watchdog) + self.command_timeout
    }

    pub fn of(seed: u64) -> Self {
        let mut chance = Rng::with_seed(mixed(seed));
        let chance = &mut chance;
        let topology = pick(chance, &TOPOLOGIES);
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
        let names = steps::names(chance, topology.clients());
        let length = chance.u64(4_000..16_000);
        let count = chance.usize(2..=6);
        let tasks = chance.usize(2..=8);
        let mut processes = Vec::new();
        for _ in 0..count {
            let steps = |_| {
                let count = chance.usize(40..160);
                (0..count)
                    .map(|_| steps::step(chance, &names, is_calm))
                    .collect()
            };
            let tasks = (0..tasks).map(steps).collect();
            let is_lazy = odds(chance, 20);
            processes.push(Process { tasks, is_lazy });
        }
        let events = faults::events(chance, weather, topology, count, names.len(), length);
        let mut plan = Self {
            seed,
            weather,
            topology,
            clocks: clocks(chance, topology),
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
            abandons: false,
        };
        extras::add(&mut plan);
        crowd::gather(&mut plan);
        corners::turn(&mut plan);
        plan
    }

    /// Returns a summary for people.
    pub fn described(&self) -> String {
        let Delay { least, jitter } = self.delay;
        let tasks: Vec<_> = self.processes.iter().map(|one| one.tasks.len()).collect();
        format!(
            "seed {}, weather {}: {:?}, with servers whose clocks are faster by {:?} millionths; {least} to {} ms each way, some links up to {} more; \
             processes with {tasks:?} tasks; watchdog lease {} ms, command timeout {} ms, poll cap {} ms, handoffs {}",
            self.seed,
            self.weather,
            self.topology,
            self.clocks,
            least + jitter,
            self.spread,
            self.watchdog,
            self.command_timeout,
            self.poll_cap,
            self.handoffs,
        )
    }
}
