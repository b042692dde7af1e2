//! One server: its connection for commands, one for messages, so that neither waits for the other, and one for
//! transactions if they are needed. Also keeps whether the server has been answering.
//!
//! A node is one address, or the primary of a service that sentinels watch. A restart or a failover may replace the
//! server behind it. Its connections then have another number (`epoch`), and what was learned of the server counts only
//! for the number under which it was learned. [`send_error`](super::send_error) decides what a failed send means.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{Semaphore, mpsc};

use super::Disruption;
use super::connection::{Broken, Connection};
use super::dial::is_of_replica;
use super::listener::{Listener, Messages};
use super::maker::Maker;
use super::refusal::understood;
use super::replicas::Replicas;
use super::resp::{Said, WireRequest};
use super::send_error::SendError;
use super::silence::{Comeback, Silence};
use super::slots::{self, Range};
use super::transaction::Transactions;
use crate::clock::BootInstant;
use crate::config::Server;
use crate::error::{Error, ErrorKind};
use crate::protocol::reply::Reply;
use crate::protocol::script::{Arg, Call, Steps, Unscripted};
use crate::protocol::sent_over::Carrier;

/// How many times a server is asked whether it knows sharded channels, if no answer comes.
const PROBES: usize = 3;

/// The most holds that requests in flight to one server may concern. A server renews that many in about ten
/// milliseconds, so even one that gets little processor time answers before the requests time out.
const ROOM: usize = 2_000;

/// The connections to one server, and what is known of it.
pub(crate) struct Node {
    /// Identifies the server in channels, disruptions and the retry queue.
    id: u64,
    /// The address as configured. In a cluster, the server's own address.
    name: Server,
    /// For calls, and for questions about the server.
    pub(super) commands: Connection,
    /// For messages. Connected once a call waits, unless the client connects to all at once.
    pub(super) listener: Listener,
    /// For plain locks where scripts are not allowed.
    pub(super) transactions: Transactions,
    /// For calls that wait for replicas, if the client asks for any.
    pub(super) replicas: Option<Arc<Replicas>>,
    /// Whether the server has said that this user may run no scripts. If that changes, only a round trip is lost.
    /// Relaxed: nothing else depends on it.
    pub(super) scriptless: AtomicBool,
    /// Whether the server has refused to publish, which is logged once. Relaxed: nothing else depends on it.
    pub(super) mute: AtomicBool,
    /// Whether the server has refused a subscription, which is logged once. Relaxed: nothing else depends on it.
    pub(super) deaf: AtomicBool,
    /// The period in which the server has failed every request, if it fails them now.
    pub(super) silence: Silence,
    /// The run id, once the server was asked for it.
    known: Mutex<Option<KnownServer>>,
    /// One permit for each hold that renewals and checks in flight may concern.
    pub(crate) room: Semaphore,
    /// How long a connection may leave a request unanswered before it is replaced.
    pub(super) patience: Duration,
    /// Where to report that the server has fallen silent, and that it answers again.
    disruptions: mpsc::UnboundedSender<Disruption>,
}

/// The identity of the server that the commands go to. Valid as long as the connection has this number.
struct KnownServer {
    run_id: Arc<str>,
    /// The number of the connection on which it said so.
    epoch: u64,
}

/// How a call is sent: what may differ between two sends of one call.
#[derive(Clone, Copy, Debug)]
pub(super) struct SendForm {
    /// Whether to send the script itself instead of its hash, which the server may not know.
    pub(super) whole: bool,
    /// Whether the call goes to a server that the slot is being moved to.
    ///
    /// Such a server accepts the call only right after `ASKING`.
    pub(super) asking: bool,
    /// The command that publishes to subscribers.
    pub(super) publish: &'static str,
}

impl Node {
    /// Creates a server that is not connected before its first use.
    pub(super) fn new(maker: &Maker, name: Server) -> Arc<Self> {
        // Ids distinguish nodes, including two of one server that was let go and found again.
        static IDS: AtomicU64 = AtomicU64::new(0);
        let id = IDS.fetch_add(1, Ordering::Relaxed);
        Arc::new(Self {
            id,
            commands: maker.connection(&name, id),
            listener: maker.listener(&name),
            transactions: maker.transactions(&name),
            replicas: maker
                .min_replicas
                .map(|asked| Replicas::new(maker, &name, asked)),
            name,
            scriptless: AtomicBool::new(false),
            mute: AtomicBool::new(false),
            deaf: AtomicBool::new(false),
            silence: Silence::default(),
            known: Mutex::default(),
            room: Semaphore::new(ROOM),
            patience: maker.command_timeout,
            disruptions: maker.disruptions.clone(),
        })
    }

    /// Connects now, and returns `Err` if that fails.
    ///
    /// So a wrong address or login shows when the client is made.
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

    /// Returns the number of this node, which no other node of this process has.
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// Returns the present connection for commands. A later request goes over this one or over its successor.
    pub(super) fn carrier(&self) -> Carrier {
        (self.id, self.commands.epoch())
    }

    /// Returns the address. Redirections without a host are relative to it.
    pub(super) fn name(&self) -> &Server {
        &self.name
    }

    /// Sends a call once, or carries out its steps if it does not go by script.
    ///
    /// If the future is dropped, the call may still run; nothing is noted then.
    pub(super) async fn ask(
        &self,
        call: &Call<'_>,
        form: SendForm,
        left: Duration,
    ) -> Result<Reply, SendError> {
        let end = BootInstant::now().plus(left);
        let answered = match self.steps(call) {
            Some(steps) => Box::pin(self.step(call, steps, form.asking, left))
                .await
                .map_err(|fault| self.missed_by(call, fault)),
            None => self.send(call, form, left).await,
        };
        self.note(&answered, end).await;
        answered
    }

