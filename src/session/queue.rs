//! One queue per lock: who waits for it in this process, who holds it, and what is handed from one to the next.
//!
//! # Invariants
//!
//! 1. A handoff is left only while somebody stands in line who may take it, under the same mutex that counts them; the last
//!    one to leave takes a handoff that is left with it. So a handoff is never forgotten.
//! 2. No handoff is left while a release of this lock waits to be sent: it could overtake that release. Those of readers are of
//!    other records.

use std::collections::HashMap;
use std::convert::Infallible;
use std::future::Future;
use std::ops::Deref;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, Weak};
use std::time::Duration;

use dashmap::DashMap;
use tokio::sync::RwLock;

use super::hold::Hold;
use super::record::Record;
use super::sync::{Mutex, MutexGuard, Notify, Semaphore, SemaphorePermit, Spawner, sleep};
use crate::clock::Moment;
use crate::name::QueueKey;
use crate::owner::Owner;

/// For so long others are taken to wait who waited when they were last asked about.
const REMEMBERED: Duration = Duration::from_secs(1);
/// How long the lock is passed on within this process while others wait: behind the first section that comes to its end
/// after that, it is their turn.
const LONGEST_STREAK: Duration = Duration::from_millis(5);

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

/// The waiters and holds of one lock.
///
/// Only the waiter at the front talks to the server, so that ten thousand waiters cost as little as one. Of a read-write
/// lock, the line of the writers is one for both sides, if whoever came first goes first.
#[derive(Debug)]
pub(crate) struct Queue<H> {
    /// Where it is found, and by what.
    home: (Weak<Map<H>>, QueueKey),
    /// Counts the references to this queue. It leaves zero, and comes back to it, only under the lock of the map's
    /// shard, so that a queue that nobody uses can be removed without racing somebody who enters. Relaxed suffices:
    /// that lock orders it.
    users: AtomicUsize,
    /// Its one permit is the front of the line. tokio's semaphore is fair, and hands the permit of a cancelled
    /// waiter on.
    pub(crate) front: Semaphore,
    /// Of the writers' side of a read-write lock: keeps the order of both sides. Fair as well.
    pub(crate) gate: RwLock<()>,
    /// Tells one side of a read-write lock that the last release of the other side here was sent: what is asked from now
    /// on comes behind it.
    pub(crate) opened: Notify,
    /// Tells the waiter at the front that a hold here has ended. Keeps one signal if nobody listens just then.
    pub(crate) freed: Notify,
    /// Asks the call at the front to show that it is polled.
    poked: Notify,
    /// Tells everybody that a release is no longer on its way.
    settled: Notify,
    state: Mutex<State<H>>,
}

#[derive(Debug)]
struct State<H> {
    owners: HashMap<Owner, Slot>,
    /// Of one that readers may join, the hold that took it last.
    joinable: Option<Arc<Hold>>,
    /// How many calls stand in line, the front included.
    in_line: usize,
    /// How many of them a lock that is given back may be left for: all, but for readers that writers here stand before.
    heirs: usize,
    handoff: Option<H>,
    /// How many handoffs were left.
    handoffs: u64,
    /// A task sees to it that none lies for long.
    is_watched: bool,
    /// How often in a row the lock was passed on within this process, and since when.
    streak: u32,
    passing_since: Option<Moment>,
    /// When others were last known to wait for the lock.
    others_waited: Option<Moment>,
    /// Others that wait go first.
    courtesy: Option<Courtesy>,
    /// This process has a place in line on the server, or may have.
    is_placed: bool,
    /// Of the writers' side of a read-write lock: readers that went through the gate came before this, by the server's
    /// account.
    readers_came: Option<Moment>,
    /// Who stands at the front. Those that nobody polled are not counted.
    at_front: Option<u64>,
    /// Whoever stands there was polled then, or has reason to be polled no earlier.
    alive: Moment,
    /// A task looks whether it is.
    is_front_watched: bool,
    /// The releases that are on their way. An acquisition that overtook one would find the lock busy by ourselves.
    sending: Vec<OnItsWay>,
}

/// A release that is on its way.
#[derive(Debug)]
struct OnItsWay {
    number: u64,
    owner: Owner,
    /// What is asked from now on comes behind it.
    is_ahead: bool,
}

