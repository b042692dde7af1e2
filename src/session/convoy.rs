//! Calls of one lock that go to the server together: while one is on its way, those that come meanwhile gather, and the
//! first of them sends them all.
//!
//! # Invariants
//!
//! 1. While `sending`, there is one lead: with the call that sends, on its way to one that waits, or being passed on.
//!    Whoever has it and is dropped passes it on. So nobody waits for a lead that is gone.
//! 2. A call that nobody sent for any more is told so, by its sender being dropped, and sends for itself. What goes
//!    together must bear being carried out twice.

use std::collections::VecDeque;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use futures_util::FutureExt;

use super::backend::{Answer, Backend};
use super::hold::Hold;
use super::sync::{Mutex, MutexGuard, oneshot, timeout};
use crate::clock::Moment;
use crate::error::Error;
use crate::options::{LeaseTime, SHORTEST_TIMEOUT};
use crate::protocol::answer::Place;
use crate::protocol::lock::Take;
use crate::protocol::read_write;
use crate::protocol::script::Call;

/// So many calls at the most: while a script runs, the server does nothing else.
const MOST: usize = 64;

/// The calls of one lock that want the same: each is a `T`, and brings an `A`.
#[derive(Debug)]
pub(crate) struct Convoy<T, A>(Mutex<State<T, A>>);

#[derive(Debug)]
struct State<T, A> {
    sending: bool,
    gathered: VecDeque<Gathered<T, A>>,
}

/// A call that waits to be sent for.
#[derive(Debug)]
struct Gathered<T, A> {
    call: T,
    told: oneshot::Sender<Told<T, A>>,
    taken: Taken,
}

/// Whether somebody has taken a call along, and may have sent it. Changed under the convoy's mutex only.
type Taken = Arc<AtomicBool>;

#[derive(Debug)]
enum Told<T, A> {
    Answer(A),
    /// To send itself, and for the others.
    Lead(T),
}

/// How a call came to its answer, or is to come to it.
#[derive(Debug)]
pub(crate) enum Joined<'a, T, A> {
    Answered(A),
    Leads(Lead<'a, T, A>),
    /// Whoever sent for this call has come to no answer. It may have been carried out.
    Left,
}

/// The turn to send, until dropped.
#[derive(Debug)]
pub(crate) struct Lead<'a, T, A> {
    convoy: &'a Convoy<T, A>,
    call: T,
    others: Vec<oneshot::Sender<Told<T, A>>>,
}

impl<T, A> Default for Convoy<T, A> {
    fn default() -> Self {
        Self(Mutex::new(State {
            sending: false,
            gathered: VecDeque::new(),
        }))
    }
}

impl<T, A> Convoy<T, A> {
    /// Waits until this call was answered, or is to send.
    pub(crate) async fn join(&self, call: T, taken: &Taken) -> Joined<'_, T, A> {
        let told = {
            let mut state = self.lock();
            if !state.sending {
                state.sending = true;
                return Joined::Leads(Lead::new(self, call));
            }
            let (sender, told) = oneshot::channel();
            let told = Waiting { convoy: self, told };
            let taken = taken.clone();
            state.gathered.push_back(Gathered {
                call,
                told: sender,
                taken,
            });
            told
        };
        told.told().await
    }

    /// Lets the next call that still waits send.
    fn pass_on(&self) {
        loop {
            let next = {
                let mut state = self.lock();
                let next = state.gathered.pop_front();
                state.sending = next.is_some();
                next
            };
            // Not under the mutex: one that has left drops its call here.
            match next {
                Some(Gathered { call, told, .. }) => {
                    if told.send(Told::Lead(call)).is_ok() {
                        return;
                    }
                }
                None => return,
            }
        }
    }

    /// Whether somebody may have sent a call that nobody is to send from now on.
    fn was_taken(&self, taken: &Taken) -> bool {
        let _state = self.lock();
        taken.load(Ordering::Relaxed)
    }

    fn lock(&self) -> MutexGuard<'_, State<T, A>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A call's end of being told.
struct Waiting<'a, T, A> {
    convoy: &'a Convoy<T, A>,
    told: oneshot::Receiver<Told<T, A>>,
}

impl<'a, T, A> Waiting<'a, T, A> {
    async fn told(mut self) -> Joined<'a, T, A> {
        match (&mut self.told).await {
            Ok(Told::Answer(answer)) => Joined::Answered(answer),
            Ok(Told::Lead(call)) => Joined::Leads(Lead::new(self.convoy, call)),
            Err(_) => Joined::Left,
        }
    }
}

