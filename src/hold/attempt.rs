//! One acquisition that has no hold yet: asks the server, and undoes whatever the requests may have left.
//!
//! All requests of an attempt carry one acquisition id, so the server takes a repeated one for the same acquisition,
//! and one release undoes all of them. An attempt ends in one of three ways:
//!
//! 1. It is granted ([`grant`]): a guard takes over, and the `Undo` is disarmed.
//! 2. The server has answered that it has nothing of this hold, and nothing is in doubt: the `Undo` is disarmed.
//! 3. In any other case, including a future that is dropped at any await, the `Undo` is dropped and sends the release.
//!
//! # Invariants
//!
//! 1. The `Undo` is armed from before the first request that may leave the hold on the server. From then on it is in
//!    one place: in `undo`, or lent to the place in the local queue (`is_lent`).
//! 2. `in_doubt` is never cleared for an acquisition id: after a refusal, the server may still carry out an earlier
//!    request.
//! 3. While an attempt with a place awaits anything, its `Undo` lies with the place. A call that goes ahead of it finds
//!    the `Undo` there, and has the release sent first. The exception is a hold that its release cannot tell apart from
//!    others: its `Undo` stays here.

mod grant;
mod transfer;

use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout;
use tracing::warn;

use super::guard::LockGuard;
use super::request::{AcquireRequest, Terms};
use crate::clock::BootInstant;
use crate::error::Error;
use crate::options::LeaseTime;
use crate::protocol::acquired::{Acquired, Standing, WaiterMark};
use crate::protocol::answer::Ttl;
use crate::protocol::hold_key::{HoldKey, Kind};
use crate::protocol::lock::AcquireMode;
use crate::protocol::read_write::WAITER_MARK_TTL;
use crate::protocol::red::{self, Abstention, Polled, RestartPolicy};
use crate::protocol::script::Call;
use crate::session::LocalLock;
use crate::session::backend::Answer;
use crate::session::grants::Expected;
use crate::session::hold::{self, Hold};
use crate::session::outgoing::Barrier;
use crate::session::place::UNPOLLED;
use crate::session::share::{Asking, Place, Share};
use crate::session::undo::Undo;

/// The largest number of fencing tokens that one request reserves.
const MOST_TOKENS: u32 = 64;

/// The answer to an attempt.
pub(crate) enum Attempted {
    Granted(LockGuard),
    /// Refused. After this time, the lock may be free even without a message.
    Busy(Ttl),
    /// Neither granted nor refused: the lock was left to others, or others went ahead of this call and its grant was
    /// given back. The call begins again.
    Yielded,
}

/// The answer of one of several servers to an attempt.
pub(crate) enum Polling {
    Voted(Attempted),
    /// The server may have forgotten grants, and has taken nothing for this attempt.
    Abstains(Abstention),
}

/// One acquisition that has no hold yet. All its tries carry the same acquisition id.
///
/// It is made for one call: [`waiting`](Self::waiting) for a call at the front, which asks as often as it has to;
/// [`new`](Self::new) for one that asks once, stands in a server queue or is one of several members. Each time the call
/// has the [`turn`](Self::turn), it sends a request with [`send`](Self::send) or [`poll`](Self::poll), and handles the
/// answer before it awaits anything else.
pub(crate) struct Attempt<'a> {
    request: &'a AcquireRequest,
    local: &'a LocalLock,
    /// The requested hold, which gets a guard if it is granted. Until then, it has no level here, and the `Undo` owns
    /// what the server may have of it.
    hold: Arc<Hold>,
    /// How long the next request may take: the time of one request, less the wait for the turn.
    budget: Duration,
    /// Armed from before the first send until an answer shows that the server has nothing of this hold, or a guard
    /// takes over.
    undo: Option<Undo<Share>>,
    /// Whether a refusal does not prove that the server has nothing of this hold. An unanswered try may run after one
    /// that was answered, or the hold stands in a server queue and may be granted at any time.
    in_doubt: bool,
    /// Whether the hold has had a place in the server queue. If it is given another, that place was lost.
    placed: bool,
    /// Whether the place may be waiting for a release by one of Redisson's clients.
    is_foreign: bool,
    /// Receives the grant of a hold that stands in a server queue, if a release of this process moves the lock to it.
    expected: Option<Expected>,
    /// The place in the local queue, or next to it: the `Undo` is lent to it.
    place: Option<&'a Place<'a>>,
    /// Whether the `Undo` is lent to the place.
    is_lent: bool,
    /// Whether others went ahead of this call, since nobody polled it. Its `Undo` has run by then, so a grant by the
    /// request in flight is being released and must not become a guard.
    was_passed: bool,
    /// The waiter mark of a call that waits for a read-write lock, and when that call came.
    mark: Option<(WaiterMark, BootInstant)>,
    /// Where this process stands in the turn order, if the last answer was that the lock is busy.
    pub(crate) standing: Option<Standing>,
    /// Whether a handoff for this call could not be passed on. For a fenced lock, the next request then reserves many
    /// tokens, since a lack of them may have been the reason.
    follows: bool,
    /// How many disruptions had made holds doubtful when the last request was sent.
    doubts: u64,
}

