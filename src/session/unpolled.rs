//! Gives up waiters for a fair lock that nobody polls and that keep others waiting, and grants for which nobody waits.
//!
//! A future that shares a task with others may go unpolled while they run, and they must not wait for it. A waiter that
//! was given up begins again when it is polled.
//!
//! A server that lost data may have the place of a call that has ended: it has forgotten that the call left. Nobody but
//! the client knows, and without it each such place would keep the lock for a lease.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;
use tracing::debug;

use super::backend::Answer;
use super::grants::{GrantNews, LATELY};
use super::place::SHOWN_WITHIN;
use super::releaser::Releaser;
use crate::clock::BootInstant;
use crate::protocol::fair::{self, Signed};
use crate::protocol::hold_key::{HoldKey, numeral};

/// How long a waiter that was granted the lock may take to accept it. After that, it and the others have the same time
/// again to show that they are polled.
const GRANT_LIES: Duration = Duration::from_millis(500);

impl Releaser {
    /// Handles a request sent at `sent` that has moved the lock of `place` to the hold with this acquisition id.
    pub(super) fn granted(self: &Arc<Self>, place: &HoldKey, number: &str, sent: BootInstant) {
        if self.tell_holder(number, GrantNews::Granted(sent)) {
            return;
        }
        // The waiter may have accepted the grant, and even be releasing the hold. Then a release here would look like a
        // loss. Of news that was read late, nobody knows that any more.
        let is_old = sent.until(BootInstant::now()) >= LATELY;
        let is_known = |it: u64| is_old || self.grants.is_known(it) || self.has(place, it);
        if numeral(number).is_some_and(|it| !is_known(it)) {
            self.release_unclaimed(place.clone(), number.to_owned());
        }
    }

    /// Whether this process has a hold of this lock with this acquisition id.
    fn has(&self, place: &HoldKey, number: u64) -> bool {
        let local = self.local_locks.find(place.local_key());
        local.is_some_and(|local| local.has(number))
    }

    /// Releases the lock that was moved to a hold that nobody here has. If that fails, the lock is free after a lease.
    fn release_unclaimed(self: &Arc<Self>, place: HoldKey, gone: String) {
        let (releaser, owing) = (self.clone(), self.reaper.owing());
        self.runtime.spawn(async move {
            let _owing = owing;
            let Some(call) = fair::give_back(&place, &gone) else {
                return;
            };
            debug!(lock = %place.name.key(), "released what nobody waits for");
            let answered = releaser.backend.run(&call, releaser.command_timeout).await;
            let Ok(Answer { reply, sent, .. }) = answered else {
                return;
            };
            if let Ok(Signed::Stands {
                moved: Some(next), ..
            }) = Signed::decode(&reply)
            {
                releaser.granted(&place, &next, sent);
            }
        });
    }

    /// Tells a waiter whose hold has the lock on the server. Returns `false` if there is no such waiter, or if that is no
    /// news to it.
    ///
    /// It has a second to accept. If nobody polls it, its hold is given up, along with all others for this lock that
    /// nobody polls. So together they cost the rest one second. They begin again if they are polled later.
    pub(super) fn tell_holder(self: &Arc<Self>, number: &str, told: GrantNews) -> bool {
        // Otherwise the waiter has left, and owes a release of its own; or the grant was told before, by a release or a
        // sign of life, and its limit is already running.
        let is_news = self.grants.tell(number, told);
        let Some(number) = numeral(number).filter(|_| is_news) else {
            return false;
        };
        let releaser = self.clone();
        self.runtime.spawn(async move {
            loop {
                sleep(GRANT_LIES).await;
                let since = BootInstant::now();
                let Some(others) = releaser.grants.beside_untaken(number) else {
                    return;
                };
                others
                    .iter()
                    .chain([&number])
                    .for_each(|it| releaser.grants.poke(*it));
                sleep(GRANT_LIES).await;
                releaser.give_up_unpolled(number, &others, since);
            }
        });
        true
    }

    /// Gives up a waiter if nobody polls it. Returns `true` if it was given up or has accepted its grant.
    pub(crate) async fn pass(self: &Arc<Self>, number: u64) -> bool {
        let since = BootInstant::now();
        self.grants.poke(number);
        sleep(SHOWN_WITHIN).await;
        self.give_up_unpolled(number, &[], since);
        !self.grants.stands(number)
    }

    /// Gives up a waiter, and those of `others` that nobody has polled since `since` either. If the waiter was polled,
    /// gives up none.
    fn give_up_unpolled(self: &Arc<Self>, number: u64, others: &[u64], since: BootInstant) {
        let Some(hold) = self.grants.give_up(number, since) else {
            return;
        };
        debug!(lock = %hold.key().name.key(), owner = %hold.shown_owner(), "released what nobody has taken");
        // Their places go first, so that the release does not move the lock to one of them.
        for other in others {
            if let Some(other) = self.grants.give_up(*other, since) {
                self.release_unused(&other);
            }
        }
        self.release_unused(&hold);
    }
}
