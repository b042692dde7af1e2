//! Settings that are those of a client which the application has.

use super::ClientBuilder;
#[cfg(feature = "fred-10")]
use crate::config::FredClient;
#[cfg(feature = "redis-1")]
use crate::config::RedisClient;

impl ClientBuilder {
    /// Connects to the same servers and as the same user as a client of fred. Replaces a [`url`](Self::url) or
    /// [`config`](Self::config) that was set before. [`build`](Self::build) reports a setting that cannot be used.
    /// Requires the feature `fred-10`.
    ///
    /// The client of fred is read once, and may then be closed or dropped. The locks have connections of their own, so
    /// nothing that the client of fred does affects them. The page [why our own
    /// connection](https://github.com/redlatch/redlatch/blob/HEAD/docs/why-our-own-connection.md) gives the reasons. To
    /// change a setting, use [`Config::from_fred`](crate::Config::from_fred).
    ///
    /// | of fred | |
    /// |---|---|
    /// | a server, a cluster, sentinels, a unix socket | taken |
    /// | user, password | taken |
    /// | credential provider | asked at each connect, with the server's address, and after each `refresh_interval`, as fred does |
    /// | database, version of the protocol | taken |
    /// | TLS by rustls | its configuration is used as it is, and the server's name for TLS; needs the feature `tls-aws-lc-rs` next to fred's `enable-rustls`, or `tls-ring` next to `enable-rustls-ring` |
    /// | TLS by native-tls, host names for the addresses of a cluster | an error that says what to do; of the names, `DefaultHost` is taken if one host is given |
    /// | `connection_timeout` | taken as [`connect_timeout`](crate::Config::connect_timeout) |
    /// | the client's id | taken as [`label`](Self::label) if fred names its connections by it (`auto_client_setname`), and none is set |
    /// | user and password of sentinels | not taken: fred shows them only with its feature `sentinel-auth`, which changes how it logs in elsewhere; see [`Config::sentinel_password`](crate::Config::sentinel_password) |
    /// | timeouts of commands, pauses and attempts, TCP options, replicas, a resolver of names, mocks | not taken: redlatch has its own, or none |
    ///
    /// # Examples
    ///
    /// ```
    /// # redlatch_testkit::doc(async |url| {
    /// use fred::prelude::{Builder, ClientLike};
    /// use redlatch::Client;
    ///
    /// // As the application has it already.
    /// let fred = Builder::from_config(fred::prelude::Config::from_url(url)?).build()?;
    /// fred.init().await?;
    ///
    /// let client = Client::builder().fred(&fred).build().await?;
    /// let guard = client.lock("orders:42").lock().await?;
    /// guard.unlock().await?;
    /// # client.close().await;
    /// # Ok::<(), Box<dyn std::error::Error>>(()) });
    /// ```
    #[cfg(feature = "fred-10")]
    pub fn fred(mut self, client: &impl FredClient) -> Self {
        self.config = client.read().map(|(config, name)| {
            self.settings.label = self.settings.label.take().or(name);
            config
        });
        self
    }

    /// Connects to the same servers and as the same user as a client of redis-rs. Replaces a [`url`](Self::url) or
    /// [`config`](Self::config) that was set before. [`build`](Self::build) reports a setting that cannot be used.
    /// Requires the feature `redis-1`.
    ///
    /// The client of redis-rs is read once, and may then be dropped. The locks have connections of their own. To change
    /// a setting, use [`Config::from_redis`](crate::Config::from_redis).
    ///
    /// | of redis-rs | |
    /// |---|---|
    /// | `Client`, `ConnectionInfo`: a server, a unix socket, user, password, database, version of the protocol | taken |
    /// | a `Vec<ConnectionInfo>` for a cluster, as `ClusterClient::new` takes it | taken; login and TLS are those of the first |
    /// | TLS, `rediss://` | taken, with the certificate authorities of the system |
    /// | TLS with certificates, or with `#insecure` | an error that says what to do: redis-rs does not show certificates |
    /// | `ClusterClient`, `SentinelClient`, their builders, connections, pools | do not compile: they show nothing of what they were made from. The message says what to pass |
    /// | the `Client` of a `SentinelClient` | leads to the primary of that moment, and follows no failover: use [`Config::sentinels`](crate::Config::sentinels) |
    /// | credentials provider | not shown; see [`Config::credentials`](crate::Config::credentials) |
    /// | timeouts, TCP options, a resolver of names | not taken: redlatch has its own, or none |
    ///
    /// # Examples
    ///
    /// ```
    /// # redlatch_testkit::doc(async |url| {
    /// use redlatch::Client;
    ///
    /// // As the application has it already.
    /// let redis = redis::Client::open(url)?;
    ///
    /// let client = Client::builder().redis(&redis).build().await?;
    /// let guard = client.lock("orders:42").lock().await?;
    /// guard.unlock().await?;
    /// # client.close().await;
    /// # Ok::<(), Box<dyn std::error::Error>>(()) });
    /// ```
    #[cfg(feature = "redis-1")]
    pub fn redis<C: RedisClient + ?Sized>(mut self, client: &C) -> Self {
        self.config = client.read();
        self
    }
}
