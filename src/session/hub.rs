//! Turns channel messages into wake-ups for waiters.
//!
//! # Invariants
//!
//! 1. A channel counts as subscribed only between an answered PING that was sent after its SUBSCRIBE and the next sign
//!    that messages may not arrive: a reconnect, or a PING without an answer.
//! 2. Whatever may have cost a message (a reconnect, a backlog that overflowed, a silent connection, a slot that moved)
//!    wakes every waiter: a wake-up is a hint, the server's answer to the next try is the truth.
//! 3. A channel is listened to on the server of its slot. Each server has a task of its own, so that none waits for
//!    another. A channel that is to be left at an old server is left there: see [`Subscriber`].

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio_util::task::AbortOnDropHandle;
use tracing::{debug, info};

use super::backend::{Backend, Node};
use super::pace::Pace;
use super::subscriber::Subscriber;
use super::subscription::ChannelState;
pub(crate) use super::subscription::Subscription;
use crate::clock::BootInstant;
use crate::protocol::lock::turn_ends;
use crate::protocol::waiter::Listening;

/// The shortest time between two warnings that messages may not arrive.
const DEAF_APART: Duration = Duration::from_secs(5);

/// The channels that this process listens to.
#[derive(Debug)]
pub(crate) struct Hub {
    state: Mutex<State>,
    /// A channel was added whose server has no subscriber yet.
    changed: Notify,
    pub(super) backend: Arc<Backend>,
    /// Limits for the log lines about servers whose messages may not arrive, and about servers that are listened to
    /// again.
    pub(super) deaf: Pace,
    again: Pace,
}

#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) channels: HashMap<Arc<str>, Channel>,
    /// By server, the subscriber that listens to it.
    pub(super) subscribers: HashMap<u64, Arc<Subscriber>>,
}

#[derive(Debug)]
pub(super) struct Channel {
    pub(super) users: usize,
    /// The server that it is to be listened to on.
    pub(super) home: Option<u64>,
    /// A SUBSCRIBE was sent on the present connection, or is about to be.
    pub(super) asked: bool,
    pub(super) state: watch::Sender<ChannelState>,
}

