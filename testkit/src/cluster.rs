use std::thread;
use std::time::{Duration, Instant};

use crate::connection::Connection;
use crate::reply::Reply;
use crate::server::{Server, ServerBuilder};

const SLOTS: usize = 16_384;
const READY_LIMIT: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(20);

/// A cluster of primaries, each a process of its own with an equal part of the slots.
///
/// A primary that is down does not take the others down, and nothing takes its place, unless it has a replica (see
/// [`replica_of`](Self::replica_of)).
#[derive(Debug)]
pub struct Cluster {
    nodes: Vec<Server>,
    builder: ServerBuilder,
}

/// A slot that is being moved from one server to another.
#[derive(Debug)]
pub struct Move<'a> {
    slot: u16,
    from: &'a Server,
    to: &'a Server,
}

impl Cluster {
    /// Starts three servers, and waits until each knows all of them.
    ///
    /// # Panics
    /// Panics if there is no server program, with a text that says what to install, and if the servers do not become a
    /// cluster, with a text that says what went wrong.
    pub fn start() -> Self {
        Self::of(3, Server::builder())
    }

    /// Starts `servers` servers with these options, and waits until each knows all of them.
    pub fn of(servers: usize, builder: ServerBuilder) -> Self {
        let builder = builder
            .arg("cluster-enabled", "yes")
            .arg("cluster-require-full-coverage", "no")
            .arg("cluster-node-timeout", "2000");
        let nodes: Vec<Server> = (0..servers).map(|_| builder.clone().start()).collect();
        let mut first = nodes[0].connection();
        for (at, node) in nodes.iter().enumerate() {
            let mut connection = node.connection();
            done(
                &mut connection,
                &["CLUSTER", "SET-CONFIG-EPOCH", &(at + 1).to_string()],
            );
            let slots = at * SLOTS / servers..(at + 1) * SLOTS / servers;
            let words = ["CLUSTER", "ADDSLOTS"].map(str::to_owned).into_iter();
            let words: Vec<String> = words.chain(slots.map(|slot| slot.to_string())).collect();
            done(&mut connection, &words);
            done(
                &mut first,
                &["CLUSTER", "MEET", "127.0.0.1", &node.port().to_string()],
            );
        }
        let cluster = Self { nodes, builder };
        wait_until("the servers are a cluster", || {
            cluster.nodes.iter().all(|node| cluster.is_ready(node))
        });
        cluster
    }

    /// Starts a server that replicates this primary and takes its place when it is gone. Waits until it replicates, and
    /// until all primaries know it.
    pub fn replica_of(&self, primary: &Server) -> Server {
        let replica = self.builder.clone().start();
        let mut connection = replica.connection();
        let any = self.nodes[0].port().to_string();
        done(&mut connection, &["CLUSTER", "MEET", "127.0.0.1", &any]);
        let id = id(primary);
        let linked = Reply::Text(b"connected".to_vec());
        wait_until("the replica has heard of its primary", || {
            let reply = connection.command(&["CLUSTER", "REPLICATE", &id]);
            matches!(reply, Reply::Status(_))
        });
        wait_until("the replica replicates", || {
            connection.command(&["ROLE"]).array().contains(&linked)
        });
        for node in &self.nodes {
            wait_until("the others know the replica", || {
                let rows = node.connection().command(&["CLUSTER", "SLAVES", &id]);
                matches!(rows, Reply::Array(rows) if !rows.is_empty())
            });
        }
        replica
    }

    /// Returns the servers, in the order of their slots.
    pub fn nodes(&self) -> &[Server] {
        &self.nodes
    }

    /// Returns the URL for clients, which names every server.
    pub fn url(&self) -> String {
        let login = match self.nodes[0].password() {
            Some(password) => format!(":{password}@"),
            None => String::new(),
        };
        let address = |node: &Server| format!("127.0.0.1:{}", node.port());
        let others: Vec<String> = self.nodes[1..]
            .iter()
            .map(|node| format!("node={}", address(node)))
            .collect();
        let first = address(&self.nodes[0]);
        format!("redis-cluster://{login}{first}?{}", others.join("&"))
    }

    /// Returns the slot of a key.
    pub fn slot(&self, key: &str) -> u16 {
        let mut any = self.nodes[0].connection();
        let slot = any.command(&["CLUSTER", "KEYSLOT", key]).int();
        slot.try_into().expect("a slot")
    }

