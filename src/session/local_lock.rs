//! All that this process knows of one lock, under one mutex: the owners that hold it, the calls that wait for it, the
//! handoff for one of these, and the releases in flight.
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
use super::owners::OwnerTable;
use super::record::Record;
use super::sync::{Mutex, MutexGuard};
use super::turns::Turns;
use crate::clock::BootInstant;
use crate::name::LocalKey;
use crate::owner::Owner;

/// The local locks of all names in use. `D` is what is owed to the server. Dropping a `D` has it done in the
/// background.
///
/// A name is in the map while a call or an `Undo` refers to it, or while it has a hold.
#[derive(Debug)]
pub(crate) struct LocalLocks<D>(Arc<Map<D>>);

type Map<D> = DashMap<LocalKey, Arc<LocalLock<D>>>;

impl<D> Default for LocalLocks<D> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

/// The waiters and holds of one lock, on both sides if it is a read-write lock.
#[derive(Debug)]
pub(crate) struct LocalLock<D> {
    /// The map that it is in, and its key there.
    home: (Weak<Map<D>>, LocalKey),
    /// Counts the references to this local lock. The count leaves zero and returns to it only under the lock of the
    /// map's shard. So an unused local lock can be removed without a race with a call that enters. Relaxed suffices:
    /// the shard's lock orders it.
    users: AtomicUsize,
    /// The state of the lock. Changed by [`change`](Self::change) if a call may wait for the change.
    state: Mutex<LockState<D>>,
}

/// The state of one lock. Its parts only decide; the impl blocks in `place`, `asking` and `handoff` act.
#[derive(Debug)]
pub(super) struct LockState<D> {
    /// The calls that wait, on both sides, in one order.
    pub(super) queue: LocalQueue,
    /// Who holds the lock here, and who asks for it, by side.
    pub(super) owners: Sides<OwnerTable>,
    /// The last granted hold of a reader, whose record other readers may join.
    ///
    /// It may have ended. What counts is its record, and `Record::join` tells whether any hold has that.
    pub(super) joinable: Option<Arc<Hold>>,
    /// The handoff for the next waiter.
    pub(super) left: Left<D>,
    /// Whether this process may take the lock once more, or others go first.
    pub(super) turns: Turns,
    /// The releases that acquisitions must not overtake.
    pub(super) outgoing: Outgoing,
    /// The undos that calls at the front have lent: what each may have to undo on the server.
    ///
    /// By the ticket of the call. If nobody polls the call, its undo is taken out and dropped, so that its grant does
    /// not keep the others waiting.
    pub(super) asked: BTreeMap<Ticket, D>,
    /// Whether a task checks that the calls at the front are polled.
    ///
    /// At most one such task runs. It ends when at most one call waits to ask.
    pub(super) is_front_watched: bool,
}

impl<D> LocalLocks<D> {
    /// Returns the local lock of a name. Creates it if there is none.
    ///
    /// The reference counts as a user before the map's shard is unlocked, so the local lock cannot be removed in
    /// between.
    pub(crate) fn enter(&self, key: LocalKey) -> LocalLockRef<D> {
        let (side, key) = parts(key);
        let home = || (Arc::downgrade(&self.0), key.clone());
        let local = self.0.entry(key.clone());
        LocalLockRef::to(&local.or_insert_with(|| LocalLock::new(home())), side)
    }

    /// Returns the local lock of a name, if it is in use. For reads that should not create one.
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

