//! The successor hold: takes over or joins the record of another hold of this process, without a request.
//!
//! Two ways lead to one. A lock is passed on when the hold before has ended ([`Hold::pass_to`]). Readers join a hold
//! that usually goes on ([`Hold::join`]). Either way, the new hold begins with the deadline that was confirmed last.
//! Then the server is asked whether the record still stood (`Watchdog::confirm`): always when a lock was passed on, and
//! for readers once the last answer grows old.

use std::sync::Arc;
use std::time::Duration;

use super::hold::{Hold, HoldState};
use crate::clock::BootInstant;
use crate::options::LeaseMode;
use crate::owner::Owner;

/// The owner and terms of a hold that is to get the record of another hold of this process.
///
/// Made by the call that is about to get the lock: see `AcquireRequest::successor`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Successor<'a> {
    /// The owner of the new hold. The record keeps the field of the owner that acquired it.
    pub(crate) owner: &'a Owner,
    /// The lease mode that the call asked for. Its lease has to equal that of the record, since no request is sent to
    /// change that.
    pub(crate) lease_mode: LeaseMode,
    /// The least time that must be left of the lease.
    pub(crate) min_validity: Duration,
    /// How long the hold may be renewed, counted from now. The limit belongs to each hold, not to the record.
    pub(crate) max_hold: Option<Duration>,
    /// When the call came.
    ///
    /// A reader that came after a writer must not join the readers before that writer.
    pub(crate) came: BootInstant,
}

impl Hold {
    /// Makes a hold that takes over the record of this one, which has ended, for the call described by `next`. The
    /// lease goes on. Returns `None` if the record has to go back to the server: a request for it is in flight, or the
    /// rest of the lease is too short or not what `next` asks for.
    ///
    /// Runs under the local lock's mutex, in one step with taking the handoff out. The caller disarms the old hold's
    /// `Undo` if this succeeds, and drops it otherwise, which releases the record.
    pub(crate) fn pass_to(&self, next: &Successor<'_>) -> Option<Arc<Self>> {
        // Kept to the end, so that whoever has the turn next finds that the old hold owes nothing.
        let _turn = self.record.try_turn()?;
        let now = BootInstant::now();
        let is_free_to = match self.key().kind.is_shared() {
            // Even when no reader has the lock any more, a reader must not take it if a waiting writer came before.
            true => self.record.is_open(now, next.came),
            false => self.record.can_pass(),
        };
        if !is_free_to {
            return None;
        }
        let mut old = self.lock();
        let mut state = old.next(now, next)?;
        // A fenced lock is not passed on without a token left, since the server has to make the next one.
        let tokens = match old.tokens {
            Some(tokens) => Some(tokens.next()?),
            None => None,
        };
        // From now on, no release that was owed for the old hold may be sent, as it would release the next hold.
        old.was_passed_on = true;
        state.hold(now, next.lease_mode, tokens);
        state.look_after(self.key(), now);
        drop(old);
        self.record.enter();
        Some(self.beside(next, state))
    }

    /// Makes a hold that shares the record of this one with other readers, for the call described by `next`. Returns
    /// `None` if the call has to ask the server, for example while a request for the record is in flight that may cut
    /// its lease.
    ///
    /// Runs under the local lock's mutex. The joined hold may have ended. Its schedule is still the last confirmed one,
    /// and `Record::join` ensures that some hold has the record.
    pub(crate) fn join(&self, next: &Successor<'_>) -> Option<Arc<Self>> {
        let _turn = self.record.try_turn()?;
        let now = BootInstant::now();
        let mut state = self.lock().next(now, next)?;
        if !self.record.join(now, next.came) {
            return None;
        }
        state.hold(now, next.lease_mode, None);
        state.look_after(self.key(), now);
        Some(self.beside(next, state))
    }

    /// Makes another hold of the same record, with the same time limit for requests.
    fn beside(&self, next: &Successor<'_>, state: HoldState) -> Arc<Self> {
        Self::of(self.record.clone(), next.owner.clone(), self.timeout, state)
    }
}

impl HoldState {
    /// Returns the state of a hold that takes over this one's record, or `None` if the rest of the lease is too short
    /// or not what the next hold asks for.
    ///
    /// At least half of the lease has to be left: the new holder gets the old deadline, and its first renewal has to
    /// come before that.
    fn next(&self, now: BootInstant, next: &Successor<'_>) -> Option<Self> {
        let lease = next.lease_mode.lease();
        let least = next.min_validity.max(lease.get() / 2);
        let is_fit = self.schedule.is_always(lease) && now.until(self.schedule.deadline()) >= least;
        is_fit.then(|| Self::new(self.schedule.passed_on(now, next.max_hold)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::name::LockName;
    use crate::options::LeaseTime;
    use crate::protocol::hold_key::{HoldKey, Kind};

    const LEASE: Duration = Duration::from_secs(30);

    fn lease_mode(lease: Duration) -> LeaseMode {
        LeaseMode::Fixed(LeaseTime::new(lease).unwrap())
    }

    /// Makes a hold that was granted `ago`, and given back.
    fn given_back(owner: &Owner, ago: Duration) -> Arc<Hold> {
        let name = LockName::new("", "k").unwrap();
        let key = HoldKey::new(name, Kind::Reentrant, "c", owner, 1);
        let hold = Hold::new(key, owner.clone(), lease_mode(LEASE).lease(), LEASE);
        let sent = BootInstant::from_millis(BootInstant::now().millis() - ago.as_millis() as u64);
        hold.granted(sent, lease_mode(LEASE), None, None);
        hold.remove_level(Some(lease_mode(LEASE)));
        hold
    }

    fn passed_on(hold: &Hold, lease: Duration) -> Option<Arc<Hold>> {
        hold.pass_to(&Successor {
            owner: &Owner::unique(),
            lease_mode: lease_mode(lease),
            min_validity: Duration::ZERO,
            max_hold: None,
            came: BootInstant::now(),
        })
    }

    /// The record's mutex is shuttle's.
    fn once(test: fn()) {
        shuttle::check_random(test, 1);
    }

    #[test]
    fn nothing_is_owed_for_a_record_that_was_passed_on() {
        once(|| {
            let old = given_back(&Owner::unique(), Duration::ZERO);
            let next = passed_on(&old, LEASE).expect("it is passed on");
            assert!(next.is_live() && Arc::ptr_eq(&old.record, &next.record));
            assert!(old.was_passed_on() && !next.was_passed_on());
            let [old, next] = [&old, &next].map(|hold| hold.lock().schedule.deadline());
            assert_eq!(old, next, "what was confirmed last");
        });
    }

    #[test]
    fn record_is_released_where_it_cannot_be_passed_on() {
        once(|| {
            let owner = Owner::unique();
            let fresh = || given_back(&owner, Duration::ZERO);
            assert!(passed_on(&fresh(), LEASE).is_some());
            assert!(
                passed_on(&fresh(), LEASE / 2).is_none(),
                "another lease is asked for"
            );
            let old = given_back(&owner, LEASE * 6 / 10);
            assert!(passed_on(&old, LEASE).is_none(), "too little is left of it");
            let busy = fresh();
            let turn = busy.record.try_turn().unwrap();
            assert!(passed_on(&busy, LEASE).is_none(), "a request is on its way");
            drop(turn);
            assert!(passed_on(&busy, LEASE).is_some());
            let named = given_back(&Owner::named("req-7"), Duration::ZERO);
            assert!(
                passed_on(&named, LEASE).is_none(),
                "others may share the name"
            );
        });
    }
}
