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

/// One connection through the proxy, subject to the faults that are switched on.
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
            // Read again: the faults may have changed during the wait.
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
                // With zero linger, closing a connection resets it.
                self.client.set_zero_linger()?;
                return self.server.set_zero_linger();
            }
        }
    }

    /// Discards everything from both sides. A connection that lost a byte can only be half open: each side stays
    /// connected and receives nothing, not even the end of the other side.
    async fn fall_silent(mut self) -> io::Result<()> {
        let (client, server) = tokio::join!(discard(&mut self.client), discard(&mut self.server));
        client.and(server)
    }
}

/// Returns the chunk with its first `CLIENT KILL` turned into a subcommand that does not exist.
fn without_kills(mut chunk: Vec<u8>) -> Vec<u8> {
    const KILL: &[u8] = b"CLIENT\r\n$4\r\nKILL";
    if let Some(at) = chunk.windows(KILL.len()).position(|word| word == KILL) {
        chunk[at + KILL.len() - 4..][..4].copy_from_slice(b"NONE");
    }
    chunk
}

/// Returns the part of a chunk that may pass, and deducts it from `left`. `None` is no limit.
fn within<'a>(left: &mut Option<usize>, chunk: &'a [u8]) -> &'a [u8] {
    let Some(left) = left else {
        return chunk;
    };
    let (passes, _) = chunk.split_at(chunk.len().min(*left));
    *left -= passes.len();
    passes
}

/// Returns what arrived, or an empty chunk at the end of the stream, which may also be a reset.
async fn read(stream: &mut TcpStream) -> Vec<u8> {
    let mut chunk = Vec::with_capacity(CHUNK);
    match stream.read_buf(&mut chunk).await {
        Ok(_) => chunk,
        Err(_) => Vec::new(),
    }
}

/// Reads to the end of the stream and discards what it reads.
pub(crate) async fn discard(stream: &mut TcpStream) -> io::Result<()> {
    tokio::io::copy(stream, &mut tokio::io::sink())
        .await
        .map(drop)
}

/// Ends the stream to the server and returns what is left of the server's own stream.
///
/// The server runs everything that it has received before it closes. Closing the connection while something is unread
/// would reset it, and the server could lose requests that it has not run yet.
pub(crate) async fn finish(server: &mut TcpStream) -> io::Result<Vec<u8>> {
    server.shutdown().await?;
    let mut answer = Vec::new();
    server.read_to_end(&mut answer).await?;
    Ok(answer)
}
