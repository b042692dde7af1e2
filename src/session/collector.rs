//! Has what is owed paid in the background: at once, and what is owed to a server that does not answer when it does.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tracing::{debug, warn};

use super::backend::Backend;
use super::ledger::{Ledger, Owing, Place};
use super::reaper::{Overdue, Reaper};
use crate::clock::Moment;
use crate::error::Error;

/// Between two tries of what a server refuses.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// The background half of a [`Reaper`].
#[derive(Debug)]
pub(crate) struct Collector {
    debts: mpsc::UnboundedReceiver<Overdue>,
    reaper: Reaper,
    running: JoinSet<Tried>,
    ledger: Ledger<Overdue>,
}

/// How something is tried to be paid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    AtOnce,
    /// It was taken out of a line, where others wait for it.
    InLine,
    /// The server has refused it for good, perhaps.
    Refused,
}

/// A try to have something paid.
#[derive(Debug)]
struct Tried {
    place: Place,
    way: Way,
    /// What is still owed, and why.
    left: Option<(Overdue, Error)>,
}

impl Owing for Overdue {
    fn hold(&self) -> Option<u64> {
        Self::hold(self)
    }
}

impl Collector {
    pub(super) fn new(debts: mpsc::UnboundedReceiver<Overdue>, reaper: Reaper) -> Self {
        Self {
            debts,
            reaper,
            running: JoinSet::new(),
            ledger: Ledger::default(),
        }
    }

    /// Pays debts until the future is dropped.
    pub(crate) async fn run(&mut self, backend: &Arc<Backend>) {
        loop {
            while let Some((place, owed)) = self.ledger.next(Moment::now()) {
                self.try_to_pay(owed, place, Way::InLine, backend);
            }
            self.reaper.unpaid().note(&self.ledger);
            let due = self.ledger.due();
            let pause = due.map(|due| Moment::now().until(due));
            tokio::select! {
                owed = self.debts.recv() => match owed {
                    Some(owed) => self.collect(owed, backend),
                    None => return,
                },
                Some(tried) = self.running.join_next() => match tried {
                    Ok(tried) => self.tried(tried, backend),
                    Err(error) => warn!(%error, "a background release ended early"),
                },
                () = sleep(pause.unwrap_or_default()), if pause.is_some() => {}
            }
        }
    }

    /// Pays what is owed, also by calls that are still under way, for so long at the most.
    pub(crate) async fn finish(mut self, backend: &Arc<Backend>, at_most: Duration) {
        let owing = self.reaper.owing();
        owing.close();
        let all = async {
            tokio::select! {
                () = self.run(backend) => {}
                () = owing.wait() => {}
            }
        };
        if timeout(at_most, all).await.is_err() {
            warn!("closing with releases unanswered; these locks end by their leases");
        }
    }

    fn collect(&mut self, owed: Overdue, backend: &Arc<Backend>) {
        let place = owed.place(backend);
        // What was written already has an answer to come.
        if self.ledger.has_line(place) && !owed.is_posted() {
            self.ledger.add(place, owed);
        } else {
            self.try_to_pay(owed, place, Way::AtOnce, backend);
        }
    }

    fn try_to_pay(&mut self, owed: Overdue, place: Place, way: Way, backend: &Arc<Backend>) {
        let (reaper, backend) = (self.reaper.clone(), backend.clone());
        self.running.spawn(async move {
            let paid = AssertUnwindSafe(paid(owed, way, &reaper, &backend));
            // Whoever waits in line behind it must hear of its end.
            let left = paid.catch_unwind().await.unwrap_or_else(|_| {
                warn!("a background release panicked; what was owed ends by its lease");
                None
            });
            Tried { place, way, left }
        });
    }

    fn tried(&mut self, tried: Tried, backend: &Arc<Backend>) {
        let Tried { place, way, left } = tried;
        let in_line = way == Way::InLine;
        match left {
            Some((owed, error)) if error.is_passing() => {
                self.ledger.failed(place, owed, error.is_unsent());
            }
            left => {
                if in_line {
                    self.ledger.answered(place);
                }
                if let Some((owed, _)) = left {
                    self.try_to_pay(owed, place, Way::Refused, backend);
                }
            }
        }
        if in_line {
            self.ledger.came_back(place);
        }
    }
}

/// Tries until the server has answered or does not answer; then, what is left. In line a refusal is an answer too:
/// what stands behind does not wait for it to change.
async fn paid(
    mut owed: Overdue,
    way: Way,
    reaper: &Reaper,
    backend: &Backend,
) -> Option<(Overdue, Error)> {
    let mut pause = FIRST_PAUSE;
    let mut refused = way == Way::Refused;
    loop {
        if refused {
            // It is the server's last word, perhaps: nobody waits for what becomes of it.
            owed.keep_nobody_waiting();
            sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
        let error = owed.run(reaper, backend).await.err()?;
        if owed.has_ended(&error) {
            debug!(?owed, %error, "gave up what was owed: its time has passed");
            return None;
        }
        if error.is_passing() || way == Way::InLine {
            return Some((owed, error));
        }
        refused = true;
    }
}
