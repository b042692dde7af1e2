//! The local queue: the calls of this process that wait for a lock, which of them asks the server, and which to wake.
//!
//! This module only decides. The caller has the mutex of the local lock, and wakes the others after unlocking it.
//!
//! # Invariants
//!
//! 1. Of the calls that want the lock alone, the first asks. Of the readers, the first asks for all, and the others
//!    join its grant. Depending on its role, neither asks before the first of the other side if that one came earlier
//!    and has not asked; this lasts for at most a second. A call with `Role::Beside` asks whenever it likes.
//! 2. A call that has come to the front stays there until it leaves, or until others go first because it is not polled.
//! 3. A call that is not polled and has not come to the front is set aside. When it is polled again, it gets back its
//!    old place.

use std::collections::{BTreeMap, BTreeSet};
use std::mem::{replace, take};
use std::task::Waker;

use crate::clock::BootInstant;

/// Whether a call wants the lock alone. Most kinds are never shared.
///
/// The two sides of a read-write lock share one queue, so that their calls can keep the order of arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    /// Nobody else may have the lock. All calls of locks without two sides are of this side.
    Exclusive,
    /// Others of this side may have it too.
    Shared,
}

impl Side {
    pub(super) fn other(self) -> Self {
        match self {
            Self::Exclusive => Self::Shared,
            Self::Shared => Self::Exclusive,
        }
    }
}

/// One value for each side.
#[derive(Debug, Default)]
pub(super) struct Sides<T> {
    pub(super) exclusive: T,
    pub(super) shared: T,
}

impl<T> Sides<T> {
    pub(super) fn of(&self, side: Side) -> &T {
        match side {
            Side::Exclusive => &self.exclusive,
            Side::Shared => &self.shared,
        }
    }

    pub(super) fn of_mut(&mut self, side: Side) -> &mut T {
        match side {
            Side::Exclusive => &mut self.exclusive,
            Side::Shared => &mut self.shared,
        }
    }

    pub(super) fn both(&self) -> impl Iterator<Item = &T> {
        [&self.exclusive, &self.shared].into_iter()
    }
}

/// What a call waits for.
///
/// Set when the call arrives. Changes only towards less waiting: see [`LocalQueue::goes_beside`] and
/// [`LocalQueue::keeps_no_order`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// Its turn to ask among the calls of its side.
    InQueue,
    /// Its turn to ask, behind the calls of the other side that came before.
    ///
    /// For at most as long as the caller lets it wait.
    InOrder,
    /// Its turn to ask, behind all calls of the other side.
    Behind,
    /// Only the server's answer: it asks whenever it likes, beside the queue.
    Beside,
    /// An event in this process. It asks nobody, and stands apart from the queue.
    ///
    /// For example the end of a turn to ask, or a hold of its owner.
    Apart,
}

impl Role {
    /// Whether the call lets calls of the other side go first.
    pub(crate) fn waits_for_other_side(self) -> bool {
        matches!(self, Self::InOrder | Self::Behind)
    }
}

/// The number of a call in the local queue. Tickets ascend in the order of arrival.
///
/// Never reused within one local lock.
pub(super) type Ticket = u64;

/// The calls that wait for one lock, on both sides.
#[derive(Debug, Default)]
pub(super) struct LocalQueue {
    /// The ticket that was given out last.
    last: Ticket,
    /// Every call that waits for anything, in the order of arrival.
    waiters: BTreeMap<Ticket, QueuedCall>,
    /// The calls that wait for their turn, or have it.
    ///
    /// A subset of the waiters. The first of each set asks next.
    in_queue: Sides<BTreeSet<Ticket>>,
    /// The call that has come to the front of each side. Not always the first in the set, since one that was set aside
    /// may return ahead of it.
    front: Sides<Option<Ticket>>,
    /// The calls that ask whenever they like. They are woken along with the front, and block nobody.
    beside: Sides<BTreeSet<Ticket>>,
    /// The calls that were set aside. Each is in no other set until it is polled.
    aside: BTreeSet<Ticket>,
    /// Readers up to this ticket block no writer: one of them has asked for all, and the server keeps the order.
    asked: Ticket,
    /// Those readers came before this instant, according to the server.
    readers_came: Option<BootInstant>,
    /// Collected during a step. [`move_up`](Self::move_up) returns them at its end.
    wakers: Wakers,
}

