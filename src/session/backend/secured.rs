//! A connection over TLS, which can be written to from every task without waiting, as a plain socket can.
//!
//! The session of rustls does no I/O: it encrypts what it is given, and decrypts what has arrived. Here it is behind a
//! mutex, and whoever has something to send encrypts it and gives it to the socket at once, also from a `Drop`.
//!
//! # Invariants
//!
//! 1. Under the mutex nothing waits: the socket takes and gives what it can at once. Only the reader and
//!    [`writable`](Secured::writable) wait, each for its own direction, so neither takes the other's wake-up.
//! 2. At most one record of text is encrypted and not written as a whole. A server can read nothing of a record before
//!    it has all of it, so text whose record was not written as a whole was not sent.

use std::io::{self, Read, Write};
use std::mem;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::ClientConnection;

/// The most text in one record, by the protocol.
const RECORD: usize = 1 << 14;
/// The most text that is handed to the reader at a time.
const PIECE: usize = 4 << 10;

/// A socket with its TLS session, once the handshake is over.
pub(super) struct Secured {
    stream: TcpStream,
    session: Mutex<Session>,
}

struct Session {
    tls: ClientConnection,
    /// How much text is in the record that was encrypted and not written as a whole.
    ///
    /// The caller still has that text, and passes it again.
    begun: usize,
}

/// The half that is read, by one task.
pub(super) struct SecuredReader(pub(super) Arc<Secured>);

/// The socket, for a session that reads and writes without waiting.
struct AtOnce<'a>(&'a TcpStream);

impl Secured {
    pub(super) fn new(stream: TlsStream<TcpStream>) -> Self {
        let (stream, tls) = stream.into_inner();
        Self {
            stream,
            session: Mutex::new(Session { tls, begun: 0 }),
        }
    }

    /// Encrypts as many bytes as the system takes now, writes them, and returns how many; `WouldBlock` if none.
    ///
    /// The bytes that it has not taken come first in the next call.
    pub(super) fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        let mut session = self.lock();
        let mut taken = 0;
        while let Some(rest) = bytes.get(taken..).filter(|rest| !rest.is_empty()) {
            match session.write_record(&self.stream, rest) {
                Ok(written) => taken += written,
                // An error comes up again in the next call.
                Err(_) if taken > 0 => break,
                Err(error) => return Err(error),
            }
        }
        Ok(taken)
    }

    /// Waits until the system may take more.
    pub(super) async fn writable(&self) -> io::Result<()> {
        self.stream.writable().await
    }

    fn lock(&self) -> MutexGuard<'_, Session> {
        self.session.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Session {
    /// Writes the record that was begun, or else one with the first bytes, and returns how much text is in it.
    fn write_record(&mut self, stream: &TcpStream, bytes: &[u8]) -> io::Result<usize> {
        if self.begun == 0 {
            let text = &bytes[..bytes.len().min(RECORD)];
            self.begun = self.tls.writer().write(text)?;
        }
        self.flush(stream)?;
        match mem::take(&mut self.begun) {
            0 => Err(io::ErrorKind::WriteZero.into()),
            written => Ok(written),
        }
    }

    /// Writes what is encrypted. Fails with `WouldBlock` if something is left.
    fn flush(&mut self, stream: &TcpStream) -> io::Result<()> {
        while self.tls.wants_write() {
            if self.tls.write_tls(&mut AtOnce(stream))? == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
        }
        Ok(())
    }

    /// Decrypts what has arrived by now; `WouldBlock` if nothing has.
    fn receive(&mut self, stream: &TcpStream) -> io::Result<()> {
        self.tls.read_tls(&mut AtOnce(stream))?;
        self.tls.process_new_packets().map(drop).map_err(|error| {
            // Tells the server why, if that is possible now.
            self.flush(stream).ok();
            io::Error::new(io::ErrorKind::InvalidData, error)
        })
    }
}

impl AsyncRead for SecuredReader {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let Secured { stream, .. } = &*self.0;
        loop {
            let mut session = self.0.lock();
            let piece = buffer.remaining().min(PIECE);
            let read = session
                .tls
                .reader()
                .read(buffer.initialize_unfilled_to(piece));
            match read {
                Ok(read) => {
                    buffer.advance(read);
                    return Poll::Ready(Ok(()));
                }
                Err(error) if error.kind() != io::ErrorKind::WouldBlock => {
                    return Poll::Ready(Err(error));
                }
                Err(_) => {}
            }
            ready!(stream.poll_read_ready(context))?;
            match session.receive(stream) {
                Err(error) if error.kind() != io::ErrorKind::WouldBlock => {
                    return Poll::Ready(Err(error));
                }
                _ => {}
            }
        }
    }
}

impl Read for AtOnce<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.0.try_read(bytes)
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
