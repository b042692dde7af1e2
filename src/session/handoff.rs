//! A lock that was given back, left for the next waiter of its process.
//!
//! If a hold is given back while a call waits at the front, it stays here with its `Undo`. The call takes it
//! ([`take_over`](LocalLockRef::take_over)) and goes on with its record. If no call comes, a task takes it back.
//!
//! # Invariants
//!
//! 1. The undo is always in one place: with the handoff, or in the background. So the lock is passed on or released,
//!    whichever task is dropped in the meantime.
//! 2. Whoever takes a handoff out drops its undo, or disarms it because another hold now has the record.

use std::sync::Arc;
use std::time::Duration;

use super::hold::Hold;
use super::left::Handoff;
use super::local_lock::LocalLockRef;
use super::local_queue::Side;
use super::record::Outcome;
use super::sync::{Spawner, oneshot, sleep};

/// How long a handoff may lie. Its waiter wakes within this time, if anybody polls its future. A future that shares a
/// task with the one that gave the lock back may not be polled, and other waiters must not wait for it.
const LIES: Duration = Duration::from_millis(20);

impl<D> LocalLockRef<D> {
    /// Whether a handoff for this side lies here.
    ///
    /// The front takes it before it asks anybody.
    pub(crate) fn has_handoff(&self) -> bool {
        self.lock().left.is_for(self.side)
    }

    /// Takes the handoff out, if one for this side lies here.
    ///
    /// The caller has to drop it, which releases the lock, or to disarm its undo.
    pub(crate) fn take_handoff(&self) -> Option<Handoff<D>> {
        self.lock().left.take(self.side)
    }

    /// Takes the handoff, if one lies here, and enters the hold that `pass` makes of it, in one step. For the front of
    /// the local queue. The hold is `None` if `pass` makes none, or if another owner was granted the lock in the
    /// meantime, which shows that the record is gone. The caller then drops the handoff.
    pub(crate) fn take_over(
        &self,
        pass: impl FnOnce(&Handoff<D>) -> Option<Arc<Hold>>,
    ) -> Option<(Handoff<D>, Option<Arc<Hold>>)> {
        let (handoff, hold, joinable) = self.change(|state| {
            let handoff = state.left.take(self.side)?;
            let mut joinable = None;
            // Readers may share the lock, so only an exclusive hold shows that the handoff is void.
            let is_had = state.owners.exclusive.holds().any(|it| it.is_live());
            let hold = match is_had {
                true => None,
                false => pass(&handoff),
            };
            if let Some(hold) = &hold {
                // Readers do not keep other processes from reading, so they count as no turn.
                match self.side {
                    Side::Exclusive => {
                        state.turns.is_had();
                        state.turns.count(true);
                    }
                    // The schedule of the hold before it is no longer told of cuts.
                    Side::Shared => joinable = state.joinable.replace(hold.clone()),
                }
                state.put(self.side, hold);
            }
            Some((handoff, hold, joinable))
        })?;
        // Outside the mutex, as in `install`.
        drop(joinable);
        Some((handoff, hold))
    }
}

impl<D: Send + 'static> LocalLockRef<D> {
    /// Removes a hold, and leaves its record for the next waiter here. Returns the receiver of the answer whether the
    /// lock was still held. Returns the undo instead if nobody waits here, or if the handoff could overtake a release
    /// in flight.
    ///
    /// All in one step: while a call waits that could take the handoff, nobody sees the lock with neither an owner nor
    /// a handoff.
    pub(crate) fn leave(
        &self,
        undo: D,
        hold: &Arc<Hold>,
        runtime: &Spawner,
    ) -> Result<oneshot::Receiver<Outcome>, D> {
        let (removed, left) = self.change(|state| {
            let side = self.side;
            let removed = state.remove(side, hold);
            // A lock that is granted from now on was requested behind the releases that are ahead.
            let is_overtaking = side == Side::Exclusive && !state.outgoing.are_ahead();
            if !state.queue.has_heir(side) || is_overtaking || !state.left.is_empty() {
                return (removed, Err(undo));
            }
            let outcome = hold.record.outcome();
            let hold = hold.clone();
            // The receiver exists before the record can be passed on, so the next question is asked on its behalf too.
            let is_watched = state.left.put(side, Handoff { hold, undo });
            state.queue.stir_first(side);
            (removed, Ok((outcome, is_watched)))
        });
        // Dropped outside the mutex: it may be the last reference to the hold.
        drop(removed);
        let (outcome, is_watched) = left?;
        if !is_watched {
            let local = self.clone();
            runtime.spawn(async move {
                // A handoff lies for at least one sleep, and for less than two if it was left during one.
                loop {
                    let Some(count) = local.lock().left.lies() else {
                        return;
                    };
                    sleep(LIES).await;
                    // Dropped with its undo, which releases the lock, outside the mutex.
                    let lies_yet = local.lock().left.take_back(count);
                    drop(lies_yet);
                }
            });
        }
        Ok(outcome)
    }
}