/// The wakers to wake and to drop once the mutex is unlocked.
#[derive(Debug, Default)]
#[must_use = "nobody is woken if it is dropped"]
pub(super) struct Wakers {
    /// Of calls that something has happened for.
    woken: Vec<Waker>,
    /// Of calls that have gone. Dropping a waker may run any code, so it must not happen under the mutex.
    gone: Vec<Waker>,
}

impl Wakers {
    /// Wakes the calls, and drops the other wakers. Must be called without the mutex.
    pub(super) fn wake(self) {
        self.woken.into_iter().for_each(Waker::wake);
    }
}

/// A call that waits.
#[derive(Debug)]
struct QueuedCall {
    /// Fixed for the life of the call.
    side: Side,
    /// What it waits for at present.
    role: Role,
    /// When it came.
    came: BootInstant,
    /// Whether it has come to the front.
    ///
    /// Stays set until it leaves, by invariant 2.
    is_first: bool,
    /// Whether something has happened since it last looked.
    ///
    /// Stays set until the call looks, so that nothing is lost between two polls.
    is_stirred: bool,
    /// When it was last polled, or a later instant until which it need not be polled.
    ///
    /// While a request is in flight, the call is polled for the answer and not here.
    alive: BootInstant,
    /// Its waker. Taken when the call is woken; the next poll brings another.
    waker: Option<Waker>,
}

impl LocalQueue {
    /// Adds a call at the end. It comes to the front no earlier than [`move_up`](Self::move_up).
    pub(super) fn stand(&mut self, side: Side, role: Role) -> Ticket {
        self.last += 1;
        let ticket = self.last;
        if let Some(those) = self.those(side, role) {
            those.insert(ticket);
        }
        let came = BootInstant::now();
        let waiter = QueuedCall {
            side,
            role,
            came,
            // It asks whenever it likes, so it need not come to the front.
            is_first: role == Role::Beside,
            is_stirred: false,
            alive: came,
            waker: None,
        };
        self.waiters.insert(ticket, waiter);
        ticket
    }

    /// Removes a call, wherever it stands. The next [`move_up`](Self::move_up) brings its successor to the front.
    pub(super) fn leave(&mut self, ticket: Ticket) {
        self.withdraw(ticket);
        if let Some(waiter) = self.waiters.remove(&ticket) {
            self.wakers.gone.extend(waiter.waker);
        }
    }

    /// Returns every waiting call with its side and arrival time, in the order of arrival.
    pub(super) fn arrivals(&self) -> impl Iterator<Item = (Ticket, Side, BootInstant)> {
        let waiters = self.waiters.iter();
        waiters.map(|(ticket, waiter)| (*ticket, waiter.side, waiter.came))
    }

    /// Returns how many calls wait to ask.
    pub(super) fn len(&self) -> usize {
        let in_sets = self.in_queue.both().chain(self.beside.both());
        in_sets.map(BTreeSet::len).sum::<usize>() + self.aside.len()
    }

    /// Returns how many calls of this side stand in the queue, not counting those that were set aside.
    pub(super) fn standing(&self, side: Side) -> usize {
        self.in_queue.of(side).len()
    }

    /// Whether the call has come to the front, or asks whenever it likes.
    pub(super) fn is_first(&self, ticket: Ticket) -> bool {
        self.waiters
            .get(&ticket)
            .is_some_and(|waiter| waiter.is_first)
    }

    /// Whether a call of this side may take a handoff.
    ///
    /// A handoff is left only for such a call, which takes it before it asks.
    pub(super) fn has_heir(&self, side: Side) -> bool {
        self.first(side).is_some_and(|first| !self.is_behind(first))
    }

    /// Lets a call ask from now on, whichever calls stand before it. It blocks nobody any more.
    ///
    /// For a call that is not polled, for a reader that has waited long enough, and for an owner that has the other
    /// side.
    pub(super) fn goes_beside(&mut self, ticket: Ticket) {
        self.withdraw(ticket);
        if let Some(waiter) = self.waiters.get_mut(&ticket) {
            waiter.is_first = true;
            waiter.role = Role::Beside;
            self.beside.of_mut(waiter.side).insert(ticket);
        }
    }

