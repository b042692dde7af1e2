//! One call, sent until it is answered or its time is over.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;

use super::Backend;
use super::connection::Broken;
use super::node::{Form, Node};
use super::post::Posted;
use super::send_error::SendError;
use super::slots::Redirect;
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
        posted: Option<Posted>,
    ) -> Result<Answer, Error> {
        let run = Run::new(self, call, budget, posted.as_ref())?;
        run.answered(posted).await
    }
}

/// One call under way.
struct Run<'a> {
    backend: &'a Backend,
    call: &'a Call<'a>,
    budget: Duration,
    started: BootInstant,
    end: BootInstant,
    node: Arc<Node>,
    form: Form,
    sent: BootInstant,
    repeated: bool,
    strayed: bool,
}

impl<'a> Run<'a> {
    fn new(
        backend: &'a Backend,
        call: &'a Call<'a>,
        budget: Duration,
        posted: Option<&Posted>,
    ) -> Result<Self, Error> {
        let started = BootInstant::now();
        let (node, sent) = match posted {
            Some(posted) => posted.begun(),
            None => (backend.home_of(key(call))?, started),
        };
        // After the look for a server: once the first server is found, the way to publish is known.
        let form = Form {
            whole: false,
            asking: false,
            publish: backend.channels().publish(),
        };
        Ok(Self {
            backend,
            call,
            budget,
            started,
            end: started.plus(budget),
            node,
            form,
            sent,
            repeated: false,
            strayed: false,
        })
    }

    /// Sends the call until it is answered or its time is over.
    async fn answered(mut self, mut posted: Option<Posted>) -> Result<Answer, Error> {
        loop {
            let error = match self.send(posted.take()).await {
                Ok(reply) => {
                    return Ok(Answer {
                        reply,
                        sent: self.sent,
                        repeated: self.repeated,
                    });
                }
                Err(error) => error,
            };
            let pause = self.adapt(&error)?;
            if self.is_late(&error, pause).await {
                return Err(self.given_up(error));
            }
            // After a pause the slot may have another server. A redirection has named the server already.
            if !pause.is_zero() && !matches!(error, SendError::Moved(_) | SendError::Ask(_)) {
                let home = self.backend.home_of(key(self.call));
                self.node = home.map_err(|error| self.doubtful(error))?;
            }
            self.sent = BootInstant::now();
        }
    }

    /// Sends the call once, or waits for the answer to the send that was `posted`.
    async fn send(&self, posted: Option<Posted>) -> Result<Reply, SendError> {
        match posted {
            Some(posted) => Box::pin(self.node.replied(self.call, posted, self.budget)).await,
            None => {
                let left = self.sent.until(self.end);
                self.node.ask(self.call, self.form, left).await
            }
        }
    }

    /// Chooses the form and the server of the next send, and returns the pause before it.
    fn adapt(&mut self, error: &SendError) -> Result<Duration, Error> {
        // ASKING holds for one request. It is kept only if the same server is sent the same request in another form.
        let asked = std::mem::take(&mut self.form.asking);
        Ok(match error {
            SendError::UnknownScript | SendError::Scriptless => {
                self.form.whole |= matches!(error, SendError::UnknownScript);
                self.form.asking = asked;
                Duration::ZERO
            }
            SendError::Moved(to) => self.follow(to, false)?,
            SendError::Ask(to) => self.follow(to, true)?,
            SendError::Moving(_) => MOVING_PAUSE,
            SendError::Broken(Broken::Cut(_) | Broken::Unsent(_)) => RESEND_PAUSE,
            // Not sent again: the pause is longer than any budget.
            SendError::Refused(_)
            | SendError::Replica(_)
            | SendError::Disowned(_)
            | SendError::Broken(_) => Duration::MAX,
        })
    }

    /// Turns to the server that a redirection names, by `ASK` for one request only. Returns the pause before that.
    fn follow(&mut self, to: &Redirect, asking: bool) -> Result<Duration, Error> {
        let cluster = self
            .backend
            .cluster()
            .ok_or_else(|| self.doubtful(in_a_cluster(&self.node)))?;
        self.form.asking = asking;
        self.node = match asking {
            true => cluster.at(to, &self.node),
            false => cluster.learn(to, &self.node),
        };
        // Two servers that each redirect to the other agree after a while.
        Ok(match std::mem::replace(&mut self.strayed, true) {
            true => RESEND_PAUSE,
            false => Duration::ZERO,
        })
    }

    /// Pauses before the next send. Returns `true` if there is no time for one, without a pause if that is known.
    async fn is_late(&mut self, error: &SendError, pause: Duration) -> bool {
        if BootInstant::now().plus(pause) >= self.end {
            return true;
        }
        if !pause.is_zero() {
            // A request that was not sent as a whole has not run.
            self.repeated |= matches!(error, SendError::Broken(Broken::Cut(_)));
            sleep(pause).await;
        }
        // The future may not have been polled for a long time. Nothing is sent after its time is over.
        BootInstant::now() >= self.end
    }

    /// Builds the error of a call that is not sent again. In a cluster, also has the map checked if the server did not
    /// answer or has disowned the slot.
    fn given_up(&self, error: SendError) -> Error {
        let error = match error {
            SendError::Refused(error) | SendError::Replica(error) | SendError::Moving(error) => {
                error
            }
            SendError::Disowned(error) => {
                if let Some(cluster) = self.backend.cluster() {
                    cluster.disowned(&self.node);
                }
                error
            }
            SendError::Broken(broken) => {
                let error = self
                    .node
                    .failed(self.started, self.budget, broken, self.repeated);
                if let Some(cluster) = self.backend.cluster() {
                    cluster.suspect();
                }
                error
            }
            SendError::UnknownScript
            | SendError::Scriptless
            | SendError::Moved(_)
            | SendError::Ask(_) => Error::new(
                ErrorKind::Backend,
                format!(
                    "the servers passed the request back and forth for {:?}",
                    self.budget
                ),
            )
            .passing(),
        };
        self.doubtful(self.call.blame(error))
    }

    /// Marks an error as one of a call that may have run, if an earlier send may have been carried out: it may,
    /// whatever the answer to this one.
    fn doubtful(&self, error: Error) -> Error {
        match self.repeated {
            true => error.unanswered(),
            false => error,
        }
    }
}

/// Returns the key whose slot decides where a call goes.
fn key<'a>(call: &Call<'a>) -> &'a str {
    call.keys.first().copied().unwrap_or_default()
}

/// Builds the error of a server that redirects a request although it was configured as a single one.
fn in_a_cluster(node: &Node) -> Error {
    let text = format!("{node:?} is in a cluster; use the URL redis-cluster://{node:?}");
    Error::new(ErrorKind::Backend, text)
}
