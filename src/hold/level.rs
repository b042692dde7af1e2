//! The levels of an owner's hold: re-entry, adoption and release. Also its lease and its token.
//!
//! A level is what one lock call takes and one unlock gives back. What the server records for a hold of this process is
//! its share, this client's part of the owner's hold count: usually the number of levels, but one for all holds that
//! share a record of readers. A request names the share to reach and not a step, so it can be sent twice.
//!
//! # Invariants
//!
//! 1. A level is counted here before the request for it is sent ([`LevelClaim`]). So a release never takes away a level
//!    that a request in flight has added.
//! 2. Requests that change the share of a hold that stands, or may cut its lease, are sent one at a time, under the
//!    turn of its record. The answer is handled before the turn is given up. A task of the client does all of that, so
//!    that an unpolled call keeps the turn from nobody.
//! 3. A cut of the lease that went unanswered is finished before another level or lease is asked for.
//! 4. Another process may take over a level of a named owner, which counts here until that is known. Once a hold has
//!    left a level or adopted one, each of these requests states how many levels are known to be taken over. If there
//!    are more, the server says so and does nothing. They are then taken off, and the request is sent again.

use std::sync::{Arc, Mutex, PoisonError};

use tokio::time::sleep;
use tracing::debug;

use super::attempt::{Attempt, Attempted};
use super::guard::LockGuard;
use super::lease::Lease;
use super::request::AcquireRequest;
use crate::clock::BootInstant;
use crate::error::{Error, ErrorKind};
use crate::loss::LossReason;
use crate::options::LeaseTime;
use crate::protocol::answer::{Adopted, Extended, Inspected, Reentered, Token};
use crate::protocol::lock::TransferSource;
use crate::protocol::script::Cut;
use crate::session::LocalLock;
use crate::session::hold::Hold;
use crate::session::place::UNPOLLED;
use crate::session::record::Turn;
use crate::session::unlock::LevelRelease;

impl AcquireRequest {
    /// Acquires one more level of a hold that stands. Returns `None` if the hold no longer stands: the caller acquires
    /// the lock like any other, unless it has a guard of that hold, which has lost its lease.
    ///
    /// Waits only for the turn of the record, not in a queue. If the future is dropped during the request, the claim
    /// gives the level back, and the release sets the share to what is left.
    pub(crate) async fn reenter(
        &self,
        local: &LocalLock,
        hold: &Arc<Hold>,
    ) -> Result<Option<LockGuard>, Error> {
        self.ensure_kind(hold)?;
        if !self.kind.is_reentrant() {
            return Err(self.not_reentrant());
        }
        let guard = loop {
            let (request, local, hold) = (self.clone(), local.clone(), hold.clone());
            let level = async move {
                let (client, of) = (request.client.clone(), hold.clone());
                let level = async move { request.reenter_in_turn(&local, &hold).await };
                client.in_task(&of, level).await
            };
            // If nobody polls the call, the level is given back, and the call begins again.
            if let Some(guard) = self.client.while_polled(level).await {
                break guard?;
            }
        };
        // The task may have been done before this call was polled.
        let guard = guard.filter(|guard| !guard.is_lost());
        guard.map(|guard| self.timely(guard)).transpose()
    }

    async fn reenter_in_turn(
        &self,
        local: &LocalLock,
        hold: &Arc<Hold>,
    ) -> Result<Option<LockGuard>, Error> {
        // Requests that change the hold count are sent one at a time.
        let Some((_turn, began)) = self.turn_of_live(hold).await? else {
            return Ok(None);
        };
        if !self.finish_cut(hold, began).await? {
            return self.gone(hold);
        }
        let Some(claim) = LevelClaim::new(self, local, hold) else {
            return Ok(None);
        };
        loop {
            let to = hold.target();
            let call = hold.key().reenter(to, self.lease_mode.lease());
            let answered = self.client.run(&call, hold.time_left(began)).await;
            let answer = match answered {
                Err(error) if error.is_unsent() => {
                    // The request was never sent. Any other error drops the claim, which releases what the request may
                    // have left on the server.
                    claim.withdraw();
                    return Err(error);
                }
                answered => answered?,
            };
            return match Reentered::decode(&answer.reply)? {
                Reentered::Granted { count } => {
                    hold.recorded(to.share);
                    debug!(count, "re-entered");
                    claim.keep(answer.sent)
                }
                Reentered::Absent => self.gone(hold),
                // Drops the claim. The server has counted nothing, so its release finds the right share.
                Reentered::Exhausted => Err(self.exhausted()),
                Reentered::Fewer { taken } => {
                    self.client.releaser.taken_over(hold, to, taken, &answer)?;
                    continue;
                }
            };
        }
    }

