//! One server: a connection for commands and one for messages, so that neither waits for the other, one for
//! transactions if they are needed, and how it has been answering.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fred::clients::Client;
use fred::interfaces::{ClientLike, EventInterface};
use fred::types::Value;
use fred::types::config::Server;
use tokio::runtime::Handle;
use tokio::sync::{Notify, broadcast, mpsc};
use tokio::time::timeout;
use tokio_util::task::AbortOnDropHandle;
use tracing::{debug, info, warn};

use super::Doubt;
use super::listener::{Listener, Messages};
use super::maker::Maker;
use super::slots::{self, Range, Redirect};
use super::transaction::Transactions;
use super::wire::{
    Said, Wire, arguments, cause, code, forbids_scripts, refusal, said, send_asking, send_once,
};
use crate::clock::Moment;
use crate::error::{Error, ErrorKind};
use crate::options::ReleaseBy;
use crate::protocol::reply::Reply;
use crate::protocol::script::{Arg, Call, Steps, Unscripted};

/// How often a silent server is asked by those that can do without it.
const TRY_AGAIN: Duration = Duration::from_secs(1);
/// How long a goodbye to the server may take.
const GOODBYE: Duration = Duration::from_millis(500);

/// The connections to one server.
pub(crate) struct Node {
    id: u64,
    /// As configured; in a cluster a server's own address.
    name: Server,
    pub(super) commands: Wire,
    pub(super) listener: Listener,
    pub(super) transactions: Transactions,
    /// The server has said that this user may run no scripts. It may change its mind, and then nothing is lost but a
    /// round trip. Relaxed: nothing else hangs on it.
    scriptless: AtomicBool,
    /// The server has refused to publish, which is told once. Relaxed: nothing else hangs on it.
    mute: AtomicBool,
    health: Arc<Health>,
    known: Mutex<Option<Known>>,
    _mending: AbortOnDropHandle<((), ())>,
}

/// Which server the commands go to, as it has said.
struct Known {
    run_id: Arc<str>,
    /// Has something to tell once the connection is another.
    reconnects: broadcast::Receiver<Server>,
}

/// How the server has been answering.
#[derive(Debug, Default)]
struct Health {
    silence: Mutex<Option<Silence>>,
    /// Asks for a new connection, when the present one has gone silent or leads to a replica.
    sick: Notify,
}

/// A time in which every request went unanswered.
#[derive(Debug)]
struct Silence {
    since: Moment,
    /// When somebody tried who could have done without.
    tried: Moment,
    /// How the last one failed.
    error: Error,
}

/// How a call is to be sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Form {
    /// With the script itself, which the server does not know by its hash.
    pub(super) whole: bool,
    /// To a server that the slot is just being moved to.
    pub(super) asking: bool,
    /// The command that tells subscribers.
    pub(super) publish: &'static str,
}

/// One attempt that brought no answer.
pub(super) enum Miss {
    /// The server does not know the script by its hash; it did not run.
    UnknownScript,
    /// The connection broke; whether the command ran is unknown.
    Cut(fred::error::Error),
    TimedOut(fred::error::Error),
    /// The connection broke before anything could be changed.
    Unsent(fred::error::Error),
    /// No scripts may be run; this one did not.
    Scriptless,
    /// The slot is another server's; nothing ran.
    Moved(Redirect),
    /// The slot is being moved, and what the call is about has been already; nothing ran.
    Ask(Redirect),
    /// The slot is being moved, and what the call is about has been in part; nothing ran.
    Moving(Error),
    Refused(Error),
}

/// A command, or a sequence of them, that came to no end.
pub(super) enum Fault {
    /// Nothing was changed.
    Unsent(fred::error::Error),
    /// Whether anything was changed is unknown.
    Cut(fred::error::Error),
    /// By the server, in these words.
    Refused(String),
}

