//! A model of calls that wait for a lock, for a checker that visits every order of events. The calls of the model
//! decide with the library's own state machine.
//!
//! Each call waits in a process of its own. A request and its answer are two steps, and so are a subscription and its
//! acknowledgement, so anything may come between them. A connection for messages may break at any time, which loses the
//! messages in flight. Each rule can be left out, and the checker must find what then goes wrong.

use std::time::Duration;

use stateright::{Model, Property};

use super::answer::Ttl;
use super::model::{DONE, broken, has_time};
use super::policy::COUNTER;
use super::wait::{Wait, WakeSource};
use super::waiter::{CallChannels, Listening, Local, Start, UNCONFIRMED_POLL, Waiter, WaiterStep};
use crate::clock::BootInstant;
use crate::options::Deadline;

const POLL_CAP: Duration = Duration::from_secs(5);

/// Nobody waits, unless an event in flight makes a call ask.
const WOKEN: &str = "woken";
/// Nobody sleeps past the poll cap, or for long while messages may not arrive.
const ENDS: &str = "every park ends";

/// The rules that a call and its client follow: all of them, or all but one.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
enum Rule {
    Whole,
    /// A call does not ask again once its subscription is acknowledged.
    NoLookBehindAcknowledgement,
    /// A message that arrives while the call asks is taken as known.
    NoLookBehindAsk,
    /// A client that reconnects listens to the same channels as before, and does not tell its calls.
    QuietReconnect,
    /// A call sleeps as if messages arrived, though they may not arrive yet.
    SleepsUnconfirmed,
}

/// One configuration of the model.
#[derive(Clone, Debug)]
struct Scenario {
    rule: Rule,
    /// How many times each call wants the lock.
    sections: [u8; 2],
    /// How many connections break.
    breaks: u8,
    /// Whether a client goes on listening when its call has the lock.
    keeps: bool,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq)]
struct World {
    holder: Option<usize>,
    callers: [Caller; 2],
    breaks: u8,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq)]
struct Caller {
    sections: u8,
    phase: Phase,
    waiter: Waiter,
    /// The state of its subscription before its last request.
    before: Listening,
    link: Link,
    /// How many messages have arrived, and how many are in flight.
    messages: u8,
    mail: u8,
}

#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
enum Phase {
    Idle,
    /// The request is on its way.
    Asked,
    /// The answer is on its way.
    Answered(bool),
    Parked(Duration),
    Holding,
}

/// The subscription, and who knows of it.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
enum Link {
    Off,
    Sent,
    /// The server has the subscription.
    Open,
    /// The subscription was acknowledged.
    Known,
    /// The connection is broken, and the client does not know.
    Broken,
}

#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
enum Event {
    Start(usize),
    /// The server carries out a request.
    Arrive(usize),
    /// The answer arrives.
    Hear(usize),
    /// A message arrives.
    Mail(usize),
    Subscribe(usize),
    Acknowledge(usize),
    Release(usize),
    Break(usize),
    /// The client notices the broken connection, and connects again.
    Notice(usize),
    /// A park ends by itself.
    TimePasses(usize),
}

impl Local for Caller {}

impl Caller {
    fn new(sections: u8) -> Self {
        Self {
            sections,
            phase: Phase::Idle,
            waiter: Waiter::new(COUNTER),
            before: Listening::No,
            link: Link::Off,
            messages: 0,
            mail: 0,
        }
    }

    fn listening(&self) -> Listening {
        match self.link {
            Link::Off => Listening::No,
            Link::Sent | Link::Open => Listening::Unconfirmed,
            Link::Known | Link::Broken => Listening::Confirmed(self.messages.into()),
        }
    }

    fn ask(&mut self) {
        self.before = self.listening();
        let own = self.before;
        let mut waiter = self.waiter.clone();
        let start = waiter.start(BootInstant::from_millis(0), channels(own), self);
        assert_eq!(start, Start::Ask);
        self.waiter = waiter;
        self.phase = Phase::Asked;
    }

