//! The connection that a server's messages arrive on.
//!
//! # Invariants
//!
//! 1. A command goes to the present connection and ends with it. None is kept for the next connection, on which nothing
//!    is subscribed.
//! 2. Answers come in the order of the commands, whether as replies or as messages.

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::{broadcast, mpsc, oneshot, watch};
use tokio::time::{sleep, timeout};
use tokio_util::task::AbortOnDropHandle;
use tracing::debug;

use super::Disruption;
use super::dial::Dialer;
use super::identity::Living;
use super::link::Link;
use super::meter::Meter;
use super::resp::{Said, Version, WireRequest};
use super::slots::{self, Redirect};
use super::told::{PING, Told, told};
use crate::clock::BootInstant;
use crate::error::{Error, ErrorKind};
use crate::protocol::reply::Reply;

/// The most messages that may be waiting. Beyond that some are dropped, which wakes every waiter.
const BACKLOG: usize = 4096;
/// The most commands that are written at once.
const BATCH: usize = 64;
/// The first pause between two connections. It doubles up to [`LONGEST_PAUSE`] as long as connections do not last.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
/// The longest pause. An attempt that lasts at least this long, its connection included, resets the pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// The outcome of a command about a channel, once it is known.
///
/// Read once, after the answer to a PING that was sent behind the command.
#[derive(Debug)]
pub(crate) struct ChannelOrder(oneshot::Receiver<Answered>);

/// A server's answer to a command for messages: `Ok`, or the words in which it refuses.
type Answered = Result<(), String>;

/// A connection for messages, made when it is first used, and made again when it breaks.
///
/// Its task is started by the first command, or by [`connect`](Self::connect).
pub(super) struct Listener {
    shared: Arc<ListenerShared>,
    dialer: Dialer,
    /// The runtime of its task. The caller that uses the connection first may be on another one.
    runtime: Handle,
    /// The task that keeps the connection, from the first use on.
    kept: OnceLock<AbortOnDropHandle<()>>,
}

/// What callers and the task have in common.
struct ListenerShared {
    meter: Arc<dyn Meter>,
    /// The way to the present connection. Taking it away leads to another connection.
    present: watch::Sender<Option<mpsc::UnboundedSender<Order>>>,
    /// The number of connections after the first.
    ///
    /// A counter and not a message, so that a reader that has missed messages sees it too.
    again: watch::Sender<u64>,
    /// Messages, and events that may have cost one. A reader that is too slow loses the oldest, and is told so.
    ///
    /// Made for the first reader: the backlog takes a third of a megabyte, and most servers of a large cluster have
    /// none.
    news: OnceLock<broadcast::Sender<PushEvent>>,
    /// The client's own channel, with messages for this client alone. It has the name of the client's connections.
    own: Arc<str>,
    /// Whether this connection listens to that channel. Changed only while `present` is locked.
    attends: AtomicBool,
    /// Where to report messages on the own channel.
    disruptions: mpsc::UnboundedSender<Disruption>,
}

/// A command, and where its answer goes.
struct Order {
    /// The word of the command: about the channel, PING or AUTH.
    command: &'static str,
    /// The channel, or empty without one.
    channel: String,
    /// The command itself, if it logs in. Contains a password.
    login: Option<WireRequest>,
    answer: oneshot::Sender<Answered>,
}

/// An event of a connection for messages.
#[derive(Clone, Debug)]
pub(crate) enum PushEvent {
    /// A message of a channel that is, or was, subscribed to.
    Message { channel: String, text: String },
    /// The server has taken this channel away, together with its slot.
    Gone(String),
    /// Messages were dropped, or may have been, and nobody knows on which channels.
    Missed,
    /// Another connection has replaced the last one. Nothing is subscribed on it.
    Reconnected,
}

/// The stream of a server's messages, and of events that may have cost some.
#[derive(Debug)]
pub(crate) struct Messages {
    news: broadcast::Receiver<PushEvent>,
    again: watch::Receiver<u64>,
}

