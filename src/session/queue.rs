//! All that this process has to do with one lock, under one mutex: who holds it, who waits for it, what was given back and is
//! left for one of these, and which releases are on their way.
//!
//! # Invariants
//!
//! 1. A handoff is left only while somebody stands in line who may take it; the last one to leave takes a handoff that is left
//!    with it. So a handoff is never forgotten.
//! 2. No handoff is left while a release of this lock waits to be sent: it could overtake that release. Those of readers are of
//!    other records.
//! 3. Nobody is woken, and nothing is dropped that does something of its own, under the mutex.

use std::collections::{BTreeSet, HashMap};
use std::future::poll_fn;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use dashmap::DashMap;

use super::hold::Hold;
use super::line::{Line, Role, Side, Ticket};
use super::record::Record;
use super::sync::{Mutex, MutexGuard, Spawner, sleep};
use super::turns::Turns;
use crate::clock::Moment;
use crate::name::QueueKey;
use crate::owner::Owner;

/// How often the call at the front is asked to show that it is polled, while others stand behind it. Futures that share a task
/// with another may not be, and nobody else may wait for them.
const UNPOLLED: Duration = Duration::from_secs(1);
/// Within so long it does.
const SHOWN_WITHIN: Duration = Duration::from_millis(100);

/// The queues of all lock names in use. `H` is the handoff: what is left for a waiter.
#[derive(Debug)]
pub(crate) struct Queues<H>(Arc<Map<H>>);

type Map<H> = DashMap<QueueKey, Arc<Queue<H>>>;

impl<H> Default for Queues<H> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

/// The waiters and holds of one lock, of a read-write lock those of both sides.
#[derive(Debug)]
struct Queue<H> {
    /// Where it is found, and by what.
    home: (Weak<Map<H>>, QueueKey),
    /// Counts the references to this queue. It leaves zero, and comes back to it, only under the lock of the map's
    /// shard, so that a queue that nobody uses can be removed without racing somebody who enters. Relaxed suffices:
    /// that lock orders it.
    users: AtomicUsize,
    state: Mutex<State<H>>,
}

#[derive(Debug)]
struct State<H> {
    line: Line,
    /// Of those that have or want the lock alone.
    owners: Owners,
    readers: Owners,
    /// Of one that readers may join, the hold that took it last.
    joinable: Option<Arc<Hold>>,
    left: Option<(Side, H)>,
    /// How many handoffs were left.
    handoffs: u64,
    /// A task sees to it that none lies for long.
    is_watched: bool,
    /// A task looks whether those at the front are polled.
    is_front_watched: bool,
    turns: Turns,
    /// The releases that are on their way. An acquisition that overtook one would find the lock busy by ourselves.
    sending: Vec<OnItsWay>,
    /// Those that wait for one of them.
    heeding: BTreeSet<Ticket>,
}

/// A release that is on its way.
#[derive(Debug)]
struct OnItsWay {
    number: u64,
    side: Side,
    owner: Owner,
    /// What is asked from now on comes behind it.
    is_ahead: bool,
}

/// Whose releases are in the way of an acquisition while they are on their way: of the other side, those of the same owner that
/// are not ahead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Heed {
    /// Until they are answered, which tells who waits.
    Answered,
    /// Until they are ahead on the connection.
    Sent,
    /// The same for the owner's own, of those that read.
    Own,
}

impl OnItsWay {
    fn is_in_the_way(&self, side: Side, owner: &Owner, heed: Heed) -> bool {
        let is_own = || self.owner == *owner;
        match heed {
            Heed::Own => self.side == side && !self.is_ahead && is_own(),
            _ if self.side != side => !self.is_ahead && is_own(),
            Heed::Answered => true,
            Heed::Sent => !self.is_ahead,
        }
    }
}

/// What the owners have here.
#[derive(Debug, Default)]
struct Owners(HashMap<Owner, Slot>);

#[derive(Debug, Default)]
struct Slot {
    hold: Option<Arc<Hold>>,
    /// A call asks the server for this owner's first level: to another one, which has a hold number of its own, the
    /// lock would look busy.
    asking: bool,
    /// That call stands in a queue on the server, which may last; another finds out for itself what is its owner's.
    in_queue: bool,
    /// Those that are told when one of the above has changed.
    waiting: Vec<Ticket>,
}