    /// Adopts one level that the owner holds, here or in another process. Returns `None` if the owner holds nothing.
    /// Meant for levels that were left without a guard, and for those of Redisson's clients.
    pub(crate) async fn adopt(&self) -> Result<Option<LockGuard>, Error> {
        self.client.ensure_open()?;
        let local = self.local();
        if let Some(guard) = self.adopt_own(&local).await? {
            return Ok(Some(guard));
        }
        // In other processes only a named owner has levels.
        if !self.owner.is_named() {
            return Ok(None);
        }
        let mut attempt = Attempt::new(self, &local);
        let _asking = attempt.turn().await?;
        // Another call of this owner may have brought a hold here while this one waited for its turn.
        if let Some(guard) = self.adopt_own(&local).await? {
            return Ok(Some(guard));
        }
        match (attempt.adopt().await?, self.own(&local)) {
            (Some(Attempted::Granted(guard)), _) => Ok(Some(guard)),
            (Some(_), Some(hold)) => self.reenter(&local, &hold).await,
            _ => Ok(None),
        }
    }

    /// Adopts a level for an owner if it has a hold in this process.
    async fn adopt_own(&self, local: &LocalLock) -> Result<Option<LockGuard>, Error> {
        while let Some(hold) = local.live(&self.owner) {
            self.ensure_kind(&hold)?;
            let (request, here, adopted) = (self.clone(), local.clone(), hold.clone());
            let adopted = async move { request.adopt_here(&here, &adopted).await };
            match self.client.in_task(&hold, adopted).await? {
                Some(AdoptedHere::Moved(untaken)) => {
                    // The task may have been done long before this call was polled. If the level was left to its owner
                    // meanwhile, the call begins again and finds it here.
                    if let Some(guard) = taken(&untaken) {
                        return self.timely(guard).map(Some);
                    }
                }
                // The task does not add this guard. If nobody takes its result, a level that was here before stays as
                // it was.
                Some(AdoptedHere::Stands(sent)) => return self.guard(&hold, sent),
                // Its levels may be in another process by now.
                None => return Ok(None),
            }
        }
        Ok(None)
    }

    /// Keeps the guard of a level that was moved here until its call takes it. If nobody polls the call for some
    /// seconds, the level is left to its owner: nobody renews it for the call, and another call may adopt it.
    fn moved(&self, guard: LockGuard) -> AdoptedHere {
        let untaken = Arc::new(Mutex::new(Some(guard)));
        // Weak, so that a dropped call releases the level.
        let watched = Arc::downgrade(&untaken);
        self.client.spawn(async move {
            sleep(UNPOLLED * 2).await;
            let guard = watched.upgrade().and_then(|untaken| taken(&untaken));
            drop(guard.map(LockGuard::leave));
        });
        AdoptedHere::Moved(untaken)
    }