impl Node {
    pub(super) fn new(maker: &Maker, name: Server) -> Arc<Self> {
        // Node numbers tell connections apart, also to one server that was lost sight of and found again.
        static IDS: AtomicU64 = AtomicU64::new(0);
        let id = IDS.fetch_add(1, Ordering::Relaxed);
        let commands = maker.wire(&name);
        let health = Arc::new(Health::default());
        let tell = tell_of_reconnects(commands.idle_client().clone(), id, maker.doubts.clone());
        let mend = mend(commands.idle_client().clone(), health.clone());
        let mending = Handle::spawn(&maker.runtime, async { tokio::join!(mend, tell) });
        Arc::new(Self {
            id,
            listener: Listener::new(maker.wire(&name)),
            transactions: maker.transactions(&name),
            name,
            commands,
            scriptless: AtomicBool::new(false),
            mute: AtomicBool::new(false),
            health,
            known: Mutex::default(),
            _mending: AbortOnDropHandle::new(mending),
        })
    }

    /// Connects now, and tells if that fails.
    pub(super) async fn connect(&self) -> Result<(), Error> {
        self.commands.connect().await?;
        self.listener.connect().await
    }

    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    pub(super) fn name(&self) -> &Server {
        &self.name
    }

    /// Sends a call once.
    pub(super) async fn ask(
        &self,
        call: &Call<'_>,
        form: Form,
        left: Duration,
    ) -> Result<Reply, Miss> {
        let answered = match self.steps(call) {
            Some(steps) => Box::pin(self.step(call, steps, left))
                .await
                .map_err(|fault| self.missed_by(call, fault)),
            None => self.send(call, form, left).await,
        };
        if !matches!(
            answered,
            Err(Miss::Cut(_) | Miss::TimedOut(_) | Miss::Unsent(_))
        ) {
            *self.health.lock() = None;
        }
        answered
    }

    async fn send(&self, call: &Call<'_>, form: Form, left: Duration) -> Result<Reply, Miss> {
        let (command, script) = if form.whole {
            ("EVAL", call.script.source)
        } else {
            ("EVALSHA", call.script.hash())
        };
        let mut words: Vec<Value> = Vec::with_capacity(2 + call.keys.len() + call.args.len());
        words.push(Value::from_static_str(script));
        words.push((call.keys.len() as i64).into());
        words.extend(arguments(call, form.publish));
        let client = self.commands.client();
        let said: Result<Said, _> = if form.asking {
            Box::pin(send_asking(client, command, words, left)).await
        } else {
            send_once(client, command, words, left)
                .await
                .map(|frame| said(&frame))
        };
        match said.map_err(|error| self.missed_by(call, Fault::Cut(error)))? {
            Ok(mut reply) => {
                if call.args.contains(&Arg::Publish)
                    && let Some(text) = reply.take_refusal()
                {
                    self.cannot_publish(&text);
                }
                Ok(reply)
            }
            Err(text) if forbids_scripts(&text) => Err(self.without_scripts(call, &text)),
            Err(text) => Err(self.refused(call, &text)),
        }
    }

    /// The steps to take in place of the script.
    fn steps(&self, call: &Call<'_>) -> Option<Steps> {
        match call.unscripted {
            Unscripted::Steps(steps, ReleaseBy::Transaction) => Some(steps),
            Unscripted::Steps(steps, ReleaseBy::Auto)
                if self.scriptless.load(Ordering::Relaxed) =>
            {
                Some(steps)
            }
            _ => None,
        }
    }

    fn missed_by(&self, call: &Call<'_>, fault: Fault) -> Miss {
        let timed_out =
            |error: &fred::error::Error| *error.kind() == fred::error::ErrorKind::Timeout;
        match fault {
            Fault::Refused(text) => self.refused(call, &text),
            Fault::Cut(error) | Fault::Unsent(error) if timed_out(&error) => Miss::TimedOut(error),
            Fault::Cut(error) => Miss::Cut(error),
            Fault::Unsent(error) => Miss::Unsent(error),
        }
    }