impl Listener {
    /// Creates a connection that is made when it is first used.
    pub(super) fn new(
        dialer: Dialer,
        runtime: &Handle,
        meter: Arc<dyn Meter>,
        disruptions: mpsc::UnboundedSender<Disruption>,
    ) -> Self {
        let shared = ListenerShared {
            meter,
            present: watch::Sender::default(),
            again: watch::Sender::default(),
            news: OnceLock::new(),
            own: dialer.name.clone(),
            attends: AtomicBool::new(false),
            disruptions,
        };
        Self {
            shared: Arc::new(shared),
            dialer,
            runtime: runtime.clone(),
            kept: OnceLock::new(),
        }
    }

    /// Connects now, and returns `Err` if that fails. Does nothing if the connection was used before: it then keeps
    /// connecting by itself.
    pub(super) async fn connect(&self) -> Result<(), Error> {
        if self.kept.get().is_none() {
            let link = self.dialer.dial().await?;
            self.keep(Some(link));
        }
        Ok(())
    }

    /// Subscribes to the client's own channel, on this connection and on those that replace it; or unsubscribes.
    ///
    /// The server may refuse. No PING proves that the connection is alive: a client that misses a message finds out
    /// later by asking.
    pub(super) fn attend(&self, attends: bool) {
        if attends {
            self.keep(None);
        }
        self.shared.present.send_if_modified(|present| {
            if self.shared.attends.swap(attends, Ordering::Relaxed) != attends
                && let Some(present) = present
            {
                present.send(self.shared.about_own(attends)).ok();
            }
            false
        });
    }

    pub(super) fn is_attending(&self) -> bool {
        self.shared.attends.load(Ordering::Relaxed)
    }

    /// Ends the connection for good.
    pub(super) fn close(&self) {
        if let Some(kept) = self.kept.get() {
            kept.abort();
        }
    }

    /// Proves that the connection for messages is alive, and that earlier commands on it have been answered.
    ///
    /// The answer comes after those to all earlier commands, so their outcomes are known by then.
    pub(super) async fn ping(&self, budget: Duration) -> Result<(), Error> {
        let end = BootInstant::now().plus(budget);
        let ChannelOrder(answer) = self.tell(PING, "", budget).await?;
        let answered = timeout(BootInstant::now().until(end), answer).await;
        let answered = answered.map_err(|late| unheard(budget).caused_by(late))?;
        let answered = answered.map_err(|gone| unheard(budget).caused_by(gone))?;
        answered.map_err(|text| refused(&text))
    }

    /// Replaces the present connection.
    ///
    /// Commands without an answer fail with the old connection.
    pub(super) fn relisten(&self) {
        self.shared.present.send_replace(None);
    }

    /// Returns the messages of all subscribed channels from now on.
    ///
    /// Each reader has a place of its own in the backlog.
    pub(super) fn messages(&self) -> Messages {
        let news = self
            .shared
            .news
            .get_or_init(|| broadcast::Sender::new(BACKLOG));
        Messages {
            news: news.subscribe(),
            again: self.shared.again.subscribe(),
        }
    }

    /// Gives a command to the present connection. If there is none, waits for one, for at most `budget`.
    ///
    /// If the connection breaks before the answer, the sender is dropped, which tells the receiver.
    pub(super) async fn tell(
        &self,
        command: &'static str,
        channel: &str,
        budget: Duration,
    ) -> Result<ChannelOrder, Error> {
        self.keep(None);
        let (answer, answered) = oneshot::channel();
        let order = Order {
            command,
            channel: channel.to_owned(),
            login: None,
            answer,
        };
        let mut present = self.shared.present.subscribe();
        let present = timeout(budget, present.wait_for(Option::is_some)).await;
        let present = present.map_err(|late| unheard(budget).caused_by(late))?;
        // The connection may break from here on: then the answer never comes.
        let given = present.is_ok_and(|present| {
            let present = present.as_ref();
            present.is_some_and(|present| present.send(order).is_ok())
        });
        match given {
            true => Ok(ChannelOrder(answered)),
            false => Err(unheard(budget)),
        }
    }

