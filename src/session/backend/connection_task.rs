//! The task that keeps a connection for commands: connects, serves the connection, and connects again.
//!
//! The hard part is how soon to connect again. A short break should be over before anybody notices. A server that is
//! away should be found as soon as it is back, and not be kept busy with handshakes. So the pause depends on how far
//! the last attempt came: [`PAUSES`], [`KNOCK`], [`APART`], [`GREETED`].
//!
//! # Invariants
//!
//! 1. The desk of a connection is in place before callers see the connection as open, and goes before they see it as
//!    closed. A caller that finds no desk came too early or too late, and its request was not sent.
//! 2. A connection is replaced at a caller's request only once it is [`LASTED`] old, so that such requests cannot cause
//!    a storm of connections.
//! 3. Before a new connection takes requests, the server is asked to end the previous one, if requests may be unread
//!    there: see `Dialer::replace`.

use std::io;
use std::mem;
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use tokio::task::yield_now;
use tokio::time::sleep;
use tracing::{debug, info};

use super::connection::{ConnectionShared, PreviousConnection, Status};
use super::desk::{Broken, Desk, Ended, no_connection};
use super::dial::Dialer;
use super::identity::Living;
use super::link::{ConnectionId, INBOX, Link};
use super::meter::OpenConnection;
use super::resp::{self, Said, WireRequest};
use super::socket::Socket;
use crate::clock::BootInstant;
use crate::error::{Error, ErrorKind};
use crate::pace::Pace;

/// Pauses before the first attempts to connect again. After a connection that has lasted, they start over. After a
/// shorter one that has answered, they start with the second.
///
/// So a break that is over at once costs no more than the first of these.
const PAUSES: [Duration; 3] = [
    Duration::from_millis(2),
    Duration::from_millis(50),
    Duration::from_millis(200),
];

/// The later pauses while nobody listens at the address. An attempt then costs no server anything, and callers should
/// have an answer within half a second of the server's return.
const KNOCK: Duration = Duration::from_millis(300);

/// The time from one attempt to the next if a server accepts connections that do not last. Each attempt costs the
/// server a handshake.
const APART: Duration = Duration::from_secs(1);

/// For this many attempts, a server that has completed the handshake gets pauses no longer than the third one. The
/// server is there, and short leases have to outlast its trouble.
const GREETED: usize = 16;

/// How long a connection has to be open until it counts as lasting, and until it may be replaced.
const LASTED: Duration = Duration::from_secs(1);

/// Declares the connection over when its task is dropped, for whatever reason, so that no caller waits for it.
///
/// Without the task nobody reads replies, and requests in the desk would wait for their time-outs.
pub(super) struct Kept(pub(super) Arc<ConnectionShared>);

impl Drop for Kept {
    fn drop(&mut self) {
        self.0.status.send_modify(|status| status.is_over = true);
        self.0.end(no_connection());
    }
}

/// Connects, serves the connection until it breaks, and connects again, without end.
///
/// Ends only by being dropped.
///
/// `link` is a connection that the caller has made already, for the first round.
pub(super) async fn keep(kept: Kept, mut dialer: Dialer, mut link: Option<Link>) {
    let shared = &kept.0;
    // A server that hung answers an attempt under way as soon as it resumes, but nobody listens between two attempts.
    // So each attempt may take at least as long as the time between two.
    dialer.patience = dialer.patience.max(APART);
    let mut failed = 0;
    let mut connection_id: Option<ConnectionId> = None;
    // Whether there was a connection until this attempt.
    let mut was_open = false;
    // A connection that comes and goes is not logged each time.
    let told = Pace::default();
    loop {
        // Noted before the attempt: if another primary is named during it, the pause below ends at once.
        let mut place = dialer.place();
        let began = BootInstant::now();
        let dialled = match link.take() {
            Some(link) => Ok(link),
            None => dialer.redial(connection_id.as_ref()).await,
        };
        let (opened, greeted) = (BootInstant::now(), dialled.is_ok());
        let error = match dialled {
            Ok(link) => {
                was_open = true;
                shared.log_connected(&link.place, &told);
                let here = place.insert(link.place.clone());
                connection_id.clone_from(&link.connection_id);
                tokio::select! {
                    // The other branch ends a connection to a former primary. That one still answers, but what it
                    // grants is lost.
                    error = shared.serve(link, &dialer) => error,
                    () = dialer.leads_elsewhere(Some(here)) => left(),
                }
            }
            Err(error) => {
                if mem::take(&mut was_open) {
                    (shared.changed)(PreviousConnection::Unreachable);
                }
                error
            }
        };
        debug!(server = %dialer.server, %error, "no connection");
        // Read before `end` takes the error.
        let nobody = error.is_of_nobody_there();
        let ended = shared.end(error);
        // To end a connection, a server searches all that it has. If ten thousand clients come back at the same time,
        // it has no time to search for connections that have left nothing to carry out.
        if ended.is_settled {
            connection_id = None;
        }
        if opened.until(BootInstant::now()) >= LASTED {
            failed = 0;
        } else if ended.has_answered {
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
            // Clients that lost a server at the same time should not come back to it at the same time.
            () = sleep(pause + pause.mul_f64(fastrand::f64() / 4.0)) => {}
            () = dialer.leads_elsewhere(place.as_deref()) => failed = 0,
        }
    }
}

