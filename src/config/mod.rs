//! Where a client connects, and as whom.

#[cfg(feature = "serde")]
mod parts;
mod secret;
mod server;
#[cfg(feature = "tls")]
pub(crate) mod tls;
mod url;

use std::path::PathBuf;
use std::time::Duration;

use crate::error::Error;

pub(crate) use secret::Secret;
pub(crate) use server::Server;
#[cfg(feature = "tls")]
use tls::Tls;

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// Describes where a client connects, and as whom: the server or servers, user, password, database, TLS, timeouts.
///
/// Made from a URL, by [`from_url`](Self::from_url) or [`parse`](str::parse), or by parts; taken by [`ClientBuilder::config`](crate::ClientBuilder::config).
/// Making one does no I/O. What cannot work together, a database in a cluster for example, is
/// [`InvalidInput`](crate::ErrorKind::InvalidInput) when the client is built. `Debug` shows no password, nor do errors.
///
/// # URLs
///
/// | URL | connects to |
/// |---|---|
/// | `redis://host` | port 6379, database 0 |
/// | `redis://host:6380/3` | database 3 |
/// | `redis://[::1]:6379` | an address of IPv6 |
/// | `redis://:password@host` | as the default user |
/// | `redis://user:password@host` | as a user of the server's ACL |
/// | `rediss://host` | over TLS, with the authorities that this system trusts |
/// | `rediss://host?tls_roots=/etc/redis/ca.pem` | over TLS, with these authorities only |
/// | `rediss://host?tls_certificate=/etc/my.pem&tls_key=/etc/my.key` | over TLS, with a client certificate |
/// | `rediss://10.0.0.7?tls_server_name=redis.internal` | over TLS, where the certificate names another host |
/// | `redis+unix:///run/redis.sock` | a unix socket |
/// | `redis+unix://user:password@/run/redis.sock?db=3` | the same, with user, password and database |
/// | `redis-cluster://host:7000?node=other:7000&node=third:7000` | a cluster, of which one server that answers tells the others |
/// | `redis-sentinel://host:26379/3?node=other:26379&sentinelServiceName=main` | the primary that sentinels look after; user, password and database are the primary's |
/// | `redis-sentinel://host?sentinelServiceName=main&sentinelUsername=u&sentinelPassword=p` | the same, where sentinels want a login of their own |
///
/// `valkey` works in place of `redis`, and `rediss-cluster`, `rediss-sentinel` are these over TLS, with the same
/// `tls_` parts. Every URL also takes `connect_timeout=500ms`, `command_timeout=2s` and `protocol=2`. A port that is not
/// given is 6379, of sentinels 26379.
///
/// In all parts `%` and two hexadecimal digits stand for a byte; in a password, `%`, `/`, `?`, `#` and `@` have to be
/// written so (`%25`, `%2F`, `%3F`, `%23`, `%40`), and `:` in a user's name. A `+` is a plus. A part of a URL that is not
/// in this table is [`InvalidInput`](crate::ErrorKind::InvalidInput), since to ignore it could mean another database, and
/// so no exclusion: `redis://host?db=3` is refused, and `redis://host/3` meant.
///
/// # Examples
///
/// ```
/// # redlatch_testkit::doc(async |url| {
/// # let port = url.rsplit_once(':').unwrap().1.parse::<u16>().unwrap();
/// use redlatch::{Client, Config};
///
/// let config = Config::server("127.0.0.1", port).database(2);
/// assert_eq!(config, Config::from_url(format!("redis://127.0.0.1:{port}/2"))?);
///
/// let client = Client::builder().config(config).build().await?;
/// # client.close().await;
/// # Ok::<(), redlatch::Error>(()) });
/// ```
///
/// # `serde`
///
/// With the feature `serde` a configuration is read from a URL, or from its parts by name: one of `server`, `cluster`,
/// `sentinels` and `unix_socket`, and whatever of the others is needed.
///
/// ```
/// # #[cfg(feature = "serde")] fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use redlatch::Config;
///
/// #[derive(serde::Deserialize)]
/// struct Settings {
///     locks: Config,
///     jobs: Config,
/// }
///
/// let settings: Settings = toml::from_str(
///     r#"
///     jobs = "redis://user:password@host:6379/3"
///
///     [locks]
///     sentinels = { service = "main", servers = ["one:26379", "two:26379"], user = "watcher", password = ".." }
///     ## or: server = "host:6379"
///     ## or: cluster = ["one:7000", "two:7000"]
///     ## or: unix_socket = "/run/redis.sock"
///     user = "locker"
///     password = ".."
///     database = 3
///     connect_timeout = "500ms"
///     command_timeout = "2s"
///     protocol = "resp2"
///
///     [locks.tls]
///     roots_file = "ca.pem"        # or the text itself: roots = "-----BEGIN .."
///     certificate_file = "my.pem"  # or: certificate = ".."
///     key_file = "my.key"          # or: key = ".."
///     server_name = "redis.internal"
///     "#,
/// )?;
/// assert_eq!(settings.jobs, Config::from_url("redis://user:password@host:6379/3")?);
/// # drop(settings.locks);
/// # Ok(()) }
/// # #[cfg(not(feature = "serde"))] fn main() {}
/// ```
///
/// It is written by its parts, **with its passwords and keys**: what is written can be read again.
#[must_use = "a configuration does nothing by itself, give it to `ClientBuilder::config`"]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    pub(crate) deployment: Deployment,
    pub(crate) login: Login,
    pub(crate) sentinel_login: Login,
    pub(crate) database: u32,
    pub(crate) protocol: Protocol,
    pub(crate) connect_timeout: Option<Duration>,
    pub(crate) command_timeout: Option<Duration>,
    #[cfg(feature = "tls")]
    pub(crate) tls: Option<Tls>,
}