/// Whose releases are in the way of an acquisition while they are on their way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Heed {
    /// Until they are answered, which tells who waits.
    Answered,
    /// Until they are ahead on the connection.
    Sent,
    /// The same of a lock that is shared, for the owner's own.
    Own,
}

impl Heed {
    fn is_settled(self, sending: &[OnItsWay], owner: &Owner) -> bool {
        let mut in_the_way = sending.iter().filter(|one| match self {
            Self::Answered => true,
            Self::Sent => !one.is_ahead,
            Self::Own => !one.is_ahead && one.owner == *owner,
        });
        in_the_way.next().is_none()
    }
}

/// Whom a process that had the lock lets go first: as many as were told that it is free, each of whom tells when it
/// gives the lock back in turn.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Courtesy {
    /// The last of their messages, by the hub's count.
    pub(crate) last_message: u64,
    /// If it stays quiet for so long, nobody else wants the lock just now.
    pub(crate) pause: Duration,
}

/// What one owner has here.
#[derive(Debug, Default)]
struct Slot {
    hold: Option<Arc<Hold>>,
    /// A call asks the server for this owner's first level: to another one, which has a hold number of its own, the
    /// lock would look busy.
    asking: bool,
    /// That call stands in a queue on the server, which may last; another finds out for itself what is its owner's.
    in_queue: bool,
    waiting: u32,
    /// Tells those that wait that one of the above has changed. Made when the first one waits.
    signal: Option<Arc<Notify>>,
}

impl<H> Queues<H> {
    /// The queue of a lock, made if there is none.
    pub(crate) fn enter(&self, key: QueueKey) -> QueueRef<H> {
        let home = || (Arc::downgrade(&self.0), key.clone());
        let queue = self.0.entry(key.clone());
        QueueRef::to(&queue.or_insert_with(|| Queue::new(home())))
    }

    /// The queue of a lock, if somebody uses it.
    pub(crate) fn find(&self, key: QueueKey) -> Option<QueueRef<H>> {
        Some(QueueRef::to(&*self.0.get(&key)?))
    }

    /// Every hold of this process.
    pub(crate) fn holds(&self) -> Vec<Arc<Hold>> {
        self.0.iter().flat_map(|queue| queue.holds()).collect()
    }

    /// How many calls stand in line for a lock.
    pub(crate) fn in_line(&self) -> usize {
        self.0.iter().map(|queue| queue.lock().in_line).sum()
    }

    /// How many lock names are in use.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }
}

impl<H> Queue<H> {
    fn new(home: (Weak<Map<H>>, QueueKey)) -> Arc<Self> {
        Arc::new(Self {
            home,
            users: AtomicUsize::new(0),
            front: Semaphore::new(1),
            gate: RwLock::new(()),
            opened: Notify::new(),
            freed: Notify::new(),
            poked: Notify::new(),
            settled: Notify::new(),
            state: Mutex::new(State {
                owners: HashMap::new(),
                joinable: None,
                in_line: 0,
                heirs: 0,
                handoff: None,
                handoffs: 0,
                is_watched: false,
                streak: 0,
                passing_since: None,
                others_waited: None,
                courtesy: None,
                is_placed: false,
                readers_came: None,
                at_front: None,
                alive: Moment::now(),
                is_front_watched: false,
                sending: Vec::new(),
            }),
        })
    }

    /// The hold of this owner, if it can be trusted.
    pub(crate) fn live(&self, owner: &Owner) -> Option<Arc<Hold>> {
        self.lock()
            .owners
            .get(owner)?
            .hold
            .clone()
            .filter(|hold| hold.is_live())
    }

    /// Whether anybody here holds the lock and cares for it.
    pub(crate) fn is_held_here(&self) -> bool {
        self.lock()
            .owners
            .values()
            .filter_map(|slot| slot.hold.as_ref())
            .any(|hold| hold.is_live() && hold.is_guarded())
    }

    /// Whether what is held here is renewed, so that a loss is noticed without being looked for.
    pub(crate) fn is_renewed_here(&self) -> bool {
        self.holds()
            .iter()
            .any(|hold| hold.is_live() && hold.is_renewed())
    }

    pub(crate) fn holds(&self) -> Vec<Arc<Hold>> {
        self.lock()
            .owners
            .values()
            .filter_map(|slot| slot.hold.clone())
            .collect()
    }

