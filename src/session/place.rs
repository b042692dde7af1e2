//! A call's place in the line of its process: how it comes to the front, and what happens if nobody polls it there.

use std::future::poll_fn;
use std::task::{Context, Poll};
use std::time::Duration;

use super::local_lock::{LocalLockRef, State};
use super::local_queue::{Role, Side, Ticket};
use super::sync::{Spawner, sleep};
use crate::clock::BootInstant;
use crate::owner::Owner;

/// How often the call at the front is asked to show that it is polled, while others stand behind it. Futures that share a task
/// with another may not be, and nobody else may wait for them.
const UNPOLLED: Duration = Duration::from_secs(1);
/// Within so long it does.
const SHOWN_WITHIN: Duration = Duration::from_millis(100);

/// What a call that waits in line is to do now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// Its owner has the lock: it takes it once more.
    Held,
    /// It asks.
    First,
}

/// A place in line, until dropped.
#[derive(Debug)]
pub(crate) struct Place<'a, D> {
    local: &'a LocalLockRef<D>,
    /// Of one that may take the lock again.
    owner: Option<&'a Owner>,
    ticket: Ticket,
}

impl<D> LocalLockRef<D> {
    /// Waits until this owner holds the lock, by another call.
    pub(crate) async fn appeared(&self, owner: &Owner) {
        let appeared = |state: &mut State<D>| state.owners.of(self.side).live(owner).map(drop);
        self.until(owner, false, appeared).await;
    }

