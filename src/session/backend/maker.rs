//! Makes the clients of fred's that a server's connections are: how they connect, and how often they try.

use std::time::Duration;

use fred::clients::Client;
use fred::types::config::{
    Config, ConnectionConfig, PerformanceConfig, ReconnectPolicy, Server, ServerConfig, TcpConfig,
};
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::Doubt;
use super::transaction::Transactions;
use super::wire::Wire;

/// Messages that may be waiting before some are dropped, which wakes everybody.
const MESSAGE_BACKLOG: usize = 4096;

/// What all clients of one backend have in common.
#[derive(Clone)]
pub(super) struct Maker {
    config: Config,
    pub(super) command_timeout: Duration,
    pub(super) runtime: Handle,
    /// Where to tell of what makes holds doubtful.
    pub(super) doubts: mpsc::UnboundedSender<Doubt>,
    closing: CancellationToken,
}

impl Maker {
    /// On the current runtime.
    pub(super) fn new(
        mut config: Config,
        command_timeout: Duration,
        closing: &CancellationToken,
        doubts: mpsc::UnboundedSender<Doubt>,
    ) -> Self {
        config.fail_fast = true;
        Self {
            config,
            command_timeout,
            runtime: Handle::current(),
            doubts,
            closing: closing.clone(),
        }
    }

    /// A connection to a server that is kept.
    pub(super) fn wire(&self, server: &Server) -> Wire {
        let mut policy = ReconnectPolicy::new_exponential(0, 50, 1_000, 2);
        policy.set_jitter(50);
        Wire::new(self.client(server, Some(policy)), &self.closing)
    }

    pub(super) fn transactions(&self, server: &Server) -> Transactions {
        let (maker, server) = (self.clone(), server.clone());
        Transactions::new(move || maker.client(&server, None), &self.runtime)
    }

    fn client(&self, server: &Server, policy: Option<ReconnectPolicy>) -> Client {
        let mut config = self.config.clone();
        if config.server.is_clustered() {
            config.server = ServerConfig::Centralized {
                server: server.clone(),
            };
        }
        // A command of a transaction has no time-out of its own.
        let default_command_timeout = match policy {
            Some(_) => self.command_timeout,
            None => Duration::ZERO,
        };
        let handshake = self
            .command_timeout
            .clamp(Duration::from_millis(500), Duration::from_secs(10));
        let connection = ConnectionConfig {
            connection_timeout: handshake * 2,
            internal_command_timeout: handshake,
            max_command_attempts: 1,
            tcp: TcpConfig {
                nodelay: Some(true),
                ..TcpConfig::default()
            },
            ..ConnectionConfig::default()
        };
        let performance = PerformanceConfig {
            default_command_timeout,
            broadcast_channel_capacity: MESSAGE_BACKLOG,
            ..PerformanceConfig::default()
        };
        Client::new(config, Some(performance), Some(connection), policy)
    }

    /// The address of a server that another one has named; without a host it is on the same.
    pub(super) fn address(&self, host: &str, port: u16, named_by: &Server) -> Server {
        let host = if host.is_empty() {
            &*named_by.host
        } else {
            host
        };
        #[cfg_attr(
            not(feature = "tls"),
            allow(unused_mut, reason = "only TLS has more names")
        )]
        let mut address = Server::new(host, port);
        #[cfg(feature = "tls")]
        {
            address.tls_server_name = self.tls_name(host, &named_by.host).map(Into::into);
        }
        address
    }

    /// By which name a server proves who it is, if not by its address.
    #[cfg(feature = "tls")]
    fn tls_name(&self, host: &str, named_by: &str) -> Option<String> {
        use fred::types::config::TlsHostMapping;

        let address = host.parse().ok()?;
        match &self.config.tls.as_ref()?.hostnames {
            TlsHostMapping::None => None,
            TlsHostMapping::DefaultHost => Some(named_by.to_owned()),
            TlsHostMapping::Custom(mapping) => mapping.map(&address, named_by),
        }
    }
}