    fn wake(&mut self) {
        if let Phase::Parked(_) = self.phase {
            self.waiter.woken(self.listening());
            self.ask();
        }
    }

    /// Handles the answer that the lock is busy.
    fn refused(&mut self, rule: Rule) {
        let wake_source = WakeSource::Messages { poll_cap: POLL_CAP };
        let now = BootInstant::from_millis(0);
        let mut wait = Wait::new(now, Deadline::Never, POLL_CAP, wake_source);
        let refusal = Ttl::Never.into();
        let WaiterStep::Listen { at_most, .. } = self.waiter.refused(&mut wait, now, refusal, 0.0)
        else {
            panic!("a call that listens does not");
        };
        if self.link == Link::Off {
            self.link = Link::Sent;
        }
        let is_acknowledged = !self.before.is_confirmed();
        let own = match (self.listening(), rule) {
            (Listening::Confirmed(_), Rule::NoLookBehindAcknowledgement) if is_acknowledged => {
                Listening::Unconfirmed
            }
            (Listening::Confirmed(_), Rule::NoLookBehindAsk) if !is_acknowledged => self.before,
            (Listening::Unconfirmed, Rule::SleepsUnconfirmed) => Listening::No,
            (own, _) => own,
        };
        match self.waiter.listens(channels(own), at_most) {
            Some(at_most) => self.phase = Phase::Parked(at_most),
            None => self.ask(),
        }
    }
}

fn channels(own: Listening) -> CallChannels {
    let common = Listening::No;
    CallChannels { own, common }
}

impl Scenario {
    /// Returns the events that happen soon, without another cause.
    fn prompt(&self, world: &World) -> Vec<Event> {
        let mut events = Vec::new();
        for (c, caller) in world.callers.iter().enumerate() {
            match caller.phase {
                Phase::Asked => events.push(Event::Arrive(c)),
                Phase::Answered(_) => events.push(Event::Hear(c)),
                Phase::Holding => events.push(Event::Release(c)),
                Phase::Idle | Phase::Parked(_) => {}
            }
            match caller.link {
                Link::Sent => events.push(Event::Subscribe(c)),
                Link::Open => events.push(Event::Acknowledge(c)),
                Link::Broken => events.push(Event::Notice(c)),
                Link::Off | Link::Known => {}
            }
            if caller.mail > 0 {
                events.push(Event::Mail(c));
            }
        }
        events
    }
}

impl Model for Scenario {
    type State = World;
    type Action = Event;

    fn init_states(&self) -> Vec<World> {
        vec![World {
            holder: None,
            callers: self.sections.map(Caller::new),
            breaks: self.breaks,
        }]
    }

    fn actions(&self, world: &World, events: &mut Vec<Event>) {
        events.extend(self.prompt(world));
        for (c, caller) in world.callers.iter().enumerate() {
            match caller.phase {
                Phase::Idle if caller.sections > 0 => events.push(Event::Start(c)),
                Phase::Parked(_) => events.push(Event::TimePasses(c)),
                _ => {}
            }
            if world.breaks > 0 && matches!(caller.link, Link::Open | Link::Known) {
                events.push(Event::Break(c));
            }
        }
    }

