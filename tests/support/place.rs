//! The place where a case of the table runs: a server of its own, or a cluster or a set with sentinels that all cases
//! share.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};

use redlatch::{Client, ClientBuilder};
use redlatch_testkit::{Cluster, Connection, Reply, Sentinels, Server};

use super::{builder, eventually, eventually_idle};

/// The prefix of the only key that may remain next to a free lock: the last token of a fenced lock.
const KEPT: &str = "redisson_lock_token:";

static CLUSTER: LazyLock<Cluster> = LazyLock::new(|| {
    let cluster = Cluster::start();
    for node in cluster.nodes() {
        let rules = ["on", "nopass", "~*", "&*", "+@all", "-@scripting"];
        let words = [&["ACL", "SETUSER", "scriptless"][..], &rules].concat();
        let done = node.connection().command(&words);
        assert_eq!(done.text(), "OK");
    }
    cluster
});

static SENTINELS: LazyLock<Sentinels> = LazyLock::new(Sentinels::start);

/// The place where a case runs, and the name of its lock there.
pub struct Place {
    home: Home,
    name: String,
    url: String,
}

enum Home {
    Own(Box<Server>),
    Cluster,
    Sentinels,
}

impl Place {
    pub fn single(server: Server) -> Self {
        Self {
            url: server.url(),
            home: Home::Own(Box::new(server)),
            name: "job".to_owned(),
        }
    }

    /// Returns a place in the cluster. Unless `scripts`, the user has every permission except to run scripts.
    pub fn cluster(scripts: bool) -> Self {
        let login = if scripts { "" } else { "scriptless:any@" };
        let url = CLUSTER.url();
        let url = url.replace("cluster://", &format!("cluster://{login}"));
        Self::shared(Home::Cluster, url)
    }

    pub fn sentinels() -> Self {
        Self::shared(Home::Sentinels, SENTINELS.url())
    }

    fn shared(home: Home, url: String) -> Self {
        static NUMBERS: AtomicU64 = AtomicU64::new(100_000);
        let number = NUMBERS.fetch_add(1, Ordering::Relaxed);
        let name = format!("job-{number}");
        Self { home, name, url }
    }

    /// Returns the case's own server, to put a proxy in front of it.
    pub fn into_server(self) -> Server {
        match self.home {
            Home::Own(server) => *server,
            Home::Cluster | Home::Sentinels => panic!("it is shared"),
        }
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn builder(&self) -> ClientBuilder {
        builder(&self.url)
    }

    /// Connects a client with default settings.
    pub async fn client(&self) -> Client {
        let client = Client::connect(&self.url).await;
        client.expect("the servers are up")
    }

    /// Connects to the server of the lock, past everything under test.
    pub fn probe(&self) -> Connection {
        let server = match &self.home {
            Home::Own(server) => server,
            Home::Cluster => CLUSTER.owner(&self.name).0,
            Home::Sentinels => SENTINELS.primary(),
        };
        server.connection()
    }

    /// Waits until nothing is left of the lock, on the servers and in the clients.
    pub async fn nothing_left<const N: usize>(&self, clients: [&Client; N]) {
        for client in clients {
            eventually_idle(client).await;
        }
        let servers = match &self.home {
            Home::Cluster => CLUSTER.nodes(),
            Home::Own(server) => std::slice::from_ref(&**server),
            Home::Sentinels => std::slice::from_ref(SENTINELS.primary()),
        };
        let of_lock = |text: &String| text.contains(&self.name) && !text.starts_with(KEPT);
        for mut probe in servers.iter().map(Server::connection) {
            eventually("no channel is left", async || {
                let mut channels = probe.channels();
                let sharded = probe.command(&["PUBSUB", "SHARDCHANNELS"]);
                // Servers before Redis 7 answer with an error.
                if matches!(sharded, Reply::Array(_)) {
                    channels.extend(sharded.texts());
                }
                !channels.iter().any(of_lock)
            })
            .await;
            eventually("no key is left", async || !probe.keys().iter().any(of_lock)).await;
        }
    }
}
