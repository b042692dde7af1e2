//! A configuration as a client of fred has it.
//!
//! fred only says where and as whom to connect. Nothing here sends anything over its connections, and nothing of it is
//! kept but its credential provider.

use std::sync::Arc;

use fred::clients::{Client, Pool};
use fred::interfaces::ClientLike;
use fred::types::config::{
    Config as Fred, ConnectionConfig, CredentialProvider, Server, ServerConfig,
};
use fred::types::{Builder, RespVersion};

use super::Given;
use super::credentials::{Ask, Asked};
use crate::config::{Address, Config, Login, Protocol, Secret};
use crate::error::Error;

/// What [`ClientBuilder::fred`](crate::ClientBuilder::fred) reads: a client or a pool of fred 10, its builder, or its
/// configuration.
///
/// Of the others, such as an `ExclusivePool`, pass the builder that made them, or `&client.client_config()`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is nothing of fred 10 that tells how it connects",
    note = "pass a `Client`, a `Pool`, the `Builder` that made it, or `&client.client_config()`"
)]
pub trait FredClient: ReadFred {}

/// Keeps the trait to the types here.
#[expect(unnameable_types, reason = "nobody else implements it")]
pub trait ReadFred {
    /// Returns the configuration, and the name that its connections bear, if they do.
    #[doc(hidden)]
    fn read(&self) -> Result<(Config, Option<String>), Error>;
}

impl ReadFred for Client {
    fn read(&self) -> Result<(Config, Option<String>), Error> {
        let connection = self.connection_config();
        let mut fred = self.client_config();
        // What it speaks by now.
        fred.version = self.protocol_version();
        let name = connection.auto_client_setname.then(|| self.id().to_owned());
        Ok((read(&fred, connection)?, name))
    }
}

/// Its clients are all alike.
impl ReadFred for Pool {
    fn read(&self) -> Result<(Config, Option<String>), Error> {
        match self.clients().first() {
            Some(client) => client.read(),
            None => Err(Error::invalid("this pool of fred's has no clients")),
        }
    }
}

impl ReadFred for Builder {
    fn read(&self) -> Result<(Config, Option<String>), Error> {
        let fred = self.get_config();
        let fred =
            fred.ok_or_else(|| Error::invalid("this builder of fred's has no configuration"))?;
        Ok((read(fred, self.get_connection_config())?, None))
    }
}

impl ReadFred for Fred {
    fn read(&self) -> Result<(Config, Option<String>), Error> {
        Ok((read(self, &ConnectionConfig::default())?, None))
    }
}

impl FredClient for Client {}
impl FredClient for Pool {}
impl FredClient for Builder {}
impl FredClient for Fred {}

impl Config {
    /// Creates a configuration from that of a client of fred; [`ClientBuilder::fred`](crate::ClientBuilder::fred) says
    /// what is taken. Use it to change a setting, or to add one that fred does not show.
    ///
    /// # Errors
    ///
    /// [`InvalidInput`](crate::ErrorKind::InvalidInput) if it cannot work for locks. A TLS configuration that cannot be
    /// used is an error only when the client is built, unless [`tls`](Self::tls) sets another one.
    ///
    /// # Examples
    ///
    /// ```
    /// # redlatch_testkit::doc(async |url| {
    /// use fred::prelude::{Builder, ClientLike};
    /// use redlatch::{Client, Config};
    ///
    /// let fred = Builder::from_config(fred::prelude::Config::from_url(url)?).build()?;
    /// fred.init().await?;
    ///
    /// // The locks are in a database of their own.
    /// let config = Config::from_fred(&fred)?.database(1);
    /// let client = Client::builder().config(config).build().await?;
    /// # client.close().await;
    /// # Ok::<(), Box<dyn std::error::Error>>(()) });
    /// ```
    pub fn from_fred(client: &impl FredClient) -> Result<Self, Error> {
        client.read().map(|(config, _)| config)
    }
}

