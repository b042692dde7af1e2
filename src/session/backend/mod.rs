//! Talks to the servers: runs each call on the server of its slot, and yields messages.
//!
//! Commands go over one connection for each server ([`Connection`](connection::Connection)), messages over a second one
//! ([`listener`]), and transactions over a third ([`transaction`]). A connection sends each command once.
//! [`Backend::run`] repeats a call within its budget, as all calls of this crate may be repeated: see `lua/`.
//!
//! A cluster is many servers, each with connections of its own, and a map of slots.
//!
//! From top to bottom: [`run`] takes one call to its answer; [`node`] is a server, and sends the call once;
//! [`connection`] keeps a connection and [`desk`] its requests in order; [`dial`] and [`link`] open it; [`socket`]
//! carries bytes, which [`resp`] encodes and decodes. Next to these, [`cluster`] and [`sentinel`] know which server to
//! use.
//!
//! # Invariants
//!
//! 1. An error speaks of the whole call: it is [`Error::is_unsent`] only if no send of the call can have run, and
//!    [`Error::is_unanswered`] if one may have.
//! 2. Nothing is sent after the budget of a call is over, however late its future is polled.
//! 3. An answer carries an instant before its request was sent, from which promises may be counted.
//!
//! The connections are our own. fred's keep a request for a server that is away, and send it when the server is back.
//! In a cluster, one dead server made calls to all servers time out. `docs/why-our-own-connection.md` has the figures.

mod channels;
mod cluster;
mod connection;
mod connection_task;
mod contact;
mod desk;
mod dial;
mod identity;
#[cfg(feature = "unstable-admin")]
pub(crate) mod inquiry;
mod link;
mod listener;
mod maker;
mod meter;
mod network;
mod node;
mod post;
mod refusal;
mod replicas;
mod resp;
mod run;
#[cfg(feature = "tls")]
mod secured;
mod send_error;
mod sentinel;
mod silence;
mod slots;
mod socket;
mod statement;
#[cfg(feature = "tls")]
mod tls;
mod told;
mod transaction;

use std::collections::BTreeSet;
use std::fmt;
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::try_join_all;
use tokio::sync::{mpsc, watch};

use crate::clock::BootInstant;
use crate::config::{Config, Deployment};
use crate::error::{Error, ErrorKind};
use crate::options::Settings;

use channels::Channels;
use cluster::Cluster;
pub(crate) use listener::{ChannelOrder, PushEvent};
use maker::Maker;
pub(crate) use meter::Meter;
pub(crate) use node::Node;
pub(crate) use post::Posted;
pub(crate) use replicas::{Acknowledged, Look};
pub(crate) use run::Answer;
pub(crate) use slots::slot;

/// The servers of one client. Connects to each when it is first needed, and keeps connecting until
/// [`close`](Self::close).
pub(crate) struct Backend {
    /// One server, or those of a cluster.
    servers: Servers,
    /// The time limit of commands about channels, for which no call sets one.
    timeout: Duration,
}

/// The servers. Sentinels are not among them: they name the one server.
enum Servers {
    One(Arc<Node>),
    Cluster(Box<Cluster>),
}

/// An event that makes it doubtful whether holds still stand. The watchdog checks the holds that it
/// [concerns](Backend::concerns).
#[derive(Clone, Debug)]
pub(crate) enum Disruption {
    /// A new connection to this server was made: it may lead to another server, or to one that has lost its data.
    Node(u64),
    /// The connection to this server broke, and the first attempt to replace it failed. If no call asks the server,
    /// nobody else notices.
    Unreachable(u64),
    /// These slots have moved to another server: a failover may have lost what was written last.
    Slots(BTreeSet<u16>),
    /// This server has begun to fail requests: until it [answers](Self::Answers), nothing confirms its holds.
    Silent {
        node: u64,
        /// Its address.
        server: String,
        /// Since when it does not answer.
        since: BootInstant,
        error: Error,
    },
    /// This server answers again.
    Answers(u64),
    /// From now on, messages on the client's own channel arrive. Earlier ones may have been missed.
    Heard,
    /// A message announced that the hold with this acquisition id was released by force.
    Forced(String),
}

