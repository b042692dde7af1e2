//! What one connected client shares, and the tasks behind it.
//!
//! A [`Session`] is made by [`Session::open`] and shared by everything that a client hands out. Its life:
//!
//! 1. Open. [`serve`] runs the watchdog, the hub, the upkeep of the backend and the reaper on the runtime on which the
//!    client was connected. Calls may run on any runtime, or on none.
//! 2. Closing: `close` was called, the last [`ClientHandle`] was dropped, or a task ended by itself. No call begins any
//!    more, every hold is lost here, and what the servers have of this client is released.
//! 3. Closed: that is done, or its time is up, or the runtime has ended. Calls that still wait for a task fail now.
//!
//! # Invariants
//!
//! 1. `closing` fires before `closed`, and neither is ever taken back.
//! 2. The tasks have the session itself and no [`ClientHandle`], so that they do not keep it open.
//! 3. No mutex of the standard library is held across an await. (Those of tokio are: a record's turn, and the
//!    connection for transactions.) Where several are locked, it is in this order: the map of local locks, a local
//!    lock, a hold's state, the watchdog's registry or the record's state; those of the backend come last.

pub(crate) mod asking;
pub(crate) mod backend;
pub(crate) mod grants;
mod handoff;
pub(crate) mod hold;
mod hold_state;
pub(crate) mod hub;
mod keeper;
mod ledger;
pub(crate) mod left;
pub(crate) mod local_lock;
pub(crate) mod local_queue;
mod misuse;
mod outage_log;
pub(crate) mod outgoing;
mod owners;
pub(crate) mod permit_record;
pub(crate) mod place;
pub(crate) mod reaper;
pub(crate) mod record;
mod release_request;
mod releaser;
pub(crate) mod share;
mod subscriber;
mod subscription;
mod successor;
pub(crate) mod sync;
pub(crate) mod tally;
mod task;
pub(crate) mod turns;
pub(crate) mod undo;
pub(crate) mod unlock;
mod unpolled;
pub(crate) mod watchdog;

use std::fmt;
use std::future::{Future, pending};
use std::ops::Deref;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::{FutureExt, TryFutureExt};
use tokio::runtime::{Builder, Handle};
use tokio::time::{sleep, timeout};
use tokio_util::context::TokioContext;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::AbortOnDropHandle;
use tracing::{debug, warn};
use uuid::Uuid;

use crate::clock::{self, BootInstant};
use crate::config::Config;
use crate::error::Error;
use crate::label;
use crate::loss::LossReason;
use crate::name::LockName;
use crate::options::Settings;
use crate::protocol::script::Call;
use crate::protocol::wait::{Step, Wait};

use backend::{Answer, Backend, Disruptions};
use hub::Hub;
use local_lock::LocalLocks;
use permit_record::{PermitRecord, PermitRegistry};
use reaper::{Reaper, Worker};
use releaser::Releaser;
use share::Share;
use sync::Spawner;
use tally::Tally;
use undo::Undo;
use watchdog::Watchdog;

/// How much longer than a request the releases of a client that closes may take.
const FINISH: Duration = Duration::from_secs(1);

/// What this process knows of one lock: its waiters and its holds.
pub(crate) type LocalLock = share::LocalLockRef;

/// One connected client: what its locks, semaphores and latches share.
///
/// Handles have it as a [`ClientHandle`], the tasks of [`serve`] as an `Arc`.
pub(crate) struct Session {
    /// A random UUID: part of the owner fields on the server.
    pub(crate) client_id: Arc<str>,
    /// The label and the id: part of the acquisition fields on the server, of the turn orders, and of the names of the
    /// channels on which only this client is told.
    pub(crate) client_name: Arc<str>,
    pub(crate) settings: Settings,
    pub(crate) backend: Arc<Backend>,
    pub(crate) hub: Arc<Hub>,
    /// Everything in memory about the names in use: their waiters, holds and handoffs.
    pub(crate) local_locks: Arc<LocalLocks<Undo<Share>>>,
    /// Renews the holds, and ends those that are lost.
    pub(crate) watchdog: Arc<Watchdog>,
    /// The way to the background task, for what nobody waits for.
    pub(crate) reaper: Reaper,
    /// What a release needs, shared with the `Undo`s that outlive the call that made them.
    pub(crate) releaser: Arc<Releaser>,
    /// Every permit that is out, in doubt, or owed back.
    pub(crate) permits: Arc<PermitRegistry>,
    /// Counts what the client does.
    pub(crate) tally: Arc<Tally>,
    /// The runtime that the client's tasks run on.
    runtime: Handle,
    /// Fires when the client is closed or its runtime ends. Nothing is begun after that.
    closing: CancellationToken,
    /// Fires once everything that can be given back was given back.
    closed: CancellationToken,
}

