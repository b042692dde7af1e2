//! Tells a waiter of this process that the lock was moved to its hold, or that it has to ask.
//!
//! # Invariant
//!
//! A hold that waits stays in the map until it is taken out, either by the waiter that goes on with the grant or by the
//! code that gives the waiter up. Only one of them can take it out, and only that one may act on the grant.

use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap};
use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use super::hold::Hold;
use crate::clock::BootInstant;
use crate::name::LocalKey;
use crate::protocol::hold_key::numeral;

/// The holds of this client that stand in server queues, by their acquisition ids.
///
/// Those that have no place yet are among them: a hold is entered before it asks for one.
#[derive(Debug, Default)]
pub(crate) struct Grants(Mutex<State>);

/// What is known of these holds, under one mutex. Wakers are woken under it.
#[derive(Debug, Default)]
struct State {
    /// By acquisition id, each hold whose waiter has neither gone on nor been given up.
    waiting: HashMap<u64, Waiting>,
    /// By lock, the holds that have a place. A keeper runs for each lock in this map.
    ///
    /// An entry without holds is one whose keeper has yet to notice, and ends by that.
    placed: HashMap<LocalKey, BTreeSet<u64>>,
}

/// A hold that waits, and what its waiter is to be told.
#[derive(Debug)]
struct Waiting {
    /// Given to whoever takes the entry out, so that it can be released.
    hold: Arc<Hold>,
    /// What the waiter has yet to be told.
    told: Option<Told>,
    /// The waiter, if it was polled since it was told last.
    waker: Option<Waker>,
    /// When the waiter was last polled, or the instant before which it may be polled for the answer to a request only.
    alive: BootInstant,
}

/// What a waiter is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Told {
    /// The lock was moved to its hold by a request sent at this instant.
    ///
    /// The promise of the hold counts from then.
    Granted(BootInstant),
    /// Its place is gone, or the lock may be there for it: the server knows.
    Ask,
}

impl Grants {
    /// Expects a grant: from now on, a release in this client may move the lock to this hold.
    ///
    /// To be called before the hold asks for a place: its grant may come with any release from then on.
    pub(crate) fn expect(self: &Arc<Self>, hold: &Arc<Hold>) -> Expected {
        let number = hold.key().numeral();
        let waiting = Waiting {
            hold: hold.clone(),
            told: None,
            waker: None,
            alive: BootInstant::now(),
        };
        self.lock().waiting.insert(number, waiting);
        Expected {
            grants: self.clone(),
            number,
        }
    }

    /// Notes that this hold has a place in the queue from now on. Returns whether nobody has kept the places of its
    /// lock so far.
    ///
    /// If so, the caller has to start a keeper.
    pub(crate) fn stand(&self, hold: &Hold) -> bool {
        let (number, mut state) = (hold.key().numeral(), self.lock());
        // It was given up meanwhile: its place must not keep a keeper alive.
        if !state.waiting.contains_key(&number) {
            return false;
        }
        match state.placed.entry(hold.key().local_key()) {
            Entry::Occupied(mut placed) => {
                placed.get_mut().insert(number);
                false
            }
            Entry::Vacant(vacant) => {
                vacant.insert(BTreeSet::from([number]));
                true
            }
        }
    }

    /// Returns how many holds have a place in the queue of this lock.
    pub(crate) fn standing(&self, lock: &LocalKey) -> usize {
        self.lock().placed.get(lock).map_or(0, BTreeSet::len)
    }

    /// Releases the keeper of this lock if no hold has a place. Returns whether it did.
    ///
    /// A hold that gets a place after that starts another keeper, since its lock is no longer in the map.
    pub(crate) fn leave(&self, lock: &LocalKey) -> bool {
        let mut state = self.lock();
        let is_left = state.placed.get(lock).is_none_or(BTreeSet::is_empty);
        if is_left {
            state.placed.remove(lock);
        }
        is_left
    }

    /// Returns at most `most` of the holds that have a place, beginning with those behind this acquisition id.
    ///
    /// In the order of their ids, from the beginning again after the last. So a few at a time, all have their turn.
    pub(crate) fn some(&self, lock: &LocalKey, behind: u64, most: usize) -> Vec<Arc<Hold>> {
        let state = self.lock();
        let Some(placed) = state.placed.get(lock) else {
            return Vec::new();
        };
        let further = placed.range(behind..).skip_while(|&&it| it == behind);
        let numbers = further.chain(placed.range(..=behind)).take(most);
        let waiting = numbers.filter_map(|number| state.waiting.get(number));
        waiting.map(|waiting| waiting.hold.clone()).collect()
    }

    /// Tells the waiter of the hold that has this acquisition id. Returns `false` if no waiter waits by it, or if it
    /// was told the same already.
    ///
    /// The numeral is from a script's answer, and so may be of a hold that has gone.
    pub(crate) fn tell(&self, number: &str, told: Told) -> bool {
        let mut state = self.lock();
        let waiting = numeral(number).and_then(|number| state.waiting.get_mut(&number));
        waiting.is_some_and(|waiting| waiting.tell(told))
    }

    /// Tells every waiter that has a place in the queue of this lock to ask.
    ///
    /// When the server cannot say which of them are concerned.
    pub(crate) fn tell_all(&self, lock: &LocalKey) {
        let mut state = self.lock();
        let State { waiting, placed } = &mut *state;
        for number in placed.get(lock).into_iter().flatten() {
            if let Some(waiting) = waiting.get_mut(number) {
                waiting.tell(Told::Ask);
            }
        }
    }