    /// Adopts a level for an owner that has a hold in this process. Takes the first of these that exists:
    ///
    /// 1. a level of that hold without a guard;
    /// 2. a level that is recorded elsewhere, which is moved to this hold: only a named owner can have one;
    /// 3. a level that is guarded already, which gets a second guard, and ends with the first of them to be released.
    ///
    /// In each case, a request raises the lease and shows that the hold stands.
    async fn adopt_here(
        &self,
        local: &LocalLock,
        hold: &Arc<Hold>,
    ) -> Result<Option<AdoptedHere>, Error> {
        let Some((_turn, began)) = self.turn_of_live(hold).await? else {
            return Ok(None);
        };
        if !self.finish_cut(hold, began).await? {
            return self.gone(hold);
        }
        hold.lock().schedule.asks_for(self.lease_mode.lease());
        // Where levels are adopted, another process may have adopted some of this hold.
        hold.compare();
        loop {
            // In other processes only a named owner has levels. Any other levels under the owner's field are of readers
            // that share the record.
            let source = match hold.has_spare_level() || !hold.may_be_elsewhere() {
                true => None,
                false => self.source(hold, began).await?,
            };
            let claim = source
                .as_ref()
                .and_then(|_| LevelClaim::new(self, local, hold));
            // Without a source, the call only finds out whether the server has this share, and sets the lease.
            let (adopted, sent) = self.adopt_from(source.as_ref(), hold, began).await?;
            return match (adopted, claim) {
                (Adopted::Moved, Some(claim)) => Ok(claim.keep(sent)?.map(|it| self.moved(it))),
                // Nothing was moved: the server has the share, and the lease is at least the one asked for.
                (Adopted::Moved, None) => Ok(Some(AdoptedHere::Stands(sent))),
                // Another client was faster, so read again. The dropped claim gives its level back.
                (Adopted::Changed, Some(_)) => continue,
                // The level without a guard is elsewhere.
                (Adopted::Fewer { .. }, _) if hold.levels() > 0 => continue,
                (Adopted::Fewer { .. }, _) => Ok(None),
                (Adopted::Absent | Adopted::Changed, _) => self.gone(hold),
                (Adopted::WrongKind, _) => Err(Error::wrong_kind(self.name.key())),
            };
        }
    }

    /// Sends the request of [`adopt_here`](Self::adopt_here). Repeats it if other processes have taken levels over,
    /// since what it moved may be here by then. Without a source it returns that answer, since a level without a guard
    /// may be among those. Returns the answer, and when the request was sent.
    async fn adopt_from(
        &self,
        source: Option<&TransferSource>,
        hold: &Arc<Hold>,
        began: BootInstant,
    ) -> Result<(Adopted, BootInstant), Error> {
        loop {
            let to = hold.target();
            let call = hold.key().adopt(to, Some(self.lease_mode.lease()), source);
            let answer = self.client.run(&call, hold.time_left(began)).await?;
            let adopted = Adopted::decode(&answer.reply)?;
            match adopted {
                Adopted::Moved => hold.recorded(to.share),
                Adopted::Fewer { taken } => {
                    self.client.releaser.taken_over(hold, to, taken, &answer)?;
                    if source.is_some() {
                        continue;
                    }
                }
                Adopted::Changed | Adopted::Absent | Adopted::WrongKind => {}
            }
            return Ok((adopted, answer.sent));
        }
    }

    /// Waits for the turn of a hold's record, for less than the time of one request. Also returns since when that time
    /// runs, so that a silent server does not cost several timeouts.
    pub(super) async fn turn(&self, hold: &Hold) -> Result<(Turn, BootInstant), Error> {
        let answers = || self.client.backend.answers(self.name.key());
        let turn = hold.record.turn_since(hold.longest_turn(), answers);
        self.client.unless_closed(turn).await?
    }

    /// Does the same for a hold to which a level is to be added. Returns `None` once it has ended: the release that
    /// ended it keeps the turn until its answer, and maybe nobody polls its call.
    async fn turn_of_live(&self, hold: &Hold) -> Result<Option<(Turn, BootInstant)>, Error> {
        tokio::select! {
            biased;
            turn = self.turn(hold) => turn.map(Some),
            _ = hold.ended() => Ok(None),
        }
    }

    /// Ends a hold that the server no longer has. Returns `None`, for its caller.
    fn gone<T>(&self, hold: &Arc<Hold>) -> Result<Option<T>, Error> {
        drop(self.client.watchdog.lose(hold, LossReason::Gone));
        Ok(None)
    }

