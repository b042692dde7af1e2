//! The call at the front of the local queue: it asks the server until the lock is granted.
//!
//! While it stands there, the calls behind it ask nothing. When to ask is decided by [`Waiter`] and carried out by
//! [`Waiting`]; this file has what asking for a lock means. A round ([`ask`](Wanted::ask)) goes through these steps,
//! each of which may end it:
//!
//! 1. A reader joins the readers of this process.
//! 2. The turn to ask comes: no other call of the owner asks, and no release of this process can be overtaken.
//! 3. Others that were told of a release go first, where no turn order sees to that.
//! 4. A handoff is taken over, or released if it is the turn of other processes.
//! 5. The server is asked.
//!
//! One attempt serves all rounds: the server sees one acquisition, with one waiter mark. If nobody polls the call,
//! others go ahead of it: its request is undone, and it begins again with another acquisition id.

use std::sync::Arc;
use std::time::Duration;

use super::attempt::{Attempt, Attempted};
use super::place::{InQueue, Outcome};
use super::request::AcquireRequest;
use crate::clock::BootInstant;
use crate::error::Error;
use crate::protocol::acquired::Standing;
use crate::protocol::answer::Ttl;
use crate::protocol::hold_key::Kind;
use crate::protocol::lock::{self, AcquireMode};
use crate::protocol::policy::Policy;
use crate::protocol::wait::Wait;
use crate::protocol::waiter::{Local, Refusal, UNCONFIRMED_POLL, Waiter};
use crate::session::LocalLock;
use crate::session::turns::Turns;
use crate::wait::{Asked, Waiting, Wanted};

/// The least time that a call has for a request that it sends by itself, in addition to its last one.
const SLACK: Duration = Duration::from_millis(100);

/// What the call at the front has: one attempt for all its tries. It lives as long as the call is at the front; its
/// place is kept by the caller and outlives it.
struct First<'a> {
    request: &'a AcquireRequest,
    local: &'a LocalLock,
    place: &'a InQueue<'a>,
    policy: Policy,
    /// When the call counts as come, among readers and writers. For a writer that may be later than it was.
    came: BootInstant,
    attempt: Attempt<'a>,
    /// When the call came to the front.
    since: BootInstant,
    /// The last request has told the server that this call hears when it is its turn.
    hears: bool,
    /// Nobody can tell this call of its turn, though it listens.
    is_untold: bool,
}

impl AcquireRequest {
    /// Asks for the lock until it is granted, this owner has it by another call, or the limit has passed. What the
    /// server may have of the call lies with `place`, which the caller keeps: dropped with it, it is released.
    pub(super) async fn at_front(
        &self,
        local: &LocalLock,
        wait: &mut Wait,
        place: &InQueue<'_>,
    ) -> Result<Outcome, Error> {
        let policy = self.kind.policy();
        let came = match self.kind {
            // The server dates a reader by when its request came in. A writer behind that reader must not be dated
            // earlier.
            Kind::Write(_) => local.behind_readers(wait.started()),
            _ => wait.started(),
        };
        if self.kind.sides().is_some() {
            Box::pin(self.let_others_end(local, wait, place)).await?;
        }
        let mut first = First {
            request: self,
            local,
            place,
            policy,
            came,
            attempt: Attempt::waiting(self, local, place, came),
            since: BootInstant::now(),
            hears: false,
            is_untold: false,
        };
        let mut waiting = Waiting::new(&self.client, &self.name, wait, policy).at(place);
        let outcome = waiting.until(&mut first).await?;
        Ok(outcome.unwrap_or(Outcome::GaveUp))
    }
}

impl Local for First<'_> {
    /// A hold that was given back and left for this call does not count: the round that takes it over has to begin.
    fn is_held(&self) -> bool {
        self.local.is_held_here() && !self.local.has_handoff()
    }

    fn is_renewed(&self) -> bool {
        self.local.is_renewed_here()
    }

    /// Applies to kinds whose holds are not passed on. For the others, the limit is checked when a hold is passed on.
    /// Then this round leaves the lock to other processes.
    fn has_had_its_share(&self) -> bool {
        let streak = self.local.turns(|turns| turns.streak());
        !self.policy.reenters && streak >= self.request.client.settings.local_handoff_limit
    }
}

