//! The connection that commands go over: one for each server, shared by all its callers.
//!
//! This is the callers' side. The other side is a task ([`keep`]), started by the first use on the runtime of the
//! client. It connects, reads, writes what callers left over, and connects again. Between them is [`ConnectionShared`].
//!
//! # Invariants
//!
//! 1. The desk (the send buffer, and the queue of requests in flight) is changed under one mutex.
//! 2. No byte waits for a connection. A caller may wait for one, and gives its request up as never sent if none comes.
//!    When a connection breaks, the bytes in its buffer are dropped.
//! 3. There is at most one task, and so at most one connection. When the task ends, for whatever reason, every caller
//!    that waits is told.

use std::slice;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use futures_util::future::try_join_all;
use tokio::runtime::Handle;
use tokio::sync::{Notify, watch};
use tokio::time::error::Elapsed;
use tokio::time::timeout;
use tokio_util::task::AbortOnDropHandle;

use super::connection_task::{Kept, keep};
pub(super) use super::desk::Broken;
use super::desk::{self, Desk, no_connection};
use super::dial::Dialer;
use super::link::Link;
use super::meter::Meter;
use super::resp::{Said, WireRequest};
use crate::clock::BootInstant;
use crate::config::Server;
use crate::error::Error;
use crate::protocol::script::Script;

/// A connection to one server, made when it is first used, and made again when it breaks.
pub(super) struct Connection {
    shared: Arc<ConnectionShared>,
    /// How to connect. Closing it stops following the sentinels.
    dialer: Dialer,
    /// The runtime of its task. The caller that uses the connection first may be on another one.
    runtime: Handle,
    /// The task that keeps the connection. Started by the first use.
    kept: OnceLock<AbortOnDropHandle<()>>,
}

/// What callers and the task have in common.
pub(super) struct ConnectionShared {
    pub(super) meter: Arc<dyn Meter>,
    /// Called when the server is lost, and when it is reached again.
    pub(super) changed: Box<dyn Fn(PreviousConnection) + Send + Sync>,
    /// The requests of the present connection. Replaced as a whole with each connection.
    pub(super) desk: Mutex<Desk>,
    /// Signals that there is something to write.
    ///
    /// Notified by a caller that leaves bytes in the buffer: the socket did not take them, or they wait to share a
    /// packet.
    pub(super) unsent: Notify,
    /// The number of the last connection that a caller asked to replace.
    ///
    /// A number and not a flag, so that a late request does not end the next connection.
    pub(super) unwanted: watch::Sender<u64>,
    /// Watched by callers that wait for a connection.
    pub(super) status: watch::Sender<Status>,
}

/// What became of a connection that was open before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PreviousConnection {
    /// It broke, and the first attempt to make another one failed.
    Unreachable,
    /// Another connection is open. Nothing has been read from it yet: the holds are checked now, in case the server
    /// lost them.
    Reconnected,
}

/// The state of the connection.
#[derive(Clone, Debug, Default)]
pub(super) struct Status {
    /// The number of connections so far, which is also the number of the present one.
    pub(super) epoch: u64,
    /// Whether requests can be sent. The desk may be gone a moment before this says so.
    pub(super) is_open: bool,
    /// Whether there will never be another connection.
    pub(super) is_over: bool,
    /// Why there is no connection.
    pub(super) failure: Option<Error>,
}

impl Connection {
    /// Creates a connection that is made when it is first used. `changed` is called for each [`PreviousConnection`].
    pub(super) fn new(
        dialer: Dialer,
        runtime: &Handle,
        meter: Arc<dyn Meter>,
        changed: impl Fn(PreviousConnection) + Send + Sync + 'static,
    ) -> Self {
        let shared = ConnectionShared {
            meter,
            changed: Box::new(changed),
            desk: Mutex::default(),
            unsent: Notify::new(),
            unwanted: watch::Sender::default(),
            status: watch::Sender::default(),
        };
        Self {
            shared: Arc::new(shared),
            dialer,
            runtime: runtime.clone(),
            kept: OnceLock::new(),
        }
    }

    /// Connects now, and returns `Err` if that fails. Does nothing if the connection was used before: it then keeps
    /// connecting by itself.
    ///
    /// For the first connection of a client, so that a wrong address or password is an error of `connect`.
    pub(super) async fn connect(&self) -> Result<(), Error> {
        if self.kept.get().is_none() {
            let link = self.dialer.dial().await?;
            self.keep(Some(link));
        }
        Ok(())
    }

