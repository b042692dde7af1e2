//! The channel that announces a change of the leader, and the call that publishes there.

use std::sync::Arc;

use crate::name::LockName;
use crate::protocol::script::{self, Arg, Call, Request};

/// Tells those that watch an election that its leader may have changed.
#[derive(Debug)]
pub(crate) struct LeaderNews {
    name: LockName,
    channel: Arc<str>,
}

impl LeaderNews {
    pub(crate) fn new(name: LockName) -> Self {
        let channel = channel(&name);
        Self { name, channel }
    }
}

impl Request for LeaderNews {
    fn call(&self) -> Call<'_> {
        let args = vec![Arg::Text(&self.channel), Arg::Publish];
        Call::new(&script::LEADER_TELL, vec![&**self.name.key()], args).of("an election")
    }
}

/// Returns the channel of an election. It stands next to the channels of the lock's waiters, which end in the id of a
/// client.
pub(crate) fn channel(name: &LockName) -> Arc<str> {
    format!("{}:leader", name.channel()).into()
}
