//! One acquisition that has no hold yet: asks the server, and has undone what may have come of it.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout;
use tracing::{debug, warn};

use super::guard::LockGuard;
use super::request::{AcquireRequest, Terms};
use crate::clock::BootInstant;
use crate::error::{Error, ErrorKind};
use crate::options::{LeaseTime, SHORTEST_TIMEOUT};
use crate::protocol::answer::{self, Acquired, Adopted, Standing, Tokens, Ttl};
use crate::protocol::fair;
use crate::protocol::hold_key::{HoldKey, Kind};
use crate::protocol::lock::AcquireMode;
use crate::protocol::read_write::WAITER_MARK_TTL;
use crate::protocol::red::{self, Abstention, Polled, RestartPolicy};
use crate::protocol::script::Call;
use crate::session::LocalLock;
use crate::session::backend::Answer;
use crate::session::give_back::{Asking, GivenBack, LeftHere, Place, Share};
use crate::session::grants::{Expected, Told};
use crate::session::hold::{self, Hold, Loss};
use crate::session::left::Handoff;
use crate::session::outgoing::Barrier;
use crate::session::undo::Undo;

/// The most tokens that one request reserves.
const MOST_TOKENS: u32 = 64;

/// The answer to an attempt.
pub(crate) enum Attempted {
    Granted(LockGuard),
    Busy(Ttl),
    /// The lock was left to others.
    Yielded,
}

/// The answer of one of several servers to an attempt.
pub(crate) enum Polling {
    Voted(Attempted),
    Abstains(Abstention),
}

/// One acquisition that has no hold yet, with the same acquisition id in all its tries.
pub(crate) struct Attempt<'a> {
    request: &'a AcquireRequest,
    local: &'a LocalLock,
    hold: Arc<Hold>,
    /// How long the next request may take.
    budget: Duration,
    /// There from before the first send until an answer shows that the server has nothing of this hold.
    undo: Option<Undo<Share>>,
    /// A try went unanswered, and may be carried out later than one that was answered; or the hold stands in a queue,
    /// and may be granted at any time.
    in_doubt: bool,
    /// The hold has had a place in a queue.
    placed: bool,
    /// A release by Redisson's may be the one that the place waits for.
    is_foreign: bool,
    /// Where a grant by a release of this process is told, of a hold that stands in a queue.
    expected: Option<Expected>,
    /// Of a call at the front of its line: what is to be undone lies there.
    place: Option<&'a Place<'a>>,
    is_lent: bool,
    /// Others went before it meanwhile, since nobody polled it.
    was_passed: bool,
    /// Of a call that waits for a read-write lock, which came at this moment.
    mark: Option<(answer::WaiterMark, BootInstant)>,
    /// Where its process stands among those that wait for their turn, if the last answer was that the lock is busy.
    pub(crate) standing: Option<Standing>,
    /// The lock was given back for it here, and could not be passed on.
    follows: bool,
}

impl<'a> Attempt<'a> {
    pub(crate) fn new(request: &'a AcquireRequest, local: &'a LocalLock) -> Self {
        Self::numbered(request, local, hold::fresh_acquisition_id())
    }