    /// Sends a request and waits for the reply to its last command, for at most `left`. This includes the wait for a
    /// connection if there is none.
    ///
    /// If the future is dropped, the request may still run.
    pub(super) async fn ask(&self, request: WireRequest, left: Duration) -> Result<Said, Broken> {
        self.keep(None);
        // Set once the desk has the request. A time-out before that means that nothing was sent.
        let mut is_sent = false;
        let end = BootInstant::now().plus(left);
        let answered = timeout(left, async {
            let reply = match self.shared.send(&request) {
                Ok(reply) => reply,
                // There is no connection, or the desk is full. Only the first is worth a wait; a full desk refuses
                // again below.
                Err(_) => {
                    Box::pin(self.shared.opened()).await;
                    // The future may not have been polled for a long time. Nothing is sent after the call's time is
                    // over, since its caller has given up by then.
                    if BootInstant::now() >= end {
                        return Err(Broken::Unsent(self.shared.failure()));
                    }
                    self.shared.send(&request).map_err(Broken::Unsent)?
                }
            };
            is_sent = true;
            answer(reply).await
        });
        let answered = answered.await;
        answered.unwrap_or_else(|late| Err(self.late(late, is_sent)))
    }

    /// Sends requests in one step and waits for the reply to each, for at most `left`. Nothing comes between the
    /// requests, and all go over one connection.
    ///
    /// If the future is dropped, the requests may still run.
    pub(super) async fn ask_all(
        &self,
        requests: &[WireRequest],
        left: Duration,
    ) -> Result<Vec<Said>, Broken> {
        self.keep(None);
        let mut is_sent = false;
        let answered = timeout(left, async {
            self.shared.opened().await;
            let replies = self.shared.send_all(requests).map_err(Broken::Unsent)?;
            is_sent = true;
            try_join_all(replies.into_iter().map(answer)).await
        });
        let answered = answered.await;
        answered.unwrap_or_else(|late| Err(self.late(late, is_sent)))
    }

    /// Returns the error of requests whose time is over.
    fn late(&self, late: Elapsed, is_sent: bool) -> Broken {
        match is_sent {
            true => Broken::TimedOut(late),
            false => Broken::Unsent(self.shared.failure()),
        }
    }

    /// Writes a request without waiting. Returns `None` if no connection takes it.
    ///
    /// [`replied`] waits for the reply, if anybody wants it.
    pub(super) fn post(&self, request: &WireRequest) -> Option<desk::Reply> {
        let one = slice::from_ref(request);
        self.shared.give(one, |desk| desk.post(request)).ok()
    }

    /// Does the same as [`post`](Self::post), but only if the connection with the number `epoch` is still the present
    /// one.
    ///
    /// The status is read with the desk locked: a desk never belongs to a later connection than the one that the status
    /// shows as open.
    pub(super) fn post_on(&self, epoch: u64, request: &WireRequest) -> Option<desk::Reply> {
        let on_it = |desk: &mut Desk| {
            let status = self.shared.status.borrow();
            match status.is_open && status.epoch == epoch {
                true => desk.post(request),
                false => Err(no_connection()),
            }
        };
        self.shared.give(slice::from_ref(request), on_it).ok()
    }

    /// Whether the server is known to have this script, so that its hash is enough.
    ///
    /// A restarted server knows none, and neither does the desk of the new connection.
    pub(super) fn knows(&self, script: &'static Script) -> bool {
        self.shared.lock().knows(script)
    }

    /// Returns the primary that the sentinels name, if there are sentinels and one of them names it.
    pub(super) fn primary(&self) -> Option<Server> {
        self.dialer.sentinels.as_ref()?.named()
    }

    /// Requests a connection in place of the one with the number `epoch`, if that is still the present one.
    pub(super) fn redial(&self, epoch: u64) {
        // The number lets calls that failed on one connection replace it once, and not the connection after it.
        self.shared.unwanted.send_if_modified(|unwanted| {
            let is_news = *unwanted < epoch;
            *unwanted = epoch.max(*unwanted);
            is_news
        });
    }

