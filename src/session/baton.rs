//! What a releaser leaves for a waiter of its process, and what it hears of it.
//!
//! # Invariant
//!
//! The debt is always in one place: with the baton, in the outcome that is told of it, or with the reaper. So the
//! lock is moved or released, whoever is dropped meanwhile.

use std::sync::Arc;
use std::time::Duration;

use super::hold::Hold;
use super::queue::QueueRef;
use super::sync::{Spawner, oneshot, sleep, timeout};
use crate::error::Error;

/// What a baton carries. Dropped, it is paid in the background.
pub(crate) trait Owed: Send + 'static {
    /// Nothing is owed any more.
    fn forgive(self);
}

/// How long a baton may lie. Its waiter is awake by then, if its future is polled at all: futures that share a task
/// with the releaser may not be, and nobody else may wait for them.
const BATON_LIES: Duration = Duration::from_millis(20);

/// A hold that was given back, left for a waiter of this process to move the lock to its own.
///
/// The debt `D` goes with it. Dropped, it goes back to the releaser if that waits for the outcome; else it is
/// dropped.
#[derive(Debug)]
pub(crate) struct Baton<D> {
    /// Where the outcome goes, with the debt if it is still owed. Empty once told.
    told: Option<(D, oneshot::Sender<Outcome<D>>)>,
    hold: Arc<Hold>,
    /// A request to move the lock was sent.
    sent: bool,
}

/// What became of a baton.
#[derive(Debug)]
pub(crate) enum Outcome<D> {
    Settled(Settled),
    /// Nobody took it, or whoever did has left: then, `perhaps_moved`, the lock may have been moved all the same.
    Returned {
        debt: D,
        perhaps_moved: bool,
    },
    /// The request to move the lock failed; the debt is in the reaper's hands.
    Failed(Error),
}

/// How a release went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Settled {
    Done,
    /// The hold was not there; `repeated` if an earlier send of this release went unanswered and may have done it.
    Absent {
        repeated: bool,
    },
}

impl Settled {
    /// The same, if something `perhaps` removed the hold before on our behalf.
    pub(crate) fn or_before(self, perhaps: bool) -> Self {
        match self {
            Self::Absent { repeated } => Self::Absent {
                repeated: repeated || perhaps,
            },
            Self::Done => Self::Done,
        }
    }
}

impl<D: Owed> Baton<D> {
    /// Ends the place of a hold in its queue, and leaves a baton for the waiters there; the debt is given back if
    /// there is nobody to take it.
    pub(crate) fn leave(
        debt: D,
        queue: QueueRef<Self>,
        hold: &Arc<Hold>,
        runtime: Spawner,
    ) -> Result<Handover<D>, D> {
        let offered = queue.offer(debt, |debt| {
            let (sender, outcome) = oneshot::channel();
            let baton = Self {
                told: Some((debt, sender)),
                hold: hold.clone(),
                sent: false,
            };
            (baton, outcome)
        });
        queue.forget(hold);
        let left = Left {
            queue,
            hold: hold.clone(),
        };
        Ok(Handover {
            outcome: offered?,
            left: Some(left),
            runtime,
        })
    }

    /// The hold that was given back, for a request that is about to be sent.
    pub(crate) fn begin(&mut self) -> Arc<Hold> {
        self.sent = true;
        self.hold.clone()
    }

    /// The server no longer has the old hold: it was moved or given back, or was gone before.
    pub(crate) fn settled(mut self, settled: Settled) {
        if let Some((debt, sender)) = self.told.take() {
            debt.forgive();
            sender.send(Outcome::Settled(settled)).ok();
        }
    }

    /// The server has refused: nothing was moved, and the releaser may release it all the same.
    pub(crate) fn refused(mut self) {
        self.sent = false;
    }

    pub(crate) fn failed(mut self, error: Error) {
        if let Some((debt, sender)) = self.told.take() {
            drop(debt);
            sender.send(Outcome::Failed(error)).ok();
        }
    }
}

impl<D> Drop for Baton<D> {
    fn drop(&mut self) {
        if let Some((debt, sender)) = self.told.take() {
            // If nobody listens, the debt is dropped with the message.
            sender
                .send(Outcome::Returned {
                    debt,
                    perhaps_moved: self.sent,
                })
                .ok();
        }
    }
}

/// The releaser's end of a baton. Dropped, it sees to it that the baton does not lie for long.
#[derive(Debug)]
pub(crate) struct Handover<D: Owed> {
    outcome: oneshot::Receiver<Outcome<D>>,
    /// Empty once the outcome is known.
    left: Option<Left<D>>,
    runtime: Spawner,
}

/// A baton that may still lie.
#[derive(Debug)]
struct Left<D> {
    queue: QueueRef<Baton<D>>,
    hold: Arc<Hold>,
}