#[cfg(test)]
mod tests {
    use super::super::hold::Successor;
    use super::super::local_lock::LocalLocks;
    use super::super::local_queue::Role;
    use super::super::record::Record;
    use super::super::sync::{TIMERS, ended, orders};
    use super::*;
    use crate::clock::BootInstant;
    use crate::loss::LossReason;
    use crate::name::{LockName, Users};
    use crate::options::LeaseTime;
    use crate::owner::Owner;
    use crate::protocol::hold_key::{HoldKey, Kind};
    use shuttle::future::{block_on, spawn, yield_now};
    use shuttle::rand::Rng;
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
    use std::sync::{Mutex, PoisonError};

    /// In all orders.
    static PASSED: AtomicU64 = AtomicU64::new(0);

    /// A server with one lock, and a process that uses it.
    struct Model {
        /// The acquisition id that the server records.
        record: Mutex<Option<String>>,
        numbers: AtomicU64,
        inside: AtomicBool,
        granted: AtomicU64,
        passed: AtomicU64,
        /// How often another process had the lock after it was freed by force.
        foreign: AtomicU64,
        name: LockName,
        /// Kept in use throughout, since shuttle does not know the mutexes of the map of local locks.
        local: LocalLockRef<Owing>,
    }

    /// Something to undo on that server: done at once when dropped.
    struct Owing {
        model: Arc<Model>,
        record: Arc<Record>,
        owed: bool,
    }

    impl Owing {
        fn disarm(mut self) {
            self.owed = false;
        }
    }

    impl Drop for Owing {
        fn drop(&mut self) {
            if self.owed {
                self.model.release(&self.record);
            }
        }
    }

