//! A model of the lock over several servers, for a checker that goes through every order of events: what callers
//! decide is decided by the functions that the product runs.
//!
//! Three servers, two callers. Requests arrive late or never, answers get lost, leases end, servers restart without
//! memory or with an old one, holders extend, callers pause for as long as anything else takes, and a server's clock may
//! jump.

use std::time::Duration;

use stateright::{Checker, Model, Property};

use super::quorum::{Mark, Verdict, Vote, first_use, trusted_until, verdict};
use super::renewal::deadline;
use crate::clock::Moment;
use crate::options::LeaseTime;

/// Longer than the servers of a new fleet may be apart, so that what happens in one tick is at once.
const TICK: Duration = Duration::from_millis(2_500);
/// In ticks; the longest lease of the fleet too.
const LEASE: u8 = 2;

/// What is tried.
#[derive(Clone, Debug)]
struct Scenario {
    /// Servers that may have forgotten rest.
    rests: bool,
    /// The fleet has been used before.
    settled: bool,
    /// How often each caller asks.
    rounds: [u8; 2],
    /// How many single servers a holder may extend the lease on.
    extensions: u8,
    /// How many requests, or their answers, may be lost.
    losses: u8,
    /// Each of another server: the last, the one before it, ..
    restarts: u8,
    /// Of the last server's clock.
    jumps: u8,
    ticks: u8,
}

/// The servers, the callers, and what may still go wrong.
#[derive(Clone, Debug, Hash, PartialEq, Eq)]
struct World {
    now: u8,
    servers: [Server; 3],
    callers: [Caller; 2],
    losses: u8,
    restarts: u8,
    jumps: u8,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq)]
struct Server {
    run: u8,
    /// How far its clock is ahead.
    ahead: u8,
    data: Data,
}

#[derive(Clone, Debug, Default, Hash, PartialEq, Eq)]
struct Data {
    hold: Option<Hold>,
    mark: Option<Stamp>,
}

#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
struct Hold {
    request: Request,
    ends: u8,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq)]
struct Stamp {
    run: u8,
    since: u8,
    fleet: Option<Box<str>>,
}

#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
struct Request {
    caller: usize,
    round: u8,
    sent: u8,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq)]
struct Caller {
    round: u8,
    phase: Phase,
    /// On their way to the servers.
    requests: [Option<Request>; 3],
    extensions: u8,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq)]
enum Phase {
    Idle,
    Asking([Vote; 3]),
    Looking([Option<Mark>; 3]),
    /// Which servers are still to be told.
    Beginning(Box<str>, [Option<Mark>; 3]),
    Holding([Option<Moment>; 3]),
}

#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
enum Event {
    Tick,
    Ask(usize),
    /// A request is carried out, and answered or not.
    Arrive(usize, usize, bool),
    Look(usize, usize),
    Begin(usize, usize),
    Extend(usize, usize, bool),
    Unlock(usize),
    /// What the caller no longer uses is given back.
    Release(usize, usize),
    Restart(usize, Memory),
    Jump(usize),
}

#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
enum Memory {
    None,
    /// As it was in the beginning.
    Old,
}

fn moment(tick: u8) -> Moment {
    Moment::from_millis(u64::from(tick) * TICK.as_millis() as u64)
}

fn lease() -> LeaseTime {
    LeaseTime::new(TICK * u32::from(LEASE)).unwrap()
}

impl Server {
    fn clock(&self, now: u8) -> u8 {
        now + self.ahead
    }

    /// The guard of the acquisition: how old the mark of a server that rests is.
    fn rests(&mut self, now: u8) -> Option<Duration> {
        let clock = self.clock(now);
        match &self.data.mark {
            Some(mark) if mark.run == self.run => {
                let age = clock - mark.since;
                (mark.fleet.is_none() && age < LEASE).then(|| TICK * u32::from(age))
            }
            _ => {
                self.data.mark = Some(Stamp {
                    run: self.run,
                    since: clock,
                    fleet: None,
                });
                Some(Duration::ZERO)
            }
        }
    }

