//! The client's side of one connection: a half that reads, and one that writes.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, ReadBuf};

use super::MemoryServer;

/// The half that reads.
pub(crate) struct MemoryReader(Arc<End>);

/// The half that writes. All that is written is taken, and carried out before the call returns.
pub(crate) struct MemoryWriter(Arc<End>);

/// A connection that ends as soon as its client has dropped both halves.
struct End {
    server: MemoryServer,
    id: u64,
}

/// Connects to a server.
pub(super) fn open(server: &MemoryServer) -> io::Result<(MemoryReader, MemoryWriter)> {
    let id = server.with(|state| state.accept())?;
    let server = server.clone();
    let end = Arc::new(End { server, id });
    Ok((MemoryReader(end.clone()), MemoryWriter(end)))
}

impl Drop for End {
    fn drop(&mut self) {
        self.server.with(|state| state.leave(self.id));
    }
}

impl MemoryWriter {
    /// Writes all the bytes. Fails if the connection has ended.
    pub(crate) fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        let End { server, id } = &*self.0;
        server.with(|state| state.write(*id, bytes))?;
        Ok(bytes.len())
    }

    /// Writes nothing more. The other half reads to the end of what is owed, and then that the connection has ended.
    pub(super) fn finish(&self) {
        let End { server, id } = &*self.0;
        server.with(|state| state.finish(*id));
    }
}

impl AsyncRead for MemoryReader {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let End { server, id } = &*self.0;
        // The waker that was replaced is dropped outside of the mutex: what it belongs to may have a connection.
        let (bytes, _replaced) = server.with(|state| state.read(*id, buffer.remaining(), context));
        bytes.map(|bytes| {
            buffer.put_slice(&bytes);
            Ok(())
        })
    }
}
