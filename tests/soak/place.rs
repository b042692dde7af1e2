//! The servers of a deployment, and what happens to them.

use std::thread::sleep;
use std::time::{Duration, Instant};

use fastrand::Rng;
use redlatch_testkit::{Cluster, Reply, Sentinels, Server, ServerBuilder};

use super::{LEASE, LOCKS};

const PATIENCE: Duration = Duration::from_secs(30);

pub(super) enum Place {
    One(Box<Server>),
    Sentinels(Sentinels),
    Cluster(Cluster),
    Five(Vec<Server>),
}

/// Returns the name of a lock.
pub(super) fn key(at: usize) -> String {
    format!("lock-{at}")
}

/// A server that loses nothing when it is killed: it writes to its file before it replies. Only a crash of the machine
/// could lose what is not on the disk yet.
fn lasting() -> ServerBuilder {
    let builder = Server::builder().arg("appendonly", "yes");
    builder.arg("appendfsync", "no")
}

impl Place {
    /// A server that loses nothing.
    pub(super) fn one() -> Self {
        Self::One(lasting().start().into())
    }

    /// A primary with two replicas, and three sentinels.
    pub(super) fn sentinels() -> Self {
        Self::Sentinels(Sentinels::start())
    }

    /// Three primaries that lose nothing.
    pub(super) fn cluster() -> Self {
        Self::Cluster(Cluster::of(3, lasting()))
    }

    /// Five servers in memory.
    pub(super) fn five() -> Self {
        Self::Five((0..5).map(|_| Server::start()).collect())
    }

    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::One(_) => "one",
            Self::Sentinels(_) => "sentinels",
            Self::Cluster(_) => "cluster",
            Self::Five(_) => "five",
        }
    }

    pub(super) fn loses(&self) -> bool {
        matches!(self, Self::Sentinels(_))
    }

    /// Returns the number of tasks of a client for each lock. Those that want a RedLock collide
    /// instead of waiting in line.
    pub(super) fn tasks(&self) -> usize {
        match self {
            Self::Five(_) => 1,
            _ => 2,
        }
    }

    /// Returns the URLs of the clients that a lock needs.
    pub(super) fn urls(&self) -> Vec<String> {
        match self {
            Self::One(server) => vec![server.url()],
            Self::Sentinels(sentinels) => vec![sentinels.url()],
            Self::Cluster(cluster) => vec![cluster.url()],
            Self::Five(servers) => servers.iter().map(Server::url).collect(),
        }
    }

    fn servers(&self) -> Vec<&Server> {
        match self {
            Self::One(server) => vec![&**server],
            Self::Sentinels(it) => [it.primary()].into_iter().chain(it.replicas()).collect(),
            Self::Cluster(cluster) => cluster.nodes().iter().collect(),
            Self::Five(servers) => servers.iter().collect(),
        }
    }

    /// Breaks something, and heals it. Says what it was.
    pub(super) fn breaks(&self, random: &mut Rng) -> &'static str {
        let mut servers = self.servers();
        random.shuffle(&mut servers);
        let some = match self {
            Self::Five(_) => &servers[..random.usize(1..=3)],
            _ => &servers[..1],
        };
        match random.u32(0..5) {
            0 => self.cuts(),
            1 => {
                for server in servers {
                    ask(server, &["SCRIPT", "FLUSH"]);
                }
                "scripts forgotten"
            }
            2 => {
                some.iter().for_each(|server| server.freeze());
                sleep(LEASE.mul_f32(random.f32() * 1.5));
                some.iter().for_each(|server| server.thaw());
                "stopped"
            }
            3 => match self {
                Self::Sentinels(sentinels) => fails_over(sentinels, false),
                Self::Cluster(cluster) => moves(cluster, random),
                _ => kills(some, random),
            },
            _ => match self {
                Self::Sentinels(sentinels) => fails_over(sentinels, true),
                _ => kills(some, random),
            },
        }
    }

    /// Cuts the connections of all clients.
    fn cuts(&self) -> &'static str {
        for server in self.servers() {
            for kind in ["pubsub", "normal"] {
                ask(server, &["CLIENT", "KILL", "TYPE", kind]);
            }
        }
        "cut"
    }

    /// Waits until the servers have nothing of the locks but the tokens, and the marks of a RedLock.
    pub(super) fn is_clean(&self) {
        for server in self.servers() {
            let kept = ["redisson_lock_token:", "redlatch_redlock_mark"];
            until("the locks are gone, and nobody listens", || {
                let mut keys = ask(server, &["KEYS", "*"]).texts();
                keys.retain(|key| !kept.iter().any(|kept| key.starts_with(kept)));
                let mut channels = ask(server, &["PUBSUB", "CHANNELS"]).texts();
                // Those of the clients, until they are closed, and of the sentinels.
                let other = ["redlatch:", "__sentinel__"];
                channels.retain(|channel| !other.iter().any(|it| channel.starts_with(it)));
                keys.is_empty() && channels.is_empty()
            });
        }
    }
}

fn kills(servers: &[&Server], random: &mut Rng) -> &'static str {
    servers.iter().for_each(|server| server.kill());
    sleep(LEASE.mul_f32(random.f32()));
    servers.iter().for_each(|server| server.restart());
    "killed"
}

/// Asks a server, again if sentinels that make it a replica close its connections meanwhile.
fn ask(server: &Server, command: &[&str]) -> Reply {
    loop {
        if let Ok(reply) = server.connection().try_command(command) {
            return reply;
        }
    }
}

/// Has the sentinels name another primary: because they are told to, or because theirs is gone for a while.
fn fails_over(sentinels: &Sentinels, is_killed: bool) -> &'static str {
    let named = || sentinels.sentinels().iter().map(|it| it.primary());
    let agreed = || named().all(|it| Some(it) == named().next());
    until("the sentinels agree", agreed);
    let before = named().next().expect("there are sentinels");
    let servers = [sentinels.primary()].into_iter();
    let mut servers = servers.chain(sentinels.replicas());
    let primary = servers.find(|server| server.port() == before);
    let primary = primary.expect("one of them");
    if is_killed {
        primary.kill();
    }
    until("another primary is named", || {
        if !is_killed {
            sentinels.try_replace_primary();
        }
        sleep(Duration::from_millis(200));
        agreed() && named().next() != Some(before)
    });
    if is_killed {
        primary.restart();
        return "primary killed";
    }
    "failover"
}

/// Moves the slot of a lock to another server.
fn moves(cluster: &Cluster, random: &mut Rng) -> &'static str {
    let name = key(random.usize(0..LOCKS));
    let (from, to) = cluster.owner(&name);
    let moving = cluster.begin_move(cluster.slot(&name), from, to);
    moving.keys(usize::MAX);
    // What came meanwhile, if a call had some of its keys here.
    moving.keys(usize::MAX);
    moving.finish();
    "slot moved"
}

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < end, "not in time: {what}");
        sleep(Duration::from_millis(20));
    }
}
