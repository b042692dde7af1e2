//! Sends requests that are owed to servers in the background: at once, or once a silent server answers again.
//!
//! An owed request is a [`Background`], given to the [`Reaper`] by a `Drop` or by a call that does not wait. The
//! [`Worker`], one task for each client, sends it. The life of one:
//!
//! 1. It is sent at once, unless its server has a line already. If a `Drop` has written it, the worker waits for the
//!    answer.
//! 2. The server answers: done. The server does not answer: the request goes to the end of that server's line in the
//!    retry queue, the [`Ledger`].
//! 3. The server refuses: the request is repeated after pauses, outside of any line, until its time has passed.
//!
//! # Invariants
//!
//! 1. A request in the reaper ends in one of three ways: the server answers, its time passes, or the client closes or
//!    its runtime ends.
//! 2. A token of `owing` exists from before something may be owed until that has ended. So a client that closes also
//!    waits for calls that are still running.

use std::fmt;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;
use tracing::{debug, warn};

use super::backend::{Backend, Posted};
use super::ledger::{Backlog, Ledger, Owing, Place};
use crate::clock::BootInstant;
use crate::error::{Error, ErrorKind};
use crate::name::LockName;
use crate::protocol::script::Request;

/// The pauses between two tries of a request that a server refuses.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// A request that is sent until the server has answered or its time has passed.
pub(super) trait Background: Owing + fmt::Debug + Send {
    /// Makes one try, or waits for the answer to a try that was begun where nobody could wait.
    ///
    /// If the future is dropped, the request may have been sent, and is sent again.
    fn send<'a>(&'a mut self, backend: &'a Backend) -> BoxFuture<'a, Result<(), Error>>;

    /// Returns the server that the request is owed to.
    ///
    /// Called once, when the request is given to the worker.
    fn place(&self, backend: &Backend) -> Place;

    /// Whether it was sent and its answer is still to come.
    ///
    /// Such a request does not queue behind others, since its answer may come at any time.
    fn is_posted(&self) -> bool;

    /// Whether it need not be sent again after this error.
    ///
    /// That its time has passed is not enough if the server may still carry out an earlier request.
    fn has_ended(&self, error: &Error) -> bool;

    /// Lets acquisitions of the lock proceed without waiting for this.
    ///
    /// Called before it is repeated after a refusal.
    fn keep_nobody_waiting(&mut self) {}
}

impl Owing for Box<dyn Background> {
    fn hold(&self) -> Option<u64> {
        (**self).hold()
    }
}

/// The handle of the background task. Sending never blocks, and does nothing once the task has ended.
///
/// Cheap to clone. Works from any thread, even from a `Drop` outside of any runtime.
#[derive(Clone, Debug)]
pub(crate) struct Reaper(Arc<ReaperShared>);

/// What the reaper's clones and the worker share.
#[derive(Debug)]
struct ReaperShared {
    /// Unbounded, since a `Drop` cannot wait. [`Reaper::ensure_credit`] keeps it from growing without limit.
    owed: mpsc::UnboundedSender<Box<dyn Background>>,
    backend: Arc<Backend>,
    /// Counts requests that are owed or may be.
    owing: TaskTracker,
    /// How much is owed to each server, as the worker last noted.
    backlog: Backlog,
}

impl Reaper {
    /// Sends a request in the background at least once, and again until it is answered or `end` has passed.
    ///
    /// For requests that no hold or permit depends on, such as the removal of a mark.
    pub(crate) fn send(&self, request: Arc<dyn Request>, timeout: Duration, end: BootInstant) {
        self.repeat(request, None, timeout, end);
    }

    /// Sends a request now, if the connection takes it, and waits for the answer in the background.
    ///
    /// The server carries it out even if this process ends right after.
    pub(crate) fn send_now(&self, request: Arc<dyn Request>, timeout: Duration, end: BootInstant) {
        let backend = &self.0.backend;
        let behind = request.call_behind();
        let behind = behind.and_then(|call| backend.post(&call));
        let posted = behind.or_else(|| backend.post(&request.call()));
        self.repeat(request, posted, timeout, end);
    }

