//! The wait for a fair lock: in a queue on the server, where every waiter stands for itself.

use tokio::time::sleep;

use super::acquire::Outcome;
use super::attempt::{Attempt, Attempted};
use super::order::Order;
use crate::clock::Moment;
use crate::error::Error;
use crate::protocol::lock::Take;
use crate::protocol::wait::{Step, Wait};
use crate::session::Queue;
use crate::session::hub::Subscription;
use crate::session::reaper::Asking;

impl Order {
    /// Stands in the queue until the lock is granted: asks for a place, subscribes, asks again, then waits for a
    /// release of this process to move the lock here, a message, the holder's lease if this is the first, or the time
    /// to keep the place.
    pub(crate) async fn in_queue(
        &self,
        queue: &Queue,
        wait: &mut Wait,
        priority: i32,
    ) -> Result<Outcome, Error> {
        // The calls of one owner have one place; the others see what comes of it.
        let Some(asking) = self.asking(queue, wait).await? else {
            return Ok(Outcome::GaveUp);
        };
        if queue.live(&self.owner).is_some() {
            return Ok(Outcome::Reenter);
        }
        let mut attempt = Attempt::new(self, queue);
        attempt.expect_grant();
        asking.stands_in_queue();
        let channel = attempt.channel();
        let mut subscription: Option<Subscription> = None;
        loop {
            if attempt.is_given_up() {
                return Ok(Outcome::Reenter);
            }
            let heard = self.anchor.hub.reception(&channel);
            if let Some(subscription) = &mut subscription {
                subscription.catch_up();
            }
            let stand = Take::Stand { priority };
            let ttl = match attempt.send(stand).await {
                Ok(Attempted::Granted(guard)) => return Ok(Outcome::Granted(guard)),
                Ok(Attempted::Busy(ttl)) => ttl,
                Ok(Attempted::Yielded) => return Ok(Outcome::Reenter),
                Err(error) => {
                    self.anchor.pause(self.name.key(), wait, error).await?;
                    continue;
                }
            };
            let Step::Park(at_most) = wait.busy(Moment::now(), ttl, fastrand::f64()) else {
                return Ok(Outcome::GaveUp);
            };
            let subscription =
                subscription.get_or_insert_with(|| self.anchor.hub.subscribe(&channel));
            if subscription.is_heard() && heard != Some(subscription.count()) {
                // What was told before is seen by asking again.
                continue;
            }
            let woken = async {
                tokio::select! {
                    attempted = attempt.granted() => Some(attempted),
                    () = subscription.news() => None,
                    () = queue.appeared(&self.owner) => None,
                    () = sleep(at_most) => None,
                }
            };
            match self.anchor.unless_closed(woken).await?.transpose()? {
                Some(Attempted::Granted(guard)) => return Ok(Outcome::Granted(guard)),
                Some(_) => return Ok(Outcome::Reenter),
                None if queue.live(&self.owner).is_some() => return Ok(Outcome::Reenter),
                None => {}
            }
        }
    }

    /// Waits for the turn to ask for this owner. None if it does not come within the limit.
    async fn asking<'a>(
        &'a self,
        queue: &'a Queue,
        wait: &Wait,
    ) -> Result<Option<Asking<'a>>, Error> {
        let turn = queue.asking(&self.owner);
        self.anchor.in_line(self.name.key(), wait, turn).await
    }
}
