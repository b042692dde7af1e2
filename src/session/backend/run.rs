//! Sends one call until it is answered or its time is over.
//!
//! A send can fail in many ways ([`SendError`]), and most of them say what to do next: send the script as a whole, go
//! to another server, wait a moment. [`Run`] is the state between two sends. It gives up when the error will not pass
//! by itself, or when the next send would come after the end of the call's budget.
//!
//! # Invariants
//!
//! 1. `repeated` is set before the second send after one that may have run, and is never cleared. From then on no error
//!    of the call says that it did not run, and its answer says that an earlier send may have had an effect.
//! 2. No send begins after `end`: the caller has given up by then, and the request that undoes the call may be on its
//!    way.
//! 3. `sent` is an instant before the send whose answer is returned.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;

use super::Backend;
use super::connection::Broken;
use super::node::{Node, SendForm};
use super::post::Posted;
use super::send_error::SendError;
use super::slots::Redirect;
use crate::clock::BootInstant;
use crate::error::{Error, ErrorKind};
use crate::protocol::reply::Reply;
use crate::protocol::script::Call;

/// The pause between two sends of a call whose connection was cut, so that the call does not spin while the client
/// reconnects.
pub(super) const RESEND_PAUSE: Duration = Duration::from_millis(5);

/// The pause between two sends of a call to a slot that is being moved.
const MOVING_PAUSE: Duration = Duration::from_millis(20);

/// The answer to a call, and what its meaning depends on.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) reply: Reply,
    /// An instant before the answered request was sent.
    ///
    /// A deadline counts from here: the server set the lease after this instant.
    pub(crate) sent: BootInstant,
    /// Whether an earlier send of this call went unanswered, and so may have run too.
    ///
    /// A script that finds nothing to do may then have done it before.
    pub(crate) repeated: bool,
}

impl Answer {
    /// Whether a copy of the call may still run, whatever was answered.
    pub(crate) fn may_run(answered: &Result<Self, Error>) -> bool {
        answered
            .as_ref()
            .map_or_else(Error::is_unanswered, |answer| answer.repeated)
    }
}

impl Backend {
    /// Runs a script and waits for its answer, for at most `budget`. A call that was cut off is sent again within that
    /// time, unless it may run only once, and a call that was sent to the wrong server follows its slot.
    ///
    /// If the future is dropped, the call may still run.
    ///
    /// Whatever it may leave on a server then belongs to the caller's `Undo`.
    pub(crate) async fn run(&self, call: &Call<'_>, budget: Duration) -> Result<Answer, Error> {
        let run = Run::new(self, call, budget, None)?;
        Box::pin(run.answered(None)).await
    }

    /// Does the same as [`run`](Self::run), for a call that gives something back.
    ///
    /// Its first request is enough, even if this process ends before the answer.
    pub(crate) async fn give_back(
        &self,
        call: &Call<'_>,
        budget: Duration,
    ) -> Result<Answer, Error> {
        let mut run = Run::new(self, call, budget, None)?;
        run.gives_back = true;
        Box::pin(run.answered(None)).await
    }

    /// Waits for the answer to a call that was posted, as [`give_back`](Self::give_back) does for a call that it sends
    /// itself. The first answer comes on the connection that the call was written to.
    ///
    /// `budget` counts from now. If the answer is lost, the call is sent again within it.
    pub(crate) async fn conclude(
        &self,
        posted: Posted,
        call: &Call<'_>,
        budget: Duration,
    ) -> Result<Answer, Error> {
        let mut run = Run::new(self, call, budget, Some(&posted))?;
        run.gives_back = true;
        Box::pin(run.answered(Some(posted))).await
    }
}

/// The state of one call: where the next send goes, and what is known of the earlier ones.
struct Run<'a> {
    backend: &'a Backend,
    call: &'a Call<'a>,
    budget: Duration,
    /// When the call began: a silence of its server is counted from there.
    started: BootInstant,
    end: BootInstant,
    /// The server of the next send.
    node: Arc<Node>,
    form: SendForm,
    /// Whether to send the whole script at once. Nobody may be left to send it again if the server hangs and does not
    /// know the hash.
    gives_back: bool,
    /// An instant before the next send, or before the one that was posted.
    sent: BootInstant,
    /// Whether an earlier send may have run.
    repeated: bool,
    /// Whether a redirection was followed without a pause. The next ones are followed after one.
    strayed: bool,
}

