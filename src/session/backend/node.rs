//! One server: its connection for commands, one for messages, so that neither waits for the other, and one for
//! transactions if they are needed. Also keeps whether the server has been answering.

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

/// How many times a server is asked whether it knows sharded channels, if no answer comes.
const PROBES: usize = 3;

/// The connections to one server.
pub(crate) struct Node {
    id: u64,
    /// The address as configured. In a cluster, the server's own address.
    name: Server,
    pub(super) commands: Connection,
    pub(super) listener: Listener,
    pub(super) transactions: Transactions,
    /// Whether the server has said that this user may run no scripts. If that changes, nothing is lost but a round
    /// trip. Relaxed: nothing else depends on it.
    scriptless: AtomicBool,
    /// Whether the server has refused to publish, which is logged once. Relaxed: nothing else depends on it.
    mute: AtomicBool,
    /// Whether the server has refused a subscription, which is logged once. Relaxed: nothing else depends on it.
    deaf: AtomicBool,
    pub(super) silence: Silence,
    /// The run id, once the server was asked for it.
    known: Mutex<Option<Known>>,
    /// How long a connection may leave a request unanswered before it is replaced.
    patience: Duration,
}

/// Which server the commands go to, as the server has said.
struct Known {
    run_id: Arc<str>,
    /// The number of the connection on which it said so.
    epoch: u64,
}

/// How a call is sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Form {
    /// Whether the script itself is sent, and not its hash, which the server may not know.
    pub(super) whole: bool,
    /// Whether the call goes to a server that the slot is only being moved to.
    pub(super) asking: bool,
    /// The command that publishes to subscribers.
    pub(super) publish: &'static str,
}

/// Why one attempt to send a call brought no answer.
pub(super) enum SendError {
    /// The server does not know the script by its hash; the script did not run.
    UnknownScript,
    /// No answer came.
    Broken(Broken),
    /// This user may run no scripts; this one did not run.
    Scriptless,
    /// Another server has the slot; nothing ran.
    Moved(Redirect),
    /// The slot is being moved, and the keys of the call have been already; nothing ran.
    Ask(Redirect),
    /// The slot is being moved, and so far only some of the keys of the call have been; nothing ran.
    Moving(Error),
    /// The server is a replica, which takes no locks; nothing was changed.
    Replica(Error),
    /// The server does not have the slot, and knows no server that does; nothing ran.
    Disowned(Error),
    Refused(Error),
}

/// Why a command, or a sequence of commands, was not completed.
pub(super) enum Fault {
    Broken(Broken),
    /// The server refused, in these words.
    Refused(String),
}

impl From<Broken> for Fault {
    fn from(broken: Broken) -> Self {
        Self::Broken(broken)
    }
}

