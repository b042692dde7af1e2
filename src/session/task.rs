//! Work that others may wait for. A task of the client drives it even while nobody polls the call that it is for, or
//! drops it then.

use std::future::{Future, poll_fn};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::sync::watch;
use tokio::time::error::Elapsed;
use tokio::time::timeout;
use tracing::Instrument;

use super::hold::Hold;
use super::place::{SHOWN_WITHIN, UNPOLLED};
use super::sync::{JoinHandle, Spawner};
use crate::error::{Error, ErrorKind};

/// How many request timeouts a call waits for a stalled task: one for a turn, and two for requests.
const STALLED: u32 = 3;

/// The work, until it is done or dropped.
type Work<T> = Arc<Mutex<Option<BoxFuture<'static, T>>>>;

/// The task that polls the work. Dropping this drops the work.
struct Task<T> {
    work: Work<T>,
    handle: JoinHandle<Option<T>>,
}

/// Runs work under the turns of these holds' records in a task. Dropping this future drops the work.
///
/// Fails if the task stalls: the client's runtime may be busy, or may not run.
pub(crate) async fn in_task<T: Send + 'static>(
    runtime: &Spawner,
    holds: &[Arc<Hold>],
    work: impl Future<Output = Result<T, Error>> + Send + 'static,
) -> Result<T, Error> {
    let turns = || holds.iter().map(|hold| hold.record.turns()).sum::<u64>();
    let limits = holds.iter().map(|hold| hold.timeout * STALLED);
    let limit = limits.max().unwrap_or_default();
    let mut task = Task::spawn(runtime, work.in_current_span());
    loop {
        let before = turns();
        match timeout(limit, &mut task.handle).await {
            // There is no output only if the runtime has ended.
            Ok(output) => {
                let output = output.ok().flatten();
                return output.unwrap_or_else(|| Err(Error::closed()));
            }
            Err(_) if turns() != before => {}
            Err(late) => return Err(stalled(limit, late)),
        }
    }
}

/// Waits for a task that sends a request. Fails if the task stalls; it goes on all the same.
pub(crate) async fn finished<T>(
    task: JoinHandle<Result<T, Error>>,
    request: Duration,
) -> Result<T, Error> {
    let limit = request * STALLED;
    match timeout(limit, task).await {
        Ok(output) => output.unwrap_or_else(|_| Err(Error::closed())),
        Err(late) => Err(stalled(limit, late)),
    }
}

fn stalled(limit: Duration, late: Elapsed) -> Error {
    let text = format!("the runtime of the client did not go on for {limit:?}");
    let error = Error::new(ErrorKind::Timeout, text).unanswered();
    error.caused_by(late)
}

/// Runs work in the caller's future. If nobody polls that for some seconds, a task drops the work. Returns `None` then.
pub(crate) async fn while_polled<T: 'static>(
    runtime: &Spawner,
    work: impl Future<Output = T> + Send + 'static,
) -> Option<T> {
    // Dropped behind the work, so that a dropped call has dropped it by then.
    let (shows, mut shown) = watch::channel(());
    let work: Work<T> = Arc::new(Mutex::new(Some(Box::pin(work))));
    // Weak, so that the work ends with the call.
    let watched = Arc::downgrade(&work);
    let watch = runtime.spawn(async move {
        // Once more, since after a pause of the process both timers come late.
        while let Ok(Ok(())) = match timeout(UNPOLLED * 2, shown.changed()).await {
            Err(_) => timeout(SHOWN_WITHIN, shown.changed()).await,
            shown => shown,
        } {}
        // Dropped outside the mutex, since its drop may run any code.
        drop(watched.upgrade().and_then(|work| lock(&work).take()));
    });
    drop(watch);
    loop {
        shows.send_replace(());
        let polled = poll_fn(|context| poll(&work, context));
        if let Ok(output) = timeout(UNPOLLED / 2, polled).await {
            return output;
        }
    }
}

impl<T: Send + 'static> Task<T> {
    fn spawn(runtime: &Spawner, work: impl Future<Output = T> + Send + 'static) -> Self {
        let work: Work<T> = Arc::new(Mutex::new(Some(Box::pin(work))));
        let polled = work.clone();
        let handle = runtime.spawn(poll_fn(move |context| poll(&polled, context)));
        Self { work, handle }
    }
}

/// Polls the work. Returns `None` if it was dropped.
fn poll<T>(work: &Work<T>, context: &mut Context<'_>) -> Poll<Option<T>> {
    let mut slot = lock(work);
    let Some(future) = slot.as_mut() else {
        return Poll::Ready(None);
    };
    let output = future.as_mut().poll(context);
    let done = if output.is_ready() { slot.take() } else { None };
    drop(slot);
    // Dropped outside the mutex, since its drop may run any code.
    drop(done);
    output.map(Some)
}

fn lock<T>(work: &Work<T>) -> MutexGuard<'_, Option<BoxFuture<'static, T>>> {
    work.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<T> Drop for Task<T> {
    fn drop(&mut self) {
        self.handle.abort();
        // Dropped at once, and not when the runtime gets to it, so that the turn is free for whatever comes next. If
        // the task is polling the work now, the task drops it.
        let work = self.work.try_lock().ok().and_then(|mut slot| slot.take());
        drop(work);
    }
}