    /// Gives a hold a new lease; the caller has its turn, whose time runs since `began`. Returns `false` if the hold is
    /// gone.
    ///
    /// To cut a lease takes two requests. The first, with [`Cut::Ask`], learns when the lease ends; the second, with
    /// [`Cut::Ending`], names that end. A late copy of it, after the lease was raised, cuts nothing. If the future is
    /// dropped during the second, the cut stays in doubt until [`finish_cut`](Self::finish_cut) repeats it.
    pub(crate) async fn set_lease(
        &self,
        hold: &Arc<Hold>,
        lease: LeaseTime,
        mut cut: Cut,
        began: BootInstant,
    ) -> Result<bool, Error> {
        loop {
            // The shorter lease counts from before the request is sent, since the server may carry it out without an
            // answer.
            if let Cut::Ending(ends) = cut {
                hold.lock().schedule.cuts(BootInstant::now(), lease, ends);
                // Those that wait for its loss are told at the new deadline, whatever becomes of this call.
                if hold.is_guarded() {
                    self.client.watchdog.watch(hold);
                }
            }
            let call = hold.key().extend(lease, cut);
            let answer = self.client.run(&call, hold.time_left(began)).await?;
            let extended = Extended::decode(&answer.reply)?;
            let mut state = hold.lock();
            match extended {
                Extended::Set => {
                    state.schedule.set(answer.sent, BootInstant::now(), lease);
                    return Ok(true);
                }
                Extended::Longer { ends } => {
                    // A cut names the end of the lease that it means. This one named a different end, so a late copy
                    // cuts nothing. The next one names the end that the server reported.
                    state.schedule.cut_is_over(BootInstant::now());
                    cut = Cut::Ending(ends);
                }
                Extended::Absent => return Ok(false),
            }
        }
    }

    /// Finishes an unanswered cut of the lease before any other request, which a late cut could undo. Returns `false`
    /// if the hold is gone.
    pub(crate) async fn finish_cut(
        &self,
        hold: &Arc<Hold>,
        began: BootInstant,
    ) -> Result<bool, Error> {
        let in_doubt = hold.lock().schedule.cut_in_doubt();
        match in_doubt {
            Some((lease, ends)) => self.set_lease(hold, lease, Cut::Ending(ends), began).await,
            None => Ok(true),
        }
    }

    /// Returns where a level of this hold's owner could be taken over from, according to the server. The move compares
    /// what was read, so if two processes read the same, only one gets the level.
    pub(crate) async fn source(
        &self,
        hold: &Hold,
        began: BootInstant,
    ) -> Result<Option<TransferSource>, Error> {
        let budget = hold.time_left(began);
        let answer = self.client.run(&hold.key().inspect(), budget).await?;
        match Inspected::decode(&answer.reply)? {
            Inspected::Held { fields, levels, .. } => hold.key().source(&fields, &levels),
            Inspected::Free => Ok(None),
            Inspected::WrongKind => Err(Error::wrong_kind(self.name.key())),
        }
    }

    /// Returns the token of a hold that stands, or `None` if its kind has no tokens. For a level that is about to be
    /// moved here from this source, since the moving script returns no token.
    pub(crate) async fn token(
        &self,
        hold: &Hold,
        source: &TransferSource,
    ) -> Result<Option<u64>, Error> {
        let Some(call) = hold.key().token(source.is_recorded()) else {
            return Ok(None);
        };
        let answer = self.client.run(&call, hold.timeout).await?;
        match Token::decode(&answer.reply)? {
            Token::Stands(token) => Ok(Some(token)),
            Token::Absent => Err(Error::wrong_kind(self.name.key())),
        }
    }

    /// Releases one level of this owner, wherever it is recorded. Needs no guard: levels and guards are counted
    /// separately. Guards that remain when the last level goes learn that the hold has ended.
    pub(crate) async fn unlock(&self) -> Result<(), Error> {
        self.client.ensure_open()?;
        let local = self.local();
        // Levels of this process come first, since no request is needed to find them.
        if let Some(released) = self.unlock_own(&local).await {
            return released;
        }
        if !self.owner.is_named() {
            return Err(self.not_held());
        }
        let mut attempt = Attempt::new(self, &local);
        let _asking = attempt.turn().await?;
        // As in `adopt`.
        if let Some(released) = self.unlock_own(&local).await {
            return released;
        }
        attempt.take_over_and_release().await
    }

