//! The task that listens to one server: subscribes, hands on what arrives, and proves that it would arrive.
//!
//! There is one for each server that has a channel with waiters. It has at most one round trip under way, a batch of
//! SUBSCRIBEs with a PING behind them. The PING is what counts: its answer shows that the server has carried out the
//! commands before it, and that the connection works in both directions.
//!
//! # Invariants
//!
//! 1. A channel is marked as subscribed only by the answer to a PING on the connection that its SUBSCRIBE went out on.
//!    A reconnect drops the round trip that is under way, and with it that answer.
//! 2. UNSUBSCRIBE is sent only between round trips. So the commands for one channel leave in the order in which they
//!    were decided.
//! 3. An error of a command, whatever it is, leads to a new connection: after it nobody knows what the server has.

use std::future::pending;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Interval, MissedTickBehavior, interval};
use tracing::{debug, warn};

use super::backend::{Node, PushEvent, Subscribed};
use super::hub::Hub;
use crate::error::Error;

/// How often the connection is proved to be alive while a call waits. Also how long a channel is kept after its last
/// waiter, for the next waiter.
const PULSE: Duration = Duration::from_secs(1);

/// What listens to one server: how its task is told of work. The channels themselves are the hub's.
#[derive(Debug, Default)]
pub(super) struct Subscriber {
    /// The server has a channel more, or less.
    ///
    /// The task looks for unasked channels whenever this fires.
    pub(super) changed: Notify,
    /// Channels that this server had and another one has by now. This server goes on sending messages for them until
    /// they are left here, unless it took them away itself.
    pub(super) left: Mutex<Vec<Arc<str>>>,
}

impl Hub {
    /// Serves the channels of one server, as long as there are any.
    ///
    /// Returns when the server has no channel and none to leave, or when the client has closed its connection. Ends
    /// with [`Hub::run`] otherwise.
    pub(super) async fn listen(self: Arc<Self>, node: Arc<Node>, subscriber: Arc<Subscriber>) {
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
                        // Dropped: the channels in it were asked for on the old connection. `deafen` has them asked for
                        // again.
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
                        Err(error) => self.connection_failed(&node, &error),
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
    ///
    /// Returns the channels that are subscribed by then. A channel whose slot has moved, or that was refused, is not
    /// among them, and remains marked as asked unless it has to be asked for again at once. Dropping this future leaves
    /// the commands sent: invariant 1 says what becomes of them.
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
    ///
    /// Both conditions count: by the map the slot is here, and the hub has dealt the channel to this server.
    fn ask_anew(&self, node: &Node, name: &str) {
        let is_here = self.backend.home(name).is_some_and(|home| *home == *node);
        if let Some(channel) = self.lock().channels.get_mut(name) {
            channel.asked &= !(is_here && channel.home == Some(node.id()));
        }
    }

    /// Handles a connection on which a command failed: until the channels are subscribed to on another one, messages
    /// may be lost, so nobody relies on them and waiters ask every second.
    fn connection_failed(&self, node: &Node, error: &Error) {
        // A server that answers nothing at all is told of as an outage.
        let is_outage = node.is_outage();
        match (!is_outage).then(|| self.deaf.tell()).flatten() {
            Some(untold) => {
                warn!(target: "redlatch", %error, server = ?node, untold, "messages may not arrive");
            }
            None => debug!(target: "redlatch", %error, server = ?node, "messages may not arrive"),
        }
        self.deafen(node);
        self.backend.relisten(node);
    }

    /// Unsubscribes from channels that nobody waits for, or that are not here any more.
    async fn leave(&self, node: &Node, subscriber: &Subscriber) {
        let mut left = std::mem::take(&mut *subscriber.lock());
        self.lock().take_unused(node, &mut left);
        for channel in left {
            if let Err(error) = self.backend.unsubscribe(node, &channel).await {
                // A new connection has none of the channels that were left.
                return self.connection_failed(node, &error);
            }
        }
    }
}

impl Subscriber {
    pub(super) fn lock(&self) -> MutexGuard<'_, Vec<Arc<str>>> {
        self.left.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the timer of the pulse. The first tick comes after one pulse, since a new subscriber has just asked. Missed
/// ticks are not made up for: several PINGs in a row prove nothing more.
fn pulse() -> Interval {
    let mut pulse = interval(PULSE);
    pulse.reset();
    pulse.set_missed_tick_behavior(MissedTickBehavior::Delay);
    pulse
}