    /// Lets others go before a call that is not polled and has not come to the front. It gets its place back when it is
    /// polled again.
    ///
    /// Must be called in one step with the check that it was not polled, or a poll in between would go unnoticed.
    pub(super) fn sets_aside(&mut self, ticket: Ticket) {
        self.withdraw(ticket);
        self.aside.insert(ticket);
    }

    /// Ends a call's wait for the calls of the other side.
    ///
    /// From then on it waits only for the calls of its own side.
    pub(super) fn keeps_no_order(&mut self, ticket: Ticket) {
        if let Some(waiter) = self.waiters.get_mut(&ticket)
            && waiter.role.waits_for_other_side()
        {
            waiter.role = Role::InQueue;
        }
    }

    /// Notes that a reader at the front has asked, on behalf of the readers behind it up to the next writer. From now
    /// on, the server keeps the order. If the reader was refused, the server dates it before `latest`.
    pub(super) fn has_asked(&mut self, ticket: Ticket, latest: Option<BootInstant>) {
        let readers = &self.in_queue.shared;
        if !readers.contains(&ticket) {
            return;
        }
        // It has not asked for readers behind a writer, which have to wait for that writer.
        let behind = self.next(Side::Exclusive).unwrap_or(Ticket::MAX);
        let last = readers.range(..behind).next_back();
        self.asked = last.copied().unwrap_or(ticket).max(ticket);
        self.readers_came = self.readers_came.max(latest);
    }

    /// Returns the arrival time of a writer: `came`, or later if readers that arrived later have asked before it.
    pub(super) fn behind_readers(&self, came: BootInstant) -> BootInstant {
        came.max(self.readers_came.unwrap_or(came))
    }

    /// Notes the waker for the next event. The call is being polled, and has no request in flight.
    pub(super) fn waits(&mut self, ticket: Ticket, waker: Option<Waker>) {
        if let Some(waiter) = self.waiters.get_mut(&ticket) {
            waiter.alive = BootInstant::now();
            let before = replace(&mut waiter.waker, waker);
            self.wakers.gone.extend(before);
            let (side, role) = (waiter.side, waiter.role);
            if self.aside.remove(&ticket)
                && let Some(those) = self.those(side, role)
            {
                those.insert(ticket);
            }
        }
    }

    /// Notes that the call is being polled, and need not be polled again before `until`.
    pub(super) fn is_alive(&mut self, ticket: Ticket, until: BootInstant) {
        if let Some(waiter) = self.waiters.get_mut(&ticket) {
            waiter.alive = waiter.alive.max(until);
        }
    }

    /// Whether something has happened since the last check.
    ///
    /// Clears the flag.
    pub(super) fn is_stirred(&mut self, ticket: Ticket) -> bool {
        self.waiters
            .get_mut(&ticket)
            .is_some_and(|waiter| take(&mut waiter.is_stirred))
    }

    /// Wakes a call, after an event that it may be waiting for.
    pub(super) fn stir(&mut self, ticket: Ticket) {
        if let Some(waiter) = self.waiters.get_mut(&ticket) {
            waiter.is_stirred = true;
            self.wakers.woken.extend(waiter.waker.take());
        }
    }

    /// Wakes a call if its role is `Apart`: calls that wait for their turn have nothing to do.
    pub(super) fn stir_apart(&mut self, ticket: Ticket) {
        let is_apart = |waiter: &QueuedCall| waiter.role == Role::Apart;
        if self.waiters.get(&ticket).is_some_and(is_apart) {
            self.stir(ticket);
        }
    }

    /// Wakes the calls of this side that may ask, after a change that makes asking worthwhile.
    pub(super) fn stir_first(&mut self, side: Side) {
        let beside: Vec<_> = self.beside.of(side).iter().copied().collect();
        for ticket in self.first(side).into_iter().chain(beside) {
            self.stir(ticket);
        }
    }

    /// Marks the calls that have come to the front, and returns the wakers to wake.
    ///
    /// Must be called at the end of each step that may have changed who is first, before the mutex is unlocked.
    pub(super) fn move_up(&mut self) -> Wakers {
        for first in self.firsts() {
            if self.may_ask(first)
                && let Some(waiter) = self.waiters.get_mut(&first)
                && !replace(&mut waiter.is_first, true)
            {
                *self.front.of_mut(waiter.side) = Some(first);
                self.wakers.woken.extend(waiter.waker.take());
            }
        }
        take(&mut self.wakers)
    }