    fn acquire(&mut self, now: u8, request: Request) -> Vote {
        let clock = self.clock(now);
        match self.data.hold {
            Some(hold) if clock < hold.ends && hold.request != request => Vote::No,
            _ => {
                let ends = clock + LEASE;
                self.data.hold = Some(Hold { request, ends });
                Vote::Yes(deadline(moment(request.sent), lease()))
            }
        }
    }

    /// False if the hold is not there any more.
    fn extend(&mut self, now: u8, caller: usize, round: u8) -> bool {
        let clock = self.clock(now);
        match &mut self.data.hold {
            Some(hold) if clock < hold.ends && hold.is_of(caller, round) => {
                hold.ends = clock + LEASE;
                true
            }
            _ => false,
        }
    }

    fn mark(&self, number: usize, now: u8) -> Option<Mark> {
        let stamp = self.data.mark.as_ref()?;
        Some(Mark {
            made: format!("{number}.{}:{}", stamp.run, stamp.since).into(),
            fleet: stamp.fleet.clone(),
            age: TICK * u32::from(self.clock(now).saturating_sub(stamp.since)),
        })
    }
}

impl Hold {
    fn is_of(&self, caller: usize, round: u8) -> bool {
        self.request.caller == caller && self.request.round == round
    }
}

impl World {
    fn holds(&self, caller: usize) -> bool {
        match &self.callers[caller].phase {
            Phase::Holding(promises) => stands(promises, self.now),
            _ => false,
        }
    }
}

fn stands(promises: &[Option<Moment>; 3], now: u8) -> bool {
    trusted_until(promises.iter().flatten().copied(), 3).is_some_and(|until| moment(now) < until)
}

impl Model for Scenario {
    type State = World;
    type Action = Event;

    fn init_states(&self) -> Vec<World> {
        let server = Server {
            run: 0,
            ahead: 0,
            data: self.first_data(),
        };
        let caller = Caller {
            round: 0,
            phase: Phase::Idle,
            requests: [None; 3],
            extensions: self.extensions,
        };
        vec![World {
            now: 0,
            servers: std::array::from_fn(|_| server.clone()),
            callers: [caller.clone(), caller],
            losses: self.losses,
            restarts: self.restarts,
            jumps: self.jumps,
        }]
    }

    fn actions(&self, world: &World, events: &mut Vec<Event>) {
        if world.now < self.ticks {
            events.push(Event::Tick);
        }
        for (c, caller) in world.callers.iter().enumerate() {
            let asks_again = caller.round < self.rounds[c];
            // The callers are alike, so that one of them can be the first.
            let is_late = c == 1 && world.callers[0].round == 0;
            match &caller.phase {
                Phase::Idle if asks_again && !is_late => events.push(Event::Ask(c)),
                Phase::Looking(marks) => {
                    let unread = marks.iter().position(Option::is_none);
                    events.extend(unread.map(|s| Event::Look(c, s)));
                }
                Phase::Beginning(_, marks) => {
                    let untold = marks.iter().rposition(Option::is_some);
                    events.extend(untold.map(|s| Event::Begin(c, s)));
                }
                Phase::Holding(promises) => {
                    // Who has given the lock back, and asks no more, is in nobody's way.
                    if asks_again {
                        events.push(Event::Unlock(c));
                    }
                    for s in (0..3).filter(|s| promises[*s].is_some()) {
                        if world.holds(c) && caller.extensions > 0 {
                            events.push(Event::Extend(c, s, true));
                            if world.losses > 0 {
                                events.push(Event::Extend(c, s, false));
                            }
                        }
                    }
                }
                Phase::Idle | Phase::Asking(_) => {}
            }
            for (s, server) in world.servers.iter().enumerate() {
                if caller.requests[s].is_some() {
                    events.push(Event::Arrive(c, s, true));
                    if world.losses > 0 {
                        events.push(Event::Arrive(c, s, false));
                    }
                }
                let hold = server.data.hold.filter(|hold| hold.request.caller == c);
                let is_used =
                    |hold: Hold| hold.is_of(c, caller.round) && caller.phase != Phase::Idle;
                if hold.is_some_and(|hold| !is_used(hold)) {
                    events.push(Event::Release(c, s));
                }
            }
        }
        if world.restarts > 0 {
            let s = 3 - usize::from(world.restarts);
            events.push(Event::Restart(s, Memory::None));
            if self.settled {
                events.push(Event::Restart(s, Memory::Old));
            }
        }
        if world.jumps > 0 {
            events.push(Event::Jump(2));
        }
    }

