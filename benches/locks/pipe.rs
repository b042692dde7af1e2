//! The bare connection: one buffer, a codec, and nothing around it.
//!
//! No timeout, no reconnect, no bounds. The time that the product takes beyond this is everything that it adds.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fred::bytes::BytesMut;
use fred::interfaces::Resp3Frame;
use fred::types::Value;
use redis_protocol::resp3::decode::complete::decode_bytes_mut;
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{Notify, oneshot};
use tokio::task::yield_now;
use tokio_util::task::AbortOnDropHandle;

use crate::Failure;

/// One connection, shared by all its callers.
#[derive(Clone)]
pub(crate) struct Pipe {
    shared: Arc<Shared>,
    _kept: Arc<[AbortOnDropHandle<()>; 2]>,
}

struct Shared {
    socket: OwnedWriteHalf,
    desk: Mutex<Desk>,
    unsent: Notify,
}

#[derive(Default)]
struct Desk {
    unsent: Vec<u8>,
    /// The callers that wait for replies, in the order of their requests.
    waiting: VecDeque<oneshot::Sender<Resp3Frame>>,
}

impl Pipe {
    pub(crate) async fn connect(url: &str) -> Result<Self, Failure> {
        let place = url.strip_prefix("redis://").ok_or("a plain URL")?;
        let socket = TcpStream::connect(place).await?;
        socket.set_nodelay(true)?;
        let (replies, socket) = socket.into_split();
        let shared = Arc::new(Shared {
            socket,
            desk: Mutex::default(),
            unsent: Notify::new(),
        });
        let kept = [
            tokio::spawn(read(shared.clone(), replies)),
            tokio::spawn(flush(shared.clone())),
        ];
        let pipe = Self {
            shared,
            _kept: Arc::new(kept.map(AbortOnDropHandle::new)),
        };
        pipe.ask("HELLO", &["3".into()]).await?;
        Ok(pipe)
    }

    pub(crate) async fn ask(&self, command: &str, words: &[Value]) -> Result<Resp3Frame, Failure> {
        Ok(self.shared.send(command, words)?.await?)
    }
}

impl Shared {
    /// Writes the request at once if no other is unsent or unanswered. Otherwise leaves it to be written with others.
    fn send(&self, command: &str, words: &[Value]) -> io::Result<oneshot::Receiver<Resp3Frame>> {
        let (caller, reply) = oneshot::channel();
        let mut desk = self.lock();
        let is_idle = desk.waiting.is_empty() && desk.unsent.is_empty();
        encode(&mut desk.unsent, command, words)?;
        desk.waiting.push_back(caller);
        if is_idle && let Ok(taken) = self.socket.try_write(&desk.unsent) {
            desk.unsent.drain(..taken);
        }
        if !desk.unsent.is_empty() {
            self.unsent.notify_one();
        }
        Ok(reply)
    }

    fn lock(&self) -> MutexGuard<'_, Desk> {
        self.desk.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn encode(buffer: &mut Vec<u8>, command: &str, words: &[Value]) -> io::Result<()> {
    write!(buffer, "*{}\r\n", words.len() + 1)?;
    let words = words.iter().filter_map(Value::as_bytes);
    for word in [command.as_bytes()].into_iter().chain(words) {
        write!(buffer, "${}\r\n", word.len())?;
        buffer.extend_from_slice(word);
        buffer.extend_from_slice(b"\r\n");
    }
    Ok(())
}

/// Reads replies until the connection ends. Then drops the senders, which fails the calls that still wait.
async fn read(shared: Arc<Shared>, mut replies: OwnedReadHalf) {
    let mut arrived = BytesMut::with_capacity(16 << 10);
    while let Ok(1..) = replies.read_buf(&mut arrived).await {
        let mut desk = shared.lock();
        while let Ok(Some((frame, ..))) = decode_bytes_mut(&mut arrived) {
            if let Some(caller) = desk.waiting.pop_front() {
                // Fails if nobody waits for the reply any more.
                drop(caller.send(frame));
            }
        }
    }
    shared.lock().waiting.clear();
}

/// Writes gathered requests. Ends with the connection too.
async fn flush(shared: Arc<Shared>) {
    loop {
        shared.unsent.notified().await;
        // Lets other tasks add what they are ready to send, so that it is written together.
        yield_now().await;
        while shared.socket.writable().await.is_ok() {
            let mut desk = shared.lock();
            match shared.socket.try_write(&desk.unsent) {
                Ok(taken) => drop(desk.unsent.drain(..taken)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(_) => return,
            }
            if desk.unsent.is_empty() {
                break;
            }
        }
    }
}
