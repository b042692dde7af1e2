//! A call's place in the local queue: how the call comes to the front, and what happens if nobody polls it there.
//!
//! A call takes a place in one step ([`LocalLockRef::stand`]) and leaves it by dropping it, so a dropped call blocks
//! nobody. A call waits for a function of the local lock's state, which each poll tries under the mutex. Every step
//! that may change its value wakes the call. So no wake-up is lost between the check and the wait.
//!
//! # Invariants
//!
//! 1. A call's waker is stored under the mutex, in one step with the check that there is nothing for the call.
//! 2. An undo that was lent goes exactly one way: its call takes it back, the drop of the place drops it, or the watch
//!    does.
//! 3. An undo is dropped outside the mutex. One that was lent is dropped before the next call comes to the front, so
//!    that its release is ahead of what that call asks.

use std::collections::BTreeSet;
use std::future::poll_fn;
use std::task::{Context, Poll};
use std::time::Duration;

use super::local_lock::{LocalLockRef, LockState};
use super::local_queue::{Role, Side, Ticket};
use super::sync::{Spawner, sleep};
use crate::clock::BootInstant;
use crate::owner::Owner;

/// How often the call at the front has to show that it is polled, while others stand behind it. If it is not, the
/// others are checked too. A future that shares a task with another may not be polled, and other calls must not wait
/// for it.
pub(crate) const UNPOLLED: Duration = Duration::from_secs(1);
/// How long it has for that. Longer than an executor is usually busy with other tasks.
pub(crate) const SHOWN_WITHIN: Duration = Duration::from_millis(100);

/// What a call in the local queue may do now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// Its owner has the lock, so the call re-enters it.
    ///
    /// It need not be at the front for that.
    Held,
    /// The call may ask.
    ///
    /// Includes a call that asks whenever it likes.
    First,
}

/// A place in the local queue, until dropped.
///
/// Borrows the local lock, which keeps it in use.
#[derive(Debug)]
pub(crate) struct Place<'a, D> {
    local: &'a LocalLockRef<D>,
    /// The owner, if the call may re-enter the lock. The call is then told of a hold of its owner.
    owner: Option<&'a Owner>,
    ticket: Ticket,
}

impl<D> LocalLockRef<D> {
    /// Waits until another call of this owner gets the lock. Cancel safe, and asks nobody.
    pub(crate) async fn appeared(&self, owner: &Owner) {
        let appeared = |state: &mut LockState<D>| state.owners.of(self.side).live(owner).map(drop);
        self.until(owner, false, appeared).await;
    }

    /// Waits until `ready` returns a value. Tries it again when this owner's hold changes and, with
    /// `waits_for_releases`, when a release here is ahead or has ended.
    ///
    /// Stands in the queue as [`Role::Apart`], which blocks no call. `ready` may claim something under the mutex, since
    /// its value ends the wait in the same poll. Cancel safe.
    pub(super) async fn until<T>(
        &self,
        owner: &Owner,
        waits_for_releases: bool,
        mut ready: impl FnMut(&mut LockState<D>) -> Option<T>,
    ) -> T {
        let ticket = self.change(|state| {
            let ticket = state.stand(self.side, Role::Apart, Some(owner));
            // Noted in the step that enters the call, so that it misses no release.
            if waits_for_releases {
                state.outgoing.blocked.insert(ticket);
            }
            ticket
        });
        let place = self.place(ticket, Some(owner));
        poll_fn(|context| place.poll(context, &mut ready)).await
    }

    fn place<'a>(&'a self, ticket: Ticket, owner: Option<&'a Owner>) -> Place<'a, D> {
        Place {
            local: self,
            owner,
            ticket,
        }
    }

    /// Gives up this process's place in the turn order, if no call is left here that could use the turn. `leave` runs
    /// under the mutex, so a call that comes now asks behind it.
    ///
    /// Called when a call has left the queue. Clears the count, so the leave is sent once.
    pub(crate) fn give_up_place(&self, leave: impl FnOnce()) {
        let mut state = self.lock();
        if state.queue.len() == 0 && std::mem::take(&mut state.turns.placed) > 0 {
            leave();
        }
    }
}

