//! The client's side of one connection.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::Server;

/// A connection that ends when it is dropped. What is written is carried out before the write returns.
#[derive(Debug)]
pub struct Stream {
    server: Server,
    id: u64,
}

impl Stream {
    pub(crate) fn open(server: &Server) -> io::Result<Self> {
        let id = server.with(|state| state.accept())?;
        let server = server.clone();
        Ok(Self { server, id })
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.server.with(|state| state.leave(self.id));
    }
}

impl AsyncWrite for Stream {
    /// Writes all the bytes. Fails if the connection has ended.
    fn poll_write(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = self.server.with(|state| state.write(self.id, bytes));
        Poll::Ready(written.map(|()| bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    /// Writes nothing more. The other direction goes on to the end of what is owed.
    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.server.with(|state| state.finish(self.id));
        Poll::Ready(Ok(()))
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let Self { server, id } = &*self;
        // The waker that was replaced is dropped outside of the mutex: what it belongs to may have a connection.
        let (bytes, _replaced) = server.with(|state| state.read(*id, buffer.remaining(), context));
        bytes.map(|bytes| {
            buffer.put_slice(&bytes);
            Ok(())
        })
    }
}
