//! The servers of a cluster, and who has which slot.
//!
//! # Invariants
//!
//! 1. A slot moves in our map when a server says so that is concerned: the one that we took for its owner, or the one
//!    that has it now. What a third has heard counts only while the owner gives no answer, since it may be late.
//! 2. Whoever depends on where a slot is, a subscription or a hold, learns of every change of the map.

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
use crate::options::PubSub;

/// How often the others are asked about the slots of a server that gives no answer.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// At least so long between two of these, whatever the number of calls that go unanswered: at first, and in a long silence.
const BREATH: Duration = Duration::from_millis(100);
const DEEP_BREATH: Duration = Duration::from_millis(400);

pub(super) struct Cluster {
    maker: Maker,
    pubsub: PubSub,
    /// Known before any server is.
    channels: OnceLock<Channels>,
    /// Since when no server has told of the cluster, and why not, if none ever has.
    absence: Mutex<Option<(BootInstant, Error)>>,
    /// Where to ask if none of the servers that we know of answers any more.
    seeds: Vec<Server>,
    map: RwLock<Map>,
    /// A call was not answered: its server may have lost its slots.
    stale: Notify,
    /// Servers that have said that they have not got a slot which we took for theirs.
    disowned: Mutex<HashSet<u64>>,
    moves: watch::Sender<()>,
}

struct Map {
    /// Those with a slot, or on the way to one.
    nodes: HashMap<Server, Arc<Node>>,
    slots: Slots<Arc<Node>>,
}

impl Cluster {
    /// Knows no server so far: they are looked for by [`find`](Self::find), or [`keep`](Self::keep).
    pub(super) fn new(maker: Maker, seeds: Vec<Server>, pubsub: PubSub) -> Self {
        Self {
            maker,
            pubsub,
            channels: OnceLock::new(),
            absence: Mutex::default(),
            seeds,
            map: RwLock::new(Map {
                nodes: HashMap::new(),
                slots: Slots::new(),
            }),
            stale: Notify::new(),
            disowned: Mutex::default(),
            moves: watch::Sender::new(()),
        }
    }

    /// Asks the first of the configured servers that answers for the others, which are connected when they are first
    /// used.
    pub(super) async fn find(&self) -> Result<(), Error> {
        let mut failure = Error::invalid("a cluster's configuration names at least one server");
        for seed in &self.seeds {
            match self.find_by(seed).await {
                Ok(()) => {
                    *self.absent() = None;
                    return Ok(());
                }
                Err(error) => failure = error,
            }
        }
        let since = self
            .absence()
            .map_or_else(BootInstant::now, |(since, _)| since);
        *self.absent() = Some((since, failure.clone()));
        Err(failure)
    }

    async fn find_by(&self, seed: &Server) -> Result<(), Error> {
        let budget = self.maker.command_timeout;
        let node = Node::new(&self.maker, seed.clone());
        let ranges = table(&node, budget).await?;
        let channels = Channels::choose(self.pubsub, &node, budget).await?;
        self.channels.get_or_init(|| channels);
        self.write().nodes.insert(seed.clone(), node.clone());
        self.adopt(&ranges, &node, |_, _| true);
        Ok(())
    }

    /// Since when no server has told of the cluster, and why not, if none ever has.
    pub(super) fn absence(&self) -> Option<(BootInstant, Error)> {
        self.absent().clone()
    }

    fn absent(&self) -> MutexGuard<'_, Option<(BootInstant, Error)>> {
        self.absence.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How releases are published. Known as soon as any server is.
    pub(super) fn channels(&self) -> Channels {
        self.channels.get().copied().unwrap_or(Channels::Sharded)
    }

    /// The server that has the slot of a key, as far as we know.
    pub(super) fn home(&self, key: &str) -> Option<Arc<Node>> {
        let map = self.read();
        let owner = map.slots.owner(slot(key));
        // Whichever is asked says where the slot is, or that nobody has it.
        owner.or_else(|| map.nodes.values().next()).cloned()
    }

    /// The server that a redirection names.
    pub(super) fn at(&self, redirect: &Redirect, named_by: &Node) -> Arc<Node> {
        let address = named_by.name().named(&redirect.host, redirect.port);
        self.write().node(&self.maker, &address)
    }