    fn next_state(&self, world: &World, event: Event) -> Option<World> {
        let mut world = world.clone();
        let now = world.now;
        match event {
            Event::Tick => world.now += 1,
            Event::Ask(c) => {
                world.callers[c].round += 1;
                world.callers[c].ask(c, now);
            }
            Event::Arrive(c, s, answered) => {
                let request = world.callers[c].requests[s].take()?;
                let rest = match self.rests {
                    true => world.servers[s].rests(now),
                    false => None,
                };
                let vote = match rest {
                    Some(age) => Vote::Abstained { age },
                    None => world.servers[s].acquire(now, request),
                };
                let vote = if answered { vote } else { Vote::Missing };
                world.losses -= u8::from(!answered);
                world.callers[c].hear(s, request, vote, now);
            }
            Event::Look(c, s) => {
                let mark = world.servers[s].mark(s, now);
                let caller = &mut world.callers[c];
                let Phase::Looking(marks) = &mut caller.phase else {
                    return None;
                };
                marks[s] = mark;
                let read: Vec<_> = marks.iter().flatten().cloned().collect();
                if marks[s].is_none() {
                    caller.phase = Phase::Idle;
                } else if read.len() == 3 {
                    let marks = marks.clone();
                    caller.phase = first_use(&read)
                        .map_or(Phase::Idle, |fleet| Phase::Beginning(fleet.into(), marks));
                }
            }
            Event::Begin(c, s) => {
                let server = &mut world.servers[s];
                let found = server.mark(s, now);
                let caller = &mut world.callers[c];
                let Phase::Beginning(fleet, marks) = &mut caller.phase else {
                    return None;
                };
                let read = marks[s].take()?;
                if found.is_some_and(|found| found.made == read.made && found.fleet.is_none())
                    && let Some(mark) = &mut server.data.mark
                {
                    mark.fleet = Some(fleet.clone());
                }
                if marks.iter().all(Option::is_none) {
                    caller.ask(c, now);
                }
            }
            Event::Extend(c, s, answered) => {
                let caller = &mut world.callers[c];
                caller.extensions -= 1;
                world.losses -= u8::from(!answered);
                let stood = world.servers[s].extend(now, c, caller.round);
                let Phase::Holding(promises) = &mut caller.phase else {
                    return None;
                };
                if answered {
                    let renewed = stood.then(|| deadline(moment(now), lease()));
                    promises[s] = promises[s].filter(|_| stood).max(renewed);
                }
            }
            Event::Unlock(c) => world.callers[c].phase = Phase::Idle,
            Event::Release(_, s) => world.servers[s].data.hold = None,
            Event::Restart(s, memory) => {
                world.restarts -= 1;
                let server = &mut world.servers[s];
                server.run += 1;
                server.data = match memory {
                    Memory::None => Data::default(),
                    Memory::Old => self.first_data(),
                };
            }
            Event::Jump(s) => {
                world.jumps -= 1;
                world.servers[s].ahead += LEASE;
            }
        }
        Some(world)
    }

    /// Once a caller is through with its rounds, the other has nobody beside it.
    fn within_boundary(&self, world: &World) -> bool {
        world
            .callers
            .iter()
            .zip(self.rounds)
            .all(|(caller, rounds)| {
                let may_hold = match &caller.phase {
                    Phase::Idle => false,
                    Phase::Holding(promises) => stands(promises, world.now),
                    Phase::Asking(_) | Phase::Looking(_) | Phase::Beginning(..) => true,
                };
                may_hold || caller.round < rounds
            })
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("one holder", |_, world: &World| {
                !(world.holds(0) && world.holds(1))
            }),
            Property::sometimes("somebody holds", |_, world: &World| {
                world.holds(0) || world.holds(1)
            }),
        ]
    }
}