    /// Notes a hold that was granted. The others that it displaces are given back: of a lock that is shared, at most
    /// an older one of the same owner.
    pub(crate) fn install(&self, hold: &Arc<Hold>) -> Vec<Arc<Hold>> {
        let mut state = self.lock();
        state.courtesy = None;
        let gone = state.handoff.take();
        let displaced = if hold.key().kind.is_shared() {
            Vec::new()
        } else {
            let slots = state.owners.values();
            slots.filter_map(|slot| slot.hold.clone()).collect()
        };
        let older = state.put(hold);
        if hold.key().kind.is_shared() {
            state.joinable = Some(hold.clone());
        }
        drop(state);
        // The server has granted the lock: what was left here was gone.
        drop(gone);
        if hold.key().kind.is_shared() {
            return older.into_iter().collect();
        }
        displaced
    }

    /// Notes the hold that `join` makes for an owner beside one that readers may join. `None` if there is none, or another
    /// call of this owner has to do with the lock.
    pub(crate) fn join(
        &self,
        owner: &Owner,
        join: impl FnOnce(&Hold) -> Option<Arc<Hold>>,
    ) -> Option<Arc<Hold>> {
        let mut state = self.lock();
        let is_engaged = |slot: &Slot| slot.asking || slot.hold.is_some();
        if state.owners.get(owner).is_some_and(is_engaged) {
            return None;
        }
        let hold = join(state.joinable.as_deref()?)?;
        state.put(&hold);
        Some(hold)
    }

    /// How long a request for the lock took, if somebody here has it but this owner.
    pub(crate) fn is_taken_for(&self, owner: &Owner) -> Option<Duration> {
        let state = self.lock();
        let holds = state.owners.values().filter_map(|slot| slot.hold.as_ref());
        let others = holds.filter(|hold| hold.is_live() && hold.owner != *owner);
        let left = state.joinable.iter().filter(|_| state.handoff.is_some());
        others.chain(left).map(|hold| hold.record.trip()).max()
    }

    /// The holds here that have this record.
    pub(crate) fn having(&self, record: &Arc<Record>) -> Vec<Arc<Hold>> {
        let state = self.lock();
        let holds = state.owners.values().filter_map(|slot| slot.hold.as_ref());
        // The one that others join may have ended itself; they begin with what is confirmed for it.
        let all = holds.chain(&state.joinable);
        all.filter(|hold| Arc::ptr_eq(&hold.record, record))
            .cloned()
            .collect()
    }

    /// Removes a hold that has ended, and lets the front know.
    pub(crate) fn forget(&self, hold: &Arc<Hold>) {
        self.lock().remove(hold);
        self.freed.notify_one();
    }

    /// Waits until this owner holds the lock, by another call.
    pub(crate) fn appeared(&self, owner: &Owner) -> impl Future<Output = ()> {
        self.until(owner, move || self.live(owner).map(drop))
    }