/// What a call that waits in line is to do now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// Its owner has the lock: it takes it once more.
    Held,
    /// It asks.
    First,
}

impl<H> Queues<H> {
    /// The queue of a lock, made if there is none.
    pub(crate) fn enter(&self, key: QueueKey) -> QueueRef<H> {
        let (side, key) = parts(key);
        let home = || (Arc::downgrade(&self.0), key.clone());
        let queue = self.0.entry(key.clone());
        QueueRef::to(&queue.or_insert_with(|| Queue::new(home())), side)
    }

    /// The queue of a lock, if somebody uses it.
    pub(crate) fn find(&self, key: QueueKey) -> Option<QueueRef<H>> {
        let (side, key) = parts(key);
        Some(QueueRef::to(&*self.0.get(&key)?, side))
    }

    /// Every hold of this process.
    pub(crate) fn holds(&self) -> Vec<Arc<Hold>> {
        let queues = self.0.iter();
        queues.flat_map(|queue| queue.lock().all_holds()).collect()
    }

    /// How many calls wait to ask for a lock.
    pub(crate) fn in_line(&self) -> usize {
        self.0.iter().map(|queue| queue.lock().line.len()).sum()
    }

    /// How many lock names are in use.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }
}

fn parts(key: QueueKey) -> (Side, QueueKey) {
    let side = match key.is_of_readers() {
        true => Side::Shared,
        false => Side::Alone,
    };
    (side, key.of_both_sides())
}

impl<H> Queue<H> {
    fn new(home: (Weak<Map<H>>, QueueKey)) -> Arc<Self> {
        Arc::new(Self {
            home,
            users: AtomicUsize::new(0),
            state: Mutex::new(State {
                line: Line::default(),
                owners: Owners::default(),
                readers: Owners::default(),
                joinable: None,
                left: None,
                handoffs: 0,
                is_watched: false,
                is_front_watched: false,
                turns: Turns::default(),
                sending: Vec::new(),
                heeding: BTreeSet::new(),
            }),
        })
    }

    fn lock(&self) -> MutexGuard<'_, State<H>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes something, and wakes whom it concerns.
    fn change<T>(&self, step: impl FnOnce(&mut State<H>) -> T) -> T {
        let mut state = self.lock();
        let value = step(&mut state);
        let woken = state.line.move_up();
        drop(state);
        for waker in woken {
            waker.wake();
        }
        value
    }
}

/// A queue in use, seen from one side. The last one to go removes it, unless somebody holds the lock.
#[derive(Debug)]
pub(crate) struct QueueRef<H> {
    queue: Arc<Queue<H>>,
    side: Side,
}

impl<H> QueueRef<H> {
    /// To a queue that is in the map, and in the shard that is locked, or in use.
    fn to(queue: &Arc<Queue<H>>, side: Side) -> Self {
        queue.users.fetch_add(1, Ordering::Relaxed);
        let queue = queue.clone();
        Self { queue, side }
    }

    /// The same from the other side.
    pub(crate) fn other_side(&self) -> Self {
        Self::to(&self.queue, self.side.other())
    }