impl<D> LockState<D> {
    /// Enters a call, and has it told of its owner's holds.
    fn stand(&mut self, side: Side, role: Role, owner: Option<&Owner>) -> Ticket {
        let ticket = self.queue.stand(side, role);
        if let Some(owner) = owner {
            self.owners.of_mut(side).waits(owner, ticket);
        }
        ticket
    }
}

impl<D> Place<'_, D> {
    /// Waits until it is this call's turn, or until another call of its owner has the lock.
    pub(crate) async fn comes(&self) -> Turn {
        poll_fn(|context| self.poll(context, |state| self.turn(state))).await
    }

    /// Returns what the call may do now, or `None` if it has to wait.
    pub(crate) fn now(&self) -> Option<Turn> {
        self.local.change(|state| self.turn(state))
    }

    /// Decides what the call may do now: see [`Turn`].
    fn turn(&self, state: &mut LockState<D>) -> Option<Turn> {
        let side = self.local.side;
        let has = |side| self.owner.and_then(|it| state.owners.of(side).live(it));
        if has(side).is_some() {
            return Some(Turn::Held);
        }
        // The calls before it may wait for a hold of its own owner to end.
        if side == Side::Shared && has(Side::Exclusive).is_some() {
            state.queue.goes_beside(self.ticket);
        }
        state.queue.is_first(self.ticket).then_some(Turn::First)
    }

    /// Lets the call ask whenever it likes from now on, so that it blocks nobody.
    pub(crate) fn goes_beside(&self) {
        self.local
            .change(|state| state.queue.goes_beside(self.ticket));
    }

    /// Ends the call's wait for the calls of the other side.
    pub(crate) fn keeps_no_order(&self) {
        self.local
            .change(|state| state.queue.keeps_no_order(self.ticket));
    }

    /// Notes that a reader at the front has asked. If it was refused, the server dates it before `latest`.
    pub(crate) fn has_asked(&self, latest: Option<BootInstant>) {
        self.local
            .change(|state| state.queue.has_asked(self.ticket, latest));
    }

    /// Keeps the undo of a request that is about to be sent and ends by `until`. If nobody polls this call after that,
    /// the undo runs and others go first.
    ///
    /// Until [`reclaim`](Self::reclaim) the undo belongs to the local lock.
    pub(crate) fn lend(&self, undo: D, until: BootInstant) {
        let mut state = self.local.lock();
        state.queue.is_alive(self.ticket, until);
        let before = state.asked.insert(self.ticket, undo);
        drop(state);
        // From an earlier request of this call. Dropped outside the mutex, since the drop sends a release.
        drop(before);
    }

    /// Takes the undo back. Returns `None` if others have gone first, in which case the undo has run.
    pub(crate) fn reclaim(&self) -> Option<D> {
        self.local.lock().asked.remove(&self.ticket)
    }

    /// Marks everything up to now as known. The call is being polled, and may not wait here again before `until`.
    ///
    /// Called before a request, so that later events are news.
    pub(crate) fn catch_up(&self, until: BootInstant) {
        let mut state = self.local.lock();
        state.queue.is_stirred(self.ticket);
        state.queue.is_alive(self.ticket, until);
    }

    /// Waits for an event in this process that makes it worth asking.
    ///
    /// Cancel safe: an event stays noted until it is returned.
    pub(crate) async fn news(&self) {
        let news = |state: &mut LockState<D>| state.queue.is_stirred(self.ticket).then_some(());
        poll_fn(|context| self.poll(context, news)).await;
    }

    /// Tries to get a value under the mutex, and stores the waker if there is none. Shows that the call is polled.
    fn poll<T>(
        &self,
        context: &mut Context<'_>,
        ready: impl FnOnce(&mut LockState<D>) -> Option<T>,
    ) -> Poll<T> {
        // Cloned outside the mutex: cloning or dropping a waker may run any code.
        let mut waker = Some(context.waker().clone());
        self.local.change(|state| {
            let ready = ready(state);
            if ready.is_none() {
                state.queue.waits(self.ticket, waker.take());
            }
            ready.map_or(Poll::Pending, Poll::Ready)
        })
    }
}