    /// Starts the task that keeps the connection, unless it runs already. `link` is the first connection, if it was
    /// made before.
    fn keep(&self, link: Option<Link>) {
        self.kept.get_or_init(|| {
            let kept = keep(self.shared.clone(), self.dialer.clone(), link);
            AbortOnDropHandle::new(self.runtime.spawn(kept))
        });
    }
}

/// Connects, serves the connection until it breaks, and connects again, without end.
async fn keep(shared: Arc<ListenerShared>, dialer: Dialer, mut link: Option<Link>) {
    let mut is_first = true;
    let mut pause = FIRST_PAUSE;
    loop {
        let started = BootInstant::now();
        let mut place = dialer.place();
        let dialled = match link.take() {
            Some(link) => Ok(link),
            None => dialer.dial().await,
        };
        match dialled {
            Ok(link) => {
                if !std::mem::take(&mut is_first) {
                    // Counted before any caller can give a command to the new connection.
                    shared.again.send_modify(|again| *again += 1);
                }
                let here = place.insert(link.place.clone());
                let (due, version) = (link.due, link.version);
                let present = Present(&shared, version);
                let ended = tokio::select! {
                    ended = shared.serve(link, dialer.patience) => ended,
                    never = dialer.stay_logged_in(here, due, &present) => match never {},
                    () = dialer.leads_elsewhere(Some(here)) => Ok(()),
                };
                shared.present.send_replace(None);
                debug!(server = %here, ?ended, "no connection for messages");
            }
            Err(error) => debug!(server = %dialer.server, %error, "no connection for messages"),
        }
        if started.until(BootInstant::now()) >= LONGEST_PAUSE {
            pause = FIRST_PAUSE;
        }
        tokio::select! {
            // Clients that lost a server at the same time should not come back to it at the same time.
            () = sleep(pause + pause.mul_f64(fastrand::f64() / 2.0)) => {}
            () = dialer.leads_elsewhere(place.as_deref()) => {}
        }
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

impl ListenerShared {
    /// Sends commands and passes on what arrives, until the connection breaks or is given up.
    ///
    /// Commands without an answer end with this future.
    async fn serve(&self, mut link: Link, patience: Duration) -> io::Result<()> {
        let (sender, mut orders) = mpsc::unbounded_channel();
        self.present.send_modify(|present| {
            if self.attends.load(Ordering::Relaxed) {
                sender.send(self.about_own(true)).ok();
            }
            *present = Some(sender);
        });
        let mut given: VecDeque<Order> = VecDeque::new();
        let mut batch = Vec::with_capacity(BATCH);
        loop {
            tokio::select! {
                count = orders.recv_many(&mut batch, BATCH) => {
                    if count == 0 {
                        // The sender was taken away to get another connection.
                        return Ok(());
                    }
                    let requests: Vec<_> = batch.iter_mut().map(Order::request).collect();
                    // Nothing is read during the write, so a server that takes nothing must not hold it up for long.
                    timeout(patience, link.send(&requests)).await??;
                    given.extend(batch.drain(..));
                }
                heard = link.next() => {
                    if let Some(told) = told(heard?) {
                        self.pass_on(told, &mut given)?;
                    }
                }
            }
        }
    }

    /// Passes on what has arrived: a message to all, an answer to the caller of the command.
    ///
    /// Fails if the server sends an answer to nothing: replies cannot be told apart from then on.
    fn pass_on(&self, told: Told, given: &mut VecDeque<Order>) -> io::Result<()> {
        let is_for = |order: &Order| match &told {
            Told::Done(command, channel) => order.command == *command && order.channel == *channel,
            _ => true,
        };
        let first = given.front().is_some_and(is_for);
        match told {
            Told::Message { channel, text } if *channel == *self.own => {
                self.meter.messaged();
                self.report(Disruption::Forced(text));
            }
            Told::Message { channel, text } => {
                self.meter.messaged();
                self.publish(PushEvent::Message { channel, text });
            }
            // No command asked for this: the server has taken the channel away by itself.
            Told::Done(_, channel) if !first => self.publish(PushEvent::Gone(channel)),
            Told::Done(..) | Told::Pong | Told::Refused(_) => {
                let unasked = || io::Error::other("the server sent a reply that nobody asked for");
                let order = given.pop_front().ok_or_else(unasked)?;
                let refusal = match told {
                    Told::Refused(text) => Err(text),
                    Told::Done("SUBSCRIBE", channel) if *channel == *self.own => {
                        self.report(Disruption::Heard);
                        Ok(())
                    }
                    _ => Ok(()),
                };
                // The caller may have stopped waiting.
                order.answer.send(refusal).ok();
            }
        }
        Ok(())
    }

    /// Returns the command that subscribes to the client's own channel, or unsubscribes from it.
    fn about_own(&self, attends: bool) -> Order {
        Order {
            command: if attends { "SUBSCRIBE" } else { "UNSUBSCRIBE" },
            channel: self.own.to_string(),
            login: None,
            answer: oneshot::channel().0,
        }
    }

    /// Reports a disruption to the watchdog. Does nothing while the client closes.
    fn report(&self, disruption: Disruption) {
        self.disruptions.send(disruption).ok();
    }

    /// Sends an event to all readers, if there are any.
    fn publish(&self, event: PushEvent) {
        if let Some(news) = self.news.get() {
            news.send(event).ok();
        }
    }
}

/// The present connection.
struct Present<'a>(&'a ListenerShared, Version);

impl Living for Present<'_> {
    /// In RESP2, a connection that listens to channels does not accept AUTH, so another connection is made.
    async fn log_in(&self, auth: WireRequest) -> Option<Said> {
        let Self(shared, version) = self;
        if *version == Version::Resp2 {
            shared.present.send_replace(None);
            return None;
        }
        let (answer, answered) = oneshot::channel();
        let order = Order {
            command: "AUTH",
            channel: String::new(),
            login: Some(auth),
            answer,
        };
        shared.present.borrow().as_ref()?.send(order).ok()?;
        Some(answered.await.ok()?.map(|()| Reply::Nil))
    }
}