    fn lock(&self) -> MutexGuard<'_, State<H>> {
        self.queue.lock()
    }

    /// The hold of this owner, if it can be trusted.
    pub(crate) fn live(&self, owner: &Owner) -> Option<Arc<Hold>> {
        self.lock().live(self.side, owner)
    }

    /// Whether this owner has the lock by the other side.
    pub(crate) fn has_other_side(&self, owner: &Owner) -> bool {
        self.lock().live(self.side.other(), owner).is_some()
    }

    /// Whether anybody here holds the lock and cares for it.
    pub(crate) fn is_held_here(&self) -> bool {
        self.lock().is_held(self.side)
    }

    /// Whether what is held here is renewed, so that a loss is noticed without being looked for.
    pub(crate) fn is_renewed_here(&self) -> bool {
        let state = self.lock();
        let mut holds = state.owners(self.side).holds();
        holds.any(|hold| hold.is_live() && hold.is_renewed())
    }

    pub(crate) fn holds(&self) -> Vec<Arc<Hold>> {
        let state = self.lock();
        state.owners(self.side).holds().cloned().collect()
    }

    /// Notes a hold that was granted. The others that it displaces are given back: of a lock that is shared, at most
    /// an older one of the same owner.
    pub(crate) fn install(&self, hold: &Arc<Hold>) -> Vec<Arc<Hold>> {
        let (displaced, gone) = self.queue.change(|state| {
            let displaced = match self.side {
                Side::Alone => {
                    state.turns.is_had();
                    state.owners.holds().cloned().collect()
                }
                Side::Shared => Vec::new(),
            };
            let older = state.put(self.side, hold);
            // The server has granted the lock: what was left here was gone.
            let gone = state.take_left(self.side);
            match self.side {
                Side::Alone => (displaced, gone),
                Side::Shared => {
                    state.joinable = Some(hold.clone());
                    (older.into_iter().collect(), gone)
                }
            }
        });
        drop(gone);
        displaced
    }

    /// Notes the hold that `join` makes for an owner beside one that readers may join. `None` if there is none, another call of
    /// this owner has to do with the lock, or a writer of this process has it or goes first.
    pub(crate) fn join(
        &self,
        owner: &Owner,
        lets: Lets,
        join: impl FnOnce(&Hold) -> Option<Arc<Hold>>,
    ) -> Option<Arc<Hold>> {
        self.queue.change(|state| {
            let writers = state.line.standing(Side::Alone);
            let is_engaged = |slot: &Slot| slot.asking || slot.hold.is_some();
            let goes_behind = lets == Lets::AnyWriter && writers > 0
                || state.readers.0.get(owner).is_some_and(is_engaged)
                // Who writes may read too, by a record that is nobody else's.
                || state.owners.holds().any(|hold| hold.is_live());
            if goes_behind {
                return None;
            }
            let hold = join(state.joinable.as_deref()?)?;
            state.put(Side::Shared, &hold);
            Some(hold)
        })
    }

    /// How long a request for the lock took, if somebody here has it but this owner so that it cannot be had beside them.
    pub(crate) fn is_taken_for(&self, owner: &Owner) -> Option<Duration> {
        let state = self.lock();
        let readers = state.readers.holds().filter(|_| self.side == Side::Alone);
        let holds = readers.chain(state.owners.holds());
        let others = holds.filter(|hold| hold.is_live() && hold.owner != *owner);
        let is_left = self.side == Side::Alone && state.has_left(Side::Shared);
        let left = state.joinable.iter().filter(|_| is_left);
        others.chain(left).map(|hold| hold.record.trip()).max()
    }

    /// The holds here that have this record.
    pub(crate) fn having(&self, record: &Arc<Record>) -> Vec<Arc<Hold>> {
        let state = self.lock();
        // The one that others join may have ended itself; they begin with what is confirmed for it.
        let all = state.owners(self.side).holds().chain(&state.joinable);
        all.filter(|hold| Arc::ptr_eq(&hold.record, record))
            .cloned()
            .collect()
    }

    /// Removes a hold that has ended, and lets the front know.
    pub(crate) fn forget(&self, hold: &Arc<Hold>) {
        self.queue.change(|state| {
            state.owners_mut(self.side).remove(hold);
            // Of readers it is said when what they have is given back.
            if self.side == Side::Alone {
                state.line.stir_first(Side::Alone);
            }
        });
    }

    /// Something has happened that the front may wait for.
    pub(crate) fn stir(&self) {
        self.queue.change(|state| state.line.stir_first(self.side));
    }

    /// Waits until this owner holds the lock, by another call.
    pub(crate) async fn appeared(&self, owner: &Owner) {
        let appeared = |state: &mut State<H>| state.live(self.side, owner).map(drop);
        self.until(owner, false, appeared).await;
    }

    /// The turn to ask, if nothing is in the way: no release, unless a handoff lies here, and no other call.
    pub(crate) fn turn_at_once<'a>(
        &'a self,
        owner: &'a Owner,
        heed: Heed,
    ) -> Option<Asking<'a, H>> {
        let mut state = self.lock();
        let open = state.is_settled(self.side, owner, heed);
        (open && state.claim_turn(self.side, owner)).then(|| Asking { queue: self, owner })
    }

    /// The turn to ask, if nobody here holds the lock or waits for what becomes of it.
    pub(crate) fn turn_if_idle<'a>(&'a self, owner: &'a Owner) -> Option<Asking<'a, H>> {
        let mut state = self.lock();
        let idle = state.sending.is_empty()
            && state.left.is_none()
            && state.turns.courtesy().is_none()
            && state.owners(self.side).holds().next().is_none();
        (idle && state.claim_turn(self.side, owner)).then(|| Asking { queue: self, owner })
    }

    /// Waits for releases on their way, unless a handoff lies here, then for the turn to ask. None if a call of this
    /// owner stands in a queue: to ask beside it does no harm.
    pub(crate) async fn turn<'a>(&'a self, owner: &'a Owner, heed: Heed) -> Option<Asking<'a, H>> {
        let turn = |state: &mut State<H>| {
            if !state.is_settled(self.side, owner, heed) {
                return None;
            }
            let slot = state.owners(self.side).0.get(owner);
            if slot.is_some_and(|slot| slot.in_queue) {
                return Some(false);
            }
            state.claim_turn(self.side, owner).then_some(true)
        };
        let claimed = self.until(owner, true, turn).await;
        claimed.then(|| Asking { queue: self, owner })
    }

    /// Waits until no other call asks the server for this owner's first level. It may hold the lock then.
    pub(crate) async fn asking<'a>(&'a self, owner: &'a Owner) -> Asking<'a, H> {
        let claim = |state: &mut State<H>| state.claim_turn(self.side, owner).then_some(());
        self.until(owner, false, claim).await;
        Asking { queue: self, owner }
    }

    /// Waits for what a change of this owner's slot brings about, or of the releases that it heeds.
    async fn until<T>(
        &self,
        owner: &Owner,
        heeds: bool,
        mut ready: impl FnMut(&mut State<H>) -> Option<T>,
    ) -> T {
        let place = self.stand(Role::Apart, Some(owner));
        if heeds {
            self.lock().heeding.insert(place.ticket);
        }
        poll_fn(|context| place.poll(context, &mut ready)).await
    }

    /// Stands in line, until the place is dropped.
    pub(crate) fn stand<'a>(&'a self, role: Role, owner: Option<&'a Owner>) -> Place<'a, H> {
        let ticket = self.queue.change(|state| {
            let ticket = state.line.stand(self.side, role);
            if let Some(owner) = owner {
                let slots = &mut state.owners_mut(self.side).0;
                slots.entry(owner.clone()).or_default().waiting.push(ticket);
            }
            ticket
        });
        let queue = self;
        Place {
            queue,
            owner,
            ticket,
        }
    }

    /// Whether this process may have a place in line on the server from now on.
    pub(crate) fn note_place(&self, is_placed: bool) {
        self.lock().turns.is_placed = is_placed;
    }

    /// Gives up that place, if nobody is left here to come when it is told. Whoever comes now asks behind that.
    pub(crate) fn give_up_place(&self, leave: impl FnOnce()) {
        let mut state = self.lock();
        if state.line.len() == 0 && std::mem::take(&mut state.turns.is_placed) {
            leave();
        }
    }

    /// How many calls stand in line.
    pub(crate) fn in_line(&self) -> u32 {
        u32::try_from(self.lock().line.standing(self.side)).unwrap_or(u32::MAX)
    }

    /// Makes a handoff of an undo and leaves it for whoever is next in line. Also returns whether a task watches it
    /// already. The undo is given back if nobody is in line, or if a release is on its way.
    pub(crate) fn offer<D, R>(
        &self,
        undo: D,
        leave: impl FnOnce(D) -> (H, R),
    ) -> Result<(R, bool), D> {
        self.queue.change(|state| {
            let side = self.side;
            // What was granted since was asked behind those that are ahead.
            let is_overtaking =
                side == Side::Alone && state.sending.iter().any(|one| !one.is_ahead);
            if !state.line.has_heir(side) || is_overtaking || state.left.is_some() {
                return Err(undo);
            }
            let (handoff, rest) = leave(undo);
            state.left = Some((side, handoff));
            state.handoffs += 1;
            state.line.stir_first(side);
            Ok((rest, std::mem::replace(&mut state.is_watched, true)))
        })
    }

    /// The number of the handoff that lies here. `None` if there is none: then the next one is to be watched anew.
    pub(crate) fn lies(&self) -> Option<u64> {
        let mut state = self.lock();
        state.is_watched = state.left.is_some();
        state.is_watched.then_some(state.handoffs)
    }

    /// Takes back the handoff of this number, if it still lies here.
    pub(crate) fn take_back(&self, number: u64) -> Option<H> {
        let mut state = self.lock();
        let is_it = state.handoffs == number;
        state.left.take_if(|_| is_it).map(|(_, handoff)| handoff)
    }

    /// Whether a handoff was left.
    pub(crate) fn has_handoff(&self) -> bool {
        self.lock().has_left(self.side)
    }

    /// Takes the handoff out, if one was left, and has no hold here pass its record on from now on. Every hold.
    pub(crate) fn stop_passing(&self) -> (Option<H>, Vec<Arc<Hold>>) {
        let mut state = self.lock();
        let holds = state.owners(self.side).holds().cloned();
        let holds: Vec<_> = holds.inspect(|hold| hold.record.stay()).collect();
        (state.take_left(self.side), holds)
    }

    /// Takes the handoff out, if one was left.
    pub(crate) fn take_handoff(&self) -> Option<H> {
        self.lock().take_left(self.side)
    }

    /// For the front of the line: takes the handoff, if one was left, and notes the hold that `pass` makes of it, in one
    /// step. If none comes of it, or somebody else was granted the lock meanwhile, which shows that what was left is gone,
    /// the handoff is there to be dropped.
    pub(crate) fn take_over(
        &self,
        pass: impl FnOnce(&H) -> Option<Arc<Hold>>,
    ) -> Option<(H, Option<Arc<Hold>>)> {
        self.queue.change(|state| {
            let handoff = state.take_left(self.side)?;
            let is_had = self.side == Side::Alone && state.owners.holds().any(|it| it.is_live());
            let hold = match is_had {
                true => None,
                false => pass(&handoff),
            };
            if let Some(hold) = &hold {
                state.turns.is_had();
                state.turns.count(true);
                state.put(self.side, hold);
            }
            Some((handoff, hold))
        })
    }

    /// Sees to whose turn it is.
    pub(crate) fn turns<T>(&self, step: impl FnOnce(&mut Turns) -> T) -> T {
        step(&mut self.lock().turns)
    }

    /// When a writer counts as come that asks now: not before the readers that asked before it.
    pub(crate) fn behind_readers(&self, came: Moment) -> Moment {
        self.lock().line.behind_readers(came)
    }
}

