use std::io;
use std::sync::Arc;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::select;
use tokio::sync::watch;

use crate::line::Line;
use crate::parcel::Caught;
use crate::proxy::Faults;
use crate::trap::{Fate, Traps};

const CHUNK: usize = 64 * 1024;

/// One connection through the proxy, under the faults of the moment.
pub(crate) struct Link {
    pub(crate) client: TcpStream,
    pub(crate) server: TcpStream,
    pub(crate) faults: watch::Receiver<Faults>,
    pub(crate) traps: Arc<Traps>,
}

enum Event {
    Request(Vec<u8>),
    Reply(Vec<u8>),
    RequestDue(Vec<u8>),
    ReplyDue(Vec<u8>),
    FaultsChanged,
}

impl Link {
    /// Forwards in both directions until the connection ends or is cut.
    pub(crate) async fn relay(mut self) -> io::Result<()> {
        self.client.set_nodelay(true)?;
        self.server.set_nodelay(true)?;
        let mut requests = Line::default();
        let mut replies = Line::default();
        let (mut cut_reply, mut cut_after) = (false, false);
        let mut left = self.faults.borrow().reset;
        loop {
            let held = self.faults.borrow_and_update().hold_replies;
            let event = select! {
                chunk = read(&mut self.client), if !requests.has_ended() => Event::Request(chunk),
                chunk = read(&mut self.server), if !replies.has_ended() => Event::Reply(chunk),
                chunk = requests.pop() => Event::RequestDue(chunk),
                chunk = replies.pop(), if !held => Event::ReplyDue(chunk),
                _ = self.faults.changed() => Event::FaultsChanged,
            };
            // The faults of now: they may have changed during the wait.
            let Faults {
                black_hole,
                delay,
                kills,
                ..
            } = *self.faults.borrow();
            match event {
                Event::FaultsChanged => {}
                _ if black_hole => return self.fall_silent().await,
                Event::Request(chunk) if kills => requests.push(chunk, delay),
                Event::Request(chunk) => requests.push(without_kills(chunk), delay),
                Event::Reply(_) if cut_reply => return finish(&mut self.server).await.map(drop),
                Event::Reply(chunk) => replies.push(chunk, delay),
                Event::RequestDue(end) if end.is_empty() => {
                    return finish(&mut self.server).await.map(drop);
                }
                Event::RequestDue(chunk) => match self.traps.spring(&chunk) {
                    None => {
                        self.server.write_all(within(&mut left, &chunk)).await?;
                    }
                    Some(Fate::CutReply) => {
                        self.server.write_all(&chunk).await?;
                        cut_reply = true;
                    }
                    Some(Fate::CutAfterReply) => {
                        self.server.write_all(&chunk).await?;
                        cut_after = true;
                    }
                    Some(Fate::Wait(waiting)) => {
                        waiting.opened().await;
                        self.server.write_all(&chunk).await?;
                    }
                    Some(Fate::Hold(parcel)) => {
                        // The proxy's caller may have dropped the parcel by now.
                        let _ = parcel.send(Caught {
                            request: chunk,
                            server: self.server,
                        });
                        return Ok(());
                    }
                },
                Event::ReplyDue(end) if end.is_empty() => return self.client.shutdown().await,
                Event::ReplyDue(chunk) => {
                    self.client.write_all(within(&mut left, &chunk)).await?;
                    if cut_after {
                        self.client.shutdown().await?;
                        return finish(&mut self.server).await.map(drop);
                    }
                }
            }
            if left == Some(0) {
                // Closed so, a connection ends by a reset.
                self.client.set_zero_linger()?;
                return self.server.set_zero_linger();
            }
        }
    }

    /// What lost a byte can only be half open: each side stays connected, and
    /// hears nothing, not even the end of the other.
    async fn fall_silent(mut self) -> io::Result<()> {
        let (client, server) = tokio::join!(discard(&mut self.client), discard(&mut self.server));
        client.and(server)
    }
}

/// The same with no command that ends a connection.
fn without_kills(mut chunk: Vec<u8>) -> Vec<u8> {
    const KILL: &[u8] = b"CLIENT\r\n$4\r\nKILL";
    if let Some(at) = chunk.windows(KILL.len()).position(|word| word == KILL) {
        chunk[at + KILL.len() - 4..][..4].copy_from_slice(b"NONE");
    }
    chunk
}

/// What of a chunk may pass if so many bytes are left.
fn within<'a>(left: &mut Option<usize>, chunk: &'a [u8]) -> &'a [u8] {
    let Some(left) = left else {
        return chunk;
    };
    let (passes, _) = chunk.split_at(chunk.len().min(*left));
    *left -= passes.len();
    passes
}

/// What came, or nothing at the end of the stream, be it a reset.
async fn read(stream: &mut TcpStream) -> Vec<u8> {
    let mut chunk = Vec::with_capacity(CHUNK);
    match stream.read_buf(&mut chunk).await {
        Ok(_) => chunk,
        Err(_) => Vec::new(),
    }
}

/// Reads to the end of the stream and keeps nothing.
pub(crate) async fn discard(stream: &mut TcpStream) -> io::Result<()> {
    tokio::io::copy(stream, &mut tokio::io::sink())
        .await
        .map(drop)
}

/// Ends the stream to the server and reads what is left of its own.
///
/// The server runs all that it has received before it closes. To close while
/// there is something unread would reset the connection, and could take from
/// the server what it has not yet run.
pub(crate) async fn finish(server: &mut TcpStream) -> io::Result<Vec<u8>> {
    server.shutdown().await?;
    let mut answer = Vec::new();
    server.read_to_end(&mut answer).await?;
    Ok(answer)
}
