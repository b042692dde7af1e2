//! A model of the lock over several servers, for a checker that visits every order of events. The callers of the model
//! decide with the library's own functions.
//!
//! It has three servers and two callers. Requests arrive late or never, answers get lost, leases end, holders extend,
//! and callers pause for any time. Servers forget, in every way that the rule for their votes knows of. Each part of
//! that rule can be left out, and the checker must find what then goes wrong.

mod scenarios;
mod server;

use std::time::Duration;

use stateright::{Checker, Model, Property};

use super::quorum::{QuorumState, Response, quorum_state, trusted_for};
use super::renewal::deadline;
use crate::clock::BootInstant;
use crate::options::LeaseTime;
use server::{Fault, Hold, LEASE, Request, Rule, Server};

const TICK: Duration = Duration::from_millis(2_500);

/// One configuration of the model.
#[derive(Clone, Debug)]
struct Scenario {
    rule: Rule,
    /// The servers have been asked before.
    asked_before: bool,
    /// How many times each caller asks.
    rounds: [u8; 2],
    /// On how many single servers a holder may extend the lease.
    extensions: u8,
    /// How many requests or their answers may be lost.
    losses: u8,
    /// What may happen to the servers, each at any time and in any order.
    faults: &'static [Fault],
    /// The most of these faults that happen in one run.
    most: u8,
    ticks: u8,
}

/// The servers, the callers, and what may still go wrong.
#[derive(Clone, Debug, Hash, PartialEq, Eq)]
struct World {
    now: u8,
    servers: [Server; 3],
    callers: [Caller; 2],
    losses: u8,
    faults: u8,
    /// The number of the run or history that began last.
    fresh: u8,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq)]
struct Caller {
    round: u8,
    phase: Phase,
    /// The requests that are on their way to the servers.
    requests: [Option<Request>; 3],
    extensions: u8,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq)]
enum Phase {
    Idle,
    Asking([Response; 3]),
    Holding([Option<BootInstant>; 3]),
}

#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
enum Event {
    Tick,
    Ask(usize),
    /// A request is carried out, and answered or not.
    Arrive(usize, usize, bool),
    Extend(usize, usize, bool),
    Unlock(usize),
    /// A server releases what the caller no longer uses.
    Release(usize, usize),
    Fault(Fault),
}

impl World {
    fn holds(&self, caller: usize) -> bool {
        match &self.callers[caller].phase {
            Phase::Holding(promises) => stands(promises, self.now),
            _ => false,
        }
    }
}

fn stands(promises: &[Option<BootInstant>; 3], now: u8) -> bool {
    let promises = promises.iter().flatten();
    !trusted_for(promises.map(|until| moment(now).until(*until)), 3).is_zero()
}

/// Returns until when a caller trusts the lease that it asked for at this tick.
fn promise(sent: u8) -> BootInstant {
    let lease = LeaseTime::new(TICK * u32::from(LEASE)).unwrap();
    deadline(moment(sent), lease)
}

fn moment(tick: u8) -> BootInstant {
    BootInstant::from_millis(u64::from(tick) * TICK.as_millis() as u64)
}

impl Model for Scenario {
    type State = World;
    type Action = Event;

    fn init_states(&self) -> Vec<World> {
        let caller = Caller {
            round: 0,
            phase: Phase::Idle,
            requests: [None; 3],
            extensions: self.extensions,
        };
        vec![World {
            now: LEASE,
            servers: std::array::from_fn(|number| Server::new(number, self.asked_before)),
            callers: [caller.clone(), caller],
            losses: self.losses,
            faults: self.most,
            fresh: 6,
        }]
    }

