//! Decides which pub/sub commands publish releases, and which subscribe to them.

use std::time::Duration;

use super::node::Node;
use crate::error::{Error, ErrorKind};

/// The kind of pub/sub by which waiters learn of releases.
///
/// Publishers and subscribers of all clients have to agree, Redisson's included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Channels {
    /// `PUBLISH`, outside a cluster.
    Plain,
    /// `PUBLISH` in a cluster. A server passes the message on to the subscribers of the other servers, but reports only
    /// how many of its own subscribers it told.
    PlainInCluster,
    /// `SPUBLISH`, on the server that has the slot of the channel.
    Sharded,
}

impl Channels {
    /// Chooses as Redisson does: sharded pub/sub in a cluster that knows it. Returns `Err` if `sharded` asks for
    /// sharded pub/sub and the cluster does not know it, or if the server does not answer the question.
    pub(super) async fn choose(
        sharded: Option<bool>,
        node: &Node,
        budget: Duration,
    ) -> Result<Self, Error> {
        match sharded {
            // The server is not asked: a user who may not ask about sharded channels can still choose plain ones.
            Some(false) => Ok(Self::PlainInCluster),
            _ if node.has_shards(budget).await? => Ok(Self::Sharded),
            None => Ok(Self::PlainInCluster),
            Some(true) => Err(Error::new(
                ErrorKind::Backend,
                "sharded pub/sub was requested, but the cluster does not support it; it needs Redis 7 or later",
            )),
        }
    }

    /// Returns the command that publishes a release.
    pub(super) fn publish(self) -> &'static str {
        match self {
            Self::Plain | Self::PlainInCluster => "PUBLISH",
            Self::Sharded => "SPUBLISH",
        }
    }
}
