//! Talks to the servers: runs each call on the server of its slot, and yields messages.
//!
//! Commands go over one connection for each server ([`Connection`](connection::Connection)), messages over a second one
//! ([`listener`]), and transactions over a third ([`transaction`]). A connection sends a command once, since only this
//! crate knows which calls may be repeated. (All of its calls may: see `lua/`. So [`Backend::run`] repeats them itself,
//! within its budget.)
//!
//! A cluster is many servers, each with connections of its own, and a map of slots.

mod channels;
mod cluster;
mod connection;
mod contact;
mod desk;
mod dial;
#[cfg(feature = "admin")]
pub(crate) mod inquiry;
mod link;
mod listener;
mod maker;
mod node;
mod post;
mod refusal;
mod resp;
mod sentinel;
mod silence;
mod slots;
#[cfg(feature = "tls")]
mod tls;
mod transaction;

use std::collections::BTreeSet;
use std::fmt;
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{join_all, try_join_all};
use tokio::sync::{mpsc, watch};
use tokio::time::sleep;

use crate::clock::BootInstant;
use crate::config::{Config, Deployment};
use crate::error::{Error, ErrorKind};
use crate::options::Settings;
use crate::protocol::reply::Reply;
use crate::protocol::script::Call;

use channels::Channels;
use cluster::Cluster;
use connection::Broken;
use listener::Verb;
pub(crate) use listener::{Asked, PushEvent};
use maker::Maker;
pub(crate) use node::Node;
use node::{Form, SendError};
pub(crate) use post::Posted;
pub(crate) use slots::slot;

/// The pause between two sends of a call whose connection was cut.
const RESEND_PAUSE: Duration = Duration::from_millis(5);
/// The pause between two sends of a call to a slot that is being moved.
const MOVING_PAUSE: Duration = Duration::from_millis(20);

/// The servers of one client.
pub(crate) struct Backend {
    servers: Servers,
    database: u32,
    timeout: Duration,
}

enum Servers {
    One(Arc<Node>),
    Cluster(Box<Cluster>),
}

/// The answer to a call.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) reply: Reply,
    /// An instant before the answered request was sent.
    pub(crate) sent: BootInstant,
    /// Whether an earlier send of this call went unanswered: it may have run too.
    pub(crate) repeated: bool,
}

/// An event that makes it doubtful whether holds still stand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Disruption {
    /// There is another connection to this server.
    Node(u64),
    /// These slots have moved to another server.
    Slots(BTreeSet<u16>),
}

/// The outcome of subscribing to a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Subscribed {
    Here,
    /// Another server has the slot, and the map has that server by now.
    Elsewhere,
    Refused,
}

impl Backend {
    /// Connects to the server or servers that `config` names. Returns the backend and the stream of disruptions.
    pub(crate) async fn connect(
        config: Config,
        settings: &Settings,
        name: Arc<str>,
    ) -> Result<(Self, Disruptions), Error> {
        let command_timeout = settings.command_timeout;
        let (disrupted, disruptions) = mpsc::unbounded_channel();
        let (deployment, database) = (config.deployment.clone(), config.database);
        let servers = deployment.servers();
        let maker = Maker::new(config, command_timeout, disrupted, name)?;
        let servers = if let Deployment::Cluster(_) = deployment {
            let cluster = Cluster::new(maker, servers, settings.pubsub);
            if !settings.connects_lazily {
                cluster.find().await?;
            }
            Servers::Cluster(Box::new(cluster))
        } else {
            let name = servers.into_iter().next();
            let name = name.ok_or_else(|| Error::invalid("the configuration names no server"))?;
            let node = Node::new(&maker, name);
            match settings.connects_lazily {
                true => node.start(),
                false => node.connect().await?,
            }
            Servers::One(node)
        };
        let backend = Self {
            servers,
            database,
            timeout: command_timeout,
        };
        Ok((backend, Disruptions(disruptions)))
    }

    /// Runs a script and waits for its answer, for at most `budget`. A call that was cut off is sent again within that
    /// time, and a call that was sent to the wrong server follows its slot.
    ///
    /// If the future is dropped, the call may still run.
    pub(crate) async fn run(&self, call: &Call<'_>, budget: Duration) -> Result<Answer, Error> {
        self.go_on(call, budget, None).await
    }

