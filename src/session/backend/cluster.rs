//! The servers of a cluster, and which of them has which slot.
//!
//! # Invariants
//!
//! 1. A slot moves in our map when a server that is concerned says so: the one that we took for its owner, or the one
//!    that has it now. A third server may be out of date. Its word counts only while the owner is silent or a replica,
//!    or once the owner has disowned a slot.
//! 2. Subscriptions and holds depend on where a slot is: they learn of every move of a slot in the map.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::{
    Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard,
};
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::time::sleep;
use tracing::{debug, info};

use super::Disruption;
use super::channels::Channels;
use super::maker::Maker;
use super::node::Node;
use super::slots::{Range, Redirect, Slots, slot};
use crate::clock::BootInstant;
use crate::config::Server;
use crate::error::{Error, ErrorKind};

/// How often the other servers are asked about the slots of a server that gives no answer.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// The shortest time between two such rounds, however many calls go unanswered. It doubles up to [`DEEP_BREATH`] in a
/// long silence.
const BREATH: Duration = Duration::from_millis(100);
/// For how long further redirections of a slot leave the map as it is, once one has changed it. Servers that disagree
/// may redirect to each other for a while, and after each change the client checks holds and subscribes again.
const SETTLED: Duration = BREATH;
/// The longest of the times between two rounds.
const DEEP_BREATH: Duration = Duration::from_millis(400);

/// The servers of one cluster.
///
/// Has no server at first: [`find`](Self::find) asks the configured ones, and [`keep`](Self::keep) follows the moves.
pub(super) struct Cluster {
    /// Makes the connections to servers that the client discovers.
    maker: Maker,
    /// Whether the user asks for sharded pub/sub. `channels` follows from this and from what the cluster knows.
    sharded: Option<bool>,
    /// Set before the first server enters the map.
    ///
    /// Never changes: a message that is published in one way does not reach a subscription of the other kind.
    channels: OnceLock<Channels>,
    /// Since when no server has described the cluster, and the last error. `None` once a server has.
    absence: Mutex<Option<(BootInstant, Error)>>,
    /// The configured servers. They are asked first, and again if none of the known servers answers.
    seeds: Vec<Server>,
    /// Locked only briefly. Servers are asked without it.
    map: RwLock<Map>,
    /// Signals that a call was not answered: its server may have lost its slots.
    stale: Notify,
    /// The ids of servers that have said that they do not have a slot which we took for theirs.
    ///
    /// Taken by the next round of [`refresh`](Self::refresh).
    disowned: Mutex<HashSet<u64>>,
    /// Signals that slots have moved.
    moves: watch::Sender<()>,
}

/// Which server has which slot, as far as is known. Changed in one step, so that a slot's owner is always among the
/// nodes.
struct Map {
    /// The servers with a slot, and those that a slot is moving to.
    nodes: HashMap<Server, Arc<Node>>,
    slots: Slots<Arc<Node>>,
    /// When redirections have changed the owners of slots lately.
    moved: HashMap<u16, BootInstant>,
}

impl Cluster {
    /// Creates a cluster without any known server: [`find`](Self::find) or [`keep`](Self::keep) look for them.
    pub(super) fn new(maker: Maker, seeds: Vec<Server>, sharded: Option<bool>) -> Self {
        Self {
            maker,
            sharded,
            channels: OnceLock::new(),
            absence: Mutex::default(),
            seeds,
            map: RwLock::new(Map {
                nodes: HashMap::new(),
                slots: Slots::new(),
                moved: HashMap::new(),
            }),
            stale: Notify::new(),
            disowned: Mutex::default(),
            moves: watch::Sender::new(()),
        }
    }

    /// Asks the configured servers in turn, until one lists the servers of the cluster. Each of these is connected when
    /// it is first used.
    ///
    /// If the future is dropped, what was learned so far stays in the map.
    pub(super) async fn find(&self) -> Result<(), Error> {
        let mut failure = Error::invalid("a cluster's configuration must name at least one server");
        for seed in &self.seeds {
            match self.find_by(seed).await {
                Ok(()) => {
                    *self.absent() = None;
                    return Ok(());
                }
                Err(error) => failure = error,
            }
        }
        // The absence counts from the first attempt that failed.
        let since = self
            .absence()
            .map_or_else(BootInstant::now, |(since, _)| since);
        *self.absent() = Some((since, failure.clone()));
        Err(failure)
    }