/// Whom a reader that may join others lets go first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lets {
    /// All that wait in this process to write.
    AnyWriter,
    /// Nobody more: those that came before have gone.
    Nobody,
}

impl<H> State<H> {
    fn owners(&self, side: Side) -> &Owners {
        match side {
            Side::Alone => &self.owners,
            Side::Shared => &self.readers,
        }
    }

    fn owners_mut(&mut self, side: Side) -> &mut Owners {
        match side {
            Side::Alone => &mut self.owners,
            Side::Shared => &mut self.readers,
        }
    }

    fn all_holds(&self) -> Vec<Arc<Hold>> {
        let both = self.owners.holds().chain(self.readers.holds());
        both.cloned().collect()
    }

    fn live(&self, side: Side, owner: &Owner) -> Option<Arc<Hold>> {
        let slot = self.owners(side).0.get(owner)?;
        slot.hold.clone().filter(|hold| hold.is_live())
    }

    fn is_held(&self, side: Side) -> bool {
        let mut holds = self.owners(side).holds();
        holds.any(|hold| hold.is_live() && hold.is_guarded())
    }

    /// Notes a hold of its owner, and lets its other calls know; returns the one before.
    fn put(&mut self, side: Side, hold: &Arc<Hold>) -> Option<Arc<Hold>> {
        let slots = &mut self.owners_mut(side).0;
        let slot = slots.entry(hold.owner.clone()).or_default();
        let older = slot.hold.replace(hold.clone());
        for ticket in self.waiting(&hold.owner) {
            self.line.stir(ticket);
        }
        older
    }