    fn without_scripts(&self, call: &Call<'_>, text: &str) -> Miss {
        let message = match call.unscripted {
            Unscripted::Steps(_, ReleaseBy::Auto) => {
                if !self.scriptless.swap(true, Ordering::Relaxed) {
                    info!(%text, "no scripts are allowed: plain locks go by transactions");
                }
                return Miss::Scriptless;
            }
            Unscripted::Steps(..) => format!(
                "this plain lock goes by script only, and the server lets this user run none; it can go by \
                 transaction: {text}"
            ),
            Unscripted::Refused(lock) => format!(
                "{lock} needs scripts, and the server lets this user run none; plain_lock does without: {text}"
            ),
        };
        Miss::Refused(Error::refused(message, text))
    }

    /// What the script did stands; those that wait find it by asking.
    fn cannot_publish(&self, text: &str) {
        if !self.mute.swap(true, Ordering::Relaxed) {
            warn!(
                server = ?self,
                %text,
                "the server lets this user tell nobody of what it gives back: waiters ask after `poll_cap` instead; \
                 grant it `+publish +spublish &redisson_*`"
            );
        }
    }

    fn refused(&self, call: &Call<'_>, text: &str) -> Miss {
        let error = || Error::refused(format!("the server refused: {text}"), text);
        match code(text) {
            "NOSCRIPT" => Miss::UnknownScript,
            "WRONGTYPE" => {
                let key = call.keys.first().copied().unwrap_or_default();
                Miss::Refused(Error::wrong_kind(key).said(text))
            }
            // This was the primary once: ask where it is now.
            "READONLY" => {
                self.health.sick.notify_one();
                let message = format!(
                    "the server is a replica, and takes no locks; give the primary's address, or that of sentinels: \
                     {text}"
                );
                Miss::Refused(Error::refused(message, text).passing())
            }
            "MOVED" => slots::redirect(text).map_or_else(|| Miss::Refused(error()), Miss::Moved),
            "ASK" => slots::redirect(text).map_or_else(|| Miss::Refused(error()), Miss::Ask),
            "TRYAGAIN" => Miss::Moving(error().passing()),
            "LOADING" | "BUSY" | "MASTERDOWN" | "CLUSTERDOWN" => Miss::Refused(error().passing()),
            _ => Miss::Refused(error()),
        }
    }

    /// The error of a call that was not answered, and the note that the server is silent.
    pub(super) fn missed(
        &self,
        started: Moment,
        budget: Duration,
        source: fred::error::Error,
    ) -> Error {
        let (since, tried) = self
            .health
            .lock()
            .as_ref()
            .map_or((started, started), |silence| (silence.since, silence.tried));
        let client = self.commands.client();
        let error = if client.is_connected() {
            if since.until(Moment::now()) >= client.perf_config().default_command_timeout {
                self.health.sick.notify_one();
            }
            let message = format!(
                "the server did not answer within {budget:?}; whether the request ran is unknown"
            );
            Error::new(ErrorKind::Timeout, message)
        } else {
            Error::new(
                ErrorKind::Backend,
                format!("the server could not be reached within {budget:?}"),
            )
        };
        let error = error.unanswered().caused_by(cause(source));
        *self.health.lock() = Some(Silence {
            since,
            tried,
            error: error.clone(),
        });
        error
    }

    /// The run id of the server. Asked for once a connection.
    pub(super) async fn run_id(&self, budget: Duration) -> Result<Arc<str>, Error> {
        let known = || self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = &*known()
            && known.reconnects.is_empty()
        {
            return Ok(known.run_id.clone());
        }
        let started = Moment::now();
        let client = self.commands.client();
        let reconnects = client.reconnect_rx();
        let answered = send_once(client, "INFO", vec!["server".into()], budget).await;
        let frame = answered.map_err(|error| self.missed(started, budget, error))?;
        let answer = said(&frame).map_err(|text| {
            let message = format!("the server does not tell which one it is: {text}");
            Error::refused(message, &text)
        })?;
        let run_id: Arc<str> = answer
            .info("run_id")
            .ok_or_else(|| answer.unexpected())?
            .into();
        *known() = Some(Known {
            run_id: run_id.clone(),
            reconnects,
        });
        Ok(run_id)
    }

