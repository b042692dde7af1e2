//! Keeps the places that a process has in the queue of a fair lock, by one sign of life for all of them and one
//! channel.
//!
//! A sign also takes the lock when it is free, for the first in the queue if that waits here. So a waiter asks once,
//! and is then told of the grant, or that its place is gone.
//!
//! A [`Keeper`] is a task for one lock. It runs while some hold of this process has a place there, wakes once a second,
//! when it is told by a message that the lock is free, and when the holder's lease ends; and each time it gives a sign
//! that names as many places as is due.
//!
//! # Invariants
//!
//! 1. Between two signs that the server has read lies less than the three seconds for which a place outlives the last
//!    one, as long as no more than one goes unanswered.
//! 2. Each place is named at least once in [`ROUND`] signs, and all of them as soon as some may be gone.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{sleep, timeout};
use tracing::debug;

use super::grants::Told;
use super::hold::Hold;
use super::releaser::Releaser;
use crate::clock::BootInstant;
use crate::error::Error;
use crate::name::LocalKey;
use crate::protocol::fair::{self, Signed};
use crate::protocol::hold_key::Kind;
use crate::protocol::lock;

/// How often a sign is given. The server takes a client for dead that has given none for three seconds.
const SIGN: Duration = Duration::from_secs(1);
/// At most this many signs pass until every place has been dated again. A place that was not dated for a minute is
/// given up in spite of the signs, and for Redisson each place runs with the clock.
///
/// Fewer signs, if a place is worth less time than that to Redisson.
const ROUND: u32 = 15;
/// The most places that one request names. A process that has fewer places names all of them each time.
const MOST: usize = 128;
/// How soon a sign that was lost is given again, so that places outlast the loss of one or two.
const AGAIN: Duration = Duration::from_millis(100);
/// The shortest pause before a sign that is sent because a lease is about to end.
const SHORTEST_PAUSE: Duration = Duration::from_millis(1);

/// Keeps the places of this process in the queue of one lock, as long as there are any.
#[derive(Debug)]
struct Keeper {
    /// The lock whose queue it is.
    lock: LocalKey,
    /// The id by which the server knows this process, and which the sign is of.
    client: Arc<str>,
    /// The grants, the channel and the servers.
    releaser: Arc<Releaser>,
    /// In how many signs every place is dated.
    round: usize,
    /// The acquisition id of the place that was dated last.
    ///
    /// The next sign begins behind it.
    last: u64,
    /// A sign was answered.
    ///
    /// Before that, the server cannot know of an earlier one.
    has_signed: bool,
    /// When the holder's lease ends, if the first in the queue waits here.
    ///
    /// A sign at that instant takes the lock of a holder that has died.
    ends: Option<BootInstant>,
}

impl Releaser {
    /// Notes that this hold has a place in a server queue. The place is kept from now on, until the waiter goes.
    pub(crate) fn keep_place(self: &Arc<Self>, hold: &Arc<Hold>, client: &Arc<str>) {
        let Kind::Fair(line) = &hold.key().kind else {
            return;
        };
        if self.grants.stand(hold) {
            // At most a third of what a place is worth to Redisson passes in between.
            let third = u32::try_from(line.worth.as_secs() / 3).unwrap_or(ROUND);
            let keeper = Keeper {
                lock: hold.key().local_key(),
                client: client.clone(),
                releaser: self.clone(),
                round: third.clamp(1, ROUND) as usize,
                last: 0,
                has_signed: false,
                ends: None,
            };
            self.runtime
                .spawn(keeper.run(lock::turn_channel(&hold.key().name, client)));
        }
    }
}

