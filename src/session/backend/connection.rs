//! The connection that commands go over: one for a server, shared by all its callers.
//!
//! # Invariants
//!
//! 1. The desk, with what is to be written and those that wait for replies, is changed under one mutex.
//! 2. No byte waits for a connection: a caller may, and gives its request up as never sent if none comes. What was in the
//!    buffer of one that broke goes with it.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use bytes::BytesMut;
use tokio::io::AsyncReadExt;
#[cfg(feature = "tls")]
use tokio::io::AsyncWriteExt;
use tokio::runtime::Handle;
use tokio::sync::{Notify, watch};
use tokio::task::yield_now;
use tokio::time::{sleep, timeout};
use tokio_util::task::AbortOnDropHandle;
use tracing::{debug, info};

pub(super) use super::desk::Broken;
use super::desk::{self, Desk, no_connection};
use super::dial::Dialer;
use super::link::{ConnectionId, Link, Writer};
use super::resp::{self, Request, Said};
use crate::clock::BootInstant;
use crate::error::{Error, ErrorKind};
use crate::protocol::script::Script;
use crate::session::pace::Pace;

/// Pauses before the first tries to connect again. They begin anew with a connection that has lasted, and with the second
/// after one that has answered a caller.
const PAUSES: [Duration; 3] = [
    Duration::from_millis(2),
    Duration::from_millis(50),
    Duration::from_millis(200),
];
/// The later ones where nobody listens: a try costs no server anything, and callers are to have their answer within half
/// a second of its return.
const KNOCK: Duration = Duration::from_millis(300);
/// From one try to the next where somebody accepts and it comes to nothing: each costs the server a handshake.
const APART: Duration = Duration::from_secs(1);
/// So many tries have the third pause at most where the server has greeted: it is there, and short leases are to outlast
/// that.
const GREETED: usize = 16;
/// A connection has lasted, and may be replaced.
const SETTLED: Duration = Duration::from_secs(1);
/// Space for replies that is there before they arrive.
const INBOX: usize = 16 << 10;

/// One connection, made when it is first used, and made again when it breaks.
pub(super) struct Connection {
    shared: Arc<Shared>,
    dialer: Dialer,
    /// Where it lives: whoever uses it first may be elsewhere.
    runtime: Handle,
    kept: OnceLock<AbortOnDropHandle<()>>,
}

struct Shared {
    reconnected: Box<dyn Fn() + Send + Sync>,
    desk: Mutex<Desk>,
    /// There is something to write.
    unsent: Notify,
    /// The last connection in whose place another was asked for.
    unwanted: watch::Sender<u64>,
    status: watch::Sender<Status>,
}

/// How it stands with the connection.
#[derive(Clone, Debug, Default)]
struct Status {
    /// How many connections there were.
    epoch: u64,
    is_open: bool,
    /// There will be none any more.
    is_over: bool,
    /// Why there is none.
    failure: Option<Error>,
}

