//! Drives one acquisition to a hold, a refusal or a deadline; undoes it if dropped.

use std::pin::pin;

use futures_util::FutureExt;
use futures_util::future::OptionFuture;
use tokio::task::consume_budget;
use tokio::time::timeout;
use tracing::{Instrument, debug, debug_span};

use super::attempt::{Attempt, Attempted};
use super::guard::LockGuard;
use super::line::{Front, InLine, Outcome, Turn};
use super::order::Order;
use crate::clock::Moment;
use crate::error::Error;
use crate::options::Limit;
use crate::protocol::lock::Take;
use crate::protocol::read_write::MARK;
use crate::protocol::wait::{Alarm, Wait};
use crate::session::Queue;
use crate::session::give_back::AtFront;

impl Order {
    /// Takes the lock, or takes it again. None if it was busy until the limit.
    pub(crate) async fn acquire(&self, limit: Limit) -> Result<Option<LockGuard>, Error> {
        let span = debug_span!("acquire", lock = %self.name.key(), owner = %self.owner);
        self.anchor.ensure_open()?;
        match span.is_disabled() {
            true => self.take(limit).await,
            false => Box::pin(self.take(limit).instrument(span)).await,
        }
    }

    async fn take(&self, limit: Limit) -> Result<Option<LockGuard>, Error> {
        let wait = Wait::new(Moment::now(), limit, self.patience(), self.alarm.clone());
        let mut wait = wait.attempts(self.attempts);
        let queue = self.queue();
        // A single attempt stands in none.
        let line = match wait.is_single_attempt() {
            true => None,
            false => self.common_line(),
        };
        let mut in_line = None;
        loop {
            while let Some(hold) = self.own(&queue) {
                match Box::pin(self.reenter(&queue, &hold)).await {
                    Ok(Some(guard)) => return Ok(Some(guard)),
                    // The hold has ended; perhaps there is a newer one.
                    Ok(None) => {}
                    Err(error) => {
                        Box::pin(self.anchor.pause(self.name.key(), &mut wait, error)).await?;
                    }
                }
            }
            if self.is_upgrade() {
                // Before standing in line: who is at its front may wait for this owner.
                return Err(self.upgrade());
            }
            if self.may_join() {
                // Readers that come and go in memory alone are to let others of their thread go on.
                consume_budget().await;
                if let Some(joined) = self.join_readers(&queue, wait.started(), false) {
                    return joined.map(Some);
                }
            }
            let turn = if wait.is_single_attempt() {
                None
            } else if let Alarm::Queue { priority } = self.alarm {
                Some(Turn::Queue { priority })
            } else {
                // From now on, a hold that is given back here may be left for us.
                let place = in_line.get_or_insert_with(|| InLine::new(self, &queue));
                Some(if self.kind.is_shared() {
                    let turn = self.behind_readers(&queue, line.as_ref(), place, &wait);
                    Box::pin(turn).await?
                } else {
                    place.inherits();
                    self.stand_in_line(&queue, line.as_ref(), &wait).await?
                })
            };
            let outcome = match turn {
                None => Box::pin(self.ask_once(&queue)).await?,
                Some(Turn::Queue { priority }) => {
                    Box::pin(self.in_queue(&queue, &mut wait, priority)).await?
                }
                Some(Turn::Front(front)) => {
                    // On the heap, so that a call which stands in line does without it.
                    Box::pin(self.at_front(&queue, &mut wait, front)).await?
                }
                Some(Turn::Granted(guard)) => Outcome::Granted(guard),
                Some(Turn::Reenter) => Outcome::Reenter,
                Some(Turn::GaveUp) => Outcome::GaveUp,
            };
            match outcome {
                Outcome::Granted(guard) => {
                    debug!(waited = ?wait.waited(Moment::now()), "acquired");
                    return Ok(Some(guard));
                }
                Outcome::Reenter => {}
                Outcome::GaveUp => return Ok(None),
            }
        }
    }

