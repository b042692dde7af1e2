//! The call at the front of the local queue: it asks the server until the lock is granted.
//!
//! While it stands there, the calls behind it ask nothing. [`Waiter`] decides when to ask, [`Waiting`] carries that
//! out, and this file has the request itself. A round ([`ask`](Wanted::ask)) goes through these steps, each of which
//! may end it:
//!
//! 1. A reader joins the readers of this process.
//! 2. The turn to ask comes: no other call of the owner asks, and no release of this process can be overtaken.
//! 3. Others that were told of a release go first, if no turn order ensures that.
//! 4. A handoff is taken over, or released if other processes go first.
//! 5. The server is asked.
//!
//! One attempt serves all rounds, so the server sees one acquisition, with one waiter mark. If nobody polls the call,
//! others go ahead of it. Its request is then undone, and it begins again with another acquisition id.

use std::sync::Arc;
use std::time::Duration;

use super::attempt::{Attempt, Attempted};
use super::place::{FrontOutcome, InQueue};
use super::request::AcquireRequest;
use crate::clock::BootInstant;
use crate::error::Error;
use crate::protocol::acquired::Standing;
use crate::protocol::answer::Ttl;
use crate::protocol::hold_key::Kind;
use crate::protocol::lock::{self, AcquireMode};
use crate::protocol::policy::Policy;
use crate::protocol::wait::Wait;
use crate::protocol::waiter::{BusyAnswer, Local, UNCONFIRMED_POLL, Waiter};
use crate::session::LocalLock;
use crate::session::turns::Turns;
use crate::wait::{Asked, Waiting, Wanted};

/// The minimum time that a call without messages has to ask in its turn, in addition to the round trip of its last
/// request.
const SLACK: Duration = Duration::from_millis(100);

/// The state of the call at the front: one attempt for all its tries. It lives as long as the call is at the front. The
/// caller keeps the place, which outlives it.
struct First<'a> {
    request: &'a AcquireRequest,
    local: &'a LocalLock,
    place: &'a InQueue<'a>,
    policy: Policy,
    /// The arrival time of the call in the order of readers and writers. A writer's may be later than its real arrival.
    came: BootInstant,
    attempt: Attempt<'a>,
    /// When the call came to the front.
    since: BootInstant,
    /// Whether the last request told the server that this call receives the message about its turn.
    hears: bool,
    /// Whether nobody can tell this call of its turn, though it listens.
    is_untold: bool,
}

impl AcquireRequest {
    /// Asks for the lock until it is granted, another call brings this owner the lock, or the limit has passed. The
    /// `Undo` of the call lies with `place`, which the caller keeps. Dropping the place releases what the server may
    /// have.
    pub(super) async fn at_front(
        &self,
        local: &LocalLock,
        wait: &mut Wait,
        place: &InQueue<'_>,
    ) -> Result<FrontOutcome, Error> {
        let policy = self.kind.policy();
        let came = match self.kind {
            // The server dates a reader by the arrival of its request. A writer behind that reader must not have an
            // earlier date.
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
        Ok(outcome.unwrap_or(FrontOutcome::GaveUp))
    }
}

impl Local for First<'_> {
    /// A handoff for this call does not count, so that the round begins which takes it over.
    fn is_held(&self) -> bool {
        self.local.is_held_here() && !self.local.has_handoff()
    }

    fn is_renewed(&self) -> bool {
        self.local.is_renewed_here()
    }

    /// For kinds whose holds are not passed on; for the others, the limit is checked when a hold is passed on. If
    /// `true`, this round leaves the lock to other processes.
    fn has_had_its_share(&self) -> bool {
        let streak = self.local.turns(|turns| turns.streak());
        !self.policy.reenters && streak >= self.request.client.settings.local_handoff_limit
    }
}

impl Wanted for First<'_> {
    type Output = FrontOutcome;

    /// Another call of this owner may have brought a hold to re-enter.
    fn without_asking(&mut self) -> Option<FrontOutcome> {
        self.request.own(self.local).map(|_| FrontOutcome::Reenter)
    }

    /// Makes one round. It awaits the turn, the time for which others go first, and the request, and may be dropped at
    /// each of these. A handoff or a reader's record that it takes over in between becomes a guard at once.
    async fn ask(&mut self, waiting: &mut Waiting<'_>) -> Result<Asked<FrontOutcome>, Error> {
        // Tried first, since joining the readers of this process takes no request.
        let yields_to = self.request.yields_to(true);
        if let Some(joined) = self.request.join_readers(self.local, self.came, yields_to) {
            self.has_asked(None);
            return Ok(Asked::Ready(FrontOutcome::Granted(joined?)));
        }
        let asked = BootInstant::now();
        // Kept until the answer is there. If the turn did not come in time, the call asks without it.
        let _asking = self.attempt.turn().await?;
        // Another call of this owner may have acquired the lock while this one waited for its turn.
        if let Some(outcome) = self.without_asking() {
            return Ok(Asked::Ready(outcome));
        }
        let local = self.local;
        // Checked now, since a release that was in flight has been answered, and has told whether others wait.
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
                Asked::Ready(FrontOutcome::Granted(guard))
            }
            Ok(Attempted::Yielded) => self.without_asking().map_or(Asked::Yielded, Asked::Ready),
            Ok(Attempted::Busy(ttl)) => {
                // The server dates this call by the arrival of the request, less the time waited by then: no later than
                // this.
                self.has_asked(Some(self.came.plus(asked.until(BootInstant::now()))));
                Asked::Busy(self.refusal(ttl))
            }
            Err(error) => Asked::Failed(error),
        })
    }

    /// Where processes take turns, each is told on its own channel.
    fn channel(&self) -> Option<Arc<str>> {
        let turn = || lock::turn_channel(&self.request.name, &self.request.client.client_name);
        self.policy.takes_turns.then(turn)
    }
}

