//! Tells the waiters of this process that a server moved a lock to their hold, or that they have to ask.
//!
//! # Invariant
//!
//! A waiting hold is taken out of the map once: by the waiter that accepts the grant, or by the code that gives the
//! waiter up. Only the one that takes it out may act on the grant.

use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use super::hold::Hold;
use crate::clock::BootInstant;
use crate::name::LocalKey;
use crate::protocol::hold_key::numeral;

/// How long an accepted grant is remembered: longer than from there to its hold in the local lock, or to its release.
pub(super) const LATELY: Duration = Duration::from_secs(1);

/// The holds of this client that stand in server queues, by their acquisition ids.
///
/// Includes those without a place so far, since a hold is entered before it asks for one.
#[derive(Debug, Default)]
pub(crate) struct Grants(Mutex<PendingGrants>);

/// The state of these holds, under one mutex. No waker is cloned, woken or dropped under it, since that may run any code.
#[derive(Debug, Default)]
struct PendingGrants {
    /// By acquisition id, each hold whose waiter has neither accepted a grant nor been given up.
    waiting: HashMap<u64, PendingGrant>,
    /// Those whose waiters have accepted a grant [`LATELY`], and when. Such a waiter may enter its hold in the local lock,
    /// and release it, before the code that was told of the grant looks for either.
    accepted: VecDeque<(u64, BootInstant)>,
    /// By lock, the holds that have a place. A keeper, the heartbeat task, runs for each lock in this map.
    ///
    /// An entry without holds remains until its keeper notices and ends.
    placed: HashMap<LocalKey, BTreeSet<u64>>,
}

/// A hold that waits, and what to tell its waiter.
#[derive(Debug)]
struct PendingGrant {
    /// For the code that takes the entry out, so that it can release the hold.
    hold: Arc<Hold>,
    /// The news that the waiter has not seen yet.
    told: Option<GrantNews>,
    /// Wakes the waiter, if it was polled since the last news.
    waker: Option<Waker>,
    /// When the waiter was last polled or, while it waits for the answer to a request, the instant by which that wait
    /// ends.
    alive: BootInstant,
}

/// News for a waiter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GrantNews {
    /// The lock was moved to its hold by a request sent at this instant.
    ///
    /// The deadline of the hold counts from then.
    Granted(BootInstant),
    /// Its place is gone, or the lock may be free for it. Only the server knows.
    Ask,
}