impl Session {
    /// Connects to the servers, and starts the tasks on the current runtime.
    ///
    /// The first connections are made within this future, unless `settings.connects_lazily`. If it is dropped or fails,
    /// no task of the session has begun, and the connections end with the backend.
    pub(crate) fn open(
        config: Config,
        settings: Settings,
    ) -> BoxFuture<'static, Result<ClientHandle, Error>> {
        Box::pin(Self::connect(config, settings))
    }

    async fn connect(config: Config, settings: Settings) -> Result<ClientHandle, Error> {
        let runtime = Handle::try_current().map_err(|error| {
            Error::invalid(
                "connect a client within a tokio runtime that lives as long as the client",
            )
            .caused_by(error)
        })?;
        let closing = CancellationToken::new();
        let id = Uuid::new_v4();
        let label = settings.label.clone().unwrap_or_else(label::of_process);
        let client_name: Arc<str> = label::name_of_client(&label, id).into();
        let tally = Arc::new(Tally::new(&settings));
        let name = format!("redlatch:{client_name}").into();
        let (backend, disruptions) =
            Backend::connect(config, &settings, name, tally.clone()).await?;
        let backend = Arc::new(backend);
        let local_locks = Arc::new(LocalLocks::default());
        let hub = Hub::new(backend.clone());
        let worker = Worker::new(backend.clone());
        let reaper = worker.reaper().clone();
        let releaser = Arc::new(Releaser {
            local_locks: local_locks.clone(),
            hub: hub.clone(),
            backend: backend.clone(),
            grants: Arc::default(),
            reaper: reaper.clone(),
            command_timeout: settings.command_timeout,
            runtime: Spawner::current(),
            tally: tally.clone(),
        });
        let session = Arc::new(Self {
            client_id: id.to_string().into(),
            client_name,
            hub,
            watchdog: Watchdog::new(releaser.clone()),
            settings,
            backend: backend.clone(),
            local_locks,
            permits: PermitRegistry::new(&releaser),
            reaper,
            releaser,
            tally,
            runtime,
            closing,
            closed: CancellationToken::new(),
        });
        debug!(target: "redlatch", client = %session.client_name, backend = ?session.backend, "connected");
        // The hub has a task of its own, since it stands between a message and its waiter.
        let hub = AbortOnDropHandle::new(tokio::spawn(session.hub.clone().run()));
        // Made here: a runtime that ends before it has polled the task drops only what the task was given.
        let ended = EndOfSession(session.clone());
        tokio::spawn(serve(ended, hub, worker, disruptions));
        Ok(ClientHandle(session))
    }

    /// Returns `Err` for a name whose keys are in several slots, if the servers are a cluster.
    pub(crate) fn ensure_placed(&self, name: &LockName) -> Result<(), Error> {
        match self.backend.is_clustered() {
            true => name.ensure_one_slot(),
            false => Ok(()),
        }
    }

    /// Returns the name by which people know this client.
    pub(crate) fn label(&self) -> &str {
        label::split(&self.client_name).0.unwrap_or_default()
    }

    /// Fails once the client is closing. Calls check this before their first request, and again after an error: the
    /// reason that a user should see is that the client was closed, not what that did to a connection.
    pub(crate) fn ensure_open(&self) -> Result<(), Error> {
        if self.closing.is_cancelled() {
            Err(Error::closed())
        } else {
            Ok(())
        }
    }

    /// Returns the longest of the round trips to each server.
    ///
    /// One answer may prove nothing about the others, so the servers are asked at the same time and the slowest counts.
    pub(crate) async fn ping(&self) -> Result<Duration, Error> {
        let ping = async {
            self.ensure_open()?;
            let answered = self.backend.ping(self.settings.command_timeout).await;
            if answered.is_err() {
                self.ensure_open()?;
            }
            answered
        };
        self.within(Box::pin(ping)).await
    }

    /// Runs a script. Closing the client does not interrupt it: the call ends soon, within its budget.
    ///
    /// The error of a call that failed while the client was closing is replaced by [`Error::closed`]. Whoever needs to
    /// know whether the request may have run has an [`Undo`] armed, which does not depend on the error.
    pub(crate) async fn run(&self, call: &Call<'_>, budget: Duration) -> Result<Answer, Error> {
        let answered = self.backend.run(call, budget).await;
        if answered.is_err() {
            self.ensure_open()?;
        }
        answered
    }

    /// Returns the id of the server that has this key. The server made up the id when it started, so it is the same for
    /// every client.
    ///
    /// For calls about several names, which have to know which of them share a server.
    pub(crate) async fn server(&self, key: &str) -> Result<Arc<str>, Error> {
        self.ensure_open()?;
        self.backend
            .server(key, self.settings.command_timeout)
            .await
    }

    /// Runs a call of the public interface. Keeps its future on the heap, so that it adds nothing to its callers'
    /// futures, and without its type, so that the compiler need not look through all of it whenever an application
    /// spawns a future with a call. Gives it timers if it is polled outside of any runtime. There the client's own
    /// runtime may end while the call waits; then the call fails, since no answer can come.
    ///
    /// The future is best made by a function that is not async: what an async function makes is compiled again in each
    /// crate that awaits it.
    ///
    /// Cancel safe as far as `call` is: dropping this drops `call`.
    pub(crate) async fn within<T: Send>(
        &self,
        call: BoxFuture<'_, Result<T, Error>>,
    ) -> Result<T, Error> {
        let call = call.or_else(|error| self.explained(error).map(Err));
        if has_runtime() {
            return call.await;
        }
        let call = async {
            tokio::select! {
                biased;
                () = self.closed.cancelled() => Err(Error::closed()),
                output = call => output,
            }
        };
        Box::pin(self.with_timers(call)).await
    }

    /// Runs a future that waits for nothing but time, by the timers of the runtime that polls it, if there is one.
    pub(crate) async fn timed<F: Future>(&self, future: F) -> F::Output {
        match has_runtime() {
            true => future.await,
            false => Box::pin(self.with_timers(future)).await,
        }
    }

    /// Gives a future timers that outlast the runtime it is polled in.
    ///
    /// Every poll of the future then sees these timers, also where the executor is not tokio's.
    pub(crate) fn with_timers<F: Future>(&self, future: F) -> TokioContext<F> {
        // With a clock that stands still, only the timers of its own runtime do too.
        let apart = if clock::is_tokios() { None } else { timers() };
        TokioContext::new(future, apart.unwrap_or(&self.runtime).clone())
    }

    /// Waits for a future, unless the client is closed first.
    ///
    /// For pauses and waits within a call: nothing is begun after them once the client closes.
    pub(crate) async fn unless_closed<F: Future>(&self, future: F) -> Result<F::Output, Error> {
        tokio::select! {
            biased;
            () = self.closing.cancelled() => Err(Error::closed()),
            output = future => Ok(output),
        }
    }

    /// Waits for what one of the client's tasks tells, unless all of them have ended.
    ///
    /// Other than [`unless_closed`](Self::unless_closed) this goes on while the client closes, since an `unlock` that
    /// was begun is still answered then.
    pub(crate) async fn unless_ended<F: Future>(&self, future: F) -> Result<F::Output, Error> {
        tokio::select! {
            biased;
            output = future => Ok(output),
            () = self.closed.cancelled() => Err(Error::closed()),
        }
    }

    /// Pauses after an error of a call about this key. Returns the error instead if it is not one that may pass, or if
    /// the wait is over.
    ///
    /// A wait without a limit of its own is over once the server has been silent for its patience, or has answered each
    /// of its requests too late, counted at the earliest from when the wait began.
    pub(crate) async fn pause(
        &self,
        key: &str,
        wait: &mut Wait,
        error: Error,
    ) -> Result<(), Error> {
        if !error.is_passing() {
            return Err(error);
        }
        let silence = self.backend.silence(key).map(|(since, _)| since);
        match wait.failed(BootInstant::now(), error.is_refusal(), silence) {
            Step::Park(pause) => self.unless_closed(sleep(pause)).await,
            Step::GiveUp => Err(error),
        }
    }

    /// Waits, without a request to a server, for this call's turn behind other calls of this process. Returns `None` if
    /// the turn does not come within the limit, or an error if the server of `name` is silent by then. A lock on
    /// several servers passes no name, since some of them may be silent. The caller pins `turn`: many calls wait here,
    /// and each would keep its copy of the future.
    ///
    /// `turn` involves no server. It is polled before the timer, so a turn that comes at the last moment is taken.
    #[allow(
        clippy::manual_async_fn,
        reason = "an async function keeps its arguments twice"
    )]
    pub(crate) fn in_queue<T>(
        &self,
        name: Option<&LockName>,
        wait: &Wait,
        mut turn: Pin<&mut impl Future<Output = T>>,
    ) -> impl Future<Output = Result<Option<T>, Error>> {
        async move {
            loop {
                let silence = name.and_then(|name| self.backend.silence(name.key()));
                let (since, silence) = silence.unzip();
                // Looked at on each round: a call that waits behind others sends nothing that could fail, and is still
                // to give up like one that asks.
                let Step::Park(at_most) = wait.in_queue(BootInstant::now(), since) else {
                    return silence.map_or(Ok(None), Err);
                };
                drop(silence);
                tokio::select! {
                    biased;
                    () = self.closing.cancelled() => return Err(Error::closed()),
                    turn = turn.as_mut() => return Ok(Some(turn)),
                    () = sleep(at_most) => {}
                }
            }
        }
    }

    /// Runs work that takes the turn of this hold's record in a task, so that it goes on while nobody polls the caller.
    pub(crate) async fn in_task<T: Send + 'static>(
        &self,
        hold: &Arc<hold::Hold>,
        work: impl Future<Output = Result<T, Error>> + Send + 'static,
    ) -> Result<T, Error> {
        let holds = std::slice::from_ref(hold);
        task::in_task(&self.releaser.runtime, holds, work).await
    }

    /// Runs a part of a call that may have guards before it is done. If nobody polls the call for some seconds, a task
    /// drops that part, so that nobody waits for what it has. Returns `None` then, and the call begins again.
    pub(crate) async fn while_polled<T: 'static>(
        &self,
        part: impl Future<Output = T> + Send + 'static,
    ) -> Option<T> {
        task::while_polled(&self.releaser.runtime, part).await
    }

    /// Spawns a future on the client's own runtime, which drops the future when it ends.
    ///
    /// For work that must go on when the caller's future is dropped. It ends with the client's runtime all the same.
    pub(crate) fn spawn(&self, future: impl Future<Output = ()> + Send + 'static) {
        drop(self.runtime.spawn(future));
    }

    /// Gives permits back now. Fails if not all of them were still taken.
    ///
    /// If this future is dropped before the answer, that goes on.
    pub(crate) async fn return_permits(&self, undo: Undo<Arc<PermitRecord>>) -> Result<(), Error> {
        let returning = async {
            self.ensure_open()?;
            // `run` takes the `Undo`, and the error names the record.
            let record = undo.clone();
            // With timers of the client's own: the task outlasts the caller's runtime.
            let mut returned = Box::pin(self.with_timers(undo.run()));
            // Sent here. A task waits for the answer, and sends it again if need be, though nobody polls this.
            let all = match returned.as_mut().now_or_never() {
                Some(all) => all,
                None => task::finished(self.releaser.runtime.spawn(returned), record.timeout).await,
            };
            match all? {
                true => Ok(()),
                false => self.ensure_open().and_then(|()| Err(record.lost())),
            }
        };
        self.within(Box::pin(returning)).await
    }

    /// Closes the session. Closing goes on if this future is dropped.
    ///
    /// What can be released is released first, for which there is the command timeout and one second more. The client's
    /// runtime may be at rest, in which case that happens once it runs again.
    pub(crate) async fn close(&self) {
        self.closing.cancel();
        self.lose_all();
        let patience = self.settings.command_timeout + FINISH * 2;
        let closed = async { timeout(patience, self.closed.cancelled()).await };
        self.timed(closed).await.ok();
    }

    /// Closes the session in the background when what is returned is dropped.
    pub(crate) fn close_on_drop(&self) -> DropGuard {
        self.closing.clone().drop_guard()
    }

    /// Ends every hold of this process: their guards learn of it, and what they owe goes to the background. Holds that
    /// had ended before are passed over, so that calling this twice does no harm.
    fn lose_all(&self) {
        for hold in self.local_locks.holds() {
            drop(self.watchdog.lose(&hold, LossReason::Closed));
        }
    }
}