/// How a hand-over ended for the releaser.
#[derive(Debug)]
pub(crate) enum Ended<D> {
    Settled(Settled),
    /// The releaser has to pay. The lock may have been moved all the same, `perhaps_moved`.
    Owed {
        debt: D,
        perhaps_moved: bool,
    },
}

impl<D> Left<D> {
    fn retract(&self) {
        self.queue
            .retract(|baton| Arc::ptr_eq(&baton.hold, &self.hold));
    }
}

impl<D: Owed> Handover<D> {
    /// Waits until the lock was handed on, or is to be released. If nothing is heard of the baton, its debt is made
    /// anew.
    pub(crate) async fn ended(
        mut self,
        anew: impl FnOnce(&Arc<Hold>, &QueueRef<Baton<D>>) -> D,
    ) -> Result<Ended<D>, Error> {
        let mut outcome = timeout(BATON_LIES, &mut self.outcome).await;
        if let (Err(_), Some(left)) = (&outcome, &self.left) {
            left.retract();
            outcome = timeout(left.hold.timeout, &mut self.outcome).await;
        }
        let Some(Left { hold, queue }) = self.left.take() else {
            return Ok(Ended::Settled(Settled::Done));
        };
        match outcome {
            Ok(Ok(Outcome::Settled(settled))) => Ok(Ended::Settled(settled)),
            Ok(Ok(Outcome::Failed(error))) => Err(error),
            Ok(Ok(Outcome::Returned {
                debt,
                perhaps_moved,
            })) => Ok(Ended::Owed {
                debt,
                perhaps_moved,
            }),
            // Whoever took it was not polled since.
            Ok(Err(_)) | Err(_) => Ok(Ended::Owed {
                debt: anew(&hold, &queue),
                perhaps_moved: true,
            }),
        }
    }
}