impl Grants {
    /// Expects a grant: from now on, a release in this client may move the lock to this hold.
    ///
    /// Called before the hold asks for a place: any later release may bring its grant.
    pub(crate) fn expect(self: &Arc<Self>, hold: &Arc<Hold>) -> Expected {
        let number = hold.key().numeral();
        let waiting = PendingGrant {
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

    /// Records that this hold has a place in the queue from now on. Returns `true` if its lock has no keeper yet.
    ///
    /// The caller then has to start one.
    pub(crate) fn stand(&self, hold: &Hold) -> bool {
        let (number, mut state) = (hold.key().numeral(), self.lock());
        // It was given up in the meantime, and its place must not keep a keeper alive.
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

    /// Dismisses the keeper of this lock if no hold has a place. Returns whether it did.
    ///
    /// A hold that gets a place later starts another keeper, since its lock is no longer in the map.
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
    /// They come in the order of their ids, and after the last from the beginning again. So repeated calls reach all
    /// holds, a few at a time.
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

    /// Tells the waiter of the hold with this acquisition id. Returns `false` if no such hold waits, or if its waiter
    /// was told the same already.
    ///
    /// The id comes from a script's answer, so its hold may be gone.
    pub(crate) fn tell(&self, number: &str, told: GrantNews) -> bool {
        let mut state = self.lock();
        let waiting = numeral(number).and_then(|number| state.waiting.get_mut(&number));
        let news = waiting.and_then(|waiting| waiting.tell(told));
        drop(state);
        let is_news = news.is_some();
        news.flatten().into_iter().for_each(Waker::wake);
        is_news
    }

    /// Tells every waiter that has a place in the queue of this lock to ask.
    ///
    /// For when the server cannot say which of them are concerned.
    pub(crate) fn tell_all(&self, lock: &LocalKey) {
        let mut state = self.lock();
        let PendingGrants {
            waiting, placed, ..
        } = &mut *state;
        let mut wakers = Vec::new();
        for number in placed.get(lock).into_iter().flatten() {
            let waiting = waiting.get_mut(number);
            wakers.extend(waiting.and_then(|it| it.tell(GrantNews::Ask)).flatten());
        }
        drop(state);
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Wakes a waiter, so that it shows that it is polled.
    pub(crate) fn poke(&self, number: u64) {
        let mut state = self.lock();
        let waiting = state.waiting.get_mut(&number);
        let waker = waiting.and_then(|waiting| waiting.waker.take());
        drop(state);
        waker.into_iter().for_each(Waker::wake);
    }

    /// Returns the other waiters for the same lock, if this waiter has not seen its news. Returns `None` if it has.
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

    /// Takes out the hold of a waiter that nobody has polled since `since`. Returns `None` if it was polled, or has
    /// accepted its grant.
    ///
    /// The caller releases the hold: nobody else will.
    pub(crate) fn give_up(&self, number: u64, since: BootInstant) -> Option<Arc<Hold>> {
        self.take(number, |waiting| waiting.alive < since)
    }

    pub(crate) fn len(&self) -> usize {
        self.lock().waiting.len()
    }

    /// Takes out every hold that waits, so that no waiter accepts a grant from now on.
    pub(crate) fn give_up_all(&self) -> Vec<Arc<Hold>> {
        let mut state = self.lock();
        // The entries stay: each keeper removes its own, by `leave`.
        state.placed.values_mut().for_each(BTreeSet::clear);
        let waiting = std::mem::take(&mut state.waiting);
        drop(state);
        waiting.into_values().map(|waiting| waiting.hold).collect()
    }

    pub(super) fn stands(&self, number: u64) -> bool {
        self.lock().waiting.contains_key(&number)
    }

    /// Whether a waiter of this process has this acquisition id, or has lately accepted its grant.
    pub(super) fn is_known(&self, number: u64) -> bool {
        let state = self.lock();
        let is_it = |(it, since): &(u64, BootInstant)| *it == number && is_lately(*since);
        state.waiting.contains_key(&number) || state.accepted.iter().any(is_it)
    }

    /// Takes a hold out of both maps, if `may` allows it. Whoever gets the hold may act on its grant.
    fn take(&self, number: u64, may: impl FnOnce(&PendingGrant) -> bool) -> Option<Arc<Hold>> {
        let mut state = self.lock();
        state.waiting.get(&number).filter(|waiting| may(waiting))?;
        let PendingGrant { hold, waker, .. } = state.waiting.remove(&number)?;
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

    /// Returns the news of a waiter, and clears it. A waiter that was given up gets `Ask`, and learns by asking that it
    /// has to begin again.
    fn poll_told(&self, number: u64, context: &mut Context<'_>) -> Poll<GrantNews> {
        let waker = context.waker().clone();
        let mut state = self.lock();
        let Some(waiting) = state.waiting.get_mut(&number) else {
            return Poll::Ready(GrantNews::Ask);
        };
        waiting.alive = BootInstant::now();
        if let Some(told) = waiting.told.take() {
            return Poll::Ready(told);
        }
        let replaced = waiting.waker.replace(waker);
        drop(state);
        drop(replaced);
        Poll::Pending
    }

    fn lock(&self) -> MutexGuard<'_, PendingGrants> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PendingGrants {
    /// Remembers a grant that was accepted, and forgets those of long ago.
    fn accept(&mut self, number: u64) {
        while self.accepted.front().is_some_and(|it| !is_lately(it.1)) {
            self.accepted.pop_front();
        }
        self.accepted.push_back((number, BootInstant::now()));
    }
}

fn is_lately(since: BootInstant) -> bool {
    since.until(BootInstant::now()) < LATELY
}

impl PendingGrant {
    /// Records news for the waiter. Returns whom to wake, or `None` if it is not news.
    fn tell(&mut self, told: GrantNews) -> Option<Option<Waker>> {
        let is_news = match self.told {
            // A grant replaces `Ask`, and nothing replaces a grant, since its waiter need not ask.
            None => true,
            Some(GrantNews::Ask) => told != GrantNews::Ask,
            Some(GrantNews::Granted(_)) => false,
        };
        is_news.then(|| {
            self.told = Some(told);
            self.waker.take()
        })
    }
}

/// A waiter's end of a grant.
///
/// Dropping it takes the hold out. Later releases in this client then no longer move the lock to a waiter that has
/// gone. If the server has already moved the lock, the waiter's `Undo` releases it.
#[derive(Debug)]
pub(crate) struct Expected {
    grants: Arc<Grants>,
    /// The acquisition id of the hold.
    number: u64,
}

impl Expected {
    /// Waits for news. A grant is returned once.
    ///
    /// Cancel safe: news that was not returned goes to the next call.
    pub(crate) async fn told(&self) -> GrantNews {
        poll_fn(|context| self.grants.poll_told(self.number, context)).await
    }

    /// Records that the waiter is polled, and may not wait for news again before `until`.
    pub(crate) fn is_alive(&self, until: BootInstant) {
        let mut state = self.grants.lock();
        if let Some(waiting) = state.waiting.get_mut(&self.number) {
            waiting.alive = until;
        }
    }

    /// Whether the hold has not been given up, so that a grant would be this waiter's.
    pub(crate) fn stands(&self) -> bool {
        self.grants.stands(self.number)
    }

    /// Accepts a grant, however it became known. Returns `false` if the hold was given up in the meantime.
    ///
    /// On `true`, the waiter owns the hold and its `Undo`.
    pub(crate) fn claim(&self) -> bool {
        // Before it is taken out, so that it is known at all times.
        self.grants.lock().accept(self.number);
        self.grants.take(self.number, |_| true).is_some()
    }
}

impl Drop for Expected {
    fn drop(&mut self) {
        drop(self.grants.take(self.number, |_| true));
    }
}
