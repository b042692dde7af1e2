//! Turns channel messages into wake-ups for waiters.
//!
//! The hub knows which channels this process listens to, on which server each of them is, and how many calls wait for
//! each. A [`Subscriber`] for each server carries that out; a [`Subscription`] is what a waiter has. The life of a
//! channel here:
//!
//! 1. The first waiter subscribes: the channel is entered, with the server of its slot as its home.
//! 2. The subscriber of that server asks for it, together with whatever else came meanwhile, and marks it as
//!    subscribed.
//! 3. Messages, and everything that may have cost one, raise its count. Waiters compare counts, so nothing is queued
//!    for them and none can be missed between two looks.
//! 4. The last waiter goes. With the next pulse the channel is left, unless another waiter came.
//!
//! # Invariants
//!
//! 1. A channel counts as subscribed only between an answered PING that was sent after its SUBSCRIBE and the next sign
//!    that messages may not arrive: a reconnect, or a PING without an answer.
//! 2. Whatever may have cost a message (a reconnect, a backlog that overflowed, a silent connection, a slot that moved)
//!    wakes every waiter: a wake-up is a hint, the server's answer to the next try is the truth.
//! 3. A channel is listened to on the server of its slot. Each server has a task of its own, so that none waits for
//!    another. A channel that is to be left at an old server is left there: see [`Subscriber`].
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

/// The channels that this process listens to, and the subscribers that do so.
#[derive(Debug)]
pub(crate) struct Hub {
    state: Mutex<State>,
    /// A channel was added whose server has no subscriber yet.
    changed: Notify,
    /// Knows the server of each slot, and sends the commands.
    pub(super) backend: Arc<Backend>,
    /// Limits for the log lines about servers whose messages may not arrive, and about servers that are listened to
    /// again.
    pub(super) deaf: Pace,
    again: Pace,
}

/// What the hub knows, under one mutex.
///
/// A channel's home and the subscribers change together: [`Hub::deal`] is the only one that moves a channel, so a
/// subscriber that finds a channel to be its own can act on it while it has the mutex.
#[derive(Debug, Default)]
pub(super) struct State {
    /// By name. A channel without users stays until its subscriber has left it.
    pub(super) channels: HashMap<Arc<str>, Channel>,
    /// By server, the subscriber that listens to it.
    ///
    /// A server has one as long as it has channels, or channels to leave.
    pub(super) subscribers: HashMap<u64, Arc<Subscriber>>,
}

/// A channel that is listened to, or is to be.
#[derive(Debug)]
pub(super) struct Channel {
    /// How many subscriptions there are. At zero the channel is left with the next pulse.
    pub(super) users: usize,
    /// The id of the server that it is to be listened to on. `None` while no server is known to have its slot:
    /// [`Hub::deal`] gives it one as soon as the map of slots has one.
    pub(super) home: Option<u64>,
    /// Whether a SUBSCRIBE was sent on the present connection, or is about to be. Cleared whenever that subscription
    /// may be gone; the subscriber then asks again.
    pub(super) asked: bool,
    /// What the waiters see. A `watch`, since a waiter needs the latest count and not every step on the way to it.
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

