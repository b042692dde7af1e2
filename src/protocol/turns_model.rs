//! A model of the turn order of a lock, for a checker that visits every order of events.
//!
//! It has processes of ours, which have places in the turn order and are told by name, and one process of Redisson's,
//! which ignores the turn order and listens to the common channel. If a message on the common channel reaches anybody,
//! the lock is left to Redisson's clients for a short turn, ahead of the turn order. One of the processes may hear
//! nothing: it asks after pauses, and has a place from its second request on. A request and its answer are two
//! steps, and so are a subscription and its acknowledgement, so anything may come between them. Faults befall a process
//! or the server at any time. Each rule can be left out, and the checker must find what then goes wrong.
//!
//! Two other ways were tried. Telling every waiter of each release cost 98 requests per hold with 100 processes, and
//! some never got the lock. Letting the release move the lock to the first process holds everyone up if that process is
//! gone, and shows Redisson's clients a holder that may never run.
//!
//! The first two in the turn order listen to the common channel only while a client without an acquisition field holds
//! the lock. Otherwise, a release could not tell them from Redisson's clients, and would leave the lock to those each
//! time.

mod fault;
mod process;
mod scenarios;
mod server;

use stateright::{Checker, HasDiscoveries, Model, Property};

use super::model::{DONE, tell};
use fault::Fault;
use process::{Channel, Ear, Java, JavaPhase, Phase, Place, Process};
use server::{Holder, Told};

/// The server and the processes that hold the lock agree on who that is.
const ONE: &str = "one holder";
/// Of the processes that wait with a place and that no fault befell, the first to arrive goes first.
const ORDER: &str = "in order";
/// Nobody waits for a free lock, unless an event in flight makes a process take it.
const WOKEN: &str = "woken";
/// As `WOKEN`, or a process asks when the lease that it was told of ends.
const LEASE: &str = "woken within a lease";
/// Without clients of Redisson, the lock is never left to them.
const FOREIGN: &str = "no turn of nobody";
/// Once nobody waits and nothing is in flight, the turn order is empty.
const EMPTY: &str = "nobody is left in line";

/// The rules that the processes and the server follow: all of them, or all but one.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
enum Rule {
    Whole,
    /// A place is not made by the script that refuses the lock, but by a separate request.
    StandLater,
    /// A place is made before its process is known to receive messages, and the process does not ask again once it
    /// does.
    StandDeaf,
    /// A process does not ask again once its subscription to its own channel is acknowledged.
    NoLookOwn,
    /// As `NoLookOwn`, for the common channel.
    NoLookCommon,
    /// A process that becomes first or second because another one left is not told.
    SilentLeave,
    /// The request that gives up a place may arrive after its process has taken the next one.
    LateLeave,
    /// A turn never ends.
    EndlessTurn,
    /// The second process is not told when the turn of the first ends.
    NoNext,
    /// No process listens for releases by Redisson.
    DeafToJava,
    /// Only the first process listens for releases by Redisson.
    SecondDeaf,
    /// The turn of Redisson's clients counts as a place, and only the first of our processes is told when it ends.
    ForeignPlace,
    /// Only the first of our processes is told when the turn of Redisson's clients ends.
    NextToFirst,
    /// None of our processes is told when the turn of Redisson's clients ends.
    NextToNone,
    /// Any process that asks may take a free lock.
    AnyTurn,
    /// A process that was told, and comes too late for the lock, still counts as told.
    KeepNote,
    /// A process without messages counts as gone.
    DeafGone,
    /// The turn of a process without messages may end before it asks.
    DeafLate,
}

/// One configuration of the model.
#[derive(Clone, Debug)]
struct Scenario {
    rule: Rule,
    processes: usize,
    /// How many times each process wants the lock.
    sections: u8,
    /// How many times Redisson's process wants it.
    java: u8,
    /// The last process hears nothing.
    deaf: bool,
    /// Processes go on listening to their channels between their sections.
    keeps: bool,
    /// The faults that may happen, each once.
    faults: &'static [Fault],
    /// How many of these faults happen, at most.
    befall: usize,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq)]
struct World {
    rule: Rule,
    keeps: bool,
    lock: Option<Holder>,
    line: Vec<usize>,
    /// Whether the first process in `line` was told.
    told: Told,
    /// Whether Redisson's clients, all of them together, have a turn ahead of the turn order.
    foreign: Told,
    processes: Vec<Process>,
    java: Java,
    /// The faults that may still happen, and how many of them.
    faults: Vec<Fault>,
    befall: usize,
    /// The processes that wait with a place, in the order in which they got it, without those that a fault has
    /// befallen.
    came: Vec<usize>,
    /// Whether one of these processes was passed over.
    overtaken: bool,
}

