//! One call, sent until it is answered or its time is over.

use std::time::Duration;

use tokio::time::sleep;

use super::Backend;
use super::connection::Broken;
use super::node::{Form, Node};
use super::post::Posted;
use super::send_error::SendError;
use crate::clock::BootInstant;
use crate::error::{Error, ErrorKind};
use crate::protocol::reply::Reply;
use crate::protocol::script::Call;

/// The pause between two sends of a call whose connection was cut.
const RESEND_PAUSE: Duration = Duration::from_millis(5);

/// The pause between two sends of a call to a slot that is being moved.
const MOVING_PAUSE: Duration = Duration::from_millis(20);

/// The answer to a call.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) reply: Reply,
    /// An instant before the answered request was sent.
    pub(crate) sent: BootInstant,
    /// Whether an earlier send of this call went unanswered: it may have run too.
    pub(crate) repeated: bool,
}

impl Backend {
    /// Runs a script and waits for its answer, for at most `budget`. A call that was cut off is sent again within that
    /// time, and a call that was sent to the wrong server follows its slot.
    ///
    /// If the future is dropped, the call may still run.
    pub(crate) async fn run(&self, call: &Call<'_>, budget: Duration) -> Result<Answer, Error> {
        self.go_on(call, budget, None).await
    }

    /// Does the same as [`run`](Self::run), for a call that may have been `posted` before.
    pub(super) async fn go_on(
        &self,
        call: &Call<'_>,
        budget: Duration,
        mut posted: Option<Posted>,
    ) -> Result<Answer, Error> {
        let key = call.keys.first().copied().unwrap_or_default();
        let started = BootInstant::now();
        let end = started.plus(budget);
        let mut repeated = false;
        let mut strayed = false;
        let (mut node, mut sent) = match &posted {
            Some(posted) => posted.begun(),
            None => (self.home_of(key)?, started),
        };
        // After the look for a server: once the first server is found, the way to publish is known.
        let mut form = Form {
            whole: false,
            asking: false,
            publish: self.channels().publish(),
        };
        // An earlier send may have been carried out, whatever the answer to this one.
        let doubtful = |error: Error, repeated| if repeated { error.unanswered() } else { error };
        loop {
            let answered = match posted.take() {
                Some(posted) => Box::pin(node.replied(call, posted, budget)).await,
                None => node.ask(call, form, sent.until(end)).await,
            };
            let error = match answered {
                Ok(reply) => {
                    return Ok(Answer {
                        reply,
                        sent,
                        repeated,
                    });
                }
                Err(error) => error,
            };
            // ASKING holds for one request. It is kept only if the same server is sent the same request in another
            // form.
            let asked = std::mem::take(&mut form.asking);
            let pause = match &error {
                SendError::UnknownScript | SendError::Scriptless => {
                    form.whole |= matches!(error, SendError::UnknownScript);
                    form.asking = asked;
                    Duration::ZERO
                }
                SendError::Moved(to) | SendError::Ask(to) => {
                    let cluster = self
                        .cluster()
                        .ok_or_else(|| doubtful(in_a_cluster(&node), repeated))?;
                    form.asking = matches!(error, SendError::Ask(_));
                    node = match form.asking {
                        true => cluster.at(to, &node),
                        false => cluster.learn(to, &node),
                    };
                    // Two servers that each redirect to the other agree after a while.
                    if std::mem::replace(&mut strayed, true) {
                        RESEND_PAUSE
                    } else {
                        Duration::ZERO
                    }
                }
                SendError::Moving(_) => MOVING_PAUSE,
                SendError::Broken(Broken::Cut(_) | Broken::Unsent(_)) => RESEND_PAUSE,
                // Not sent again: the pause is longer than any budget.
                SendError::Refused(_)
                | SendError::Replica(_)
                | SendError::Disowned(_)
                | SendError::Broken(_) => Duration::MAX,
            };
            let is_late = BootInstant::now().plus(pause) >= end || {
                if !pause.is_zero() {
                    // A request that was not sent as a whole has not run.
                    repeated |= matches!(error, SendError::Broken(Broken::Cut(_)));
                    sleep(pause).await;
                }
                // The future may not have been polled for a long time. Nothing is sent after its time is over.
                BootInstant::now() >= end
            };
            if is_late {
                let error = self.given_up(&node, error, started, budget, repeated);
                return Err(doubtful(call.blame(error), repeated));
            }
            // After a pause the slot may have another server. A redirection has named the server already.
            if !pause.is_zero() && !matches!(error, SendError::Moved(_) | SendError::Ask(_)) {
                node = self
                    .home_of(key)
                    .map_err(|error| doubtful(error, repeated))?;
            }
            sent = BootInstant::now();
        }
    }

    /// Builds the error of a call that is not sent again. In a cluster, also has the map checked if the server did not
    /// answer or has disowned the slot.
    fn given_up(
        &self,
        node: &Node,
        error: SendError,
        started: BootInstant,
        budget: Duration,
        repeated: bool,
    ) -> Error {
        match error {
            SendError::Refused(error) | SendError::Replica(error) | SendError::Moving(error) => {
                error
            }
            SendError::Disowned(error) => {
                if let Some(cluster) = self.cluster() {
                    cluster.disowned(node);
                }
                error
            }
            SendError::Broken(broken) => {
                let error = node.failed(started, budget, broken, repeated);
                if let Some(cluster) = self.cluster() {
                    cluster.suspect();
                }
                error
            }
            SendError::UnknownScript
            | SendError::Scriptless
            | SendError::Moved(_)
            | SendError::Ask(_) => Error::new(
                ErrorKind::Backend,
                format!("the servers passed the request back and forth for {budget:?}"),
            )
            .passing(),
        }
    }
}

/// Builds the error of a server that redirects a request although it was configured as a single one.
fn in_a_cluster(node: &Node) -> Error {
    let text = format!("{node:?} is in a cluster; use the URL redis-cluster://{node:?}");
    Error::new(ErrorKind::Backend, text)
}