impl Backend {
    /// Connects to the server or servers that `config` names. Returns the backend and the stream of disruptions.
    ///
    /// Unless `settings.connects_lazily`, fails if no server can be reached. If it fails or if the future is dropped,
    /// nothing is left running.
    pub(crate) async fn connect(
        config: Config,
        settings: &Settings,
        name: Arc<str>,
        meter: Arc<dyn Meter>,
    ) -> Result<(Self, Disruptions), Error> {
        let (disrupted, disruptions) = mpsc::unbounded_channel();
        let deployment = config.deployment.clone();
        let servers = deployment.servers();
        let maker = Maker::new(config, settings, name, meter, disrupted)?;
        let servers = if let Deployment::Cluster(_) = deployment {
            let cluster = Cluster::new(maker, servers, settings.pubsub.sharded());
            if !settings.connects_lazily {
                cluster.find().await?;
            }
            Servers::Cluster(Box::new(cluster))
        } else {
            let first = servers.into_iter().next();
            let first = first.ok_or_else(|| Error::invalid("the configuration names no server"))?;
            let node = Node::new(&maker, first);
            match settings.connects_lazily {
                true => node.start(),
                false => node.connect().await?,
            }
            Servers::One(node)
        };
        let backend = Self {
            servers,
            timeout: settings.command_timeout,
        };
        Ok((backend, disruptions))
    }

    /// Builds the error of a call for which no server is known: nothing was sent.
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

    /// Returns the server of a key, or an error if no server is known.
    fn home_of(&self, key: &str) -> Result<Arc<Node>, Error> {
        self.home(key)
            .ok_or_else(|| self.homeless(&format!("{key:?}")))
    }

    /// Returns the run id of the server that has this key.
    ///
    /// Two keys with the same run id are on one server, whatever addresses the clients use for it.
    pub(crate) async fn server(&self, key: &str, budget: Duration) -> Result<Arc<str>, Error> {
        self.home_of(key)?.run_id(budget).await
    }

    /// Returns the server of a key or a channel.
    ///
    /// In a cluster, the server changes with the map. `None` if no server of the cluster is known.
    pub(crate) fn home(&self, key: &str) -> Option<Arc<Node>> {
        match &self.servers {
            Servers::One(node) => Some(node.clone()),
            Servers::Cluster(cluster) => cluster.home(key),
        }
    }

    /// Returns the group of a key. One request takes only keys of one group: in a cluster, those of one slot.
    pub(crate) fn group(&self, key: &str) -> u16 {
        match &self.servers {
            Servers::One(_) => 0,
            Servers::Cluster(_) => slot(key),
        }
    }

    /// Whether keys of different slots lie on different servers.
    pub(crate) fn is_clustered(&self) -> bool {
        self.cluster().is_some()
    }

    /// Returns the cluster, if there is one.
    fn cluster(&self) -> Option<&Cluster> {
        match &self.servers {
            Servers::One(_) => None,
            Servers::Cluster(cluster) => Some(cluster),
        }
    }