    /// The calls of this owner that wait for something.
    fn waiting(&self, owner: &Owner) -> Vec<Ticket> {
        let slots = [&self.owners, &self.readers].map(|owners| owners.0.get(owner));
        let slots = slots.into_iter().flatten();
        slots.flat_map(|slot| slot.waiting.clone()).collect()
    }

    /// False if another call has the turn to ask for this owner.
    fn claim_turn(&mut self, side: Side, owner: &Owner) -> bool {
        let slots = &mut self.owners_mut(side).0;
        let slot = slots.entry(owner.clone()).or_default();
        !std::mem::replace(&mut slot.asking, true)
    }

    /// No release is in the way of an acquisition, or a handoff lies here.
    fn is_settled(&self, side: Side, owner: &Owner, heed: Heed) -> bool {
        let mut sending = self.sending.iter();
        self.has_left(side) || !sending.any(|one| one.is_in_the_way(side, owner, heed))
    }

    fn has_left(&self, side: Side) -> bool {
        self.left.as_ref().is_some_and(|(left, _)| *left == side)
    }

    fn take_left(&mut self, side: Side) -> Option<H> {
        let left = self.left.take_if(|(left, _)| *left == side);
        left.map(|(_, handoff)| handoff)
    }

    /// A release is no longer on its way, or is ahead.
    fn settle(&mut self) {
        for ticket in self.heeding.clone() {
            self.line.stir(ticket);
        }
    }
}

