//! A configuration as a client of redis-rs has it.
//!
//! redis-rs only says where and as whom to connect. Nothing here sends anything over its connections.

use redis::{Client, ConnectionAddr, ConnectionInfo, ProtocolVersion};

use crate::config::{Config, Protocol};
use crate::error::Error;

/// What [`ClientBuilder::redis`](crate::ClientBuilder::redis) reads: a `redis::Client` or a `redis::ConnectionInfo` of
/// redis-rs 1, or several of the latter for a cluster, as `ClusterClient::new` takes them.
///
/// A `ClusterClient`, a `SentinelClient` and their builders show nothing of what they were made from.
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not tell how it connects",
    note = "for a cluster, pass the `Vec<ConnectionInfo>` that the `ClusterClient` was made from",
    note = "for sentinels, use `Client::builder().config(Config::sentinels(..))`",
    note = "for a pool or a connection, pass the `redis::Client` that it was made from"
)]
pub trait RedisClient: ReadRedis {}

/// Keeps the trait to the types here.
#[expect(unnameable_types, reason = "nobody else implements it")]
pub trait ReadRedis {
    #[doc(hidden)]
    fn read(&self) -> Result<Config, Error>;
}

impl ReadRedis for Client {
    fn read(&self) -> Result<Config, Error> {
        self.get_connection_info().read()
    }
}

impl ReadRedis for ConnectionInfo {
    fn read(&self) -> Result<Config, Error> {
        let config = match self.addr() {
            ConnectionAddr::Tcp(host, port) => Config::server(host, *port),
            ConnectionAddr::Unix(path) => Config::unix_socket(path),
            ConnectionAddr::TcpTls {
                host,
                port,
                insecure,
                tls_params,
            } => secure(Config::server(host, *port), *insecure, tls_params.is_some())?,
            _ => {
                return Err(Error::invalid(
                    "redlatch does not know this kind of redis-rs' addresses",
                ));
            }
        };
        as_whom(self, config)
    }
}

/// The servers of a cluster.
impl ReadRedis for [ConnectionInfo] {
    fn read(&self) -> Result<Config, Error> {
        let first = self.first();
        let first = first.ok_or_else(|| Error::invalid("no server of the cluster is given"))?;
        let mut servers = Vec::new();
        for node in self {
            match (node.addr(), first.addr()) {
                (ConnectionAddr::Tcp(host, port), ConnectionAddr::Tcp(..))
                | (ConnectionAddr::TcpTls { host, port, .. }, ConnectionAddr::TcpTls { .. }) => {
                    servers.push((host, *port));
                }
                _ => {
                    return Err(Error::invalid(
                        "the servers of a cluster are all reached by TCP, or all by TLS",
                    ));
                }
            }
        }
        let mut config = first.read()?;
        config.deployment = Config::cluster(servers).deployment;
        Ok(config)
    }
}

impl ReadRedis for Vec<ConnectionInfo> {
    fn read(&self) -> Result<Config, Error> {
        self.as_slice().read()
    }
}

impl RedisClient for Client {}
impl RedisClient for ConnectionInfo {}
impl RedisClient for [ConnectionInfo] {}
impl RedisClient for Vec<ConnectionInfo> {}

impl Config {
    /// Creates a configuration from that of a client of redis-rs; [`ClientBuilder::redis`](crate::ClientBuilder::redis)
    /// says what is taken. Use it to change a setting, or to add one that redis-rs does not show.
    ///
    /// # Errors
    ///
    /// [`InvalidInput`](crate::ErrorKind::InvalidInput) if it cannot work for locks. TLS with certificates that
    /// redis-rs does not show is an error only when the client is built, unless [`tls`](Self::tls) sets them.
    ///
    /// # Examples
    ///
    /// ```
    /// # redlatch_testkit::doc(async |url| {
    /// use redlatch::{Client, Config};
    ///
    /// let redis = redis::Client::open(url)?;
    ///
    /// // The locks are in a database of their own.
    /// let config = Config::from_redis(&redis)?.database(1);
    /// let client = Client::builder().config(config).build().await?;
    /// # client.close().await;
    /// # Ok::<(), Box<dyn std::error::Error>>(()) });
    /// ```
    pub fn from_redis<C: RedisClient + ?Sized>(client: &C) -> Result<Self, Error> {
        client.read()
    }
}

fn as_whom(info: &ConnectionInfo, mut config: Config) -> Result<Config, Error> {
    let redis = info.redis_settings();
    if let Some(user) = redis.username() {
        config = config.user(user);
    }
    if let Some(password) = redis.password() {
        config = config.password(password);
    }
    config.database = u32::try_from(redis.db()).map_err(|_| {
        Error::invalid("the database of redis-rs' client is not a number from 0 on")
    })?;
    config.protocol = match redis.protocol() {
        ProtocolVersion::RESP2 => Protocol::Resp2,
        _ => Protocol::Resp3,
    };
    Ok(config)
}

#[cfg(not(feature = "tls"))]
fn secure(_: Config, _: bool, _: bool) -> Result<Config, Error> {
    Err(Error::invalid(super::WITHOUT_TLS))
}

#[cfg(feature = "tls")]
fn secure(config: Config, accepts_all: bool, has_certificates: bool) -> Result<Config, Error> {
    use super::tls::Tls;

    Ok(config.tls(match (accepts_all, has_certificates) {
        (false, false) => Tls::new(),
        (true, _) => Tls::unusable(
            "redis-rs' client accepts any certificate (`#insecure`), and redlatch does not by itself: set an authority, \
             or a rustls configuration that does, with Config::from_redis(..)?.tls(..)",
        ),
        (false, true) => Tls::unusable(
            "redis-rs does not show its client's certificates: set the same ones with Config::from_redis(..)?.tls(..)",
        ),
    }))
}
