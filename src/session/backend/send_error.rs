//! Why one attempt to send a call brought no answer, and what the words of a server mean for the call.
//!
//! [`Node::heard`] and [`Node::failed`] are the two ends: the first interprets what came back to one send, the second
//! builds the error of a call that is given up. In between `run` decides whether to send again.

use std::sync::atomic::Ordering;
use std::time::Duration;

use tracing::{info, warn};

use super::connection::Broken;
use super::node::Node;
use super::refusal::{code, forbids_scripts};
use super::resp::Said;
use super::slots::{self, Redirect};
use crate::clock::BootInstant;
use crate::error::{Error, ErrorKind};
use crate::protocol::reply::Reply;
use crate::protocol::script::{Arg, Call, Unscripted};

/// Why one attempt to send a call brought no answer.
///
/// For all but [`Broken`](Self::Broken) the server has said that the script did not run, or not to its end.
pub(super) enum SendError {
    /// The server does not know the hash of the script, which did not run.
    ///
    /// The script is sent again as a whole.
    UnknownScript,
    /// No answer came.
    ///
    /// The inner error says whether the call may have run.
    Broken(Broken),
    /// This user may not run scripts, so this one did not run.
    ///
    /// The next send goes by steps.
    Scriptless,
    /// Another server has the slot; nothing ran.
    Moved(Redirect),
    /// The slot is being moved, and the keys of the call have moved already; nothing ran.
    Ask(Redirect),
    /// The slot is being moved, and only some of the keys of the call have moved so far; nothing ran.
    Moving(Error),
    /// The server is a replica, which takes no locks; nothing was changed.
    Replica(Error),
    /// The server does not have the slot, and knows no server that does; nothing ran.
    Disowned(Error),
    /// The server has refused for another reason. The error says whether that may pass.
    Refused(Error),
}

/// Why a command, or a sequence of commands, was not completed.
pub(super) enum Fault {
    Broken(Broken),
    /// The server refused, in these words.
    Refused(String),
}

impl From<Broken> for Fault {
    fn from(broken: Broken) -> Self {
        Self::Broken(broken)
    }
}

impl Node {
    /// Interprets what came in reply to a call on the connection with the number `epoch`.
    ///
    /// A reply may contain a refusal to publish. What the script did stands all the same.
    pub(super) fn heard(
        &self,
        call: &Call<'_>,
        replied: Result<Said, Broken>,
        epoch: u64,
    ) -> Result<Reply, SendError> {
        match replied {
            Ok(Ok(mut reply)) => {
                if call.args.contains(&Arg::Publish)
                    && let Some(text) = reply.take_refusal()
                {
                    self.cannot_publish(&text);
                }
                Ok(reply)
            }
            Ok(Err(text)) if forbids_scripts(&text) => Err(self.without_scripts(call, &text)),
            Ok(Err(text)) => Err(self.refused(call, &text, epoch)),
            Err(broken) => Err(self.missed_by(call, broken.into())),
        }
    }

    /// Interprets a fault of a call.
    ///
    /// Steps are several commands, so the connection on which one was refused is unknown; the present one counts.
    pub(super) fn missed_by(&self, call: &Call<'_>, fault: Fault) -> SendError {
        match fault {
            Fault::Refused(text) => self.refused(call, &text, self.commands.epoch()),
            Fault::Broken(broken) => SendError::Broken(broken),
        }
    }

    /// Interprets the refusal to run scripts. Later calls that can fall back on steps use them at once.
    ///
    /// Nothing ran. Other kinds, and plain locks that are set to use scripts, get an error with advice.
    fn without_scripts(&self, call: &Call<'_>, text: &str) -> SendError {
        let message = match &call.unscripted {
            Unscripted::Fallback(_) => {
                if !self.scriptless.swap(true, Ordering::Relaxed) {
                    info!(%text, "scripts are not allowed: plain locks use transactions");
                }
                return SendError::Scriptless;
            }
            Unscripted::Unwanted | Unscripted::Instead(_) => format!(
                "this plain lock uses scripts only, which the server does not allow this user to run; it can use \
                 transactions: {text}"
            ),
            Unscripted::Refused(lock) => format!(
                "{lock} needs scripts, which the server does not allow this user to run; plain_lock needs none: {text}"
            ),
        };
        SendError::Refused(Error::refused(message, text))
    }

