//! One queue per lock: who waits for it in this process, who holds it, and what is handed from one to the next.
//!
//! # Invariants
//!
//! 1. A baton is left only while somebody stands in line, under the same mutex that counts the line; the last one to
//!    leave the line takes a baton that is left with it. So a baton is never forgotten.
//! 2. No baton is left while a release of this lock is on its way: it could overtake that release.

use std::collections::HashMap;
use std::ops::Deref;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use dashmap::DashMap;
use tokio::sync::RwLock;

use super::backend::Answer;
use super::convoy::{Convoy, GivingBack, Reading};
use super::hold::Hold;
use super::sync::{Mutex, MutexGuard, Notify, Semaphore};
use crate::clock::Moment;
use crate::error::Error;
use crate::name::QueueKey;
use crate::owner::Owner;

/// The queues of all lock names in use. `B` is the baton: what a releaser leaves for a waiter.
#[derive(Debug)]
pub(crate) struct Queues<B>(Arc<DashMap<QueueKey, Arc<Queue<B>>>>);

impl<B> Default for Queues<B> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

/// The waiters and holds of one lock.
///
/// Only the waiter at the front talks to the server, so that ten thousand waiters cost as little as one. Of a read-write
/// lock, the line of the writers is one for both sides, if whoever came first goes first.
#[derive(Debug)]
pub(crate) struct Queue<B> {
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
    /// Tells everybody that a release is no longer on its way.
    settled: Notify,
    /// Of one side of a read-write lock: those that ask to read, if this is the side,
    pub(crate) readings: Convoy<Reading, Result<Answer, Error>>,
    /// and those that give back.
    pub(crate) releases: Convoy<GivingBack, Result<Answer, Error>>,
    state: Mutex<State<B>>,
}

#[derive(Debug)]
struct State<B> {
    owners: HashMap<Owner, Slot>,
    /// How many calls stand in line, the front included.
    in_line: usize,
    baton: Option<B>,
    /// How often in a row the lock was handed on within this process.
    streak: u32,
    /// Others that wait go first.
    courtesy: Option<Courtesy>,
    /// Of the writers' side of a read-write lock: readers that went through the gate came before this, by the server's
    /// account.
    readers_came: Option<Moment>,
    /// Whose releases are on their way. An acquisition that overtook one would find the lock busy by ourselves.
    settling: Vec<Owner>,
}

/// Whose releases are in the way of an acquisition while they are on their way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Heed {
    All,
    /// Of a lock that is shared.
    Own,
}

impl Heed {
    fn is_settled(self, settling: &[Owner], owner: &Owner) -> bool {
        match self {
            Self::All => settling.is_empty(),
            Self::Own => !settling.contains(owner),
        }
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
    waiting: usize,
    /// Tells those that wait that one of the above has changed. Made when the first one waits.
    signal: Option<Arc<Notify>>,
}

impl<B> Queues<B> {
    /// The queue of a lock, made if there is none.
    pub(crate) fn enter(&self, key: QueueKey) -> QueueRef<B> {
        let queue = self.0.entry(key.clone()).or_insert_with(Queue::new);
        queue.users.fetch_add(1, Ordering::Relaxed);
        QueueRef {
            queues: self.0.clone(),
            queue: queue.clone(),
            key,
        }
    }

