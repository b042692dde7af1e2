//! Where a client connects and as which user, and other values that clients and locks are configured with.

/// Writes the setters of a type: each sets one field and returns the value.
macro_rules! setters {
    ($Type:ident: $($(#[$about:meta])* $name:ident($($given:ident: $Given:ty),*) => $($field:ident).+ = $value:expr;)*) => {
        impl $Type {
            $($(#[$about])*
            pub fn $name(mut self, $($given: $Given),*) -> Self {
                self.$($field).+ = $value;
                self
            })*
        }
    };
}
pub(crate) use setters;

mod connect;
mod credentials;
mod deployment;
#[cfg(feature = "fred-10")]
mod fred;
mod login;
#[cfg(feature = "serde")]
mod parts;
#[cfg(feature = "redis-1")]
mod redis;
mod secret;
mod server;
#[cfg(feature = "tls")]
pub(crate) mod tls;
mod url;

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::error::Error;
use crate::options::{SHORTEST_TIMEOUT, within_a_day};

pub use crate::backoff::Backoff;
pub use crate::options::{Prefer, PubSub, ReleaseBy};
pub use crate::owner::Owners;
pub use connect::{Address, Connect};
pub(crate) use connect::{Connector, Stream};
pub use credentials::Credentials;
pub(crate) use credentials::Provider;
pub(crate) use deployment::Deployment;
#[cfg(feature = "fred-10")]
pub use fred::FredClient;
pub use login::Login;
#[cfg(feature = "redis-1")]
pub use redis::RedisClient;
pub(crate) use secret::Secret;
pub(crate) use server::{PORT, Server};
#[cfg(feature = "tls")]
pub use tls::Tls;

#[cfg(not(feature = "tls"))]
const WITHOUT_TLS: &str = "this build of redlatch has no TLS: add one of its features `tls-aws-lc-rs` and `tls-ring`, or `tls` if \
     the application installs a provider for rustls";

/// A description of where a client connects, and as which user: the server or servers, user, password, database, TLS,
/// protocol and timeouts.
///
/// A configuration is created from a URL, by [`from_url`](Self::from_url) or [`parse`](str::parse), or in parts, and is
/// passed to [`ClientBuilder::config`](crate::ClientBuilder::config). Creating one does no I/O. Settings that cannot
/// work together, such as a database in a cluster, are refused with [`InvalidInput`](crate::ErrorKind::InvalidInput),
/// at the latest when the client is built. Neither `Debug` nor errors show a password.
///
/// # URLs
///
/// | URL | connects to |
/// |---|---|
/// | `redis://host` | port 6379, database 0 |
/// | `redis://host:6380/3` | database 3 |
/// | `redis://[::1]:6379` | an IPv6 address |
/// | `redis://:password@host` | as the default user |
/// | `redis://user:password@host` | as a user of the server's ACL |
/// | `rediss://host` | over TLS, with the certificate authorities that this system trusts |
/// | `rediss://host?tls_roots=/etc/redis/ca.pem` | over TLS, with only these authorities |
/// | `rediss://host?tls_certificate=/etc/my.pem&tls_key=/etc/my.key` | over TLS, with a client certificate |
/// | `rediss://10.0.0.7?tls_server_name=redis.internal` | over TLS, where the certificate names another host |
/// | `redis+unix:///run/redis.sock` | a unix socket |
/// | `redis+unix://user:password@/run/redis.sock?db=3` | a unix socket, with user, password and database |
/// | `redis-cluster://host:7000?node=other:7000&node=third:7000` | a cluster; any of these servers that answers names the others |
/// | `redis-sentinel://host:26379/3?node=other:26379&sentinelServiceName=main` | the primary that sentinels monitor; user, password and database are those of the primary |
/// | `redis-sentinel://host?sentinelServiceName=main&sentinelUsername=u&sentinelPassword=p` | the primary that sentinels monitor, where the sentinels require a login of their own |
///
/// `valkey` works in place of `redis`. `rediss-cluster` and `rediss-sentinel` are the corresponding forms over TLS,
/// with the same `tls_` parameters. Every URL also takes `connect_timeout=500ms`, `command_timeout=2s` and
/// `protocol=2`. The default port is 6379, that of sentinels 26379.
///
/// In all parts of a URL, `%` and two hexadecimal digits stand for a byte. In a user name and a password, `%`, `/`, `?`
/// and `#` must be written in this way (`%25`, `%2F`, `%3F`, `%23`), in a user name also `:` (`%3A`), and behind the
/// question mark also `&` (`%26`). An `@` need not be escaped: the last one separates the login from the host. A `+`
/// means a plus sign, not a space.
///
/// A part of a URL that is not in this table is [`InvalidInput`](crate::ErrorKind::InvalidInput): ignoring it could
/// mean using another database, and thus no exclusion. For example, `redis://host?db=3` is refused; the
/// correct form is `redis://host/3`.
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
/// With the feature `serde`, a configuration is deserialized from a URL, or from its parts by name: one of `server`,
/// `cluster`, `sentinels` and `unix_socket`, and those of the other fields that are needed.
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
/// A configuration is serialized in parts, **including its passwords and keys**, so that it can be deserialized again.
#[must_use = "a configuration does nothing by itself, give it to `ClientBuilder::config`"]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    pub(crate) deployment: Deployment,
    pub(crate) login: Login,
    pub(crate) sentinel_login: Login,
    /// In place of `login`.
    pub(crate) credentials: Option<Provider>,
    /// In place of `sentinel_login`.
    pub(crate) sentinel_credentials: Option<Provider>,
    pub(crate) database: u32,
    pub(crate) protocol: Protocol,
    pub(crate) connect_timeout: Option<Duration>,
    pub(crate) command_timeout: Option<Duration>,
    #[cfg(feature = "tls")]
    pub(crate) tls: Option<Tls>,
    pub(crate) connector: Option<Connector>,
}

/// The version of the protocol that a client uses with its servers. Set by [`Config::protocol`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "lowercase"))]
#[non_exhaustive]
pub enum Protocol {
    /// The version that was introduced with Redis 6.
    #[default]
    Resp3,
    /// The older version, for servers and proxies that refuse the command `HELLO`.
    Resp2,
}

impl Config {
    /// Parses a URL; see the [table of forms](Self#urls).
    ///
    /// # Errors
    ///
    /// [`InvalidInput`](crate::ErrorKind::InvalidInput) if any part of the URL is not understood. The error does not
    /// repeat the URL.
    ///
    /// # Examples
    ///
    /// ```
    /// use redlatch::{Config, ErrorKind};
    ///
    /// let config = Config::from_url("redis://locker:s3%2Fcret@redis.internal:6380/3")?;
    /// let parts = Config::server("redis.internal", 6380).user("locker").password("s3/cret").database(3);
    /// assert_eq!(config, parts);
    ///
    /// // Refused rather than ignored: the locks would be in database 0.
    /// let error = Config::from_url("redis://redis.internal?db=3").unwrap_err();
    /// assert_eq!(error.kind(), ErrorKind::InvalidInput);
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    pub fn from_url(url: impl AsRef<str>) -> Result<Self, Error> {
        url.as_ref().parse()
    }

    /// Creates a configuration for a single server, or for the primary of a replicated one. `host` is a name or an
    /// address. A server of a cluster is refused when the client connects: it has a part of the locks only.
    ///
    /// # Examples
    ///
    /// ```
    /// # redlatch_testkit::doc(async |url| {
    /// # let port = url.rsplit_once(':').unwrap().1.parse::<u16>().unwrap();
    /// use redlatch::{Client, Config};
    ///
    /// // Where the settings have host and port separately, there is no URL to build.
    /// let config = Config::server("127.0.0.1", port);
    /// let client = Client::builder().config(config).build().await?;
    /// client.ping().await?;
    /// # client.close().await;
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
    pub fn server(host: impl Into<String>, port: u16) -> Self {
        Self::of(Deployment::Server(Server::new(host, port)))
    }

    /// Creates a configuration for a cluster. Any of these servers that answers names the others; list several, so that
    /// one may be down.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn f() -> Result<(), redlatch::Error> {
    /// use redlatch::{Client, Config};
    ///
    /// // Three of many servers. The client starts as long as one of them answers.
    /// let hosts = ["redis-a.internal", "redis-b.internal", "redis-c.internal"];
    /// let config = Config::cluster(hosts.map(|host| (host, 7000)));
    /// let client = Client::builder().config(config).build().await?;
    ///
    /// let guard = client.lock("orders:42").lock().await?; // on the server that has this name
    /// guard.unlock().await?;
    /// # Ok(()) }
    /// ```
    pub fn cluster<H: Into<String>>(servers: impl IntoIterator<Item = (H, u16)>) -> Self {
        Self::of(Deployment::Cluster(all(servers)))
    }

    /// Creates a configuration for the primary that sentinels monitor under the name of a service. The client follows a
    /// failover.
    ///
    /// [`user`](Self::user) and [`password`](Self::password) are those of the primary, and are not sent to the
    /// sentinels; [`sentinel_user`](Self::sentinel_user) and [`sentinel_password`](Self::sentinel_password) set those
    /// of the sentinels.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn f() -> Result<(), redlatch::Error> {
    /// use redlatch::{Client, Config};
    ///
    /// let sentinels = [("10.0.0.1", 26379), ("10.0.0.2", 26379), ("10.0.0.3", 26379)];
    /// let config = Config::sentinels("main", sentinels)
    ///     .password("s3cret") // of the primary
    ///     .database(2);
    /// // After a failover, this client connects to the new primary.
    /// let client = Client::builder().config(config).build().await?;
    /// # Ok(()) }
    /// ```
    pub fn sentinels<H: Into<String>>(
        service: impl Into<String>,
        sentinels: impl IntoIterator<Item = (H, u16)>,
    ) -> Self {
        Self::of(Deployment::Sentinels {
            service: service.into(),
            servers: all(sentinels),
        })
    }

    /// Creates a configuration for a server on this machine, reached through the unix socket at this path.
    ///
    /// # Examples
    ///
    /// ```
    /// # redlatch_testkit::doc(async |_| {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let path = dir.path().join("redis.sock");
    /// # let _server = redlatch_testkit::Server::builder().arg("unixsocket", path.display()).start();
    /// use redlatch::{Client, Config};
    ///
    /// let config = Config::unix_socket(&path); // for example /run/redis/redis.sock
    /// let client = Client::builder().config(config).build().await?;
    /// let guard = client.lock("nightly-report").lock().await?;
    /// guard.unlock().await?;
    /// # client.close().await;
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
    pub fn unix_socket(path: impl Into<PathBuf>) -> Self {
        Self::of(Deployment::UnixSocket(path.into()))
    }

    fn of(deployment: Deployment) -> Self {
        Self {
            deployment,
            login: Login::default(),
            sentinel_login: Login::default(),
            credentials: None,
            sentinel_credentials: None,
            database: 0,
            protocol: Protocol::default(),
            connect_timeout: None,
            command_timeout: None,
            #[cfg(feature = "tls")]
            tls: None,
            connector: None,
        }
    }

    /// Refuses settings that cannot work with any server.
    pub(crate) fn check(&self) -> Result<(), Error> {
        match &self.deployment {
            Deployment::UnixSocket(path) if path.as_os_str().is_empty() => {
                return Err(Error::invalid("the path of the unix socket is empty"));
            }
            Deployment::UnixSocket(_) => {}
            Deployment::Sentinels { service, .. } if service.is_empty() => {
                return Err(Error::invalid(
                    "the configuration has sentinels but no service name; in a URL, add ?sentinelServiceName=..",
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
        for (login, credentials) in [
            (&self.login, &self.credentials),
            (&self.sentinel_login, &self.sentinel_credentials),
        ] {
            if login.is_given() && credentials.is_some() {
                return Err(Error::invalid(
                    "a user or password was given, and credentials that are asked for too: leave out one of them",
                ));
            }
        }
        if (self.sentinel_login.is_given() || self.sentinel_credentials.is_some())
            && !matches!(self.deployment, Deployment::Sentinels { .. })
        {
            return Err(Error::invalid(
                "a user or password for sentinels was given, but no sentinels",
            ));
        }
        #[cfg(feature = "tls")]
        if let Some(tls) = &self.tls {
            if let Deployment::UnixSocket(_) = self.deployment {
                return Err(Error::invalid("a unix socket cannot use TLS"));
            }
            tls.check()?;
        }
        match self.connect_timeout {
            Some(given) => within_a_day("connect_timeout", given, SHORTEST_TIMEOUT),
            None => Ok(()),
        }
    }
}

setters! { Config:
    /// Sets the database that stores all locks, 0 by default. A cluster has no other database.
    ///
    /// The same name in two databases is two locks.
    ///
    /// # Examples
    ///
    /// ```
    /// # redlatch_testkit::doc(async |url| {
    /// # let port = url.rsplit_once(':').unwrap().1.parse::<u16>().unwrap();
    /// use redlatch::{Client, Config};
    ///
    /// let config = Config::server("127.0.0.1", port);
    /// let staging = Client::builder().config(config.clone().database(1)).build().await?;
    /// let testing = Client::builder().config(config.database(2)).build().await?;
    ///
    /// let guard = staging.lock("nightly-report").lock().await?;
    /// let other = testing.lock("nightly-report").try_lock().await?;
    /// assert!(other.is_some()); // the same name in another database
    /// # drop((guard, other));
    /// # staging.close().await;
    /// # testing.close().await;
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
    database(database: u32) => database = database;

    /// Sets the version of the protocol that the client uses with its servers, [`Resp3`](Protocol::Resp3) by default.
    ///
    /// # Examples
    ///
    /// ```
    /// # redlatch_testkit::doc(async |url| {
    /// # let port = url.rsplit_once(':').unwrap().1.parse::<u16>().unwrap();
    /// use redlatch::config::Protocol;
    /// use redlatch::{Client, Config};
    ///
    /// // Through a proxy that closes a connection on the command HELLO.
    /// let config = Config::server("127.0.0.1", port).protocol(Protocol::Resp2);
    /// let client = Client::builder().config(config).build().await?;
    /// let guard = client.lock("orders:42").try_lock().await?;
    /// assert!(guard.is_some());
    /// # drop(guard);
    /// # client.close().await;
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
    protocol(protocol: Protocol) => protocol = protocol;

    /// Sets how long each step of connecting may take: to reach the server, to negotiate TLS, to log in. From 20 ms to
    /// a day. By default this is the [`command_timeout`](Self::command_timeout), but at least 500 ms and at most 10 s.
    ///
    /// # Examples
    ///
    /// ```
    /// # redlatch_testkit::doc(async |_| {
    /// use std::net::TcpListener;
    /// use std::time::Duration;
    /// use redlatch::{Client, Config, ErrorKind};
    ///
    /// // A server that hangs: it accepts connections and never answers.
    /// let hung = TcpListener::bind("127.0.0.1:0").unwrap();
    /// let port = hung.local_addr().unwrap().port();
    ///
    /// let config = Config::server("127.0.0.1", port).connect_timeout(Duration::from_millis(50));
    /// let error = Client::builder().config(config).build().await.unwrap_err();
    /// assert_eq!(error.kind(), ErrorKind::Backend);
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
    connect_timeout(timeout: Duration) => connect_timeout = Some(timeout);

    /// Sets how long one request to the server may take, unless
    /// [`ClientBuilder::command_timeout`](crate::ClientBuilder::command_timeout) sets another time. From 20 ms to a
    /// day; 1 second if neither is set.
    ///
    /// # Examples
    ///
    /// ```
    /// # redlatch_testkit::doc(async |url| {
    /// use std::time::Duration;
    /// use redlatch::{Client, Config};
    ///
    /// // Over a slow link, where an answer may take longer than the default of one second.
    /// let config = Config::from_url(url)?.command_timeout(Duration::from_secs(3));
    /// assert_eq!(config, Config::from_url(format!("{url}?command_timeout=3s"))?);
    /// let client = Client::builder().config(config).build().await?;
    /// # client.close().await;
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
    command_timeout(timeout: Duration) => command_timeout = Some(timeout);
}

impl Default for Config {
    /// Returns the configuration of `redis://127.0.0.1:6379`.
    fn default() -> Self {
        Self::server("127.0.0.1", PORT)
    }
}

fn all<H: Into<String>>(servers: impl IntoIterator<Item = (H, u16)>) -> Vec<Server> {
    let servers = servers.into_iter();
    servers
        .map(|(host, port)| Server::new(host, port))
        .collect()
}

/// Something of the application's. Only the same one is equal to it, and nothing of it is shown.
pub(crate) struct Given<T: ?Sized>(pub(crate) Arc<T>);

impl<T: ?Sized> Clone for Given<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T: ?Sized> PartialEq for Given<T> {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl<T: ?Sized> Eq for Given<T> {}

impl<T: ?Sized> fmt::Debug for Given<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("..")
    }
}
