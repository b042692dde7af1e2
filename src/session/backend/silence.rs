//! The period in which a server fails every request, because it is silent or a replica.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::clock::BootInstant;
use crate::error::Error;

/// How often callers that can do without a silent server try it.
const TRY_AGAIN: Duration = Duration::from_secs(1);

/// The period in which this server fails every request, if it does so now.
///
/// After some time of it, callers give up. The cluster looks for another owner of the slots, and calls that can do
/// without the server skip it.
#[derive(Debug, Default)]
pub(super) struct Silence(Mutex<KnownSilence>);

#[derive(Debug, Default)]
struct KnownSilence {
    begun: Option<Begun>,
    /// When the server last answered.
    heard: Option<BootInstant>,
}

/// What an answer says about its server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Comeback {
    AsBefore,
    /// The server was silent before.
    Again,
    /// The server was a replica before, and may still be one, since replicas answer too. The caller asks for its role.
    PerhapsReplica,
}

#[derive(Debug)]
struct Begun {
    /// When the first request of the period was sent.
    since: BootInstant,
    /// Whether the server is a replica: it answers, but takes no locks.
    is_replica: bool,
    /// When a caller that could do without the server last tried it.
    tried: BootInstant,
    /// How the last request failed.
    error: Error,
}

impl Silence {
    /// Records a failed request that began at `started`. Returns whether it is the first of a silence.
    ///
    /// The silence begins with the first one, but never before the last answer.
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

    /// Records an answer, which ends a silence, and returns what it says about the server.
    pub(super) fn spoke(&self) -> Comeback {
        let mut known = self.lock();
        known.heard = Some(BootInstant::now());
        // A replica answers too, so an answer does not prove that the server is a primary again.
        let ended = known.begun.take_if(|begun| !begun.is_replica);
        match (ended, known.begun.is_none()) {
            (Some(_), _) => Comeback::Again,
            (None, true) => Comeback::AsBefore,
            (None, false) => Comeback::PerhapsReplica,
        }
    }

    /// Records that the server is a primary, which ends the period.
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

    /// Whether a caller that can do without the server should try it all the same. `true` counts as a try, so that all
    /// callers together try once in [`TRY_AGAIN`].
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

    fn lock(&self) -> MutexGuard<'_, KnownSilence> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