    fn actions(&self, world: &World, events: &mut Vec<Event>) {
        if world.now < LEASE + self.ticks {
            events.push(Event::Tick);
        }
        for (c, caller) in world.callers.iter().enumerate() {
            let asks_again = caller.round < self.rounds[c];
            // The callers are alike, so it is enough that the first begins.
            let is_late = c == 1 && world.callers[0].round == 0;
            match &caller.phase {
                Phase::Idle if asks_again && !is_late => events.push(Event::Ask(c)),
                Phase::Holding(promises) => {
                    // A caller that has released the lock and asks no more blocks nobody.
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
                let hold = server.primary.data.hold;
                let hold = hold.filter(|hold| hold.request.caller == c);
                let is_used =
                    |hold: Hold| hold.is_of(c, caller.round) && caller.phase != Phase::Idle;
                if hold.is_some_and(|hold| !is_used(hold)) {
                    events.push(Event::Release(c, s));
                }
            }
        }
        if world.faults > 0 {
            let possible = self.faults.iter().filter(|fault| {
                let server = &world.servers[fault.server()];
                fault.is_possible(server, world.now)
            });
            events.extend(possible.map(|fault| Event::Fault(*fault)));
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
                let node = world.servers[s].reached_by(c);
                let vote = match node.votes(now, self.rule) {
                    true => node.acquire(now, request),
                    false => Response::Missing,
                };
                let vote = if answered { vote } else { Response::Missing };
                world.losses -= u8::from(!answered);
                world.callers[c].hear(s, request, vote, now);
            }
            Event::Extend(c, s, answered) => {
                let caller = &mut world.callers[c];
                caller.extensions -= 1;
                world.losses -= u8::from(!answered);
                let stood = world.servers[s].reached_by(c).extend(now, c, caller.round);
                let Phase::Holding(promises) = &mut caller.phase else {
                    return None;
                };
                if answered {
                    let renewed = stood.then(|| promise(now));
                    promises[s] = promises[s].filter(|_| stood).max(renewed);
                }
            }
            Event::Unlock(c) => world.callers[c].phase = Phase::Idle,
            Event::Release(_, s) => world.servers[s].primary.data.hold = None,
            Event::Fault(fault) => {
                world.faults -= 1;
                let server = &mut world.servers[fault.server()];
                server.suffer(fault, now, &mut world.fresh, self.asked_before);
            }
        }
        Some(world)
    }

    /// Returns `false` once a caller has finished its rounds and can hold nothing more, so that the other has no rival
    /// left.
    fn within_boundary(&self, world: &World) -> bool {
        world
            .callers
            .iter()
            .zip(self.rounds)
            .all(|(caller, rounds)| {
                let may_hold = match &caller.phase {
                    Phase::Idle => false,
                    Phase::Holding(promises) => stands(promises, world.now),
                    Phase::Asking(_) => true,
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

impl Caller {
    fn ask(&mut self, caller: usize, now: u8) {
        let request = Request {
            caller,
            round: self.round,
            sent: now,
        };
        self.phase = Phase::Asking([Response::Awaited; 3]);
        self.requests = [Some(request); 3];
    }

    /// Handles an answer to a request, or the end of the wait for one.
    fn hear(&mut self, s: usize, request: Request, vote: Response, now: u8) {
        if request.round != self.round {
            return;
        }
        // One for all grants of a round, whose requests are sent at the same time.
        let until = promise(request.sent);
        match (&mut self.phase, vote) {
            (Phase::Asking(votes), vote) => {
                votes[s] = vote;
                let votes = *votes;
                let promises = votes.map(|vote| (vote == Response::Yes).then_some(until));
                self.phase = match quorum_state(&votes) {
                    QuorumState::Open => Phase::Asking(votes),
                    QuorumState::Won if stands(&promises, now) => Phase::Holding(promises),
                    QuorumState::Won | QuorumState::Outvoted | QuorumState::TooFew => Phase::Idle,
                };
            }
            // A grant that arrives after the decision joins the others.
            (Phase::Holding(promises), Response::Yes) if stands(promises, now) => {
                promises[s] = Some(until);
            }
            _ => {}
        }
    }
}

/// Visits every state. Returns whether the two callers never held the lock at the same time.
fn excludes(scenario: Scenario) -> bool {
    let checker = scenario.checker().threads(2).spawn_bfs().join();
    assert!(checker.discovery("somebody holds").is_some());
    checker.discovery("one holder").is_none()
}