/// Whether a tokio runtime polls the caller.
fn has_runtime() -> bool {
    // `try_id` is the cheaper check, but succeeds only inside a tokio task.
    tokio::task::try_id().is_some() || Handle::try_current().is_ok()
}

/// Returns the timers for calls that no tokio runtime polls, or more than one. They are not those of the client's
/// runtime, since a timer that is polled after its runtime has ended panics. Returns `None` if the system has no thread
/// for them.
fn timers() -> Option<&'static Handle> {
    static TIMERS: OnceLock<Option<Handle>> = OnceLock::new();
    let start = || {
        let runtime = Builder::new_current_thread().enable_time().build().ok()?;
        let handle = runtime.handle().clone();
        thread::Builder::new()
            .name("redlatch-timers".to_owned())
            .spawn(move || runtime.block_on(pending::<()>()))
            .ok()?;
        Some(handle)
    };
    TIMERS.get_or_init(start).as_ref()
}

/// Shows what an operator may want to see: which client this is, and how much of everything is in use.
impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session")
            .field("client", &self.client_name)
            .field("locks", &self.local_locks.len())
            .field("holds", &self.local_locks.holds().len())
            .field("permits", &self.permits.len())
            .field(
                "waiting",
                &(self.local_locks.in_queue() + self.releaser.grants.len()),
            )
            .field("channels", &self.hub.len())
            .finish_non_exhaustive()
    }
}

