//! One server: a connection for commands and one for messages, so that neither waits for the other, one for
//! transactions if they are needed, and how it has been answering.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tracing::{info, warn};

use super::connection::{Broken, Connection};
use super::dial::is_primary;
use super::listener::{Listener, Messages};
use super::maker::Maker;
use super::refusal::{code, forbids_scripts, understood};
use super::resp::{Request, Said};
use super::silence::Silence;
use super::slots::{self, Range, Redirect};
use super::transaction::Transactions;
use crate::clock::BootInstant;
use crate::config::Server;
use crate::error::{Error, ErrorKind};
use crate::options::ReleaseBy;
use crate::protocol::reply::Reply;
use crate::protocol::script::{Arg, Call, Steps, Unscripted};

/// How often a server is asked what it knows of channels, if no answer comes.
const PROBES: usize = 3;

/// The connections to one server.
pub(crate) struct Node {
    id: u64,
    /// As configured; in a cluster a server's own address.
    name: Server,
    pub(super) commands: Connection,
    pub(super) listener: Listener,
    pub(super) transactions: Transactions,
    /// The server has said that this user may run no scripts. It may change its mind, and then nothing is lost but a
    /// round trip. Relaxed: nothing else hangs on it.
    scriptless: AtomicBool,
    /// The server has refused to publish, which is told once. Relaxed: nothing else hangs on it.
    mute: AtomicBool,
    /// The server has refused a subscription, which is told once. Relaxed: nothing else hangs on it.
    deaf: AtomicBool,
    pub(super) silence: Silence,
    known: Mutex<Option<Known>>,
    /// How long a connection may be silent before it is replaced.
    patience: Duration,
}

/// Which server the commands go to, as it has said.
struct Known {
    run_id: Arc<str>,
    /// The number of the connection on which it has said so.
    epoch: u64,
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
pub(super) enum SendError {
    /// The server does not know the script by its hash; it did not run.
    UnknownScript,
    /// No answer came.
    Broken(Broken),
    /// No scripts may be run; this one did not.
    Scriptless,
    /// The slot is another server's; nothing ran.
    Moved(Redirect),
    /// The slot is being moved, and what the call is about has been already; nothing ran.
    Ask(Redirect),
    /// The slot is being moved, and what the call is about has been in part; nothing ran.
    Moving(Error),
    /// A replica, which takes no locks; nothing was changed.
    Replica(Error),
    /// The server has not got the slot, and knows nobody who has; nothing ran.
    Disowned(Error),
    Refused(Error),
}

/// A command, or a sequence of them, that came to no end.
pub(super) enum Fault {
    Broken(Broken),
    /// By the server, in these words.
    Refused(String),
}

impl From<Broken> for Fault {
    fn from(broken: Broken) -> Self {
        Self::Broken(broken)
    }
}

impl Node {
    pub(super) fn new(maker: &Maker, name: Server) -> Arc<Self> {
        // Node numbers tell connections apart, also to one server that was lost sight of and found again.
        static IDS: AtomicU64 = AtomicU64::new(0);
        let id = IDS.fetch_add(1, Ordering::Relaxed);
        Arc::new(Self {
            id,
            commands: maker.connection(&name, id),
            listener: maker.listener(&name),
            transactions: maker.transactions(&name),
            name,
            scriptless: AtomicBool::new(false),
            mute: AtomicBool::new(false),
            deaf: AtomicBool::new(false),
            silence: Silence::default(),
            known: Mutex::default(),
            patience: maker.command_timeout,
        })
    }

    /// Connects now, and tells if that fails.
    pub(super) async fn connect(&self) -> Result<(), Error> {
        self.commands.connect().await?;
        self.listener.connect().await
    }

    /// Connects in the background, and goes on trying until that comes about.
    pub(super) fn start(&self) {
        self.commands.start();
    }

    /// Whether it was ever connected to, or tried to be.
    pub(super) fn is_used(&self) -> bool {
        self.commands.is_started()
    }

    pub(super) fn is_connected(&self) -> bool {
        self.commands.is_open()
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
    ) -> Result<Reply, SendError> {
        let answered = match self.steps(call) {
            Some(steps) => Box::pin(self.step(call, steps, left))
                .await
                .map_err(|fault| self.missed_by(call, fault)),
            None => self.send(call, form, left).await,
        };
        self.note(&answered, left).await;
        answered
    }

    /// Takes notice of whether the server has answered, and as what.
    pub(super) async fn note(&self, answered: &Result<Reply, SendError>, left: Duration) {
        match answered {
            Err(SendError::Broken(_)) => {}
            Err(SendError::Replica(error)) => self.silence.note(BootInstant::now(), true, error),
            _ if self.silence.spoke() => {}
            // Who only looks, or is told that a lock is busy, is answered by a replica too.
            _ => match Box::pin(self.query(&["ROLE"], left)).await {
                Ok(Ok(role)) if !is_primary(&role) => {}
                _ => self.silence.end(),
            },
        }
    }

