//! How long a server has been of no use: silent, or a replica.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::clock::BootInstant;
use crate::error::Error;

/// How often a silent server is asked by those that can do without it.
const TRY_AGAIN: Duration = Duration::from_secs(1);

/// A time in which every request went unanswered, or was none of this server's to carry out; if there is one.
#[derive(Debug, Default)]
pub(super) struct Silence(Mutex<Option<Begun>>);

#[derive(Debug)]
struct Begun {
    since: BootInstant,
    /// It is a replica: it answers, but takes no locks.
    is_replica: bool,
    /// When somebody tried who could have done without.
    tried: BootInstant,
    /// How the last request failed.
    error: Error,
}

impl Silence {
    /// Takes note of a request from `started` that was of no use.
    pub(super) fn note(&self, started: BootInstant, is_replica: bool, error: &Error) {
        let mut silence = self.lock();
        let begun = silence.as_ref();
        let (since, tried) = begun.map_or((started, started), |begun| (begun.since, begun.tried));
        *silence = Some(Begun {
            since,
            is_replica,
            tried,
            error: error.clone(),
        });
    }

    /// Takes note of an answer. False if it may be that of a replica.
    pub(super) fn spoke(&self) -> bool {
        let mut silence = self.lock();
        silence.take_if(|begun| !begun.is_replica);
        silence.is_none()
    }

    /// Takes note of an answer of a primary.
    pub(super) fn end(&self) {
        *self.lock() = None;
    }

    /// Since when it lasts, and how the last request failed.
    pub(super) fn begun(&self) -> Option<(BootInstant, Error)> {
        let silence = self.lock();
        let begun = silence.as_ref();
        begun.map(|begun| (begun.since, begun.error.clone()))
    }

    /// Whether it is time that somebody who can do without the server asks it all the same.
    pub(super) fn is_to_be_tried(&self) -> bool {
        let now = BootInstant::now();
        match &mut *self.lock() {
            Some(begun) if begun.tried.plus(TRY_AGAIN) > now => false,
            Some(begun) => {
                begun.tried = now;
                true
            }
            None => true,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Begun>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
