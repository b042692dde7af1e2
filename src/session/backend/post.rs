//! Calls that are written where nobody can wait, such as in a `Drop`. The answer may be awaited later.

use std::sync::Arc;
use std::time::Duration;

use super::Backend;
use super::connection;
use super::desk;
use super::node::{Node, SendForm, request};
use super::send_error::SendError;
use crate::clock::BootInstant;
use crate::protocol::reply::Reply;
use crate::protocol::script::Call;

/// A call that was written, and whose answer is still to come.
///
/// Dropping it does not stop the call; only the answer is lost.
#[derive(Debug)]
pub(crate) struct Posted {
    /// The server that it was sent to. The answer comes from there, even if the slot moves meanwhile.
    node: Arc<Node>,
    reply: desk::Reply,
    /// The number of the connection that it was written to.
    ///
    /// So a request to replace that connection does not hit the next one.
    epoch: u64,
    /// An instant before it was written.
    sent: BootInstant,
}

impl Posted {
    /// Returns the server that the call was sent to, and when.
    pub(super) fn begun(&self) -> (Arc<Node>, BootInstant) {
        (self.node.clone(), self.sent)
    }
}

impl Backend {
    /// Writes a call at once, so that it is carried out whatever becomes of this process. Returns `None` if no
    /// connection takes it. Nothing was sent then.
    ///
    /// Never waits, and needs neither a timer nor a runtime.
    pub(crate) fn post(&self, call: &Call<'_>) -> Option<Posted> {
        let key = call.keys.first()?;
        self.home(key)?.post(call, self.channels().publish())
    }

    /// Whether a call that is sent now goes over the connection that acquisitions use.
    pub(crate) fn is_in_order(&self, call: &Call<'_>) -> bool {
        let home = call.keys.first().and_then(|key| self.home(key));
        home.is_some_and(|node| node.commands.is_open() && node.steps(call).is_none())
    }
}

impl Node {
    /// Writes a call without waiting for anything. Returns `None` if that is not possible.
    pub(super) fn post(self: &Arc<Self>, call: &Call<'_>, publish: &'static str) -> Option<Posted> {
        if self.steps(call).is_some() {
            // Each step needs the answer to the one before.
            return None;
        }
        let form = SendForm {
            // Nobody may be left to send it again if the server does not know the hash.
            whole: !self.commands.knows(call.script),
            asking: false,
            publish,
        };
        let (sent, epoch) = (BootInstant::now(), self.commands.epoch());
        let request = request(call, form);
        let reply = match call.over {
            Some(over) if !over.is_only((self.id(), epoch)) => None,
            Some(_) => self.commands.post_on(epoch, &request),
            None => self.commands.post(&request),
        }?;
        let node = self.clone();
        Some(Posted {
            node,
            reply,
            epoch,
            sent,
        })
    }

    /// Waits for the answer to a call that was posted, for at most `left`.
    pub(super) async fn replied(
        &self,
        call: &Call<'_>,
        posted: Posted,
        left: Duration,
    ) -> Result<Reply, SendError> {
        let end = BootInstant::now().plus(left);
        let replied = connection::replied(posted.reply, left).await;
        let answered = self.heard(call, replied, posted.epoch);
        self.note(&answered, end).await;
        answered
    }
}
