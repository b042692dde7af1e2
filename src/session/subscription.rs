//! A waiter's interest in a channel: whether messages arrive, and whether any have come since the waiter last looked.
//!
//! A waiter notes the count of messages, asks the server, and then waits for another count. Since the count is noted
//! before the request is sent, a release that happens while the request is on its way is never missed.

use std::future::pending;
use std::sync::Arc;

use tokio::sync::watch;
use tokio::time::sleep;

use super::hub::Hub;
use crate::clock::BootInstant;
use crate::protocol::waiter::Listening;

/// The state of a channel that its waiters see.
///
/// `news` never falls, and whatever sets `is_subscribed` to `false` raises it. So a waiter that compares both fields
/// with the values it knows sees that there was a change, though not how many.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ChannelState {
    /// Whether messages arrive: a subscription was confirmed, and nothing since may have ended it.
    pub(super) is_subscribed: bool,
    /// The number of messages that have come in, plus the events that may have cost one.
    pub(super) news: u64,
    /// The instant, announced by a message, at which there will be news without a message.
    ///
    /// The turn of another process ends then, which no longer keeps this one from the lock. Nobody sends a message at
    /// that instant, so the waiter wakes by itself.
    pub(super) soon: Option<BootInstant>,
}

impl ChannelState {
    pub(super) fn listening(self) -> Listening {
        match self.is_subscribed {
            true => Listening::Confirmed(self.news),
            false => Listening::Unconfirmed,
        }
    }
}

/// A waiter's interest in a channel. As long as there is one, the process stays subscribed. The channel outlives the
/// last one by up to a pulse.
#[derive(Debug)]
pub(crate) struct Subscription {
    /// Used by `drop`.
    pub(super) hub: Arc<Hub>,
    pub(super) channel: Arc<str>,
    /// The channel's state. The hub drops the sender only with a channel that has no users, so this always belongs to
    /// the channel in the hub.
    pub(super) state: watch::Receiver<ChannelState>,
    /// The last state that the waiter has handled.
    pub(super) known: ChannelState,
}

impl Subscription {
    /// Whether messages arrive. When they begin to, that is news too, since a message may have been published before.
    pub(crate) fn is_heard(&self) -> bool {
        self.state.borrow().is_subscribed
    }

    /// Returns the number of messages, and of signs of lost ones, since the channel was entered.
    ///
    /// A process that leaves the lock to others compares it with [`Hub::heard_on`], until as many have released the
    /// lock again.
    pub(crate) fn count(&self) -> u64 {
        self.state.borrow().news
    }

    /// Marks all news up to now as known. Returns the state of the subscription.
    ///
    /// Called before each request, so that later events are news.
    pub(crate) fn catch_up(&mut self) -> Listening {
        self.known = *self.state.borrow_and_update();
        self.known.listening()
    }

    /// Returns whether messages arrive, and how many have come in. Marks nothing as known.
    pub(crate) fn listening(&self) -> Listening {
        self.state.borrow().listening()
    }

    /// Waits for news that is not known yet.
    ///
    /// News is a message, a change of whether messages arrive, or the instant that was announced as the end of a turn.
    /// Once returned, it is known. Cancel safe: news that was not returned goes to the next call.
    pub(crate) async fn news(&mut self) {
        loop {
            let now = *self.state.borrow_and_update();
            if (now.is_subscribed, now.news) != (self.known.is_subscribed, self.known.news) {
                self.known = now;
                return;
            }
            // Each announcement counts once, even if its instant has passed.
            let soon = now.soon.filter(|_| now.soon != self.known.soon);
            let announced = async {
                match soon {
                    Some(soon) => sleep(BootInstant::now().until(soon)).await,
                    None => pending().await,
                }
            };
            tokio::select! {
                // The hub is gone with the client. The waiting call notices that by itself.
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