impl<'a> Attempt<'a> {
    /// Creates an attempt with a fresh acquisition id.
    pub(crate) fn new(request: &'a AcquireRequest, local: &'a LocalLock) -> Self {
        Self::numbered(request, local, hold::fresh_acquisition_id())
    }

    /// Creates an attempt with this acquisition id, which the holds of several locks may share: the one request of a
    /// [`batch`](super::batch) carries one id, and its holds are told apart by their keys.
    pub(crate) fn numbered(request: &'a AcquireRequest, local: &'a LocalLock, number: u64) -> Self {
        let client = &request.client.client_name;
        let (name, kind) = (request.name.clone(), request.kind.clone());
        let key = HoldKey::new(name, kind, client, &request.owner, number);
        let lease = request.lease_mode.lease();
        let budget = request.client.settings.timeout(lease);
        let hold = Hold::new(key, request.owner.clone(), lease, budget);
        Self {
            request,
            local,
            hold,
            budget,
            undo: None,
            in_doubt: false,
            placed: false,
            is_foreign: false,
            expected: None,
            place: None,
            is_lent: false,
            was_passed: false,
            mark: None,
            standing: None,
            follows: false,
            doubts: request.client.watchdog.doubts(),
        }
    }

    /// Creates an attempt of a call at the front that came at `came` and waits while the lock is busy. If its kind
    /// leaves waiter marks, others learn that it waits.
    pub(crate) fn waiting(
        request: &'a AcquireRequest,
        local: &'a LocalLock,
        place: &'a Place<'a>,
        came: BootInstant,
    ) -> Self {
        // The server's date for the call is unknown until it answers, so requests say how long the call has waited.
        let unknown = WaiterMark {
            came: 0,
            marked: false,
        };
        Self {
            mark: request.kind.sides().map(|_| (unknown, came)),
            ..Self::new(request, local).at(place)
        }
    }

    /// Lends the `Undo` to this place, so that others need not wait for this call if nobody polls it.
    pub(crate) fn at(mut self, place: &'a Place<'a>) -> Self {
        self.place = Some(place);
        self
    }

    /// Returns after how long to ask again, so that others do not forget that this call waits. `None` for kinds without
    /// waiter marks, and for a reader that has none.
    pub(crate) fn reminder(&self) -> Option<Duration> {
        let (mark, _) = self.mark?;
        // A writer (one per process) asks even without a mark of its own: it also takes over the mark of a writer
        // that came before it and has gone.
        (mark.marked || !self.request.kind.is_shared()).then_some(WAITER_MARK_TTL / 3)
    }

