//! The place where a case of the table runs: a server of its own, a process or in memory, or a cluster or a set with
//! sentinels that all cases share.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};

use redlatch::{Client, ClientBuilder, Config};
use redlatch_testkit::{Cluster, Connection, Reply, Sentinels, Server};

#[cfg(feature = "memory")]
use super::listening::Listening;
use super::{eventually, eventually_idle, impatient};

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

/// A server with TLS, and its port without, since the testkit does not speak TLS. `None` if the server was built without.
#[cfg(feature = "fred-10")]
static SECURED: LazyLock<Option<(Server, u16)>> = LazyLock::new(|| {
    let free = std::net::TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr());
    let plain = free.expect("a free port").port();
    let server = super::with_tls(Server::builder().tls().arg("port", plain))?;
    let rules = ["on", "nopass", "~*", "&*", "+@all", "-@scripting"];
    let words = [&["ACL", "SETUSER", "scriptless"][..], &rules].concat();
    assert_eq!(Connection::open(plain).command(&words).text(), "OK");
    Some((server, plain))
});

/// The place where a case runs, and the name of its lock there.
pub struct Place {
    home: Home,
    name: String,
    config: Config,
}

enum Home {
    Own(Box<Server>),
    Cluster,
    Sentinels,
    #[cfg(feature = "fred-10")]
    Secured(u16),
    #[cfg(feature = "memory")]
    Memory(Listening),
}

impl Place {
    pub fn single(server: Server) -> Self {
        Self {
            config: at(&server.url()),
            home: Home::Own(Box::new(server)),
            name: "job".to_owned(),
        }
    }

    #[cfg(feature = "memory")]
    pub fn memory() -> Self {
        let listening = Listening::start();
        Self {
            config: listening.server.config(),
            home: Home::Memory(listening),
            name: "job".to_owned(),
        }
    }

    /// Returns a place in the cluster. Unless `scripts`, the user has every permission except to run scripts.
    pub fn cluster(scripts: bool) -> Self {
        Self::shared(Home::Cluster, cluster_url(scripts))
    }

    pub fn sentinels() -> Self {
        Self::shared(Home::Sentinels, SENTINELS.url())
    }

    fn shared(home: Home, url: String) -> Self {
        static NUMBERS: AtomicU64 = AtomicU64::new(100_000);
        let number = NUMBERS.fetch_add(1, Ordering::Relaxed);
        let name = format!("job-{number}");
        Self {
            home,
            name,
            config: at(&url),
        }
    }

    /// Returns the same place, where clients connect as a client of fred does that was made from this URL.
    #[cfg(feature = "fred-10")]
    fn by_fred(self, url: &str) -> Self {
        let fred = fred::types::config::Config::from_url(url).expect("fred reads such URLs too");
        self.like(fred)
    }

    #[cfg(feature = "fred-10")]
    fn like(self, fred: fred::types::config::Config) -> Self {
        let client = fred::types::Builder::from_config(fred).build();
        let config = Config::from_fred(&client.expect("a client of fred"));
        Self {
            config: config.expect("nothing that redlatch cannot use"),
            ..self
        }
    }

    #[cfg(feature = "fred-10")]
    pub fn fred_single(server: Server) -> Self {
        let url = server.url();
        Self::single(server).by_fred(&url)
    }

    #[cfg(feature = "fred-10")]
    pub fn fred_cluster(scripts: bool) -> Self {
        Self::cluster(scripts).by_fred(&cluster_url(scripts))
    }

    #[cfg(feature = "fred-10")]
    pub fn fred_sentinels() -> Self {
        Self::sentinels().by_fred(&SENTINELS.url())
    }

    /// Returns a place over TLS, or one without if there is none.
    #[cfg(feature = "fred-10")]
    pub fn fred_tls(scripts: bool) -> Self {
        use fred::types::config::{Config, TlsConnector};
        use rustls::pki_types::{CertificateDer, pem::PemObject};

        let Some((server, plain)) = &*SECURED else {
            return Self::single(Server::start());
        };
        let authority = CertificateDer::from_pem_slice(server.ca_pem().as_bytes());
        let mut roots = rustls::RootCertStore::empty();
        let added = roots.add(authority.expect("a certificate"));
        added.expect("a certificate of an authority");
        let tls = rustls::ClientConfig::builder().with_root_certificates(roots);
        let tls = TlsConnector::from(tls.with_no_client_auth());

        let login = if scripts { "" } else { "scriptless:any@" };
        let url = format!("redis://{login}127.0.0.1:{}", server.port());
        let mut fred = Config::from_url(&url).expect("fred reads such URLs too");
        fred.tls = Some(tls.into());
        let past_tls = format!("redis://127.0.0.1:{plain}");
        Self::shared(Home::Secured(*plain), past_tls).like(fred)
    }

    /// Returns the port of the case's own server, to put a proxy in front of it.
    pub fn port(&self) -> u16 {
        match &self.home {
            Home::Own(server) => server.port(),
            #[cfg(feature = "memory")]
            Home::Memory(listening) => listening.port,
            _ => panic!("it is shared"),
        }
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn builder(&self) -> ClientBuilder {
        impatient(Client::builder().config(self.config.clone()))
    }

    /// Connects a client with default settings.
    pub async fn client(&self) -> Client {
        let client = Client::builder().config(self.config.clone());
        client.build().await.expect("the servers are up")
    }

    /// Connects to the server of the lock, past everything under test.
    pub fn probe(&self) -> Connection {
        match &self.home {
            Home::Own(server) => server.connection(),
            Home::Cluster => CLUSTER.owner(&self.name).0.connection(),
            Home::Sentinels => SENTINELS.primary().connection(),
            #[cfg(feature = "fred-10")]
            Home::Secured(plain) => Connection::open(*plain),
            #[cfg(feature = "memory")]
            Home::Memory(listening) => listening.connection(),
        }
    }

    /// Waits until nothing is left of the lock, on the servers and in the clients.
    pub async fn nothing_left<const N: usize>(&self, clients: [&Client; N]) {
        for client in clients {
            eventually_idle(client).await;
        }
        let probes = match &self.home {
            Home::Cluster => CLUSTER.nodes().iter().map(Server::connection).collect(),
            _ => vec![self.probe()],
        };
        let of_lock = |text: &String| text.contains(&self.name) && !text.starts_with(KEPT);
        for mut probe in probes {
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

fn cluster_url(scripts: bool) -> String {
    let login = if scripts { "" } else { "scriptless:any@" };
    let url = CLUSTER.url();
    url.replace("cluster://", &format!("cluster://{login}"))
}

fn at(url: &str) -> Config {
    Config::from_url(url).expect("a URL of the testkit")
}
