//! A place in the queue for a fair lock, on the server, where every waiter stands for itself.

use std::sync::Arc;

use super::acquire::Outcome;
use super::attempt::{Attempt, Attempted};
use super::order::Order;
use crate::error::Error;
use crate::protocol::lock::Take;
use crate::protocol::wait::Wait;
use crate::protocol::waiter::Local;
use crate::session::Queue;
use crate::session::reaper::Asking;
use crate::wait::{Asked, Waiting, Wanted};

/// What one call has while it waits: a place that it asks for again and again, which is what keeps it.
struct InQueue<'a> {
    order: &'a Order,
    queue: &'a Queue,
    attempt: Attempt<'a>,
    priority: i32,
}

impl Order {
    /// Stands in the queue until the lock is granted: by the server, or by a release of this process that moves it here.
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
        let mut place = InQueue {
            order: self,
            queue,
            attempt,
            priority,
        };
        let waiting = Waiting::new(&self.anchor, &self.name, wait, self.kind.policy());
        let mut waiting = waiting.signalled_by(queue, Some(&self.owner), false);
        let outcome = waiting.until(&mut place).await?;
        Ok(outcome.unwrap_or(Outcome::GaveUp))
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

impl Local for InQueue<'_> {}

impl Wanted for InQueue<'_> {
    type Output = Outcome;

    fn settled(&mut self) -> Option<Outcome> {
        let is_settled = self.attempt.is_given_up() || self.queue.live(&self.order.owner).is_some();
        is_settled.then_some(Outcome::Reenter)
    }

    async fn ask(&mut self, _: &mut Waiting<'_>) -> Result<Asked<Outcome>, Error> {
        let stand = Take::Stand {
            priority: self.priority,
        };
        Ok(match self.attempt.send(stand).await {
            Ok(Attempted::Busy(ttl)) => Asked::Busy(ttl.into()),
            Ok(attempted) => Asked::Ready(outcome(attempted)),
            Err(error) => Asked::Failed(error),
        })
    }

    async fn happens(&mut self) -> Result<Option<Outcome>, Error> {
        self.attempt.granted().await.map(outcome).map(Some)
    }

    fn channel(&self) -> Option<Arc<str>> {
        Some(self.attempt.channel())
    }
}

/// What was granted; or else the place is given up, and it is to be seen what the owner has by now.
fn outcome(attempted: Attempted) -> Outcome {
    match attempted {
        Attempted::Granted(guard) => Outcome::Granted(guard),
        Attempted::Busy(_) | Attempted::Yielded => Outcome::Reenter,
    }
}
