//! The readers of one process, which share a record on the server.
//!
//! The first asks the server. Others join its record in memory, as long as the server has recently said that the record
//! stands and that no writer waits that came before them. The last to give it back releases it. So readers cost the
//! server a few requests, however many they are. No reader overtakes a writer that came before it, here or elsewhere,
//! unless the lock prefers readers.
//!
//! Joining owes the server nothing: each joined hold counts among the record's holders, not in the hold count on the
//! server. So a dropped reader is given back in memory, unless it is the last of them.

use tokio::time::timeout;
use tracing::debug;

use super::guard::LockGuard;
use super::request::AcquireRequest;
use crate::clock::BootInstant;
use crate::error::Error;
use crate::options::Prefer;
use crate::protocol::wait::{Step, Wait};
use crate::session::LocalLock;
use crate::session::hold::Hold;
use crate::session::local_lock::YieldsTo;
use crate::session::share::Place;

impl AcquireRequest {
    /// Returns whether this call may share a record with other readers. A named owner may not: other processes may know
    /// it, and look for it.
    pub(super) fn may_join(&self) -> bool {
        self.kind.is_shared() && !self.owner.is_named()
    }

    /// Returns which writers of this process this call lets go first. At the front, those that came before have gone.
    pub(super) fn yields_to(&self, at_front: bool) -> YieldsTo {
        match self.kind.sides().map(|sides| sides.prefer) {
            Some(Prefer::Writers) => YieldsTo::AnyWriter,
            Some(Prefer::Arrival) if !at_front => YieldsTo::AnyWriter,
            _ => YieldsTo::Nobody,
        }
    }

    /// Joins the record of other readers here, for a call that came at `came`. Returns `None` if the server has to be
    /// asked. A call joins only if all of this is true:
    ///
    /// 1. Its owner has no name, and neither reads here by another call nor asks for it.
    /// 2. No writer here has the lock, and none waits that it yields to.
    /// 3. A reader here, through a handle with the same preference, has the record. The server has recently said that
    ///    it stands, and that no writer waits elsewhere that came before the call.
    /// 4. The call asks for the same lease, and enough of that is left.
    /// 5. No request is in flight that changes the record's hold count, or may cut its lease.
    pub(super) fn join_readers(
        &self,
        local: &LocalLock,
        came: BootInstant,
        yields_to: YieldsTo,
    ) -> Option<Result<LockGuard, Error>> {
        if !self.may_join() {
            return None;
        }
        // For a record with another preference, the server's answer does not tell which writer goes first.
        let join = |hold: &Hold| match hold.key().kind == self.kind {
            true => hold.join(&self.successor(came)),
            false => None,
        };
        // Made and entered in one step under the mutex of the local lock, so that no writer here comes in between.
        let hold = local.join(&self.owner, yields_to, join)?;
        debug!("joined");
        let guard = self.hand_out(local, &hold);
        if guard.is_ok() {
            let name = self.name.key();
            self.client.tally.handed_over((&self.kind).into(), name);
        }
        // On behalf of later readers, since the server's last answer will soon be too old for joining.
        if hold.record.is_to_be_asked_about(BootInstant::now()) {
            self.client.watchdog.confirm(&hold);
        }
        Some(guard)
    }

    /// Gives the holders of a read-write lock in this process the time of one request to give it back. A request after
    /// that comes behind their release on the same connection; a request before would be refused, and take as long.
    /// Called once, before the first request of a call at the front. Later requests follow messages.
    pub(super) async fn let_others_end(
        &self,
        local: &LocalLock,
        wait: &Wait,
        place: &Place<'_>,
    ) -> Result<(), Error> {
        // Called first, so that a release during the check of the holds ends the wait below.
        place.catch_up(BootInstant::now());
        let Some(trip) = local.is_taken_for(&self.owner) else {
            return Ok(());
        };
        let Step::Park(trip) = wait.clamp(BootInstant::now(), trip) else {
            return Ok(());
        };
        let ended = timeout(trip, place.news());
        self.client.unless_closed(ended).await.map(drop)
    }
}