impl<D: Owed> Drop for Handover<D> {
    fn drop(&mut self) {
        if let Some(left) = self.left.take() {
            self.runtime.spawn(async move {
                sleep(BATON_LIES).await;
                left.retract();
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::queue::Queues;
    use super::super::sync::TIMERS;
    use super::*;
    use crate::clock::Moment;
    use crate::name::{LockName, Users};
    use crate::options::LeaseTime;
    use crate::owner::Owner;
    use crate::protocol::hold_key::{HoldKey, Kind};
    use shuttle::future::{block_on, spawn, yield_now};
    use shuttle::rand::Rng;
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
    use std::sync::{Mutex, PoisonError};

    const ORDERS: usize = 2_000;

    /// A server with one lock, and a process that wants it.
    struct Model {
        /// The hold that the server records.
        record: Mutex<Option<u64>>,
        inside: AtomicBool,
        granted: AtomicU64,
        name: LockName,
        /// In use throughout: shuttle knows nothing of the locks in the map of queues.
        queue: QueueRef<Baton<Owing>>,
    }

    /// A debt to that server, paid at once when it is dropped.
    struct Owing {
        model: Arc<Model>,
        hold: u64,
        owed: bool,
    }

    impl Owing {
        fn pay(mut self) -> Settled {
            self.owed = false;
            match self.model.release(self.hold) {
                true => Settled::Done,
                false => Settled::Absent { repeated: false },
            }
        }
    }

    impl Owed for Owing {
        fn forgive(mut self) {
            self.owed = false;
        }
    }

    impl Drop for Owing {
        fn drop(&mut self) {
            if self.owed {
                self.model.release(self.hold);
            }
        }
    }

    /// Under the lock, also when the task ends there.
    struct Inside<'a>(&'a Model);

    impl<'a> Inside<'a> {
        fn enter(model: &'a Model) -> Self {
            assert!(!model.inside.swap(true, Ordering::SeqCst), "two at once");
            model.granted.fetch_add(1, Ordering::SeqCst);
            Self(model)
        }
    }

    impl Drop for Inside<'_> {
        fn drop(&mut self) {
            self.0.inside.store(false, Ordering::SeqCst);
        }
    }

    impl Model {
        fn new() -> Arc<Self> {
            let name = LockName::new("", "a").expect("a name");
            Arc::new(Self {
                record: Mutex::default(),
                inside: AtomicBool::new(false),
                granted: AtomicU64::new(0),
                queue: Queues::default().enter(name.queue_key(Users::Owners)),
                name,
            })
        }

        /// The script that moves the lock, or with no old hold the one that takes it.
        fn take(&self, old: Option<u64>, new: u64) -> bool {
            let mut record = self.record.lock().unwrap_or_else(PoisonError::into_inner);
            let taken = record.is_none() || *record == old;
            if taken {
                *record = Some(new);
            }
            taken
        }

        /// The script that releases it, and the message to the waiters.
        fn release(&self, hold: u64) -> bool {
            let released = self
                .record
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .take_if(|held| *held == hold)
                .is_some();
            if released {
                self.queue.freed.notify_one();
            }
            released
        }

        fn owing(self: &Arc<Self>, hold: &Hold) -> Owing {
            Owing {
                model: self.clone(),
                hold: hold.id,
                owed: true,
            }
        }

        /// A hold that is being asked for.
        fn hold(&self) -> Arc<Hold> {
            let owner = Owner::unique();
            let key = HoldKey::new(self.name.clone(), Kind::Reentrant, "client", &owner, 0);
            let lease = LeaseTime::new(Duration::from_secs(30)).expect("a lease");
            Hold::new(key, owner, lease, Duration::from_secs(1))
        }

        /// As an acquisition does it: stands in line; at the front takes the baton, else the lock, else waits.
        async fn acquire(self: &Arc<Self>) -> (Arc<Hold>, Owing) {
            let queue = &self.queue;
            let _in_line = queue.stand();
            let _front = queue.front.acquire().await.expect("the line stays open");
            let hold = self.hold();
            let owing = self.owing(&hold);
            loop {
                let freed = queue.freed.notified();
                tokio::pin!(freed);
                if freed.as_mut().enable() {
                    freed.set(queue.freed.notified());
                    freed.as_mut().enable();
                }
                let taken = match queue.take_baton() {
                    Some((mut baton, _)) => {
                        let old = baton.begin();
                        // Whoever has taken the baton may be dropped before the request is done, and after it.
                        yield_now().await;
                        let taken = self.take(Some(old.id), hold.id);
                        yield_now().await;
                        baton.settled(Settled::Done);
                        taken
                    }
                    None => self.take(None, hold.id),
                };
                if taken {
                    hold.granted(Moment::now(), term(), None, None);
                    queue.install(&hold);
                    return (hold, owing);
                }
                freed.await;
            }
        }

        /// As an unlock does it: leaves a baton if somebody waits, else pays.
        async fn give_back(self: &Arc<Self>, hold: &Arc<Hold>, owing: Owing) -> Settled {
            hold.give_back(Some(term()));
            match Baton::leave(owing, self.queue.clone(), hold, Spawner::current()) {
                Err(owing) => owing.pay(),
                Ok(handover) => {
                    let ended = handover.ended(|hold, _| self.owing(hold)).await;
                    match ended.expect("no request fails here") {
                        Ended::Settled(settled) => settled,
                        Ended::Owed {
                            debt,
                            perhaps_moved,
                        } => match debt.pay() {
                            Settled::Absent { .. } if perhaps_moved => Settled::Done,
                            settled => settled,
                        },
                    }
                }
            }
        }

        async fn section(self: &Arc<Self>) {
            let (hold, owing) = self.acquire().await;
            let inside = Inside::enter(self);
            yield_now().await;
            drop(inside);
            assert_eq!(self.give_back(&hold, owing).await, Settled::Done);
        }

        /// Runs tasks that pass sections; some of them are aborted wherever they are.
        fn run(staying: usize, leaving: usize) {
            TIMERS.set(shuttle::rand::thread_rng().gen_bool(0.5));
            let model = Self::new();
            let start = || {
                let model = model.clone();
                spawn(async move {
                    model.section().await;
                    model.section().await;
                })
            };
            let stay: Vec<_> = (0..staying).map(|_| start()).collect();
            let leave: Vec<_> = (0..leaving).map(|_| start()).collect();
            block_on(async {
                for task in &leave {
                    for _ in 0..shuttle::rand::thread_rng().gen_range(0..12) {
                        yield_now().await;
                    }
                    task.abort();
                }
                for task in stay {
                    task.await.expect("no task fails");
                }
                for task in leave {
                    task.await.ok();
                }
            });
            assert!(model.granted.load(Ordering::SeqCst) >= 2 * staying as u64);
            if leaving == 0 {
                assert!(model.take(None, u64::MAX), "nobody holds it in the end");
                assert_eq!(model.queue.holds().len(), 0);
            }
        }
    }

    fn term() -> crate::options::Term {
        let lease = LeaseTime::new(Duration::from_secs(30)).expect("a lease");
        crate::options::Term::Fixed(lease)
    }

    #[test]
    fn every_waiter_is_served_in_any_order_of_events() {
        shuttle::check_random(|| Model::run(4, 0), ORDERS);
    }

    #[test]
    fn waiters_that_leave_take_nothing_with_them() {
        shuttle::check_random(|| Model::run(1, 2), ORDERS);
        shuttle::check_random(|| Model::run(2, 3), ORDERS);
    }
}