    /// Does the same as [`run`](Self::run), for a call that may have been `posted` before.
    async fn go_on(
        &self,
        call: &Call<'_>,
        budget: Duration,
        mut posted: Option<Posted>,
    ) -> Result<Answer, Error> {
        let key = call.keys.first().copied().unwrap_or_default();
        let started = BootInstant::now();
        let end = started.plus(budget);
        let mut repeated = false;
        let mut strayed = false;
        let (mut node, mut sent) = match &posted {
            Some(posted) => posted.begun(),
            None => (self.home_of(key)?, started),
        };
        // After the look for a server: once the first server is found, the way to publish is known.
        let mut form = Form {
            whole: false,
            asking: false,
            publish: self.channels().publish(),
        };
        // An earlier send may have been carried out, whatever the answer to this one.
        let doubtful = |error: Error, repeated| if repeated { error.unanswered() } else { error };
        loop {
            let answered = match posted.take() {
                Some(posted) => Box::pin(node.replied(call, posted, budget)).await,
                None => node.ask(call, form, sent.until(end)).await,
            };
            let error = match answered {
                Ok(reply) => {
                    return Ok(Answer {
                        reply,
                        sent,
                        repeated,
                    });
                }
                Err(error) => error,
            };
            // ASKING holds for one request. It is kept only if the same server is sent the same request in another
            // form.
            let asked = std::mem::take(&mut form.asking);
            let pause = match &error {
                SendError::UnknownScript | SendError::Scriptless => {
                    form.whole |= matches!(error, SendError::UnknownScript);
                    form.asking = asked;
                    Duration::ZERO
                }
                SendError::Moved(to) | SendError::Ask(to) => {
                    let cluster = self
                        .cluster()
                        .ok_or_else(|| doubtful(in_a_cluster(&node), repeated))?;
                    form.asking = matches!(error, SendError::Ask(_));
                    node = match form.asking {
                        true => cluster.at(to, &node),
                        false => cluster.learn(to, &node),
                    };
                    // Two servers that each redirect to the other agree after a while.
                    if std::mem::replace(&mut strayed, true) {
                        RESEND_PAUSE
                    } else {
                        Duration::ZERO
                    }
                }
                SendError::Moving(_) => MOVING_PAUSE,
                SendError::Broken(Broken::Cut(_) | Broken::Unsent(_)) => RESEND_PAUSE,
                // Not sent again: the pause is longer than any budget.
                SendError::Refused(_)
                | SendError::Replica(_)
                | SendError::Disowned(_)
                | SendError::Broken(_) => Duration::MAX,
            };
            let is_late = BootInstant::now().plus(pause) >= end || {
                if !pause.is_zero() {
                    // A request that was not sent as a whole has not run.
                    repeated |= matches!(error, SendError::Broken(Broken::Cut(_)));
                    sleep(pause).await;
                }
                // The future may not have been polled for a long time. Nothing is sent after its time is over.
                BootInstant::now() >= end
            };
            if is_late {
                let error = self.given_up(&node, error, started, budget, repeated);
                return Err(doubtful(call.blame(error), repeated));
            }
            // After a pause the slot may have another server. A redirection has named the server already.
            if !pause.is_zero() && !matches!(error, SendError::Moved(_) | SendError::Ask(_)) {
                node = self
                    .home_of(key)
                    .map_err(|error| doubtful(error, repeated))?;
            }
            sent = BootInstant::now();
        }
    }

    /// Builds the error of a call that is not sent again. In a cluster, also has the map checked if the server did not
    /// answer or has disowned the slot.
    fn given_up(
        &self,
        node: &Node,
        error: SendError,
        started: BootInstant,
        budget: Duration,
        repeated: bool,
    ) -> Error {
        match error {
            SendError::Refused(error) | SendError::Replica(error) | SendError::Moving(error) => {
                error
            }
            SendError::Disowned(error) => {
                if let Some(cluster) = self.cluster() {
                    cluster.disowned(node);
                }
                error
            }
            SendError::Broken(broken) => {
                let error = node.failed(started, budget, broken, repeated);
                if let Some(cluster) = self.cluster() {
                    cluster.suspect();
                }
                error
            }
            SendError::UnknownScript
            | SendError::Scriptless
            | SendError::Moved(_)
            | SendError::Ask(_) => Error::new(
                ErrorKind::Backend,
                format!("the servers passed the request back and forth for {budget:?}"),
            )
            .passing(),
        }
    }

