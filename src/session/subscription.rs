//! A waiter's interest in a channel.

use std::future::pending;
use std::sync::Arc;

use tokio::sync::watch;
use tokio::time::sleep;

use super::hub::Hub;
use crate::clock::BootInstant;
use crate::protocol::waiter::Listening;

/// What a waiter sees of a channel.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ChannelState {
    pub(super) is_subscribed: bool,
    pub(super) news: u64,
    /// When there will be news without a message, as a message announced.
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

/// A waiter's interest in a channel.
#[derive(Debug)]
pub(crate) struct Subscription {
    pub(super) hub: Arc<Hub>,
    pub(super) channel: Arc<str>,
    pub(super) state: watch::Receiver<ChannelState>,
    pub(super) known: ChannelState,
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