#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
enum Event {
    /// A process wants the lock.
    Start(usize),
    /// The server carries out a request.
    Arrive(usize),
    /// The answer arrives.
    Hear(usize),
    /// A message arrives.
    Mail(usize, Channel),
    /// The message arrives that the turn of another process began.
    Next(usize),
    /// The time named in that message has passed.
    Soon(usize),
    Listen(usize, Channel),
    Acknowledge(usize, Channel),
    Release(usize),
    Leave(usize),
    /// The turn of the first process ends.
    TurnEnds,
    /// The turn of Redisson's clients ends.
    ForeignTurnEnds,
    /// A turn order with only the entry of Redisson's clients expires.
    LineEnds,
    /// The lease of a holder that is gone ends.
    Expire,
    JavaStart,
    JavaListens,
    JavaLooks,
    JavaWakes,
    JavaReleases,
    /// A process asks of its own accord: because a lease may have ended, or as a last resort.
    Poll(usize),
    LateCopy(usize),
    Fault(Fault, usize),
}

impl Scenario {
    /// Returns the events that happen soon, without another cause.
    fn prompt(world: &World) -> Vec<Event> {
        let mut events = Vec::new();
        for (c, process) in world.processes.iter().enumerate() {
            let is_held_up = process.leaving && world.rule != Rule::LateLeave;
            match process.phase {
                Phase::Dead | Phase::Frozen => continue,
                Phase::Asked { .. } if !is_held_up => events.push(Event::Arrive(c)),
                Phase::Answered(_) => events.push(Event::Hear(c)),
                Phase::Holding => events.push(Event::Release(c)),
                Phase::Parked(_) if process.soon && !world.is_left() => {
                    events.push(Event::Soon(c));
                }
                Phase::Parked(_) if process.deaf => events.push(Event::Poll(c)),
                _ => {}
            }
            for channel in [Channel::Own, Channel::Common] {
                match process.ears[channel as usize] {
                    Ear::Asked if process.deaf => {}
                    Ear::Asked | Ear::Broken => events.push(Event::Listen(c, channel)),
                    Ear::Open => events.push(Event::Acknowledge(c, channel)),
                    Ear::Off | Ear::Known | Ear::Left => {}
                }
                if process.mail[channel as usize] {
                    events.push(Event::Mail(c, channel));
                }
            }
            if process.next {
                events.push(Event::Next(c));
            }
            if process.leaving {
                events.push(Event::Leave(c));
            }
        }
        if world.told == Told::Yes && world.rule != Rule::EndlessTurn {
            let first = &world.processes[world.line[0]];
            if !first.comes() || first.deaf && world.rule == Rule::DeafLate {
                events.push(Event::TurnEnds);
            }
        }
        if world.foreign == Told::Yes {
            events.push(Event::ForeignTurnEnds);
        }
        if world.is_doomed() {
            events.push(Event::Expire);
        }
        match world.java.phase {
            JavaPhase::Subscribing => events.push(Event::JavaListens),
            JavaPhase::Looking => events.push(Event::JavaLooks),
            JavaPhase::Parked if world.java.mail => events.push(Event::JavaWakes),
            JavaPhase::Holding => events.push(Event::JavaReleases),
            _ => {}
        }
        events
    }
}

impl Model for Scenario {
    type State = World;
    type Action = Event;

    fn init_states(&self) -> Vec<World> {
        vec![World {
            rule: self.rule,
            keeps: self.keeps,
            lock: None,
            line: Vec::new(),
            told: Told::No,
            foreign: Told::No,
            processes: (1..=self.processes)
                .map(|nth| Process::new(self.sections, self.deaf && nth == self.processes))
                .collect(),
            java: Java::new(self.java),
            faults: self.faults.to_vec(),
            befall: self.befall,
            came: Vec::new(),
            overtaken: false,
        }]
    }

    fn actions(&self, world: &World, events: &mut Vec<Event>) {
        events.extend(Self::prompt(world));
        for (c, process) in world.processes.iter().enumerate() {
            // The processes are alike, so it is enough that they begin one after another.
            let is_late = c > 0 && !process.deaf && world.processes[c - 1].is_new(self.sections);
            match process.phase {
                Phase::Idle if process.sections > 0 && !is_late => events.push(Event::Start(c)),
                Phase::Parked(_) if !process.deaf => events.push(Event::Poll(c)),
                _ => {}
            }
            if process.copy.is_some() {
                events.push(Event::LateCopy(c));
            }
            let possible = world.faults.iter().copied();
            let possible = possible.filter(|fault| world.may_befall(*fault, c));
            events.extend(possible.map(|fault| Event::Fault(fault, c)));
        }
        if world.foreign == Told::Over && world.line.is_empty() {
            events.push(Event::LineEnds);
        }
        if world.java.phase == JavaPhase::Idle && world.java.sections > 0 {
            events.push(Event::JavaStart);
        }
    }