    /// Adopts what one configured server says of the cluster.
    ///
    /// The server need not be in the table under the address that was configured.
    async fn find_by(&self, seed: &Server) -> Result<(), Error> {
        let budget = self.maker.command_timeout;
        let node = Node::new(&self.maker, seed.clone());
        let ranges = table(&node, budget).await?;
        let channels = Channels::choose(self.sharded, &node, budget).await?;
        // Chosen before the first server enters the map, since each call needs the command that publishes. The first
        // choice stands for the life of the client.
        self.channels.get_or_init(|| channels);
        // The connection that was just made is used if the server names itself by this address.
        self.write().nodes.insert(seed.clone(), node.clone());
        self.adopt(&ranges, &node, |_, _| true);
        Ok(())
    }

    /// Returns since when no server has described the cluster, and the last error. `None` once a server has.
    ///
    /// A call whose slot has no known server treats this as the silence of that server.
    pub(super) fn absence(&self) -> Option<(BootInstant, Error)> {
        self.absent().clone()
    }

    fn absent(&self) -> MutexGuard<'_, Option<(BootInstant, Error)>> {
        self.absence.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns how releases are published, which is known as soon as any server is.
    pub(super) fn channels(&self) -> Channels {
        self.channels.get().copied().unwrap_or(Channels::Sharded)
    }

    /// Returns the known owner of a key's slot, or any other server if none is known.
    ///
    /// The wrong server redirects the call, and the map learns from that.
    pub(super) fn home(&self, key: &str) -> Option<Arc<Node>> {
        let map = self.read();
        let owner = map.slots.owner(slot(key));
        // Any server says where the slot is, or that no server has it.
        owner.or_else(|| map.nodes.values().next()).cloned()
    }

    /// Returns the server that a redirection names, without recording it as the owner of the slot.
    ///
    /// The server stays in the map, so that its connection is used again, until a round drops the servers without a
    /// slot.
    pub(super) fn at(&self, redirect: &Redirect, named_by: &Node) -> Arc<Node> {
        let address = named_by.name().named(&redirect.host, redirect.port);
        self.write().node(&self.maker, &address)
    }

    /// Records that a slot has moved to the server that a redirection names, unless it has moved just now. Returns that
    /// server.
    ///
    /// Holds and subscriptions learn of the move, unless it was known.
    pub(super) fn learn(&self, redirect: &Redirect, named_by: &Node) -> Arc<Node> {
        let address = named_by.name().named(&redirect.host, redirect.port);
        let (node, is_news) = {
            // In one step: in between, a server without a slot may be let go.
            let mut map = self.write();
            let node = map.node(&self.maker, &address);
            let now = BootInstant::now();
            map.moved.retain(|_, at| at.until(now) < SETTLED);
            let is_settled = !map.moved.contains_key(&redirect.slot);
            let is_news = is_settled && map.slots.learn(redirect.slot, &node);
            if is_news {
                map.moved.insert(redirect.slot, now);
            }
            (node, is_news)
        };
        if is_news {
            self.moved(BTreeSet::from([redirect.slot]));
        }
        node
    }

    /// Takes note that a call was not answered. [`keep`](Self::keep) then asks the other servers.
    ///
    /// Many calls at once ask for one round.
    pub(super) fn suspect(&self) {
        self.stale.notify_one();
    }

    /// Takes note that a server does not have a slot that we took for its own, and names no server that does: it may
    /// have left the cluster.
    pub(super) fn disowned(&self, node: &Node) {
        self.disrupted().insert(node.id());
    }

    fn disrupted(&self) -> MutexGuard<'_, HashSet<u64>> {
        self.disowned.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks for the servers if none is known, and follows failovers, until the future is dropped.
    ///
    /// Nothing is asked while all servers answer.
    pub(super) async fn keep(&self) {
        while self.channels.get().is_none() {
            if let Err(error) = self.find().await {
                debug!(%error, "no server reports the slots of the cluster");
                sleep(LOOK_AGAIN).await;
            }
        }
        let mut breath = BREATH;
        loop {
            tokio::select! {
                // At once: the server may have failed just now, and callers wait.
                () = self.stale.notified() => {}
                () = sleep(LOOK_AGAIN) => {
                    let is_silent = |node: &Arc<Node>| node.silence.begun().is_some();
                    if self.disrupted().is_empty() && !self.nodes().iter().any(is_silent) {
                        // All servers answer: the next silence begins with short pauses again.
                        breath = BREATH;
                        continue;
                    }
                }
            }
            self.refresh().await;
            sleep(breath).await;
            breath = DEEP_BREATH.min(breath * 2);
        }
    }

