//! A call's place in the local queue, and how the call leaves it.
//!
//! The session has the place itself ([`Place`]), for calls of all sorts. This file adds a rule for calls that acquire a
//! lock: the last of them to leave gives up this process's place in the turn order, which stands for all of them.

use std::ops::Deref;

use super::guard::LockGuard;
use super::request::{AcquireRequest, Terms};
use crate::owner::Owner;
use crate::protocol::lock;
use crate::session::LocalLock;
use crate::session::local_queue::Role;
use crate::session::share::Place;

/// How standing in the local queue, or asking, ended.
pub(super) enum FrontOutcome {
    Granted(LockGuard),
    /// Another call has brought the owner the lock, or this call has to begin again for another reason. The caller
    /// starts over by checking what the owner holds.
    Reenter,
    /// The lock was busy until the limit.
    GaveUp,
}

/// A place in the local queue, from the moment at which a call has to wait until it has a guard or gives up.
pub(super) struct InQueue<'a> {
    place: Place<'a>,
    /// Dropped after `place`, so that it sees whether anybody is left in the local queue.
    _leaving: Leaving<'a>,
}

impl<'a> InQueue<'a> {
    pub(super) fn new(request: &'a AcquireRequest, local: &'a LocalLock) -> Self {
        // Only a call that may re-enter the lock is told that its owner holds it.
        let reenters = request.kind.is_reentrant();
        let owner = reenters.then_some(&request.owner);
        Self::stand(request, local, request.role(), owner)
    }

    /// For a request next to the queue. It may be the last to leave.
    pub(super) fn beside(request: &'a AcquireRequest, local: &'a LocalLock) -> Self {
        Self::stand(request, local, Role::Beside, None)
    }

    fn stand(
        request: &'a AcquireRequest,
        local: &'a LocalLock,
        role: Role,
        owner: Option<&'a Owner>,
    ) -> Self {
        Self {
            place: local.stand(role, owner, &request.client.releaser.runtime),
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

/// Gives up the place of this process in the turn order when the last call leaves the local queue. Otherwise others
/// would be refused a free lock until the turn of a process that wants nothing has expired.
struct Leaving<'a> {
    request: &'a AcquireRequest,
    local: &'a LocalLock,
}

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        let Terms { client, name, .. } = &**self.request;
        // Runs under the mutex of the local lock, so it only writes, and a call that comes now asks behind it. Sent
        // once, without waiting for an answer. If it is lost, others leave the lock to this process for one turn.
        let leave = || drop(client.backend.post(&lock::leave(name, &client.client_name)));
        self.local.give_up_place(leave);
    }
}