impl Order {
    /// Returns the request, once.
    fn request(&mut self) -> WireRequest {
        self.login.take().unwrap_or_else(|| match self.command {
            PING => WireRequest::of(&[PING]),
            command => WireRequest::of(&[command, &self.channel]),
        })
    }
}

impl ChannelOrder {
    /// Returns `Ok(None)` if the command was carried out, and the redirection if another server has the channel's slot.
    /// Returns `Err` if the server has refused, or has not answered so far.
    ///
    /// Only `MOVED` counts as a redirection: until a slot has moved, its channels stay with the old server.
    pub(super) fn outcome(mut self) -> Result<Option<Redirect>, String> {
        match self.0.try_recv() {
            Ok(Ok(())) => Ok(None),
            Ok(Err(text)) => match slots::redirect(&text) {
                Some(redirect) if text.starts_with("MOVED") => Ok(Some(redirect)),
                _ => Err(text),
            },
            Err(_) => Err("the server did not answer".to_owned()),
        }
    }
}

impl Messages {
    /// Returns the next event, or `None` once the client is closed.
    pub(crate) async fn next(&mut self) -> Option<PushEvent> {
        tokio::select! {
            // A reconnect is reported before any message of the new connection.
            biased;
            again = self.again.changed() => again.ok().map(|()| PushEvent::Reconnected),
            news = self.news.recv() => match news {
                Ok(news) => Some(news),
                Err(broadcast::error::RecvError::Lagged(_)) => Some(PushEvent::Missed),
                Err(broadcast::error::RecvError::Closed) => None,
            },
        }
    }
}

/// Builds the error of a connection that was not open in time, or did not answer in time.
fn unheard(budget: Duration) -> Error {
    let message = format!("the connection for messages did not answer within {budget:?}");
    Error::new(ErrorKind::Backend, message).passing()
}

/// Builds the error of a server that refuses a PING.
fn refused(text: &str) -> Error {
    Error::refused(format!("the server refused a PING: {text}"), text).passing()
}