    /// Gives a request to the worker. It may have been `posted` already.
    fn repeat(
        &self,
        request: Arc<dyn Request>,
        posted: Option<Posted>,
        timeout: Duration,
        end: BootInstant,
    ) {
        self.take(Repeated {
            request,
            timeout,
            posted,
            end,
            _owing: self.owing(),
        });
    }

    /// Gives a request to the background task. After the end of the task, nothing is sent, and the lease ends what the
    /// server has.
    pub(super) fn take(&self, owed: impl Background + 'static) {
        self.0.owed.send(Box::new(owed)).ok();
    }

    /// Returns a token that counts as something owed until it is dropped. A client that closes waits for it.
    pub(super) fn owing(&self) -> TaskTrackerToken {
        self.0.owing.token()
    }

    /// Returns `Err` while too much is owed to a server that does not answer.
    ///
    /// Called before a request that may have to be undone.
    pub(crate) fn ensure_credit(&self, name: &LockName) -> Result<(), Error> {
        let home = || self.0.backend.home(name.key()).map(|node| node.id());
        match self.0.backlog.too_much(home) {
            None => Ok(()),
            Some(owed) => Err(Error::new(
                ErrorKind::Backend,
                format!(
                    "{owed} releases are owed to a server that does not answer; no request is sent to it until it does"
                ),
            )
            .unsent()
            .about(name.key())),
        }
    }
}

/// A request that is sent until it is answered.
#[derive(Debug)]
struct Repeated {
    request: Arc<dyn Request>,
    timeout: Duration,
    posted: Option<Posted>,
    /// From then on, it need not be sent.
    end: BootInstant,
    _owing: TaskTrackerToken,
}

impl Owing for Repeated {}

impl Background for Repeated {
    fn send<'a>(&'a mut self, backend: &'a Backend) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(async move {
            let call = self.request.call();
            let answered = match self.posted.take() {
                Some(posted) => backend.conclude(posted, &call, self.timeout).await,
                None => backend.run(&call, self.timeout).await,
            };
            answered.map(drop)
        })
    }

    fn place(&self, backend: &Backend) -> Place {
        let home = backend.home(self.request.call().keys.first()?);
        home.map(|node| node.id())
    }

    fn is_posted(&self) -> bool {
        self.posted.is_some()
    }

    fn has_ended(&self, _: &Error) -> bool {
        BootInstant::now() >= self.end
    }
}

/// The background half of a [`Reaper`].
#[derive(Debug)]
pub(crate) struct Worker {
    owed: mpsc::UnboundedReceiver<Box<dyn Background>>,
    reaper: Reaper,
    /// The tries in flight. They end with the worker.
    running: JoinSet<Tried>,
    /// The retry queue: requests that wait for servers that did not answer.
    ledger: Ledger<Box<dyn Background>>,
}

/// How a request is tried.
///
/// Decides what an error means for the requests behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// By itself, since its server had no line.
    AtOnce,
    /// From the front of a line, with others waiting behind it.
    InQueue,
    /// Again, after a refusal that may be final.
    Refused,
}

/// The outcome of a try: with what is still owed, and why.
type Tried = (Place, Way, Option<(Box<dyn Background>, Error)>);

impl Worker {
    pub(super) fn new(backend: Arc<Backend>) -> Self {
        let (sender, owed) = mpsc::unbounded_channel();
        let shared = ReaperShared {
            owed: sender,
            backend,
            owing: TaskTracker::new(),
            backlog: Backlog::default(),
        };
        Self {
            owed,
            reaper: Reaper(Arc::new(shared)),
            running: JoinSet::new(),
            ledger: Ledger::default(),
        }
    }

    pub(super) fn reaper(&self) -> &Reaper {
        &self.reaper
    }

