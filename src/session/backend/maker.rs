//! Makes the clients of fred's that a server's connections are: how they connect, and how often they try.

use std::sync::Arc;
use std::time::Duration;

use fred::clients::Client;
use fred::types::config::{ConnectionConfig, PerformanceConfig, ReconnectPolicy, TcpConfig};
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::Doubt;
use super::connection::Connection;
use super::dial::Dialer;
use super::sentinel::Sentinels;
#[cfg(feature = "tls")]
use super::tls::Connector;
use super::transaction::Transactions;
use super::translation::translated;
use super::wire::Wire;
use crate::config::{Config, Deployment, Server};
use crate::error::Error;

/// Messages that may be waiting before some are dropped, which wakes everybody.
const MESSAGE_BACKLOG: usize = 4096;

/// What all clients of one backend have in common.
#[derive(Clone)]
pub(super) struct Maker {
    config: Arc<Config>,
    #[cfg(feature = "tls")]
    tls: Option<Connector>,
    pub(super) command_timeout: Duration,
    pub(super) runtime: Handle,
    /// Where to tell of what makes holds doubtful.
    pub(super) doubts: mpsc::UnboundedSender<Doubt>,
    closing: CancellationToken,
    /// What operators see of our connections.
    name: Arc<str>,
    sentinels: Option<Arc<Sentinels>>,
}

impl Maker {
    /// On the current runtime.
    pub(super) fn new(
        config: Config,
        command_timeout: Duration,
        closing: &CancellationToken,
        doubts: mpsc::UnboundedSender<Doubt>,
        name: Arc<str>,
    ) -> Result<Self, Error> {
        let mut maker = Self {
            #[cfg(feature = "tls")]
            tls: config.tls.as_ref().map(Connector::new).transpose()?,
            config: config.into(),
            command_timeout,
            runtime: Handle::current(),
            doubts,
            closing: closing.clone(),
            name,
            sentinels: None,
        };
        if let Deployment::Sentinels { service, servers } = &maker.config.deployment
            && let Some(first) = servers.first()
        {
            let sentinels = Sentinels::follow(
                maker.dialer(first),
                servers.clone(),
                service.clone(),
                maker.config.sentinel_login.clone(),
                &maker.runtime,
            );
            maker.sentinels = Some(Arc::new(sentinels));
        }
        Ok(maker)
    }

    /// The connection for commands to a server, by the number that the server has here.
    pub(super) fn connection(&self, server: &Server, node: u64) -> Connection {
        let doubts = self.doubts.clone();
        // The server behind a new connection may be another one, or have forgotten.
        let reconnected = move || {
            doubts.send(Doubt::Node(node)).ok();
        };
        Connection::new(self.dialer(server), &self.runtime, reconnected)
    }

    /// A connection to a server that is kept.
    pub(super) fn wire(&self, server: &Server) -> Wire {
        let mut policy = ReconnectPolicy::new_exponential(0, 50, 1_000, 2);
        policy.set_jitter(50);
        Wire::new(self.client(server, policy), server, &self.closing)
    }

    pub(super) fn transactions(&self, server: &Server) -> Transactions {
        Transactions::new(self.dialer(server), &self.runtime)
    }

    pub(super) fn dialer(&self, server: &Server) -> Dialer {
        Dialer {
            config: self.config.clone(),
            #[cfg(feature = "tls")]
            tls: self.tls.clone(),
            server: server.clone(),
            name: self.name.clone(),
            patience: self.handshake(),
            sentinels: self.sentinels.clone(),
        }
    }

    fn client(&self, server: &Server, policy: ReconnectPolicy) -> Client {
        let config = translated(
            &self.config,
            server,
            #[cfg(feature = "tls")]
            self.tls.as_ref(),
        );
        let handshake = self.handshake();
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
            default_command_timeout: self.command_timeout,
            broadcast_channel_capacity: MESSAGE_BACKLOG,
            ..PerformanceConfig::default()
        };
        Client::new(config, Some(performance), Some(connection), Some(policy))
    }

    /// How long a server may take for each step until a connection is ready.
    fn handshake(&self) -> Duration {
        self.config.connect_timeout.unwrap_or_else(|| {
            self.command_timeout
                .clamp(Duration::from_millis(500), Duration::from_secs(10))
        })
    }
}