    /// Builds the error of a call for which no server is known.
    fn homeless(&self, key: &str) -> Error {
        let text = format!("no server of the cluster is known to have the slot of {key}");
        let absence = self.cluster().and_then(Cluster::absence);
        let error = match absence {
            Some((_, reason)) => {
                Error::new(ErrorKind::Backend, format!("{text}: {reason}")).caused_by(reason)
            }
            None => Error::new(ErrorKind::Backend, text),
        };
        error.unsent()
    }

    fn home_of(&self, key: &str) -> Result<Arc<Node>, Error> {
        self.home(key)
            .ok_or_else(|| self.homeless(&format!("{key:?}")))
    }

    /// Returns the run id of the server that has this key.
    pub(crate) async fn server(&self, key: &str, budget: Duration) -> Result<Arc<str>, Error> {
        self.home_of(key)?.run_id(budget).await
    }

    /// Returns the server of a key or a channel.
    pub(crate) fn home(&self, key: &str) -> Option<Arc<Node>> {
        match &self.servers {
            Servers::One(node) => Some(node.clone()),
            Servers::Cluster(cluster) => cluster.home(key),
        }
    }

    /// Returns the group of a key. Keys of different groups cannot be in one request: in a cluster, those of different
    /// slots.
    pub(crate) fn group(&self, key: &str) -> u16 {
        match &self.servers {
            Servers::One(_) => 0,
            Servers::Cluster(_) => slot(key),
        }
    }

    /// Returns the number of the database that the keys lie in.
    pub(crate) fn database(&self) -> u32 {
        self.database
    }

    /// Whether keys of different slots lie on different servers.
    pub(crate) fn is_clustered(&self) -> bool {
        self.cluster().is_some()
    }

    fn cluster(&self) -> Option<&Cluster> {
        match &self.servers {
            Servers::One(_) => None,
            Servers::Cluster(cluster) => Some(cluster),
        }
    }

    /// Returns the servers with a slot.
    pub(crate) fn nodes(&self) -> Vec<Arc<Node>> {
        match &self.servers {
            Servers::One(node) => vec![node.clone()],
            Servers::Cluster(cluster) => cluster.nodes(),
        }
    }

    /// Sends a PING to each server with a slot, waits for all answers, for at most `budget`, and returns the longest
    /// round trip.
    pub(crate) async fn ping(&self, budget: Duration) -> Result<Duration, Error> {
        let nodes = self.nodes();
        let pings = nodes.iter().map(|node| node.ping(budget));
        let answered = try_join_all(pings).await.inspect_err(|_| {
            if let Some(cluster) = self.cluster() {
                cluster.suspect();
            }
        });
        let longest = answered?.into_iter().max();
        longest.ok_or_else(|| self.homeless("any key"))
    }

    /// Whether any server is known, and each server that was needed so far is connected.
    pub(crate) fn is_connected(&self) -> bool {
        let nodes = self.nodes();
        let mut used = nodes.iter().filter(|node| node.is_used());
        !nodes.is_empty() && used.all(|node| node.is_connected())
    }

    /// Returns since when every request to the server of this key went unanswered, or was not for that server to carry
    /// out, and how the last one failed. Returns `None` if there is no such period now.
    pub(crate) fn silence(&self, key: &str) -> Option<(BootInstant, Error)> {
        match self.home(key) {
            Some(node) => node.silence.begun(),
            None => self.cluster()?.absence(),
        }
    }

    /// Whether a caller that can do without a silent server should ask it all the same. `true` counts as a try.
    pub(crate) fn is_to_be_tried(&self, key: &str) -> bool {
        self.home(key)
            .is_none_or(|node| node.silence.is_to_be_tried())
    }

    /// Whether a disruption concerns a hold of this key.
    pub(crate) fn concerns(&self, disruption: &Disruption, key: &str) -> bool {
        match disruption {
            Disruption::Node(id) => self.home(key).is_some_and(|node| node.id() == *id),
            Disruption::Slots(slots) => slots.contains(&slot(key)),
        }
    }

