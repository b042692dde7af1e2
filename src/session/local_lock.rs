//! All that this process knows of one lock, under one mutex: the owners that hold it, the calls that wait for it, what
//! was given back and is left for one of these, and which releases are on their way.
//!
//! # Invariants
//!
//! 1. A handoff is left only if a call that may take it stands in the local queue. The last call to leave the queue
//!    takes the handoff out with it, and a handoff lies for at most 40 ms. So a handoff is never forgotten.
//! 2. No handoff is left while a release of this lock waits to be sent: it could overtake that release. A handoff of
//!    readers is exempt, since their releases are of other records.
//! 3. No waiter is woken under the mutex, and nothing that is owed is dropped there.

use std::collections::{BTreeMap, HashMap};
use std::ops::Deref;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, Weak};
use std::time::Duration;

use dashmap::DashMap;

use super::hold::Hold;
use super::left::{Handoff, Left};
use super::local_queue::{LocalQueue, Side, Sides, Ticket};
use super::outgoing::Outgoing;
use super::owners::Owners;
use super::record::Record;
use super::sync::{Mutex, MutexGuard};
use super::turns::Turns;
use crate::clock::BootInstant;
use crate::name::LocalKey;
use crate::owner::Owner;

/// The local locks of all names in use. `D` is what is owed to the server; if it is dropped, it is done in the
/// background.
///
/// A name is in the map while a call or an `Undo` refers to it, or while a hold of it is noted.
#[derive(Debug)]
pub(crate) struct LocalLocks<D>(Arc<Map<D>>);

type Map<D> = DashMap<LocalKey, Arc<LocalLock<D>>>;

impl<D> Default for LocalLocks<D> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

/// The waiters and holds of one lock; for a read-write lock, those of both sides.
#[derive(Debug)]
pub(crate) struct LocalLock<D> {
    /// The map that it is in, and its key there.
    home: (Weak<Map<D>>, LocalKey),
    /// Counts the references to this local lock. The count leaves zero, and comes back to it, only under the lock of
    /// the map's shard, so that a local lock that nobody uses can be removed without a race with a call that enters.
    /// Relaxed suffices: the shard's lock orders it.
    users: AtomicUsize,
    /// All that is known of the lock. Changed by [`change`](Self::change) where a call may wait for the change.
    state: Mutex<State<D>>,
}

/// What is known of one lock. Its parts only decide; the impl blocks in `place`, `asking` and `handoff` carry out.
#[derive(Debug)]
pub(super) struct State<D> {
    /// The calls that wait, of both sides in one order.
    pub(super) queue: LocalQueue,
    /// Who holds the lock here, and who asks for it, by side.
    pub(super) owners: Sides<Owners>,
    /// The reader's hold that was granted last, whose record other readers may join.
    ///
    /// It may have ended: its record counts, and `Record::join` tells whether anybody has that.
    joinable: Option<Arc<Hold>>,
    /// What was given back and lies here for the next waiter.
    pub(super) left: Left<D>,
    /// Whether this process may have the lock once more, or others go first.
    pub(super) turns: Turns,
    /// The releases that acquisitions must not overtake.
    pub(super) outgoing: Outgoing,
    /// What calls at the front may have to undo on the server.
    ///
    /// By the ticket of the call. Taken out and dropped if nobody polls the call, so that what it was granted does not
    /// keep the others waiting.
    pub(super) asked: BTreeMap<Ticket, D>,
    /// A task checks whether the calls at the front are polled.
    ///
    /// Only one such task runs, and it ends when at most one call waits to ask.
    pub(super) is_front_watched: bool,
}

impl<D> LocalLocks<D> {
    /// Returns the local lock of a name, made if there is none.
    ///
    /// The reference counts as a user from before the map's shard is unlocked, so the local lock cannot be removed
    /// between.
    pub(crate) fn enter(&self, key: LocalKey) -> LocalLockRef<D> {
        let (side, key) = parts(key);
        let home = || (Arc::downgrade(&self.0), key.clone());
        let local = self.0.entry(key.clone());
        LocalLockRef::to(&local.or_insert_with(|| LocalLock::new(home())), side)
    }