    /// Registers a waiter's interest in a channel, and has the channel subscribed to if it is new.
    ///
    /// Does not wait: the waiter sees by [`Subscription::listening`] whether messages arrive, and is woken when they
    /// begin to. What has happened on the channel so far counts as known.
    pub(crate) fn subscribe(self: &Arc<Self>, name: &Arc<str>) -> Subscription {
        let mut state = self.lock();
        let State {
            channels,
            subscribers,
        } = &mut *state;
        let channel = channels.entry(name.clone()).or_insert_with(|| {
            let home = self.backend.home(name).map(|node| node.id());
            // A server without a subscriber is for `run` to give one; a subscriber that exists is told itself.
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

    /// Returns how many of a channel's subscribers are this process: one or none, however many calls wait for it here.
    ///
    /// Counted from when the SUBSCRIBE is about to be sent. A release is told how many heard it, and compares: a
    /// process that counted itself among the others would leave the lock to nobody.
    pub(crate) fn listeners(&self, name: &str) -> u64 {
        let state = self.lock();
        let channel = state.channels.get(name);
        u64::from(channel.is_some_and(|channel| channel.asked))
    }

    /// Returns how many messages have come in on a channel since it was subscribed to. Zero for a channel that nobody
    /// here listens to.
    ///
    /// Taken before a release is sent, so that the messages which that release causes can be told from earlier ones.
    pub(crate) fn heard_on(&self, name: &str) -> u64 {
        let state = self.lock();
        let channel = state.channels.get(name);
        channel.map_or(0, |channel| channel.state.borrow().news)
    }

    /// Returns whether others of this process listen to a channel, and whether their subscription is confirmed.
    ///
    /// For a call without a subscription of its own, before its first request: if a message after that request would be
    /// heard anyway, the call can rely on it.
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
    ///
    /// Starts a subscriber's task when a server gets its first channel, and ends the task with the server's last. If
    /// this future is dropped, all of them end, and nothing is heard any more.
    pub(crate) async fn run(self: Arc<Self>) {
        let mut moves = self.backend.moves();
        let mut listening: HashMap<u64, AbortOnDropHandle<()>> = HashMap::new();
        loop {
            for (node, subscriber) in self.deal() {
                let id = node.id();
                let listen = tokio::spawn(self.clone().listen(node, subscriber));
                listening.insert(id, AbortOnDropHandle::new(listen));
            }
            // Also drops the handle of a task that has ended by itself.
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
                    // The server may have told of the move by taking the channel away. Then the UNSUBSCRIBE is not
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
            // Told in any case: the channel may be new, or may have come back.
            subscriber.changed.notify_one();
        }
        new
    }

    /// Returns the channels of a server that have yet to be asked for, and marks them as asked: the caller sends a
    /// SUBSCRIBE for each. If that fails, [`deafen`](Self::deafen) has to clear the marks.
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

    /// Marks channels as subscribed, and wakes their waiters: a release between a waiter's last question and now was
    /// not heard, so each of them asks once more.
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
            debug!(target: "redlatch", channels = names.len(), "subscribed");
        }
    }

    /// Marks all channels of a server as not subscribed, since its connection may be another one by now, and wakes
    /// their waiters. The subscriber asks for the channels again.
    pub(super) fn deafen(&self, node: &Node) {
        let mut state = self.lock();
        let (mut channels, mut is_news) = (0, false);
        for (_, channel) in state.on(node) {
            is_news |= channel.deafen();
            channels += 1;
        }
        if channels > 0 {
            match self.again.tell().filter(|_| is_news) {
                // Logged at `info` only if messages did arrive before: a server that is away is told of once.
                Some(untold) => info!(target: "redlatch", channels, untold, "resubscribing"),
                None => debug!(target: "redlatch", channels, "resubscribing"),
            }
        }
    }

    /// Has a channel that the server took away asked for again, which shows where the channel is by now.
    ///
    /// A channel that belongs to another server by now is not touched: what its old server says is late.
    pub(super) fn gone(&self, node: &Node, channel: &str) {
        let mut state = self.lock();
        let channel = state.channels.get_mut(channel);
        if let Some(channel) = channel.filter(|channel| channel.home == Some(node.id())) {
            channel.deafen();
        }
    }

    /// Counts a message, and so wakes the channel's waiters.
    ///
    /// A message may announce when a turn or a hold ends instead. That is kept, and becomes news at that instant.
    pub(super) fn wake(&self, channel: &str, message: &str) {
        if let Some(channel) = self.lock().channels.get(channel) {
            channel.state.send_modify(|state| match turn_ends(message) {
                Some(after) => state.soon = Some(BootInstant::now().plus(after)),
                None => state.news += 1,
            });
        }
    }

    /// Wakes the waiters of all channels of a server: messages were dropped, and nobody knows on which of them.
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
    ///
    /// Taken out under one mutex: a waiter that comes after this finds no channel, and enters it anew. Its SUBSCRIBE
    /// follows the UNSUBSCRIBE on the same connection.
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

    /// Has channels that were asked for and refused asked for again. Those that are subscribed stay marked. A refusal
    /// may have been for now: a user may be given the right meanwhile.
    pub(super) fn ask_again(&mut self, node: &Node) {
        for (_, channel) in self.on(node) {
            channel.asked &= channel.state.borrow().is_subscribed;
        }
    }

    /// Ends the listening to a server that has no channel. Returns `false` if it has one.
    ///
    /// With the mutex held, so a channel that is entered at the same time either is seen here or finds no subscriber
    /// and has `run` make one.
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
    ///
    /// The count is raised in any case: whoever waits must not rely on what was heard before.
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