impl Connection {
    /// `reconnected` is called for each connection but the first.
    pub(super) fn new(
        dialer: Dialer,
        runtime: &Handle,
        reconnected: impl Fn() + Send + Sync + 'static,
    ) -> Self {
        let shared = Shared {
            reconnected: Box::new(reconnected),
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

    /// Connects now, and tells if that fails; if it was used before it keeps connecting by itself.
    pub(super) async fn connect(&self) -> Result<(), Error> {
        if self.kept.get().is_none() {
            let link = self.dialer.dial().await?;
            self.keep(Some(link));
        }
        Ok(())
    }

    /// Sends a request, and waits for the reply to its last command. Waits for a connection if there is none, for as
    /// long as the reply would be waited for.
    ///
    /// If the future is dropped, the request may still run.
    pub(super) async fn ask(&self, request: Request, left: Duration) -> Result<Said, Broken> {
        self.keep(None);
        let mut is_sent = false;
        let end = BootInstant::now().plus(left);
        let answered = timeout(left, async {
            let reply = match self.shared.send(&request) {
                Ok(reply) => reply,
                Err(_) => {
                    Box::pin(self.shared.opened()).await;
                    // Nobody may have polled this for long, and then nobody counts on it any more.
                    if BootInstant::now() >= end {
                        return Err(Broken::Unsent(self.shared.failure()));
                    }
                    self.shared.send(&request).map_err(Broken::Unsent)?
                }
            };
            is_sent = true;
            reply
                .await
                .unwrap_or_else(|_| Err(Broken::Cut(no_connection())))
        });
        match answered.await {
            Ok(answered) => answered,
            Err(late) if is_sent => Err(Broken::TimedOut(late)),
            Err(_) => Err(Broken::Unsent(self.shared.failure())),
        }
    }

    /// Writes a request from where nobody can wait, if there is a connection that takes it.
    pub(super) fn post(&self, request: &Request) -> Option<desk::Reply> {
        self.shared.give(|desk| desk.post(request)).ok()
    }

    /// Whether the server surely knows a script by its hash.
    pub(super) fn knows(&self, script: &'static Script) -> bool {
        self.shared.lock().knows(script)
    }

    /// Opens another connection in place of the one of this number, if that is the present one.
    pub(super) fn redial(&self, epoch: u64) {
        self.shared.unwanted.send_if_modified(|unwanted| {
            let is_news = *unwanted < epoch;
            *unwanted = epoch.max(*unwanted);
            is_news
        });
    }

    /// Opens another connection if the present one has left a request without an answer for so long.
    pub(super) fn redial_if_stalled(&self, patience: Duration) {
        let epoch = self.epoch();
        let desk = self.shared.lock();
        let since = desk.waits_since();
        if since.is_some_and(|since| since.until(BootInstant::now()) >= patience) {
            drop(desk);
            self.redial(epoch);
        }
    }

    /// Connects in the background, if it was not used before.
    pub(super) fn start(&self) {
        self.keep(None);
    }

    pub(super) fn is_started(&self) -> bool {
        self.kept.get().is_some()
    }

    pub(super) fn is_open(&self) -> bool {
        self.shared.status.borrow().is_open
    }

    /// How many connections there were.
    pub(super) fn epoch(&self) -> u64 {
        self.shared.status.borrow().epoch
    }

    /// Ends the connection for good.
    pub(super) fn close(&self) {
        if let Some(kept) = self.kept.get() {
            kept.abort();
        }
        self.dialer.close();
    }

    fn keep(&self, link: Option<Link>) {
        self.kept.get_or_init(|| {
            let kept = keep(Kept(self.shared.clone()), self.dialer.clone(), link);
            AbortOnDropHandle::new(self.runtime.spawn(kept))
        });
    }
}

/// Waits for the reply to a request that was posted.
pub(super) async fn replied(reply: desk::Reply, left: Duration) -> Result<Said, Broken> {
    match timeout(left, reply).await {
        Ok(replied) => replied.unwrap_or_else(|_| Err(Broken::Cut(no_connection()))),
        Err(late) => Err(Broken::TimedOut(late)),
    }
}

/// Declares the connection ended when its task is dropped, whoever does that.
struct Kept(Arc<Shared>);

impl Drop for Kept {
    fn drop(&mut self) {
        self.0.status.send_modify(|status| status.is_over = true);
        self.0.end(no_connection());
    }
}

/// Connects, serves the connection until it breaks, and connects again, without end.
async fn keep(kept: Kept, mut dialer: Dialer, mut link: Option<Link>) {
    let shared = &kept.0;
    // A server that hangs answers a try that is under way as soon as it goes on, and between two it is not heard.
    dialer.patience = dialer.patience.max(APART);
    let mut failed = 0;
    let mut connection_id: Option<ConnectionId> = None;
    let told = Pace::default();
    loop {
        let mut place = dialer.place();
        let began = BootInstant::now();
        let dialled = match link.take() {
            Some(link) => Ok(link),
            None => dialer.redial(connection_id.as_ref()).await,
        };
        let (opened, greeted) = (BootInstant::now(), dialled.is_ok());
        let error = match dialled {
            Ok(link) => {
                match told.tell() {
                    Some(untold) => info!(server = %link.place, untold, "connected"),
                    None => debug!(server = %link.place, "connected"),
                }
                let here = place.insert(link.place.clone());
                connection_id.clone_from(&link.connection_id);
                tokio::select! {
                    error = shared.serve(link) => error,
                    () = dialer.leads_elsewhere(Some(here)) => left(),
                }
            }
            Err(error) => error,
        };
        debug!(server = %dialer.server, %error, "no connection");
        let nobody = error.is_of_nobody_there();
        let has_answered = shared.end(error);
        if opened.until(BootInstant::now()) >= SETTLED {
            failed = 0;
        } else if has_answered {
            failed = 1;
        }
        let pause = match PAUSES.get(failed) {
            Some(pause) => *pause,
            None if greeted && failed < GREETED => PAUSES[PAUSES.len() - 1],
            None if nobody => KNOCK,
            None => APART.saturating_sub(began.until(BootInstant::now())),
        };
        failed += 1;
        tokio::select! {
            // Callers that come back together are not to come to the server together.
            () = sleep(pause + pause.mul_f64(fastrand::f64() / 4.0)) => {}
            () = dialer.leads_elsewhere(place.as_deref()) => failed = 0,
        }
    }
}

impl Shared {
    fn send(&self, request: &Request) -> Result<desk::Reply, Error> {
        self.give(|desk| desk.send(request))
    }

    /// Gives a request to the desk, and what that has left to the task that writes.
    fn give(
        &self,
        request: impl FnOnce(&mut Desk) -> Result<desk::Reply, Error>,
    ) -> Result<desk::Reply, Error> {
        let mut desk = self.lock();
        let reply = request(&mut desk)?;
        let unsent = desk.has_unsent();
        drop(desk);
        if unsent {
            self.unsent.notify_one();
        }
        Ok(reply)
    }

    /// Waits for a connection, unless there will be none.
    async fn opened(&self) {
        let mut status = self.status.subscribe();
        let opened = status.wait_for(|status| status.is_open || status.is_over);
        opened.await.ok();
    }

    /// Why there is no connection.
    fn failure(&self) -> Error {
        self.status
            .borrow()
            .failure
            .clone()
            .unwrap_or_else(no_connection)
    }

    /// Reads and writes until the connection breaks, and tells why it did.
    async fn serve(&self, link: Link) -> Error {
        let Link {
            reader,
            writer,
            version,
            ..
        } = link;
        let socket = match &writer {
            Writer::Open(socket) => Some(socket.clone()),
            #[cfg(feature = "tls")]
            Writer::Secured(_) => None,
        };
        *self.lock() = Desk::new(socket);
        self.status.send_modify(|status| {
            *status = Status {
                epoch: status.epoch + 1,
                is_open: true,
                ..Status::default()
            };
        });
        let epoch = self.status.borrow().epoch;
        if epoch > 1 {
            (self.reconnected)();
        }
        let broken = tokio::select! {
            broken = self.read(reader, version) => broken,
            broken = self.write(writer) => broken,
            () = self.outlived(epoch) => return replaced(),
        };
        let Err(error) = broken;
        Error::new(ErrorKind::Backend, format!("the connection broke: {error}")).caused_by(error)
    }

    /// Waits until another connection is asked for, in the place of one that has had its time.
    async fn outlived(&self, epoch: u64) {
        sleep(SETTLED).await;
        let mut unwanted = self.unwanted.subscribe();
        unwanted.wait_for(|unwanted| *unwanted >= epoch).await.ok();
    }

    async fn read(
        &self,
        mut reader: impl AsyncReadExt + Unpin,
        version: resp::Version,
    ) -> Result<std::convert::Infallible, io::Error> {
        let mut arrived = BytesMut::with_capacity(INBOX);
        loop {
            if reader.read_buf(&mut arrived).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            loop {
                let (said, garbled) = match resp::take(&mut arrived, version) {
                    Ok(None) => break,
                    Ok(Some(said)) => (Ok(said), None),
                    Err(garbled) => (Err(Broken::Garbled(unread(&garbled))), Some(garbled)),
                };
                let asked = self.lock().replied(said.as_ref().ok());
                let unasked = || io::Error::other("the server answers what nobody asked");
                if let Some(caller) = asked.ok_or_else(unasked)? {
                    caller.send(said).ok();
                }
                if let Some(garbled) = garbled {
                    return Err(io::Error::other(garbled));
                }
            }
            // A long reply is measured as often as it has doubled, and leaves no space behind.
            match arrived.is_empty() && arrived.capacity() > 4 * INBOX {
                true => arrived = BytesMut::with_capacity(INBOX),
                false => arrived.reserve(arrived.len().max(INBOX)),
            }
        }
    }

    async fn write(&self, mut writer: Writer) -> Result<std::convert::Infallible, io::Error> {
        loop {
            self.unsent.notified().await;
            // Whoever is ready to send now does so first: what has gathered is written at once. The task that wakes this
            // one would else be followed by it before all others, and each request be written by itself.
            yield_now().await;
            match &mut writer {
                Writer::Open(socket) => loop {
                    socket.writable().await?;
                    let mut desk = self.lock();
                    desk.write(socket)?;
                    if !desk.has_unsent() {
                        break;
                    }
                },
                #[cfg(feature = "tls")]
                Writer::Secured(writer) => loop {
                    let bytes = self.lock().take_unsent();
                    if bytes.is_empty() {
                        break;
                    }
                    writer.write_all(&bytes).await?;
                    writer.flush().await?;
                },
            }
        }
    }

    /// There is no connection any more: those that wait for a reply learn of it. Whether others had one.
    fn end(&self, error: Error) -> bool {
        let desk = std::mem::take(&mut *self.lock());
        self.status.send_modify(|status| {
            status.is_open = false;
            status.failure = Some(error.clone());
        });
        desk.end(&error)
    }

    fn lock(&self) -> MutexGuard<'_, Desk> {
        self.desk.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// With the connection every later reply is lost, so it is given up.
fn unread(garbled: &resp::Garbled) -> Error {
    let text = format!("{garbled}: is it a Redis or Valkey server? The connection was given up");
    Error::new(ErrorKind::Protocol, text).unanswered()
}

pub(super) fn left() -> Error {
    Error::new(
        ErrorKind::Backend,
        "the connection was given up: the sentinels name another primary",
    )
    .passing()
}

fn replaced() -> Error {
    Error::new(
        ErrorKind::Backend,
        "the connection was replaced: the server was silent, or is no primary any more",
    )
    .passing()
}
