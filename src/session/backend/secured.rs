//! A connection over TLS that any task can write to without waiting, like a plain socket.
//!
//! The session of rustls does no I/O: it encrypts what it is given, and decrypts what has arrived. Here it is behind a
//! mutex. A sender encrypts its bytes and gives them to the socket at once, even from a `Drop`.
//!
//! # Invariants
//!
//! 1. Nothing waits under the mutex: the socket takes and gives what it can at once.
//! 2. At most one encrypted record is written only in part. A server can read no text of a record before it has all of
//!    it, so the text of that record was not sent.

use std::future::poll_fn;
use std::io::{self, BufRead, Write};
use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};

use bytes::{Buf, BytesMut};
use rustls::ClientConnection;

use super::socket::Socket;

/// The most text in one record, by the protocol.
const RECORD: usize = 1 << 14;

/// A socket with its TLS session, once the handshake is over.
pub(super) struct Secured {
    socket: Arc<dyn Socket>,
    session: Mutex<TlsSession>,
}

struct TlsSession {
    tls: ClientConnection,
    /// How much text is in the record that was written only in part.
    ///
    /// The caller still has that text, and passes it again.
    begun: usize,
    /// Bytes that have arrived and are not decrypted yet.
    arrived: BytesMut,
}

/// The socket, for a session that writes without waiting.
struct AtOnce<'a>(&'a dyn Socket);

impl Secured {
    /// Sets up TLS: carries out the handshake.
    pub(super) async fn open(socket: Arc<dyn Socket>, tls: ClientConnection) -> io::Result<Self> {
        let session = TlsSession {
            tls,
            begun: 0,
            arrived: BytesMut::with_capacity(RECORD),
        };
        let secured = Self {
            socket,
            session: Mutex::new(session),
        };
        poll_fn(|context| secured.lock().shake_hands(&*secured.socket, context)).await?;
        Ok(secured)
    }

    fn lock(&self) -> MutexGuard<'_, TlsSession> {
        self.session.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Socket for Secured {
    /// Encrypts and writes as many bytes as the socket takes now, and returns how many; `WouldBlock` if none.
    ///
    /// The next call has to begin with the bytes that were not taken.
    fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        let mut session = self.lock();
        let mut taken = 0;
        while let Some(rest) = bytes.get(taken..).filter(|rest| !rest.is_empty()) {
            match session.write_record(&*self.socket, rest) {
                Ok(written) => taken += written,
                // An error comes up again in the next call.
                Err(_) if taken > 0 => break,
                Err(error) => return Err(error),
            }
        }
        Ok(taken)
    }

    fn poll_writable(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.socket.poll_writable(context)
    }

    fn poll_read(&self, context: &mut Context<'_>, into: &mut BytesMut) -> Poll<io::Result<usize>> {
        let mut session = self.lock();
        loop {
            let mut text = session.tls.reader();
            match text.fill_buf() {
                Ok(piece) => {
                    let length = piece.len();
                    into.extend_from_slice(piece);
                    text.consume(length);
                    return Poll::Ready(Ok(length));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
            ready!(session.poll_receive(&*self.socket, context))?;
        }
    }
}

impl TlsSession {
    /// Writes and reads until both sides have agreed on everything.
    fn shake_hands(
        &mut self,
        socket: &dyn Socket,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            while let Err(error) = self.flush(socket) {
                match error.kind() {
                    io::ErrorKind::WouldBlock => ready!(socket.poll_writable(context))?,
                    _ => return Poll::Ready(Err(error)),
                }
            }
            if !self.tls.is_handshaking() {
                return Poll::Ready(Ok(()));
            }
            if ready!(self.poll_receive(socket, context))? == 0 {
                return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into()));
            }
        }
    }

    /// Writes the rest of the record that was begun, or else a new record with the first bytes. Returns how much text
    /// is in it.
    fn write_record(&mut self, socket: &dyn Socket, bytes: &[u8]) -> io::Result<usize> {
        if self.begun == 0 {
            let text = &bytes[..bytes.len().min(RECORD)];
            self.begun = self.tls.writer().write(text)?;
        }
        self.flush(socket)?;
        match mem::take(&mut self.begun) {
            0 => Err(io::ErrorKind::WriteZero.into()),
            written => Ok(written),
        }
    }

    /// Writes what is encrypted. Fails with `WouldBlock` if something is left.
    fn flush(&mut self, socket: &dyn Socket) -> io::Result<()> {
        while self.tls.wants_write() {
            if self.tls.write_tls(&mut AtOnce(socket))? == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
        }
        Ok(())
    }

    /// Waits for bytes, decrypts them, and returns how many; 0 at the end.
    fn poll_receive(
        &mut self,
        socket: &dyn Socket,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        if self.arrived.is_empty() {
            ready!(socket.poll_read(context, &mut self.arrived))?;
        }
        // Called at the end too: the session tells a clean close from a truncation.
        let taken = self.tls.read_tls(&mut (&mut self.arrived).reader())?;
        if taken == 0 {
            // Nothing counts after the close that the server has announced.
            self.arrived.clear();
        }
        let processed = self.tls.process_new_packets().map_err(|error| {
            // Tells the server why, unless a request would get there with it that counts as unsent.
            if self.begun == 0 {
                self.flush(socket).ok();
            }
            io::Error::new(io::ErrorKind::InvalidData, error)
        });
        Poll::Ready(processed.map(|_| taken))
    }
}

impl Write for AtOnce<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.try_write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
