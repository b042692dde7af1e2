//! The levels of an owner's hold: taken once more, taken over, given back.

use std::sync::Arc;

use tracing::debug;

use super::attempt::Attempt;
use super::guard::LockGuard;
use super::lease::Lease;
use super::request::AcquireRequest;
use crate::clock::BootInstant;
use crate::error::Error;
use crate::options::LeaseTime;
use crate::protocol::answer::{Adopted, Extended, Inspected, Reentered, Token};
use crate::protocol::lock::TransferSource;
use crate::protocol::script::Cut;
use crate::session::LocalLock;
use crate::session::give_back::GivenBack;
use crate::session::hold::{Hold, Loss};

impl AcquireRequest {
    /// Takes the lock once more for a hold that stands. None if it does not stand any more.
    pub(crate) async fn reenter(
        &self,
        local: &LocalLock,
        hold: &Arc<Hold>,
    ) -> Result<Option<LockGuard>, Error> {
        self.ensure_kind(hold)?;
        if !self.kind.is_reentrant() {
            return Err(self.not_reentrant());
        }
        let _turn = self.client.unless_closed(hold.record.turn.lock()).await?;
        if !self.finish_cut(hold).await? {
            drop(self.client.watchdog.lose(hold, Loss::Gone));
            return Ok(None);
        }
        let Some(claim) = Claim::new(self, local, hold) else {
            return Ok(None);
        };
        let call = hold.key().reenter(claim.share, self.lease_mode.lease());
        let answered = self.client.run(&call, hold.timeout).await;
        let answer = match answered {
            Err(error) if error.is_unsent() => {
                claim.withdraw();
                return Err(error);
            }
            answered => answered?,
        };
        match Reentered::decode(&answer.reply)? {
            Reentered::Granted { count } => {
                debug!(count, "re-entered");
                claim.keep(answer.sent)
            }
            Reentered::Absent => {
                drop(self.client.watchdog.lose(hold, Loss::Gone));
                Ok(None)
            }
            Reentered::Exhausted => Err(self.exhausted()),
        }
    }

    /// Takes over one level that the owner holds. None if it holds nothing.
    pub(crate) async fn adopt(&self) -> Result<Option<LockGuard>, Error> {
        self.client.ensure_open()?;
        let local = self.local();
        if let Some(hold) = local.live(&self.owner) {
            return self.adopt_here(&local, &hold).await;
        }
        if !self.owner.is_named() {
            return Ok(None);
        }
        Attempt::new(self, &local).adopt().await
    }

    /// Takes over a level of a hold of this process that nobody guards; else moves one in from another process;
    /// else guards what is guarded already.
    async fn adopt_here(
        &self,
        local: &LocalLock,
        hold: &Arc<Hold>,
    ) -> Result<Option<LockGuard>, Error> {
        self.ensure_kind(hold)?;
        let _turn = self.client.unless_closed(hold.record.turn.lock()).await?;
        if !self.finish_cut(hold).await? {
            drop(self.client.watchdog.lose(hold, Loss::Gone));
            return Ok(None);
        }
        let lease = self.lease_mode.lease();
        hold.lock().schedule.asks_for(lease);
        loop {
            // Elsewhere only an owner with a name has levels. What else stands under the owner's field others read by.
            let may_be_elsewhere = self.owner.is_named() && self.kind.is_reentrant();
            let source = match hold.has_spare_level() || !may_be_elsewhere {
                true => None,
                false => self.source(hold).await?,
            };
            let claim = match &source {
                Some(_) => Claim::new(self, local, hold),
                None => None,
            };
            let share = claim
                .as_ref()
                .map_or_else(|| hold.share(), |claim| claim.share);
            let call = hold.key().adopt(share, Some(lease), source.as_ref());
            let answer = self.client.run(&call, hold.timeout).await?;
            return match (Adopted::decode(&answer.reply)?, claim) {
                (Adopted::Moved, Some(claim)) => claim.keep(answer.sent),
                (Adopted::Moved, None) => self.guard(hold, answer.sent),
                (Adopted::Changed, Some(_)) => continue,
                (Adopted::Absent | Adopted::Changed, _) => {
                    drop(self.client.watchdog.lose(hold, Loss::Gone));
                    Ok(None)
                }
                (Adopted::WrongKind, _) => Err(Error::wrong_kind(self.name.key())),
            };
        }
    }