    /// Returns the local lock of a name, if it is in use. For looks that should not make one.
    pub(crate) fn find(&self, key: LocalKey) -> Option<LocalLockRef<D>> {
        let (side, key) = parts(key);
        Some(LocalLockRef::to(&*self.0.get(&key)?, side))
    }

    /// Returns every hold of this process.
    pub(crate) fn holds(&self) -> Vec<Arc<Hold>> {
        let local_locks = self.0.iter();
        local_locks
            .flat_map(|local| local.lock().all_holds())
            .collect()
    }

    /// Returns how many calls wait to ask for a lock.
    pub(crate) fn in_queue(&self) -> usize {
        self.0.iter().map(|local| local.lock().queue.len()).sum()
    }

    /// Returns how many lock names are in use.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }
}

/// Returns the side that a key is of, and the key under which both sides are found.
fn parts(key: LocalKey) -> (Side, LocalKey) {
    let side = match key.is_of_readers() {
        true => Side::Shared,
        false => Side::Exclusive,
    };
    (side, key.of_both_sides())
}

impl<D> LocalLock<D> {
    fn new(home: (Weak<Map<D>>, LocalKey)) -> Arc<Self> {
        Arc::new(Self {
            home,
            users: AtomicUsize::new(0),
            state: Mutex::new(State {
                queue: LocalQueue::default(),
                owners: Sides::default(),
                joinable: None,
                left: Left::default(),
                turns: Turns::default(),
                outgoing: Outgoing::default(),
                asked: BTreeMap::new(),
                is_front_watched: false,
            }),
        })
    }

    /// For looks, and for changes that no call waits for.
    pub(super) fn lock(&self) -> MutexGuard<'_, State<D>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes something, and wakes the calls that the change concerns.
    ///
    /// Wakes them when the mutex is free again: a waker may run any code, such as a poll that comes back here.
    pub(super) fn change<T>(&self, step: impl FnOnce(&mut State<D>) -> T) -> T {
        let mut state = self.lock();
        let value = step(&mut state);
        let woken = state.queue.move_up();
        drop(state);
        woken.wake();
        value
    }
}

/// A local lock in use, seen from one side. The last reference to go removes it, unless an owner holds the lock.
///
/// For a lock that is not of two sides, all calls are on the exclusive one.
#[derive(Debug)]
pub(crate) struct LocalLockRef<D> {
    local: Arc<LocalLock<D>>,
    pub(super) side: Side,
}

impl<D> Deref for LocalLockRef<D> {
    type Target = LocalLock<D>;

    fn deref(&self) -> &LocalLock<D> {
        &self.local
    }
}

impl<D> LocalLockRef<D> {
    /// Makes a reference to a local lock that is in use, or is in the map while its shard is locked.
    fn to(local: &Arc<LocalLock<D>>, side: Side) -> Self {
        local.users.fetch_add(1, Ordering::Relaxed);
        let local = local.clone();
        Self { local, side }
    }

    /// Returns the hold of this owner, if it can be trusted.
    ///
    /// That is one whose deadline has not passed. Other calls of the owner re-enter it.
    pub(crate) fn live(&self, owner: &Owner) -> Option<Arc<Hold>> {
        self.lock().owners.of(self.side).live(owner).cloned()
    }

    /// Whether this owner has the lock by the other side.
    ///
    /// A writer may read too. A reader that would write has to be refused, since it would wait for itself.
    pub(crate) fn has_other_side(&self, owner: &Owner) -> bool {
        let state = self.lock();
        state.owners.of(self.side.other()).live(owner).is_some()
    }