impl Node {
    pub(super) fn new(maker: &Maker, name: Server) -> Arc<Self> {
        // Ids distinguish nodes, including two of one server that was let go and found again.
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

    /// Connects now, and returns `Err` if that fails.
    pub(super) async fn connect(&self) -> Result<(), Error> {
        self.commands.connect().await?;
        self.listener.connect().await
    }

    /// Connects in the background, and keeps trying until that succeeds.
    pub(super) fn start(&self) {
        self.commands.start();
    }

    /// Whether a connection was ever made, or tried.
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

    /// Sends a call once, or carries out its steps if it does not go by script.
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

    /// Takes note of whether the server has answered, and as a primary or as a replica.
    pub(super) async fn note(&self, answered: &Result<Reply, SendError>, left: Duration) {
        match answered {
            // The silence is noted by `failed`, once the call is given up.
            Err(SendError::Broken(_)) => {}
            Err(SendError::Replica(error)) => self.silence.note(BootInstant::now(), true, error),
            _ if self.silence.spoke() => {}
            // A replica, too, answers a call that only reads or finds a lock busy. So the server is asked for its role.
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

    /// Interprets what came in reply to a call on the connection with the number `epoch`.
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

    /// Returns the steps to take in place of the script, or `None` if the script is to be sent.
    pub(super) fn steps<'c, 'a>(&self, call: &'c Call<'a>) -> Option<&'c Steps<'a>> {
        match &call.unscripted {
            Unscripted::Steps(steps, ReleaseBy::Transaction) => Some(steps),
            Unscripted::Steps(steps, ReleaseBy::Auto)
                if self.scriptless.load(Ordering::Relaxed) =>
            {
                Some(steps)
            }
            _ => None,
        }
    }

    /// Interprets a fault of a call.
    fn missed_by(&self, call: &Call<'_>, fault: Fault) -> SendError {
        match fault {
            Fault::Refused(text) => self.refused(call, &text, self.commands.epoch()),
            Fault::Broken(broken) => SendError::Broken(broken),
        }
    }

    /// Interprets the refusal to run scripts. With [`ReleaseBy::Auto`], later calls of plain locks go by steps at once.
    fn without_scripts(&self, call: &Call<'_>, text: &str) -> SendError {
        let message = match &call.unscripted {
            Unscripted::Steps(_, ReleaseBy::Auto) => {
                if !self.scriptless.swap(true, Ordering::Relaxed) {
                    info!(%text, "scripts are not allowed: plain locks use transactions");
                }
                return SendError::Scriptless;
            }
            Unscripted::Steps(..) => format!(
                "this plain lock uses scripts only, which the server does not allow this user to run; it can use \
                 transactions: {text}"
            ),
            Unscripted::Refused(lock) => format!(
                "{lock} needs scripts, which the server does not allow this user to run; plain_lock needs none: {text}"
            ),
        };
        SendError::Refused(Error::refused(message, text))
    }

    /// Logs once that the server refuses to publish. What the script did stands, and the waiters find it by asking.
    fn cannot_publish(&self, text: &str) {
        if !self.mute.swap(true, Ordering::Relaxed) {
            warn!(
                server = ?self,
                %text,
                "the server does not allow this user to publish releases: waiters ask after `poll_cap` instead; \
                 grant it `+publish +spublish &redisson_*`"
            );
        }
    }

    /// Logs once that the server refuses a subscription. The waiters ask now and then.
    pub(super) fn cannot_subscribe(&self, text: &str) {
        if !self.deaf.swap(true, Ordering::Relaxed) {
            warn!(
                server = ?self,
                %text,
                "the server does not allow this user to subscribe to releases: waiters ask every second instead; \
                 grant it `+subscribe +ssubscribe &redisson_*`"
            );
        }
    }

    /// Interprets a refusal on the connection with the number `epoch`.
    fn refused(&self, call: &Call<'_>, text: &str, epoch: u64) -> SendError {
        let error = || Error::refused(format!("the server refused: {text}"), text);
        match code(text) {
            "NOSCRIPT" => SendError::UnknownScript,
            "WRONGTYPE" => {
                let key = call.keys.first().copied().unwrap_or_default();
                SendError::Refused(Error::wrong_kind(key).said(text))
            }
            // This server was the primary before: another connection finds where the primary is now.
            "READONLY" => {
                self.commands.redial(epoch);
                let message = format!(
                    "{self:?} is a replica and grants no locks; give the address of the primary or of the sentinels: {text}"
                );
                SendError::Replica(Error::refused(message, text).passing())
            }
            // A replica that has lost its primary, and is configured to answer nothing then.
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

    /// Builds the error of a call that was not answered, and takes note that the server is silent. `repeated` says that
    /// an earlier send of the call may have run. Also replaces a connection that has stalled.
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
            // Only if no send can have run is the call known to have changed nothing.
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

    /// Sends a PING, and returns how long the server took to answer.
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

    /// Returns the run id of the server, which is asked for once for each connection.
    pub(super) async fn run_id(&self, budget: Duration) -> Result<Arc<str>, Error> {
        let known = || self.known.lock().unwrap_or_else(PoisonError::into_inner);
        // Read before the question: if the connection changes during it, the run id is asked for again.
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
            let message = format!("the server does not report its run id: {text}");
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

    /// Returns what this server knows of the cluster's slots, or `None` if it is in no cluster.
    pub(super) async fn slots(&self, budget: Duration) -> Result<Option<Vec<Range>>, Error> {
        let table = self.query(&["CLUSTER", "SLOTS"], budget).await;
        let table = table.map_err(|broken| {
            let error = Error::new(
                ErrorKind::Backend,
                "the server did not report the slots of its cluster",
            );
            broken.causes(error.passing())
        })?;
        let untold = || {
            format!(
                "{self:?} does not report the slots of its cluster; the user may need `+cluster|slots`"
            )
        };
        let table = understood(table, untold)?;
        Ok(table.and_then(|table| slots::ranges(&table)))
    }

    /// Whether the server knows sharded channels. Asks again if the answer is lost: if that were taken for a no, the no
    /// would last as long as the client.
    pub(super) async fn has_shards(&self, budget: Duration) -> Result<bool, Error> {
        let mut tries = 1;
        loop {
            match self.query(&["PUBSUB", "SHARDNUMSUB"], budget).await {
                Ok(said) => {
                    let untold = || {
                        format!(
                            "{self:?} does not report whether it has sharded channels; the user may need \
                             `+pubsub|shardnumsub`; or set `PubSub::Plain`"
                        )
                    };
                    return Ok(understood(said, untold)?.is_some());
                }
                Err(_) if tries < PROBES => tries += 1,
                Err(broken) => {
                    let text = format!("{self:?} did not report how releases are published there");
                    let error = Error::new(ErrorKind::Backend, text);
                    return Err(broken.causes(error.passing()));
                }
            }
        }
    }

    /// Returns the messages of all subscribed channels from now on.
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

/// Encodes a call.
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
        // Both go in one piece: a command between them would use up the permission.
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
