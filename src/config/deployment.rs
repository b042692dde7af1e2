//! How the servers are arranged to which a client connects.

use std::path::PathBuf;

use super::server::Server;

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
    /// Returns the servers that are named: all of them for a cluster and for sentinels.
    pub(crate) fn servers(&self) -> Vec<Server> {
        match self {
            Self::Server(server) => vec![server.clone()],
            Self::Cluster(servers) | Self::Sentinels { servers, .. } => servers.clone(),
            Self::UnixSocket(path) => vec![Server::new(path.display().to_string(), 0)],
        }
    }
}