    /// A section under the lock; it ends with the task, also if the task is aborted there.
    struct Inside<'a>(&'a Model);

    impl<'a> Inside<'a> {
        fn enter(model: &'a Model) -> Self {
            assert!(!model.inside.swap(true, Ordering::SeqCst), "two at once");
            model.granted.fetch_add(1, Ordering::SeqCst);
            Self(model)
        }
    }

    impl Drop for Inside<'_> {
        fn drop(&mut self) {
            self.0.inside.store(false, Ordering::SeqCst);
        }
    }

    impl Model {
        fn new() -> Arc<Self> {
            let name = LockName::new("", "a").expect("a name");
            Arc::new(Self {
                record: Mutex::default(),
                numbers: AtomicU64::new(0),
                inside: AtomicBool::new(false),
                granted: AtomicU64::new(0),
                passed: AtomicU64::new(0),
                foreign: AtomicU64::new(0),
                local: LocalLocks::default().enter(name.local_key(Users::Owners)),
                name,
            })
        }

        fn server(&self) -> std::sync::MutexGuard<'_, Option<String>> {
            self.record.lock().unwrap_or_else(PoisonError::into_inner)
        }

        /// The script that acquires the lock.
        fn take(&self, number: &str) -> bool {
            let mut record = self.server();
            let is_free = record.is_none();
            if is_free {
                *record = Some(number.to_owned());
            }
            is_free
        }

        /// The script that releases the lock, and the message to the waiters.
        fn release(&self, record: &Record) {
            record.releases();
            let is_it = |held: &mut String| *held == record.key.number();
            let released = self.server().take_if(is_it).is_some();
            record.released(&Ok(released));
            self.local.stir();
        }

        /// The task that asks whether a record that was passed on still stands.
        async fn confirm(self: Arc<Self>, record: Arc<Record>) {
            while let Some(unlocks) = record.next_unlocks(BootInstant::now()) {
                yield_now().await;
                let stands = self.server().as_deref() == Some(record.key.number());
                yield_now().await;
                if stands {
                    unlocks.stood();
                } else if unlocks.was_gone() {
                    let mut holds = self.local.lock().all_holds().into_iter();
                    let has_it = |hold: &Arc<Hold>| {
                        Arc::ptr_eq(&hold.record, &record) && !hold.lock().has_ended()
                    };
                    if let Some(hold) = holds.find(has_it) {
                        hold.end(LossReason::Gone);
                        self.local.forget(&hold);
                    }
                }
            }
        }

        fn owing(self: &Arc<Self>, record: &Arc<Record>) -> Owing {
            Owing {
                model: self.clone(),
                record: record.clone(),
                owed: true,
            }
        }

        /// Makes a hold that is about to be requested.
        fn hold(&self) -> Arc<Hold> {
            let owner = Owner::unique();
            let number = self.numbers.fetch_add(1, Ordering::SeqCst);
            let key = HoldKey::new(self.name.clone(), Kind::Reentrant, "client", &owner, number);
            Hold::new(key, owner, lease_mode().lease(), Duration::from_secs(1))
        }

        /// Acquires as an acquisition does: stands in the local queue; at the front takes over a handoff, else the
        /// lock, else waits.
        async fn acquire(self: &Arc<Self>) -> (Arc<Hold>, Owing) {
            let local = &self.local;
            let asked = self.hold();
            let place = local.stand(Role::InQueue, None, &Spawner::current());
            place.comes().await;
            let owing = self.owing(&asked.record);
            loop {
                place.catch_up(BootInstant::now());
                let pass = |left: &Handoff<Owing>| {
                    left.hold.pass_to(&Successor {
                        owner: &asked.owner,
                        lease_mode: lease_mode(),
                        min_validity: Duration::ZERO,
                        max_hold: None,
                        came: BootInstant::now(),
                    })
                };
                if let Some((Handoff { undo, .. }, passed)) = local.take_over(pass)
                    && let Some(hold) = passed
                {
                    undo.disarm();
                    owing.disarm();
                    if hold.record.passed_on(BootInstant::now()) {
                        spawn(self.clone().confirm(hold.record.clone()));
                    }
                    self.passed.fetch_add(1, Ordering::SeqCst);
                    let owing = self.owing(&hold.record);
                    return (hold, owing);
                }
                if self.take(asked.key().number()) {
                    asked.granted(BootInstant::now(), lease_mode(), None, None);
                    local.install(&asked);
                    return (asked, owing);
                }
                place.news().await;
            }
        }

        /// Gives back as an unlock does: leaves a handoff if another task waits, else releases the lock.
        async fn give_back(self: &Arc<Self>, hold: &Arc<Hold>, owing: Owing) -> bool {
            hold.remove_level(Some(lease_mode()));
            let outcome = hold.record.outcome();
            let outcome = match self.local.leave(owing, hold, &Spawner::current()) {
                Err(owing) => {
                    drop(owing);
                    outcome
                }
                Ok(outcome) => outcome,
            };
            let outcome = outcome.await.expect("somebody tells");
            outcome.expect("no request fails here")
        }

        async fn section(self: &Arc<Self>) {
            let (hold, owing) = self.acquire().await;
            let inside = Inside::enter(self);
            yield_now().await;
            drop(inside);
            assert!(self.give_back(&hold, owing).await, "it was held");
        }

        /// Runs a section whose lock may be taken away by force.
        async fn forced_section(self: &Arc<Self>) {
            let (hold, owing) = self.acquire().await;
            let before = self.foreign.load(Ordering::SeqCst);
            yield_now().await;
            if !hold.is_live() {
                return;
            }
            let after = self.foreign.load(Ordering::SeqCst);
            if self.give_back(&hold, owing).await {
                assert_eq!(before, after, "another process was inside too");
            }
        }

        /// Frees the lock by force, then takes it as another process.
        async fn force(&self) {
            *self.server() = None;
            yield_now().await;
            if self.take("another") {
                self.foreign.fetch_add(1, Ordering::SeqCst);
                yield_now().await;
                *self.server() = None;
            }
            self.local.stir();
        }

        /// Runs tasks that hold the lock in turn while another process frees it by force.
        fn run_forced() {
            TIMERS.set(true);
            let model = Self::new();
            let sections: Vec<_> = (0..3)
                .map(|_| {
                    let model = model.clone();
                    spawn(async move {
                        model.forced_section().await;
                        model.forced_section().await;
                    })
                })
                .collect();
            block_on(async {
                for _ in 0..2 {
                    for _ in 0..shuttle::rand::thread_rng().gen_range(0..12) {
                        yield_now().await;
                    }
                    model.force().await;
                }
                for section in sections {
                    section.await.expect("no task fails");
                }
            });
        }

        /// Runs tasks that hold the lock in turn; some of them are aborted at any point.
        fn run(staying: usize, leaving: usize) {
            TIMERS.set(shuttle::rand::thread_rng().gen_bool(0.5));
            let model = Self::new();
            let start = || {
                let model = model.clone();
                spawn(async move {
                    model.section().await;
                    model.section().await;
                })
            };
            let stay: Vec<_> = (0..staying).map(|_| start()).collect();
            let leave: Vec<_> = (0..leaving).map(|_| start()).collect();
            block_on(async {
                ended(stay, leave).await;
            });
            assert!(model.granted.load(Ordering::SeqCst) >= 2 * staying as u64);
            // A task that was aborted while it had the lock has given it back, but its hold is still entered.
            assert!(model.take("another"), "nobody holds it in the end");
            if leaving == 0 {
                assert_eq!(model.local.lock().all_holds().len(), 0);
                PASSED.fetch_add(model.passed.load(Ordering::SeqCst), Ordering::SeqCst);
            }
        }
    }

    fn lease_mode() -> crate::options::LeaseMode {
        let lease = LeaseTime::new(Duration::from_secs(30)).expect("a lease");
        crate::options::LeaseMode::Fixed(lease)
    }

    #[test]
    fn every_waiter_is_served_in_any_order_of_events() {
        shuttle::check_random(|| Model::run(4, 0), orders());
        let passed = PASSED.load(Ordering::SeqCst);
        assert!(passed > orders() as u64, "passed on {passed} times only");
    }

    #[test]
    fn unlock_vouches_for_no_section_that_another_process_was_in() {
        shuttle::check_random(Model::run_forced, orders());
    }

    #[test]
    fn waiters_that_leave_take_nothing_with_them() {
        shuttle::check_random(|| Model::run(1, 2), orders());
        shuttle::check_random(|| Model::run(2, 3), orders());
    }
}