    /// Whether an owner here holds the lock and has a guard of it.
    ///
    /// Then the front need not ask: it is woken by the end of the hold. A hold that was left to its owner does not
    /// count: the owner may release it through another process.
    pub(crate) fn is_held_here(&self) -> bool {
        self.lock().is_held(self.side)
    }

    /// Returns a hold of the lock here, on either side. For people: it may have ended by the time that they read.
    pub(crate) fn holder(&self) -> Option<Arc<Hold>> {
        let holds = self.lock().all_holds();
        holds.into_iter().find(|hold| hold.is_live())
    }

    /// Whether a hold here is renewed, so that its loss is noticed without being looked for.
    pub(crate) fn is_renewed_here(&self) -> bool {
        let state = self.lock();
        let mut holds = state.owners.of(self.side).holds();
        holds.any(|hold| hold.is_live() && hold.is_renewed())
    }

    /// Returns the holds of the other side of a read-write lock here.
    ///
    /// A writer excludes all readers but its owner's, so others among them show that one of the two was taken away.
    pub(crate) fn held_by_other_side(&self) -> Vec<Arc<Hold>> {
        let state = self.lock();
        let holds = state.owners.of(self.side.other()).holds();
        holds.cloned().collect()
    }

    /// Notes a hold that was granted. Returns the other holds, which it displaces and which are given back. On the
    /// shared side, that is at most an older hold of the same owner.
    ///
    /// Called in one step without an await with the grant. The caller reports the displaced holds as lost: as a
    /// rule, the server would not have granted the lock if they stood.
    pub(crate) fn install(&self, hold: &Arc<Hold>) -> Vec<Arc<Hold>> {
        let (displaced, gone) = self.change(|state| {
            // The server has granted the lock: what was left here was gone.
            let left = state.left.take(self.side);
            let others: Vec<_> = state.owners.exclusive.holds().cloned().collect();
            let older = state.put(self.side, hold);
            match self.side {
                Side::Exclusive => {
                    state.turns.is_had();
                    (others, (left, None))
                }
                Side::Shared => {
                    let joinable = state.joinable.replace(hold.clone());
                    (older.into_iter().collect(), (left, joinable))
                }
            }
        });
        // Outside the mutex: it may be the last reference to a hold, or an `Undo`.
        drop(gone);
        displaced
    }

    /// Notes the hold that `join` makes for an owner by the record that readers may join. Returns `None` if there is no
    /// such record, if another call of this owner holds or asks for the lock, or if a writer of this process has the
    /// lock or goes first.
    ///
    /// `join` runs under the mutex, in one step with noting its hold.
    pub(crate) fn join(
        &self,
        owner: &Owner,
        yields_to: YieldsTo,
        join: impl FnOnce(&Hold) -> Option<Arc<Hold>>,
    ) -> Option<Arc<Hold>> {
        self.change(|state| {
            let writers = state.queue.standing(Side::Exclusive);
            let goes_behind = yields_to == YieldsTo::AnyWriter && writers > 0
                // A second hold of one owner would be a re-entry, which the server has to count.
                || state.owners.shared.is_engaged(owner)
                // An owner that writes may read too, by a record that nobody else joins.
                || state.owners.exclusive.holds().any(|hold| hold.is_live());
            if goes_behind {
                return None;
            }
            let hold = join(state.joinable.as_deref()?)?;
            state.put(Side::Shared, &hold);
            Some(hold)
        })
    }

    /// Returns how long a request for the lock takes, if another owner here has the lock in a way that excludes this
    /// owner.
    ///
    /// A call that asks within that time is refused; one that waits for it may find the release on its way, and asks
    /// behind.
    pub(crate) fn is_taken_for(&self, owner: &Owner) -> Option<Duration> {
        let state = self.lock();
        let readers = state
            .owners
            .shared
            .holds()
            .filter(|_| self.side == Side::Exclusive);
        let holds = readers.chain(state.owners.exclusive.holds());
        let others = holds.filter(|hold| hold.is_live() && hold.owner != *owner);
        let is_left = self.side == Side::Exclusive && state.left.is_for(Side::Shared);
        let left = state.joinable.iter().filter(|_| is_left);
        others.chain(left).map(|hold| hold.record.trip()).max()
    }