    /// Takes the undos of all requests whose calls have not read the answers. Such a call begins again.
    pub(super) fn take_lent(&self) -> Vec<D> {
        let local_locks = self.0.iter();
        local_locks
            .flat_map(|local| std::mem::take(&mut local.lock().asked).into_values())
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

/// Returns the side of a key, and the key under which the map has both sides.
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
            state: Mutex::new(LockState {
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

    /// Locks the state for reads, and for changes that no call waits for.
    pub(super) fn lock(&self) -> MutexGuard<'_, LockState<D>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the state, and wakes the calls that the change concerns.
    ///
    /// Wakes them after the mutex is unlocked: a waker may run any code, such as a poll that comes back here.
    pub(super) fn change<T>(&self, step: impl FnOnce(&mut LockState<D>) -> T) -> T {
        let mut state = self.lock();
        let value = step(&mut state);
        let woken = state.queue.move_up();
        drop(state);
        woken.wake();
        value
    }
}

/// A reference to a local lock, for one side. Dropping the last one removes the local lock, unless an owner holds it.
///
/// All calls of a lock without two sides are on the exclusive one.
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
    /// Its deadline has not passed. Other calls of the owner re-enter it.
    pub(crate) fn live(&self, owner: &Owner) -> Option<Arc<Hold>> {
        self.lock().owners.of(self.side).live(owner).cloned()
    }

    /// Whether this owner has the lock on the other side.
    ///
    /// A writer may read too. A reader that asks to write has to be refused, since it would wait for itself.
    pub(crate) fn has_other_side(&self, owner: &Owner) -> bool {
        let state = self.lock();
        state.owners.of(self.side.other()).live(owner).is_some()
    }

    /// Whether an owner here holds the lock and has a guard of it.
    ///
    /// If so, the front need not ask, since the end of the hold wakes it. A hold that was left to its owner does not
    /// count: the owner may release it through another process.
    pub(crate) fn is_held_here(&self) -> bool {
        self.lock().is_held(self.side)
    }

    /// Returns a hold of the lock here, on either side. For messages to people: it may have ended before they read it.
    pub(crate) fn holder(&self) -> Option<Arc<Hold>> {
        let holds = self.lock().all_holds();
        holds.into_iter().find(|hold| hold.is_live())
    }

    /// Whether this process has a hold with this acquisition id.
    pub(super) fn has(&self, number: u64) -> bool {
        let holds = self.lock().all_holds();
        holds.iter().any(|hold| hold.key().numeral() == number)
    }

    /// Whether a hold here is renewed. A renewal notices its loss without further checks.
    pub(crate) fn is_renewed_here(&self) -> bool {
        let state = self.lock();
        let mut holds = state.owners.of(self.side).holds();
        holds.any(|hold| hold.is_live() && hold.is_renewed())
    }

    /// Returns the holds of the other side of a read-write lock here.
    ///
    /// A writer excludes all readers but its owner's. Any others show that one of the two was taken away.
    pub(crate) fn held_by_other_side(&self) -> Vec<Arc<Hold>> {
        let state = self.lock();
        let holds = state.owners.of(self.side.other()).holds();
        holds.cloned().collect()
    }

    /// Enters a hold that was granted. Returns the holds that it displaces, for the caller to give back. On the shared
    /// side, that is at most an older hold of the same owner.
    ///
    /// Called in one step, without an await, with the grant. The caller reports the displaced holds as lost: normally,
    /// the server would not have granted the lock if they stood.
    pub(crate) fn install(&self, hold: &Arc<Hold>) -> Vec<Arc<Hold>> {
        let (displaced, gone) = self.change(|state| {
            // The server has granted the lock, so the record of the handoff here is gone.
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
        // Dropped outside the mutex: it may be the last reference to a hold, or an `Undo`.
        drop(gone);
        displaced
    }

    /// Enters the hold that `join` makes for an owner from the record that readers may join. Returns `None` if there is
    /// no such record, if another call of this owner holds or asks for the lock, or if a writer of this process has the
    /// lock or goes first.
    ///
    /// `join` runs under the mutex, in one step with entering its hold.
    pub(crate) fn join(
        &self,
        owner: &Owner,
        yields_to: YieldsTo,
        join: impl FnOnce(&Hold) -> Option<Arc<Hold>>,
    ) -> Option<Arc<Hold>> {
        self.change(|state| {
            let writers = state.queue.standing(Side::Exclusive);
            let goes_behind = yields_to == YieldsTo::AnyWriter && writers > 0
                // A second hold of one owner is a re-entry, which the server has to count.
                || state.owners.shared.is_engaged(owner)
                // An owner that writes may read too, but nobody else joins the record of that.
                || state.owners.exclusive.holds().any(|hold| hold.is_live());
            if goes_behind {
                return None;
            }
            let hold = join(state.joinable.as_deref()?)?;
            state.put(Side::Shared, &hold);
            Some(hold)
        })
    }

    /// Returns how long a request for the lock takes, if another owner here has the lock and so excludes this owner.
    ///
    /// A call that asks within that time is refused. One that waits for that time may find the release in flight, and
    /// asks behind it.
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

    /// Returns the holds here with this record, to confirm or end them together.
    pub(crate) fn having(&self, record: &Arc<Record>) -> Vec<Arc<Hold>> {
        let state = self.lock();
        // The joinable hold may have ended, but holds that join its record start with what is confirmed for it.
        let all = state.owners.of(self.side).holds().chain(&state.joinable);
        all.filter(|hold| Arc::ptr_eq(&hold.record, record))
            .cloned()
            .collect()
    }

    /// Removes a hold that has ended, and tells the front.
    ///
    /// The caller has dealt with what is owed for it.
    pub(crate) fn forget(&self, hold: &Arc<Hold>) {
        drop(self.change(|state| state.remove(self.side, hold)));
    }

    /// Makes the front ask again, after an event that it may be waiting for.
    pub(crate) fn stir(&self) {
        self.change(|state| state.queue.stir_first(self.side));
    }

    /// Returns how many calls of this side stand in the local queue.
    pub(crate) fn in_queue(&self) -> u32 {
        u32::try_from(self.lock().queue.standing(self.side)).unwrap_or(u32::MAX)
    }

    /// Takes out the handoff, and makes every hold of this side keep its record from now on. Returns the handoff and
    /// the holds.
    ///
    /// For a release by force, which a record passed on in memory would survive unnoticed.
    pub(crate) fn stop_passing(&self) -> (Option<Handoff<D>>, Vec<Arc<Hold>>) {
        let mut state = self.lock();
        let holds = state.owners.of(self.side).holds().cloned();
        let holds: Vec<_> = holds.inspect(|hold| hold.record.stay()).collect();
        (state.left.take(self.side), holds)
    }

    /// Runs `step` on the state that decides whether other processes go first.
    ///
    /// Wakes nobody, since no call waits for such a change.
    pub(crate) fn turns<T>(&self, step: impl FnOnce(&mut Turns) -> T) -> T {
        step(&mut self.lock().turns)
    }

    /// Returns the arrival time and the owner of the first call that waits for this owner's hold. The owner is unknown
    /// for calls that cannot re-enter: those for plain locks, and for several locks at once.
    pub(super) fn first_behind(&self, holder: &Owner) -> Option<(BootInstant, Option<Owner>)> {
        let state = self.lock();
        let excludes = |side| Side::Exclusive == self.side || Side::Exclusive == side;
        let owners: HashMap<_, _> = state.owners.both().flat_map(OwnerTable::calls).collect();
        let arrivals = state.queue.arrivals();
        let mut excluded = arrivals.filter(|(_, side, _)| excludes(*side));
        excluded.find_map(|(ticket, _, came)| {
            let owner = owners.get(&ticket).copied();
            (owner != Some(holder)).then(|| (came, owner.cloned()))
        })
    }

    /// Returns the arrival time of a writer that asks now: `came`, or later if readers that arrived later have asked
    /// before it.
    pub(crate) fn behind_readers(&self, came: BootInstant) -> BootInstant {
        self.lock().queue.behind_readers(came)
    }
}

impl<D> LockState<D> {
    /// Returns the holds of both sides, including those that can no longer be trusted.
    pub(super) fn all_holds(&self) -> Vec<Arc<Hold>> {
        let both = self.owners.both().flat_map(OwnerTable::holds);
        both.cloned().collect()
    }

    /// Whether a hold of this side can be trusted and has a guard.
    pub(super) fn is_held(&self, side: Side) -> bool {
        let mut holds = self.owners.of(side).holds();
        holds.any(|hold| hold.is_live() && hold.is_guarded())
    }

    /// Enters a hold of its owner, and tells the owner's other calls. Returns the hold before it.
    pub(super) fn put(&mut self, side: Side, hold: &Arc<Hold>) -> Option<Arc<Hold>> {
        let older = self.owners.of_mut(side).put(hold);
        self.tell(&hold.owner, LocalQueue::stir);
        older
    }

    /// Tells the waiting calls of this owner.
    ///
    /// Includes both sides, since an owner that writes may have calls that wait to read.
    pub(super) fn tell(&mut self, owner: &Owner, tell: impl Fn(&mut LocalQueue, Ticket)) {
        for owners in self.owners.both() {
            for ticket in owners.waiting(owner) {
                tell(&mut self.queue, *ticket);
            }
        }
    }

    /// Removes a hold that has ended, and tells the front. Of readers, the front is told only when their record is
    /// given back.
    ///
    /// The hold is returned rather than dropped, since the caller has the mutex.
    pub(super) fn remove(&mut self, side: Side, hold: &Arc<Hold>) -> Option<Arc<Hold>> {
        if side == Side::Exclusive {
            self.queue.stir_first(side);
        }
        self.owners.of_mut(side).remove(hold)
    }
}

/// The writers that a reader lets go first, before it joins other readers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum YieldsTo {
    /// All calls that wait in this process to write.
    AnyWriter,
    /// No writers: those that came before have gone.
    Nobody,
}

impl<D> Clone for LocalLockRef<D> {
    fn clone(&self) -> Self {
        Self::to(&self.local, self.side)
    }
}

impl<D> Drop for LocalLockRef<D> {
    fn drop(&mut self) {
        // Fails for the last reference, which has to be dropped under the lock of the shard.
        let others = |users: usize| (users > 1).then(|| users - 1);
        let users = &self.local.users;
        if users
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, others)
            .is_ok()
        {
            return;
        }
        let (local_locks, key) = &self.local.home;
        // If not, the client is gone.
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
    use super::super::sync::{Spawner, TIMERS, ended, orders};
    use super::*;
    use crate::name::LockName;
    use crate::options::{LeaseMode, LeaseTime, Prefer};
    use crate::protocol::hold_key::{HoldKey, Kind, ReadWrite};

    /// In all orders.
    static JOINED: AtomicU64 = AtomicU64::new(0);

    /// A server with one read lock, and the readers of a process.
    struct Model {
        /// The acquisition ids that the server records.
        records: Mutex<BTreeSet<String>>,
        numbers: AtomicU64,
        kind: Kind,
        name: LockName,
        local: LocalLockRef<Owing>,
    }

    /// Something to undo on that server: done when dropped.
    struct Owing(Arc<Model>, Arc<Record>);

    impl Drop for Owing {
        fn drop(&mut self) {
            let Self(model, record) = self;
            record.releases();
            let released = model.server().remove(record.key.number());
            record.released(&Ok(released));
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
            if left == hold::Remainder::Others {
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

        /// Reads as a reader does: joins the others, or else comes to the front and joins, takes over a handoff, or
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

        /// Waits until the task that watches handoffs has given back what it took out.
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
        shuttle::check_random(readers, orders());
        let joined = JOINED.load(Ordering::Relaxed);
        assert!(joined > orders() as u64, "joined {joined} times only");
    }
}