    /// Since when every request went unanswered, and how the last one failed; none if the last was answered.
    pub(super) fn silence(&self) -> Option<(Moment, Error)> {
        self.health
            .lock()
            .as_ref()
            .map(|silence| (silence.since, silence.error.clone()))
    }

    /// Whether it is time that somebody who can do without a silent server asks it all the same.
    pub(super) fn is_to_be_tried(&self) -> bool {
        let now = Moment::now();
        match &mut *self.health.lock() {
            Some(silence) if silence.tried.plus(TRY_AGAIN) > now => false,
            Some(silence) => {
                silence.tried = now;
                true
            }
            None => true,
        }
    }

    /// What this server knows of the cluster's slots; none if it is in no cluster.
    pub(super) async fn slots(&self, budget: Duration) -> Result<Option<Vec<Range>>, Error> {
        let client = self.commands.client();
        let table = send_once(client, "CLUSTER", vec!["SLOTS".into()], budget).await;
        let table = table.map_err(|error| {
            Error::new(ErrorKind::Backend, "the server did not tell of its cluster")
                .passing()
                .caused_by(cause(error))
        })?;
        Ok(said(&table).ok().and_then(|table| slots::ranges(&table)))
    }

    /// Whether the server knows sharded channels.
    pub(super) async fn has_shards(&self, budget: Duration) -> bool {
        let client = self.commands.client();
        let words = vec!["SHARDNUMSUB".into()];
        let answered = send_once(client, "PUBSUB", words, budget).await;
        answered.is_ok_and(|frame| refusal(&frame).is_none())
    }

    /// The messages of all subscribed channels from now on.
    pub(crate) fn messages(&self) -> Messages {
        self.listener.messages()
    }

    /// Says goodbye and closes the connections.
    pub(super) async fn quit(&self) {
        let goodbyes = async {
            tokio::join!(
                self.commands.quit(),
                self.listener.quit(),
                self.transactions.close()
            )
        };
        if timeout(GOODBYE, goodbyes).await.is_err() {
            debug!("closed the connections without a goodbye: the server does not answer");
        }
    }
}

impl PartialEq for Node {
    fn eq(&self, other: &Self) -> bool {
        self.id == other.id
    }
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.name)
    }
}

impl Health {
    fn lock(&self) -> MutexGuard<'_, Option<Silence>> {
        self.silence.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Opens a new connection whenever the present one turns out to be silent: to fred, a peer that is gone without a
/// word looks alive for as long as requests are written to it.
async fn mend(client: Client, health: Arc<Health>) {
    let patience = client.connection_config().connection_timeout * 2;
    loop {
        health.sick.notified().await;
        info!("reconnecting: the server is silent, or is no primary any more");
        // It may hang for as long as the server does; a later sign of sickness asks again.
        match timeout(patience, client.force_reconnection()).await {
            Ok(Ok(())) => {
                // Signs that came meanwhile were of the old connection.
                std::pin::pin!(health.sick.notified()).as_mut().enable();
            }
            Ok(Err(error)) => debug!(%error, "could not reconnect"),
            Err(_) => debug!("still reconnecting"),
        }
    }
}

/// The server behind a new connection may be another one, or have forgotten.
async fn tell_of_reconnects(client: Client, node: u64, doubts: mpsc::UnboundedSender<Doubt>) {
    let mut reconnects = client.reconnect_rx();
    while !matches!(
        reconnects.recv().await,
        Err(broadcast::error::RecvError::Closed)
    ) {
        doubts.send(Doubt::Node(node)).ok();
    }
}
