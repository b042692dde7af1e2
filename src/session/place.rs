//! A call's place in the local queue: how it comes to the front, and what happens if nobody polls it there.
//!
//! A place is entered in one step ([`LocalLockRef::stand`]) and left by its drop, so a call that is dropped anywhere
//! stands in nobody's way. Whatever a call waits for here is a function of the local lock's state, tried under the
//! mutex at each poll; each step that may change its value wakes the call. So no wake-up can be lost between a look and
//! the wait.
//!
//! # Invariants
//!
//! 1. A call's waker is noted under the same mutex under which it was seen that there is nothing for the call.
//! 2. An undo that was lent is taken back by its call, or dropped by the drop of the place or by the watch: one of
//!    them.
//! 3. An undo is dropped outside the mutex. One that was lent is dropped before the next call comes to the front, so
//!    that its release is ahead of what that call asks.

use std::collections::BTreeSet;
use std::future::poll_fn;
use std::task::{Context, Poll};
use std::time::Duration;

use super::local_lock::{LocalLockRef, State};
use super::local_queue::{Role, Side, Ticket};
use super::sync::{Spawner, sleep};
use crate::clock::BootInstant;
use crate::owner::Owner;

/// How often the call at the front is asked to show that it is polled, while others stand behind it; if it is not, so
/// are these. A future that shares a task with another may not be polled, and other calls must not wait for it.
pub(crate) const UNPOLLED: Duration = Duration::from_secs(1);
/// How long it has to show that. Longer than an executor is usually busy with other tasks.
pub(super) const SHOWN_WITHIN: Duration = Duration::from_millis(100);

/// What a call that waits in the local queue is to do now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// Its owner has the lock: the call takes it once more.
    ///
    /// It need not stand at the front for that.
    Held,
    /// The call asks.
    ///
    /// Also a call that asks when it likes.
    First,
}

/// A place in the local queue, until dropped.
///
/// Borrows the local lock, so the call keeps that in use.
#[derive(Debug)]
pub(crate) struct Place<'a, D> {
    local: &'a LocalLockRef<D>,
    /// The owner, of a call that may take the lock again: it is told of a hold of its owner.
    owner: Option<&'a Owner>,
    ticket: Ticket,
}

impl<D> LocalLockRef<D> {
    /// Waits until this owner holds the lock, by another call. Cancel safe, and asks nobody.
    pub(crate) async fn appeared(&self, owner: &Owner) {
        let appeared = |state: &mut State<D>| state.owners.of(self.side).live(owner).map(drop);
        self.until(owner, false, appeared).await;
    }