    /// Asks other servers about the slots of those that give no answer, or that have disowned a slot.
    ///
    /// One answer is enough. Servers that agree have the same table. A server that is behind is believed only about
    /// itself, and about servers that cannot speak for themselves.
    async fn refresh(&self) {
        let disrupted = std::mem::take(&mut *self.disrupted());
        let (silent, sound): (Vec<_>, Vec<_>) = self
            .nodes()
            .into_iter()
            .partition(|node| node.silence.begun().is_some() || disrupted.contains(&node.id()));
        if silent.is_empty() {
            // All servers answer by now.
            return;
        }
        let known: BTreeSet<Server> = sound.iter().map(|node| node.name().clone()).collect();
        let seeds = self.seeds.iter().filter(|seed| !known.contains(*seed));
        let seeds = seeds.map(|seed| Node::new(&self.maker, seed.clone()));
        for node in sound.iter().cloned().chain(seeds) {
            match table(&node, self.maker.command_timeout).await {
                Ok(ranges) => {
                    // Invariant 1: a server is believed about itself, and about slots of a silent server or without an
                    // owner.
                    self.adopt(&ranges, &node, |known, told| {
                        *told == node || known.is_none_or(|known| silent.contains(known))
                    });
                    self.drop_unlisted(&ranges, &silent);
                    return;
                }
                Err(error) => debug!(server = ?node, %error, "does not report the cluster's slots"),
            }
        }
    }

    /// Takes slots from `silent` servers if another server's table, `ranges`, names no owner for them.
    fn drop_unlisted(&self, ranges: &[Range], silent: &[Arc<Node>]) {
        let is_listed = |slot| ranges.iter().any(|range| range.slots.contains(&slot));
        let mut map = self.write();
        map.slots
            .take_from(|slot, owner| silent.contains(owner) && !is_listed(slot));
        map.drop_unused();
    }

    /// Adopts the slots of a server's table for which `believed` returns `true`, given the owner in our map and the
    /// owner in that table.
    ///
    /// A server that thereby loses its last slot is dropped.
    fn adopt(
        &self,
        ranges: &[Range],
        told_by: &Node,
        believed: impl Fn(Option<&Arc<Node>>, &Arc<Node>) -> bool,
    ) {
        let mut moved = BTreeSet::new();
        let mut map = self.write();
        for range in ranges {
            let address = told_by.name().named(&range.host, range.port);
            let owner = map.node(&self.maker, &address);
            for slot in range.slots.clone() {
                if believed(map.slots.owner(slot), &owner) && map.slots.learn(slot, &owner) {
                    moved.insert(slot);
                }
            }
        }
        map.drop_unused();
        // Unlocked before others are told, since they look at the map.
        drop(map);
        self.moved(moved);
    }

    /// Tells subscriptions and holds that slots have moved.
    ///
    /// The map has the new owners by then.
    fn moved(&self, slots: BTreeSet<u16>) {
        if slots.is_empty() {
            return;
        }
        info!(slots = slots.len(), "slots moved to another server");
        self.maker.disruptions.send(Disruption::Slots(slots)).ok();
        self.moves.send_replace(());
    }

    /// Returns a receiver that is told of every move of slots from now on.
    pub(super) fn moves(&self) -> watch::Receiver<()> {
        self.moves.subscribe()
    }

    pub(super) fn nodes(&self) -> Vec<Arc<Node>> {
        self.read().nodes.values().cloned().collect()
    }

    fn read(&self) -> RwLockReadGuard<'_, Map> {
        self.map.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Map> {
        self.map.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Map {
    /// Returns the server with this address, and adds it to the map if it is new.
    fn node(&mut self, maker: &Maker, address: &Server) -> Arc<Node> {
        let node = self.nodes.get(address).cloned();
        node.unwrap_or_else(|| {
            let node = Node::new(maker, address.clone());
            self.nodes.insert(address.clone(), node.clone());
            node
        })
    }

    /// Lets go of servers without a slot. Their connections end when the last call there does.
    fn drop_unused(&mut self) {
        let used: BTreeSet<u64> = self.slots.owners().map(|node| node.id()).collect();
        self.nodes.retain(|_, node| used.contains(&node.id()));
    }
}

/// Asks a server of a cluster for its table of slots. Returns `Err` if it is in no cluster, or if the cluster has no
/// slots yet.
async fn table(node: &Node, budget: Duration) -> Result<Vec<Range>, Error> {
    node.commands.connect().await?;
    match node.slots(budget).await? {
        Some(ranges) if !ranges.is_empty() => Ok(ranges),
        Some(_) => Err(Error::new(
            ErrorKind::Backend,
            format!("the cluster of {node:?} has no slots yet"),
        )
        .passing()),
        None => Err(Error::new(
            ErrorKind::Backend,
            format!("{node:?} is not in a cluster; use the URL redis://{node:?}"),
        )),
    }
}