    /// Logs once that the server refuses to publish. What the script did stands, and waiters find it by polling.
    fn cannot_publish(&self, text: &str) {
        if !self.mute.swap(true, Ordering::Relaxed) {
            warn!(
                server = ?self,
                %text,
                "the server does not allow this user to publish releases: waiters ask after `poll_cap` instead; \
                 grant it `+publish +spublish &redisson_*`"
            );
        }
    }

    /// Logs once that the server refuses a subscription. Waiters then poll.
    pub(super) fn cannot_subscribe(&self, text: &str) {
        if !self.deaf.swap(true, Ordering::Relaxed) {
            warn!(
                server = ?self,
                %text,
                "the server does not allow this user to subscribe to releases: waiters ask every second instead; \
                 grant it `+subscribe +ssubscribe &redisson_*`"
            );
        }
    }

    /// Interprets a refusal on the connection with the number `epoch`.
    ///
    /// The code, the first word, tells most of them apart. A refusal that may pass is marked as such, and callers try
    /// again.
    fn refused(&self, call: &Call<'_>, text: &str, epoch: u64) -> SendError {
        let error = || Error::refused(format!("the server refused: {text}"), text);
        match code(text) {
            "NOSCRIPT" => SendError::UnknownScript,
            "WRONGTYPE" => {
                let key = call.keys.first().copied().unwrap_or_default();
                SendError::Refused(Error::wrong_kind(key).said(text))
            }
            // This server was the primary before. A new connection finds the present one. `MASTERDOWN` is the answer of
            // a replica that has lost its primary, and is configured not to answer without one.
            "READONLY" | "MASTERDOWN" => {
                self.commands.redial(epoch);
                SendError::Replica(self.as_replica(text))
            }
            // Another server may have its slots by now: it may be the only one that is cut off from the cluster.
            "CLUSTERDOWN" => SendError::Disowned(error().passing()),
            "MOVED" => {
                slots::redirect(text).map_or_else(|| SendError::Refused(error()), SendError::Moved)
            }
            "ASK" => {
                slots::redirect(text).map_or_else(|| SendError::Refused(error()), SendError::Ask)
            }
            "TRYAGAIN" => SendError::Moving(error().passing()),
            "LOADING" | "BUSY" => SendError::Refused(error().passing()),
            _ => SendError::Refused(error()),
        }
    }

    /// Builds the error of a server that said, in these words, that it is a replica.
    ///
    /// The error passes once the server is promoted, or once the address leads to a primary.
    pub(super) fn as_replica(&self, text: &str) -> Error {
        let message = format!(
            "{self:?} is a replica: it grants no locks, and what it knows of them may be out of date; give the address \
             of the primary or of the sentinels: {text}"
        );
        Error::refused(message, text).passing()
    }

    /// Builds the error of a call that was not answered, and records the server as silent unless it answers others.
    /// `repeated` says that an earlier send of the call may have run. Also replaces a connection that has stalled.
    ///
    /// Called when a call is given up: single sends that fail are no silence.
    pub(super) fn failed(
        &self,
        started: BootInstant,
        budget: Duration,
        broken: Broken,
        repeated: bool,
    ) -> Error {
        let error = match &broken {
            Broken::Garbled(error) => error.clone().unanswered(),
            // The call is known to have changed nothing only if no send can have run.
            Broken::Unsent(reason) if !repeated => Error::new(
                ErrorKind::Backend,
                format!(
                    "{self:?} could not be reached within {budget:?}; the request was not sent: {reason}"
                ),
            )
            .unsent(),
            Broken::Unsent(_) | Broken::Cut(_) | Broken::TimedOut(_) => Error::new(
                ErrorKind::Timeout,
                format!(
                    "{self:?} did not answer within {budget:?}; whether the request ran is unknown"
                ),
            )
            .unanswered(),
        };
        let answers_others = match broken {
            Broken::TimedOut(_) => self.commands.is_slow(self.patience),
            // A future that was not polled for long may learn only now of a connection that broke long ago.
            _ => self.silence.has_spoken_since(started),
        };
        let error = broken.causes(error);
        if !answers_others {
            self.commands.redial_if_stalled(self.patience);
            self.is_silent(started, false, &error);
        }
        error
    }
}