    /// Wakes a waiter, so that it shows that it is polled.
    pub(crate) fn poke(&self, number: u64) {
        let mut state = self.lock();
        let waiting = state.waiting.get_mut(&number);
        let waker = waiting.and_then(|waiting| waiting.waker.take());
        drop(state);
        waker.into_iter().for_each(Waker::wake);
    }

    /// Returns the other waiters for the lock of a waiter that has not taken what it was told. Returns `None` if it has.
    pub(super) fn beside_untaken(&self, number: u64) -> Option<Vec<u64>> {
        let state = self.lock();
        let untaken = state.waiting.get(&number)?;
        let lock = untaken.told.map(|_| untaken.hold.key().local_key())?;
        let others = state
            .waiting
            .iter()
            .filter(|(other, waiting)| **other != number && waiting.hold.key().local_key() == lock);
        Some(others.map(|(other, _)| *other).collect())
    }

    /// Takes out the hold of a waiter that nobody has polled since `since`. Returns `None` if it was polled, or has gone
    /// on with its grant.
    ///
    /// The caller releases the hold: nobody else will.
    pub(crate) fn give_up(&self, number: u64, since: BootInstant) -> Option<Arc<Hold>> {
        self.take(number, |waiting| waiting.alive < since)
    }

    pub(crate) fn len(&self) -> usize {
        self.lock().waiting.len()
    }

    /// Takes out every hold that waits, so that no waiter goes on with its grant from now on.
    pub(crate) fn give_up_all(&self) -> Vec<Arc<Hold>> {
        let mut state = self.lock();
        // The entries stay: each keeper removes its own, by `leave`.
        state.placed.values_mut().for_each(BTreeSet::clear);
        let waiting = std::mem::take(&mut state.waiting);
        waiting.into_values().map(|waiting| waiting.hold).collect()
    }

    pub(super) fn stands(&self, number: u64) -> bool {
        self.lock().waiting.contains_key(&number)
    }

    /// Takes a hold out of both maps, if it may be. Whoever gets it has the right to act on its grant.
    fn take(&self, number: u64, may: impl FnOnce(&Waiting) -> bool) -> Option<Arc<Hold>> {
        let mut state = self.lock();
        state.waiting.get(&number).filter(|waiting| may(waiting))?;
        let Waiting { hold, waker, .. } = state.waiting.remove(&number)?;
        if let Some(placed) = state.placed.get_mut(&hold.key().local_key()) {
            placed.remove(&number);
        }
        drop(state);
        // The waiter learns that it has to begin again.
        if let Some(waker) = waker {
            waker.wake();
        }
        Some(hold)
    }

    /// Returns what the waiter is to be told, which is then known. A waiter that was given up is to ask, and learns
    /// there that it has to begin again.
    fn poll_told(&self, number: u64, context: &mut Context<'_>) -> Poll<Told> {
        let mut state = self.lock();
        let Some(waiting) = state.waiting.get_mut(&number) else {
            return Poll::Ready(Told::Ask);
        };
        waiting.alive = BootInstant::now();
        if let Some(told) = waiting.told.take() {
            return Poll::Ready(told);
        }
        match &mut waiting.waker {
            Some(waker) => waker.clone_from(context.waker()),
            waker => *waker = Some(context.waker().clone()),
        }
        Poll::Pending
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Waiting {
    /// Notes what the waiter is to be told. Returns whether that is news.
    fn tell(&mut self, told: Told) -> bool {
        let is_news = match self.told {
            // A grant replaces `Ask`, and nothing replaces a grant: a waiter that has one need not ask.
            None => true,
            Some(Told::Ask) => told != Told::Ask,
            Some(Told::Granted(_)) => false,
        };
        if is_news {
            self.told = Some(told);
            if let Some(waker) = self.waker.take() {
                waker.wake();
            }
        }
        is_news
    }
}

/// A waiter's end of a grant.
///
/// Its drop takes the hold out: after that no release in this client moves the lock to a waiter that has gone. What the
/// server may have moved already is released by the waiter's `Undo`.
#[derive(Debug)]
pub(crate) struct Expected {
    grants: Arc<Grants>,
    /// The acquisition id of the hold.
    number: u64,
}

impl Expected {
    /// Waits until there is something to tell. A grant is told once.
    ///
    /// Cancel safe: what was not returned is told to the next call.
    pub(crate) async fn told(&self) -> Told {
        poll_fn(|context| self.grants.poll_told(self.number, context)).await
    }

    /// Notes that the waiter is polled, and may not wait to be told before `until`.
    pub(crate) fn is_alive(&self, until: BootInstant) {
        let mut state = self.grants.lock();
        if let Some(waiting) = state.waiting.get_mut(&self.number) {
            waiting.alive = until;
        }
    }

    /// Whether the hold has not been given up: a grant that comes is then this waiter's.
    pub(crate) fn stands(&self) -> bool {
        self.grants.stands(self.number)
    }

    /// Goes on with a grant, however it became known. Returns `false` if the hold was given up meanwhile.
    ///
    /// The waiter that is told `true` has the hold, and its `Undo` with it.
    pub(crate) fn claim(&self) -> bool {
        self.grants.take(self.number, |_| true).is_some()
    }
}

impl Drop for Expected {
    fn drop(&mut self) {
        self.claim();
    }
}