impl Hub {
    pub(crate) fn new(backend: Arc<Backend>) -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::default(),
            changed: Notify::new(),
            backend,
            deaf: Pace::new(DEAF_APART),
            again: Pace::default(),
        })
    }

    pub(crate) fn subscribe(self: &Arc<Self>, name: &Arc<str>) -> Subscription {
        let mut state = self.lock();
        let State {
            channels,
            subscribers,
        } = &mut *state;
        let channel = channels.entry(name.clone()).or_insert_with(|| {
            let home = self.backend.home(name).map(|node| node.id());
            let subscriber = home.and_then(|home| subscribers.get(&home));
            subscriber
                .map_or(&self.changed, |subscriber| &subscriber.changed)
                .notify_one();
            Channel {
                users: 0,
                home,
                asked: false,
                state: watch::Sender::new(ChannelState::default()),
            }
        });
        channel.users += 1;
        let state = channel.state.subscribe();
        let known = *state.borrow();
        Subscription {
            hub: self.clone(),
            channel: name.clone(),
            state,
            known,
        }
    }

    /// Returns how many of a channel's subscribers are this process.
    pub(crate) fn listeners(&self, name: &str) -> u64 {
        let state = self.lock();
        let channel = state.channels.get(name);
        u64::from(channel.is_some_and(|channel| channel.asked))
    }

    /// Returns how many messages have come in on a channel since it was subscribed to.
    pub(crate) fn heard_on(&self, name: &str) -> u64 {
        let state = self.lock();
        let channel = state.channels.get(name);
        channel.map_or(0, |channel| channel.state.borrow().news)
    }

    /// Returns whether others of this process listen to a channel, and whether their subscription is confirmed.
    pub(crate) fn listening(&self, name: &str) -> Listening {
        let state = self.lock();
        let channel = state.channels.get(name);
        channel.map_or(Listening::No, |channel| channel.state.borrow().listening())
    }

    /// Returns how many channels are subscribed to.
    pub(crate) fn len(&self) -> usize {
        self.lock().channels.len()
    }

    /// Listens to every server that has a channel, until the future is dropped.
    pub(crate) async fn run(self: Arc<Self>) {
        let mut moves = self.backend.moves();
        let mut listening: HashMap<u64, AbortOnDropHandle<()>> = HashMap::new();
        loop {
            for (node, subscriber) in self.deal() {
                let id = node.id();
                let listen = tokio::spawn(self.clone().listen(node, subscriber));
                listening.insert(id, AbortOnDropHandle::new(listen));
            }
            listening.retain(|id, _| self.lock().subscribers.contains_key(id));
            tokio::select! {
                () = self.changed.notified() => {}
                () = moves.next() => {}
            }
        }
    }

    /// Gives every channel to the server that its slot is on, and wakes the waiters of each channel that has moved:
    /// there may have been a message in between. Returns the servers that are to be listened to from now on, with their
    /// subscribers.
    fn deal(&self) -> Vec<(Arc<Node>, Arc<Subscriber>)> {
        let known: HashSet<u64> = self.backend.nodes().iter().map(|node| node.id()).collect();
        let mut new = Vec::new();
        let mut state = self.lock();
        let State {
            channels,
            subscribers,
        } = &mut *state;
        // `run` ends the task of a server that has no subscriber.
        subscribers.retain(|id, _| known.contains(id));
        for (name, channel) in channels {
            let home = self.backend.home(name);
            let id = home.as_ref().map(|node| node.id());
            if channel.home != id {
                if let Some(subscriber) = channel.home.and_then(|old| subscribers.get(&old)) {
                    subscriber.lock().push(name.clone());
                    subscriber.changed.notify_one();
                }
                channel.home = id;
                channel.deafen();
            }
            let Some(node) = home else {
                continue;
            };
            let subscriber = subscribers.entry(node.id()).or_insert_with(|| {
                let subscriber = Arc::<Subscriber>::default();
                new.push((node, subscriber.clone()));
                subscriber
            });
            subscriber.changed.notify_one();
        }
        new
    }

    pub(super) fn take_unasked(&self, node: &Node) -> Vec<Arc<str>> {
        let mut state = self.lock();
        let unasked = state.on(node).filter(|(_, channel)| !channel.asked);
        unasked
            .map(|(name, channel)| {
                channel.asked = true;
                name.clone()
            })
            .collect()
    }

    pub(super) fn subscribed(&self, node: &Node, names: &[Arc<str>]) {
        let state = self.lock();
        let channels = names.iter().filter_map(|name| state.channels.get(name));
        // A channel that was dealt out again meanwhile belongs to another server.
        for channel in channels.filter(|channel| channel.home == Some(node.id()) && channel.asked) {
            channel
                .state
                .send_modify(|state| state.is_subscribed = true);
        }
        if !names.is_empty() {
            debug!(channels = names.len(), "subscribed");
        }
    }

    pub(super) fn deafen(&self, node: &Node) {
        let mut state = self.lock();
        let (mut channels, mut is_news) = (0, false);
        for (_, channel) in state.on(node) {
            is_news |= channel.deafen();
            channels += 1;
        }
        if channels > 0 {
            match self.again.tell().filter(|_| is_news) {
                Some(untold) => info!(channels, untold, "resubscribing"),
                None => debug!(channels, "resubscribing"),
            }
        }
    }

    /// Has a channel that the server took away asked for again, which shows where the channel is by now.
    pub(super) fn gone(&self, node: &Node, channel: &str) {
        let mut state = self.lock();
        let channel = state.channels.get_mut(channel);
        if let Some(channel) = channel.filter(|channel| channel.home == Some(node.id())) {
            channel.deafen();
        }
    }

    pub(super) fn wake(&self, channel: &str, message: &str) {
        if let Some(channel) = self.lock().channels.get(channel) {
            channel.state.send_modify(|state| match turn_ends(message) {
                Some(after) => state.soon = Some(BootInstant::now().plus(after)),
                None => state.news += 1,
            });
        }
    }

    pub(super) fn wake_all(&self, node: &Node) {
        for (_, channel) in self.lock().on(node) {
            channel.state.send_modify(|state| state.news += 1);
        }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Takes out the channels of a server that nobody waits for, in addition to those that were `left` there.
    pub(super) fn take_unused(&mut self, node: &Node, left: &mut Vec<Arc<str>>) {
        let is_here = |channel: &Channel| channel.home == Some(node.id());
        // A channel whose slot went and came back was subscribed to again.
        left.retain(|name| !self.channels.get(name).is_some_and(is_here));
        self.channels.retain(|name, channel| {
            let is_unused = channel.users == 0 && is_here(channel);
            if is_unused {
                left.push(name.clone());
            }
            !is_unused
        });
    }

    /// Has channels that were refused asked for again.
    pub(super) fn ask_again(&mut self, node: &Node) {
        for (_, channel) in self.on(node) {
            channel.asked &= channel.state.borrow().is_subscribed;
        }
    }

    /// Ends the listening to a server that has no channel. Returns `false` if it has one.
    pub(super) fn retire(&mut self, node: &Node, subscriber: &Subscriber) -> bool {
        let idle = self.on(node).next().is_none() && subscriber.lock().is_empty();
        if idle {
            self.subscribers.remove(&node.id());
        }
        idle
    }

    /// Returns the channels that are to be listened to on a server.
    fn on<'a>(
        &'a mut self,
        node: &Node,
    ) -> impl Iterator<Item = (&'a Arc<str>, &'a mut Channel)> + use<'a> {
        let id = node.id();
        let channels = self.channels.iter_mut();
        channels.filter(move |(_, channel)| channel.home == Some(id))
    }
}

impl Channel {
    /// Marks the channel as not subscribed, and wakes its waiters. Returns whether it was subscribed until then.
    fn deafen(&mut self) -> bool {
        self.asked = false;
        let mut was_heard = false;
        self.state.send_modify(|state| {
            was_heard = std::mem::take(&mut state.is_subscribed);
            state.news += 1;
        });
        was_heard
    }
}