impl Keeper {
    /// Keeps the places until there are none, and then ends itself. Nobody waits for it.
    async fn run(mut self, channel: Arc<str>) {
        let releaser = self.releaser.clone();
        // This is the one channel on which this client is told that a fair lock is free.
        let mut ear = releaser.hub.subscribe(&channel);
        let mut is_heard = false;
        let mut in_doubt = ear.is_heard();
        let mut due = BootInstant::now().plus(SIGN);
        loop {
            // With places in doubt the next sign is due at once.
            if !in_doubt {
                let next = self.ends.map_or(due, |ends| ends.min(due));
                let pause = BootInstant::now().until(next).max(SHORTEST_PAUSE);
                timeout(pause, ear.news()).await.ok();
            }
            ear.catch_up();
            // Earlier messages may not have arrived. Another server may send them now, which may know less.
            in_doubt |= ear.is_heard() && !is_heard;
            is_heard = ear.is_heard();
            let is_due = BootInstant::now() >= due;
            // Checked once a sign only: a waiter that comes before then has its place kept by this keeper.
            if is_due && releaser.grants.leave(&self.lock) {
                return;
            }
            let standing = releaser.grants.standing(&self.lock);
            let count = match (in_doubt, is_due) {
                (true, _) => standing,
                (_, true) => standing.min(MOST).max(standing.div_ceil(self.round)),
                // The lock may be free, or was said to be.
                _ => standing.min(1),
            };
            match self.sign(count).await {
                Ok(has_lost) => in_doubt = has_lost && count < standing,
                Err(error) => {
                    // The answer would have said what is lost, so that is not known.
                    in_doubt |= error.is_unanswered();
                    // Soon, since the places live for three seconds only.
                    sleep(AGAIN).await;
                    due = BootInstant::now();
                    continue;
                }
            }
            if is_due {
                due = BootInstant::now().plus(SIGN);
            }
        }
    }

    /// Gives signs of life that date `count` places again. Returns whether any place was lost, by the server's account.
    /// The error is one that may pass.
    async fn sign(&mut self, mut count: usize) -> Result<bool, Error> {
        let mut has_lost = false;
        while count > 0 {
            let places = self
                .releaser
                .grants
                .some(&self.lock, self.last, count.min(MOST));
            let Some(last) = places.last() else {
                break;
            };
            let before = std::mem::replace(&mut self.last, last.key().numeral());
            count = count.saturating_sub(places.len());
            self.ends = None;
            match self.send(&places).await {
                Ok((
                    Signed::Stands {
                        is_known,
                        ttl,
                        moved,
                        holder,
                        missing,
                    },
                    sent,
                )) => {
                    // The server has forgotten an earlier sign: it expired, or the server has lost data. Places may
                    // have gone with it.
                    has_lost |= self.has_signed && !is_known;
                    self.has_signed = true;
                    self.ends = ttl.left().map(|left| BootInstant::now().plus(left));
                    if let Some(number) = moved {
                        self.releaser.granted(number, sent);
                    }
                    let grants = &self.releaser.grants;
                    // It has the lock by a request whose answer was lost, or was not read, or by its name: asking finds
                    // that.
                    if let Some(number) = holder {
                        self.releaser.tell_holder(&number, Told::Ask);
                    }
                    // A place that is known to be missing is told once, and is no news after that.
                    for number in missing {
                        has_lost |= grants.tell(&number, Told::Ask);
                    }
                }
                // The waiters ask, and each is told what is wrong.
                Ok((Signed::WrongKind, _)) => self.releaser.grants.tell_all(&self.lock),
                Err(error) if error.is_passing() => {
                    // The next sign names these places again.
                    self.last = before;
                    return Err(error);
                }
                Err(error) => {
                    debug!(%error, "the sign of life failed");
                    self.releaser.grants.tell_all(&self.lock);
                    break;
                }
            }
        }
        Ok(has_lost)
    }

    /// Returns the answer, and when the request that was answered was sent.
    ///
    /// Fails as closed if there is nothing to send.
    async fn send(&self, places: &[Arc<Hold>]) -> Result<(Signed, BootInstant), Error> {
        let keys: Vec<_> = places.iter().map(|hold| hold.key()).collect();
        let timeouts = places.iter().map(|hold| hold.timeout);
        let (Some(call), Some(budget)) = (fair::sign(&self.client, &keys), timeouts.max()) else {
            return Err(Error::closed());
        };
        // The sign counts for all places, and the next one has to follow before this one has ended.
        let answer = self.releaser.backend.run(&call, budget.min(SIGN)).await?;
        Ok((Signed::decode(&answer.reply)?, answer.sent))
    }
}