    /// The turn to ask, if nothing is in the way: no release, unless a handoff lies here, and no other call.
    pub(crate) fn turn_at_once<'a>(
        &'a self,
        owner: &'a Owner,
        heed: Heed,
    ) -> Option<Asking<'a, H>> {
        let mut state = self.lock();
        let open = heed.is_settled(&state.sending, owner) || state.handoff.is_some();
        (open && state.claim_turn(owner)).then(|| Asking { queue: self, owner })
    }

    /// The turn to ask, if nobody here holds the lock or waits for what becomes of it.
    pub(crate) fn turn_if_idle<'a>(&'a self, owner: &'a Owner) -> Option<Asking<'a, H>> {
        let mut state = self.lock();
        let idle = state.sending.is_empty()
            && state.handoff.is_none()
            && state.courtesy.is_none()
            && state.owners.values().all(|slot| slot.hold.is_none());
        (idle && state.claim_turn(owner)).then(|| Asking { queue: self, owner })
    }

    /// Waits for releases on their way, unless a handoff lies here, then for the turn to ask. None if a call of this
    /// owner stands in a queue: to ask beside it does no harm.
    pub(crate) async fn turn<'a>(&'a self, owner: &'a Owner, heed: Heed) -> Option<Asking<'a, H>> {
        if !self.has_handoff() {
            self.settled(owner, heed).await;
        }
        let in_queue = || {
            let queued = self
                .lock()
                .owners
                .get(owner)
                .is_some_and(|slot| slot.in_queue);
            queued.then_some(None)
        };
        self.until(owner, || in_queue().or_else(|| self.claim(owner).map(Some)))
            .await
    }

    /// Waits until no other call asks the server for this owner's first level. It may hold the lock then.
    pub(crate) async fn asking<'a>(&'a self, owner: &'a Owner) -> Asking<'a, H> {
        match self.claim(owner) {
            Some(asking) => asking,
            None => self.until(owner, || self.claim(owner)).await,
        }
    }

    fn claim<'a>(&'a self, owner: &'a Owner) -> Option<Asking<'a, H>> {
        // Lazily: dropping an `Asking` ends the turn, and locks.
        let claimed = self.lock().claim_turn(owner);
        claimed.then(|| Asking { queue: self, owner })
    }

    /// Waits for what a change of this owner's slot brings about.
    #[allow(
        clippy::manual_async_fn,
        reason = "many wait here, and an async function keeps its arguments twice"
    )]
    fn until<T>(&self, owner: &Owner, ready: impl Fn() -> Option<T>) -> impl Future<Output = T> {
        async move {
            let waiting = Waiting::new(self, owner);
            loop {
                let mut signal = pin!(waiting.signal.notified());
                signal.as_mut().enable();
                if let Some(value) = ready() {
                    return value;
                }
                signal.await;
            }
        }
    }

    /// Waits until no release is on its way that this owner would have to heed.
    pub(crate) async fn settled(&self, owner: &Owner, heed: Heed) {
        loop {
            let signal = self.settled.notified();
            tokio::pin!(signal);
            signal.as_mut().enable();
            if heed.is_settled(&self.lock().sending, owner) {
                return;
            }
            signal.await;
        }
    }

    /// Stands in line, until the value is dropped.
    pub(crate) fn stand(&self) -> InLine<'_, H> {
        self.lock().in_line += 1;
        InLine {
            queue: self,
            is_heir: false,
        }
    }

    /// Whether this process may have a place in line on the server from now on.
    pub(crate) fn note_place(&self, is_placed: bool) {
        self.lock().is_placed = is_placed;
    }

    /// Gives up that place, if nobody is left here to come when it is told. Whoever comes now asks behind that.
    pub(crate) fn give_up_place(&self, leave: impl FnOnce()) {
        let mut state = self.lock();
        if state.in_line == 0 && std::mem::take(&mut state.is_placed) {
            leave();
        }
    }

    /// Does something that no other call does in the meantime. It must not wait.
    pub(crate) fn in_one_step<T>(&self, step: impl FnOnce() -> T) -> T {
        let _alone = self.lock();
        step()
    }

    /// How many calls stand in line.
    pub(crate) fn in_line(&self) -> u32 {
        u32::try_from(self.lock().in_line).unwrap_or(u32::MAX)
    }

    /// Whether any call stands in line.
    pub(crate) fn is_waited_for(&self) -> bool {
        self.lock().in_line > 0
    }

    /// Makes a handoff of an undo and leaves it for whoever is next in line. Also returns whether a task watches it
    /// already. The undo is given back if nobody is in line, or if a release is on its way.
    pub(crate) fn offer<D, R>(
        &self,
        undo: D,
        is_shared: bool,
        leave: impl FnOnce(D) -> (H, R),
    ) -> Result<(R, bool), D> {
        let mut state = self.lock();
        // What was granted since was asked behind those that are ahead.
        let is_overtaking = !is_shared && state.sending.iter().any(|one| !one.is_ahead);
        if state.heirs == 0 || is_overtaking || state.handoff.is_some() {
            return Err(undo);
        }
        let (handoff, rest) = leave(undo);
        state.handoff = Some(handoff);
        state.handoffs += 1;
        Ok((rest, std::mem::replace(&mut state.is_watched, true)))
    }

    /// The number of the handoff that lies here. `None` if there is none: then the next one is to be watched anew.
    pub(crate) fn lies(&self) -> Option<u64> {
        let mut state = self.lock();
        state.is_watched = state.handoff.is_some();
        state.is_watched.then_some(state.handoffs)
    }

    /// Takes back the handoff of this number, if it still lies here.
    pub(crate) fn take_back(&self, number: u64) -> Option<H> {
        let mut state = self.lock();
        let is_it = state.handoffs == number;
        state.handoff.take_if(|_| is_it)
    }

    /// Whether a handoff was left.
    pub(crate) fn has_handoff(&self) -> bool {
        self.lock().handoff.is_some()
    }

    /// Takes the handoff out, if one was left, and has no hold here pass its record on from now on. Every hold.
    pub(crate) fn stop_passing(&self) -> (Option<H>, Vec<Arc<Hold>>) {
        let mut state = self.lock();
        let holds = state.owners.values().filter_map(|slot| slot.hold.clone());
        let holds: Vec<_> = holds.inspect(|hold| hold.record.stay()).collect();
        (state.handoff.take(), holds)
    }

    /// Takes the handoff out, if one was left.
    pub(crate) fn take_handoff(&self) -> Option<H> {
        self.lock().handoff.take()
    }

    /// For the front of the line: takes the handoff, if one was left, and notes the hold that `pass` makes of it, in one
    /// step. If none comes of it, or somebody else was granted the lock meanwhile, which shows that what was left is gone,
    /// the handoff is there to be dropped.
    pub(crate) fn take_over(
        &self,
        pass: impl FnOnce(&H) -> Option<Arc<Hold>>,
    ) -> Option<(H, Option<Arc<Hold>>)> {
        let mut state = self.lock();
        let handoff = state.handoff.take()?;
        let mut holds = state.owners.values().filter_map(|slot| slot.hold.as_ref());
        let is_alone = |hold: &Arc<Hold>| hold.is_live() && !hold.key().kind.is_shared();
        let hold = match holds.any(is_alone) {
            true => None,
            false => pass(&handoff),
        };
        if let Some(hold) = &hold {
            state.courtesy = None;
            state.streak = state.streak.saturating_add(1);
            state.put(hold);
        }
        Some((handoff, hold))
    }

    /// Whether the lock may be passed on within this process once more, at most `streak` times in a row, and for a
    /// while, while others wait. If it `counts` them, it is known whether they do.
    pub(crate) fn may_pass(&self, now: Moment, streak: u32, counts: bool) -> bool {
        let mut state = self.lock();
        let since = *state.passing_since.get_or_insert(now);
        let others_wait = !counts || state.was_wanted_elsewhere(now);
        !others_wait || state.streak < streak && since.until(now) < LONGEST_STREAK
    }

    /// The call at the front is polled, and may not be polled again before this moment.
    pub(crate) fn is_alive(&self, until: Moment) {
        let mut state = self.lock();
        state.alive = state.alive.max(until);
    }

    /// Shows that the call at the front is polled, for as long as it waits.
    pub(crate) async fn shows_alive(&self) -> Infallible {
        loop {
            self.poked.notified().await;
            self.is_alive(Moment::now());
        }
    }

    /// Lets the next call come to the front if nobody has polled the one that stands there since it was `poked`.
    fn pass_the_unpolled(&self, poked: Moment) {
        let mut state = self.lock();
        if state.in_line > 1 && state.alive < poked && state.at_front.take().is_some() {
            drop(state);
            self.front.add_permits(1);
        }
    }

    /// Whether others were known to wait lately.
    pub(crate) fn is_wanted_elsewhere(&self, now: Moment) -> bool {
        self.lock().was_wanted_elsewhere(now)
    }

    /// Whether others wait for the lock, by the server's account.
    pub(crate) fn others_wait(&self, waiting: bool) {
        self.lock().others_waited = waiting.then(Moment::now);
    }

    /// The lock was had by this process once more, one call behind the other, or the row of that has ended.
    pub(crate) fn count_streak(&self, passed_on: bool) {
        let mut state = self.lock();
        if passed_on {
            state.streak = state.streak.saturating_add(1);
        } else {
            state.end_streak();
        }
    }

    pub(crate) fn streak(&self) -> u32 {
        self.lock().streak
    }

    /// Lets others that wait go first, until the lock is granted here again.
    pub(crate) fn give_way(&self, courtesy: Courtesy) {
        let mut state = self.lock();
        state.end_streak();
        state.others_waited = Some(Moment::now());
        state.courtesy = Some(courtesy);
    }

    pub(crate) fn courtesy(&self) -> Option<Courtesy> {
        self.lock().courtesy
    }

    /// A reader that went through the gate has asked, and the server dates it before `latest`.
    pub(crate) fn readers_came(&self, latest: Moment) {
        let mut state = self.lock();
        state.readers_came = state.readers_came.max(Some(latest));
    }

    /// When a writer counts as come that has gone through the gate: not before the readers that went before it.
    pub(crate) fn behind_readers(&self, came: Moment) -> Moment {
        came.max(self.lock().readers_came.unwrap_or(came))
    }

    fn lock(&self) -> MutexGuard<'_, State<H>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<H> State<H> {
    /// Notes a hold of its owner; returns the one before.
    fn put(&mut self, hold: &Arc<Hold>) -> Option<Arc<Hold>> {
        let slot = self.owners.entry(hold.owner.clone()).or_default();
        let older = slot.hold.replace(hold.clone());
        slot.tell();
        older
    }

    fn was_wanted_elsewhere(&self, now: Moment) -> bool {
        let lately = |waited: Moment| waited.until(now) < REMEMBERED;
        self.others_waited.is_some_and(lately)
    }

    fn end_streak(&mut self) {
        self.streak = 0;
        self.passing_since = None;
    }

    /// False if another call has the turn to ask for this owner.
    fn claim_turn(&mut self, owner: &Owner) -> bool {
        let slot = self.owners.entry(owner.clone()).or_default();
        !std::mem::replace(&mut slot.asking, true)
    }

    fn remove(&mut self, hold: &Arc<Hold>) {
        if let Some(slot) = self.owners.get_mut(&hold.owner) {
            slot.hold.take_if(|held| Arc::ptr_eq(held, hold));
            self.tidy(&hold.owner);
        }
    }

    fn tidy(&mut self, owner: &Owner) {
        if self
            .owners
            .get(owner)
            .is_some_and(|slot| slot.hold.is_none() && !slot.asking && slot.waiting == 0)
        {
            self.owners.remove(owner);
        }
    }
}