    /// Requests another connection if a request on the present one has gone unanswered for at least `patience`.
    ///
    /// A server that hangs keeps its connections open, so the silence is the only sign.
    pub(super) fn redial_if_stalled(&self, patience: Duration) {
        // Read before the desk: if the connection changes in between, the old number replaces nothing.
        let epoch = self.epoch();
        let desk = self.shared.lock();
        let since = desk.waits_since();
        if since.is_some_and(|since| since.until(BootInstant::now()) >= patience) {
            drop(desk);
            self.redial(epoch);
        }
    }

    /// Whether replies come, though a request was not answered within `patience`.
    ///
    /// A server that gets too little processor time answers late. Another connection would not be faster, and the work
    /// that the server has done for this one would be lost.
    pub(super) fn is_slow(&self, patience: Duration) -> bool {
        let heard = self.shared.lock().heard();
        heard.is_some_and(|heard| heard.until(BootInstant::now()) < patience / 2)
    }

    /// Connects in the background, unless the connection was used before.
    ///
    /// For a client that connects lazily, and does not wait for it.
    pub(super) fn start(&self) {
        self.keep(None);
    }

    pub(super) fn is_started(&self) -> bool {
        self.kept.get().is_some()
    }

    pub(super) fn is_open(&self) -> bool {
        self.shared.status.borrow().is_open
    }

    /// Whether there will never be another connection: the client is closed, or its runtime has ended.
    pub(super) fn is_over(&self) -> bool {
        self.shared.status.borrow().is_over
    }

    /// Returns the number of connections so far.
    ///
    /// Read before a request is sent, it names the connection of that request or an earlier one.
    pub(super) fn epoch(&self) -> u64 {
        self.shared.status.borrow().epoch
    }

    /// Ends the connection for good, and stops following the sentinels if there are any.
    ///
    /// The drop of the task's [`Kept`] tells the callers that wait.
    pub(super) fn close(&self) {
        if let Some(kept) = self.kept.get() {
            kept.abort();
        }
        self.dialer.close();
    }

    /// Starts the task that keeps the connection, unless it runs already. `link` is the first connection, if it was
    /// made before.
    fn keep(&self, link: Option<Link>) {
        self.kept.get_or_init(|| {
            let kept = keep(Kept(self.shared.clone()), self.dialer.clone(), link);
            AbortOnDropHandle::new(self.runtime.spawn(kept))
        });
    }
}

/// Waits for the reply to a request that was posted, for at most `left`.
pub(super) async fn replied(reply: desk::Reply, left: Duration) -> Result<Said, Broken> {
    match timeout(left, answer(reply)).await {
        Ok(replied) => replied,
        Err(late) => Err(Broken::TimedOut(late)),
    }
}

/// Waits for the reply to a request that was sent.
async fn answer(reply: desk::Reply) -> Result<Said, Broken> {
    let replied = reply.await;
    replied.unwrap_or_else(|_| Err(Broken::Cut(no_connection())))
}

impl ConnectionShared {
    /// Gives the desk a request whose caller waits.
    pub(super) fn send(&self, request: &WireRequest) -> Result<desk::Reply, Error> {
        self.give(slice::from_ref(request), |desk| desk.send(request))
    }

    /// Gives requests to the desk, all of them in one step.
    ///
    /// If one does not fit, those before it are sent all the same, and nobody waits for their replies.
    fn send_all(&self, requests: &[WireRequest]) -> Result<Vec<desk::Reply>, Error> {
        self.give(requests, |desk| {
            requests.iter().map(|request| desk.send(request)).collect()
        })
    }

    /// Gives requests to the desk, and wakes the writing task if bytes are left over.
    ///
    /// Fails if there is no connection or no room; a single request was not sent then.
    fn give<T>(
        &self,
        requests: &[WireRequest],
        give: impl FnOnce(&mut Desk) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let mut desk = self.lock();
        let given = give(&mut desk);
        let unsent = desk.has_unsent();
        drop(desk);
        if unsent {
            self.unsent.notify_one();
        }
        let given = given?;
        for request in requests {
            self.meter.requested(request.bytes().len());
        }
        Ok(given)
    }

    /// Waits for a connection. Returns also if there will never be one.
    ///
    /// The caller has to look again: the connection may have broken in the meantime.
    async fn opened(&self) {
        let mut status = self.status.subscribe();
        let opened = status.wait_for(|status| status.is_open || status.is_over);
        opened.await.ok();
    }

    /// Returns why there is no connection.
    fn failure(&self) -> Error {
        self.status
            .borrow()
            .failure
            .clone()
            .unwrap_or_else(no_connection)
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Desk> {
        self.desk.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
