//! The connection that a server's messages come on.

use std::time::Duration;

use fred::interfaces::{ClientLike, EventInterface, PubsubInterface};
use fred::types::Message;
use fred::types::config::Server;
use tokio::sync::broadcast;
use tokio::time::timeout;
use tracing::debug;

use super::slots::{self, Redirect};
use super::wire::{Wire, cause, once, refusal, send_once};
use crate::error::{Error, ErrorKind};

pub(super) struct Listener(Wire);

impl Listener {
    pub(super) fn new(wire: Wire) -> Self {
        Self(wire)
    }

    pub(super) async fn connect(&self) -> Result<(), Error> {
        self.0.connect().await
    }

    pub(super) async fn quit(&self) {
        self.0.quit().await;
    }

    /// Subscribes to a channel. Done when a later [`ping`](Self::ping) is answered, and not when this returns.
    pub(super) async fn subscribe(&self, channel: &str, budget: Duration) -> Result<(), Error> {
        let subscribed = self
            .0
            .client()
            .with_options(&once(budget))
            .subscribe(channel)
            .await;
        subscribed.map_err(|error| unheard(budget, error))
    }

    pub(super) async fn unsubscribe(&self, channel: &str, budget: Duration) -> Result<(), Error> {
        let unsubscribed = self
            .0
            .client()
            .with_options(&once(budget))
            .unsubscribe(channel)
            .await;
        unsubscribed.map_err(|error| unheard(budget, error))
    }

    /// Subscribes to a channel of a slot. Where the slot is, if it is another server's.
    ///
    /// One channel in a command: to fred, the reply for a second would be that of the next command.
    pub(super) async fn subscribe_sharded(
        &self,
        channel: &str,
        budget: Duration,
    ) -> Result<Option<Redirect>, Error> {
        let subscribed = self
            .0
            .client()
            .with_options(&once(budget))
            .ssubscribe(channel)
            .await;
        match subscribed {
            Ok(()) => Ok(None),
            Err(error) => match slots::redirect(error.details()) {
                Some(redirect) if error.details().starts_with("MOVED") => Ok(Some(redirect)),
                _ => Err(unheard(budget, error)),
            },
        }
    }

    pub(super) async fn unsubscribe_sharded(
        &self,
        channel: &str,
        budget: Duration,
    ) -> Result<(), Error> {
        let unsubscribed = self
            .0
            .client()
            .with_options(&once(budget))
            .sunsubscribe(channel)
            .await;
        unsubscribed.map_err(|error| unheard(budget, error))
    }

    /// Proves that the connection for messages is alive, and that what was sent on it before has been done.
    pub(super) async fn ping(&self, budget: Duration) -> Result<(), Error> {
        let answered = send_once(self.0.client(), "PING", Vec::new(), budget).await;
        // To leave a channel whose slot has just moved is refused, which fred takes for the answer to what follows.
        let answered = answered.and_then(|frame| match refusal(&frame) {
            Some(text) if text.starts_with("MOVED") => Err(shifted(text)),
            _ => Ok(()),
        });
        answered.map_err(|error| unheard(budget, error))
    }

    /// Opens a new connection for messages, if that can be done within the budget.
    pub(super) async fn relisten(&self, budget: Duration) {
        if timeout(budget, self.0.client().force_reconnection())
            .await
            .is_err()
        {
            debug!("still reconnecting for messages");
        }
    }

    /// The messages of all subscribed channels from now on.
    pub(crate) fn messages(&self) -> Messages {
        let client = self.0.client();
        Messages {
            messages: client.message_rx(),
            reconnects: client.reconnect_rx(),
        }
    }
}

fn shifted(text: String) -> fred::error::Error {
    fred::error::Error::new(fred::error::ErrorKind::Protocol, text)
}

fn unheard(budget: Duration, source: fred::error::Error) -> Error {
    let message = format!("the connection for messages gave no answer within {budget:?}");
    Error::new(ErrorKind::Backend, message)
        .passing()
        .caused_by(cause(source))
}

/// What the connection for messages brings.
#[derive(Debug)]
pub(crate) enum News {
    Message(String),
    /// Messages were dropped, or may have been.
    Missed,
    Reconnected,
}

/// The stream of messages.
#[derive(Debug)]
pub(crate) struct Messages {
    messages: broadcast::Receiver<Message>,
    reconnects: broadcast::Receiver<Server>,
}

impl Messages {
    /// The next news, or none when the client was closed.
    pub(crate) async fn next(&mut self) -> Option<News> {
        tokio::select! {
            message = self.messages.recv() => match message {
                Ok(message) => Some(News::Message(message.channel.to_string())),
                Err(broadcast::error::RecvError::Lagged(_)) => Some(News::Missed),
                Err(broadcast::error::RecvError::Closed) => None,
            },
            reconnect = self.reconnects.recv() => match reconnect {
                Ok(_) | Err(broadcast::error::RecvError::Lagged(_)) => Some(News::Reconnected),
                Err(broadcast::error::RecvError::Closed) => None,
            },
        }
    }
}
