//! Turns channel messages into wake-ups for waiters.
//!
//! # Invariants
//!
//! 1. A channel is `heard` only between an answered PING that was sent after its SUBSCRIBE and the next sign that
//!    messages may not arrive: a reconnect, or a PING without an answer.
//! 2. Whatever may have cost a message (a reconnect, a backlog that overflowed, a silent connection) wakes every
//!    waiter: a wake-up is a hint, the server's answer to the next try is the truth.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::time::{MissedTickBehavior, interval};
use tracing::{debug, info, warn};

use super::backend::{Backend, News};
use crate::error::Error;

/// How often the connection is proved to be alive while somebody waits; also how long a channel is kept after its
/// last waiter, for the next one.
const PULSE: Duration = Duration::from_secs(1);

/// While messages may not arrive, a waiter asks this often.
const DEAF_POLL: Duration = Duration::from_secs(1);

/// The channels that this process listens to.
#[derive(Debug)]
pub(crate) struct Hub {
    channels: Mutex<HashMap<Arc<str>, Channel>>,
    /// A channel was added.
    added: Notify,
    backend: Arc<Backend>,
    timeout: Duration,
}

#[derive(Debug)]
struct Channel {
    users: usize,
    /// A SUBSCRIBE was sent on the present connection, or is about to be.
    asked: bool,
    state: watch::Sender<Reception>,
}

/// What a waiter sees of a channel.
#[derive(Clone, Copy, Debug, Default)]
struct Reception {
    heard: bool,
    news: u64,
}

/// A waiter's interest in a channel.
#[derive(Debug)]
pub(crate) struct Subscription {
    hub: Arc<Hub>,
    channel: Arc<str>,
    state: watch::Receiver<Reception>,
}

impl Hub {
    pub(crate) fn new(backend: Arc<Backend>, timeout: Duration) -> Arc<Self> {
        Arc::new(Self {
            channels: Mutex::default(),
            added: Notify::new(),
            backend,
            timeout,
        })
    }

    pub(crate) fn subscribe(self: &Arc<Self>, name: &Arc<str>) -> Subscription {
        let mut channels = self.lock();
        let channel = channels.entry(name.clone()).or_insert_with(|| {
            self.added.notify_one();
            Channel {
                users: 0,
                asked: false,
                state: watch::Sender::new(Reception::default()),
            }
        });
        channel.users += 1;
        Subscription {
            hub: self.clone(),
            channel: name.clone(),
            state: channel.state.subscribe(),
        }
    }

    /// How many of a channel's subscribers are this process.
    pub(crate) fn listeners(&self, name: &str) -> u64 {
        u64::from(self.lock().get(name).is_some_and(|channel| channel.asked))
    }

    /// How many messages have come in on a channel since it was subscribed to.
    pub(crate) fn heard_on(&self, name: &str) -> u64 {
        let channels = self.lock();
        let channel = channels.get(name);
        channel.map_or(0, |channel| channel.state.borrow().news)
    }

    /// How many messages have come in on a channel, if all that are published there arrive.
    pub(crate) fn reception(&self, name: &str) -> Option<u64> {
        let channels = self.lock();
        let state = *channels.get(name)?.state.borrow();
        state.heard.then_some(state.news)
    }

    /// How many channels are subscribed to.
    pub(crate) fn len(&self) -> usize {
        self.lock().len()
    }

    /// Serves the channels until the future is dropped.
    pub(crate) async fn run(self: Arc<Self>) {
        let mut messages = self.backend.messages();
        let mut pulse = interval(PULSE);
        pulse.set_missed_tick_behavior(MissedTickBehavior::Delay);
        // One round trip at a time; what is asked for meanwhile shares the next.
        let mut asking = None;
        loop {
            if asking.is_none() {
                let channels = self.take_unasked();
                if !channels.is_empty() {
                    asking = Some(Box::pin(self.ask(channels)));
                }
            }
            tokio::select! {
                // Before the answer to a PING, the news that its connection is no longer the present one.
                biased;
                news = messages.next() => match news {
                    Some(News::Message(channel)) => self.wake(&channel),
                    Some(News::Missed) => self.wake_all(),
                    Some(News::Reconnected) => {
                        asking = None;
                        self.deafen();
                    }
                    None => return,
                },
                (channels, answered) = async {
                    match &mut asking {
                        Some(asking) => asking.await,
                        None => std::future::pending().await,
                    }
                } => {
                    asking = None;
                    match answered {
                        Ok(()) => self.heard(&channels),
                        Err(error) => self.unheard(&error).await,
                    }
                }
                () = self.added.notified() => {}
                _ = pulse.tick(), if self.len() > 0 => {
                    self.leave().await;
                    if asking.is_none() && self.len() > 0 {
                        asking = Some(Box::pin(self.ask(self.take_unasked())));
                    }
                }
            }
        }
    }