    /// Wakes the calls at the front and those that have `lent` an undo, wherever they stand; with `everyone`, all calls
    /// in the queue. A poll in response shows that they are polled. Returns the calls.
    ///
    /// A call that is polled answers by [`waits`](Self::waits) or [`is_alive`](Self::is_alive).
    pub(super) fn poke(
        &mut self,
        lent: impl Iterator<Item = Ticket>,
        everyone: bool,
    ) -> BTreeSet<Ticket> {
        let mut poked: BTreeSet<_> = self.firsts().chain(lent).collect();
        if everyone {
            poked.extend(self.in_queue.both().flatten());
        }
        for ticket in &poked {
            if let Some(waiter) = self.waiters.get_mut(ticket) {
                self.wakers.woken.extend(waiter.waker.take());
            }
        }
        poked
    }

    /// Returns those of `poked` that nobody has polled since `since`, if they keep others waiting: one of them has come
    /// to the front, and another call waits.
    pub(super) fn unpolled(&self, poked: &BTreeSet<Ticket>, since: BootInstant) -> Vec<Ticket> {
        let is_unpolled = |it: &Ticket| self.waiters.get(it).is_some_and(|it| it.alive < since);
        let unpolled = poked.iter().copied().filter(is_unpolled);
        let unpolled: Vec<_> = unpolled.filter(|_| self.is_crowded()).collect();
        match unpolled.iter().any(|ticket| self.is_first(*ticket)) {
            true => unpolled,
            false => Vec::new(),
        }
    }

    /// Whether more than one call waits to ask.
    pub(super) fn is_crowded(&self) -> bool {
        self.len() > 1
    }

    /// Whether the first call of a side has come to the front or comes there now.
    fn may_ask(&self, first: Ticket) -> bool {
        // A call at the front stays there, whichever calls come on the other side.
        self.is_first(first) || !self.is_behind(first)
    }

    /// Whether the first call of one side waits for those of the other.
    fn is_behind(&self, first: Ticket) -> bool {
        let Some(waiter) = self.waiters.get(&first) else {
            // It has left.
            return true;
        };
        // If its preference differs from this writer's, the first reader may wait for all writers. Then neither would
        // ask.
        let lets_go_first = |it: &Ticket| {
            self.waiters
                .get(it)
                .is_some_and(|it| it.role == Role::Behind)
        };
        let other = match waiter.side {
            // Readers that have asked have a place on the server, so a writer may ask behind them.
            Side::Exclusive => self
                .next(Side::Shared)
                .filter(|it| *it > self.asked && !lets_go_first(it)),
            Side::Shared => self.next(Side::Exclusive),
        };
        match waiter.role {
            Role::InOrder => other.is_some_and(|other| other < first),
            Role::Behind => other.is_some(),
            Role::InQueue | Role::Beside | Role::Apart => false,
        }
    }

    /// Returns the call at the front of this side, or the next to come there.
    fn first(&self, side: Side) -> Option<Ticket> {
        self.front.of(side).or_else(|| self.next(side))
    }

    /// Returns the earliest call of this side in the queue.
    fn next(&self, side: Side) -> Option<Ticket> {
        self.in_queue.of(side).first().copied()
    }

    fn firsts(&self) -> impl Iterator<Item = Ticket> + use<> {
        let firsts = [Side::Exclusive, Side::Shared].map(|side| self.first(side));
        firsts.into_iter().flatten()
    }

    /// Takes a call out of its set.
    fn withdraw(&mut self, ticket: Ticket) {
        let Some(&QueuedCall { side, role, .. }) = self.waiters.get(&ticket) else {
            return;
        };
        if let Some(those) = self.those(side, role) {
            those.remove(&ticket);
        }
        self.aside.remove(&ticket);
        self.front.of_mut(side).take_if(|front| *front == ticket);
    }

