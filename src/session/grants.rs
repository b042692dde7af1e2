//! Tells a waiter of this process that a release has moved the lock to its hold.
//!
//! # Invariant
//!
//! A hold that waits stands in the map until somebody takes it out: the waiter that goes on with the grant, or whoever
//! gives up on the waiter. Only one of them can, and only that one may act on the grant.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

use super::hold::Hold;
use crate::clock::Moment;

/// The holds of this client that stand in queues on the server, by their numbers.
#[derive(Debug, Default)]
pub(crate) struct Grants(Mutex<HashMap<Box<str>, Waiting>>);

#[derive(Debug)]
struct Waiting {
    hold: Arc<Hold>,
    /// Empty once the waiter was told.
    waiter: Option<oneshot::Sender<Moment>>,
}

impl Grants {
    /// From now on, this hold may be granted by a release.
    pub(crate) fn expect(self: &Arc<Self>, hold: &Arc<Hold>) -> Expected {
        let (waiter, granted) = oneshot::channel();
        let waiting = Waiting {
            hold: hold.clone(),
            waiter: Some(waiter),
        };
        self.lock().insert(hold.key().number().into(), waiting);
        Expected {
            grants: self.clone(),
            hold: hold.clone(),
            granted,
        }
    }

    /// Tells the waiter that its hold was granted by a request sent at `sent`. False if nobody waits.
    pub(crate) fn tell(&self, number: &str, sent: Moment) -> bool {
        let waiter = self.lock().get_mut(number).and_then(|it| it.waiter.take());
        waiter.is_some_and(|waiter| waiter.send(sent).is_ok())
    }

    /// The hold, if nobody has gone on with its grant.
    pub(crate) fn give_up(&self, number: &str) -> Option<Arc<Hold>> {
        Some(self.lock().remove(number)?.hold)
    }

    pub(crate) fn len(&self) -> usize {
        self.lock().len()
    }

    /// Every hold that waits, and that nobody goes on with from now on.
    pub(crate) fn give_up_all(&self) -> Vec<Arc<Hold>> {
        let waiting = std::mem::take(&mut *self.lock());
        waiting.into_values().map(|waiting| waiting.hold).collect()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Box<str>, Waiting>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A waiter's end of a grant.
#[derive(Debug)]
pub(crate) struct Expected {
    grants: Arc<Grants>,
    hold: Arc<Hold>,
    granted: oneshot::Receiver<Moment>,
}

impl Expected {
    /// Waits for a release that moves the lock here; when it was sent. It is told once.
    pub(crate) async fn granted(&mut self) -> Moment {
        match (&mut self.granted).await {
            Ok(sent) => sent,
            Err(_) => std::future::pending().await,
        }
    }

    /// Whether nobody has given the hold up: a grant that comes is this waiter's.
    pub(crate) fn stands(&self) -> bool {
        self.grants.lock().contains_key(self.hold.key().number())
    }

    /// Goes on with a grant, however it came to be known. False if the hold was given up meanwhile.
    pub(crate) fn claim(&self) -> bool {
        self.grants.give_up(self.hold.key().number()).is_some()
    }
}

impl Drop for Expected {
    fn drop(&mut self) {
        self.claim();
    }
}