impl First<'_> {
    /// Takes over a handoff for this call, if there is one, or leaves the lock to others. Returns `None` if the server
    /// has to be asked.
    fn take_passed(&mut self) -> Option<Result<Attempted, Error>> {
        if !self.policy.passes_on || !self.local.has_handoff() {
            return None;
        }
        let client = &self.request.client;
        let counts = self.policy.listens && client.backend.counts_listeners();
        let limit = client.settings.local_handoff_limit;
        let may_pass = |turns: &mut Turns| turns.may_pass(BootInstant::now(), limit, counts);
        // For readers, the record says whether a writer came first. For other kinds, handoffs in a row are limited
        // while others wait.
        if self.policy.shares || self.local.turns(may_pass) {
            return self.attempt.take_handoff();
        }
        // Other processes go first. Dropping the handoff releases the lock, and this call asks in the next round,
        // behind that release.
        drop(self.local.take_handoff());
        self.local.turns(|turns| turns.count(false));
        Some(Ok(Attempted::Yielded))
    }

    /// Asks the server, including for a place in the turn order if this call will ask when its turn comes.
    async fn send(&mut self, waiter: &Waiter) -> Result<Attempted, Error> {
        self.hears = waiter.is_in_turn() && !self.is_untold;
        let mode = self.mode();
        let placed = self.local.turns(|turns| turns.placed);
        let sent = BootInstant::now();
        let attempted = self.attempt.send(mode).await;
        let trip = sent.until(BootInstant::now());
        if matches!(attempted, Ok(Attempted::Busy(_))) {
            self.local.turns(|turns| turns.trip = trip);
        }
        if self.attempt.standing == Some(Standing::Nowhere) {
            (self.hears, self.is_untold) = (false, true);
        }
        if matches!(attempted, Ok(Attempted::Granted(_))) {
            // Plain locks are not passed on, but calls in a row here must not keep others out. So each grant to a call
            // that has waited for a hold of this process counts like a handoff.
            self.local.turns(|turns| {
                turns.trip = trip;
                // A named owner that joined its hold in another process may keep the place in the turn order, and a
                // request of another call behind this one may bring another. Any other grant ends it.
                if !self.request.owner.is_named() && turns.placed == placed {
                    turns.placed = 0;
                }
                turns.count(waiter.is_in_succession() && !self.policy.reenters);
            });
        }
        attempted
    }

    /// Decides whether to ask for a place in the turn order. A call that receives no messages does so once it has asked
    /// in vain for a second, if it asks often enough to catch its turn.
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
    /// request comes within one poll cap. The place lasts for two of them, and for a request that times out.
    fn in_turn(&self, within: Duration, hears: bool) -> AcquireMode {
        // Noted before the request is sent: even without an answer, this process may have a place.
        self.local.turns(|turns| turns.placed += 1);
        let lasts = self.request.client.settings.poll_cap * 2 + self.request.timeout();
        AcquireMode::InTurn {
            lasts,
            within,
            hears,
        }
    }

    /// Returns after how long a call without messages asks again: once it has waited for a second, after an eighth of
    /// its wait so far. Others leave the lock to it for at most as long.
    fn asks_in(&self) -> Duration {
        let waited = self.since.until(BootInstant::now());
        if waited < UNCONFIRMED_POLL {
            return UNCONFIRMED_POLL - waited;
        }
        (waited / 8).min(UNCONFIRMED_POLL)
    }

    /// Returns what the last answer means for the wait: when to ask again, and on which channel this call is told.
    fn refusal(&self, ttl: Ttl) -> BusyAnswer {
        let policy = self.policy;
        let is_unheard = policy.listens && policy.takes_turns && !self.hears;
        let asks_in = || is_unheard.then(|| self.asks_in());
        let standing = self.attempt.standing;
        BusyAnswer {
            ttl,
            is_told_with_all: standing.is_some_and(Standing::is_told_with_all),
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