impl<D> Drop for Place<'_, D> {
    fn drop(&mut self) {
        // Sends the release ahead of the next call's request.
        drop(self.reclaim());
        let side = self.local.side;
        let left = self.local.change(|state| {
            state.queue.leave(self.ticket);
            state.outgoing.blocked.remove(&self.ticket);
            if let Some(owner) = self.owner {
                state.owners.of_mut(side).leaves(owner, self.ticket);
            }
            // A handoff may lie only while a call here can take it.
            match state.queue.has_heir(side) {
                true => None,
                false => state.left.take(side),
            }
        });
        drop(left);
    }
}

impl<D: Send + 'static> LocalLockRef<D> {
    /// Stands in the local queue until the place is dropped; with `owner`, for a call that may re-enter the lock. While
    /// several calls stand there, a task watches those at the front.
    ///
    /// The task ends when at most one call is left.
    pub(crate) fn stand<'a>(
        &'a self,
        role: Role,
        owner: Option<&'a Owner>,
        runtime: &Spawner,
    ) -> Place<'a, D> {
        let (ticket, is_watched) = self.change(|state| {
            let ticket = state.stand(self.side, role, owner);
            let is_watched =
                !state.queue.is_crowded() || std::mem::replace(&mut state.is_front_watched, true);
            (ticket, is_watched)
        });
        if !is_watched {
            self.watch_front(runtime);
        }
        self.place(ticket, owner)
    }

    /// Starts the task that passes over a call at the front if nobody polls it.
    ///
    /// Each round wakes the calls at the front, and checks a moment later which of them have not been polled. If there
    /// are any, it checks all other calls too, so that all unpolled calls together cost the rest one round.
    fn watch_front(&self, runtime: &Spawner) {
        let local = self.clone();
        runtime.spawn(async move {
            while local.is_crowded() {
                sleep(UNPOLLED).await;
                let (poked, since) = local.poke(false).await;
                if local.lock().queue.unpolled(&poked, since).is_empty() {
                    continue;
                }
                let (poked, since) = local.poke(true).await;
                local.pass(&poked, since);
            }
        });
    }

    /// Wakes the calls at the front, or `everyone` in the queue, and gives them a moment to be polled. Returns the
    /// calls, and the instant after which each should have been polled.
    async fn poke(&self, everyone: bool) -> (BTreeSet<Ticket>, BootInstant) {
        // Taken before the calls are poked, so that a poll in response counts as later.
        let since = BootInstant::now();
        let poked = self.change(|state| {
            let lent = state.asked.keys().copied();
            state.queue.poke(lent, everyone)
        });
        sleep(SHOWN_WITHIN).await;
        (poked, since)
    }

    /// Passes over those of `poked` that nobody has polled since `since`. Drops their undos before the next call comes
    /// to the front, so that its request comes behind the releases.
    fn pass(&self, poked: &BTreeSet<Ticket>, since: BootInstant) {
        let mut state = self.lock();
        let unpolled = state.queue.unpolled(poked, since);
        // Taken out under the mutex: a call that is polled now finds its undo gone, and begins again.
        let undone = unpolled.iter().filter_map(|it| state.asked.remove(it));
        let undone: Vec<_> = undone.collect();
        let (firsts, others): (Vec<Ticket>, Vec<Ticket>) =
            unpolled.iter().partition(|it| state.queue.is_first(**it));
        // Under the same mutex: a call that is polled now comes back.
        others.iter().for_each(|it| state.queue.sets_aside(*it));
        drop(state);
        drop(undone);
        self.change(|state| firsts.iter().for_each(|it| state.queue.goes_beside(*it)));
    }

    /// Whether more than one call waits to ask. If not, the watch is over.
    fn is_crowded(&self) -> bool {
        let mut state = self.lock();
        state.is_front_watched = state.queue.is_crowded();
        state.is_front_watched
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::sync::Arc;

    use futures_util::FutureExt;
    use shuttle::future::{block_on, spawn, yield_now};
    use shuttle::rand::Rng;

    use super::super::local_lock::LocalLocks;
    use super::super::sync::{TIMERS, ended, oneshot, orders};
    use super::*;
    use crate::name::{LockName, Users};

    /// Both sides of a lock, kept in use throughout, since shuttle does not know the mutexes of the map of local locks.
    fn sides() -> [LocalLockRef<()>; 2] {
        let name = LockName::read_write("", "k").expect("a name");
        let local_locks = LocalLocks::default();
        [Users::Writers, Users::Readers].map(|users| local_locks.enter(name.local_key(users)))
    }

    /// Waits as a call does: comes to the front, asks, sometimes waits there to be told, and leaves.
    async fn call(local: LocalLockRef<()>) {
        let place = local.stand(Role::InOrder, None, &Spawner::current());
        assert_eq!(place.comes().await, Turn::First);
        yield_now().await;
        if local.side == Side::Shared {
            place.has_asked(None);
        }
        if shuttle::rand::thread_rng().gen_bool(0.5) {
            place.catch_up(BootInstant::now());
            let local = local.clone();
            spawn(async move { local.stir() });
            place.news().await;
        }
    }

    #[test]
    fn every_call_comes_to_the_front_whoever_leaves() {
        let calls = || {
            TIMERS.set(false);
            let sides = sides();
            let start = |at: usize| spawn(call(sides[at % 2].clone()));
            let stay = (0..3).map(start).collect();
            let leave = (1..4).map(start).collect();
            block_on(ended(stay, leave));
            assert_eq!(sides[0].lock().queue.len(), 0);
        };
        shuttle::check_random(calls, orders());
    }

    #[test]
    fn first_call_behind_an_owner_is_that_of_another_owner_whom_its_side_excludes() {
        let calls = || {
            TIMERS.set(false);
            let [writers, readers] = sides();
            let [holder, other] = [(); 2].map(|()| Owner::unique());
            let first = |local: &LocalLockRef<()>| {
                let first = local.first_behind(&holder);
                first.map(|(_, owner)| owner)
            };
            block_on(async {
                let runtime = Spawner::current();
                let own = writers.stand(Role::InOrder, Some(&holder), &runtime);
                assert_eq!(first(&writers), None, "it waits for itself");
                let reader = readers.stand(Role::InOrder, Some(&other), &runtime);
                assert_eq!(first(&writers), Some(Some(other.clone())));
                assert_eq!(first(&readers), None, "readers let each other read");
                let writer = writers.stand(Role::InOrder, None, &runtime);
                assert_eq!(first(&readers), Some(None));
                drop((own, reader, writer));
            });
        };
        shuttle::check_random(calls, 10);
    }

    #[test]
    fn calls_that_nobody_polls_are_passed_with_what_they_asked_for_and_come_back() {
        let calls = || {
            TIMERS.set(true);
            let [local, _] = sides();
            let local = Arc::new(local);
            let at_front = {
                let local = local.clone();
                spawn(async move {
                    let place = local.stand(Role::InOrder, None, &Spawner::current());
                    place.lend((), BootInstant::now());
                    pending::<()>().await;
                })
            };
            block_on(async {
                while local.lock().asked.is_empty() {
                    yield_now().await;
                }
                let behind = [(); 2].map(|()| {
                    let (local, (polls, is_polled)) = (local.clone(), oneshot::channel());
                    let call = spawn(async move {
                        let place = local.stand(Role::InOrder, None, &Spawner::current());
                        // It comes to the front if the call there was passed over in the meantime.
                        place.comes().now_or_never();
                        is_polled.await.expect("it is polled again");
                        assert_eq!(place.comes().await, Turn::First);
                    });
                    (polls, call)
                });
                while local.lock().queue.len() < 3 {
                    yield_now().await;
                }
                let place = local.stand(Role::InOrder, None, &Spawner::current());
                assert_eq!(place.comes().await, Turn::First);
                assert!(local.lock().asked.is_empty(), "it is undone");
                drop(place);
                for (polls, call) in behind {
                    polls.send(()).expect("it waits for that");
                    call.await.expect("it comes to the front");
                }
                at_front.abort();
            });
        };
        shuttle::check_random(calls, orders());
    }
}