    /// Returns the set for calls with this role, if they ask at all.
    fn those(&mut self, side: Side, role: Role) -> Option<&mut BTreeSet<Ticket>> {
        match role {
            Role::InQueue | Role::InOrder | Role::Behind => Some(self.in_queue.of_mut(side)),
            Role::Beside => Some(self.beside.of_mut(side)),
            Role::Apart => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    const SIDES: [Side; 2] = [Side::Exclusive, Side::Shared];

    fn stand(queue: &mut LocalQueue, side: Side) -> Ticket {
        let ticket = queue.stand(side, Role::InOrder);
        queue.move_up().wake();
        ticket
    }

    fn leave(queue: &mut LocalQueue, ticket: Ticket) {
        queue.leave(ticket);
        queue.move_up().wake();
    }

    fn firsts<const N: usize>(queue: &LocalQueue, tickets: [Ticket; N]) -> [bool; N] {
        tickets.map(|ticket| queue.is_first(ticket))
    }

    #[test]
    fn whoever_came_first_asks_first_whatever_its_side() {
        let queue = &mut LocalQueue::default();
        let writer = stand(queue, Side::Exclusive);
        let readers = [stand(queue, Side::Shared), stand(queue, Side::Shared)];
        let last = stand(queue, Side::Exclusive);
        assert_eq!(firsts(queue, readers), [false, false]);
        leave(queue, writer);
        assert_eq!(firsts(queue, readers), [true, false]);
        assert!(!queue.is_first(last), "a reader before it has not asked");
        queue.has_asked(readers[0], None);
        queue.move_up().wake();
        assert!(queue.is_first(last), "one has asked for both");
        leave(queue, readers[0]);
        assert!(queue.is_first(readers[1]));
    }

    #[test]
    fn reader_has_asked_for_none_that_stand_behind_a_writer() {
        let queue = &mut LocalQueue::default();
        let first = stand(queue, Side::Shared);
        let writer = stand(queue, Side::Exclusive);
        let behind = stand(queue, Side::Shared);
        let last = stand(queue, Side::Exclusive);
        queue.has_asked(first, None);
        leave(queue, first);
        assert_eq!(firsts(queue, [writer, behind, last]), [true, false, false]);
        leave(queue, writer);
        assert_eq!(firsts(queue, [behind, last]), [true, false]);
    }

    #[test]
    fn reader_that_lets_writers_go_first_waits_for_those_that_came_later_too() {
        let queue = &mut LocalQueue::default();
        let first = stand(queue, Side::Exclusive);
        let reader = queue.stand(Side::Shared, Role::Behind);
        let last = stand(queue, Side::Exclusive);
        leave(queue, first);
        assert_eq!(firsts(queue, [last, reader]), [true, false]);
        assert!(!queue.has_heir(Side::Shared), "nothing is left for it");
        leave(queue, last);
        assert!(queue.is_first(reader) && queue.has_heir(Side::Shared));
    }

    #[test]
    fn writer_counts_as_come_behind_the_readers_that_asked() {
        let queue = &mut LocalQueue::default();
        let reader = stand(queue, Side::Shared);
        let [early, late] = [1, 2].map(BootInstant::from_millis);
        queue.has_asked(reader, Some(late));
        assert_eq!(queue.behind_readers(early), late);
    }

    #[test]
    fn one_that_is_polled_is_not_passed() {
        for is_polled in [true, false] {
            let queue = &mut LocalQueue::default();
            let front = stand(queue, Side::Exclusive);
            let next = stand(queue, Side::Exclusive);
            let since = BootInstant::now();
            let poked = queue.poke([].into_iter(), false);
            if is_polled {
                queue.waits(front, Some(Waker::noop().clone()));
            }
            let unpolled = queue.unpolled(&poked, since);
            assert_eq!(unpolled.is_empty(), is_polled);
            unpolled
                .iter()
                .for_each(|ticket| queue.goes_beside(*ticket));
            queue.move_up().wake();
            assert_eq!(queue.is_first(next), !is_polled);
        }
    }

    fn pass(queue: &mut LocalQueue, ticket: Ticket) {
        match queue.is_first(ticket) {
            true => queue.goes_beside(ticket),
            false => queue.sets_aside(ticket),
        }
    }

    #[test]
    fn those_that_nobody_polls_are_passed_together_and_have_their_places_when_they_are_polled() {
        let queue = &mut LocalQueue::default();
        let calls = [(); 5].map(|()| stand(queue, Side::Exclusive));
        let [_, second, third, polled, last] = calls;
        let since = BootInstant::now();
        let poked = queue.poke([].into_iter(), true);
        queue.waits(polled, Some(Waker::noop().clone()));
        queue.waits(last, Some(Waker::noop().clone()));
        for ticket in queue.unpolled(&poked, since) {
            pass(queue, ticket);
        }
        queue.move_up().wake();
        assert_eq!(queue.len(), 5, "all of them wait");
        assert!(queue.is_first(polled));
        queue.waits(third, None);
        queue.waits(second, None);
        queue.move_up().wake();
        assert_eq!(firsts(queue, [second, third, last]), [false; 3]);
        for (leaves, follows) in [(polled, second), (second, third), (third, last)] {
            leave(queue, leaves);
            assert!(queue.is_first(follows));
        }
    }

    #[derive(Clone, Copy, Debug)]
    enum Event {
        Stand(Side),
        Leave(usize),
        Ask(usize),
        Beside(usize),
        Pass(usize),
        Poll(usize),
    }

    fn event() -> impl Strategy<Value = Event> {
        let side = proptest::sample::select(SIDES.to_vec());
        prop_oneof![
            4 => side.prop_map(Event::Stand),
            2 => (0..9_usize).prop_map(Event::Leave),
            2 => (0..9_usize).prop_map(Event::Ask),
            1 => (0..9_usize).prop_map(Event::Beside),
            2 => (0..9_usize).prop_map(Event::Pass),
            2 => (0..9_usize).prop_map(Event::Poll),
        ]
    }

    proptest! {
        /// Some call always asks, and none overtakes a call of the other side that came before and has not asked.
        #[test]
        fn line_moves_up_in_order(events in vec(event(), 0..40)) {
            let mut queue = LocalQueue::default();
            // The calls in the queue with their sides, and those that nobody polls.
            let mut standing: Vec<(Ticket, Side)> = Vec::new();
            let mut aside: Vec<(Ticket, Side)> = Vec::new();
            // The readers up to this one have asked.
            let mut asked = 0;
            let mut were_first = BTreeSet::new();
            for event in events {
                match event {
                    Event::Stand(side) => standing.push((queue.stand(side, Role::InOrder), side)),
                    Event::Leave(at) if at < standing.len() => queue.leave(standing.remove(at).0),
                    Event::Leave(at) if at < standing.len() + aside.len() => {
                        queue.leave(aside.remove(at - standing.len()).0);
                    }
                    Event::Beside(at) if at < standing.len() => queue.goes_beside(standing.remove(at).0),
                    Event::Pass(at) if at < standing.len() => {
                        let (ticket, side) = standing.remove(at);
                        if !queue.is_first(ticket) {
                            aside.push((ticket, side));
                        }
                        pass(&mut queue, ticket);
                    }
                    Event::Poll(at) if at < aside.len() => {
                        let (ticket, side) = aside.remove(at);
                        queue.waits(ticket, None);
                        standing.push((ticket, side));
                        standing.sort_by_key(|it| it.0);
                    }
                    Event::Ask(at) if at < standing.len() => {
                        let (ticket, side) = standing[at];
                        if side == Side::Shared && queue.is_first(ticket) {
                            queue.has_asked(ticket, None);
                            let writer = standing.iter().find(|it| it.1 == Side::Exclusive);
                            let behind = writer.map_or(Ticket::MAX, |it| it.0).max(ticket + 1);
                            let readers = standing.iter().filter(|it| it.1 == Side::Shared);
                            asked = readers.map(|it| it.0).filter(|it| *it < behind).fold(asked, Ticket::max);
                        }
                    }
                    _ => {}
                }
                queue.move_up().wake();
                let asks = |it: &&(Ticket, Side)| queue.is_first(it.0);
                prop_assert_eq!(standing.is_empty(), standing.iter().filter(asks).count() == 0);
                prop_assert!(!aside.iter().any(|it| queue.is_first(it.0)));
                for side in SIDES {
                    let of_side = standing.iter().filter(|it| it.1 == side);
                    let firsts: Vec<_> = of_side.filter(asks).collect();
                    prop_assert!(firsts.len() < 2);
                    for it in firsts {
                        // The first reader of those that stand there asks for the others.
                        let other_side = standing.iter().find(|other| other.1 != side);
                        let has_asked = |other: &Ticket| side == Side::Exclusive && *other <= asked;
                        let overtakes = other_side.filter(|other| other.0 < it.0 && !has_asked(&other.0));
                        let is_new = were_first.insert(it.0);
                        prop_assert!(!is_new || overtakes.is_none(), "{it:?} overtakes {overtakes:?}");
                    }
                }
            }
        }
    }
}
