//! Makes the clients of fred's that a server's connections are: how they connect, and how often they try.

use std::sync::Arc;
use std::time::Duration;

use fred::clients::Client;
use fred::types::config::{
    Config, ConnectionConfig, PerformanceConfig, ReconnectPolicy, Server, ServerConfig, TcpConfig,
};
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::Doubt;
use super::connection::Connection;
use super::dial::{self, Dialer};
use super::sentinel::Sentinels;
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
    /// What operators see of our connections.
    name: Arc<str>,
    sentinels: Option<Arc<Sentinels>>,
}

impl Maker {
    /// On the current runtime.
    pub(super) fn new(
        mut config: Config,
        command_timeout: Duration,
        closing: &CancellationToken,
        doubts: mpsc::UnboundedSender<Doubt>,
        name: Arc<str>,
    ) -> Self {
        config.fail_fast = true;
        let mut maker = Self {
            config,
            command_timeout,
            runtime: Handle::current(),
            doubts,
            closing: closing.clone(),
            name,
            sentinels: None,
        };
        if let ServerConfig::Sentinel {
            hosts,
            service_name,
            username,
            password,
        } = &maker.config.server
            && let Some(first) = hosts.first()
        {
            let sentinels = Sentinels::follow(
                maker.dialer(first),
                hosts.clone(),
                service_name.clone(),
                username.clone(),
                password.clone(),
                &maker.runtime,
            );
            maker.sentinels = Some(Arc::new(sentinels));
        }
        maker
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
        Wire::new(self.client(server, policy), &self.closing)
    }

    pub(super) fn transactions(&self, server: &Server) -> Transactions {
        Transactions::new(self.dialer(server), &self.runtime)
    }

    pub(super) fn dialer(&self, server: &Server) -> Dialer {
        Dialer {
            config: self.config(server),
            server: server.clone(),
            name: self.name.clone(),
            patience: self.handshake(),
            sentinels: self.sentinels.clone(),
        }
    }

    fn client(&self, server: &Server, policy: ReconnectPolicy) -> Client {
        let config = self.config(server);
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

    /// How to reach one server.
    fn config(&self, server: &Server) -> Config {
        let mut config = self.config.clone();
        if config.server.is_clustered() {
            config.server = ServerConfig::Centralized {
                server: server.clone(),
            };
        }
        config
    }

    /// How long a server may take for each step until a connection is ready.
    fn handshake(&self) -> Duration {
        self.command_timeout
            .clamp(Duration::from_millis(500), Duration::from_secs(10))
    }

    /// The address of a server that another one has named; without a host it is on the same.
    pub(super) fn address(&self, host: &str, port: u16, named_by: &Server) -> Server {
        dial::address(&self.config, host, port, named_by)
    }
}