impl ConnectionShared {
    fn log_connected(&self, place: &str, told: &Pace) {
        // The first connection is no news: the caller of `build` learns of it anyway.
        let is_news = self.status.borrow().epoch > 0;
        match is_news.then(|| told.tell()).flatten() {
            Some(untold) => info!(target: "redlatch", server = %place, untold, "reconnected"),
            None => debug!(target: "redlatch", server = %place, "connected"),
        }
    }

    /// Reads and writes until the connection breaks, and returns why it did.
    ///
    /// The connection is announced in this order: its desk, its status, then [`PreviousConnection::Reconnected`], on which
    /// holds are checked.
    async fn serve(&self, link: Link, dialer: &Dialer) -> Error {
        let Link {
            socket, place, due, ..
        } = link;
        // The desk comes before the status, so that a caller that waits until the connection is open finds it.
        *self.lock() = Desk::new(socket.clone());
        self.status.send_modify(|status| {
            *status = Status {
                epoch: status.epoch + 1,
                is_open: true,
                ..Status::default()
            };
        });
        let epoch = self.status.borrow().epoch;
        let _open = OpenConnection::new(&*self.meter, epoch > 1);
        if epoch > 1 {
            (self.changed)(PreviousConnection::Reconnected);
        }
        // Whichever half fails first ends both.
        let broken = tokio::select! {
            broken = self.read(&*socket) => broken,
            broken = self.write(&*socket) => broken,
            () = self.outlived(epoch) => return replaced(),
            never = dialer.stay_logged_in(&place, due, self) => match never {},
        };
        let Err(error) = broken;
        Error::new(ErrorKind::Backend, format!("the connection broke: {error}")).caused_by(error)
    }

    /// Waits until a caller asks for another connection in place of this one, and until this one is [`LASTED`] old.
    ///
    /// A request that names an earlier connection has no effect on this one.
    async fn outlived(&self, epoch: u64) {
        sleep(LASTED).await;
        let mut unwanted = self.unwanted.subscribe();
        unwanted.wait_for(|unwanted| *unwanted >= epoch).await.ok();
    }

    /// Reads replies and gives each to its caller, until the connection breaks.
    ///
    /// The desk is locked once for each reply, only to find its caller.
    async fn read(&self, socket: &dyn Socket) -> Result<std::convert::Infallible, io::Error> {
        let mut arrived = BytesMut::with_capacity(INBOX);
        loop {
            match socket.read(&mut arrived).await? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                bytes => self.meter.received(bytes),
            }
            loop {
                let (said, garbled) = match resp::take(&mut arrived) {
                    Ok(None) => break,
                    Ok(Some(said)) => (Ok(said), None),
                    Err(garbled) => (Err(Broken::Garbled(unread(&garbled))), Some(garbled)),
                };
                // Garbled bytes take the place of the next reply, so its caller is told.
                let asked = self.lock().replied(said.as_ref().ok());
                let unasked = || io::Error::other("the server sent a reply that nobody asked for");
                let asked = asked.ok_or_else(unasked)?;
                if let Some(caller) = asked.caller {
                    self.meter.replied(asked.since);
                    caller.send(said).ok();
                }
                if let Some(garbled) = garbled {
                    return Err(io::Error::other(garbled));
                }
            }
            // The space doubles while a long reply arrives, so the reply is parsed about as often as the space has
            // doubled. Afterwards the space is freed.
            match arrived.is_empty() && arrived.capacity() > 4 * INBOX {
                true => arrived = BytesMut::with_capacity(INBOX),
                false => arrived.reserve(arrived.len().max(INBOX)),
            }
        }
    }

    /// Writes the bytes that callers left in the desk, until the connection breaks.
    ///
    /// Callers write too, as far as the socket takes the bytes at once.
    async fn write(&self, socket: &dyn Socket) -> Result<std::convert::Infallible, io::Error> {
        loop {
            self.unsent.notified().await;
            // Tasks that are ready to send go first, and one write takes all that has gathered. Otherwise this task
            // would run directly after the one that woke it, and each request would be written by itself.
            yield_now().await;
            loop {
                socket.writable().await?;
                let mut desk = self.lock();
                // Written under the mutex: callers write to the same socket, and the bytes have to keep their order.
                desk.write(socket)?;
                if !desk.has_unsent() {
                    break;
                }
            }
        }
    }

    /// Ends the desk of a connection that has ended, and tells the callers that wait for a reply.
    ///
    /// The desk goes first, so that no request is added to a connection that has ended.
    fn end(&self, error: Error) -> Ended {
        let desk = mem::take(&mut *self.lock());
        self.status.send_modify(|status| {
            status.is_open = false;
            status.failure = Some(error.clone());
        });
        desk.end(&error)
    }
}

impl Living for ConnectionShared {
    async fn log_in(&self, auth: WireRequest) -> Option<Said> {
        self.send(&auth).ok()?.await.ok()?.ok()
    }
}

/// Builds the error of a reply that cannot be read. The start of every later reply is lost with it, so the connection
/// is given up.
fn unread(garbled: &resp::Garbled) -> Error {
    let text = format!("{garbled}: is it a Redis or Valkey server? The connection was closed");
    Error::new(ErrorKind::Protocol, text).unanswered()
}

/// Builds the error of a connection that was dropped because it led to a former primary.
pub(super) fn left() -> Error {
    Error::new(
        ErrorKind::Backend,
        "the connection was closed: the sentinels name another primary",
    )
    .passing()
}

/// Builds the error of a connection that was dropped because a caller asked for another one.
fn replaced() -> Error {
    Error::new(
        ErrorKind::Backend,
        "the connection was replaced: the server was silent, or is no longer a primary",
    )
    .passing()
}