fn read(fred: &Fred, connection: &ConnectionConfig) -> Result<Config, Error> {
    let address = |server: &Server| (server.host.to_string(), server.port);
    let mut config = match &fred.server {
        ServerConfig::Centralized { server } => {
            Config::server(server.host.to_string(), server.port)
        }
        ServerConfig::Clustered { hosts, .. } => Config::cluster(hosts.iter().map(address)),
        ServerConfig::Sentinel {
            hosts,
            service_name,
            ..
        } => Config::sentinels(service_name, hosts.iter().map(address)),
        // Only if another crate has switched on fred's feature for it.
        #[allow(unreachable_patterns, reason = "depends on the features of fred")]
        other => match other.hosts().first() {
            Some(path) if other.is_unix_socket() => Config::unix_socket(path.host.to_string()),
            _ => {
                return Err(Error::invalid(
                    "redlatch does not know this kind of fred's servers",
                ));
            }
        },
    };
    match &fred.credential_provider {
        Some(provider) => {
            config.credentials = Some(Given(Arc::new(Fetched(provider.clone()))));
            // fred asks the same provider for sentinels.
            if fred.server.is_sentinel() {
                config.sentinel_credentials.clone_from(&config.credentials);
            }
        }
        None => config.login = login((fred.username.clone(), fred.password.clone())),
    }
    config.database = fred.database.unwrap_or_default().into();
    config.protocol = match fred.version {
        RespVersion::RESP2 => Protocol::Resp2,
        RespVersion::RESP3 => Protocol::Resp3,
    };
    config.connect_timeout = Some(connection.connection_timeout);
    secure(fred, config)
}

fn login((user, password): (Option<String>, Option<String>)) -> Login {
    Login {
        user,
        password: password.map(Secret::new),
        renewed_after: None,
    }
}

#[cfg(not(feature = "tls"))]
fn secure(fred: &Fred, config: Config) -> Result<Config, Error> {
    match fred.uses_tls() {
        true => Err(Error::invalid(super::WITHOUT_TLS)),
        false => Ok(config),
    }
}

/// Takes the TLS configuration over. One that cannot be used is an error when the client is built.
#[cfg(feature = "tls")]
fn secure(fred: &Fred, config: Config) -> Result<Config, Error> {
    use super::tls::Tls;

    if !fred.uses_tls() {
        return Ok(config);
    }
    // fred shows it only with a feature of its own, which ours switch on.
    #[cfg(any(feature = "tls-aws-lc-rs", feature = "tls-ring"))]
    if let Some(tls) = rustls(fred) {
        return Ok(config.tls(tls));
    }
    Ok(config.tls(Tls::unusable(match fred.uses_native_tls() {
        true => {
            "fred's client uses native-tls, and redlatch uses rustls only: set the same authorities and certificates \
             with Config::from_fred(..)?.tls(..)"
        }
        false => {
            "fred's client uses rustls, and this build of redlatch cannot see its configuration: choose the feature \
             `tls-aws-lc-rs` next to fred's `enable-rustls`, or `tls-ring` next to `enable-rustls-ring`"
        }
    })))
}

#[cfg(any(feature = "tls-aws-lc-rs", feature = "tls-ring"))]
fn rustls(fred: &Fred) -> Option<super::tls::Tls> {
    use super::tls::Tls;
    use fred::types::config::{TlsConnector, TlsHostMapping};

    let tls = fred.tls.as_ref()?;
    #[allow(irrefutable_let_patterns, reason = "depends on the features of fred")]
    let TlsConnector::Rustls(connector) = &tls.connector else {
        return None;
    };
    let ours = Tls::rustls(connector.config().clone());
    Some(match &fred.server {
        ServerConfig::Centralized { server } => match &server.tls_server_name {
            Some(name) => ours.server_name(name.to_string()),
            None => ours,
        },
        ServerConfig::Clustered { hosts, .. } => match (&tls.hostnames, hosts.as_slice()) {
            (TlsHostMapping::None, _) => ours,
            (TlsHostMapping::DefaultHost, [one]) => ours.server_name(one.host.to_string()),
            _ => Tls::unusable(
                "fred's client maps addresses of the cluster to host names, which redlatch does not: set one name for \
                 all servers with Config::from_fred(..)?.tls(Tls::rustls(..).server_name(..))",
            ),
        },
        _ => ours,
    })
}

/// The credential provider of fred's client.
struct Fetched(Arc<dyn CredentialProvider>);

impl Ask for Fetched {
    fn ask<'a>(&'a self, address: &'a Address) -> Asked<'a> {
        Box::pin(async {
            let server = match address {
                Address::Tcp { host, port } => Server::new(host.as_str(), *port),
                Address::Unix(path) => Server::new(path.display().to_string(), 0),
            };
            let mut login = login(self.0.fetch(Some(&server)).await?);
            login.renewed_after = self.0.refresh_interval();
            Ok(login)
        })
    }
}
