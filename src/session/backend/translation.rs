//! Our configuration in fred's words, for the connection that messages come on.

use fred::types::RespVersion;
use fred::types::config::{Config as FredConfig, Server as FredServer, ServerConfig};

#[cfg(feature = "tls")]
use super::tls::Connector;
use crate::config::{Config, Deployment, Protocol, Secret, Server};

/// How fred reaches one server, or the primary that sentinels name.
pub(super) fn translated(
    config: &Config,
    server: &Server,
    #[cfg(feature = "tls")] tls: Option<&Connector>,
) -> FredConfig {
    let fred_server = |server: &Server| {
        // It parses both as one text.
        let host = match server.host.contains(':') {
            true => format!("[{}]", server.host),
            false => server.host.clone(),
        };
        #[cfg_attr(
            not(feature = "tls"),
            allow(unused_mut, reason = "only TLS has more names")
        )]
        let mut fred_server = FredServer::new(host, server.port);
        #[cfg(feature = "tls")]
        {
            fred_server.tls_server_name = tls.map(|tls| tls.server_name(&server.host).into());
        }
        fred_server
    };
    let deployment = match &config.deployment {
        Deployment::Server(_) | Deployment::Cluster(_) => ServerConfig::Centralized {
            server: fred_server(server),
        },
        Deployment::Sentinels { service, servers } => ServerConfig::Sentinel {
            hosts: servers.iter().map(fred_server).collect(),
            service_name: service.clone(),
            username: config.sentinel_login.user.clone(),
            password: revealed(config.sentinel_login.password.as_ref()),
        },
        Deployment::UnixSocket(path) => ServerConfig::Unix { path: path.clone() },
    };
    FredConfig {
        server: deployment,
        username: config.login.user.clone(),
        password: revealed(config.login.password.as_ref()),
        version: match config.protocol {
            Protocol::Resp3 => RespVersion::RESP3,
            Protocol::Resp2 => RespVersion::RESP2,
        },
        // Channels are of no database.
        database: None,
        fail_fast: true,
        #[cfg(feature = "tls")]
        tls: tls.map(Connector::translated),
        ..FredConfig::default()
    }
}

fn revealed(secret: Option<&Secret>) -> Option<String> {
    secret.map(|secret| secret.reveal().to_owned())
}