    /// Returns the server that owns the slot of a key, and another server.
    pub fn owner(&self, key: &str) -> (&Server, &Server) {
        let slot = self.slot(key);
        let owner = self.nodes.iter().position(|node| owns(node, slot));
        let owner = owner.expect("the slot has an owner");
        (
            &self.nodes[owner],
            &self.nodes[(owner + 1) % self.nodes.len()],
        )
    }

    /// Moves a slot with its keys, of which there may be at most 10,000.
    pub fn move_slot(&self, slot: u16, from: &Server, to: &Server) {
        let begun = self.begin_move(slot, from, to);
        begun.keys(usize::MAX);
        begun.finish();
    }

    /// Begins to move a slot. Its keys move only with [`Move::keys`].
    pub fn begin_move<'a>(&self, slot: u16, from: &'a Server, to: &'a Server) -> Move<'a> {
        let number = slot.to_string();
        let setslot = |node: &Server, state: &str, other: &Server| {
            let mut connection = node.connection();
            done(
                &mut connection,
                &["CLUSTER", "SETSLOT", &number, state, &id(other)],
            );
        };
        setslot(to, "IMPORTING", from);
        setslot(from, "MIGRATING", to);
        Move { slot, from, to }
    }

    /// Has the owner of a slot say that another server has it. That one goes on saying that the owner has it.
    pub fn disown(&self, slot: u16, owner: &Server, other: &Server) {
        let (slot, other) = (slot.to_string(), id(other));
        let words = ["CLUSTER", "SETSLOT", &slot, "NODE", &other];
        done(&mut owner.connection(), &words);
    }

    fn is_ready(&self, node: &Server) -> bool {
        let info = node.connection().command(&["CLUSTER", "INFO"]).text();
        let known = format!("cluster_known_nodes:{}\r\n", self.nodes.len());
        ["cluster_state:ok", "cluster_slots_ok:16384", &known]
            .iter()
            .all(|line| info.contains(line))
    }
}

impl Move<'_> {
    /// Moves at most `most` keys, and at most 10,000, in the order in which the server lists them.
    pub fn keys(&self, most: usize) {
        let mut from = self.from.connection();
        let count = most.min(10_000).to_string();
        let slot = self.slot.to_string();
        let keys = from.command(&["CLUSTER", "GETKEYSINSLOT", &slot, &count]);
        let keys = keys.texts();
        if keys.is_empty() {
            return;
        }
        let port = self.to.port().to_string();
        let mut words = vec!["MIGRATE", "127.0.0.1", &port, "", "0", "5000"];
        let password = self.to.password();
        words.extend(
            password
                .map(|password| ["AUTH", password])
                .into_iter()
                .flatten(),
        );
        words.push("KEYS");
        words.extend(keys.iter().map(String::as_str));
        done(&mut from, &words);
    }

    /// Gives the slot to its new server. The other servers learn of it by gossip.
    pub fn finish(self) {
        let slot = self.slot.to_string();
        let id = id(self.to);
        // The new owner first: otherwise no server would have the slot in between.
        for node in [self.to, self.from] {
            let mut connection = node.connection();
            done(&mut connection, &["CLUSTER", "SETSLOT", &slot, "NODE", &id]);
        }
    }
}

fn wait_until(what: &str, mut ready: impl FnMut() -> bool) {
    let end = Instant::now() + READY_LIMIT;
    while !ready() {
        assert!(Instant::now() < end, "not in time: {what}");
        thread::sleep(POLL);
    }
}

/// Returns whether a server has a slot, in its own view.
fn owns(node: &Server, slot: u16) -> bool {
    let slot = i64::from(slot);
    let rows = node.connection().command(&["CLUSTER", "SLOTS"]).array();
    rows.into_iter().any(|row| {
        let row = row.array();
        let port = row[2].clone().array()[1].int();
        port == i64::from(node.port()) && (row[0].int()..=row[1].int()).contains(&slot)
    })
}

fn id(node: &Server) -> String {
    node.connection().command(&["CLUSTER", "MYID"]).text()
}

#[track_caller]
fn done(connection: &mut Connection, words: &[impl AsRef<[u8]>]) {
    let reply = connection.command(words);
    assert_eq!(reply, Reply::Status("OK".to_owned()));
}