    /// Waits for what a change of what this owner has brings about, or of the releases that it heeds.
    pub(super) async fn until<T>(
        &self,
        owner: &Owner,
        is_blocked: bool,
        mut ready: impl FnMut(&mut State<D>) -> Option<T>,
    ) -> T {
        let ticket = self.change(|state| {
            let ticket = state.stand(self.side, Role::Apart, Some(owner));
            if is_blocked {
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

    /// Gives up the place that this process may have in line on the server, if nobody is left here to come when it is told.
    /// Whoever comes now asks behind that.
    pub(crate) fn give_up_place(&self, leave: impl FnOnce()) {
        let mut state = self.lock();
        if state.queue.len() == 0 && std::mem::take(&mut state.turns.is_placed) {
            leave();
        }
    }
}

impl<D> State<D> {
    fn stand(&mut self, side: Side, role: Role, owner: Option<&Owner>) -> Ticket {
        let ticket = self.queue.stand(side, role);
        if let Some(owner) = owner {
            self.owners.of_mut(side).waits(owner, ticket);
        }
        ticket
    }
}

impl<D> Place<'_, D> {
    /// Waits until it is this call's turn, or its owner has the lock by another call.
    pub(crate) async fn comes(&self) -> Turn {
        poll_fn(|context| self.poll(context, |state| self.turn(state))).await
    }

    /// What it is to do now, if not to wait.
    pub(crate) fn now(&self) -> Option<Turn> {
        self.local.change(|state| self.turn(state))
    }

    fn turn(&self, state: &mut State<D>) -> Option<Turn> {
        let side = self.local.side;
        let has = |side| self.owner.and_then(|it| state.owners.of(side).live(it));
        if has(side).is_some() {
            return Some(Turn::Held);
        }
        // Whoever stands before it may wait for what its owner writes.
        if side == Side::Shared && has(Side::Exclusive).is_some() {
            state.queue.goes_beside(self.ticket);
        }
        state.queue.is_first(self.ticket).then_some(Turn::First)
    }

    /// From now on it stands in nobody's way, and asks when it likes.
    pub(crate) fn goes_beside(&self) {
        self.local
            .change(|state| state.queue.goes_beside(self.ticket));
    }

    /// From now on it waits for those of the other side no longer.
    pub(crate) fn keeps_no_order(&self) {
        self.local
            .change(|state| state.queue.keeps_no_order(self.ticket));
    }

    /// A reader at the front has asked. If it was refused, the server dates it before `latest`.
    pub(crate) fn has_asked(&self, latest: Option<BootInstant>) {
        self.local
            .change(|state| state.queue.has_asked(self.ticket, latest));
    }

    /// Before a request is sent that is over then: keeps what is to be undone of it, which is done if nobody polls this call
    /// later, and others go before it.
    pub(crate) fn lend(&self, undo: D, until: BootInstant) {
        let mut state = self.local.lock();
        state.queue.is_alive(self.ticket, until);
        let before = state.asked.insert(self.ticket, undo);
        drop(state);
        drop(before);
    }

    /// Takes it back. `None` if others went before it, and it is done.
    pub(crate) fn reclaim(&self) -> Option<D> {
        self.local.lock().asked.remove(&self.ticket)
    }

    /// What has happened up to now is known. The call is polled, and may not wait here again before this moment.
    pub(crate) fn catch_up(&self, until: BootInstant) {
        let mut state = self.local.lock();
        state.queue.is_stirred(self.ticket);
        state.queue.is_alive(self.ticket, until);
    }

    /// Waits until something happens here that makes it worth asking.
    pub(crate) async fn news(&self) {
        let news = |state: &mut State<D>| state.queue.is_stirred(self.ticket).then_some(());
        poll_fn(|context| self.poll(context, news)).await;
    }

    fn poll<T>(
        &self,
        context: &mut Context<'_>,
        ready: impl FnOnce(&mut State<D>) -> Option<T>,
    ) -> Poll<T> {
        // Not under the mutex: what a waker does when it is cloned or dropped is its own affair.
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
        // The release goes out ahead of what the next one asks.
        drop(self.reclaim());
        let side = self.local.side;
        let left = self.local.change(|state| {
            state.queue.leave(self.ticket);
            state.outgoing.blocked.remove(&self.ticket);
            if let Some(owner) = self.owner {
                state.owners.of_mut(side).leaves(owner, self.ticket);
            }
            match state.queue.has_heir(side) {
                true => None,
                false => state.left.take(side),
            }
        });
        drop(left);
    }
}

impl<D: Send + 'static> LocalLockRef<D> {
    /// Stands in line, until the place is dropped; of an owner that may take the lock again. While others stand there too, those
    /// at the front are looked after.
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

    fn watch_front(&self, runtime: &Spawner) {
        let local = self.clone();
        runtime.spawn(async move {
            while local.is_crowded() {
                sleep(UNPOLLED).await;
                let since = BootInstant::now();
                let poked = local.change(|state| state.queue.poke(state.asked.keys().copied()));
                sleep(SHOWN_WITHIN).await;
                let (unpolled, undone) = local.unpolled(&poked, since);
                // The releases go out ahead of what the next ones ask.
                drop(undone);
                local.change(|state| unpolled.iter().for_each(|it| state.queue.goes_beside(*it)));
            }
        });
    }

    /// Those of them that nobody has polled since, and what they have asked for, if anybody else is there.
    fn unpolled(&self, poked: &[Ticket], since: BootInstant) -> (Vec<Ticket>, Vec<D>) {
        let mut state = self.lock();
        let unpolled = state.queue.unpolled(poked, since);
        let undone = unpolled.iter().filter_map(|it| state.asked.remove(it));
        let undone = undone.collect();
        (unpolled, undone)
    }

    /// Whether more than one stand there. If not, the watch is over.
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

    use shuttle::future::{block_on, spawn, yield_now};
    use shuttle::rand::Rng;

    use super::super::local_lock::LocalLocks;
    use super::super::sync::{TIMERS, ended};
    use super::*;
    use crate::name::{LockName, Users};

    const ORDERS: usize = 2_000;

    /// Both sides of a lock, in use throughout: shuttle knows nothing of the locks in the map of queues.
    fn sides() -> [LocalLockRef<()>; 2] {
        let name = LockName::read_write("", "k").expect("a name");
        let local_locks = LocalLocks::default();
        [Users::Writers, Users::Readers].map(|users| local_locks.enter(name.local_key(users)))
    }

    /// As a call does it: comes to the front, asks, waits there to be told perhaps, and leaves.
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
    fn call_that_nobody_polls_is_passed_with_what_it_asked_for() {
        let calls = || {
            TIMERS.set(true);
            let [local, _] = sides();
            let local = Arc::new(local);
            let unpolled = {
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
                let place = local.stand(Role::InOrder, None, &Spawner::current());
                assert_eq!(place.comes().await, Turn::First);
                assert!(local.lock().asked.is_empty(), "it is undone");
                unpolled.abort();
            });
        };
        shuttle::check_random(calls, ORDERS);
    }
}