    /// Records whether the server has answered, as a primary or as a replica.
    ///
    /// An answer ends a silence. If the server was a replica before, it is asked for its role first, until `end`.
    pub(super) async fn note(&self, answered: &Result<Reply, SendError>, end: BootInstant) {
        match answered {
            // `failed` records the silence once the call is given up.
            Err(SendError::Broken(_)) => {}
            Err(SendError::Replica(error)) => self.is_silent(BootInstant::now(), true, error),
            _ if self.spoke() != Comeback::PerhapsReplica => {}
            // A replica, too, refuses a key of the wrong kind, say. So the server is asked for its role.
            _ => match Box::pin(self.query(&["ROLE"], BootInstant::now().until(end))).await {
                Ok(role) if !is_of_replica(Some(&role)) => {
                    self.silence.end();
                    self.answers_again();
                }
                _ => {}
            },
        }
    }

    /// Records a request from `started` that the server failed, and reports the first one of a silence.
    pub(super) fn is_silent(&self, started: BootInstant, is_replica: bool, error: &Error) {
        if self.silence.note(started, is_replica, error) {
            let silent = Disruption::Silent {
                node: self.id,
                server: format!("{self:?}"),
                since: started,
                error: error.clone(),
            };
            // While the client closes, nobody receives this.
            self.disruptions.send(silent).ok();
        }
    }

    /// Records an answer, and reports the end of a silence.
    pub(super) fn spoke(&self) -> Comeback {
        let heard = self.silence.spoke();
        if heard == Comeback::Again {
            self.answers_again();
        }
        heard
    }

    /// Whether the server fails every request now.
    pub(crate) fn is_outage(&self) -> bool {
        self.silence.begun().is_some()
    }

    fn answers_again(&self) {
        self.disruptions.send(Disruption::Answers(self.id)).ok();
    }

    /// Sends a call by its script, and interprets the reply.
    async fn send(
        &self,
        call: &Call<'_>,
        form: SendForm,
        left: Duration,
    ) -> Result<Reply, SendError> {
        // Read before the request: if the connection changes in between, a request to replace the old one has no
        // effect.
        let epoch = self.commands.epoch();
        let replied = self.commands.ask(request(call, form), left).await;
        self.heard(call, replied, epoch)
    }

    /// Returns the steps to take in place of the script, or `None` if the script is to be sent.
    ///
    /// A call that was made for scripts only is always sent as a script, and refused where there are none.
    pub(super) fn steps<'c, 'a>(&self, call: &'c Call<'a>) -> Option<&'c Steps<'a>> {
        match &call.unscripted {
            Unscripted::Instead(steps) => Some(steps),
            Unscripted::Fallback(steps) if self.scriptless.load(Ordering::Relaxed) => Some(steps),
            _ => None,
        }
    }

    /// Sends a command that changes nothing.
    ///
    /// So a lost answer does no harm.
    async fn query(&self, words: &[&str], budget: Duration) -> Result<Said, Broken> {
        self.commands.ask(WireRequest::of(words), budget).await
    }

    /// Sends a PING, and returns how long the server took to answer.
    ///
    /// An answer of any kind shows that the server is there.
    pub(super) async fn ping(&self, budget: Duration) -> Result<Duration, Error> {
        let started = BootInstant::now();
        let said = self.query(&["PING"], budget).await;
        let said = said.map_err(|broken| self.failed(started, budget, broken, false))?;
        self.spoke();
        match said {
            Ok(_) => Ok(started.until(BootInstant::now())),
            Err(text) => {
                let message = format!("{self:?} refused a PING: {text}");
                Err(Error::refused(message, &text))
            }
        }
    }

    /// Asks the server whether it answers, and records the result.
    pub(crate) async fn probe(&self) {
        drop(self.ping(self.patience).await);
    }

    /// Returns the run id of the server. Asks for it once for each connection.
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
        *known() = Some(KnownServer {
            run_id: run_id.clone(),
            epoch,
        });
        Ok(run_id)
    }

    /// Returns what this server knows of the cluster's slots, or `None` if it is in no cluster.
    ///
    /// A failure does not count as silence, since servers that no call goes to are asked too.
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

    /// Whether the server knows sharded channels. Asks again if the answer is lost: a wrong no would last as long as
    /// the client.
    ///
    /// A server that does not know the command has no sharded channels.
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
    pub(super) fn close(&self) {
        self.listener.close();
        self.commands.close();
        if let Some(replicas) = &self.replicas {
            replicas.close();
        }
        self.transactions.close();
    }
}

/// Encodes a call.
///
/// The script goes as a whole or by its hash. A server that does not know the hash says so and runs nothing.
pub(super) fn request(call: &Call<'_>, form: SendForm) -> WireRequest {
    let (command, script) = if form.whole {
        ("EVAL", call.script.source())
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
    WireRequest::asking(form.asking)
        .runs(call.script, form.whole)
        .and(length, words, form.publish)
}

impl PartialEq for Node {
    fn eq(&self, other: &Self) -> bool {
        self.id == other.id
    }
}

/// The address, and with sentinels that of the primary.
impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let primary = self.commands.primary();
        write!(f, "{}", primary.as_ref().unwrap_or(&self.name))
    }
}
