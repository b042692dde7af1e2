//! The arrangements of servers.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Topology {
    /// One server.
    Single,
    /// Five that know nothing of each other.
    Independent,
    /// Three that share the slots of a cluster.
    Cluster,
    /// A primary and two replicas, watched by sentinels.
    Sentinels,
}

pub(super) const TOPOLOGIES: [Topology; 4] = [
    Topology::Single,
    Topology::Independent,
    Topology::Sentinels,
    Topology::Cluster,
];

impl Topology {
    /// Returns the number of servers with data.
    pub fn servers(self) -> usize {
        match self {
            Self::Single => 1,
            Self::Independent => 5,
            Self::Sentinels | Self::Cluster => 3,
        }
    }

    pub fn sentinels(self) -> usize {
        match self {
            Self::Sentinels => 3,
            Self::Single | Self::Independent | Self::Cluster => 0,
        }
    }

    /// Returns the number of hosts: first the servers, then the sentinels.
    pub fn hosts(self) -> usize {
        self.servers() + self.sentinels()
    }

    /// Returns the number of clients of a process.
    pub fn clients(self) -> usize {
        match self {
            Self::Independent => self.servers(),
            Self::Single | Self::Sentinels | Self::Cluster => 1,
        }
    }

    /// Whether one server may take over the data of another.
    pub fn shares_data(self) -> bool {
        matches!(self, Self::Sentinels | Self::Cluster)
    }
}
