//! The heartbeat of a process in the queue of a fair lock: one periodic sign of life for all its places, and one
//! channel.
//!
//! If the lock is free and the first in the queue waits here, a sign also takes the lock for it. So a waiter asks once,
//! and then learns of its grant, or that its place is gone.
//!
//! A [`Keeper`] is a task for one lock, and runs while some hold of this process has a place there. It wakes once a
//! second, when a message says that the lock is free, and when the holder's lease ends. Each time, it sends a sign that
//! names as many places as are due.
//!
//! # Invariants
//!
//! 1. A place outlives the last sign by three seconds. The server reads the next one sooner than that, as long as no
//!    more than one in a row goes unanswered.
//! 2. Each place is named at least once in [`ROUND`] signs, and all of them as soon as some may be gone.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{sleep, timeout};
use tracing::debug;

use super::grants::GrantNews;
use super::hold::Hold;
use super::releaser::Releaser;
use crate::clock::BootInstant;
use crate::error::Error;
use crate::name::LocalKey;
use crate::protocol::fair::{self, Signed};
use crate::protocol::hold_key::Kind;
use crate::protocol::lock;

/// How often a sign is sent. The server considers a client dead after three seconds without one.
const SIGN: Duration = Duration::from_secs(1);
/// Every place is dated again within at most this many signs. A place that was not dated for a minute is dropped in
/// spite of the signs, and Redisson lets each place expire by its date.
///
/// Fewer signs, if a place expires sooner for Redisson.
const ROUND: u32 = 15;
/// The most places that one request names. A process that has fewer places names all of them each time.
const MOST: usize = 128;
/// How soon a lost sign is repeated, so that places outlast the loss of one or two.
const AGAIN: Duration = Duration::from_millis(100);
/// The shortest pause before a sign that is sent because a lease is about to end.
const SHORTEST_PAUSE: Duration = Duration::from_millis(1);

/// Keeps the places of this process in the queue of one lock, as long as there are any.
#[derive(Debug)]
struct Keeper {
    /// The lock whose queue it is.
    lock: LocalKey,
    /// The id by which the server knows this process. The sign carries it.
    client: Arc<str>,
    /// The grants, the channel and the servers.
    releaser: Arc<Releaser>,
    /// The number of signs within which every place is dated.
    round: usize,
    /// The acquisition id of the place that was dated last.
    ///
    /// The next sign begins behind it.
    last: u64,
    /// Whether a sign was answered.
    ///
    /// Before that, the server cannot know of an earlier one.
    has_signed: bool,
    /// When the holder's lease ends, if the first in the queue waits here.
    ///
    /// A sign at that instant takes over the lock of a holder that has died.
    ends: Option<BootInstant>,
}

impl Releaser {
    /// Keeps the place of this hold in a server queue from now on, until the waiter leaves.
    pub(crate) fn keep_place(self: &Arc<Self>, hold: &Arc<Hold>, client: &Arc<str>) {
        let Kind::Fair(line) = &hold.key().kind else {
            return;
        };
        if self.grants.stand(hold) {
            // So a place is dated at least three times before it expires for Redisson.
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
            // Earlier messages may not have arrived. And a different server, which may know less, may send them now.
            in_doubt |= ear.is_heard() && !is_heard;
            is_heard = ear.is_heard();
            let is_due = BootInstant::now() >= due;
            // Checked only once a sign. A waiter that comes before then has its place kept by this keeper.
            if is_due && releaser.grants.leave(&self.lock) {
                return;
            }
            let standing = releaser.grants.standing(&self.lock);
            let count = match (in_doubt, is_due) {
                (true, _) => standing,
                (_, true) => standing.min(MOST).max(standing.div_ceil(self.round)),
                // Woken by a message or by the end of the holder's lease: the lock may be free.
                _ => standing.min(1),
            };
            match self.sign(count).await {
                Ok(has_lost) => in_doubt = has_lost && count < standing,
                Err(error) => {
                    // Without the answer, it is not known what is lost.
                    in_doubt |= error.is_unanswered();
                    // A short pause, since the places live for only three seconds.
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

    /// Sends signs of life that date `count` places again. Returns whether the server says that any place was lost.
    /// Returns only errors that may pass.
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
                    // The server has forgotten an earlier sign: it expired, or the server lost data, perhaps with
                    // places.
                    has_lost |= self.has_signed && !is_known;
                    self.has_signed = true;
                    self.ends = ttl.left().map(|left| BootInstant::now().plus(left));
                    if let Some(number) = moved {
                        self.releaser.granted(places[0].key(), &number, sent);
                    }
                    let grants = &self.releaser.grants;
                    // It has the lock by a request whose answer was lost or not read, or by its name. Asking finds out.
                    if let Some(number) = holder {
                        self.releaser.tell_holder(&number, GrantNews::Ask);
                    }
                    // A missing place is reported once.
                    for number in missing {
                        has_lost |= grants.tell(&number, GrantNews::Ask);
                    }
                }
                // Each waiter asks, and so gets the error itself.
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

    /// Sends one sign. Returns the answer, and when the answered request was sent.
    ///
    /// Fails as closed if there is nothing to send.
    async fn send(&self, places: &[Arc<Hold>]) -> Result<(Signed, BootInstant), Error> {
        let keys: Vec<_> = places.iter().map(|hold| hold.key()).collect();
        let timeouts = places.iter().map(|hold| hold.timeout);
        let (Some(call), Some(budget)) = (fair::sign(&self.client, &keys), timeouts.max()) else {
            return Err(Error::closed());
        };
        // The sign counts for all places, and the next one has to follow before this one expires.
        let answer = self.releaser.backend.run(&call, budget.min(SIGN)).await?;
        Ok((Signed::decode(&answer.reply)?, answer.sent))
    }
}