    /// Releases one level of this owner's hold in this process. Returns `None` if there is no such hold, or if another
    /// process has taken its level over.
    async fn unlock_own(&self, local: &LocalLock) -> Option<Result<(), Error>> {
        let hold = local.live(&self.owner)?;
        // Another process may have taken over a level without a guard.
        let may_be_elsewhere = hold.may_be_elsewhere() && hold.has_spare_level();
        let released = match self.client.release_level(local, &hold, None) {
            Some(given_back) => self.client.finish_release(given_back, &self.name).await,
            None => Err(self.not_held()),
        };
        let is_gone = |error: &Error| error.kind() == ErrorKind::LeaseLost;
        let is_elsewhere = may_be_elsewhere && released.as_ref().is_err_and(is_gone);
        (!is_elsewhere).then_some(released)
    }

    /// Adds a guard to a hold whose lease was confirmed by a request sent at `sent`, for a level that is counted
    /// already. Returns `None` if the hold has ended.
    fn guard(&self, hold: &Arc<Hold>, sent: BootInstant) -> Result<Option<LockGuard>, Error> {
        if !hold.guard_level(sent, self.lease_mode) {
            return Ok(None);
        }
        self.client.watchdog.watch(hold);
        // From here on, the guard owns the level, and the early return drops it.
        let guard = LockGuard::new(Lease::new(self.clone(), hold.clone()));
        self.timely(guard).map(Some)
    }
}

/// A level that an owner adopts through a hold of this process.
enum AdoptedHere {
    /// It was moved here. `None` once it was left to its owner.
    Moved(Arc<Mutex<Option<LockGuard>>>),
    /// It was here before, as a request sent at this instant has confirmed.
    Stands(BootInstant),
}

/// Takes the guard of a level that was moved here, if it is still there.
fn taken(untaken: &Mutex<Option<LockGuard>>) -> Option<LockGuard> {
    let mut untaken = untaken.lock().unwrap_or_else(PoisonError::into_inner);
    untaken.take()
}

/// A level that is being requested for a hold. Dropping it before the grant gives the level back.
///
/// It is made before the request is sent, and ends in one of three ways: by [`keep`](Self::keep), if the level was
/// granted; by [`withdraw`](Self::withdraw), if the request was never sent; and by its drop in any other case,
/// including a dropped future. The server may then have counted the level, so a release sets the share to what is left.
struct LevelClaim<'a> {
    request: &'a AcquireRequest,
    local: &'a LocalLock,
    hold: &'a Arc<Hold>,
    /// Whether this claim no longer has to give the level back.
    kept: bool,
}

impl<'a> LevelClaim<'a> {
    /// Counts a level more, before the request for it is sent. Returns `None` if the hold has ended.
    fn new(request: &'a AcquireRequest, local: &'a LocalLock, hold: &'a Arc<Hold>) -> Option<Self> {
        if !hold.claim_level() {
            return None;
        }
        hold.lock().schedule.asks_for(request.lease_mode.lease());
        Some(Self {
            request,
            local,
            hold,
            kept: false,
        })
    }

    /// Guards the level, which was granted by a request sent at `sent`.
    fn keep(mut self, sent: BootInstant) -> Result<Option<LockGuard>, Error> {
        self.kept = true;
        self.request.guard(self.hold, sent)
    }

    /// Takes back a claim whose request was never sent: as long as there are other levels, nothing has to be released
    /// on the server.
    fn withdraw(mut self) {
        self.kept = true;
        if let Some(LevelRelease::Undo(undo)) = self.give_back()
            && self.hold.levels() > 0
        {
            undo.disarm();
        }
    }

    /// Takes the level off the hold, without a guard.
    fn give_back(&self) -> Option<LevelRelease> {
        let client = &self.request.client;
        client.release_level(self.local, self.hold, None)
    }
}

impl Drop for LevelClaim<'_> {
    fn drop(&mut self) {
        if !self.kept {
            drop(self.give_back());
        }
    }
}
