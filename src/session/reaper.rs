//! Releases what was dropped, in the background, and can be waited for.

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tracing::{debug, warn};

use super::backend::Backend;
use super::hold::{Hold, Release};
use super::hub::Hub;
use super::queue::{QueueRef, Queues, Settling};
use crate::clock::Moment;
use crate::error::Error;
use crate::protocol::lock::Released;

const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// How long this process leaves a lock to others that wait, in round trips: a message to them, and their request.
const YIELD_TRIPS: u32 = 3;
const SHORTEST_YIELD: Duration = Duration::from_millis(1);
const LONGEST_YIELD: Duration = Duration::from_millis(100);

/// How long a baton may lie. Its waiter is awake by then, if its future is polled at all: futures that share a task with
/// the releaser may not be, and nobody else may wait for them.
const BATON_LIES: Duration = Duration::from_millis(20);

/// The way to the reaper. Sending never blocks, and does nothing once the reaper has ended.
#[derive(Clone, Debug)]
pub(crate) struct Reaper(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    debts: mpsc::UnboundedSender<Overdue>,
    queues: Arc<Queues<Baton>>,
    hub: Arc<Hub>,
    runtime: Handle,
}

/// A debt in the reaper's hands.
#[derive(Debug)]
struct Overdue {
    hold: Arc<Hold>,
    settling: Settling<Baton>,
}

impl Reaper {
    /// Leaves a lock to others that were just told that it is free, for a while. `sent` is when the request for
    /// that was sent: how long it took tells how far the server is.
    pub(crate) fn give_way(&self, hold: &Hold, sent: Moment) {
        let now = Moment::now();
        let pause = (sent.until(now) * YIELD_TRIPS).clamp(SHORTEST_YIELD, LONGEST_YIELD);
        let queue = self.0.queues.enter(hold.key.name.key());
        queue.count_streak(false);
        queue.yield_until(now.plus(pause));
        // The queue is kept until then, though nobody here may use it.
        self.0.runtime.spawn(async move {
            sleep(pause).await;
            drop(queue);
        });
    }

    /// Brings the server's record of a hold to the levels that it has here.
    async fn settle(&self, backend: &Backend, hold: &Hold) -> Result<Settled, Error> {
        let _turn = hold.turn.lock().await;
        // Guards that go at the same time owe one release, and whoever comes first pays it for all.
        if hold.release() == Release::Done {
            return Ok(Settled::Done);
        }
        let keep = hold.levels();
        let note = |release| {
            if keep == 0 {
                hold.note_release(release);
            }
        };
        let answered = backend.run(&hold.key.release(keep), hold.timeout).await;
        let answer = answered.inspect_err(|error| {
            if error.is_unanswered() {
                note(Release::InDoubt);
            }
        })?;
        match Released::decode(&answer.reply)? {
            Released::Freed { told } => {
                note(Release::Done);
                if told > u64::from(self.0.hub.listeners(hold.key.name.channel())) {
                    self.give_way(hold, answer.sent);
                }
                Ok(Settled::Done)
            }
            Released::Kept => {
                note(Release::Done);
                Ok(Settled::Done)
            }
            Released::Absent => {
                if answer.repeated {
                    note(Release::InDoubt);
                }
                Ok(Settled::Absent {
                    repeated: answer.repeated || hold.release() == Release::InDoubt,
                })
            }
        }
    }
}

/// What we may owe the server: to bring its record of a hold down to the levels that we count.
///
/// It exists from before a request that could leave too much on the server is sent, until an answer shows that
/// nothing is owed; dropped before, wherever that happens, it hands itself to the reaper.
#[derive(Debug)]
#[must_use = "dropping a debt has it paid in the background"]
pub(crate) struct Debt {
    /// Empty once paid or forgiven.
    owed: Option<(Arc<Hold>, QueueRef<Baton>)>,
    reaper: Reaper,
}

impl Debt {
    pub(crate) fn new(hold: Arc<Hold>, queue: QueueRef<Baton>, reaper: &Reaper) -> Self {
        Self {
            owed: Some((hold, queue)),
            reaper: reaper.clone(),
        }
    }

    /// Nothing is owed after all.
    pub(crate) fn forgive(mut self) {
        self.owed = None;
    }

    /// Pays now. What cannot be paid stays owed, and goes to the reaper.
    pub(crate) async fn pay(mut self, backend: &Backend) -> Result<Settled, Error> {
        let Some((hold, queue)) = self.owed.clone() else {
            return Ok(Settled::Done);
        };
        let settled = {
            let _settling = Settling::new(queue);
            self.reaper.settle(backend, &hold).await?
        };
        self.owed = None;
        Ok(settled)
    }
}

impl Drop for Debt {
    fn drop(&mut self) {
        if let Some((hold, queue)) = self.owed.take() {
            let settling = Settling::new(queue);
            // After the reaper has ended the key dies by its lease.
            self.reaper.0.debts.send(Overdue { hold, settling }).ok();
        }
    }
}

/// A hold that was given back, left for a waiter of this process to move the lock to its own.
///
/// The debt goes with it. Dropped, it goes back to the releaser if that waits for the outcome, else to the reaper.
#[derive(Debug)]
pub(crate) struct Baton {
    /// Where the outcome goes, with the debt if it is still owed. Empty once told.
    told: Option<(Debt, oneshot::Sender<Outcome>)>,
    hold: Arc<Hold>,
    /// A request to move the lock was sent.
    sent: bool,
}

/// What became of a baton.
#[derive(Debug)]
enum Outcome {
    Settled(Settled),
    /// Nobody took it, or whoever did has left: then, `perhaps_moved`, the lock may have been moved all the same.
    Returned {
        debt: Debt,
        perhaps_moved: bool,
    },
    /// The request to move the lock failed; the debt is in the reaper's hands.
    Failed(Error),
}

