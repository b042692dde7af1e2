//! Gives up the waiters for a fair lock that keep others waiting, and that nobody polls. They begin again when they are
//! polled.
//!
//! A future that shares a task with others may not be polled while these go on, and none of them must wait for it.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;
use tracing::debug;

use super::grants::Told;
use super::place::SHOWN_WITHIN;
use super::releaser::Releaser;
use crate::clock::BootInstant;
use crate::protocol::hold_key::numeral;

/// How long a waiter that has the lock may take to go on with it. As long again, it and the others have to show that
/// they are polled.
const GRANT_LIES: Duration = Duration::from_millis(500);

impl Releaser {
    /// Handles a request sent at `sent` that has moved the lock to the hold with this acquisition id.
    pub(super) fn granted(self: &Arc<Self>, number: String, sent: BootInstant) {
        self.tell_holder(&number, Told::Granted(sent));
    }

    /// Tells a waiter by whose hold the server has the lock.
    ///
    /// It has a second to take that. If nobody polls it, its hold is given up, with those of all others for this lock
    /// that nobody polls: they cost the rest one second together. They begin again if they are polled later.
    pub(super) fn tell_holder(self: &Arc<Self>, number: &str, told: Told) {
        // Otherwise the waiter has left, and owes a release of its own.
        // A grant that is told twice, by a release and by a sign of life, has one such limit.
        let is_news = self.grants.tell(number, told);
        let Some(number) = numeral(number).filter(|_| is_news) else {
            return;
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
    }

    /// Gives up a waiter if nobody polls it. Returns whether it is given up, or has gone on with its grant.
    pub(crate) async fn pass(self: &Arc<Self>, number: u64) -> bool {
        let since = BootInstant::now();
        self.grants.poke(number);
        sleep(SHOWN_WITHIN).await;
        self.give_up_unpolled(number, &[], since);
        !self.grants.stands(number)
    }

    /// Gives up a waiter and `others` if nobody has polled them since `since`; none of them if the first was polled.
    fn give_up_unpolled(self: &Arc<Self>, number: u64, others: &[u64], since: BootInstant) {
        let Some(hold) = self.grants.give_up(number, since) else {
            return;
        };
        debug!(lock = %hold.key().name.key(), owner = %hold.shown_owner(), "released what nobody has taken");
        // The places go first, so that the release moves the lock to none of them.
        for other in others {
            if let Some(other) = self.grants.give_up(*other, since) {
                self.release_unused(&other);
            }
        }
        self.release_unused(&hold);
    }
}
