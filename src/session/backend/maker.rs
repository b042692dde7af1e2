//! The connection factory: makes every connection to a server.

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::mpsc;

use super::Disruption;
use super::connection::{Connection, PreviousConnection};
use super::dial::Dialer;
use super::listener::Listener;
use super::meter::Meter;
use super::sentinel::Sentinels;
#[cfg(feature = "tls")]
use super::tls::TlsDialer;
use super::transaction::Transactions;
use crate::config::{Config, Deployment, Server};
use crate::error::Error;
use crate::options::{MinReplicas, Settings};

/// What all connections of one backend have in common.
///
/// Cheap to clone. A cluster keeps it for servers that it comes to know.
#[derive(Clone)]
pub(super) struct Maker {
    /// The user's configuration, logins included.
    config: Arc<Config>,
    #[cfg(feature = "tls")]
    tls: Option<TlsDialer>,
    /// The time limit of questions that the backend asks on its own behalf.
    pub(super) command_timeout: Duration,
    /// How many replicas have to acknowledge a hold, if any do.
    pub(super) min_replicas: Option<MinReplicas>,
    /// The runtime of the connections' tasks.
    pub(super) runtime: Handle,
    /// Where to report that holds may no longer stand.
    pub(super) disruptions: mpsc::UnboundedSender<Disruption>,
    /// The name of the connections, which operators see.
    name: Arc<str>,
    /// Counts what goes over the connections.
    meter: Arc<dyn Meter>,
    /// Shared by all connections, so that they follow the same primary.
    sentinels: Option<Arc<Sentinels>>,
}

impl Maker {
    /// Creates a maker whose connections live on the current runtime. Starts to follow the sentinels, if there are any.
    ///
    /// Fails if the configured certificates cannot be used.
    pub(super) fn new(
        config: Config,
        settings: &Settings,
        name: Arc<str>,
        meter: Arc<dyn Meter>,
        disruptions: mpsc::UnboundedSender<Disruption>,
    ) -> Result<Self, Error> {
        let mut maker = Self {
            #[cfg(feature = "tls")]
            tls: config.tls.as_ref().map(TlsDialer::new).transpose()?,
            config: config.into(),
            command_timeout: settings.command_timeout,
            min_replicas: settings.min_replicas,
            runtime: Handle::current(),
            disruptions,
            name,
            meter,
            sentinels: None,
        };
        if let Deployment::Sentinels { service, servers } = &maker.config.deployment
            && let Some(first) = servers.first()
        {
            // It has no sentinels itself: they are reached by their own addresses.
            let dialer = maker.dialer(first);
            let sentinels =
                Sentinels::follow(dialer, servers.clone(), service.clone(), &maker.runtime);
            maker.sentinels = Some(Arc::new(sentinels));
        }
        Ok(maker)
    }

    /// Makes the connection for commands to a server. `node` is the id that the server has in this process.
    ///
    /// Each connection but the first is reported as a disruption.
    pub(super) fn connection(&self, server: &Server, node: u64) -> Connection {
        let disruptions = self.disruptions.clone();
        let changed = move |change| {
            let disruption = match change {
                // A new connection may lead to another server, or to one that has lost its data.
                PreviousConnection::Reconnected => Disruption::Node(node),
                PreviousConnection::Unreachable => Disruption::Unreachable(node),
            };
            disruptions.send(disruption).ok();
        };
        let dialer = self.dialer(server);
        Connection::new(dialer, &self.runtime, self.meter.clone(), changed)
    }

    /// Makes a separate connection for commands. No hold depends on it.
    ///
    /// So its state is not reported as a disruption.
    pub(super) fn apart(&self, server: &Server) -> Connection {
        let dialer = self.dialer(server);
        Connection::new(dialer, &self.runtime, self.meter.clone(), |_| {})
    }

    /// Makes the connection for messages from a server.
    pub(super) fn listener(&self, server: &Server) -> Listener {
        let (dialer, disruptions) = (self.dialer(server), self.disruptions.clone());
        Listener::new(dialer, &self.runtime, self.meter.clone(), disruptions)
    }

    /// Makes the connection for transactions on a server.
    pub(super) fn transactions(&self, server: &Server) -> Transactions {
        Transactions::new(self.dialer(server), &self.runtime)
    }

    /// Returns the dialer of a server.
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

    /// Returns how long each step of connecting may take. Unless configured, this is the command timeout, but at least
    /// 0.5 and at most 10 seconds.
    fn handshake(&self) -> Duration {
        self.config.connect_timeout.unwrap_or_else(|| {
            self.command_timeout
                .clamp(Duration::from_millis(500), Duration::from_secs(10))
        })
    }
}