    /// Waits until `ready` returns a value. It is tried again when what this owner has changes and, if it
    /// `waits_for_releases`, when a release here is ahead or has ended.
    ///
    /// Stands in the queue as [`Role::Apart`]: it is in no call's way. `ready` may claim something under the mutex: its
    /// value ends the wait, so the caller has the claim in the same poll. Cancel safe.
    pub(super) async fn until<T>(
        &self,
        owner: &Owner,
        waits_for_releases: bool,
        mut ready: impl FnMut(&mut State<D>) -> Option<T>,
    ) -> T {
        let ticket = self.change(|state| {
            let ticket = state.stand(self.side, Role::Apart, Some(owner));
            // Noted in the step in which it enters, so that no release can pass unseen.
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

    /// Gives up the place that this process may have in the turn order, if no call is left here that could come when it
    /// is told. `leave` runs under the mutex, so that a call that comes now asks behind it.
    ///
    /// Called when a call has left the queue. The flag is taken, so the leave is sent once.
    pub(crate) fn give_up_place(&self, leave: impl FnOnce()) {
        let mut state = self.lock();
        if state.queue.len() == 0 && std::mem::take(&mut state.turns.is_placed) {
            leave();
        }
    }
}

impl<D> State<D> {
    /// Enters a call, and has it told of what its owner gets.
    fn stand(&mut self, side: Side, role: Role, owner: Option<&Owner>) -> Ticket {
        let ticket = self.queue.stand(side, role);
        if let Some(owner) = owner {
            self.owners.of_mut(side).waits(owner, ticket);
        }
        ticket
    }
}

impl<D> Place<'_, D> {
    /// Waits until it is this call's turn, or until its owner has the lock by another call.
    pub(crate) async fn comes(&self) -> Turn {
        poll_fn(|context| self.poll(context, |state| self.turn(state))).await
    }

    /// Returns what the call is to do now, or `None` if it has to wait.
    pub(crate) fn now(&self) -> Option<Turn> {
        self.local.change(|state| self.turn(state))
    }

    /// Decides what the call is to do now: see [`Turn`].
    fn turn(&self, state: &mut State<D>) -> Option<Turn> {
        let side = self.local.side;
        let has = |side| self.owner.and_then(|it| state.owners.of(side).live(it));
        if has(side).is_some() {
            return Some(Turn::Held);
        }
        // The calls before it may wait for what its own owner writes.
        if side == Side::Shared && has(Side::Exclusive).is_some() {
            state.queue.goes_beside(self.ticket);
        }
        state.queue.is_first(self.ticket).then_some(Turn::First)
    }

    /// Takes the call out of the others' way: from now on it asks when it likes.
    pub(crate) fn goes_beside(&self) {
        self.local
            .change(|state| state.queue.goes_beside(self.ticket));
    }

    /// Ends the call's wait for those of the other side.
    pub(crate) fn keeps_no_order(&self) {
        self.local
            .change(|state| state.queue.keeps_no_order(self.ticket));
    }

    /// Notes that a reader at the front has asked. If it was refused, the server dates it before `latest`.
    pub(crate) fn has_asked(&self, latest: Option<BootInstant>) {
        self.local
            .change(|state| state.queue.has_asked(self.ticket, latest));
    }

    /// Keeps the undo of a request that is about to be sent and is over at `until`. If nobody polls this call later,
    /// the undo is done, and others go before the call.
    ///
    /// Until [`reclaim`](Self::reclaim) the undo belongs to the local lock.
    pub(crate) fn lend(&self, undo: D, until: BootInstant) {
        let mut state = self.local.lock();
        state.queue.is_alive(self.ticket, until);
        let before = state.asked.insert(self.ticket, undo);
        drop(state);
        // Of an earlier request of this call. Without the mutex, since the drop sends its release.
        drop(before);
    }

    /// Takes the undo back. Returns `None` if others went before this call, and the undo is done.
    pub(crate) fn reclaim(&self) -> Option<D> {
        self.local.lock().asked.remove(&self.ticket)
    }

    /// Takes everything up to now as known. The call is being polled, and may not wait here again before `until`.
    ///
    /// To be called before a request, so that what happens from then on is news.
    pub(crate) fn catch_up(&self, until: BootInstant) {
        let mut state = self.local.lock();
        state.queue.is_stirred(self.ticket);
        state.queue.is_alive(self.ticket, until);
    }

    /// Waits until something happens here that makes it worth asking.
    ///
    /// Cancel safe: what has happened stays noted until it is returned.
    pub(crate) async fn news(&self) {
        let news = |state: &mut State<D>| state.queue.is_stirred(self.ticket).then_some(());
        poll_fn(|context| self.poll(context, news)).await;
    }

    /// Looks for a value under the mutex, and notes the waker if there is none. Shows that the call is polled.
    fn poll<T>(
        &self,
        context: &mut Context<'_>,
        ready: impl FnOnce(&mut State<D>) -> Option<T>,
    ) -> Poll<T> {
        // Not under the mutex: a waker may run any code when it is cloned or dropped.
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
        // The release goes out ahead of what the next call asks.
        drop(self.reclaim());
        let side = self.local.side;
        let left = self.local.change(|state| {
            state.queue.leave(self.ticket);
            state.outgoing.blocked.remove(&self.ticket);
            if let Some(owner) = self.owner {
                state.owners.of_mut(side).leaves(owner, self.ticket);
            }
            // A handoff lies only while a call stands here that may take it.
            match state.queue.has_heir(side) {
                true => None,
                false => state.left.take(side),
            }
        });
        drop(left);
    }
}

impl<D: Send + 'static> LocalLockRef<D> {
    /// Stands in the local queue until the place is dropped; with `owner`, for a call that may take the lock again.
    /// While other calls stand there too, a task watches the calls at the front.
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

    /// Starts the task that lets others go before a call at the front that nobody polls.
    ///
    /// In each round it wakes the calls at the front, and looks a moment later which of them have not been polled. If
    /// any, it looks at all others too, so that those which nobody polls cost the rest one round together.
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

    /// Wakes the calls at the front, or `everyone` in the queue, and gives them a moment to show that they are polled.
    /// Returns them, and since when they should have been.
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

    /// Lets others go before those of `poked` that nobody has polled since `since`. Their undos are dropped before the
    /// next call comes to the front: what it asks comes behind the releases.
    fn pass(&self, poked: &BTreeSet<Ticket>, since: BootInstant) {
        let mut state = self.lock();
        let unpolled = state.queue.unpolled(poked, since);
        // Taken out under the mutex: a call that is polled just now finds its undo gone, and begins again.
        let undone = unpolled.iter().filter_map(|it| state.asked.remove(it));
        let undone: Vec<_> = undone.collect();
        let (firsts, others): (Vec<Ticket>, Vec<Ticket>) =
            unpolled.iter().partition(|it| state.queue.is_first(**it));
        // Under the same mutex: a call that is polled just now comes back.
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
    use super::super::sync::{TIMERS, ended, oneshot};
    use super::*;
    use crate::name::{LockName, Users};

    const ORDERS: usize = 2_000;

    /// Both sides of a lock, in use throughout: shuttle knows nothing of the locks in the map of local locks.
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
        shuttle::check_random(calls, ORDERS);
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
                        // It comes to the front if the call there was passed since it stands.
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
        shuttle::check_random(calls, ORDERS);
    }
}