    /// Waits behind the other waiters of this process, if there are any.
    async fn stand_in_line<'a>(
        &self,
        queue: &'a Queue,
        line: Option<&'a Queue>,
        wait: &Wait,
    ) -> Result<Turn<'a>, Error> {
        if line.is_none()
            && let Ok(front) = queue.front.try_acquire()
        {
            let front = AtFront::new(queue, front);
            return Ok(Turn::Front(Front::alone(front, None)));
        }
        Box::pin(self.behind_others(queue, line, wait)).await
    }

    async fn behind_others<'a>(
        &self,
        queue: &'a Queue,
        line: Option<&'a Queue>,
        wait: &Wait,
    ) -> Result<Turn<'a>, Error> {
        // The places in line and at the gate are had from here on, and in one step: of two writers, none may be first
        // in line while the other is first at the gate.
        let mut gate = OptionFuture::from(line.map(|line| Box::pin(line.gate.write())));
        let mut front = pin!(queue.front.acquire());
        let (passed, first) =
            queue.in_one_step(|| ((&mut gate).now_or_never(), front.as_mut().now_or_never()));
        // On the heap, since only a read-write lock has one.
        let gate = line.map(|_| Box::new(passed.ok_or(gate)));
        let at_front = async |front| {
            let front = AtFront::new(queue, front);
            let passed = match gate.map(|gate| *gate) {
                None => None,
                Some(Ok(passed)) => passed,
                // Of the readers before it, one that has not asked so far may be polled by nobody.
                Some(Err(gate)) => timeout(MARK, gate).await.ok().flatten(),
            };
            Turn::Front(Front::alone(front, passed))
        };
        if let Some(front) = first.and_then(Result::ok) {
            return Ok(Box::pin(at_front(front)).await);
        }
        if let Some(turn) = Box::pin(self.join(queue)).await? {
            return Ok(turn);
        }
        queue.watch_front(&self.anchor.releaser.runtime);
        let turn = pin!(async {
            tokio::select! {
                front = front => match front {
                    Ok(front) => Box::pin(at_front(front)).await,
                    Err(_) => Turn::GaveUp,
                },
                () = queue.appeared(&self.owner), if self.kind.is_reentrant() => Turn::Reenter,
            }
        });
        let turn = self.anchor.in_line(&self.name, wait, turn).await?;
        Ok(turn.unwrap_or(Turn::GaveUp))
    }

    /// A named owner may hold the lock through another process; then this is a re-entry, and never queues.
    async fn join<'a>(&self, queue: &'a Queue) -> Result<Option<Turn<'a>>, Error> {
        if !self.owner.is_named() || !self.kind.is_reentrant() {
            return Ok(None);
        }
        let mut attempt = Attempt::new(self, queue);
        let _asking = attempt.turn().await?;
        if self.own(queue).is_some() {
            return Ok(Some(Turn::Reenter));
        }
        match Box::pin(attempt.send(Take::JoinOnly)).await {
            Ok(Attempted::Granted(guard)) => Ok(Some(Turn::Granted(guard))),
            Err(error) if !error.is_passing() => Err(error),
            Ok(Attempted::Busy(_) | Attempted::Yielded) | Err(_) => Ok(None),
        }
    }

    /// One attempt, which stands in no line.
    async fn ask_once(&self, queue: &Queue) -> Result<Outcome, Error> {
        let mut attempt = Attempt::new(self, queue);
        let _asking = attempt.turn().await?;
        if self.own(queue).is_some() {
            return Ok(Outcome::Reenter);
        }
        match attempt.send(Take::Free).await? {
            Attempted::Granted(guard) => {
                queue.count_streak(false);
                Ok(Outcome::Granted(guard))
            }
            Attempted::Busy(_) | Attempted::Yielded => Ok(Outcome::GaveUp),
        }
    }
}
