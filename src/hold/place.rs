//! A call's place in the line of its process, and how it leaves it.

use std::ops::Deref;

use super::guard::LockGuard;
use super::request::{AcquireRequest, Terms};
use crate::protocol::lock;
use crate::session::LocalLock;
use crate::session::give_back::Place;

/// How standing in line ended, or asking.
pub(super) enum Outcome {
    Granted(LockGuard),
    /// The owner holds the lock by now, through another call.
    Reenter,
    GaveUp,
}

/// A place in line here.
pub(super) struct InQueue<'a> {
    place: Place<'a>,
    /// Dropped behind that.
    _leaving: Leaving<'a>,
}

impl<'a> InQueue<'a> {
    pub(super) fn new(request: &'a AcquireRequest, local: &'a LocalLock) -> Self {
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

/// With the last call to leave, this process also gives up its place in line on the server.
struct Leaving<'a> {
    request: &'a AcquireRequest,
    local: &'a LocalLock,
}

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        let Terms { client, name, .. } = &**self.request;
        // If it is not sent, or lost, others leave the lock to this process once.
        let leave = || drop(client.backend.post(&lock::leave(name, &client.client_id)));
        self.local.give_up_place(leave);
    }
}