/// The place at the front, until dropped. Once the next call has come past, since nobody polled this one, it is no place any more.
#[derive(Debug)]
pub(crate) struct AtFront<'a, H> {
    queue: &'a Queue<H>,
    number: u64,
    permit: Option<SemaphorePermit<'a>>,
}

impl<'a, H> AtFront<'a, H> {
    pub(crate) fn new(queue: &'a Queue<H>, permit: SemaphorePermit<'a>) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let mut state = queue.lock();
        state.at_front = Some(number);
        state.alive = state.alive.max(Moment::now().plus(UNPOLLED));
        drop(state);
        Self {
            queue,
            number,
            permit: Some(permit),
        }
    }
}

impl<H> Drop for AtFront<'_, H> {
    fn drop(&mut self) {
        let is_it = |number: &mut u64| *number == self.number;
        let has_place = self.queue.lock().at_front.take_if(is_it).is_some();
        if let Some(permit) = self.permit.take().filter(|_| !has_place) {
            permit.forget();
        }
    }
}

/// A place in line.
#[derive(Debug)]
pub(crate) struct InLine<'a, H> {
    queue: &'a Queue<H>,
    is_heir: bool,
}

impl<H> InLine<'_, H> {
    /// From now on a hold that is given back here may be left for it.
    pub(crate) fn inherits(&mut self) {
        if !std::mem::replace(&mut self.is_heir, true) {
            self.queue.lock().heirs += 1;
        }
    }
}

