//! One queue per lock name: who waits for it in this process, and who holds it.

use std::collections::HashMap;
use std::ops::Deref;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use dashmap::DashMap;
use tokio::sync::{Notify, OwnedMutexGuard, Semaphore};

use super::hold::Hold;
use crate::owner::Owner;

/// The queues of all lock names in use.
#[derive(Debug, Default)]
pub(crate) struct Queues(Arc<DashMap<Arc<str>, Arc<Queue>>>);

/// The waiters and holds of one lock.
///
/// Only the waiter at the front talks to the server, so that ten thousand waiters cost as little as one.
#[derive(Debug)]
pub(crate) struct Queue {
    /// Counts the references to this queue. Changed only under the lock of the map's shard, so that a queue that
    /// nobody uses can be removed without racing somebody who enters. Relaxed suffices: that lock orders it.
    users: AtomicUsize,
    /// Its one permit is the front of the line. tokio's semaphore is fair, and hands the permit of a cancelled
    /// waiter on.
    pub(crate) front: Semaphore,
    /// Tells the waiter at the front that a hold here has ended. Keeps one signal if nobody listens just then.
    pub(crate) freed: Notify,
    /// Tells everybody that no release is on its way any more.
    settled: Notify,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    owners: HashMap<Owner, Slot>,
    /// Releases on their way. An acquisition that overtook one would find the lock busy by ourselves.
    settling: usize,
}

/// What one owner has here.
#[derive(Debug, Default)]
struct Slot {
    hold: Option<Arc<Hold>>,
    waiting: usize,
    /// Tells those that wait for the lock that their own owner has it now, so that they can re-enter.
    appeared: Arc<Notify>,
    /// Held by the call that asks the server for this owner's first level: to another one, which has a hold number
    /// of its own, the lock would look busy.
    asking: Arc<tokio::sync::Mutex<()>>,
}

impl Queues {
    /// The queue of a lock, made if there is none.
    pub(crate) fn enter(&self, name: &Arc<str>) -> QueueRef {
        let queue = self.0.entry(name.clone()).or_insert_with(Queue::new);
        queue.users.fetch_add(1, Ordering::Relaxed);
        QueueRef {
            queues: self.0.clone(),
            name: name.clone(),
            queue: queue.clone(),
        }
    }

    /// Removes a hold that has ended, and lets the front know.
    pub(crate) fn forget(&self, hold: &Arc<Hold>) {
        let queue = self.enter(hold.key.name.key());
        queue.lock().remove(hold);
        queue.freed.notify_one();
    }

    /// Every hold of this process.
    pub(crate) fn holds(&self) -> Vec<Arc<Hold>> {
        self.0.iter().flat_map(|queue| queue.holds()).collect()
    }

    /// How many lock names are in use.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }
}

impl Queue {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            users: AtomicUsize::new(0),
            front: Semaphore::new(1),
            freed: Notify::new(),
            settled: Notify::new(),
            state: Mutex::default(),
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

    pub(crate) fn holds(&self) -> Vec<Arc<Hold>> {
        self.lock()
            .owners
            .values()
            .filter_map(|slot| slot.hold.clone())
            .collect()
    }

    /// Notes a hold that was granted. The others that it displaces are given back.
    pub(crate) fn install(&self, hold: &Arc<Hold>) -> Vec<Arc<Hold>> {
        let mut state = self.lock();
        let displaced = state
            .owners
            .values()
            .filter_map(|slot| slot.hold.clone())
            .collect();
        let slot = state.owners.entry(hold.owner.clone()).or_default();
        slot.hold = Some(hold.clone());
        if slot.waiting > 0 {
            slot.appeared.notify_waiters();
        }
        displaced
    }

    /// Waits until this owner holds the lock, by another call.
    pub(crate) async fn appeared(&self, owner: &Owner) {
        let _waiting = Waiting::new(self, owner);
        let appeared = match self.lock().owners.get(owner) {
            Some(slot) => slot.appeared.clone(),
            None => return,
        };
        loop {
            let signal = appeared.notified();
            tokio::pin!(signal);
            signal.as_mut().enable();
            if self.live(owner).is_some() {
                return;
            }
            signal.await;
        }
    }

    /// Waits until no other call asks the server for this owner's first level. It may hold the lock then.
    pub(crate) async fn asking<'a>(&'a self, owner: &'a Owner) -> Asking<'a> {
        let waiting = Waiting::new(self, owner);
        let asking = match self.lock().owners.get(owner) {
            Some(slot) => slot.asking.clone(),
            None => Arc::default(),
        };
        Asking {
            _turn: asking.lock_owned().await,
            _waiting: waiting,
        }
    }

    /// Waits until no release is on its way.
    pub(crate) async fn settled(&self) {
        loop {
            let signal = self.settled.notified();
            tokio::pin!(signal);
            signal.as_mut().enable();
            if self.lock().settling == 0 {
                return;
            }
            signal.await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
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
            .is_some_and(|slot| slot.hold.is_none() && slot.waiting == 0)
        {
            self.owners.remove(owner);
        }
    }
}

/// Counts a call that waits for its own owner's hold.
#[derive(Debug)]
struct Waiting<'a> {
    queue: &'a Queue,
    owner: &'a Owner,
}

impl<'a> Waiting<'a> {
    fn new(queue: &'a Queue, owner: &'a Owner) -> Self {
        queue
            .lock()
            .owners
            .entry(owner.clone())
            .or_default()
            .waiting += 1;
        Self { queue, owner }
    }
}

impl Drop for Waiting<'_> {
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
pub(crate) struct Asking<'a> {
    _turn: OwnedMutexGuard<()>,
    _waiting: Waiting<'a>,
}

/// Marks a release as on its way, until dropped.
#[derive(Debug)]
pub(crate) struct Settling(QueueRef);

impl Settling {
    pub(crate) fn new(queue: QueueRef) -> Self {
        queue.lock().settling += 1;
        Self(queue)
    }
}

impl Drop for Settling {
    fn drop(&mut self) {
        let settled = {
            let mut state = self.0.lock();
            state.settling -= 1;
            state.settling == 0
        };
        if settled {
            self.0.settled.notify_waiters();
        }
    }
}

/// A queue in use. The last one to go removes it, unless somebody holds the lock.
#[derive(Debug)]
pub(crate) struct QueueRef {
    queues: Arc<DashMap<Arc<str>, Arc<Queue>>>,
    name: Arc<str>,
    queue: Arc<Queue>,
}

impl Deref for QueueRef {
    type Target = Queue;

    fn deref(&self) -> &Queue {
        &self.queue
    }
}

impl Drop for QueueRef {
    fn drop(&mut self) {
        self.queues.remove_if(&*self.name, |_, queue| {
            queue.users.fetch_sub(1, Ordering::Relaxed) == 1 && queue.lock().owners.is_empty()
        });
    }
}