    /// Sends all that is owed, until the future is dropped.
    ///
    /// Cancel safe: tries in flight go on.
    pub(crate) async fn run(&mut self) {
        loop {
            while let Some((place, owed)) = self.ledger.next(BootInstant::now()) {
                self.start(owed, place, Way::InQueue);
            }
            self.reaper.0.backlog.note(&self.ledger);
            let due = self.ledger.due();
            let pause = due.map(|due| BootInstant::now().until(due));
            tokio::select! {
                owed = self.owed.recv() => match owed {
                    Some(owed) => self.begin(owed),
                    None => return,
                },
                // A task that was aborted, or that panicked outside of `send`, cannot return its request.
                Some(tried) = self.running.join_next() => match tried {
                    Ok(tried) => self.tried(tried),
                    // Otherwise it was cancelled, because its runtime ends.
                    Err(error) if error.is_panic() => {
                        warn!(%error, "a background release ended early");
                    }
                    Err(_) => {}
                },
                () = sleep(pause.unwrap_or_default()), if pause.is_some() => {}
            }
        }
    }

    /// Sends until nothing is owed any more, not even by calls that are still running, or until `at_most` has passed.
    pub(crate) async fn finish(mut self, at_most: Duration) {
        let owing = self.reaper.0.owing.clone();
        owing.close();
        let all = async {
            tokio::select! {
                () = self.run() => {}
                () = owing.wait() => {}
            }
        };
        if timeout(at_most, all).await.is_err() {
            warn!("closing with unanswered releases; these locks end with their leases");
        }
    }

    /// Tries a request that has just come, or puts it into its server's line.
    fn begin(&mut self, owed: Box<dyn Background>) {
        let place = owed.place(&self.reaper.0.backend);
        // A request that was written already only waits for its answer.
        if self.ledger.has_line(place) && !owed.is_posted() {
            self.ledger.add(place, owed);
        } else {
            self.start(owed, place, Way::AtOnce);
        }
    }

    /// Begins a try in a task of its own, so that a server that hangs holds up no other.
    fn start(&mut self, owed: Box<dyn Background>, place: Place, way: Way) {
        let backend = self.reaper.0.backend.clone();
        self.running.spawn(async move {
            let sent = AssertUnwindSafe(send(owed, way, &backend));
            // The entries behind it in line wait for its end.
            let left = sent.catch_unwind().await.unwrap_or_else(|_| {
                warn!("a background release panicked; what was owed ends with its lease");
                None
            });
            (place, way, left)
        });
    }

    /// Handles the end of a try: see the three cases at the head of this file.
    fn tried(&mut self, (place, way, left): Tried) {
        let in_queue = way == Way::InQueue;
        match left {
            // The server did not answer, or cannot at present. The line sets the pause before the next try.
            Some((owed, error)) if error.is_passing() => {
                self.ledger.failed(place, owed, error.is_unsent());
            }
            left => {
                if in_queue {
                    self.ledger.answered(place);
                }
                if let Some((owed, _)) = left {
                    self.start(owed, place, Way::Refused);
                }
            }
        }
        if in_queue {
            self.ledger.came_back(place);
        }
    }
}

/// Tries until the server answers, or fails to. Returns what is left then. For an entry of a line, a refusal counts as
/// an answer, so that the entries behind it need not wait.
async fn send(
    mut owed: Box<dyn Background>,
    way: Way,
    backend: &Backend,
) -> Option<(Box<dyn Background>, Error)> {
    let mut pause = FIRST_PAUSE;
    let mut refused = way == Way::Refused;
    loop {
        if refused {
            // The refusal may be final, so no call should wait for the outcome.
            owed.keep_nobody_waiting();
            sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
        let error = owed.send(backend).await.err()?;
        if owed.has_ended(&error) {
            debug!(?owed, %error, "gave up what was owed: its time has passed");
            return None;
        }
        if error.is_passing() || way == Way::InQueue {
            return Some((owed, error));
        }
        refused = true;
    }
}
