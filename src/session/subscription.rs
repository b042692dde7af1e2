//! A waiter's interest in a channel: whether messages arrive, and what has come since the waiter last looked.
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

/// What a waiter sees of a channel.
///
/// `news` never falls, and whatever changes `is_subscribed` to `false` raises it. So a waiter that compares both fields
/// with those it knows sees every change that concerns it, though not how many there were.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ChannelState {
    /// Whether messages arrive: a subscription was confirmed, and nothing has happened since that may have ended it.
    pub(super) is_subscribed: bool,
    /// How many messages have come in, and how many events that may have cost one.
    pub(super) news: u64,
    /// When there will be news without a message, as a message announced.
    ///
    /// The turn of another process ends then, and with it what keeps this one from the lock. Nobody sends anything at
    /// that instant, so the waiter wakes itself.
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

/// A waiter's interest in a channel. While there is one, the process stays subscribed; the channel outlives the last
/// one by up to a pulse.
#[derive(Debug)]
pub(crate) struct Subscription {
    /// For the end of the interest, in `drop`.
    pub(super) hub: Arc<Hub>,
    pub(super) channel: Arc<str>,
    /// The channel's state. The hub drops the sender only with a channel that has no user, so as long as this lives it
    /// is that of the channel in the hub.
    pub(super) state: watch::Receiver<ChannelState>,
    /// The state up to which the waiter has taken account of everything.
    pub(super) known: ChannelState,
}

impl Subscription {
    /// Whether messages arrive. When they begin to arrive, that is news too: a message may have been published before.
    pub(crate) fn is_heard(&self) -> bool {
        self.state.borrow().is_subscribed
    }

    /// Returns how many messages, or signs of lost ones, have come in since the channel was entered.
    ///
    /// Compared with [`Hub::heard_on`] by a process that leaves the lock to others until as many have released it
    /// again.
    pub(crate) fn count(&self) -> u64 {
        self.state.borrow().news
    }

    /// Takes all news up to now as known. Returns the state of the subscription.
    ///
    /// To be called before each request, so that what happens from then on is news.
    pub(crate) fn catch_up(&mut self) -> Listening {
        self.known = *self.state.borrow_and_update();
        self.known.listening()
    }

    /// Whether messages arrive, and how many had come in by then. Takes nothing as known.
    pub(crate) fn listening(&self) -> Listening {
        self.state.borrow().listening()
    }

    /// Waits for news that is not known yet.
    ///
    /// News is a message, a change of whether messages arrive, or the instant that was announced as the end of a turn.
    /// It is known from then on. Cancel safe: what was not returned is still news to the next call.
    pub(crate) async fn news(&mut self) {
        loop {
            let now = *self.state.borrow_and_update();
            if (now.is_subscribed, now.news) != (self.known.is_subscribed, self.known.news) {
                self.known = now;
                return;
            }
            // Each announcement counts once, also if the instant has passed by now.
            let soon = now.soon.filter(|_| now.soon != self.known.soon);
            let announced = async {
                match soon {
                    Some(soon) => sleep(BootInstant::now().until(soon)).await,
                    None => pending().await,
                }
            };
            tokio::select! {
                // The hub is gone with the client. The call that waits here notices that by itself.
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
