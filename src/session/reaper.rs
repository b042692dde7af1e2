//! Releases what was dropped, in the background, and can be waited for.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tracing::{debug, warn};

use super::backend::Backend;
use super::hold::{Hold, Release};
use super::queue::{Queues, Settling};
use crate::clock::Moment;
use crate::error::Error;
use crate::protocol::lock::Released;

const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// The way to the reaper. Sending never blocks, and does nothing once the reaper has ended.
#[derive(Clone, Debug)]
pub(crate) struct Reaper {
    debts: mpsc::UnboundedSender<Overdue>,
    queues: Arc<Queues>,
}

/// A debt in the reaper's hands.
#[derive(Debug)]
struct Overdue {
    hold: Arc<Hold>,
    settling: Settling,
}

/// What we may owe the server: to bring its record of a hold down to the levels that we count.
///
/// It exists from before a request that could leave too much on the server is sent, until an answer shows that
/// nothing is owed; dropped before, wherever that happens, it hands itself to the reaper.
#[derive(Debug)]
#[must_use = "dropping a debt has it paid in the background"]
pub(crate) struct Debt {
    /// Empty once paid or forgiven.
    hold: Option<Arc<Hold>>,
    reaper: Reaper,
}

impl Debt {
    pub(crate) fn new(hold: Arc<Hold>, reaper: &Reaper) -> Self {
        Self {
            hold: Some(hold),
            reaper: reaper.clone(),
        }
    }

    /// Nothing is owed after all.
    pub(crate) fn forgive(mut self) {
        self.hold = None;
    }

    /// Pays now. What cannot be paid stays owed, and goes to the reaper.
    pub(crate) async fn pay(mut self, backend: &Backend) -> Result<Settled, Error> {
        let Some(hold) = self.hold.clone() else {
            return Ok(Settled::Done);
        };
        let settled = {
            let _settling = Settling::new(self.reaper.queues.enter(hold.key.name.key()));
            settle(backend, &hold).await?
        };
        self.hold = None;
        Ok(settled)
    }
}

impl Drop for Debt {
    fn drop(&mut self) {
        if let Some(hold) = self.hold.take() {
            let settling = Settling::new(self.reaper.queues.enter(hold.key.name.key()));
            // After the reaper has ended the key dies by its lease.
            self.reaper.debts.send(Overdue { hold, settling }).ok();
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

/// Brings the server's record of a hold to the levels that it has here.
async fn settle(backend: &Backend, hold: &Hold) -> Result<Settled, Error> {
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
        Released::Freed | Released::Kept => {
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

/// The background half of a [`Reaper`].
#[derive(Debug)]
pub(crate) struct Collector {
    debts: mpsc::UnboundedReceiver<Overdue>,
    running: JoinSet<()>,
}

pub(crate) fn new(queues: Arc<Queues>) -> (Reaper, Collector) {
    let (sender, debts) = mpsc::unbounded_channel();
    (
        Reaper {
            debts: sender,
            queues,
        },
        Collector {
            debts,
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
        self.running.spawn(collect(debt, backend.clone()));
    }
}

/// Tries until it is answered, or until the server has let the hold go by itself.
async fn collect(debt: Overdue, backend: Arc<Backend>) {
    let Overdue { hold, settling } = debt;
    let end = Moment::now().plus(hold.longest_lease().get());
    // Whoever waits for this release waits for one try: after that the server is the one to ask.
    let mut settling = Some(settling);
    let mut pause = FIRST_PAUSE;
    loop {
        let Err(error) = settle(&backend, &hold).await else {
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