    /// Returns the holds here that have this record, to confirm or end them together.
    pub(crate) fn having(&self, record: &Arc<Record>) -> Vec<Arc<Hold>> {
        let state = self.lock();
        // The joinable hold may have ended. Holds that join its record begin with what is confirmed for it.
        let all = state.owners.of(self.side).holds().chain(&state.joinable);
        all.filter(|hold| Arc::ptr_eq(&hold.record, record))
            .cloned()
            .collect()
    }

    /// Removes a hold that has ended, and tells the front.
    ///
    /// The caller has seen to what is owed for it.
    pub(crate) fn forget(&self, hold: &Arc<Hold>) {
        drop(self.change(|state| state.remove(self.side, hold)));
    }

    /// Tells the front that something has happened that it may wait for, so that it asks again.
    pub(crate) fn stir(&self) {
        self.change(|state| state.queue.stir_first(self.side));
    }

    /// Returns how many calls of this side stand in the local queue.
    pub(crate) fn in_queue(&self) -> u32 {
        u32::try_from(self.lock().queue.standing(self.side)).unwrap_or(u32::MAX)
    }

    /// Takes out the handoff, and keeps every hold of this side from passing its record on from now on. Returns the
    /// handoff and the holds.
    ///
    /// For a release by force: what is passed on in memory now would outlive it unseen.
    pub(crate) fn stop_passing(&self) -> (Option<Handoff<D>>, Vec<Arc<Hold>>) {
        let mut state = self.lock();
        let holds = state.owners.of(self.side).holds().cloned();
        let holds: Vec<_> = holds.inspect(|hold| hold.record.stay()).collect();
        (state.left.take(self.side), holds)
    }

    /// Runs `step` on what decides whether it is this process's turn.
    ///
    /// Wakes nobody, since no call waits here for what it changes.
    pub(crate) fn turns<T>(&self, step: impl FnOnce(&mut Turns) -> T) -> T {
        step(&mut self.lock().turns)
    }

    /// Returns when the first call came that waits for what this owner has, and its owner. That is not known of calls
    /// that cannot take a lock again: those for plain locks, and for several locks at once.
    pub(super) fn first_behind(&self, holder: &Owner) -> Option<(BootInstant, Option<Owner>)> {
        let state = self.lock();
        let excludes = |side| Side::Exclusive == self.side || Side::Exclusive == side;
        let owners: HashMap<_, _> = state.owners.both().flat_map(Owners::calls).collect();
        let arrivals = state.queue.arrivals();
        let mut excluded = arrivals.filter(|(_, side, _)| excludes(*side));
        excluded.find_map(|(ticket, _, came)| {
            let owner = owners.get(&ticket).copied();
            (owner != Some(holder)).then(|| (came, owner.cloned()))
        })
    }

    /// Returns when a writer that asks now counts as come: not before the readers that asked before it.
    pub(crate) fn behind_readers(&self, came: BootInstant) -> BootInstant {
        self.lock().queue.behind_readers(came)
    }
}

impl<D> State<D> {
    /// Returns the holds of both sides, those included that cannot be trusted any more.
    pub(super) fn all_holds(&self) -> Vec<Arc<Hold>> {
        let both = self.owners.both().flat_map(Owners::holds);
        both.cloned().collect()
    }

    /// Whether a hold of this side can be trusted and has a guard.
    pub(super) fn is_held(&self, side: Side) -> bool {
        let mut holds = self.owners.of(side).holds();
        holds.any(|hold| hold.is_live() && hold.is_guarded())
    }

    /// Notes a hold of its owner, and tells the owner's other calls. Returns the hold before it.
    pub(super) fn put(&mut self, side: Side, hold: &Arc<Hold>) -> Option<Arc<Hold>> {
        let older = self.owners.of_mut(side).put(hold);
        self.tell(&hold.owner, LocalQueue::stir);
        older
    }