    /// The server that has a slot by now.
    pub(super) fn learn(&self, redirect: &Redirect, named_by: &Node) -> Arc<Node> {
        let address = named_by.name().named(&redirect.host, redirect.port);
        let (node, is_news) = {
            // At once: a server without a slot may be let go.
            let mut map = self.write();
            let node = map.node(&self.maker, &address);
            let is_news = map.slots.learn(redirect.slot, &node);
            (node, is_news)
        };
        if is_news {
            self.moved(BTreeSet::from([redirect.slot]));
        }
        node
    }

    /// A call was not answered.
    pub(super) fn suspect(&self) {
        self.stale.notify_one();
    }

    /// A server has not got a slot that we took for its own, and names nobody who has: it may have left.
    pub(super) fn disowned(&self, node: &Node) {
        self.disrupted().insert(node.id());
    }

    fn disrupted(&self) -> MutexGuard<'_, HashSet<u64>> {
        self.disowned.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks for the servers if none is known, and follows failovers, until the future is dropped.
    pub(super) async fn keep(&self) {
        while self.channels.get().is_none() {
            if let Err(error) = self.find().await {
                debug!(%error, "no server tells of the cluster");
                sleep(LOOK_AGAIN).await;
            }
        }
        let mut breath = BREATH;
        loop {
            tokio::select! {
                () = self.stale.notified() => {}
                () = sleep(LOOK_AGAIN) => {
                    let is_silent = |node: &Arc<Node>| node.silence.begun().is_some();
                    if self.disrupted().is_empty() && !self.nodes().iter().any(is_silent) {
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

    /// Asks others about the slots of servers that give no answer, or have not got them.
    async fn refresh(&self) {
        let disrupted = std::mem::take(&mut *self.disrupted());
        let (silent, sound): (Vec<_>, Vec<_>) = self
            .nodes()
            .into_iter()
            .partition(|node| node.silence.begun().is_some() || disrupted.contains(&node.id()));
        if silent.is_empty() {
            return;
        }
        let known: BTreeSet<Server> = sound.iter().map(|node| node.name().clone()).collect();
        let seeds = self.seeds.iter().filter(|seed| !known.contains(*seed));
        let seeds = seeds.map(|seed| Node::new(&self.maker, seed.clone()));
        for node in sound.iter().cloned().chain(seeds) {
            match table(&node, self.maker.command_timeout).await {
                Ok(ranges) => {
                    self.adopt(&ranges, &node, |known, told| {
                        *told == node || known.is_none_or(|known| silent.contains(known))
                    });
                    self.drop_unlisted(&ranges, &silent);
                    return;
                }
                Err(error) => debug!(server = ?node, %error, "does not tell of the cluster"),
            }
        }
    }

    /// Takes slots that nobody has, as a server has told, from those of whom nothing else is known.
    fn drop_unlisted(&self, ranges: &[Range], silent: &[Arc<Node>]) {
        let is_listed = |slot| ranges.iter().any(|range| range.slots.contains(&slot));
        let mut map = self.write();
        map.slots
            .take_from(|slot, owner| silent.contains(owner) && !is_listed(slot));
        map.drop_unused();
    }

    /// Takes over what a server has told, as far as it is believed: of each slot, who has it in our map, and who by
    /// what was told.
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
        drop(map);
        self.moved(moved);
    }

    fn moved(&self, slots: BTreeSet<u16>) {
        if slots.is_empty() {
            return;
        }
        info!(slots = slots.len(), "slots have another server");
        self.maker.disruptions.send(Disruption::Slots(slots)).ok();
        self.moves.send_replace(());
    }

    /// Every change of the map from now on.
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
    fn node(&mut self, maker: &Maker, address: &Server) -> Arc<Node> {
        let node = self.nodes.get(address).cloned();
        node.unwrap_or_else(|| {
            let node = Node::new(maker, address.clone());
            self.nodes.insert(address.clone(), node.clone());
            node
        })
    }

    /// YieldsTo go of servers without a slot. Their connections end when the last call there does.
    fn drop_unused(&mut self) {
        let used: BTreeSet<u64> = self.slots.owners().map(|node| node.id()).collect();
        self.nodes.retain(|_, node| used.contains(&node.id()));
    }
}

/// The slots, as a server of a cluster tells.
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
            format!("{node:?} is in no cluster; its URL is redis://{node:?}"),
        )),
    }
}
