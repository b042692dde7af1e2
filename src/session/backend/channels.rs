//! Which commands messages are published and listened to by.

use std::time::Duration;

use super::node::Node;
use crate::error::{Error, ErrorKind};
use crate::options::PubSub;

/// How releases are told to waiters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Channels {
    Plain,
    /// A server tells those of the others; it knows how many of its own it has told.
    PlainInCluster,
    /// Where the slot is.
    Sharded,
}

impl Channels {
    /// As Redisson chooses: sharded in a cluster that knows it.
    pub(super) async fn choose(
        pubsub: PubSub,
        node: &Node,
        budget: Duration,
    ) -> Result<Self, Error> {
        match pubsub {
            PubSub::Plain => Ok(Self::PlainInCluster),
            _ if node.has_shards(budget).await? => Ok(Self::Sharded),
            PubSub::Auto => Ok(Self::PlainInCluster),
            PubSub::Sharded => Err(Error::new(
                ErrorKind::Backend,
                "sharded pub/sub was asked for, and the cluster does not know it; it begins with Redis 7",
            )),
        }
    }

    pub(super) fn publish(self) -> &'static str {
        match self {
            Self::Plain | Self::PlainInCluster => "PUBLISH",
            Self::Sharded => "SPUBLISH",
        }
    }
}