impl<H> Drop for InLine<'_, H> {
    fn drop(&mut self) {
        let forgotten = {
            let mut state = self.queue.lock();
            state.in_line -= 1;
            state.heirs -= usize::from(self.is_heir);
            match state.heirs {
                0 => state.handoff.take(),
                _ => None,
            }
        };
        // Not under the mutex: what a handoff does when it is dropped is its own affair.
        drop(forgotten);
    }
}

impl Slot {
    fn tell(&self) {
        if let Some(signal) = &self.signal {
            signal.notify_waiters();
        }
    }
}

/// A call that waits for a change of its owner's slot.
#[derive(Debug)]
struct Waiting<'a, H> {
    queue: &'a Queue<H>,
    owner: &'a Owner,
    signal: Arc<Notify>,
}

impl<'a, H> Waiting<'a, H> {
    fn new(queue: &'a Queue<H>, owner: &'a Owner) -> Self {
        let mut state = queue.lock();
        let slot = state.owners.entry(owner.clone()).or_default();
        slot.waiting += 1;
        let signal = slot.signal.get_or_insert_default().clone();
        Self {
            queue,
            owner,
            signal,
        }
    }
}

impl<H> Drop for Waiting<'_, H> {
    fn drop(&mut self) {
        let mut state = self.queue.lock();
        if let Some(slot) = state.owners.get_mut(self.owner) {
            slot.waiting -= 1;
        }
        state.tidy(self.owner);
    }
}

