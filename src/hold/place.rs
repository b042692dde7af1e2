//! A call's place in the local queue, and how the call leaves it.

use std::ops::Deref;

use super::guard::LockGuard;
use super::request::{AcquireRequest, Terms};
use crate::protocol::lock;
use crate::session::LocalLock;
use crate::session::share::Place;

/// How standing in the local queue, or asking, ended.
pub(super) enum Outcome {
    Granted(LockGuard),
    /// The owner holds the lock by now, through another call.
    Reenter,
    /// The lock was busy until the limit.
    GaveUp,
}

/// A place in the local queue.
pub(super) struct InQueue<'a> {
    place: Place<'a>,
    /// Dropped after `place`, so that it sees whether anybody is left in the local queue.
    _leaving: Leaving<'a>,
}

impl<'a> InQueue<'a> {
    pub(super) fn new(request: &'a AcquireRequest, local: &'a LocalLock) -> Self {
        // Only a call that may re-enter the lock is to be told that its owner holds it.
        let reenters = request.kind.is_reentrant();
        let owner = reenters.then_some(&request.owner);
        Self {
            place: local.stand(request.role(), owner, &request.client.releaser.runtime),
            _leaving: Leaving { request, local },
        }
    }
}

impl<'a> Deref for InQueue<'a> {
    type Target = Place<'a>;

    fn deref(&self) -> &Place<'a> {
        &self.place
    }
}

/// Gives up the place of this process in the turn order when the last call leaves the local queue.
struct Leaving<'a> {
    request: &'a AcquireRequest,
    local: &'a LocalLock,
}

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        let Terms { client, name, .. } = &**self.request;
        // Sent once, without an answer: if it is not sent, or lost, others leave the lock to this process once, for
        // one turn.
        let leave = || drop(client.backend.post(&lock::leave(name, &client.client_id)));
        self.local.give_up_place(leave);
    }
}