    /// Subscribes, and waits until that is done. With no channels, proves that the connection is alive.
    async fn ask(&self, channels: Vec<Arc<str>>) -> (Vec<Arc<str>>, Result<(), Error>) {
        for channel in &channels {
            if let Err(error) = self.backend.subscribe(channel, self.timeout).await {
                return (channels, Err(error));
            }
        }
        let answered = self.backend.ping(self.timeout).await;
        (channels, answered)
    }

    fn take_unasked(&self) -> Vec<Arc<str>> {
        let mut channels = self.lock();
        let unasked = channels.iter_mut().filter(|(_, channel)| !channel.asked);
        unasked
            .map(|(name, channel)| {
                channel.asked = true;
                name.clone()
            })
            .collect()
    }

    fn heard(&self, names: &[Arc<str>]) {
        let channels = self.lock();
        for channel in names.iter().filter_map(|name| channels.get(name)) {
            channel.state.send_modify(|state| state.heard = true);
        }
        if !names.is_empty() {
            debug!(channels = names.len(), "subscribed");
        }
    }

    /// Messages may be lost: nobody relies on them until the channels are subscribed to anew.
    async fn unheard(&self, error: &Error) {
        warn!(%error, "messages may not arrive; waiters ask each second");
        self.deafen();
        self.backend.relisten(self.timeout).await;
    }

    fn deafen(&self) {
        let mut channels = self.lock();
        for channel in channels.values_mut() {
            channel.asked = false;
            channel.state.send_modify(|state| {
                state.heard = false;
                state.news += 1;
            });
        }
        if !channels.is_empty() {
            info!(channels = channels.len(), "resubscribing");
        }
    }

    fn wake(&self, channel: &str) {
        if let Some(channel) = self.lock().get(channel) {
            channel.state.send_modify(|state| state.news += 1);
        }
    }

    fn wake_all(&self) {
        for channel in self.lock().values() {
            channel.state.send_modify(|state| state.news += 1);
        }
    }

    /// Unsubscribes from what nobody waits for.
    async fn leave(&self) {
        let mut left = Vec::new();
        self.lock().retain(|name, channel| {
            if channel.users == 0 {
                left.push(name.clone());
            }
            channel.users > 0
        });
        for channel in left {
            if let Err(error) = self.backend.unsubscribe(&channel, self.timeout).await {
                // A new connection has none of the channels that were left.
                return self.unheard(&error).await;
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Arc<str>, Channel>> {
        self.channels.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Subscription {
    /// Whether messages arrive. When they begin to, that is news too.
    pub(crate) fn is_heard(&self) -> bool {
        self.state.borrow().heard
    }

    /// How long to wait for news before asking without any; not for long while messages may not arrive.
    pub(crate) fn patience(&self, at_most: Duration) -> Duration {
        if self.is_heard() {
            at_most
        } else {
            at_most.min(DEAF_POLL)
        }
    }

    /// How many messages have come in since the channel was subscribed to.
    pub(crate) fn count(&self) -> u64 {
        self.state.borrow().news
    }

    /// Takes all news up to now as known.
    pub(crate) fn catch_up(&mut self) {
        self.state.mark_unchanged();
    }

    /// Waits for news that is not known yet.
    pub(crate) async fn news(&mut self) {
        if self.state.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        if let Some(channel) = self.hub.lock().get_mut(&self.channel) {
            channel.users -= 1;
        }
    }
}