    /// The queue of a lock, if somebody uses it.
    pub(crate) fn find(&self, key: QueueKey) -> Option<QueueRef<B>> {
        let queue = self.0.get(&key)?;
        queue.users.fetch_add(1, Ordering::Relaxed);
        Some(QueueRef {
            queues: self.0.clone(),
            queue: queue.clone(),
            key,
        })
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

impl<B> Queue<B> {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            users: AtomicUsize::new(0),
            front: Semaphore::new(1),
            gate: RwLock::new(()),
            opened: Notify::new(),
            freed: Notify::new(),
            settled: Notify::new(),
            readings: Convoy::default(),
            releases: Convoy::default(),
            state: Mutex::new(State {
                owners: HashMap::new(),
                in_line: 0,
                baton: None,
                streak: 0,
                courtesy: None,
                readers_came: None,
                settling: Vec::new(),
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

    /// Whether anybody here holds the lock, or asks for it.
    pub(crate) fn is_crowded(&self) -> bool {
        !self.lock().owners.is_empty()
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
        let displaced = if hold.key.kind.is_shared() {
            Vec::new()
        } else {
            let slots = state.owners.values();
            slots.filter_map(|slot| slot.hold.clone()).collect()
        };
        let slot = state.owners.entry(hold.owner.clone()).or_default();
        let older = slot.hold.replace(hold.clone());
        slot.tell();
        if hold.key.kind.is_shared() {
            return older.into_iter().collect();
        }
        displaced
    }

    /// Removes a hold that has ended, and lets the front know.
    pub(crate) fn forget(&self, hold: &Arc<Hold>) {
        self.lock().remove(hold);
        self.freed.notify_one();
    }

    /// Waits until this owner holds the lock, by another call.
    pub(crate) async fn appeared(&self, owner: &Owner) {
        self.until(owner, || self.live(owner)).await;
    }

    /// The turn to ask, if nothing is in the way: no release, unless a baton lies here, and no other call.
    pub(crate) fn turn_at_once<'a>(
        &'a self,
        owner: &'a Owner,
        heed: Heed,
    ) -> Option<Asking<'a, B>> {
        let mut state = self.lock();
        let open = heed.is_settled(&state.settling, owner) || state.baton.is_some();
        (open && state.claim_turn(owner)).then(|| Asking { queue: self, owner })
    }

    /// The turn to ask, if nobody here holds the lock or waits for what becomes of it.
    pub(crate) fn turn_if_idle<'a>(&'a self, owner: &'a Owner) -> Option<Asking<'a, B>> {
        let mut state = self.lock();
        let idle = state.settling.is_empty()
            && state.baton.is_none()
            && state.courtesy.is_none()
            && state.owners.values().all(|slot| slot.hold.is_none());
        (idle && state.claim_turn(owner)).then(|| Asking { queue: self, owner })
    }

    /// Waits for releases on their way, unless a baton lies here, then for the turn to ask. None if a call of this
    /// owner stands in a queue: to ask beside it does no harm.
    pub(crate) async fn turn<'a>(&'a self, owner: &'a Owner, heed: Heed) -> Option<Asking<'a, B>> {
        if !self.has_baton() {
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
    pub(crate) async fn asking<'a>(&'a self, owner: &'a Owner) -> Asking<'a, B> {
        match self.claim(owner) {
            Some(asking) => asking,
            None => self.until(owner, || self.claim(owner)).await,
        }
    }

    fn claim<'a>(&'a self, owner: &'a Owner) -> Option<Asking<'a, B>> {
        // Lazily: dropping an `Asking` ends the turn, and locks.
        let claimed = self.lock().claim_turn(owner);
        claimed.then(|| Asking { queue: self, owner })
    }

    /// Waits for what a change of this owner's slot brings about.
    async fn until<T>(&self, owner: &Owner, ready: impl Fn() -> Option<T>) -> T {
        let waiting = Waiting::new(self, owner);
        loop {
            let signal = waiting.signal.notified();
            tokio::pin!(signal);
            signal.as_mut().enable();
            if let Some(value) = ready() {
                return value;
            }
            signal.await;
        }
    }

    /// Waits until no release is on its way that this owner would have to heed.
    pub(crate) async fn settled(&self, owner: &Owner, heed: Heed) {
        loop {
            let signal = self.settled.notified();
            tokio::pin!(signal);
            signal.as_mut().enable();
            if heed.is_settled(&self.lock().settling, owner) {
                return;
            }
            signal.await;
        }
    }

    /// Stands in line, until the value is dropped.
    pub(crate) fn stand(&self) -> InLine<'_, B> {
        self.lock().in_line += 1;
        InLine(self)
    }

    /// Does something that no other call does in the meantime. It must not wait.
    pub(crate) fn in_one_step<T>(&self, step: impl FnOnce() -> T) -> T {
        let _alone = self.lock();
        step()
    }

    /// Whether any call stands in line.
    pub(crate) fn is_waited_for(&self) -> bool {
        self.lock().in_line > 0
    }

    /// Makes a baton of a debt and leaves it for whoever is next in line. The debt is given back if nobody is, or
    /// if a release is on its way.
    pub(crate) fn offer<D, R>(&self, debt: D, hand_on: impl FnOnce(D) -> (B, R)) -> Result<R, D> {
        let mut state = self.lock();
        if state.in_line == 0 || !state.settling.is_empty() || state.baton.is_some() {
            return Err(debt);
        }
        let (baton, rest) = hand_on(debt);
        state.baton = Some(baton);
        Ok(rest)
    }

    /// Whether a baton was left.
    pub(crate) fn has_baton(&self) -> bool {
        self.lock().baton.is_some()
    }

    /// For the front of the line: the baton, if one was left, and how often the lock was handed on in a row.
    pub(crate) fn take_baton(&self) -> Option<(B, u32)> {
        let mut state = self.lock();
        Some((state.baton.take()?, state.streak))
    }

    /// Takes a baton back that nobody has taken so far.
    pub(crate) fn retract(&self, is_it: impl FnOnce(&B) -> bool) {
        let retracted = self.lock().baton.take_if(|baton| is_it(baton));
        // Not under the mutex: what a baton does when it is dropped is its own affair.
        drop(retracted);
    }

    /// The lock was handed on within this process, once more, or the row of that has ended.
    pub(crate) fn count_streak(&self, handed_on: bool) {
        let mut state = self.lock();
        state.streak = if handed_on {
            state.streak.saturating_add(1)
        } else {
            0
        };
    }

    pub(crate) fn streak(&self) -> u32 {
        self.lock().streak
    }

    /// Lets others that wait go first, until the lock is granted here again.
    pub(crate) fn give_way(&self, courtesy: Courtesy) {
        let mut state = self.lock();
        state.streak = 0;
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

    fn lock(&self) -> MutexGuard<'_, State<B>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<B> State<B> {
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

/// A place in line.
#[derive(Debug)]
pub(crate) struct InLine<'a, B>(&'a Queue<B>);

impl<B> Drop for InLine<'_, B> {
    fn drop(&mut self) {
        let forgotten = {
            let mut state = self.0.lock();
            state.in_line -= 1;
            if state.in_line == 0 {
                state.baton.take()
            } else {
                None
            }
        };
        // Not under the mutex: what a baton does when it is dropped is its own affair.
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
struct Waiting<'a, B> {
    queue: &'a Queue<B>,
    owner: &'a Owner,
    signal: Arc<Notify>,
}

impl<'a, B> Waiting<'a, B> {
    fn new(queue: &'a Queue<B>, owner: &'a Owner) -> Self {
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

impl<B> Drop for Waiting<'_, B> {
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
pub(crate) struct Asking<'a, B> {
    queue: &'a Queue<B>,
    owner: &'a Owner,
}

impl<B> Asking<'_, B> {
    /// From now on the call stands in a queue on the server.
    pub(crate) fn stands_in_queue(&self) {
        let mut state = self.queue.lock();
        if let Some(slot) = state.owners.get_mut(self.owner) {
            slot.in_queue = true;
            slot.tell();
        }
    }
}

impl<B> Drop for Asking<'_, B> {
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
pub(crate) struct Settling<B> {
    queue: QueueRef<B>,
    owner: Owner,
}

impl<B> Settling<B> {
    pub(crate) fn new(queue: QueueRef<B>, owner: Owner) -> Self {
        queue.lock().settling.push(owner.clone());
        Self { queue, owner }
    }

    pub(crate) fn queue(&self) -> &QueueRef<B> {
        &self.queue
    }
}

impl<B> Drop for Settling<B> {
    fn drop(&mut self) {
        {
            let settling = &mut self.queue.lock().settling;
            if let Some(at) = settling.iter().position(|owner| *owner == self.owner) {
                settling.swap_remove(at);
            }
        }
        self.queue.settled.notify_waiters();
    }
}

/// A queue in use. The last one to go removes it, unless somebody holds the lock.
#[derive(Debug)]
pub(crate) struct QueueRef<B> {
    queues: Arc<DashMap<QueueKey, Arc<Queue<B>>>>,
    key: QueueKey,
    queue: Arc<Queue<B>>,
}

impl<B> Deref for QueueRef<B> {
    type Target = Queue<B>;

    fn deref(&self) -> &Queue<B> {
        &self.queue
    }
}

impl<B> Clone for QueueRef<B> {
    fn clone(&self) -> Self {
        self.queue.users.fetch_add(1, Ordering::Relaxed);
        Self {
            queues: self.queues.clone(),
            key: self.key.clone(),
            queue: self.queue.clone(),
        }
    }
}

impl<B> Drop for QueueRef<B> {
    fn drop(&mut self) {
        let others = |users: usize| (users > 1).then(|| users - 1);
        let users = &self.queue.users;
        if users
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, others)
            .is_ok()
        {
            return;
        }
        self.queues.remove_if(&self.key, |_, queue| {
            queue.users.fetch_sub(1, Ordering::Relaxed) == 1 && queue.lock().owners.is_empty()
        });
    }
}