impl Owners {
    fn holds(&self) -> impl Iterator<Item = &Arc<Hold>> {
        self.0.values().filter_map(|slot| slot.hold.as_ref())
    }

    fn remove(&mut self, hold: &Arc<Hold>) {
        if let Some(slot) = self.0.get_mut(&hold.owner) {
            slot.hold.take_if(|held| Arc::ptr_eq(held, hold));
            self.tidy(&hold.owner);
        }
    }

    fn tidy(&mut self, owner: &Owner) {
        let is_unused =
            |slot: &Slot| slot.hold.is_none() && !slot.asking && slot.waiting.is_empty();
        if self.0.get(owner).is_some_and(is_unused) {
            self.0.remove(owner);
        }
    }
}

/// A place in line, until dropped.
#[derive(Debug)]
pub(crate) struct Place<'a, H> {
    queue: &'a QueueRef<H>,
    owner: Option<&'a Owner>,
    ticket: Ticket,
}

impl<H> Place<'_, H> {
    /// Waits until it is this call's turn, or its owner has the lock by another call.
    pub(crate) async fn comes(&self, reenters: bool) -> Turn {
        poll_fn(|context| self.poll(context, |state| self.turn(state, reenters))).await
    }

    /// What it is to do now, if not to wait.
    pub(crate) fn now(&self, reenters: bool) -> Option<Turn> {
        let queue = &self.queue.queue;
        queue.change(|state| self.turn(state, reenters))
    }

    fn turn(&self, state: &mut State<H>, reenters: bool) -> Option<Turn> {
        let side = self.queue.side;
        let has = |side| self.owner.is_some_and(|it| state.live(side, it).is_some());
        if reenters && has(side) {
            return Some(Turn::Held);
        }
        // Whoever stands before it may wait for what its owner writes.
        if side == Side::Shared && has(Side::Alone) {
            state.line.goes_beside(self.ticket);
        }
        state.line.is_first(self.ticket).then_some(Turn::First)
    }

    /// From now on it stands in nobody's way, and asks when it likes.
    pub(crate) fn goes_beside(&self) {
        let queue = &self.queue.queue;
        queue.change(|state| state.line.goes_beside(self.ticket));
    }

    /// A reader at the front has asked. If it was refused, the server dates it before `latest`.
    pub(crate) fn has_asked(&self, latest: Option<Moment>) {
        let queue = &self.queue.queue;
        queue.change(|state| state.line.has_asked(self.ticket, latest));
    }

    /// The call is polled, and may not be polled again before this moment.
    pub(crate) fn is_alive(&self, until: Moment) {
        self.queue.lock().line.is_alive(self.ticket, until);
    }

    /// What has happened up to now is known.
    pub(crate) fn catch_up(&self) {
        self.queue.lock().line.is_stirred(self.ticket);
    }

    /// Waits until something happens here that makes it worth asking.
    pub(crate) async fn news(&self) {
        let news = |state: &mut State<H>| state.line.is_stirred(self.ticket).then_some(());
        poll_fn(|context| self.poll(context, news)).await;
    }

    fn poll<T>(
        &self,
        context: &mut Context<'_>,
        ready: impl FnOnce(&mut State<H>) -> Option<T>,
    ) -> Poll<T> {
        self.queue.queue.change(|state| {
            let ready = ready(state);
            if ready.is_none() {
                state.line.waits(self.ticket, context.waker());
            }
            ready.map_or(Poll::Pending, Poll::Ready)
        })
    }
}