    /// Returns the servers with a slot, and in a cluster those that one is moving to.
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
        // A server that does not answer may have lost its slots, so the others are asked about them.
        let answered = try_join_all(pings).await.inspect_err(|_| {
            if let Some(cluster) = self.cluster() {
                cluster.suspect();
            }
        });
        let longest = answered?.into_iter().max();
        longest.ok_or_else(|| self.homeless("any key"))
    }

    /// Whether any server is known and every server that was used so far is connected.
    ///
    /// A server that no call has used has no connection to lose.
    pub(crate) fn is_connected(&self) -> bool {
        let nodes = self.nodes();
        let mut used = nodes.iter().filter(|node| node.is_used());
        !nodes.is_empty() && used.all(|node| node.is_connected())
    }

    /// Returns since when the server of this key has failed every request, by silence or as a replica, and how the last
    /// one failed. Returns `None` if it has not.
    ///
    /// Callers measure their patience from that instant. A new connection does not end the silence; only an answer
    /// does.
    pub(crate) fn silence(&self, key: &str) -> Option<(BootInstant, Error)> {
        match self.home(key) {
            Some(node) => node.silence.begun(),
            None => self.cluster()?.absence(),
        }
    }

    /// Whether the server of this key has answered since any request to it failed.
    pub(crate) fn answers(&self, key: &str) -> bool {
        self.silence(key).is_none()
    }

    /// Whether a caller that can do without a silent server should try it all the same. `true` counts as a try.
    ///
    /// For locks on several servers, which can do without one. The try shows when the server is back.
    pub(crate) fn is_to_be_tried(&self, key: &str) -> bool {
        self.home(key)
            .is_none_or(|node| node.silence.is_to_be_tried())
    }

    /// Whether a disruption concerns a hold of this key.
    pub(crate) fn concerns(&self, disruption: &Disruption, key: &str) -> bool {
        match disruption {
            Disruption::Node(id)
            | Disruption::Unreachable(id)
            | Disruption::Answers(id)
            | Disruption::Silent { node: id, .. } => {
                self.home(key).is_some_and(|node| node.id() == *id)
            }
            Disruption::Slots(slots) => slots.contains(&slot(key)),
            Disruption::Heard => true,
            // It concerns a single hold, which its key does not identify.
            Disruption::Forced(_) => false,
        }
    }

    /// Returns how releases are published.
    fn channels(&self) -> Channels {
        self.cluster().map_or(Channels::Plain, Cluster::channels)
    }

    /// Whether a server knows of all subscribers to a channel of its slots.
    ///
    /// In a cluster with plain channels it knows only its own.
    pub(crate) fn counts_listeners(&self) -> bool {
        self.channels() != Channels::PlainInCluster
    }

    /// Subscribes to a channel. The outcome is known once the server has [proved](Self::prove) that its messages can
    /// arrive.
    ///
    /// Returns once a connection has taken the command. Fails if there is none within the timeout.
    pub(crate) async fn subscribe(
        &self,
        node: &Node,
        channel: &str,
    ) -> Result<ChannelOrder, Error> {
        let command = match self.channels() {
            Channels::Sharded => "SSUBSCRIBE",
            _ => "SUBSCRIBE",
        };
        node.listener.tell(command, channel, self.timeout).await
    }

    /// Returns whether a channel is subscribed, and updates the map if its slot has moved.
    ///
    /// A refusal is logged once for each server. It is not an error: the connection is good, and other channels may be
    /// allowed.
    pub(crate) fn subscribed(&self, node: &Arc<Node>, asked: ChannelOrder) -> bool {
        match (asked.outcome(), self.cluster()) {
            (Ok(Some(redirect)), Some(cluster)) => {
                cluster.learn(&redirect, node);
                false
            }
            (Ok(_), _) => true,
            (Err(text), _) => {
                node.cannot_subscribe(&text);
                false
            }
        }
    }

    /// Unsubscribes from a channel.
    ///
    /// Ignores the outcome: a channel that stays subscribed costs a message now and then.
    pub(crate) async fn unsubscribe(&self, node: &Node, channel: &str) -> Result<(), Error> {
        let command = match self.channels() {
            // The old server has taken the channel away together with its slot.
            Channels::Sharded if self.home(channel).is_none_or(|home| *home != *node) => {
                return Ok(());
            }
            Channels::Sharded => "SUNSUBSCRIBE",
            _ => "UNSUBSCRIBE",
        };
        let told = node.listener.tell(command, channel, self.timeout).await;
        told.map(drop)
    }

    /// Proves that messages from this server can arrive, and that the server has answered all earlier commands on that
    /// connection.
    ///
    /// Fails if the server has not answered within the timeout, or refuses.
    pub(crate) async fn prove(&self, node: &Node) -> Result<(), Error> {
        node.listener.ping(self.timeout).await
    }

    /// Replaces the connection for a server's messages.
    ///
    /// Returns at once. Its messages are then preceded by [`PushEvent::Reconnected`].
    pub(crate) fn relisten(&self, node: &Node) {
        node.listener.relisten();
    }

    /// Subscribes to the client's own channel, or unsubscribes: see [`Disruption::Heard`] and [`Disruption::Forced`].
    ///
    /// One server is enough: in a cluster, a message reaches the subscribers of all servers. If that server gets out of
    /// reach, another one takes its place.
    pub(crate) fn attend(&self, attends: bool) {
        let nodes = self.nodes();
        let mut in_reach = nodes.iter().filter(|node| node.is_connected());
        if !attends {
            nodes.iter().for_each(|node| node.listener.attend(false));
        } else if !in_reach.clone().any(|node| node.listener.is_attending())
            && let Some(node) = in_reach.next()
        {
            node.listener.attend(true);
        }
    }

    /// Whether the client listens to its own channel on a server in reach.
    pub(crate) fn is_attending(&self) -> bool {
        let is_attending = |node: &Arc<Node>| node.is_connected() && node.listener.is_attending();
        self.nodes().iter().any(is_attending)
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
    ///
    /// Unanswered requests end with them.
    pub(crate) fn close(&self) {
        self.nodes().iter().for_each(|node| node.close());
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

/// The stream of events that make holds doubtful.
///
/// Unbounded, since a dropped event would leave holds unchecked.
pub(crate) type Disruptions = mpsc::UnboundedReceiver<Disruption>;

/// The stream of moves of slots.
///
/// Several moves between two looks count as one, since the hub reassigns all channels anyway.
#[derive(Debug)]
pub(crate) struct Moves(Option<watch::Receiver<()>>);

impl Moves {
    /// Waits for the next move of slots. Without a cluster, waits forever.
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