    fn next_state(&self, world: &World, event: Event) -> Option<World> {
        let mut world = world.clone();
        let (Event::Start(c)
        | Event::Arrive(c)
        | Event::Hear(c)
        | Event::Mail(c)
        | Event::Subscribe(c)
        | Event::Acknowledge(c)
        | Event::Release(c)
        | Event::Break(c)
        | Event::Notice(c)
        | Event::TimePasses(c)) = event;
        let is_free = world.holder.is_none();
        let caller = &mut world.callers[c];
        match event {
            Event::Start(_) => {
                caller.waiter = Waiter::new(COUNTER);
                caller.ask();
            }
            Event::Arrive(_) => {
                caller.phase = Phase::Answered(is_free);
                world.holder = world.holder.or(Some(c));
            }
            Event::Hear(_) if caller.phase == Phase::Answered(true) => {
                caller.phase = Phase::Holding;
                if !self.keeps {
                    (caller.link, caller.mail, caller.messages) = (Link::Off, 0, 0);
                }
            }
            Event::Hear(_) => caller.refused(self.rule),
            Event::Mail(_) => {
                caller.mail -= 1;
                caller.messages += 1;
                caller.wake();
            }
            Event::Subscribe(_) => caller.link = Link::Open,
            Event::Acknowledge(_) => {
                caller.link = Link::Known;
                if self.rule != Rule::NoLookBehindAcknowledgement {
                    caller.wake();
                }
            }
            Event::Release(_) => {
                caller.sections -= 1;
                caller.phase = Phase::Idle;
                world.holder = None;
                let listen = |it: &&mut Caller| matches!(it.link, Link::Open | Link::Known);
                let listeners = world.callers.iter_mut().filter(listen);
                listeners.for_each(|caller| caller.mail += 1);
            }
            Event::Break(_) => {
                world.breaks -= 1;
                caller.mail = 0;
                caller.link = match caller.link {
                    Link::Known => Link::Broken,
                    _ => Link::Sent,
                };
            }
            Event::Notice(_) if self.rule == Rule::QuietReconnect => caller.link = Link::Known,
            Event::Notice(_) => {
                caller.messages += 1;
                caller.link = Link::Sent;
                caller.wake();
            }
            Event::TimePasses(_) => caller.wake(),
        }
        Some(world)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(WOKEN, |scenario: &Self, world: &World| {
                let waits = |caller: &Caller| matches!(caller.phase, Phase::Parked(_));
                !world.callers.iter().any(waits) || !scenario.prompt(world).is_empty()
            }),
            Property::always(ENDS, |_, world: &World| {
                world.callers.iter().all(|caller| match caller.phase {
                    Phase::Parked(at_most) => {
                        let is_confirmed = caller.listening().is_confirmed();
                        at_most <= POLL_CAP && (is_confirmed || at_most <= UNCONFIRMED_POLL)
                    }
                    _ => true,
                })
            }),
            Property::sometimes(DONE, |_, world: &World| {
                world.callers.iter().all(|caller| caller.sections == 0)
            }),
        ]
    }
}

const TWO: Scenario = Scenario {
    rule: Rule::Whole,
    sections: [2, 2],
    breaks: 0,
    keeps: false,
};

fn without(rule: Rule, breaks: u8) -> Scenario {
    let keeps = true;
    Scenario {
        rule,
        breaks,
        keeps,
        ..TWO
    }
}

#[test]
fn everybody_is_woken() {
    for keeps in [false, true] {
        assert!(broken(Scenario { keeps, ..TWO }).is_empty());
    }
}

// fault: S31 S32
#[test]
fn everybody_is_woken_though_connections_break_with_what_is_on_its_way() {
    for keeps in [false, true] {
        let breaks = if keeps && !has_time() { 1 } else { 2 };
        let scenario = Scenario {
            keeps,
            breaks,
            ..TWO
        };
        assert!(broken(scenario).is_empty());
    }
}

#[test]
fn where_nobody_asks_behind_the_acknowledgement_a_release_is_missed() {
    let broken = broken(without(Rule::NoLookBehindAcknowledgement, 0));
    assert!(broken.contains(&WOKEN));
}

#[test]
fn where_a_message_that_comes_during_a_request_is_ignored_a_release_is_missed() {
    assert_eq!(broken(without(Rule::NoLookBehindAsk, 0)), [WOKEN]);
}

#[test]
fn where_a_connection_is_made_again_in_silence_a_release_is_missed() {
    assert_eq!(broken(without(Rule::QuietReconnect, 1)), [WOKEN]);
}

#[test]
fn where_a_call_sleeps_before_messages_arrive_it_may_sleep_for_long() {
    assert_eq!(broken(without(Rule::SleepsUnconfirmed, 0)), [ENDS]);
}