impl Wanted for First<'_> {
    type Output = Outcome;

    /// Another call of this owner may have brought a hold to re-enter.
    fn without_asking(&mut self) -> Option<Outcome> {
        self.request.own(self.local).map(|_| Outcome::Reenter)
    }

    /// Makes one round. Its awaits are the turn, the time for which others go first, and the request; the future may be
    /// dropped at each of them. What is taken over in between, a handoff or a reader's record, becomes a guard at once.
    async fn ask(&mut self, waiting: &mut Waiting<'_>) -> Result<Asked<Outcome>, Error> {
        // Tried first, since joining the readers of this process asks the server for nothing.
        let yields_to = self.request.yields_to(true);
        if let Some(joined) = self.request.join_readers(self.local, self.came, yields_to) {
            self.has_asked(None);
            return Ok(Asked::Ready(Outcome::Granted(joined?)));
        }
        let asked = BootInstant::now();
        // Kept until the answer is there. Without it, if it did not come in time, the call asks all the same.
        let _asking = self.attempt.turn().await?;
        // Another call of this owner may have acquired the lock while this one waited for its turn.
        if let Some(outcome) = self.without_asking() {
            return Ok(Asked::Ready(outcome));
        }
        let local = self.local;
        // Checked now, since a release that was on its way is done, and has told whether others wait.
        let yield_period = || local.turns(|turns| turns.yield_period());
        if self.yields() && yield_period().is_some() && !local.has_handoff() {
            Box::pin(waiting.yield_lock(yield_period)).await?;
        }
        let attempted = match self.take_passed() {
            Some(attempted) => attempted,
            None => self.send(waiting.waiter()).await,
        };
        Ok(match attempted {
            Ok(Attempted::Granted(guard)) => {
                self.has_asked(None);
                Asked::Ready(Outcome::Granted(guard))
            }
            Ok(Attempted::Yielded) => Asked::Yielded,
            Ok(Attempted::Busy(ttl)) => {
                // The server dates this call by when the request came in, less what the call had waited by then: no
                // later than this.
                self.has_asked(Some(self.came.plus(asked.until(BootInstant::now()))));
                Asked::Busy(self.refusal(ttl))
            }
            Err(error) => Asked::Failed(error),
        })
    }

    /// Where processes take turns, each of them is told on a channel of its own.
    fn channel(&self) -> Option<Arc<str>> {
        let turn = || lock::turn_channel(&self.request.name, &self.request.client.client_name);
        self.policy.takes_turns.then(turn)
    }
}