/// How the servers are arranged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Deployment {
    Server(Server),
    Cluster(Vec<Server>),
    Sentinels {
        service: String,
        servers: Vec<Server>,
    },
    UnixSocket(PathBuf),
}

impl Deployment {
    /// The servers that are named: of a cluster and of sentinels all.
    pub(crate) fn servers(&self) -> Vec<Server> {
        match self {
            Self::Server(server) => vec![server.clone()],
            Self::Cluster(servers) | Self::Sentinels { servers, .. } => servers.clone(),
            Self::UnixSocket(path) => vec![Server::new(path.display().to_string(), 0)],
        }
    }
}

/// A user and a password, as far as they are given.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Login {
    pub(crate) user: Option<String>,
    pub(crate) password: Option<Secret>,
}

impl Login {
    pub(crate) fn is_given(&self) -> bool {
        self.user.is_some() || self.password.is_some()
    }
}

/// The version of the protocol in which a client speaks to its servers. Set by [`Config::protocol`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "lowercase"))]
#[non_exhaustive]
pub enum Protocol {
    /// The version that begins with Redis 6.
    #[default]
    Resp3,
    /// The older version: for servers and proxies that refuse the command `HELLO`.
    Resp2,
}

impl Config {
    /// Reads a URL; the forms are in a table [above](Self#urls).
    ///
    /// # Errors
    ///
    /// [`InvalidInput`](crate::ErrorKind::InvalidInput) if any part of it is not understood. The URL is not repeated.
    pub fn from_url(url: impl AsRef<str>) -> Result<Self, Error> {
        url.as_ref().parse()
    }

    /// Connects to a single server, or to the primary of a replicated one. `host` is a name or an address.
    pub fn server(host: impl Into<String>, port: u16) -> Self {
        Self::of(Deployment::Server(Server::new(host, port)))
    }

    /// Connects to a cluster. One of these servers that answers tells of the others; name several, so that it may be down.
    pub fn cluster<H: Into<String>>(servers: impl IntoIterator<Item = (H, u16)>) -> Self {
        Self::of(Deployment::Cluster(all(servers)))
    }

    /// Connects to the primary that sentinels look after under the name of a service, and follows a failover.
    ///
    /// [`user`](Self::user) and [`password`](Self::password) are those of the primary, and are not sent to sentinels;
    /// these have [`sentinel_user`](Self::sentinel_user) and [`sentinel_password`](Self::sentinel_password).
    pub fn sentinels<H: Into<String>>(
        service: impl Into<String>,
        sentinels: impl IntoIterator<Item = (H, u16)>,
    ) -> Self {
        Self::of(Deployment::Sentinels {
            service: service.into(),
            servers: all(sentinels),
        })
    }

    /// Connects to a server on this machine by the path of its unix socket.
    pub fn unix_socket(path: impl Into<PathBuf>) -> Self {
        Self::of(Deployment::UnixSocket(path.into()))
    }