/// The turn to ask the server for an owner's first level, until dropped.
#[derive(Debug)]
pub(crate) struct Asking<'a, H> {
    queue: &'a Queue<H>,
    owner: &'a Owner,
}

impl<H> Asking<'_, H> {
    /// From now on the call stands in a queue on the server.
    pub(crate) fn stands_in_queue(&self) {
        let mut state = self.queue.lock();
        if let Some(slot) = state.owners.get_mut(self.owner) {
            slot.in_queue = true;
            slot.tell();
        }
    }
}

impl<H> Drop for Asking<'_, H> {
    fn drop(&mut self) {
        let mut state = self.queue.lock();
        if let Some(slot) = state.owners.get_mut(self.owner) {
            slot.asking = false;
            slot.in_queue = false;
            slot.tell();
        }
        state.tidy(self.owner);
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
            owner,
            is_ahead: false,
        });
        Self { queue, number }
    }

    /// It is ahead of all that is asked from now on, or has to be sent again.
    pub(crate) fn is_ahead(&self, is_ahead: bool) {
        {
            let sending = &mut self.queue.lock().sending;
            let is_it = |one: &&mut OnItsWay| one.number == self.number;
            if let Some(it) = sending.iter_mut().find(is_it) {
                it.is_ahead = is_ahead;
            }
        }
        self.queue.settled.notify_waiters();
    }

    pub(crate) fn queue(&self) -> &QueueRef<H> {
        &self.queue
    }
}

impl<H> Drop for Sending<H> {
    fn drop(&mut self) {
        {
            let sending = &mut self.queue.lock().sending;
            sending.retain(|one| one.number != self.number);
        }
        self.queue.settled.notify_waiters();
    }
}

/// A queue in use. The last one to go removes it, unless somebody holds the lock.
#[derive(Debug)]
pub(crate) struct QueueRef<H>(Arc<Queue<H>>);

impl<H> QueueRef<H> {
    /// To a queue that is in the map, and in the shard that is locked, or in use.
    fn to(queue: &Arc<Queue<H>>) -> Self {
        queue.users.fetch_add(1, Ordering::Relaxed);
        Self(queue.clone())
    }
}

impl<H> Deref for QueueRef<H> {
    type Target = Queue<H>;

    fn deref(&self) -> &Queue<H> {
        &self.0
    }
}

impl<H: Send + 'static> QueueRef<H> {
    /// Has the call at the front looked after while others stand behind it.
    pub(crate) fn watch_front(&self, runtime: &Spawner) {
        if std::mem::replace(&mut self.lock().is_front_watched, true) {
            return;
        }
        let queue = self.clone();
        runtime.spawn(async move {
            while queue.is_crowded() {
                sleep(UNPOLLED).await;
                let poked = Moment::now();
                queue.poked.notify_waiters();
                sleep(SHOWN_WITHIN).await;
                queue.pass_the_unpolled(poked);
            }
        });
    }

    /// Whether anybody stands behind another call. If not, the watch is over.
    fn is_crowded(&self) -> bool {
        let mut state = self.lock();
        state.is_front_watched = state.in_line > 1;
        state.is_front_watched
    }
}

impl<H> Clone for QueueRef<H> {
    fn clone(&self) -> Self {
        Self::to(&self.0)
    }
}

impl<H> Drop for QueueRef<H> {
    fn drop(&mut self) {
        let others = |users: usize| (users > 1).then(|| users - 1);
        if self
            .0
            .users
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, others)
            .is_ok()
        {
            return;
        }
        let (queues, key) = &self.0.home;
        // Else the client is gone.
        if let Some(queues) = queues.upgrade() {
            queues.remove_if(key, |_, queue| {
                queue.users.fetch_sub(1, Ordering::Relaxed) == 1 && queue.lock().owners.is_empty()
            });
        }
    }
}