impl<T, A> Drop for Waiting<'_, T, A> {
    fn drop(&mut self) {
        self.told.close();
        if let Ok(Told::Lead(call)) = self.told.try_recv() {
            drop(Lead::new(self.convoy, call));
        }
    }
}

impl<'a, T, A> Lead<'a, T, A> {
    fn new(convoy: &'a Convoy<T, A>, call: T) -> Self {
        Self {
            convoy,
            call,
            others: Vec::new(),
        }
    }

    /// What to send for others too, of those that still wait.
    fn gather(&mut self) -> Vec<T> {
        let gathered: Vec<_> = {
            let mut state = self.convoy.lock();
            let most = state.gathered.len().min(MOST - 1);
            let gathered: Vec<_> = state.gathered.drain(..most).collect();
            for one in &gathered {
                one.taken.store(!one.told.is_closed(), Ordering::Relaxed);
            }
            gathered
        };
        let taken = gathered
            .into_iter()
            .filter(|one| one.taken.load(Ordering::Relaxed));
        let (calls, others) = taken.map(|one| (one.call, one.told)).unzip();
        self.others = others;
        calls
    }

    /// Tells the others their answers.
    fn answered(mut self, answers: Vec<A>) {
        for (told, answer) in self.others.drain(..).zip(answers) {
            told.send(Told::Answer(answer)).ok();
        }
    }
}

impl<T, A> Drop for Lead<'_, T, A> {
    fn drop(&mut self) {
        // Who was to be told, and was not, knows it before others are sent for.
        self.others.clear();
        self.convoy.pass_on();
    }
}

impl<T: Entry> Convoy<T, Result<Answer, Error>> {
    /// Runs a call, together with others if one is on its way. In a `crowd` others are about to come, and the
    /// scheduler is given one turn to bring them. `sent` is called when a request with this call in it is on its way,
    /// if it is this call that sends it.
    ///
    /// If the future is dropped, the call may still run.
    pub(crate) async fn run(
        &self,
        call: T,
        crowd: bool,
        backend: &Backend,
        budget: Duration,
        sent: impl FnOnce(),
    ) -> Result<Answer, Error> {
        let end = Moment::now().plus(budget);
        let left = || Moment::now().until(end).max(SHORTEST_TIMEOUT);
        // Whoever sends may be polled by nobody: half of the time is kept for a request of this call's own.
        let taken = Taken::default();
        let joined = timeout(budget / 2, self.join(call.clone(), &taken)).await;
        match joined.unwrap_or(Joined::Left) {
            Joined::Answered(answered) => answered,
            Joined::Leads(mut lead) => {
                if crowd {
                    tokio::task::yield_now().await;
                }
                let others = lead.gather();
                let answered = {
                    let call = lead.call.beside(&others);
                    let mut request = pin!(backend.run(&call, left()));
                    // Its first step sends it.
                    let answered = request.as_mut().now_or_never();
                    sent();
                    match answered {
                        Some(answered) => answered,
                        None => request.await,
                    }
                };
                if let Err(error) = &answered
                    && error.is_unsent()
                {
                    // Nothing was sent for them either.
                    lead.answered(others.iter().map(|_| Err(error.clone())).collect());
                    return answered;
                }
                let (own, answers) = answered?.split(others.len())?;
                lead.answered(answers.into_iter().map(Ok).collect());
                Ok(own)
            }
            Joined::Left => {
                let taken = self.was_taken(&taken);
                let answered = backend.run(&call.beside(&[]), left()).await;
                let answer = answered.map_err(|error| match taken {
                    true => error.unanswered(),
                    false => error,
                })?;
                let (own, _) = answer.split(0)?;
                Ok(Answer {
                    repeated: own.repeated || taken,
                    ..own
                })
            }
        }
    }
}

/// One of several calls in a request.
pub(crate) trait Entry: Clone {
    /// The request for this call and others, which the server answers one by one.
    fn beside<'a>(&'a self, others: &'a [Self]) -> Call<'a>;
}

/// A first level of a hold that reads.
#[derive(Clone, Debug)]
pub(crate) struct Reading {
    pub(crate) hold: Arc<Hold>,
    pub(crate) lease: LeaseTime,
    /// Of a call that waits, which came at this moment.
    pub(crate) place: Option<(Place, Moment)>,
}

impl Reading {
    /// As of now: the call may have waited for others.
    fn place(&self) -> Option<Place> {
        let (place, came) = self.place?;
        Some(place.sent(came, Moment::now()))
    }
}