    fn next_state(&self, world: &World, event: Event) -> Option<World> {
        let mut world = world.clone();
        match event {
            Event::Start(c) | Event::Poll(c) | Event::Soon(c) => world.processes[c].ask(),
            Event::Arrive(c) => world.arrive(c),
            Event::Hear(c) => world.hear(c),
            Event::Mail(c, channel) => {
                world.processes[c].mail[channel as usize] = false;
                world.processes[c].wake();
            }
            Event::Next(c) => {
                world.processes[c].next = false;
                world.processes[c].soon = true;
            }
            Event::Listen(c, channel) => world.processes[c].ears[channel as usize] = Ear::Open,
            Event::Acknowledge(c, channel) => world.acknowledge(c, channel),
            Event::Release(c) => {
                world.processes[c].end();
                world.release(c);
            }
            Event::Leave(c) => {
                world.processes[c].leaving = false;
                world.leave(c);
            }
            Event::TurnEnds => world.told = Told::Over,
            Event::ForeignTurnEnds => world.foreign = Told::Over,
            Event::LineEnds => world.foreign = Told::No,
            Event::Expire => world.expire(),
            Event::JavaStart | Event::JavaWakes | Event::JavaLooks => world.java_asks(),
            Event::JavaListens => world.java.phase = JavaPhase::Looking,
            Event::JavaReleases => world.java_releases(),
            Event::LateCopy(c) => world.late_copy(c),
            Event::Fault(fault, c) => {
                let which = world.faults.iter().position(|other| *other == fault)?;
                world.faults.remove(which);
                world.befall -= 1;
                if world.befall == 0 {
                    world.faults.clear();
                }
                world.suffer(fault, c);
            }
        }
        Some(world)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(ONE, |_, world: &World| {
                let believes = |(c, process): (usize, &Process)| {
                    process.phase != Phase::Holding || world.lock == Some(Holder::Process(c))
                };
                world.processes.iter().enumerate().all(believes)
                    && (world.java.phase != JavaPhase::Holding || world.lock == Some(Holder::Java))
            }),
            Property::always(ORDER, |_, world: &World| !world.overtaken),
            Property::always(WOKEN, |_, world: &World| {
                !world.waits() || !Self::prompt(world).is_empty()
            }),
            Property::always(LEASE, |_, world: &World| {
                !world.waits() || world.asks_within_a_lease() || !Self::prompt(world).is_empty()
            }),
            Property::always(EMPTY, |_, world: &World| {
                world.line.is_empty() || world.waits() || !Self::prompt(world).is_empty()
            }),
            Property::always(FOREIGN, |scenario: &Self, world: &World| {
                scenario.java > 0 || world.foreign == Told::No
            }),
            Property::sometimes(DONE, |_, world: &World| {
                let is_done = |process: &Process| process.sections == 0;
                world.processes.iter().all(is_done) && world.java.sections == 0
            }),
        ]
    }
}

impl World {
    /// Returns whether a process waits for the lock.
    fn waits(&self) -> bool {
        let waits = |process: &Process| {
            !matches!(
                process.phase,
                Phase::Idle | Phase::Holding | Phase::Dead | Phase::Frozen
            )
        };
        self.processes.iter().any(waits) || self.java.phase == JavaPhase::Parked
    }

    /// Returns whether the lock is left to somebody at present.
    fn is_left(&self) -> bool {
        [self.told, self.foreign].contains(&Told::Yes)
    }

    /// Returns whether a waiting process asks when the lease ends that it was told of.
    fn asks_within_a_lease(&self) -> bool {
        let asks = |process: &Process| {
            matches!(process.phase, Phase::Parked(Place::First | Place::Second))
        };
        self.processes.iter().any(asks) || self.java.phase == JavaPhase::Parked
    }
}

/// Visits states until one is found in which `property` fails. Returns whether there is one.
fn breaks(scenario: Scenario, property: &'static str) -> bool {
    let found = HasDiscoveries::AllOf([property].into());
    let checker = scenario.clone().checker().threads(2);
    let checker = checker.finish_when(found).spawn_bfs().join();
    println!("{} states: {scenario:?}", checker.unique_state_count());
    let found = checker.discovery(property);
    if let Some(path) = &found {
        tell(property, path);
    }
    found.is_some()
}
