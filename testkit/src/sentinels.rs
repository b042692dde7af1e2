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
/// The replicas take writes, so that a test can have one lag behind.
#[derive(Debug)]
pub struct Sentinels {
    servers: Vec<Server>,
    sentinels: Vec<Sentinel>,
}

impl Sentinels {
    /// Starts them, and waits until each sentinel knows all the others.
    ///
    /// # Panics
    /// As [`Server::start`] does, and if they do not find each other.
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

    /// A sentinel beside these that goes on naming the primary of now, whatever becomes of it.
    pub fn deaf(&self) -> Sentinel {
        Sentinel::deaf(self.primary(), SERVICE)
    }

    /// The URL for clients, which names every sentinel.
    pub fn url(&self) -> String {
        self.url_behind(&self.sentinels[0])
    }

    /// The URL for clients that names this sentinel first.
    pub fn url_behind(&self, first: &Sentinel) -> String {
        let others = self.sentinels.iter();
        let others = others.filter(|sentinel| sentinel.port() != first.port());
        let others = others.map(|sentinel| format!("&node=127.0.0.1:{}", sentinel.port()));
        others.fold(first.url(), |url, node| url + &node)
    }

    /// The sentinels.
    pub fn sentinels(&self) -> &[Sentinel] {
        &self.sentinels
    }

    /// Has the primary replaced though it is well. It lives on, and is made a replica only seconds after.
    ///
    /// # Panics
    /// When the sentinels do not do it.
    pub fn replace_primary(&self) {
        let mut connection = self.sentinels[0].connection();
        let reply = connection.command(&["SENTINEL", "FAILOVER", SERVICE]);
        assert_eq!(reply, Reply::Status("OK".to_owned()));
    }

    /// The replica that some sentinel takes for the primary by now.
    pub fn named(&self) -> Option<&Server> {
        let mut named = self.sentinels.iter().map(Sentinel::primary);
        named.find_map(|port| self.replicas().iter().find(|server| server.port() == port))
    }

    /// The server that was the primary at the start.
    pub fn primary(&self) -> &Server {
        &self.servers[0]
    }

    /// The servers that were replicas at the start.
    pub fn replicas(&self) -> &[Server] {
        &self.servers[1..]
    }

    /// The replica that all sentinels take for the primary by now.
    pub fn promoted(&self) -> Option<&Server> {
        let agree = |server: &&Server| {
            let mut sentinels = self.sentinels.iter();
            sentinels.all(|sentinel| sentinel.primary() == server.port())
        };
        self.replicas().iter().find(agree)
    }
}
