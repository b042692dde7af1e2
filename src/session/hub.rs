//! Turns channel messages into wake-ups for waiters.
//!
//! # Invariants
//!
//! 1. A channel counts as subscribed only between an answered PING that was sent after its SUBSCRIBE and the next sign
//!    that messages may not arrive: a reconnect, or a PING without an answer.
//! 2. Whatever may have cost a message (a reconnect, a backlog that overflowed, a silent connection, a slot that moved)
//!    wakes every waiter: a wake-up is a hint, the server's answer to the next try is the truth.
//! 3. A channel is listened to on the server of its slot. Each server has a task of its own, so that none waits for
//!    another. A channel that is to be left at an old server is left there: see [`Subscriber::left`].

use std::collections::{HashMap, HashSet};
use std::future::pending;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::time::{Interval, MissedTickBehavior, interval, sleep};
use tokio_util::task::AbortOnDropHandle;
use tracing::{debug, info, warn};

use super::backend::{Backend, Node, PushEvent, Subscribed};
use super::pace::Pace;
use crate::clock::BootInstant;
use crate::error::Error;
use crate::protocol::lock::turn_ends;
use crate::protocol::waiter::Listening;

/// The shortest time between two warnings that messages may not arrive.
const DEAF_APART: Duration = Duration::from_secs(5);

/// How often the connection is proved to be alive while a call waits. Also how long a channel is kept after its last
/// waiter, for the next waiter.
const PULSE: Duration = Duration::from_secs(1);

/// The channels that this process listens to.
#[derive(Debug)]
pub(crate) struct Hub {
    state: Mutex<State>,
    /// A channel was added whose server has no subscriber yet.
    changed: Notify,
    backend: Arc<Backend>,
    /// Limits for the log lines about servers whose messages may not arrive, and about servers that are listened to
    /// again.
    deaf: Pace,
    again: Pace,
}

#[derive(Debug, Default)]
struct State {
    channels: HashMap<Arc<str>, Channel>,
    /// By server, the subscriber that listens to it.
    subscribers: HashMap<u64, Arc<Subscriber>>,
}

/// What listens to one server.
#[derive(Debug, Default)]
struct Subscriber {
    /// The server has a channel more, or less.
    changed: Notify,
    /// Channels that belong to another server by now.
    left: Mutex<Vec<Arc<str>>>,
}

#[derive(Debug)]
struct Channel {
    users: usize,
    /// The server that it is to be listened to on.
    home: Option<u64>,
    /// A SUBSCRIBE was sent on the present connection, or is about to be.
    asked: bool,
    state: watch::Sender<ChannelState>,
}

/// What a waiter sees of a channel.
#[derive(Clone, Copy, Debug, Default)]
struct ChannelState {
    is_subscribed: bool,
    news: u64,
    /// When there will be news without a message, as a message announced.
    soon: Option<BootInstant>,
}

impl ChannelState {
    fn listening(self) -> Listening {
        match self.is_subscribed {
            true => Listening::Confirmed(self.news),
            false => Listening::Unconfirmed,
        }
    }
}

/// A waiter's interest in a channel.
#[derive(Debug)]
pub(crate) struct Subscription {
    hub: Arc<Hub>,
    channel: Arc<str>,
    state: watch::Receiver<ChannelState>,
    known: ChannelState,
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

    /// Serves the channels of one server, as long as there are any.
    async fn listen(self: Arc<Self>, node: Arc<Node>, subscriber: Arc<Subscriber>) {
        let mut messages = node.messages();
        let mut pulse = pulse();
        // One round trip at a time; what is asked for meanwhile shares the next.
        let mut asking = None;
        // A message came in since the last pulse, which proves as much as an answer.
        let mut is_alive = false;
        loop {
            if asking.is_none() {
                let channels = self.take_unasked(&node);
                if !channels.is_empty() {
                    asking = Some(Box::pin(self.ask(&node, channels)));
                }
            }
            tokio::select! {
                // A reconnect goes before the answer to a PING: that answer may be of a connection that is no longer
                // the present one.
                biased;
                news = messages.next() => match news {
                    Some(PushEvent::Message { channel, text }) => {
                        is_alive = true;
                        self.wake(&channel, &text);
                    }
                    Some(PushEvent::Gone(channel)) => self.gone(&node, &channel),
                    Some(PushEvent::Missed) => self.wake_all(&node),
                    Some(PushEvent::Reconnected) => {
                        asking = None;
                        self.deafen(&node);
                    }
                    None => return,
                },
                (channels, answered) = async {
                    match &mut asking {
                        Some(asking) => asking.await,
                        None => pending().await,
                    }
                } => {
                    asking = None;
                    match answered {
                        Ok(()) => self.subscribed(&node, &channels),
                        Err(error) => self.refused(&node, &error),
                    }
                }
                () = subscriber.changed.notified() => {}
                // Only between round trips: a channel could otherwise be left first and subscribed to afterwards.
                _ = pulse.tick(), if asking.is_none() => {
                    self.leave(&node, &subscriber).await;
                    if self.lock().retire(&node, &subscriber) {
                        return;
                    }
                    self.lock().ask_again(&node);
                    let channels = self.take_unasked(&node);
                    if !std::mem::take(&mut is_alive) || !channels.is_empty() {
                        asking = Some(Box::pin(self.ask(&node, channels)));
                    }
                }
            }
        }
    }

