//! Turns channel messages into wake-ups for waiters.
//!
//! The hub knows the channels that this process listens to, the server of each, and how many calls wait on each. Each
//! server has a [`Subscriber`] that does the listening; each waiter has a [`Subscription`]. The life of a channel here:
//!
//! 1. The first waiter subscribes: the channel is entered, with the server of its slot as its home.
//! 2. The subscriber of that server subscribes to it, together with other new channels, and marks it as subscribed.
//! 3. Messages, and all events that may have cost one, raise its count. Waiters compare counts, so nothing is queued
//!    for them, and they miss nothing between two looks.
//! 4. The last waiter goes. With the next pulse the channel is left, unless another waiter came.
//!
//! # Invariants
//!
//! 1. A channel counts as subscribed only between an answered PING that was sent after its SUBSCRIBE and the next sign
//!    that messages may not arrive: a reconnect, or a PING without an answer.
//! 2. Whatever may have cost a message (a reconnect, a backlog that overflowed, a silent connection, a slot that moved)
//!    wakes every waiter: a wake-up is a hint, the server's answer to the next try is the truth.
//! 3. A channel is subscribed on the server of its slot. Each server has a task of its own, so that none waits for
//!    another. After a move, the old server's subscriber unsubscribes there: see [`Subscriber`].
//! 4. `state` is locked only briefly and never across an await. The mutex of a subscriber's list may be locked inside.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio_util::task::AbortOnDropHandle;
use tracing::{debug, info};

use super::backend::{Backend, Node};
use super::subscriber::Subscriber;
use super::subscription::ChannelState;
pub(crate) use super::subscription::Subscription;
use crate::clock::BootInstant;
use crate::pace::Pace;
use crate::protocol::lock::turn_ends;
use crate::protocol::waiter::Listening;

/// The shortest time between two warnings that messages may not arrive.
const DEAF_APART: Duration = Duration::from_secs(5);
/// How many channels are asked for before the server has to answer: it may take a while for more.
const MOST_AT_ONCE: usize = 1_024;

/// The channels that this process listens to, and the subscribers that do so.
#[derive(Debug)]
pub(crate) struct Hub {
    state: Mutex<HubState>,
    /// Signals that a channel was added whose server has no subscriber yet.
    changed: Notify,
    /// Knows the server of each slot, and sends the commands.
    pub(super) backend: Arc<Backend>,
    /// Limits the rate of log lines about servers whose messages may not arrive, and about renewed subscriptions.
    pub(super) deaf: Pace,
    again: Pace,
}

/// What the hub knows, under one mutex.
///
/// A channel's home and the subscribers change together, and only [`Hub::deal`] moves a channel. So a subscriber can
/// act on a channel of its own while it has the mutex.
#[derive(Debug, Default)]
pub(super) struct HubState {
    /// By name. A channel without users stays until its subscriber has unsubscribed.
    pub(super) channels: HashMap<Arc<str>, Channel>,
    /// By server, the subscriber for it.
    ///
    /// A server has one as long as it has channels, or channels to leave.
    pub(super) subscribers: HashMap<u64, Arc<Subscriber>>,
}

/// A channel that is subscribed, or is to be.
#[derive(Debug)]
pub(super) struct Channel {
    /// The number of subscriptions. At zero, the next pulse unsubscribes.
    pub(super) users: usize,
    /// The id of the server of its slot. `None` while that is unknown: [`Hub::deal`] sets it as soon as the slot map
    /// has it.
    pub(super) home: Option<u64>,
    /// Whether a SUBSCRIBE was sent on the present connection, or is about to be. Cleared whenever that subscription
    /// may be gone; the subscriber then sends another.
    pub(super) asked: bool,
    /// What the waiters see. A `watch`, since a waiter needs only the latest count.
    pub(super) state: watch::Sender<ChannelState>,
}

