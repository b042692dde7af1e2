//! The task that keeps a connection for commands: connects, serves it, and connects again.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use tokio::io::AsyncReadExt;
#[cfg(feature = "tls")]
use tokio::io::AsyncWriteExt;
use tokio::task::yield_now;
use tokio::time::sleep;
use tracing::{debug, info};

use super::connection::{Shared, Status};
use super::desk::{Broken, Desk, no_connection};
use super::dial::Dialer;
use super::link::{ConnectionId, Link, Writer};
use super::resp;
use crate::clock::BootInstant;
use crate::error::{Error, ErrorKind};
use crate::session::pace::Pace;

/// Pauses before the first attempts to connect again. They start over after a connection that has lasted, and with the
/// second pause after a shorter one that has answered.
const PAUSES: [Duration; 3] = [
    Duration::from_millis(2),
    Duration::from_millis(50),
    Duration::from_millis(200),
];

/// The later pauses where nobody listens. An attempt costs no server anything there, and callers are to have their
/// answer within half a second of the server's return.
const KNOCK: Duration = Duration::from_millis(300);

/// The time from one attempt to the next where a server accepts and no lasting connection comes of it: each attempt
/// costs the server a handshake.
const APART: Duration = Duration::from_secs(1);

/// For this many attempts the pause grows no longer than the third one if the server has greeted: it is there, and
/// short leases have to outlast its trouble.
const GREETED: usize = 16;

/// How long a connection has to be open to count as one that has lasted, and until it may be replaced.
const LASTED: Duration = Duration::from_secs(1);

/// The space in bytes that is reserved for replies before they arrive.
const INBOX: usize = 16 << 10;

/// Declares the connection over when its task is dropped, for whatever reason, so that no caller waits for it.
pub(super) struct Kept(pub(super) Arc<Shared>);

impl Drop for Kept {
    fn drop(&mut self) {
        self.0.status.send_modify(|status| status.is_over = true);
        self.0.end(no_connection());
    }
}

/// Connects, serves the connection until it breaks, and connects again, without end.
pub(super) async fn keep(kept: Kept, mut dialer: Dialer, mut link: Option<Link>) {
    let shared = &kept.0;
    // A server that hangs answers an attempt that is under way as soon as it resumes, but nobody listens to it between
    // two attempts. So each attempt may take at least as long as the time between two.
    dialer.patience = dialer.patience.max(APART);
    let mut failed = 0;
    let mut connection_id: Option<ConnectionId> = None;
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
        if opened.until(BootInstant::now()) >= LASTED {
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
            // Clients that lost a server at the same time should not come back to it at the same time.
            () = sleep(pause + pause.mul_f64(fastrand::f64() / 4.0)) => {}
            () = dialer.leads_elsewhere(place.as_deref()) => failed = 0,
        }
    }
}

impl Shared {
    /// Reads and writes until the connection breaks, and returns why it did.
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
        // The desk comes before the status, so that a caller that waits until the connection is open finds it.
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

    /// Waits until another connection is asked for in place of this one, and until this one is [`LASTED`] old.
    async fn outlived(&self, epoch: u64) {
        sleep(LASTED).await;
        let mut unwanted = self.unwanted.subscribe();
        unwanted.wait_for(|unwanted| *unwanted >= epoch).await.ok();
    }

    /// Reads replies and gives each to its caller, until the connection breaks.
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
                let unasked = || io::Error::other("the server sent a reply that nobody asked for");
                if let Some(caller) = asked.ok_or_else(unasked)? {
                    caller.send(said).ok();
                }
                if let Some(garbled) = garbled {
                    return Err(io::Error::other(garbled));
                }
            }
            // The space doubles while a long reply arrives, so the reply is measured about as often as it has doubled.
            // The space is given up afterwards.
            match arrived.is_empty() && arrived.capacity() > 4 * INBOX {
                true => arrived = BytesMut::with_capacity(INBOX),
                false => arrived.reserve(arrived.len().max(INBOX)),
            }
        }
    }

    /// Writes the bytes that callers left in the desk, until the connection breaks.
    async fn write(&self, mut writer: Writer) -> Result<std::convert::Infallible, io::Error> {
        loop {
            self.unsent.notified().await;
            // Tasks that are ready to send do so first, and all that has gathered is written at once. Otherwise this
            // task would run directly after the one that woke it, ahead of all others, and each request would be
            // written by itself.
            yield_now().await;
            match &mut writer {
                Writer::Open(socket) => loop {
                    socket.writable().await?;
                    let mut desk = self.lock();
                    // Under the mutex, since callers write to the same socket and the bytes have to keep their order.
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

    /// Takes note that the connection has ended, and tells the callers that wait for a reply. Returns whether any reply
    /// came before.
    fn end(&self, error: Error) -> bool {
        let desk = std::mem::take(&mut *self.lock());
        self.status.send_modify(|status| {
            status.is_open = false;
            status.failure = Some(error.clone());
        });
        desk.end(&error)
    }
}

/// Builds the error of a reply that cannot be read. The start of every later reply is lost with it, so the connection
/// is given up.
fn unread(garbled: &resp::Garbled) -> Error {
    let text = format!("{garbled}: is it a Redis or Valkey server? The connection was closed");
    Error::new(ErrorKind::Protocol, text).unanswered()
}

pub(super) fn left() -> Error {
    Error::new(
        ErrorKind::Backend,
        "the connection was closed: the sentinels name another primary",
    )
    .passing()
}

fn replaced() -> Error {
    Error::new(
        ErrorKind::Backend,
        "the connection was replaced: the server was silent, or is no longer a primary",
    )
    .passing()
}
