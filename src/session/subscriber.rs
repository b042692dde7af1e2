//! The task that listens to one server: subscribes, passes messages on, and proves that they would arrive.
//!
//! Each server that has a channel with waiters has one. It has at most one round trip in flight, a batch of SUBSCRIBEs
//! with a PING behind them. The PING is what counts: its answer shows that the server has carried out the commands
//! before it, and that the connection works in both directions.
//!
//! # Invariants
//!
//! 1. A channel is marked as subscribed only by the answer to a PING on the connection that its SUBSCRIBE went out on.
//!    A reconnect drops the round trip in flight, and that answer with it.
//! 2. UNSUBSCRIBE is sent only between round trips. So the commands for one channel leave in the order in which they
//!    were decided.
//! 3. Any error of a command leads to a new connection, since the state of the old one is unknown.

use std::future::pending;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Interval, MissedTickBehavior, interval};
use tracing::{debug, warn};

use super::backend::{Node, PushEvent};
use super::hub::Hub;
use crate::error::Error;

/// How often a PING checks the connection while a call waits. Also how long a channel is kept after its last waiter,
/// for the next one.
const PULSE: Duration = Duration::from_secs(1);

/// The signals to the task that listens to one server. The channels themselves belong to the hub.
#[derive(Debug, Default)]
pub(super) struct Subscriber {
    /// Signals that a channel was added to the server or removed.
    ///
    /// The task looks for unasked channels whenever this fires.
    pub(super) changed: Notify,
    /// Channels that have moved from this server to another one. This server goes on sending messages on them until
    /// they are unsubscribed here, unless it took them away itself.
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
        // One round trip at a time. Channels that are added in the meantime share the next.
        let mut asking = None;
        // Whether a message came in since the last pulse, which proves as much as an answer.
        let mut is_alive = false;
        let mut is_due = false;
        loop {
            // Only between round trips. Otherwise the UNSUBSCRIBE of a channel could overtake its SUBSCRIBE.
            if asking.is_none() {
                let mut proves = false;
                if std::mem::take(&mut is_due) {
                    self.leave(&node, &subscriber).await;
                    if self.lock().retire(&node, &subscriber) {
                        return;
                    }
                    self.lock().ask_again(&node);
                    proves = !std::mem::take(&mut is_alive);
                }
                let channels = self.take_unasked(&node);
                if proves || !channels.is_empty() {
                    asking = Some(Box::pin(self.ask(&node, channels)));
                }
            }
            tokio::select! {
                // A reconnect comes before the answer to a PING, which may be from the old connection.
                biased;
                news = messages.next() => match news {
                    Some(PushEvent::Message { channel, text }) => {
                        is_alive = true;
                        self.wake(&channel, &text);
                    }
                    Some(PushEvent::Gone(channel)) => self.gone(&node, &channel),
                    Some(PushEvent::Missed) => self.wake_all(&node),
                    Some(PushEvent::Reconnected) => {
                        // Dropped, since its channels were asked for on the old connection. `deafen` makes this task
                        // ask for them again.
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
                _ = pulse.tick() => is_due = true,
            }
        }
    }

    /// Subscribes, and waits until that is done. Without channels, only proves that the connection is alive.
    ///
    /// Returns the channels that are then subscribed. A channel whose slot has moved, or that was refused, is not among
    /// them. It remains marked as asked: it is asked for again with the next pulse, or by its new server. Dropping this
    /// future does not unsend the commands: see invariant 1.
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
        let here = |(channel, answer)| self.backend.subscribed(node, answer).then_some(channel);
        (asked.into_iter().filter_map(here).collect(), proved)
    }

    /// Handles a connection on which a command failed. Until the channels are subscribed on another one, messages may
    /// be lost, so waiters do not rely on them and ask every second.
    fn connection_failed(&self, node: &Node, error: &Error) {
        // A server that does not answer at all is logged as an outage.
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

    /// Unsubscribes from channels that have no waiters, or that have moved to another server.
    async fn leave(&self, node: &Node, subscriber: &Subscriber) {
        let mut left = std::mem::take(&mut *subscriber.lock());
        self.lock().take_unused(node, &mut left);
        for channel in left {
            if let Err(error) = self.backend.unsubscribe(node, &channel).await {
                // On a new connection, nothing is left to unsubscribe.
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
/// ticks are skipped: several PINGs in a row prove no more than one.
fn pulse() -> Interval {
    let mut pulse = interval(PULSE);
    pulse.reset();
    pulse.set_missed_tick_behavior(MissedTickBehavior::Delay);
    pulse
}