    async fn send(&self, call: &Call<'_>, form: Form, left: Duration) -> Result<Reply, SendError> {
        let epoch = self.commands.epoch();
        let replied = self.commands.ask(request(call, form), left).await;
        self.heard(call, replied, epoch)
    }

    /// What to make of what came on the connection of this number.
    pub(super) fn heard(
        &self,
        call: &Call<'_>,
        replied: Result<Said, Broken>,
        epoch: u64,
    ) -> Result<Reply, SendError> {
        match replied {
            Ok(Ok(mut reply)) => {
                if call.args.contains(&Arg::Publish)
                    && let Some(text) = reply.take_refusal()
                {
                    self.cannot_publish(&text);
                }
                Ok(reply)
            }
            Ok(Err(text)) if forbids_scripts(&text) => Err(self.without_scripts(call, &text)),
            Ok(Err(text)) => Err(self.refused(call, &text, epoch)),
            Err(broken) => Err(self.missed_by(call, broken.into())),
        }
    }

    /// The steps to take in place of the script.
    pub(super) fn steps(&self, call: &Call<'_>) -> Option<Steps> {
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

    fn missed_by(&self, call: &Call<'_>, fault: Fault) -> SendError {
        match fault {
            Fault::Refused(text) => self.refused(call, &text, self.commands.epoch()),
            Fault::Broken(broken) => SendError::Broken(broken),
        }
    }

    fn without_scripts(&self, call: &Call<'_>, text: &str) -> SendError {
        let message = match call.unscripted {
            Unscripted::Steps(_, ReleaseBy::Auto) => {
                if !self.scriptless.swap(true, Ordering::Relaxed) {
                    info!(%text, "no scripts are allowed: plain locks go by transactions");
                }
                return SendError::Scriptless;
            }
            Unscripted::Steps(..) => format!(
                "this plain lock goes by script only, and the server lets this user run none; it can go by \
                 transaction: {text}"
            ),
            Unscripted::Refused(lock) => format!(
                "{lock} needs scripts, and the server lets this user run none; plain_lock does without: {text}"
            ),
        };
        SendError::Refused(Error::refused(message, text))
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

    /// Those that wait ask now and then.
    pub(super) fn cannot_subscribe(&self, text: &str) {
        if !self.deaf.swap(true, Ordering::Relaxed) {
            warn!(
                server = ?self,
                %text,
                "the server lets this user hear of nothing that is given back: waiters ask each second instead; grant it \
                 `+subscribe +ssubscribe &redisson_*`"
            );
        }
    }

    /// What to make of a refusal on the connection of this number.
    fn refused(&self, call: &Call<'_>, text: &str, epoch: u64) -> SendError {
        let error = || Error::refused(format!("the server refused: {text}"), text);
        match code(text) {
            "NOSCRIPT" => SendError::UnknownScript,
            "WRONGTYPE" => {
                let key = call.keys.first().copied().unwrap_or_default();
                SendError::Refused(Error::wrong_kind(key).said(text))
            }
            // This was the primary once: ask where it is now.
            "READONLY" => {
                self.commands.redial(epoch);
                let message = format!(
                    "{self:?} is a replica, and takes no locks; give the primary's address, or that of sentinels: {text}"
                );
                SendError::Replica(Error::refused(message, text).passing())
            }
            // One that has lost its primary, and is told to answer nothing then.
            "MASTERDOWN" => SendError::Replica(error().passing()),
            "CLUSTERDOWN" if text.contains("not served") => SendError::Disowned(error().passing()),
            "MOVED" => {
                slots::redirect(text).map_or_else(|| SendError::Refused(error()), SendError::Moved)
            }
            "ASK" => {
                slots::redirect(text).map_or_else(|| SendError::Refused(error()), SendError::Ask)
            }
            "TRYAGAIN" => SendError::Moving(error().passing()),
            "LOADING" | "BUSY" | "CLUSTERDOWN" => SendError::Refused(error().passing()),
            _ => SendError::Refused(error()),
        }
    }

    /// The error of a call that was not answered, and the note that the server is silent. `repeated` if an earlier send
    /// of it may have run.
    pub(super) fn failed(
        &self,
        started: BootInstant,
        budget: Duration,
        broken: Broken,
        repeated: bool,
    ) -> Error {
        self.commands.redial_if_stalled(self.patience);
        let error = match &broken {
            Broken::Garbled(error) => error.clone().unanswered(),
            Broken::Unsent(reason) if !repeated => Error::new(
                ErrorKind::Backend,
                format!(
                    "{self:?} could not be reached within {budget:?}; the request was not sent: {reason}"
                ),
            )
            .unsent(),
            Broken::Unsent(_) | Broken::Cut(_) | Broken::TimedOut(_) => Error::new(
                ErrorKind::Timeout,
                format!(
                    "{self:?} did not answer within {budget:?}; whether the request ran is unknown"
                ),
            )
            .unanswered(),
        };
        let error = broken.causes(error);
        self.silence.note(started, false, &error);
        error
    }

    /// Sends a command that changes nothing.
    async fn query(&self, words: &[&str], budget: Duration) -> Result<Said, Broken> {
        self.commands.ask(Request::of(words), budget).await
    }

    /// How long the server takes to answer a PING.
    pub(super) async fn ping(&self, budget: Duration) -> Result<Duration, Error> {
        let started = BootInstant::now();
        let said = self.query(&["PING"], budget).await;
        let said = said.map_err(|broken| self.failed(started, budget, broken, false))?;
        self.silence.spoke();
        match said {
            Ok(_) => Ok(started.until(BootInstant::now())),
            Err(text) => {
                let message = format!("{self:?} refused a PING: {text}");
                Err(Error::refused(message, &text))
            }
        }
    }

    /// The run id of the server. Asked for once a connection.
    pub(super) async fn run_id(&self, budget: Duration) -> Result<Arc<str>, Error> {
        let known = || self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let epoch = self.commands.epoch();
        if let Some(known) = &*known()
            && known.epoch == epoch
        {
            return Ok(known.run_id.clone());
        }
        let started = BootInstant::now();
        let said = self.query(&["INFO", "server"], budget).await;
        let said = said.map_err(|broken| self.failed(started, budget, broken, false))?;
        let answer = said.map_err(|text| {
            let message = format!("the server does not tell which one it is: {text}");
            Error::refused(message, &text)
        })?;
        let run_id: Arc<str> = answer
            .info("run_id")
            .ok_or_else(|| answer.unexpected())?
            .into();
        *known() = Some(Known {
            run_id: run_id.clone(),
            epoch,
        });
        Ok(run_id)
    }

    /// What this server knows of the cluster's slots; none if it is in no cluster.
    pub(super) async fn slots(&self, budget: Duration) -> Result<Option<Vec<Range>>, Error> {
        let table = self.query(&["CLUSTER", "SLOTS"], budget).await;
        let table = table.map_err(|broken| {
            let error = Error::new(ErrorKind::Backend, "the server did not tell of its cluster");
            broken.causes(error.passing())
        })?;
        let untold =
            || format!("{self:?} does not tell of its cluster; it may need `+cluster|slots`");
        let table = understood(table, untold)?;
        Ok(table.and_then(|table| slots::ranges(&table)))
    }

    /// Whether the server knows sharded channels. Asked again if the answer is lost: to take that for a no would last for
    /// as long as the client.
    pub(super) async fn has_shards(&self, budget: Duration) -> Result<bool, Error> {
        let mut tries = 1;
        loop {
            match self.query(&["PUBSUB", "SHARDNUMSUB"], budget).await {
                Ok(said) => {
                    let untold = || {
                        format!(
                            "{self:?} does not tell whether it knows sharded channels; it may need `+pubsub|shardnumsub`, \
                             or `PubSub::Plain`"
                        )
                    };
                    return Ok(understood(said, untold)?.is_some());
                }
                Err(_) if tries < PROBES => tries += 1,
                Err(broken) => {
                    let text = format!("{self:?} did not tell how releases are published there");
                    let error = Error::new(ErrorKind::Backend, text);
                    return Err(broken.causes(error.passing()));
                }
            }
        }
    }

    /// The messages of all subscribed channels from now on.
    pub(crate) fn messages(&self) -> Messages {
        self.listener.messages()
    }

    /// Closes the connections.
    pub(super) async fn close(&self) {
        self.listener.close();
        self.commands.close();
        self.transactions.close().await;
    }
}

/// A call as it travels.
pub(super) fn request(call: &Call<'_>, form: Form) -> Request {
    let (command, script) = if form.whole {
        ("EVAL", call.script.source)
    } else {
        ("EVALSHA", call.script.hash())
    };
    let head = [
        Arg::Text(command),
        Arg::Text(script),
        Arg::Number(call.keys.len() as i64),
    ];
    let keys = call.keys.iter().map(|key| Arg::Text(key));
    let words = head
        .into_iter()
        .chain(keys)
        .chain(call.args.iter().copied());
    let length = head.len() + call.keys.len() + call.args.len();
    let request = match form.asking {
        // Both go in one piece: what came between them would have the permission in the command's place.
        true => Request::of(&["ASKING"]),
        false => Request::default(),
    };
    request.runs(call.script).and(length, words, form.publish)
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