    /// Tells the calls of this owner that wait for something.
    ///
    /// On both sides, since an owner that writes may have calls that wait to read.
    pub(super) fn tell(&mut self, owner: &Owner, tell: impl Fn(&mut LocalQueue, Ticket)) {
        for owners in self.owners.both() {
            for ticket in owners.waiting(owner) {
                tell(&mut self.queue, *ticket);
            }
        }
    }

    /// Removes a hold that has ended, and tells the front. For readers, the front is told when their record is given
    /// back.
    ///
    /// Returned rather than dropped, since the caller has the mutex.
    pub(super) fn remove(&mut self, side: Side, hold: &Arc<Hold>) -> Option<Arc<Hold>> {
        if side == Side::Exclusive {
            self.queue.stir_first(side);
        }
        self.owners.of_mut(side).remove(hold)
    }
}

/// Which writers a reader lets go first before it joins other readers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum YieldsTo {
    /// All calls that wait in this process to write.
    AnyWriter,
    /// No more writers: those that came before have gone.
    Nobody,
}

impl<D> Clone for LocalLockRef<D> {
    fn clone(&self) -> Self {
        Self::to(&self.local, self.side)
    }
}

impl<D> Drop for LocalLockRef<D> {
    fn drop(&mut self) {
        // Fails for the last reference, which has to go under the lock of the shard.
        let others = |users: usize| (users > 1).then(|| users - 1);
        let users = &self.local.users;
        if users
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, others)
            .is_ok()
        {
            return;
        }
        let (local_locks, key) = &self.local.home;
        // Otherwise the client is gone.
        if let Some(local_locks) = local_locks.upgrade() {
            local_locks.remove_if(key, |_, local| {
                let is_last = local.users.fetch_sub(1, Ordering::Relaxed) == 1;
                is_last && local.lock().all_holds().is_empty()
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use shuttle::future::{block_on, spawn, yield_now};
    use std::collections::BTreeSet;
    use std::sync::Mutex;
    use std::sync::atomic::AtomicU64;

    use super::super::hold::{self, Successor};
    use super::super::local_queue::Role;
    use super::super::place::Turn;
    use super::super::sync::{Spawner, TIMERS, ended};
    use super::*;
    use crate::name::LockName;
    use crate::options::{LeaseMode, LeaseTime, Prefer};
    use crate::protocol::hold_key::{HoldKey, Kind, ReadWrite};

    const ORDERS: usize = 2_000;
    /// In all orders.
    static JOINED: AtomicU64 = AtomicU64::new(0);

    /// A server with one lock that can be read by, and the readers of a process.
    struct Model {
        /// The acquisition ids that the server records.
        records: Mutex<BTreeSet<String>>,
        numbers: AtomicU64,
        kind: Kind,
        name: LockName,
        local: LocalLockRef<Owing>,
    }

    /// What is undone on that server when it is dropped.
    struct Owing(Arc<Model>, Arc<Record>);

    impl Drop for Owing {
        fn drop(&mut self) {
            let Self(model, record) = self;
            if !record.is_held() {
                record.releases();
                let released = model.server().remove(record.key.number());
                record.released(&Ok(released));
            }
        }
    }

    /// A hold that belongs to a task, and ends with it.
    struct Reading(Arc<Model>, Arc<Hold>);

    impl Reading {
        fn look(&self) {
            let Self(model, hold) = self;
            let stands = model.server().contains(hold.key().number());
            assert!(stands, "released under one that reads");
        }
    }

    impl Drop for Reading {
        fn drop(&mut self) {
            let Self(model, hold) = self;
            let left = hold
                .remove_level(Some(lease_mode()))
                .expect("it has not ended");
            if left == hold::Left::Others {
                model.local.forget(hold);
                return;
            }
            let owing = Owing(model.clone(), hold.record.clone());
            drop(model.local.leave(owing, hold, &Spawner::current()));
        }
    }

    fn lease_mode() -> LeaseMode {
        LeaseMode::Fixed(LeaseTime::new(Duration::from_secs(30)).expect("a lease"))
    }

    impl Model {
        fn new() -> Arc<Self> {
            let name = LockName::read_write("", "k").expect("a name");
            let kind = Kind::Read(Arc::new(ReadWrite::new(&name, Prefer::Arrival)));
            Arc::new(Self {
                records: Mutex::default(),
                numbers: AtomicU64::new(0),
                local: LocalLocks::default().enter(kind.local_key(&name)),
                kind,
                name,
            })
        }

        fn server(&self) -> std::sync::MutexGuard<'_, BTreeSet<String>> {
            self.records.lock().unwrap_or_else(PoisonError::into_inner)
        }

        /// Reads as a reader does: joins the others, or else comes to the front and joins, takes over what was left, or
        /// asks.
        async fn read(self: &Arc<Self>) -> Reading {
            let owner = Owner::unique();
            let now = BootInstant::now();
            let next = Successor {
                owner: &owner,
                lease_mode: lease_mode(),
                min_validity: Duration::ZERO,
                max_hold: None,
                came: now,
            };
            let join = |yields_to| self.local.join(&owner, yields_to, |hold| hold.join(&next));
            let joined = |hold| {
                JOINED.fetch_add(1, Ordering::Relaxed);
                Reading(self.clone(), hold)
            };
            if let Some(hold) = join(YieldsTo::AnyWriter) {
                return joined(hold);
            }
            let place = self
                .local
                .stand(Role::InOrder, Some(&owner), &Spawner::current());
            assert_eq!(place.comes().await, Turn::First);
            if let Some(hold) = join(YieldsTo::Nobody) {
                return joined(hold);
            }
            let passed = self.local.take_over(|left| left.hold.pass_to(&next));
            if let Some((Handoff { undo, .. }, Some(hold))) = passed {
                std::mem::forget(undo);
                return joined(hold);
            }
            let number = self.numbers.fetch_add(1, Ordering::Relaxed);
            let key = HoldKey::new(
                self.name.clone(),
                self.kind.clone(),
                "client",
                &owner,
                number,
            );
            self.server().insert(key.number().to_owned());
            let hold = Hold::new(
                key,
                owner.clone(),
                lease_mode().lease(),
                Duration::from_secs(1),
            );
            hold.granted(now, lease_mode(), None, None);
            hold.record.saw(now, BootInstant::now(), None);
            drop(self.local.install(&hold));
            Reading(self.clone(), hold)
        }

        async fn section(self: Arc<Self>) {
            let reading = self.read().await;
            for _ in 0..2 {
                reading.look();
                yield_now().await;
            }
        }

        /// Waits until the task that watches what was left has given back what it took out.
        async fn settled(&self) {
            for _ in 0..1_000 {
                if self.server().is_empty() {
                    return;
                }
                yield_now().await;
            }
        }
    }

    #[test]
    fn last_reader_of_a_record_gives_it_back_and_none_before() {
        let readers = || {
            TIMERS.set(true);
            let model = Model::new();
            let start = || {
                let model = model.clone();
                spawn(async move {
                    model.clone().section().await;
                    model.section().await;
                })
            };
            let stay = (0..3).map(|_| start()).collect();
            let leave = (0..2).map(|_| start()).collect();
            block_on(ended(stay, leave));
            assert!(model.local.lock().all_holds().is_empty());
            drop(model.local.take_handoff());
            block_on(model.settled());
            assert!(model.server().is_empty(), "nothing is left");
        };
        shuttle::check_random(readers, ORDERS);
        let joined = JOINED.load(Ordering::Relaxed);
        assert!(joined > ORDERS as u64, "joined {joined} times only");
    }
}