    /// The same by this acquisition id, which holds of several locks may have.
    pub(crate) fn numbered(request: &'a AcquireRequest, local: &'a LocalLock, number: u64) -> Self {
        let client = &request.client.client_id;
        let key = HoldKey::new(
            request.name.clone(),
            request.kind.clone(),
            client,
            &request.owner,
            number,
        );
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
        }
    }

    /// The same for a call at the front that `came` then, waits while the lock is busy, and lets others know if its kind does.
    pub(crate) fn waiting(
        request: &'a AcquireRequest,
        local: &'a LocalLock,
        place: &'a Place<'a>,
        came: BootInstant,
    ) -> Self {
        let unknown = answer::WaiterMark {
            came: 0,
            marked: false,
        };
        Self {
            place: Some(place),
            mark: request.kind.sides().map(|_| (unknown, came)),
            ..Self::new(request, local)
        }
    }

    /// After how long to ask again, so that others do not forget that this call waits.
    pub(crate) fn reminder(&self) -> Option<Duration> {
        let (mark, _) = self.mark?;
        // A writer, one a process, also takes over the mark of one that came before it and has gone.
        (mark.marked || !self.request.kind.is_shared()).then_some(WAITER_MARK_TTL / 3)
    }

    /// Waits for the turn to ask, if it comes within the time of a request, which has so much less time then: a
    /// silent server does not add up to several.
    pub(crate) async fn turn(&mut self) -> Result<Option<Asking<'a>>, Error> {
        let is_wanted_elsewhere = || {
            let now = BootInstant::now();
            self.local.turns(|turns| turns.is_wanted_elsewhere(now))
        };
        let barrier = match self.request.kind {
            Kind::Read(_) => Barrier::Own,
            // Writers that wait elsewhere are let go first, if the answer tells of them.
            Kind::Write(_) if is_wanted_elsewhere() => Barrier::Answered,
            _ => Barrier::Sent,
        };
        self.request
            .client
            .reaper
            .ensure_credit(&self.request.name)?;
        let owner = &self.request.owner;
        if let Some(asking) = self.local.turn_at_once(owner, barrier) {
            self.budget = self.hold.timeout;
            return Ok(Some(asking));
        }
        let started = BootInstant::now();
        let turn = timeout(self.hold.timeout, self.local.turn(owner, barrier));
        let asking = self
            .request
            .client
            .unless_closed(turn)
            .await?
            .ok()
            .flatten();
        let spent = started.until(BootInstant::now());
        self.budget = self
            .hold
            .timeout
            .saturating_sub(spent)
            .max(SHORTEST_TIMEOUT);
        Ok(asking)
    }

    pub(crate) async fn send(&mut self, mode: AcquireMode) -> Result<Attempted, Error> {
        self.was_passed = !self.regain();
        let attempted = match self.was_passed {
            true => Ok(Attempted::Yielded),
            false => self.ask_and_settle(mode).await,
        };
        if let Some(place) = self.place.filter(|_| self.was_passed) {
            // What came of it was given back, and a copy of that must find nothing.
            let came = self.mark.map_or_else(BootInstant::now, |(_, came)| came);
            *self = Self::waiting(self.request, self.local, place, came);
            return Ok(Attempted::Yielded);
        }
        // A mark, or what a request may do that went unanswered.
        self.lend(BootInstant::now());
        attempted
    }

    async fn ask_and_settle(&mut self, mode: AcquireMode) -> Result<Attempted, Error> {
        let answer = self.ask(mode).await?;
        match self.was_passed {
            true => Ok(Attempted::Yielded),
            false => self.settle(Acquired::decode(&answer.reply)?, answer.sent),
        }
    }

    /// Leaves what is to be undone at the front: it is done if nobody polls this call later, and others go before it. Not of a
    /// hold that its release does not tell from others, which is undone only while it is known to be ours.
    fn lend(&mut self, until: BootInstant) {
        if let Some(place) = self.place.filter(|_| self.hold.key().is_told_apart())
            && let Some(undo) = self.undo.take()
        {
            place.lend(undo, until);
            self.is_lent = true;
        }
    }

    /// Takes it back. False if it was done: others went before this call.
    fn regain(&mut self) -> bool {
        if std::mem::take(&mut self.is_lent) {
            self.undo = self.place.and_then(|place| place.reclaim());
            return self.undo.is_some();
        }
        true
    }

    /// One attempt at a server that votes only if it has forgotten nothing that is in force.
    pub(crate) async fn poll(&mut self, mode: AcquireMode) -> Result<Polling, Error> {
        let hold = self.hold.clone();
        let Terms {
            client, lease_mode, ..
        } = &**self.request;
        let acquire = hold.key().acquire(1, lease_mode.lease(), mode, None, 1);
        let policy = RestartPolicy {
            longest: LeaseTime::new(client.settings.max_lease)?,
            durable: client.settings.durable,
            trusts_fresh: client.settings.trusts_fresh,
            epochs_end: client.backend.is_clustered(),
        };
        let epoch_key = self.request.epoch_key();
        let answer = self.run(&red::guarded(acquire, &epoch_key, policy)).await?;
        match Polled::decode(&answer.reply)? {
            Polled::Voted(acquired) => self.settle(acquired, answer.sent).map(Polling::Voted),
            Polled::Abstains(abstention) => {
                self.nothing_held();
                Ok(Polling::Abstains(abstention))
            }
        }
    }

    /// Goes on with what the server has answered to a request sent at `sent`.
    fn settle(&mut self, acquired: Acquired, sent: BootInstant) -> Result<Attempted, Error> {
        self.standing = None;
        match acquired {
            Acquired::Granted {
                count,
                tokens,
                writer,
            } => {
                self.hold.record.saw(sent, BootInstant::now(), writer);
                self.go_on(sent, count, tokens)
            }
            Acquired::Busy(ttl) => {
                self.nothing_held();
                Ok(Attempted::Busy(ttl))
            }
            Acquired::Stands { ttl, standing } => {
                self.nothing_held();
                self.standing = Some(standing);
                Ok(Attempted::Busy(ttl))
            }
            Acquired::Queued { anew, is_foreign } => {
                if anew && self.placed {
                    warn!("the place in the queue was lost; queued again, at the end");
                }
                self.placed = true;
                self.is_foreign = is_foreign;
                self.in_doubt = true;
                let client = &self.request.client;
                client.releaser.keep_place(&self.hold, &client.client_id);
                Ok(Attempted::Busy(Ttl::Never))
            }
            Acquired::Waits { ttl, place } => {
                if let Some((mine, _)) = &mut self.mark {
                    *mine = place;
                }
                // The release that is owed takes the mark away.
                if !place.marked {
                    self.nothing_held();
                }
                Ok(Attempted::Busy(ttl))
            }
            Acquired::Upgrade => {
                self.nothing_held();
                Err(self.request.upgrade())
            }
            Acquired::Free => {
                self.nothing_held();
                Ok(Attempted::Busy(Ttl::Ends(Duration::ZERO)))
            }
            Acquired::Exhausted => {
                self.nothing_held();
                Err(self.request.exhausted())
            }
            Acquired::Spent => {
                self.nothing_held();
                Err(self.request.spent())
            }
            Acquired::WrongKind => {
                self.nothing_held();
                Err(Error::wrong_kind(self.request.name.key()))
            }
        }
    }

    /// Before it stands in a queue: from now on a release of this process may grant the hold.
    pub(crate) fn expect_grant(&mut self) {
        self.expected = Some(self.request.client.releaser.grants.expect(&self.hold));
    }

    /// The hold was granted, nobody went on with it, and it is being released: it must not be asked for again.
    pub(crate) fn is_given_up(&self) -> bool {
        let expected = self.expected.as_ref();
        expected.is_some_and(|expected| !expected.stands())
    }

    /// Of a hold that stands in a queue, waits until the lock is moved here; or until it is to be asked for, which is none.
    pub(crate) async fn told(&mut self) -> Result<Option<Attempted>, Error> {
        let Some(expected) = &self.expected else {
            return std::future::pending().await;
        };
        match expected.told().await {
            Told::Granted(sent) => self.go_on(sent, 1, None).map(Some),
            Told::Ask => Ok(None),
        }
    }

    /// Where Redisson's clients tell the owner that it is first in the queue, and the lock is free; if they may.
    pub(crate) fn channel(&self) -> Option<Arc<str>> {
        self.is_foreign.then(|| fair::channel(self.hold.key()))
    }

    /// The server has granted the hold, by a request sent at `sent`, unless it was given up here meanwhile.
    fn go_on(
        &mut self,
        sent: BootInstant,
        count: u64,
        tokens: Option<Tokens>,
    ) -> Result<Attempted, Error> {
        if self
            .expected
            .take()
            .is_some_and(|expected| !expected.claim())
        {
            return Ok(Attempted::Yielded);
        }
        debug!(count, "granted");
        self.commit(sent, tokens).map(Attempted::Granted)
    }

    /// Takes over the record of a hold of this process that was given back, if one was left. `None` if the lock is to be
    /// asked for: what was left is released then, ahead of that.
    pub(crate) fn take_handoff(&mut self) -> Option<Result<Attempted, Error>> {
        let Terms {
            client,
            kind,
            owner,
            ..
        } = &**self.request;
        let pass = |handoff: &LeftHere| {
            let old = &handoff.hold;
            let is_fit = *kind == old.key().kind && !owner.is_named();
            let came = self.mark.map_or_else(BootInstant::now, |(_, came)| came);
            is_fit.then(|| old.pass_to(&self.request.successor(came)))?
        };
        let (Handoff { undo, .. }, passed) = self.local.take_over(pass)?;
        self.follows = true;
        let hold = passed?;
        let guard = self.request.hand_out(self.local, &hold);
        // From here on whoever closes the client waits for what the guard owes.
        undo.disarm();
        // Behind that: what the server says is meant for this hold.
        client.watchdog.confirm(&hold);
        match guard {
            // Its lease was too short after all, or the server has just said that it is gone.
            Err(error) if error.kind() == ErrorKind::LeaseLost => None,
            guard => Some(guard.map(Attempted::Granted)),
        }
    }

    pub(crate) async fn adopt(mut self) -> Result<Option<LockGuard>, Error> {
        match self
            .take_over(Some(self.request.lease_mode.lease()))
            .await?
        {
            Some(sent) => {
                let token = self.request.token(&self.hold).await?;
                self.commit(sent, token.map(|token| Tokens::new(token, 1)))
                    .map(Some)
            }
            None => Ok(None),
        }
    }

    pub(crate) async fn take_over_and_release(mut self) -> Result<(), Error> {
        match (self.take_over(None).await?, self.undo.take()) {
            (Some(sent), Some(undo)) => {
                self.hold.taken_over_to_release(sent);
                self.request
                    .client
                    .released(GivenBack::Undo(undo), &self.request.name)
                    .await
            }
            _ => Err(self.request.not_held()),
        }
    }

    /// Moves one level of the owner here. When the request was sent, or none if there was nothing to move.
    async fn take_over(&mut self, lease: Option<LeaseTime>) -> Result<Option<BootInstant>, Error> {
        loop {
            let Some(source) = self.request.source(&self.hold).await? else {
                return Ok(None);
            };
            let hold = self.hold.clone();
            let call = hold.key().adopt(1, lease, Some(&source));
            let answer = self.run(&call).await?;
            match Adopted::decode(&answer.reply)? {
                Adopted::Moved => return Ok(Some(answer.sent)),
                // Somebody was faster; what is there now?
                Adopted::Changed => self.nothing_held(),
                Adopted::Absent => {
                    self.nothing_held();
                    return Ok(None);
                }
                Adopted::WrongKind => {
                    self.nothing_held();
                    return Err(Error::wrong_kind(self.request.name.key()));
                }
            }
        }
    }

    async fn ask(&mut self, mode: AcquireMode) -> Result<Answer, Error> {
        let lease = self.request.lease_mode.lease();
        let hold = self.hold.clone();
        let mark = self
            .mark
            .map(|(it, came)| it.sent(came, BootInstant::now()));
        let call = hold.key().acquire(1, lease, mode, mark, self.tokens());
        self.run(&call).await
    }

    /// How many tokens to ask for: one for each call that the lock may be passed on to.
    fn tokens(&self) -> u32 {
        if !self.is_fenced() || self.request.owner.is_named() {
            return 1;
        }
        match self.follows {
            // The calls of this process take turns, however few stand in line just now.
            true => MOST_TOKENS,
            false => self.local.in_queue().clamp(1, MOST_TOKENS),
        }
    }

    async fn run(&mut self, call: &Call<'_>) -> Result<Answer, Error> {
        self.begin();
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

    /// Before a request that may leave the hold on the server is sent.
    pub(crate) fn begin(&mut self) -> Arc<Hold> {
        let client = &self.request.client;
        self.undo
            .get_or_insert_with(|| client.releaser.undo(&self.hold, self.local));
        self.hold.clone()
    }

    /// That request brought no answer.
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

    /// The server has answered that this hold is not there.
    pub(crate) fn nothing_held(&mut self) {
        if !self.in_doubt
            && let Some(undo) = self.undo.take()
        {
            undo.disarm();
        }
    }

    /// The server has granted the hold, by a request sent at `sent`.
    pub(crate) fn commit(
        &mut self,
        sent: BootInstant,
        tokens: Option<Tokens>,
    ) -> Result<LockGuard, Error> {
        let Terms {
            client, lease_mode, ..
        } = &**self.request;
        if tokens.is_none() && self.is_fenced() {
            let name = self.request.name.key();
            return Err(Error::new(
                ErrorKind::Protocol,
                format!("the server granted {name:?} without a token"),
            ));
        }
        self.hold
            .granted(sent, *lease_mode, client.settings.max_hold, tokens);
        for displaced in self.local.install(&self.hold) {
            if displaced.is_live() {
                // Somebody freed the lock by force, and the answers of both may have come in the wrong order.
                self.hold.lock().schedule.check(BootInstant::now());
            }
            drop(client.watchdog.lose(&displaced, Loss::Displaced));
        }
        let guard = self.request.hand_out(self.local, &self.hold);
        // Not before a guard that goes at once owes the same: who closes the client waits while something is owed.
        if let Some(undo) = self.undo.take() {
            undo.disarm();
        }
        guard
    }
}
