use std::thread;
use std::time::{Duration, Instant};

use crate::reply::Reply;
use crate::sentinel::Sentinel;
use crate::server::Server;

const SERVICE: &str = "main";
const READY_LIMIT: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(20);

/// A primary, two replicas and three sentinels, of which two must agree.
///
/// The replicas accept writes, so that a test can make one lag behind.
#[derive(Debug)]
pub struct Sentinels {
    servers: Vec<Server>,
    sentinels: Vec<Sentinel>,
}

impl Sentinels {
    /// Starts them, and waits until each sentinel knows both replicas and both other sentinels.
    ///
    /// # Panics
    /// Panics as [`Server::start`] does, and if the sentinels do not find each other.
    pub fn start() -> Self {
        let primary = Server::start();
        let replica = Server::builder()
            .replica_of(primary.port())
            .arg("replica-read-only", "no");
        let replicas = [replica.clone().start(), replica.start()];
        let sentinels: Vec<_> = (0..3)
            .map(|_| Sentinel::one_of(&primary, SERVICE, 2))
            .collect();
        let end = Instant::now() + READY_LIMIT;
        while !sentinels
            .iter()
            .all(|sentinel| sentinel.company() == [2, 2])
        {
            assert!(Instant::now() < end, "the sentinels do not find each other");
            thread::sleep(POLL);
        }
        Self {
            servers: [primary].into_iter().chain(replicas).collect(),
            sentinels,
        }
    }

    /// Starts one more sentinel, which keeps naming [`primary`](Self::primary), whatever becomes of that server.
    pub fn deaf(&self) -> Sentinel {
        Sentinel::deaf(self.primary(), SERVICE)
    }

    /// Returns the URL for clients, which names every sentinel.
    pub fn url(&self) -> String {
        self.url_behind(&self.sentinels[0])
    }

    /// Returns a URL for clients that names this sentinel first.
    pub fn url_behind(&self, first: &Sentinel) -> String {
        let others = self.sentinels.iter();
        let others = others.filter(|sentinel| sentinel.port() != first.port());
        let others = others.map(|sentinel| format!("&node=127.0.0.1:{}", sentinel.port()));
        others.fold(first.url(), |url, node| url + &node)
    }

    /// Returns the sentinels.
    pub fn sentinels(&self) -> &[Sentinel] {
        &self.sentinels
    }

    /// Has the sentinels replace the primary although it is healthy. It keeps running, and is made a replica only
    /// seconds later.
    ///
    /// # Panics
    /// Panics if the sentinels refuse.
    pub fn replace_primary(&self) {
        let reply = self.try_replace_primary();
        assert_eq!(reply, Reply::Status("OK".to_owned()));
    }

    /// The same, where the sentinels may refuse because the replicas are not in order yet. Returns their reply.
    pub fn try_replace_primary(&self) -> Reply {
        let mut connection = self.sentinels[0].connection();
        connection.command(&["SENTINEL", "FAILOVER", SERVICE])
    }

    /// Returns a replica that at least one sentinel takes for the primary by now.
    pub fn named(&self) -> Option<&Server> {
        let mut named = self.sentinels.iter().map(Sentinel::primary);
        named.find_map(|port| self.replicas().iter().find(|server| server.port() == port))
    }

    /// Returns the server that was the primary at the start.
    pub fn primary(&self) -> &Server {
        &self.servers[0]
    }

    /// Returns the servers that were replicas at the start.
    pub fn replicas(&self) -> &[Server] {
        &self.servers[1..]
    }

    /// Returns the replica that all sentinels take for the primary by now.
    pub fn promoted(&self) -> Option<&Server> {
        let agree = |server: &&Server| {
            let mut sentinels = self.sentinels.iter();
            sentinels.all(|sentinel| sentinel.primary() == server.port())
        };
        self.replicas().iter().find(agree)
    }
}