impl Baton {
    /// Ends the place of a hold in its queue, and leaves a baton for the waiters there; the debt is given back if there
    /// is nobody to take it.
    pub(crate) fn leave(
        debt: Debt,
        queue: QueueRef<Self>,
        hold: &Arc<Hold>,
    ) -> Result<Handover, Debt> {
        let runtime = debt.reaper.0.runtime.clone();
        let offered = queue.offer(debt, |debt| {
            let (sender, outcome) = oneshot::channel();
            (
                Self {
                    told: Some((debt, sender)),
                    hold: hold.clone(),
                    sent: false,
                },
                outcome,
            )
        });
        queue.forget(hold);
        let outcome = offered?;
        Ok(Handover {
            outcome,
            left: Some(Left {
                queue,
                hold: hold.clone(),
            }),
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

    pub(crate) fn failed(mut self, error: Error) {
        if let Some((debt, sender)) = self.told.take() {
            drop(debt);
            sender.send(Outcome::Failed(error)).ok();
        }
    }
}

impl Drop for Baton {
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
pub(crate) struct Handover {
    outcome: oneshot::Receiver<Outcome>,
    /// Empty once the outcome is known.
    left: Option<Left>,
    runtime: Handle,
}

/// A baton that may still lie.
#[derive(Debug)]
struct Left {
    queue: QueueRef<Baton>,
    hold: Arc<Hold>,
}

impl Left {
    fn retract(&self) {
        self.queue
            .retract(|baton| Arc::ptr_eq(&baton.hold, &self.hold));
    }
}

impl Handover {
    /// Waits until the lock was handed on, or releases it.
    pub(crate) async fn done(
        mut self,
        backend: &Backend,
        reaper: &Reaper,
    ) -> Result<Settled, Error> {
        let mut outcome = timeout(BATON_LIES, &mut self.outcome).await;
        if let (Err(_), Some(left)) = (&outcome, &self.left) {
            left.retract();
            outcome = timeout(left.hold.timeout, &mut self.outcome).await;
        }
        let Some(Left { hold, queue }) = self.left.take() else {
            return Ok(Settled::Done);
        };
        let (debt, perhaps_moved) = match outcome {
            Ok(Ok(Outcome::Settled(settled))) => return Ok(settled),
            Ok(Ok(Outcome::Failed(error))) => return Err(error),
            Ok(Ok(Outcome::Returned {
                debt,
                perhaps_moved,
            })) => (debt, perhaps_moved),
            // Whoever took it was not polled since.
            Ok(Err(_)) | Err(_) => (Debt::new(hold, queue, reaper), true),
        };
        Ok(match debt.pay(backend).await? {
            Settled::Absent { repeated } => Settled::Absent {
                repeated: repeated || perhaps_moved,
            },
            Settled::Done => Settled::Done,
        })
    }
}

impl Drop for Handover {
    fn drop(&mut self) {
        if let Some(left) = self.left.take() {
            self.runtime.spawn(async move {
                sleep(BATON_LIES).await;
                left.retract();
            });
        }
    }
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

/// The background half of a [`Reaper`].
#[derive(Debug)]
pub(crate) struct Collector {
    debts: mpsc::UnboundedReceiver<Overdue>,
    reaper: Reaper,
    running: JoinSet<()>,
}

pub(crate) fn new(
    queues: Arc<Queues<Baton>>,
    hub: Arc<Hub>,
    runtime: Handle,
) -> (Reaper, Collector) {
    let (sender, debts) = mpsc::unbounded_channel();
    let reaper = Reaper(Arc::new(Shared {
        debts: sender,
        queues,
        hub,
        runtime,
    }));
    (
        reaper.clone(),
        Collector {
            debts,
            reaper,
            running: JoinSet::new(),
        },
    )
}

impl Collector {
    /// Pays debts until the future is dropped.
    pub(crate) async fn run(&mut self, backend: &Arc<Backend>) {
        loop {
            tokio::select! {
                debt = self.debts.recv() => match debt {
                    Some(debt) => self.collect(debt, backend),
                    None => return,
                },
                Some(ended) = self.running.join_next() => report(ended),
            }
        }
    }

    /// Pays what is owed by now, for so long at the most.
    pub(crate) async fn finish(mut self, backend: &Arc<Backend>, at_most: Duration) {
        while let Ok(debt) = self.debts.try_recv() {
            self.collect(debt, backend);
        }
        let all = async {
            while let Some(ended) = self.running.join_next().await {
                report(ended);
            }
        };
        if timeout(at_most, all).await.is_err() {
            warn!("closing with releases unanswered; these locks end by their leases");
        }
    }

    fn collect(&mut self, debt: Overdue, backend: &Arc<Backend>) {
        self.running
            .spawn(collect(debt, self.reaper.clone(), backend.clone()));
    }
}

/// Tries until it is answered, or until the server has let the hold go by itself.
async fn collect(debt: Overdue, reaper: Reaper, backend: Arc<Backend>) {
    let Overdue { hold, settling } = debt;
    let end = Moment::now().plus(hold.longest_lease().get());
    // Whoever waits for this release waits for one try: after that the server is the one to ask.
    let mut settling = Some(settling);
    let mut pause = FIRST_PAUSE;
    loop {
        let Err(error) = reaper.settle(&backend, &hold).await else {
            return;
        };
        drop(settling.take());
        if Moment::now() >= end {
            debug!(lock = %hold.key.name.key(), %error, "gave up a release: the lease has passed");
            return;
        }
        sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

fn report(ended: Result<(), tokio::task::JoinError>) {
    if let Err(error) = ended {
        warn!(%error, "a background release ended early");
    }
}
