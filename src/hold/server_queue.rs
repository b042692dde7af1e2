//! The wait for a fair lock, in a queue on the server where every waiter stands for itself.
//!
//! Here no call stands in the local queue. A call asks once, by [`AcquireMode::Stand`], and then has a place in the
//! server queue under its acquisition id. From then on:
//!
//! 1. The session keeps the place, with those of all other calls of this process.
//! 2. A release or a heartbeat moves the lock to this hold, and the call is told ([`Attempt::told`]).
//! 3. The call asks again only when it is told to, because the place is gone or the lock may be free for it. A message
//!    of Redisson's has the same effect.
//!
//! If the future is dropped at any await, the attempt's `Undo` sends a release. If the hold was never granted, that
//! takes its place out of the queue. If it was just granted, that passes the lock on to the next.

use std::future::pending;
use std::pin::pin;

use tokio::time::sleep;

use super::attempt::{Attempt, Attempted};
use super::place::FrontOutcome;
use super::request::AcquireRequest;
use crate::clock::BootInstant;
use crate::error::Error;
use crate::protocol::answer::Ttl;
use crate::protocol::lock::AcquireMode;
use crate::protocol::wait::{Step, Wait};
use crate::session::LocalLock;
use crate::session::hub::Subscription;
use crate::session::place::UNPOLLED;
use crate::session::share::Asking;

impl AcquireRequest {
    /// Stands in the server queue until the lock is granted: asks for a place, which is kept together with all others
    /// of this process, then waits to be told. That way, it learns of a grant whoever released the lock, except for
    /// Redisson's clients, whose messages are received here.
    ///
    /// On [`FrontOutcome::Reenter`] the caller begins again: another call has brought the owner the lock, or the hold
    /// of this one was given up, which takes a fresh acquisition id.
    pub(super) async fn in_server_queue(
        &self,
        local: &LocalLock,
        wait: &mut Wait,
        priority: i32,
    ) -> Result<FrontOutcome, Error> {
        // The calls of one owner share one place; the others learn its outcome.
        let Some(asking) = Box::pin(self.asking(local, wait)).await? else {
            return Ok(FrontOutcome::GaveUp);
        };
        if local.live(&self.owner).is_some() {
            return Ok(FrontOutcome::Reenter);
        }
        let mut attempt = Attempt::new(self, local);
        // Registered before the first request, since any release after that may grant the hold.
        attempt.expect_grant(&asking);
        // Set from the first answer that names the channel, for as long as this call stands in the queue.
        let mut foreign: Option<Box<Subscription>> = None;
        loop {
            // Begins again with a fresh acquisition id: this hold is being released.
            if attempt.is_given_up() {
                return Ok(FrontOutcome::Reenter);
            }
            if let Some(foreign) = &mut foreign {
                foreign.catch_up();
            }
            attempt.is_alive();
            match Box::pin(attempt.send(AcquireMode::Stand { priority })).await {
                Ok(Attempted::Granted(guard)) => return Ok(FrontOutcome::Granted(guard)),
                // The call has its place, and is told when to ask again. The TTL does not matter.
                Ok(Attempted::Busy(_)) => {}
                Ok(Attempted::Yielded) => return Ok(FrontOutcome::Reenter),
                Err(error) => {
                    attempt.is_alive();
                    Box::pin(self.client.pause(self.name.key(), wait, error)).await?;
                    continue;
                }
            }
            if wait.busy(BootInstant::now(), Ttl::Never, 0.0) == Step::GiveUp {
                return Ok(FrontOutcome::GaveUp);
            }
            if let Some(channel) = attempt.channel().filter(|_| foreign.is_none()) {
                let subscription = foreign.insert(Box::new(self.client.hub.subscribe(&channel)));
                if subscription.is_heard() {
                    // Asking again finds what was announced before the subscription.
                    continue;
                }
            }
            let told = self.told(local, wait, &mut attempt, &mut foreign);
            match Box::pin(told).await? {
                None => return Ok(FrontOutcome::GaveUp),
                Some(told) => match told? {
                    Some(Attempted::Granted(guard)) => return Ok(FrontOutcome::Granted(guard)),
                    // The hold was given up before this call could go on with the grant: begin again.
                    Some(_) => return Ok(FrontOutcome::Reenter),
                    None if local.live(&self.owner).is_some() => return Ok(FrontOutcome::Reenter),
                    None => {}
                },
            }
        }
    }

    /// Waits to be told of a grant, of a message of Redisson's clients, or of a hold of this owner. The outer `None`
    /// means that the time is up, the inner one that the call has to ask.
    ///
    /// The first of these ends the wait. None of the others is lost: a grant stays noted, and the other two are checked
    /// again.
    async fn told(
        &self,
        local: &LocalLock,
        wait: &Wait,
        attempt: &mut Attempt<'_>,
        foreign: &mut Option<Box<Subscription>>,
    ) -> Result<Option<Result<Option<Attempted>, Error>>, Error> {
        let told = pin!(async {
            tokio::select! {
                told = attempt.told() => told,
                () = news_of(foreign) => Ok(None),
                () = local.appeared(&self.owner) => Ok(None),
            }
        });
        self.client.in_queue(Some(&self.name), wait, told).await
    }

    /// Waits for the turn to ask for this owner. Returns `None` if it does not come within the limit. While another
    /// call of the owner stands in the server queue and is polled, waits for that one, which may bring the lock for
    /// both.
    async fn asking<'a>(
        &'a self,
        local: &'a LocalLock,
        wait: &Wait,
    ) -> Result<Option<Asking<'a>>, Error> {
        let turn = pin!(async {
            tokio::select! {
                biased;
                asking = local.asking(&self.owner) => asking,
                never = self.pass_unpolled(local) => never,
            }
        });
        self.client.in_queue(Some(&self.name), wait, turn).await
    }

    /// Ends the turn of each other call of this owner that nobody polls. Such a call may share its task with this one,
    /// and is then not polled before this one ends.
    async fn pass_unpolled(&self, local: &LocalLock) -> ! {
        loop {
            if let Some(claim) = local.claim(&self.owner) {
                let is_over = match claim.queued {
                    Some(number) => self.client.releaser.pass(number).await,
                    // A call that does not queue has the turn only for the time of one request.
                    None => {
                        sleep(self.client.settings.command_timeout).await;
                        true
                    }
                };
                if is_over && local.claim(&self.owner) == Some(claim) {
                    local.end_turn(&self.owner, claim);
                }
            }
            sleep(UNPOLLED).await;
        }
    }
}

/// Waits for a message of Redisson's clients, if this call listens for any.
async fn news_of(subscription: &mut Option<Box<Subscription>>) {
    match subscription {
        Some(subscription) => Box::pin(subscription.news()).await,
        None => pending().await,
    }
}