impl<H> Drop for Place<'_, H> {
    fn drop(&mut self) {
        let side = self.queue.side;
        let forgotten = self.queue.queue.change(|state| {
            state.line.leave(self.ticket);
            state.heeding.remove(&self.ticket);
            if let Some(owner) = self.owner {
                let owners = state.owners_mut(side);
                if let Some(slot) = owners.0.get_mut(owner) {
                    slot.waiting.retain(|ticket| *ticket != self.ticket);
                }
                owners.tidy(owner);
            }
            match state.line.has_heir(side) {
                true => None,
                false => state.take_left(side),
            }
        });
        drop(forgotten);
    }
}

/// The turn to ask the server for an owner's first level, until dropped.
#[derive(Debug)]
pub(crate) struct Asking<'a, H> {
    queue: &'a QueueRef<H>,
    owner: &'a Owner,
}

impl<H> Asking<'_, H> {
    /// From now on the call stands in a queue on the server.
    pub(crate) fn stands_in_queue(&self) {
        self.set(true);
    }

    fn set(&self, in_queue: bool) {
        let side = self.queue.side;
        self.queue.queue.change(|state| {
            let owners = state.owners_mut(side);
            if let Some(slot) = owners.0.get_mut(self.owner) {
                slot.asking = in_queue;
                slot.in_queue = in_queue;
            }
            owners.tidy(self.owner);
            for ticket in state.waiting(self.owner) {
                state.line.stir_apart(ticket);
            }
        });
    }
}

impl<H> Drop for Asking<'_, H> {
    fn drop(&mut self) {
        self.set(false);
    }
}

/// Marks a release as on its way, until dropped.
#[derive(Debug)]
pub(crate) struct Sending<H> {
    queue: QueueRef<H>,
    number: u64,
}

impl<H> Sending<H> {
    pub(crate) fn new(queue: QueueRef<H>, owner: Owner) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        queue.lock().sending.push(OnItsWay {
            number,
            side: queue.side,
            owner,
            is_ahead: false,
        });
        Self { queue, number }
    }

    /// It is ahead of all that is asked from now on, or has to be sent again. The last one of one side of a read-write lock here
    /// lets the other side here ask.
    pub(crate) fn is_ahead(&self, is_ahead: bool) {
        let side = self.queue.side;
        self.queue.queue.change(|state| {
            let is_it = |one: &&mut OnItsWay| one.number == self.number;
            if let Some(it) = state.sending.iter_mut().find(is_it) {
                it.is_ahead = is_ahead;
            }
            state.settle();
            if is_ahead && !state.is_held(side) {
                state.line.stir_first(side.other());
            }
        });
    }
}

impl<H> Drop for Sending<H> {
    fn drop(&mut self) {
        self.queue.queue.change(|state| {
            state.sending.retain(|one| one.number != self.number);
            state.settle();
        });
    }
}

impl<H: Send + 'static> QueueRef<H> {
    /// Has those at the front looked after while others stand behind them.
    pub(crate) fn watch_front(&self, runtime: &Spawner) {
        if std::mem::replace(&mut self.lock().is_front_watched, true) {
            return;
        }
        let queue = self.clone();
        runtime.spawn(async move {
            while queue.is_crowded() {
                sleep(UNPOLLED).await;
                let since = Moment::now();
                let poked = queue.queue.change(|state| state.line.poke());
                sleep(SHOWN_WITHIN).await;
                queue
                    .queue
                    .change(|state| state.line.pass_unpolled(poked, since));
            }
        });
    }

    /// Whether anybody stands behind another call. If not, the watch is over.
    fn is_crowded(&self) -> bool {
        let mut state = self.lock();
        state.is_front_watched = state.line.is_crowded();
        state.is_front_watched
    }
}

impl<H> Clone for QueueRef<H> {
    fn clone(&self) -> Self {
        Self::to(&self.queue, self.side)
    }
}

impl<H> Drop for QueueRef<H> {
    fn drop(&mut self) {
        let others = |users: usize| (users > 1).then(|| users - 1);
        let users = &self.queue.users;
        if users
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, others)
            .is_ok()
        {
            return;
        }
        let (queues, key) = &self.queue.home;
        // Else the client is gone.
        if let Some(queues) = queues.upgrade() {
            queues.remove_if(key, |_, queue| {
                let is_last = queue.users.fetch_sub(1, Ordering::Relaxed) == 1;
                is_last && queue.lock().all_holds().is_empty()
            });
        }
    }
}