    /// Subscribes, and waits until that is done. With no channels, proves that the connection is alive.
    async fn ask(
        &self,
        node: &Arc<Node>,
        channels: Vec<Arc<str>>,
    ) -> (Vec<Arc<str>>, Result<(), Error>) {
        let mut asked = Vec::with_capacity(channels.len());
        for channel in channels {
            match self.backend.subscribe(node, &channel).await {
                Ok(answer) => asked.push((channel, answer)),
                Err(error) => return (Vec::new(), Err(error)),
            }
        }
        let proved = self.backend.prove(node).await;
        if proved.is_err() {
            return (Vec::new(), proved);
        }
        let here = |(channel, answer): (Arc<str>, _)| match self.backend.subscribed(node, answer) {
            Subscribed::Here => Some(channel),
            Subscribed::Elsewhere => {
                self.ask_anew(node, &channel);
                None
            }
            // It is asked for again with the next pulse.
            Subscribed::Refused => None,
        };
        (asked.into_iter().filter_map(here).collect(), proved)
    }

    /// Has a channel asked for again if its slot has come back to this server meanwhile. Otherwise the channel is
    /// another server's, and `deal` gives it to that one.
    fn ask_anew(&self, node: &Node, name: &str) {
        let is_here = self.backend.home(name).is_some_and(|home| *home == *node);
        if let Some(channel) = self.lock().channels.get_mut(name) {
            channel.asked &= !(is_here && channel.home == Some(node.id()));
        }
    }

    fn take_unasked(&self, node: &Node) -> Vec<Arc<str>> {
        let mut state = self.lock();
        let unasked = state.on(node).filter(|(_, channel)| !channel.asked);
        unasked
            .map(|(name, channel)| {
                channel.asked = true;
                name.clone()
            })
            .collect()
    }

    fn subscribed(&self, node: &Node, names: &[Arc<str>]) {
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

    /// Messages may be lost: nobody relies on them until the channels are subscribed to again.
    fn refused(&self, node: &Node, error: &Error) {
        if let Some(untold) = self.deaf.tell() {
            warn!(%error, server = ?node, untold, "messages may not arrive; waiters ask every second");
        }
        self.deafen(node);
        self.backend.relisten(node);
    }

    fn deafen(&self, node: &Node) {
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
    fn gone(&self, node: &Node, channel: &str) {
        let mut state = self.lock();
        let channel = state.channels.get_mut(channel);
        if let Some(channel) = channel.filter(|channel| channel.home == Some(node.id())) {
            channel.deafen();
        }
    }

    fn wake(&self, channel: &str, message: &str) {
        if let Some(channel) = self.lock().channels.get(channel) {
            channel.state.send_modify(|state| match turn_ends(message) {
                Some(after) => state.soon = Some(BootInstant::now().plus(after)),
                None => state.news += 1,
            });
        }
    }

    fn wake_all(&self, node: &Node) {
        for (_, channel) in self.lock().on(node) {
            channel.state.send_modify(|state| state.news += 1);
        }
    }

    /// Unsubscribes from channels that nobody waits for, or that are not here any more.
    async fn leave(&self, node: &Node, subscriber: &Subscriber) {
        let mut left = std::mem::take(&mut *subscriber.lock());
        self.lock().take_unused(node, &mut left);
        for channel in left {
            if let Err(error) = self.backend.unsubscribe(node, &channel).await {
                // A new connection has none of the channels that were left.
                return self.refused(node, &error);
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Takes out the channels of a server that nobody waits for, in addition to those that were `left` there.
    fn take_unused(&mut self, node: &Node, left: &mut Vec<Arc<str>>) {
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
    fn ask_again(&mut self, node: &Node) {
        for (_, channel) in self.on(node) {
            channel.asked &= channel.state.borrow().is_subscribed;
        }
    }

    /// Ends the listening to a server that has no channel. Returns `false` if it has one.
    fn retire(&mut self, node: &Node, subscriber: &Subscriber) -> bool {
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

impl Subscriber {
    fn lock(&self) -> MutexGuard<'_, Vec<Arc<str>>> {
        self.left.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Subscription {
    /// Whether messages arrive. When they begin to arrive, that is news too.
    pub(crate) fn is_heard(&self) -> bool {
        self.state.borrow().is_subscribed
    }

    /// Returns how many messages have come in since the channel was subscribed to.
    pub(crate) fn count(&self) -> u64 {
        self.state.borrow().news
    }

    /// Takes all news up to now as known. Returns the state of the subscription.
    pub(crate) fn catch_up(&mut self) -> Listening {
        self.known = *self.state.borrow_and_update();
        self.known.listening()
    }

    pub(crate) fn listening(&self) -> Listening {
        self.state.borrow().listening()
    }

    /// Waits for news that is not known yet.
    pub(crate) async fn news(&mut self) {
        loop {
            let now = *self.state.borrow_and_update();
            if (now.is_subscribed, now.news) != (self.known.is_subscribed, self.known.news) {
                self.known = now;
                return;
            }
            let soon = now.soon.filter(|_| now.soon != self.known.soon);
            let announced = async {
                match soon {
                    Some(soon) => sleep(BootInstant::now().until(soon)).await,
                    None => pending().await,
                }
            };
            tokio::select! {
                changed = self.state.changed() => if changed.is_err() {
                    pending::<()>().await;
                },
                () = announced => {
                    self.known.soon = soon;
                    return;
                }
            }
        }
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        if let Some(channel) = self.hub.lock().channels.get_mut(&self.channel) {
            // The channel stays until the next pulse, in case another waiter comes.
            channel.users -= 1;
        }
    }
}

/// The first tick comes after one pulse. Missed ticks are not made up for.
fn pulse() -> Interval {
    let mut pulse = interval(PULSE);
    pulse.reset();
    pulse.set_missed_tick_behavior(MissedTickBehavior::Delay);
    pulse
}