    fn channels(&self) -> Channels {
        self.cluster().map_or(Channels::Plain, Cluster::channels)
    }

    /// Whether a server knows of all subscribers to a channel of its slots.
    pub(crate) fn counts_listeners(&self) -> bool {
        self.channels() != Channels::PlainInCluster
    }

    /// Subscribes to a channel. The outcome is known once the server has [proved](Self::prove) that its messages can
    /// arrive.
    pub(crate) async fn subscribe(&self, node: &Node, channel: &str) -> Result<Asked, Error> {
        let verb = match self.channels() {
            Channels::Sharded => Verb::SubscribeSharded,
            _ => Verb::Subscribe,
        };
        node.listener.tell(verb, channel, self.timeout).await
    }

    /// Returns the outcome of a subscription. If the slot has moved, the map learns of it.
    pub(crate) fn subscribed(&self, node: &Arc<Node>, asked: Asked) -> Subscribed {
        match (asked.outcome(), self.cluster()) {
            (Ok(Some(redirect)), Some(cluster)) => {
                cluster.learn(&redirect, node);
                Subscribed::Elsewhere
            }
            (Ok(_), _) => Subscribed::Here,
            (Err(text), _) => {
                node.cannot_subscribe(&text);
                Subscribed::Refused
            }
        }
    }

    /// Unsubscribes from a channel.
    pub(crate) async fn unsubscribe(&self, node: &Node, channel: &str) -> Result<(), Error> {
        let verb = match self.channels() {
            // The old server has taken the channel away together with its slot.
            Channels::Sharded if self.home(channel).is_none_or(|home| *home != *node) => {
                return Ok(());
            }
            Channels::Sharded => Verb::UnsubscribeSharded,
            _ => Verb::Unsubscribe,
        };
        node.listener
            .tell(verb, channel, self.timeout)
            .await
            .map(drop)
    }

    /// Proves that messages of this server can arrive, and that earlier commands on that connection have been answered.
    pub(crate) async fn prove(&self, node: &Node) -> Result<(), Error> {
        node.listener.ping(self.timeout).await
    }

    /// Has another connection made for the messages of a server.
    pub(crate) fn relisten(&self, node: &Node) {
        node.listener.relisten();
    }

    /// Returns the stream of moves of slots from now on.
    pub(crate) fn moves(&self) -> Moves {
        Moves(self.cluster().map(Cluster::moves))
    }

    /// Follows the slots of a cluster until the future is dropped. Without a cluster, only waits.
    pub(crate) async fn keep(&self) {
        match self.cluster() {
            Some(cluster) => cluster.keep().await,
            None => pending().await,
        }
    }

    /// Closes all connections.
    pub(crate) async fn close(&self) {
        join_all(self.nodes().iter().map(|node| node.close())).await;
    }
}

impl fmt::Debug for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Backend")
            .field("servers", &self.nodes())
            .field("channels", &self.channels())
            .finish_non_exhaustive()
    }
}

/// Builds the error of a server that redirects a request although it was configured as a single one.
fn in_a_cluster(node: &Node) -> Error {
    let text = format!("{node:?} is in a cluster; use the URL redis-cluster://{node:?}");
    Error::new(ErrorKind::Backend, text)
}

/// The stream of events that make holds doubtful.
#[derive(Debug)]
pub(crate) struct Disruptions(mpsc::UnboundedReceiver<Disruption>);

impl Disruptions {
    /// Waits for the next disruption. Returns `None` once the backend is gone.
    pub(crate) async fn next(&mut self) -> Option<Disruption> {
        self.0.recv().await
    }
}

/// The stream of moves of slots.
#[derive(Debug)]
pub(crate) struct Moves(Option<watch::Receiver<()>>);

impl Moves {
    /// Waits for the next move of slots. Without a cluster there is none, and this waits without end.
    pub(crate) async fn next(&mut self) {
        let moved = match &mut self.0 {
            Some(moves) => moves.changed().await.is_ok(),
            None => false,
        };
        if !moved {
            pending::<()>().await;
        }
    }
}