impl Entry for Reading {
    fn beside<'a>(&'a self, others: &'a [Self]) -> Call<'a> {
        let mut call = self
            .hold
            .key()
            .acquire(1, self.lease, Take::Free, self.place(), 1);
        for other in others {
            let key = other.hold.key();
            read_write::read_too(&mut call, key, 1, other.lease, other.place());
        }
        call
    }
}

/// A release of one side of a read-write lock.
#[derive(Clone, Debug)]
pub(crate) struct GivingBack {
    pub(crate) hold: Arc<Hold>,
    /// The levels that stay.
    pub(crate) keep: u32,
}

impl Entry for GivingBack {
    fn beside<'a>(&'a self, others: &'a [Self]) -> Call<'a> {
        let mut call = self.hold.key().release(self.keep);
        for Self { hold, keep } in others {
            read_write::release_too(&mut call, hold.key(), *keep);
        }
        call
    }
}

#[cfg(test)]
mod tests {
    use super::super::sync::ended;
    use super::*;
    use shuttle::future::{block_on, spawn, yield_now};
    use shuttle::rand::{Rng, thread_rng};
    use std::collections::HashSet;

    const ORDERS: usize = 2_000;

    /// A server that remembers which calls it has carried out.
    #[derive(Default)]
    struct Model {
        convoy: Convoy<u64, u64>,
        leading: AtomicBool,
        done: std::sync::Mutex<HashSet<u64>>,
    }

    /// Leads, also when the task ends there.
    struct Leading<'a>(&'a AtomicBool);

    impl Drop for Leading<'_> {
        fn drop(&mut self) {
            self.0.store(false, Ordering::SeqCst);
        }
    }

    impl Model {
        fn carry_out(&self, call: u64) -> u64 {
            self.done
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .insert(call);
            answer(call)
        }

        async fn call(&self, call: u64) -> u64 {
            match self.convoy.join(call, &Taken::default()).await {
                Joined::Answered(answer) => answer,
                Joined::Left => self.carry_out(call),
                Joined::Leads(mut lead) => {
                    assert!(!self.leading.swap(true, Ordering::SeqCst), "two at once");
                    let leading = Leading(&self.leading);
                    yield_now().await;
                    let others = lead.gather();
                    yield_now().await;
                    let own = self.carry_out(lead.call);
                    let answers = others.iter().map(|call| self.carry_out(*call)).collect();
                    yield_now().await;
                    drop(leading);
                    if thread_rng().gen_bool(0.7) {
                        lead.answered(answers);
                    }
                    own
                }
            }
        }

        /// Several calls, some of which are dropped wherever they are.
        fn run(staying: u64, leaving: u64) {
            let model = Arc::new(Self::default());
            let start = |call| {
                let model = model.clone();
                spawn(async move {
                    assert_eq!(model.call(call).await, answer(call));
                    assert_eq!(model.call(call + 100).await, answer(call + 100));
                })
            };
            let stay: Vec<_> = (0..staying).map(start).collect();
            let leave: Vec<_> = (staying..staying + leaving).map(start).collect();
            block_on(async {
                ended(stay, leave).await;
                let next = model.convoy.join(0, &Taken::default()).await;
                assert!(matches!(next, Joined::Leads(_)), "nobody sends any more");
            });
            let done = model.done.lock().unwrap_or_else(PoisonError::into_inner);
            assert!((0..staying).all(|call| done.contains(&call) && done.contains(&(call + 100))));
        }
    }

    fn answer(call: u64) -> u64 {
        call + 1_000
    }

    #[test]
    fn every_call_comes_to_an_answer_in_any_order_of_events() {
        shuttle::check_random(|| Model::run(4, 0), ORDERS);
    }

    #[test]
    fn calls_that_are_dropped_keep_nobody_waiting() {
        shuttle::check_random(|| Model::run(1, 2), ORDERS);
        shuttle::check_random(|| Model::run(3, 3), ORDERS);
    }

    #[test]
    fn request_is_of_so_many_calls_at_the_most() {
        let gather = || {
            let convoy = Convoy::<usize, usize>::default();
            let mut lead = Lead::new(&convoy, 0);
            let waiting: Vec<_> = (0..2 * MOST)
                .map(|call| {
                    let (told, waiting) = oneshot::channel();
                    let taken = Taken::default();
                    convoy
                        .lock()
                        .gathered
                        .push_back(Gathered { call, told, taken });
                    waiting
                })
                .collect();
            assert_eq!(lead.gather().len(), MOST - 1);
            assert_eq!(convoy.lock().gathered.len(), MOST + 1);
            drop(waiting);
        };
        shuttle::check_random(gather, 1);
    }
}