/// Keeps a session open: when the last handle is dropped, the session closes.
///
/// Clients, handles and guards share one by an `Arc`, so a session lives while any of them does.
pub(crate) struct ClientHandle(Arc<Session>);

impl Deref for ClientHandle {
    type Target = Session;

    fn deref(&self) -> &Session {
        &self.0
    }
}

impl fmt::Debug for ClientHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Drop for ClientHandle {
    fn drop(&mut self) {
        self.0.closing.cancel();
    }
}

/// Runs the tasks of a session until it closes, then gives back what can be given back.
///
/// If the runtime ends, it drops this future: `ended` then tells the calls that wait elsewhere.
async fn serve(
    ended: EndOfSession,
    hub: AbortOnDropHandle<()>,
    mut worker: Worker,
    disruptions: Disruptions,
) {
    let session = ended.0.clone();
    let backend = session.backend.clone();
    let tasks = async {
        tokio::join!(
            session.watchdog.clone().run(disruptions),
            hub,
            backend.keep(),
            worker.run(),
        )
    };
    tokio::select! {
        () = session.closing.cancelled() => {}
        _ = tasks => warn!("the connection has ended"),
    }
    // The tasks may have ended by themselves: no call may begin any more, since nothing would serve it.
    session.closing.cancel();
    session.lose_all();
    // Holds first: what they owe, the queues and the permits are then all with the reaper before it is told to finish.
    session.releaser.leave_queues();
    drop(session.local_locks.take_lent());
    session.permits.return_all();
    let started = BootInstant::now();
    // A release has its own timeout. This limit is that timeout, plus time for a broken connection to come back.
    worker
        .finish(session.settings.command_timeout + FINISH)
        .await;
    // Only now: the releases above went over these connections.
    backend.close();
    debug!(target: "redlatch", client = %session.client_name, took = ?started.until(BootInstant::now()), "closed");
    drop(ended);
}

/// Declares a session closed when dropped: at the end of [`serve`], or with its future when the runtime ends. In the
/// second case nothing was released, so `drop` gives everything back, as far as the tasks of the connections are still
/// there; in the first, that was done before and changes nothing.
struct EndOfSession(Arc<Session>);

impl Drop for EndOfSession {
    fn drop(&mut self) {
        self.0.closing.cancel();
        self.0.lose_all();
        self.0.permits.return_all();
        self.0.closed.cancel();
    }
}
