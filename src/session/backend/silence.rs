//! How long a server has been of no use: silent, or a replica.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::clock::BootInstant;
use crate::error::Error;

/// How often a silent server is asked by callers that can do without it.
const TRY_AGAIN: Duration = Duration::from_secs(1);

/// The period in which every request went unanswered, or was not for this server to carry out, if there is one now.
///
/// Callers give up after some time of it, the cluster looks for another owner of the slots, and calls that can do
/// without the server spare themselves the wait.
#[derive(Debug, Default)]
pub(super) struct Silence(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    begun: Option<Begun>,
    /// When the server last answered.
    heard: Option<BootInstant>,
}

/// What an answer says about its server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Heard {
    AsBefore,
    /// The server was silent before.
    Again,
    /// The server was a replica before, and replicas answer too. The caller asks for the role.
    PerhapsReplica,
}

#[derive(Debug)]
struct Begun {
    /// When the first request of the period was sent.
    since: BootInstant,
    /// Whether the server is a replica: it answers, but takes no locks.
    is_replica: bool,
    /// When a caller last tried that could have done without the server.
    tried: BootInstant,
    /// How the last request failed.
    error: Error,
}

impl Silence {
    /// Takes note of a request from `started` that was of no use. Returns whether it is the first such request.
    ///
    /// The beginning stays that of the first one. No silence begins before the last answer.
    pub(super) fn note(&self, started: BootInstant, is_replica: bool, error: &Error) -> bool {
        let mut known = self.lock();
        let started = known.heard.map_or(started, |heard| heard.max(started));
        let begun = known.begun.as_ref();
        let is_first = begun.is_none();
        let (since, tried) = begun.map_or((started, started), |begun| (begun.since, begun.tried));
        known.begun = Some(Begun {
            since,
            is_replica,
            tried,
            error: error.clone(),
        });
        is_first
    }

    /// Takes note of an answer, which ends the silence, and returns what that says.
    pub(super) fn spoke(&self) -> Heard {
        let mut known = self.lock();
        known.heard = Some(BootInstant::now());
        // A replica answers too, so an answer alone does not show that the server is a primary again.
        let ended = known.begun.take_if(|begun| !begun.is_replica);
        match (ended, known.begun.is_none()) {
            (Some(_), _) => Heard::Again,
            (None, true) => Heard::AsBefore,
            (None, false) => Heard::PerhapsReplica,
        }
    }

    /// Takes note of an answer of a primary, which ends the period.
    pub(super) fn end(&self) {
        self.lock().begun = None;
    }

    /// Whether the server has answered after this instant.
    pub(super) fn has_spoken_since(&self, instant: BootInstant) -> bool {
        self.lock().heard.is_some_and(|heard| heard > instant)
    }

    /// Returns since when the period lasts, and how the last request failed.
    pub(super) fn begun(&self) -> Option<(BootInstant, Error)> {
        let known = self.lock();
        let begun = known.begun.as_ref();
        begun.map(|begun| (begun.since, begun.error.clone()))
    }

    /// Whether a caller that can do without the server should ask it all the same. `true` counts as a try, so that
    /// callers together ask once in [`TRY_AGAIN`].
    pub(super) fn is_to_be_tried(&self) -> bool {
        let now = BootInstant::now();
        match &mut self.lock().begun {
            Some(begun) if begun.tried.plus(TRY_AGAIN) > now => false,
            Some(begun) => {
                begun.tried = now;
                true
            }
            None => true,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