    /// Gives a hold a new lease, with its turn. False if the hold is gone.
    pub(crate) async fn set_lease(
        &self,
        hold: &Hold,
        lease: LeaseTime,
        mut cut: Cut,
    ) -> Result<bool, Error> {
        loop {
            if let Cut::Ending(ends) = cut {
                hold.lock().schedule.cuts(BootInstant::now(), lease, ends);
            }
            let call = hold.key().extend(lease, cut);
            let answer = self.client.run(&call, hold.timeout).await?;
            let extended = Extended::decode(&answer.reply)?;
            let mut state = hold.lock();
            match extended {
                Extended::Set => {
                    state.schedule.set(answer.sent, BootInstant::now(), lease);
                    return Ok(true);
                }
                Extended::Longer { ends } => {
                    state.schedule.cut_settled(BootInstant::now());
                    cut = Cut::Ending(ends);
                }
                Extended::Absent => return Ok(false),
            }
        }
    }

    /// Finishes a cut of the lease that went unanswered, before anything else is asked for: it could undo that if it
    /// came late. False if the hold is gone.
    pub(crate) async fn finish_cut(&self, hold: &Hold) -> Result<bool, Error> {
        let in_doubt = hold.lock().schedule.cut_in_doubt();
        match in_doubt {
            Some((lease, ends)) => self.set_lease(hold, lease, Cut::Ending(ends)).await,
            None => Ok(true),
        }
    }

    /// Where a level of the owner of this hold could be taken over from.
    pub(crate) async fn source(&self, hold: &Hold) -> Result<Option<TransferSource>, Error> {
        let answer = self.client.run(&hold.key().inspect(), hold.timeout).await?;
        match Inspected::decode(&answer.reply)? {
            Inspected::Held { fields, levels, .. } => hold.key().source(&fields, &levels),
            Inspected::Free => Ok(None),
            Inspected::WrongKind => Err(Error::wrong_kind(self.name.key())),
        }
    }

    /// The token of a hold that stands, of a fenced lock.
    pub(crate) async fn token(&self, hold: &Hold) -> Result<Option<u64>, Error> {
        let Some(call) = hold.key().token() else {
            return Ok(None);
        };
        let answer = self.client.run(&call, hold.timeout).await?;
        match Token::decode(&answer.reply)? {
            Token::Stands(token) => Ok(Some(token)),
            Token::Absent => Err(Error::wrong_kind(self.name.key())),
        }
    }

    /// Gives back one level of this owner, wherever it is recorded.
    pub(crate) async fn unlock(&self) -> Result<(), Error> {
        self.client.ensure_open()?;
        let local = self.local();
        if let Some(hold) = local.live(&self.owner) {
            return match self.client.give_back(&local, &hold, None) {
                Some(given_back) => self.client.released(given_back, &self.name).await,
                None => Err(self.not_held()),
            };
        }
        if !self.owner.is_named() {
            return Err(self.not_held());
        }
        Attempt::new(self, &local).take_over_and_release().await
    }

    /// Adds a guard to a hold whose lease was confirmed by a request sent at `sent`.
    fn guard(&self, hold: &Arc<Hold>, sent: BootInstant) -> Result<Option<LockGuard>, Error> {
        if !hold.guard_level(sent, self.lease_mode) {
            return Ok(None);
        }
        self.client.watchdog.watch(hold);
        let guard = LockGuard::new(Lease::new(self.clone(), hold.clone()));
        if guard.remaining() < self.min_validity {
            return Err(self.too_late());
        }
        Ok(Some(guard))
    }
}

/// A level of a hold that is being asked for. Dropped before it is granted, it is given back.
struct Claim<'a> {
    request: &'a AcquireRequest,
    local: &'a LocalLock,
    hold: &'a Arc<Hold>,
    share: u32,
    kept: bool,
}

impl<'a> Claim<'a> {
    /// None if the hold has ended.
    fn new(request: &'a AcquireRequest, local: &'a LocalLock, hold: &'a Arc<Hold>) -> Option<Self> {
        let share = hold.claim_level()?;
        hold.lock().schedule.asks_for(request.lease_mode.lease());
        Some(Self {
            request,
            local,
            hold,
            share,
            kept: false,
        })
    }

    fn keep(mut self, sent: BootInstant) -> Result<Option<LockGuard>, Error> {
        self.kept = true;
        self.request.guard(self.hold, sent)
    }

    /// It was never asked for: as long as there are others, there is nothing to give back on the server.
    fn withdraw(mut self) {
        self.kept = true;
        let given_back = self.request.client.give_back(self.local, self.hold, None);
        if let Some(GivenBack::Undo(undo)) = given_back
            && self.hold.levels() > 0
        {
            undo.disarm();
        }
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        if !self.kept {
            drop(self.request.client.give_back(self.local, self.hold, None));
        }
    }
}