impl First<'_> {
    /// Takes over what was given back here and left for this call, if there is anything, or leaves the lock to others.
    /// Returns `None` if the server has to be asked.
    fn take_passed(&mut self) -> Option<Result<Attempted, Error>> {
        if !self.policy.passes_on || !self.local.has_handoff() {
            return None;
        }
        let client = &self.request.client;
        let counts = self.policy.listens && client.backend.counts_listeners();
        let limit = client.settings.local_handoff_limit;
        let may_pass = |turns: &mut Turns| turns.may_pass(BootInstant::now(), limit, counts);
        // For readers the record says whether a writer came first. For the rest, handoffs in a row are limited while
        // others wait.
        if self.policy.shares || self.local.turns(may_pass) {
            return self.attempt.take_handoff();
        }
        // It is the turn of other processes: dropping the handoff releases the lock. This call asks in the next round,
        // behind that release.
        drop(self.local.take_handoff());
        self.local.turns(|turns| turns.count(false));
        Some(Ok(Attempted::Yielded))
    }

    /// Asks the server, also for a place in the turn order if this call will come when it is its turn.
    async fn send(&mut self, waiter: &Waiter) -> Result<Attempted, Error> {
        self.hears = waiter.is_in_turn() && !self.is_untold;
        let mode = self.mode();
        let sent = BootInstant::now();
        let attempted = self.attempt.send(mode).await;
        if matches!(attempted, Ok(Attempted::Granted(_) | Attempted::Busy(_))) {
            let trip = sent.until(BootInstant::now());
            self.local.turns(|turns| turns.trip = trip);
        }
        if self.attempt.standing == Some(Standing::Nowhere) {
            (self.hears, self.is_untold) = (false, true);
        }
        if matches!(attempted, Ok(Attempted::Granted(_))) {
            // Plain locks are not passed on, and yet a row of calls here must not keep others out: each grant to a call
            // that has waited for a hold of this process counts like a handoff.
            let follows = waiter.is_in_succession() && !self.policy.reenters;
            self.local.turns(|turns| {
                // A named owner that joined its hold in another process may keep the place in the turn order; any
                // other grant ends it.
                turns.is_placed &= self.request.owner.is_named();
                turns.count(follows);
            });
        }
        attempted
    }

    /// Decides whether to ask for a place in the turn order. A call that hears nothing does so when it has asked in vain
    /// for a second, if it goes on asking often enough to come in its turn.
    fn mode(&self) -> AcquireMode {
        let trip = self.local.turns(|turns| turns.trip);
        if self.hears {
            return self.in_turn(trip * 2, true);
        }
        let pauses = self.request.wake_source.longest_pause();
        let pause = pauses.unwrap_or_else(|| self.asks_in());
        let is_late = self.since.until(BootInstant::now()) >= UNCONFIRMED_POLL;
        match self.policy.takes_turns && is_late && pause <= UNCONFIRMED_POLL {
            true => self.in_turn(pause + trip * 2 + SLACK, false),
            false => AcquireMode::Free,
        }
    }

    /// Asks for the lock, or else for a place in the turn order that outlasts the time until the next request. That
    /// comes within one poll cap; the place lasts for two of them and a request that times out.
    fn in_turn(&self, within: Duration, hears: bool) -> AcquireMode {
        // Noted before the request is sent: even without an answer, this process may have a place.
        self.local.turns(|turns| turns.is_placed = true);
        let lasts = self.request.client.settings.poll_cap * 2 + self.request.timeout();
        AcquireMode::InTurn {
            lasts,
            within,
            hears,
        }
    }

    /// Returns after how long a call that hears nothing asks again: from the second on, after an eighth of what it has
    /// waited. Others leave the lock to it for as long, at most.
    fn asks_in(&self) -> Duration {
        let waited = self.since.until(BootInstant::now());
        if waited < UNCONFIRMED_POLL {
            return UNCONFIRMED_POLL - waited;
        }
        (waited / 8).min(UNCONFIRMED_POLL)
    }

    /// Returns what the last answer means for the wait: when to ask again, and on which channel this call is told.
    fn refusal(&self, ttl: Ttl) -> Refusal {
        let Policy {
            listens,
            takes_turns,
            ..
        } = self.policy;
        let asks_in = || (listens && takes_turns && !self.hears).then(|| self.asks_in());
        Refusal {
            ttl,
            is_told_with_all: self
                .attempt
                .standing
                .is_some_and(Standing::is_told_with_all),
            remind_in: self.attempt.reminder().or_else(asks_in),
        }
    }

    /// Notes that a reader has asked: the writers behind it need not wait for it any longer, since from its first
    /// answer on the marks on the server keep the order.
    fn has_asked(&self, refused: Option<BootInstant>) {
        if self.policy.shares {
            self.place.has_asked(refused);
        }
    }

    /// Returns whether this call lets others go first that were told of a release. Where processes take turns, the
    /// server sees to that.
    fn yields(&self) -> bool {
        self.policy.listens && !self.policy.takes_turns && !self.policy.shares
    }
}