impl Hub {
    /// Makes a hub that listens to nothing until [`run`](Self::run) is polled.
    pub(crate) fn new(backend: Arc<Backend>) -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::default(),
            changed: Notify::new(),
            backend,
            deaf: Pace::new(DEAF_APART),
            again: Pace::default(),
        })
    }

    /// Registers a waiter's interest in a channel. A new channel is then subscribed to.
    ///
    /// Does not wait. [`Subscription::listening`] tells the waiter whether messages arrive, and it is woken when they
    /// begin to. Earlier messages on the channel count as known.
    pub(crate) fn subscribe(self: &Arc<Self>, name: &Arc<str>) -> Subscription {
        let mut state = self.lock();
        let HubState {
            channels,
            subscribers,
        } = &mut *state;
        let channel = channels.entry(name.clone()).or_insert_with(|| {
            let home = self.backend.home(name).map(|node| node.id());
            // `run` gives a server its subscriber; an existing subscriber is told directly.
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

    /// Returns how many of a channel's subscribers are this process: one or none, however many calls wait here.
    ///
    /// Counts from when the SUBSCRIBE is about to be sent. A release learns how many subscribers heard it, and compares
    /// that with this number: a process that counted itself among the others would leave the lock to nobody.
    pub(crate) fn listeners(&self, name: &str) -> u64 {
        let state = self.lock();
        let channel = state.channels.get(name);
        u64::from(channel.is_some_and(|channel| channel.asked))
    }

    /// Returns how many messages have come in on a channel since it was subscribed. Zero for a channel without a
    /// subscription here.
    ///
    /// Read before a release is sent, to tell the messages that the release causes from earlier ones.
    pub(crate) fn heard_on(&self, name: &str) -> u64 {
        let state = self.lock();
        let channel = state.channels.get(name);
        channel.map_or(0, |channel| channel.state.borrow().news)
    }

    /// Returns whether others of this process listen to a channel, and whether their subscription is confirmed.
    ///
    /// For a call without a subscription, before its first request. If others would hear a message after that request,
    /// the call can rely on it.
    pub(crate) fn listening(&self, name: &str) -> Listening {
        let state = self.lock();
        let channel = state.channels.get(name);
        channel.map_or(Listening::No, |channel| channel.state.borrow().listening())
    }

    /// Returns the number of channels.
    pub(crate) fn len(&self) -> usize {
        self.lock().channels.len()
    }

    /// Listens to every server that has a channel, until the future is dropped.
    ///
    /// Starts a subscriber's task when a server gets its first channel, and ends it with the server's last. Dropping
    /// this future ends all of them, and no messages arrive any more.
    pub(crate) async fn run(self: Arc<Self>) {
        let mut moves = self.backend.moves();
        let mut listening: HashMap<u64, AbortOnDropHandle<()>> = HashMap::new();
        loop {
            for (node, subscriber) in self.deal() {
                let id = node.id();
                let listen = tokio::spawn(self.clone().listen(node, subscriber));
                listening.insert(id, AbortOnDropHandle::new(listen));
            }
            // Also drops the handles of tasks that have ended by themselves.
            listening.retain(|id, _| self.lock().subscribers.contains_key(id));
            tokio::select! {
                () = self.changed.notified() => {}
                () = moves.next() => {}
            }
        }
    }

    /// Assigns every channel to the server of its slot, and wakes the waiters of each channel that has moved, since a
    /// message may have been lost in between. Returns the servers to listen to from now on, with their subscribers.
    fn deal(&self) -> Vec<(Arc<Node>, Arc<Subscriber>)> {
        let known: HashSet<u64> = self.backend.nodes().iter().map(|node| node.id()).collect();
        let mut new = Vec::new();
        let mut state = self.lock();
        let HubState {
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
                    // A server that announced the move has dropped the channel itself. Then the UNSUBSCRIBE is not
                    // sent: see `Backend::unsubscribe`.
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
            // Notified in any case: the channel may be new, or may have come back.
            subscriber.changed.notify_one();
        }
        new
    }

    /// Returns channels of a server that need a SUBSCRIBE, and marks them as asked. The caller sends the commands.
    /// If that fails, [`deafen`](Self::deafen) has to clear the marks.
    pub(super) fn take_unasked(&self, node: &Node) -> Vec<Arc<str>> {
        let mut state = self.lock();
        let unasked = state.on(node).filter(|(_, channel)| !channel.asked);
        unasked
            .take(MOST_AT_ONCE)
            .map(|(name, channel)| {
                channel.asked = true;
                name.clone()
            })
            .collect()
    }

    /// Marks channels as subscribed, and wakes their waiters. A waiter may have missed a release since its last
    /// question, so each of them asks once more.
    pub(super) fn subscribed(&self, node: &Node, names: &[Arc<str>]) {
        let state = self.lock();
        let channels = names.iter().filter_map(|name| state.channels.get(name));
        // A channel that was reassigned in the meantime belongs to another server.
        for channel in channels.filter(|channel| channel.home == Some(node.id()) && channel.asked) {
            channel
                .state
                .send_modify(|state| state.is_subscribed = true);
        }
        if !names.is_empty() {
            debug!(target: "redlatch", channels = names.len(), "subscribed");
        }
    }

    /// Marks all channels of a server as not subscribed, since its connection may be a new one, and wakes their
    /// waiters. The subscriber subscribes again.
    pub(super) fn deafen(&self, node: &Node) {
        let mut state = self.lock();
        let (mut channels, mut is_news) = (0, false);
        for (_, channel) in state.on(node) {
            is_news |= channel.deafen();
            channels += 1;
        }
        if channels > 0 {
            match self.again.tell().filter(|_| is_news) {
                // Logged at `info` only if messages arrived before, so that a server that stays away is logged once.
                Some(untold) => info!(target: "redlatch", channels, untold, "resubscribing"),
                None => debug!(target: "redlatch", channels, "resubscribing"),
            }
        }
    }

    /// Subscribes again to a channel that the server took away. The answer shows where the channel is now.
    ///
    /// Ignores a channel that now belongs to another server, since the old server's message comes late.
    pub(super) fn gone(&self, node: &Node, channel: &str) {
        let mut state = self.lock();
        let channel = state.channels.get_mut(channel);
        if let Some(channel) = channel.filter(|channel| channel.home == Some(node.id())) {
            channel.deafen();
        }
    }

    /// Counts a message, which wakes the channel's waiters.
    ///
    /// A message may instead announce when a turn or a hold will end. It becomes news at that instant.
    pub(super) fn wake(&self, channel: &str, message: &str) {
        if let Some(channel) = self.lock().channels.get(channel) {
            channel.state.send_modify(|state| match turn_ends(message) {
                Some(after) => state.soon = Some(BootInstant::now().plus(after)),
                None => state.news += 1,
            });
        }
    }

    /// Wakes the waiters of all channels of a server, because messages were dropped on unknown channels.
    pub(super) fn wake_all(&self, node: &Node) {
        for (_, channel) in self.lock().on(node) {
            channel.state.send_modify(|state| state.news += 1);
        }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, HubState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl HubState {
    /// Takes out the channels of a server that have no users, and adds them to `left`.
    ///
    /// Takes them out under the mutex. A waiter that comes later finds no channel, and enters it again. Its SUBSCRIBE
    /// follows the UNSUBSCRIBE on the same connection.
    pub(super) fn take_unused(&mut self, node: &Node, left: &mut Vec<Arc<str>>) {
        let is_here = |channel: &Channel| channel.home == Some(node.id());
        // A channel whose slot left and came back has been subscribed again.
        left.retain(|name| !self.channels.get(name).is_some_and(is_here));
        self.channels.retain(|name, channel| {
            let is_unused = channel.users == 0 && is_here(channel);
            if is_unused {
                left.push(name.clone());
            }
            !is_unused
        });
    }

    /// Clears the marks of channels that the server refused, so that they are asked for again. A refusal may be
    /// temporary, as a user may be given the right.
    pub(super) fn ask_again(&mut self, node: &Node) {
        for (_, channel) in self.on(node) {
            channel.asked &= channel.state.borrow().is_subscribed;
        }
    }

    /// Removes the subscriber of a server without channels. Returns `false` if the server has one.
    ///
    /// The mutex is held, so a channel that is entered at the same time is either seen here, or finds no subscriber and
    /// has `run` make one.
    pub(super) fn retire(&mut self, node: &Node, subscriber: &Subscriber) -> bool {
        let idle = self.on(node).next().is_none() && subscriber.lock().is_empty();
        if idle {
            self.subscribers.remove(&node.id());
        }
        idle
    }

    /// Returns the channels of a server.
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
    ///
    /// Raises the count in any case, since waiters must not rely on what arrived before.
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