    /// Waits for the turn to ask: until no other call of this owner asks, and the releases of this process that are in
    /// the way are ahead of it. Waits for less than the time of one request, and shortens the next request by as much,
    /// so that a silent server does not cost several timeouts.
    ///
    /// The caller keeps the turn until its request is answered: a second request of the same owner has another
    /// acquisition id, and would find the lock busy. Returns `None` if the turn does not come in time, or if a call of
    /// this owner stands in a server queue. The caller may ask all the same: at worst the lock looks busy to it.
    ///
    /// Takes the turn from a call that has kept it for all that time. Probably nobody polls that call.
    pub(crate) async fn turn(&mut self) -> Result<Option<Asking<'a>>, Error> {
        let is_wanted_elsewhere = || {
            let now = BootInstant::now();
            self.local.turns(|turns| turns.is_wanted_elsewhere(now))
        };
        let barrier = match self.request.kind {
            // Readers share the lock, so that only a release of the same owner is in the way.
            Kind::Read(_) => Barrier::Own,
            // Writers in other processes go first, if the answer to the release says that they wait.
            Kind::Write(_) if is_wanted_elsewhere() => Barrier::Answered,
            // Behind the releases of this process on the connection. Their answers are not awaited.
            _ => Barrier::Sent,
        };
        // While too much is owed to a silent server, it is asked for nothing more.
        self.request
            .client
            .reaper
            .ensure_credit(&self.request.name)?;
        let owner = &self.request.owner;
        if let Some(asking) = self.local.turn_at_once(owner, barrier) {
            // An earlier request of this attempt may have had less.
            self.budget = self.hold.timeout;
            return Ok(Some(asking));
        }
        let started = BootInstant::now();
        // A call that stands in a server queue keeps its turn for as long as that takes. A call with a short lease waits
        // for too short a time to tell whether anybody polls the other one.
        let settings = &self.request.client.settings;
        let is_long = self.hold.timeout >= UNPOLLED.min(settings.command_timeout / 2);
        let before = self.local.claim(owner);
        let before = before.filter(|it| is_long && it.queued.is_none());
        let turn = timeout(self.hold.longest_turn(), self.local.turn(owner, barrier));
        // On the heap, since usually nobody waits for the turn.
        let turn = Box::pin(self.request.client.unless_closed(turn));
        let mut asking = turn.await?.ok().flatten();
        self.budget = self.hold.time_left(started);
        if let Some(claim) = before.filter(|_| asking.is_none())
            && self.local.claim(owner) == before
        {
            // Otherwise each round of this call would wait as long.
            self.local.end_turn(owner, claim);
            asking = self.local.turn_at_once(owner, barrier);
        }
        Ok(asking)
    }

    /// Sends the acquisition and handles its answer. If others went ahead because nobody polled this call, its `Undo`
    /// has run, and the attempt starts over with a fresh acquisition id.
    ///
    /// If the future is dropped, so is this attempt, or the place that has its `Undo`. Either releases what the request
    /// may bring.
    pub(crate) async fn send(&mut self, mode: AcquireMode) -> Result<Attempted, Error> {
        self.was_passed = !self.regain();
        let attempted = match self.was_passed {
            true => Ok(Attempted::Yielded),
            false => self.try_once(mode).await,
        };
        if let Some(place) = self.place.filter(|_| self.was_passed) {
            // Its result was given back. With a fresh acquisition id, a late copy of that release finds nothing.
            let came = self.mark.map_or_else(BootInstant::now, |(_, came)| came);
            *self = Self::waiting(self.request, self.local, place, came);
            // After an error, the call does not begin again: its limit may have passed.
            return attempted.and(Ok(Attempted::Yielded));
        }
        // Between requests too, the server may have something of this call: a waiter mark, or the effect of an
        // unanswered request.
        self.lend(BootInstant::now());
        attempted
    }

    /// Sends one request and handles its answer.
    async fn try_once(&mut self, mode: AcquireMode) -> Result<Attempted, Error> {
        let answer = self.ask(mode).await?;
        // The `Undo` ran while the request was in flight, so a grant in this answer is no longer ours.
        match self.was_passed {
            true => Ok(Attempted::Yielded),
            false => self.answered(Acquired::decode(&answer.reply)?, answer.sent),
        }
    }

    /// Lends the `Undo` to the place. If nobody polls this call after `until`, the `Undo` runs and others go ahead.
    /// Keeps the `Undo` of a hold that its release cannot tell apart from others, since that may be released only while
    /// it is known to be ours.
    fn lend(&mut self, until: BootInstant) {
        if let Some(place) = self.place.filter(|_| self.hold.key().is_told_apart())
            && let Some(undo) = self.undo.take()
        {
            place.lend(undo, until);
            self.is_lent = true;
        }
    }

    /// Takes the `Undo` back. Returns `false` if it has run because others went ahead of this call.
    fn regain(&mut self) -> bool {
        if std::mem::take(&mut self.is_lent) {
            self.undo = self.place.and_then(|place| place.reclaim());
            return self.undo.is_some();
        }
        true
    }

    /// Attempts the acquisition on a server that votes only if it has forgotten no grant that is in force, given that
    /// no lease of this lock is longer than `longest`. For a member of a lock over several servers. It has no place in
    /// the queue of its own name, so no `Undo` is lent.
    pub(crate) async fn poll(
        &mut self,
        mode: AcquireMode,
        longest: LeaseTime,
    ) -> Result<Polling, Error> {
        let hold = self.hold.clone();
        let Terms {
            client, lease_mode, ..
        } = &**self.request;
        let acquire = hold.key().acquire(1, lease_mode.lease(), mode, None, 1);
        let policy = RestartPolicy {
            longest,
            durable: client.settings.durable,
            trusts_fresh: client.settings.trusts_fresh,
            epochs_end: client.backend.is_clustered(),
        };
        let epoch_key = self.request.epoch_key();
        let answer = self.run(&red::guarded(acquire, &epoch_key, policy)).await?;
        match Polled::decode(&answer.reply)? {
            Polled::Voted(acquired) => self.answered(acquired, answer.sent).map(Polling::Voted),
            Polled::Abstains(abstention) => {
                // The check ahead of the script ended it before it wrote anything of the lock.
                self.nothing_held();
                Ok(Polling::Abstains(abstention))
            }
        }
    }

    /// Handles the answer to a request sent at `sent`. A refusal disarms the `Undo`, unless it leaves something of this
    /// call on the server that only the release removes: a place in the server queue, or a waiter mark.
    fn answered(&mut self, acquired: Acquired, sent: BootInstant) -> Result<Attempted, Error> {
        self.standing = None;
        let refused = match acquired {
            Acquired::Granted {
                count,
                tokens,
                writer,
            } => {
                // Noted before the hold is entered in the local lock, since readers that join its record there look at
                // this.
                self.hold.record.saw(sent, BootInstant::now(), writer);
                return self.go_on(sent, count, tokens);
            }
            Acquired::Queued { anew, is_foreign } => {
                if anew && self.placed {
                    warn!("the place in the queue was lost; queued again, at the end");
                }
                self.placed = true;
                self.is_foreign = is_foreign;
                // From now on a release may move the lock to this hold at any time, so a refusal no longer disarms
                // the `Undo`.
                self.in_doubt = true;
                let client = &self.request.client;
                client.releaser.keep_place(&self.hold, &client.client_name);
                return Ok(Attempted::Busy(Ttl::Never));
            }
            Acquired::Waits { ttl, place } => {
                if let Some((mine, _)) = &mut self.mark {
                    *mine = place;
                }
                // With a mark, the `Undo` stays armed: the release that it owes removes the mark.
                if !place.marked {
                    self.nothing_held();
                }
                return Ok(Attempted::Busy(ttl));
            }
            Acquired::Busy(ttl) => Ok(Attempted::Busy(ttl)),
            Acquired::Stands { ttl, standing } => {
                self.standing = Some(standing);
                Ok(Attempted::Busy(ttl))
            }
            // The answer to an attempt that only joins: nobody holds the lock, so it can be requested at once.
            Acquired::Free => Ok(Attempted::Busy(Ttl::Ends(Duration::ZERO))),
            Acquired::Upgrade => Err(self.request.upgrade()),
            Acquired::Exhausted => Err(self.request.exhausted()),
            Acquired::Spent => Err(self.request.spent()),
            Acquired::WrongKind => Err(Error::wrong_kind(self.request.name.key())),
        };
        self.nothing_held();
        refused
    }

    /// Asks for the first level. [`reenter`](AcquireRequest::reenter) asks for further levels, under the acquisition id
    /// of the hold.
    async fn ask(&mut self, mode: AcquireMode) -> Result<Answer, Error> {
        let lease = self.request.lease_mode.lease();
        let hold = self.hold.clone();
        let mark = self
            .mark
            .map(|(it, came)| it.sent(came, BootInstant::now()));
        let call = hold.key().acquire(1, lease, mode, mark, self.tokens());
        self.run(&call).await
    }

    /// Returns how many fencing tokens to ask for: one for each call that the lock may be passed on to. A hold of a
    /// named owner is not passed on.
    fn tokens(&self) -> u32 {
        if !self.is_fenced() || self.request.owner.is_named() {
            return 1;
        }
        match self.follows {
            // The calls of this process follow each other, even if few stand in the local queue now.
            true => MOST_TOKENS,
            false => self.local.in_queue().clamp(1, MOST_TOKENS),
        }
    }

    /// Sends a request that may leave the hold on the server. The `Undo` is armed, then lent, then the request is sent.
    /// In any other order, there would be an instant at which a dropped or unpolled future leaves the hold without an
    /// owner.
    async fn run(&mut self, call: &Call<'_>) -> Result<Answer, Error> {
        self.begin();
        self.doubts = self.request.client.watchdog.doubts();
        // If nobody polls this call once the time of the request has passed, others go ahead of it and undo the
        // request.
        self.lend(BootInstant::now().plus(self.budget));
        let answered = self.request.client.run(call, self.budget).await;
        self.was_passed = !self.regain();
        match &answered {
            // The send that went unanswered may arrive after this answer.
            Ok(answer) => self.in_doubt |= answer.repeated,
            Err(error) => self.failed(error),
        }
        answered
    }

    /// Arms the `Undo` before a request that may leave the hold on the server, unless an earlier one has armed it.
    /// Returns the hold, for requests that do not go through this attempt.
    pub(crate) fn begin(&mut self) -> Arc<Hold> {
        let client = &self.request.client;
        self.undo
            .get_or_insert_with(|| client.releaser.undo(&self.hold, self.local));
        self.hold.clone()
    }

    /// Notes that the request failed. If it went unanswered, it may still run, and the `Undo` stays armed. If it was
    /// never sent or was refused, it has left nothing.
    pub(crate) fn failed(&mut self, error: &Error) {
        if error.is_unanswered() {
            self.in_doubt = true;
        } else {
            self.nothing_held();
        }
    }

    pub(crate) fn is_fenced(&self) -> bool {
        matches!(self.request.kind, Kind::Fenced(_))
    }

    /// Notes the answer that this hold is not on the server. Unless the hold is in doubt, the `Undo` is disarmed.
    pub(crate) fn nothing_held(&mut self) {
        if !self.in_doubt
            && let Some(undo) = self.undo.take()
        {
            undo.disarm();
        }
    }
}