impl<'a> Run<'a> {
    /// Finds the server of the first send, or takes the one that the call was `posted` to. Fails if no server is known.
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
        // Made after the server is found, since the command that publishes is known only then.
        let form = SendForm {
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
            gives_back: false,
            sent,
            repeated: false,
            strayed: false,
        })
    }

    /// Sends the call until it is answered or its time is over.
    ///
    /// Callers keep this future on the heap: it is large, and would be a part of every one of theirs.
    ///
    /// The order matters: first the form and the server of the next send, then the pause, then the check of the clock.
    /// So a redirection updates the map even if no time is left to follow it.
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
            if self.node.commands.is_over() {
                // No send can be answered any more, and the caller should not wait for the end of its budget.
                return Err(Error::closed());
            }
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
                let mut form = self.form;
                form.whole |= self.gives_back && !self.node.commands.knows(self.call.script);
                if let Some(over) = self.call.over {
                    over.note(self.node.carrier());
                }
                let left = self.sent.until(self.end);
                self.node.ask(self.call, form, left).await
            }
        }
    }

    /// Chooses the form and the server of the next send, and returns the pause before it.
    ///
    /// [`Duration::MAX`] stands for an error after which the call is not sent again. Fails if a single server
    /// redirects, or if a server does not know a script that it was just sent.
    fn adapt(&mut self, error: &SendError) -> Result<Duration, Error> {
        // ASKING holds for one request. It is kept only if the same server is sent the same request in another form.
        let asked = std::mem::take(&mut self.form.asking);
        Ok(match error {
            SendError::UnknownScript if self.form.whole => {
                return Err(self.doubtful(self.call.blame(unlearned(&self.node))));
            }
            // Without scripts the node sends steps the next time: nothing has to change here.
            SendError::UnknownScript | SendError::Scriptless => {
                self.form.whole |= matches!(error, SendError::UnknownScript);
                self.form.asking = asked;
                Duration::ZERO
            }
            SendError::Moved(to) => self.follow(to, false)?,
            SendError::Ask(to) => self.follow(to, true)?,
            SendError::Moving(_) => MOVING_PAUSE,
            SendError::Broken(Broken::Unsent(_)) => RESEND_PAUSE,
            SendError::Broken(Broken::Cut(_)) if !self.call.once => RESEND_PAUSE,
            // Not sent again: the pause is longer than any budget.
            SendError::Refused(_)
            | SendError::Replica(_)
            | SendError::Disowned(_)
            | SendError::Broken(_) => Duration::MAX,
        })
    }

    /// Sends the call to the server that a redirection names; with `ASK`, for one request only. Returns the pause
    /// before that.
    ///
    /// The server that an `ASK` names does not have the slot yet, so the map stays as it is.
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
        // Two servers that redirect to each other agree after a while.
        Ok(match std::mem::replace(&mut self.strayed, true) {
            true => RESEND_PAUSE,
            false => Duration::ZERO,
        })
    }

    /// Pauses before the next send. Returns `true` if no time is left for a send.
    ///
    /// Skips a pause that would end too late, so that the caller gets its error at once and not at the end of the
    /// budget.
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
    ///
    /// The error says whether the call may have run.
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
                let error = match broken {
                    // The server may answer the next call.
                    Broken::Cut(cause) if self.call.once => {
                        let text = format!(
                            "the connection to {:?} broke before the answer; whether the request ran is unknown",
                            self.node
                        );
                        let error = Error::new(ErrorKind::Timeout, text);
                        error.unanswered().caused_by(cause)
                    }
                    broken => {
                        let (started, repeated) = (self.started, self.repeated);
                        self.node.failed(started, self.budget, broken, repeated)
                    }
                };
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

    /// Marks the error of a call whose earlier send may have run, whatever became of the last one.
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

/// Builds the error of a server that was sent a whole script and claims not to know it.
fn unlearned(node: &Node) -> Error {
    let text = format!(
        "{node:?} does not know a script that was just sent to it as a whole; is there a proxy in front of it that does \
         not pass EVAL on?"
    );
    Error::new(ErrorKind::Backend, text)
}

/// Builds the error of a server that redirects a request although it was configured as a single one.
fn in_a_cluster(node: &Node) -> Error {
    let text = format!("{node:?} is in a cluster; use the URL redis-cluster://{node:?}");
    Error::new(ErrorKind::Backend, text)
}