    fn of(deployment: Deployment) -> Self {
        Self {
            deployment,
            login: Login::default(),
            sentinel_login: Login::default(),
            database: 0,
            protocol: Protocol::default(),
            connect_timeout: None,
            command_timeout: None,
            #[cfg(feature = "tls")]
            tls: None,
        }
    }

    /// Logs in as this user of the server's ACL; as the default user if none is given.
    pub fn user(mut self, user: impl Into<String>) -> Self {
        self.login.user = Some(user.into());
        self
    }

    /// Logs in with this password.
    pub fn password(mut self, password: impl Into<String>) -> Self {
        self.login.password = Some(Secret::new(password));
        self
    }

    /// Keeps all locks in this database; 0 if none is given. A cluster has no other.
    ///
    /// The same name in two databases is two locks.
    pub fn database(mut self, database: u32) -> Self {
        self.database = database;
        self
    }

    /// Connects over TLS, to servers and sentinels alike.
    #[cfg(feature = "tls")]
    pub fn tls(mut self, tls: Tls) -> Self {
        self.tls = Some(tls);
        self
    }

    /// Logs in to the sentinels as this user.
    pub fn sentinel_user(mut self, user: impl Into<String>) -> Self {
        self.sentinel_login.user = Some(user.into());
        self
    }

    /// Logs in to the sentinels with this password.
    pub fn sentinel_password(mut self, password: impl Into<String>) -> Self {
        self.sentinel_login.password = Some(Secret::new(password));
        self
    }

    /// Speaks this version of the protocol, [`Resp3`](Protocol::Resp3) if none is given.
    pub fn protocol(mut self, protocol: Protocol) -> Self {
        self.protocol = protocol;
        self
    }

    /// Gives each step on the way to a connection this long: to reach the server, to agree on TLS, to log in. From 20 ms
    /// to a day. The [`command_timeout`](Self::command_timeout) if none is given, though from 500 ms to 10 s.
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = Some(timeout);
        self
    }

    /// Gives one request to the server this long, unless
    /// [`ClientBuilder::command_timeout`](crate::ClientBuilder::command_timeout) says otherwise. From 20 ms to a day.
    pub fn command_timeout(mut self, timeout: Duration) -> Self {
        self.command_timeout = Some(timeout);
        self
    }

    /// Refuses what cannot work, whatever the server is.
    pub(crate) fn check(&self) -> Result<(), Error> {
        match &self.deployment {
            Deployment::UnixSocket(path) if path.as_os_str().is_empty() => {
                return Err(Error::invalid("the path of the unix socket is empty"));
            }
            Deployment::UnixSocket(_) => {}
            Deployment::Sentinels { service, .. } if service.is_empty() => {
                return Err(Error::invalid(
                    "sentinels are asked for a service, and none is named; in a URL that is ?sentinelServiceName=..",
                ));
            }
            named => {
                let servers = named.servers();
                if servers.is_empty() {
                    return Err(Error::invalid("the configuration names no server"));
                }
                servers.iter().try_for_each(Server::check)?;
            }
        }
        if let Deployment::Cluster(_) = self.deployment
            && self.database != 0
        {
            let given = self.database;
            return Err(Error::invalid(format!(
                "a cluster has database 0 only, not {given}"
            )));
        }
        if self.sentinel_login.is_given()
            && !matches!(self.deployment, Deployment::Sentinels { .. })
        {
            return Err(Error::invalid(
                "a user or password for sentinels was given, and no sentinels",
            ));
        }
        #[cfg(feature = "tls")]
        if let Some(tls) = &self.tls {
            if let Deployment::UnixSocket(_) = self.deployment {
                return Err(Error::invalid("there is no TLS on a unix socket"));
            }
            tls.check()?;
        }
        match self.connect_timeout {
            Some(given) if given < crate::options::SHORTEST_TIMEOUT || given > DAY => {
                Err(Error::invalid(format!(
                    "connect_timeout lies between 20 ms and a day, not {given:?}"
                )))
            }
            _ => Ok(()),
        }
    }
}

/// `redis://127.0.0.1:6379`.
impl Default for Config {
    fn default() -> Self {
        Self::server("127.0.0.1", server::PORT)
    }
}

fn all<H: Into<String>>(servers: impl IntoIterator<Item = (H, u16)>) -> Vec<Server> {
    let servers = servers.into_iter();
    servers
        .map(|(host, port)| Server::new(host, port))
        .collect()
}
