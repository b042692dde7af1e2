//! A model of the lock whose waiters take turns, for a checker that goes through every order of events.
//!
//! Processes of ours, which stand in line and are told by name, and one of Redisson's, which heeds no line and listens to the
//! common channel. If anybody is heard there, the lock is left to Redisson's for a short turn, ahead of the line. A request and
//! its answer are two steps, and so is a subscription, so that anything may come between; and faults befall a process or the
//! server at any time. Each rule can be left out, which must be found.

mod fault;
mod process;
mod scenarios;
mod server;

use stateright::{Checker, HasDiscoveries, Model, Property};

use super::model::{DONE, tell};
use fault::Fault;
use process::{Channel, Ear, Java, JavaPhase, Phase, Place, Process};
use server::{Holder, Told};

/// The server and those that hold the lock agree on who that is.
const ONE: &str = "one holder";
/// Of those that wait with a place, and that no fault befell, the one that came first goes first.
const ORDER: &str = "in order";
/// Nobody waits for a free lock with nothing under way that makes somebody take it.
const WOKEN: &str = "woken";
/// The same, or the lease that one of them was told of makes it ask.
const LEASE: &str = "woken within a lease";
/// Where there are none of Redisson's, the lock is left to none of them.
const FOREIGN: &str = "no turn of nobody";
/// Once nobody waits and nothing is under way, the line is empty.
const EMPTY: &str = "nobody is left in line";

/// What the processes and the server do: everything, or everything but one rule.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
enum Rule {
    Whole,
    /// A place is not taken by the script that refuses, but by a request of its own.
    StandLater,
    /// A place is taken before it is known that its process hears, which asks no more once it does.
    StandDeaf,
    /// A process does not ask again once it hears what is sent to it by name.
    NoLookOwn,
    /// The same, of the common channel.
    NoLookCommon,
    /// Nobody is told that it is first or second by now, since another left.
    SilentLeave,
    /// A place may be given up later than the next one of its process is taken.
    LateLeave,
    /// Who was told has all the time there is.
    EndlessTurn,
    /// The second is not told when the turn of the first ends.
    NoNext,
    /// Nobody listens for a release by Redisson.
    DeafToJava,
    /// Only the first does.
    SecondDeaf,
    /// Redisson's turn counts as a place, and only the first of ours is told when it ends.
    ForeignPlace,
    /// Only the first of ours is told when Redisson's turn ends.
    NextToFirst,
    /// None of ours is told when Redisson's turn ends.
    NextToNone,
    /// Whoever asks may take a free lock.
    AnyTurn,
    /// Who was told and comes too late for the lock counts as told all the same.
    KeepNote,
}

/// What is tried.
#[derive(Clone, Debug)]
struct Scenario {
    rule: Rule,
    processes: usize,
    /// How often each of them wants the lock.
    sections: u8,
    /// How often Java does.
    java: u8,
    /// Processes listen to their channels between their sections too.
    keeps: bool,
    /// What may befall, each once.
    faults: &'static [Fault],
    /// How many of these do, at most.
    befall: usize,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq)]
struct World {
    rule: Rule,
    keeps: bool,
    lock: Option<Holder>,
    line: Vec<usize>,
    /// Of the first in line.
    told: Told,
    /// Of all of Redisson's together, that stand ahead of the line while they have a turn.
    foreign: Told,
    processes: Vec<Process>,
    java: Java,
    /// What may still befall, and how much of it.
    faults: Vec<Fault>,
    befall: usize,
    /// Who waits with a place, by when it got one, without those that a fault has befallen.
    came: Vec<usize>,
    /// One of these was passed over.
    overtaken: bool,
}

#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
enum Event {
    /// A process wants the lock.
    Start(usize),
    /// The server carries out a request.
    Arrive(usize),
    /// The answer comes back.
    Hear(usize),
    /// A message comes in.
    Mail(usize, Channel),
    /// The message that the turn of another began.
    Next(usize),
    /// The time that was told with it is over.
    Soon(usize),
    Listen(usize, Channel),
    Acknowledge(usize, Channel),
    Release(usize),
    Leave(usize),
    /// The turn of the first ends.
    TurnEnds,
    /// That of Redisson's does.
    ForeignTurnEnds,
    /// A line that holds nothing but this one expires.
    LineEnds,
    /// The lease of a holder that is no more ends.
    Expire,
    JavaStart,
    JavaListens,
    JavaLooks,
    JavaWakes,
    JavaReleases,
    /// A process asks of its own accord: since a lease may have ended, or as the last resort.
    Poll(usize),
    LateCopy(usize),
    Fault(Fault, usize),
}

impl Scenario {
    /// What happens without anybody's further doing, and soon.
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
                _ => {}
            }
            for channel in [Channel::Own, Channel::Common] {
                match process.ears[channel as usize] {
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
            if !first.comes() {
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
            processes: vec![Process::new(self.sections); self.processes],
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
            // The processes are alike, so that they can begin one after another.
            let is_late = c > 0 && world.processes[c - 1].is_new(self.sections);
            match process.phase {
                Phase::Idle if process.sections > 0 && !is_late => events.push(Event::Start(c)),
                Phase::Parked(_) => events.push(Event::Poll(c)),
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
    /// Somebody waits for the lock.
    fn waits(&self) -> bool {
        let waits = |process: &Process| {
            !matches!(
                process.phase,
                Phase::Idle | Phase::Holding | Phase::Dead | Phase::Frozen
            )
        };
        self.processes.iter().any(waits) || self.java.phase == JavaPhase::Parked
    }

    /// The lock is left to somebody for now.
    fn is_left(&self) -> bool {
        [self.told, self.foreign].contains(&Told::Yes)
    }

    /// One of those that wait asks when the lease ends that it was told of.
    fn asks_within_a_lease(&self) -> bool {
        let asks = |process: &Process| {
            matches!(process.phase, Phase::Parked(Place::First | Place::Second))
        };
        self.processes.iter().any(asks) || self.java.phase == JavaPhase::Parked
    }
}

/// Goes through the states until one is found where this does not hold.
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