impl Scenario {
    fn first_data(&self) -> Data {
        let mark = self.settled.then(|| Stamp {
            run: 0,
            since: 0,
            fleet: Some("first".into()),
        });
        Data { hold: None, mark }
    }
}

impl Caller {
    fn ask(&mut self, caller: usize, now: u8) {
        let request = Request {
            caller,
            round: self.round,
            sent: now,
        };
        self.phase = Phase::Asking([Vote::Awaited; 3]);
        self.requests = [Some(request); 3];
    }

    /// An answer to a request, or the end of the wait for one.
    fn hear(&mut self, s: usize, request: Request, vote: Vote, now: u8) {
        if request.round != self.round {
            return;
        }
        match (&mut self.phase, vote) {
            (Phase::Asking(votes), vote) => {
                votes[s] = vote;
                let votes = *votes;
                self.phase = match verdict(&votes) {
                    Verdict::Open => Phase::Asking(votes),
                    Verdict::Won(until) if moment(now) < until => {
                        Phase::Holding(votes.map(|vote| match vote {
                            Vote::Yes(until) => Some(until),
                            _ => None,
                        }))
                    }
                    Verdict::FirstUse { .. } => Phase::Looking([const { None }; 3]),
                    Verdict::Won(_) | Verdict::Outvoted | Verdict::TooFew => Phase::Idle,
                };
            }
            // It joins those that did not wait for it.
            (Phase::Holding(promises), Vote::Yes(until)) if stands(promises, now) => {
                promises[s] = Some(until);
            }
            _ => {}
        }
    }
}

/// Goes through every state. Whether nobody ever held the lock beside another.
fn excludes(scenario: Scenario) -> bool {
    let checker = scenario.checker().threads(2).spawn_bfs().join();
    assert!(checker.discovery("somebody holds").is_some());
    checker.discovery("one holder").is_none()
}

const SETTLED: Scenario = Scenario {
    rests: true,
    settled: true,
    rounds: [1, 1],
    extensions: 0,
    losses: 0,
    restarts: 1,
    jumps: 0,
    ticks: 3,
};

const NEW: Scenario = Scenario {
    settled: false,
    ticks: 1,
    ..SETTLED
};

#[test]
fn nobody_holds_beside_another_though_a_server_forgets() {
    assert!(excludes(SETTLED));
}

#[test]
fn nobody_holds_beside_another_though_answers_are_lost() {
    assert!(excludes(Scenario {
        losses: 1,
        ticks: 2,
        ..SETTLED
    }));
}

#[test]
fn nobody_holds_beside_another_though_leases_are_extended() {
    assert!(excludes(Scenario {
        extensions: 2,
        ticks: 4,
        ..SETTLED
    }));
}

#[test]
fn nobody_holds_beside_another_though_late_requests_arrive() {
    assert!(excludes(Scenario {
        rounds: [2, 1],
        restarts: 0,
        ticks: 2,
        ..SETTLED
    }));
}

#[test]
fn nobody_holds_beside_another_on_a_fleet_that_is_new() {
    assert!(excludes(NEW));
}

#[test]
fn without_the_rest_two_hold_it() {
    assert!(!excludes(Scenario {
        rests: false,
        ..SETTLED
    }));
}

#[test]
fn with_a_clock_that_jumps_two_hold_it() {
    assert!(!excludes(Scenario {
        restarts: 0,
        jumps: 1,
        ..SETTLED
    }));
}

#[test]
fn when_all_forget_at_once_two_hold_it() {
    assert!(!excludes(Scenario {
        restarts: 3,
        ticks: 1,
        ..SETTLED
    }));
}

#[test]
fn when_two_of_three_forget_nobody_holds_beside_another() {
    assert!(excludes(Scenario {
        restarts: 2,
        ticks: 2,
        ..SETTLED
    }));
}
