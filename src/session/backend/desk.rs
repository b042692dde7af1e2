//! The desk of one connection: its send buffer, and the queue of requests in flight with the callers that wait for the
//! replies.
//!
//! # Invariants
//!
//! 1. A request enters the buffer and the queue of requests in flight in one step. Replies come in the order of
//!    requests, so none can be taken for the reply to another request.
//! 2. A request that the socket did not take as a whole was not carried out, not even in part.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

use bytes::{Buf, BytesMut};
use tokio::sync::oneshot;
use tokio::time::error::Elapsed;

use super::resp::{Said, WireRequest};
use super::socket::Socket;
use crate::clock::BootInstant;
use crate::error::{Error, ErrorKind};
use crate::protocol::script::Script;

/// The most commands that may wait for their replies: more than a server answers within a time-out.
const MOST_WAITING: usize = 1 << 17;
/// The most bytes that may wait for the socket to take them.
const MOST_UNSENT: usize = 32 << 20;
/// The number of bytes that most networks carry in one packet.
const PACKET: usize = 1400;

/// Why a request brought no reply, and whether it may have run.
///
/// What the caller owes depends on this: a request that did not run leaves nothing to undo.
#[derive(Debug)]
pub(super) enum Broken {
    /// The request did not run.
    Unsent(Error),
    /// The connection broke after the request was sent: the request may have run.
    Cut(Error),
    /// No reply came in time: the request may have run, or may still run.
    TimedOut(Elapsed),
    /// The request was sent, but what came back is not a reply, or not one within the bounds.
    Garbled(Error),
}

/// The receiver of the reply to a request.
pub(super) type Reply = oneshot::Receiver<Result<Said, Broken>>;

/// The send buffer and the requests in flight of one connection. Without a connection, takes no requests.
#[derive(Default)]
pub(super) struct Desk {
    /// What is needed to send. `None` without a connection.
    open: Option<Open>,
    /// Bytes that the socket has not taken so far.
    ///
    /// The writing task sleeps while it is empty.
    unsent: BytesMut,
    /// One entry for each reply that is still to come, in the order of the requests.
    waiting: VecDeque<PendingReply>,
    /// Counts of the bytes of this connection: those given to the desk, and those that the socket has taken. A request
    /// was sent if its end is not beyond `taken`.
    given: u64,
    /// Never more than `given`.
    taken: u64,
    /// Whether a reply has come on this connection.
    has_answered: bool,
    /// When a reply last came while others were still to come.
    heard: Option<BootInstant>,
    /// Whether something came that cannot be read.
    is_garbled: bool,
    /// Scripts whose hashes the server will know when it reads the next request: it has answered calls of them on this
    /// connection, or their text is on its way.
    known: Vec<&'static Script>,
}

/// A connection that takes requests.
struct Open {
    socket: Arc<dyn Socket>,
    /// The process that connected. A forked child has a copy of the socket and of the desk, and must not use them.
    process: u32,
}

/// A reply that is still to come.
pub(super) struct PendingReply {
    /// Where its request ends, in the count of `given`.
    end: u64,
    /// When its request came in.
    pub(super) since: BootInstant,
    /// `None` for a command that only prepares the next one.
    pub(super) caller: Option<oneshot::Sender<Result<Said, Broken>>>,
    /// The script that the command runs. Once it is answered, the server is known to have the script.
    script: Option<&'static Script>,
}

/// What is known of a connection once it has ended.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ended {
    /// Whether a reply came on it.
    pub(super) has_answered: bool,
    /// Whether it was open and every request that it took was answered, so that the server has none of them unread.
    pub(super) is_settled: bool,
}

impl Broken {
    /// Returns `error` with this failure as its cause.
    pub(super) fn causes(self, error: Error) -> Error {
        match self {
            Self::Unsent(cause) | Self::Cut(cause) | Self::Garbled(cause) => error.caused_by(cause),
            Self::TimedOut(late) => error.caused_by(late),
        }
    }
}

impl Desk {
    /// Creates the desk of a new connection.
    pub(super) fn new(socket: Arc<dyn Socket>) -> Self {
        Self {
            open: Some(Open {
                socket,
                process: std::process::id(),
            }),
            ..Self::default()
        }
    }

    /// Takes a request and returns the receiver of its reply. If nothing else is in flight, or if the buffered bytes
    /// fill a packet, they go to the socket at once: the server works on them while the callers go on. Otherwise the
    /// writing task sends them with whatever else has gathered.
    ///
    /// Fails if there is no connection or no room; the request is not sent then, now or later.
    pub(super) fn send(&mut self, request: &WireRequest) -> Result<Reply, Error> {
        let is_idle = self.waiting.is_empty() && self.unsent.is_empty();
        let is_due = is_idle || self.unsent.len() + request.bytes().len() >= PACKET;
        self.take(request, is_due)
    }

    /// Takes a request from a caller that cannot wait, and gives the socket what it takes at once. The runtime may end
    /// now, and with it the task that would write later.
    ///
    /// A request behind others that the socket has not taken goes out with them, or not at all.
    pub(super) fn post(&mut self, request: &WireRequest) -> Result<Reply, Error> {
        self.take(request, true)
    }

    /// Enters a request, and writes what the socket takes if that is due `at_once`.
    fn take(&mut self, request: &WireRequest, at_once: bool) -> Result<Reply, Error> {
        let socket = self.open()?.socket.clone();
        if !self.has_room(request) {
            let text = "too many requests are waiting for this server";
            return Err(Error::new(ErrorKind::Backend, text).passing());
        }
        // The entry and the bytes go in together, by invariant 1.
        let reply = self.wait_for(request);
        if let Some(script) = request.brings() {
            self.learn(script);
        }
        self.unsent.extend_from_slice(request.bytes());
        if at_once {
            // An error here comes up again in the writing task, which reports it.
            self.write(&*socket).ok();
        }
        Ok(reply)
    }

    /// Returns the connection, or `Err` if there is none or another process made it. The server would answer a forked
    /// child on the socket that its parent reads, too.
    fn open(&self) -> Result<&Open, Error> {
        let open = self.open.as_ref().ok_or_else(no_connection)?;
        match open.process == std::process::id() {
            true => Ok(open),
            false => Err(forked()),
        }
    }

    /// Whether a request fits within the bounds: a server that does not answer must not take all the memory of its
    /// clients.
    fn has_room(&self, request: &WireRequest) -> bool {
        let unsent = self.unsent.len() + request.bytes().len();
        self.waiting.len() < MOST_WAITING && unsent <= MOST_UNSENT
    }

    /// Whether the server is known to have this script, so that its hash is enough.
    pub(super) fn knows(&self, script: &'static Script) -> bool {
        self.known.iter().any(|known| std::ptr::eq(*known, script))
    }

    /// Enters each command of a request into the queue of those in flight. Only the last one has a caller.
    ///
    /// The reply to a command without a caller is ignored.
    fn wait_for(&mut self, request: &WireRequest) -> Reply {
        let (caller, reply) = oneshot::channel();
        self.given += request.bytes().len() as u64;
        let (end, since) = (self.given, BootInstant::now());
        let waiting = |caller, script| PendingReply {
            end,
            since,
            caller,
            script,
        };
        for _ in 1..request.commands() {
            self.waiting.push_back(waiting(None, None));
        }
        self.waiting
            .push_back(waiting(Some(caller), request.script()));
        reply
    }

    /// Whether bytes wait for the socket to take them.
    pub(super) fn has_unsent(&self) -> bool {
        !self.unsent.is_empty()
    }

    /// Writes as much as the socket takes without waiting.
    ///
    /// The rest stays in the buffer. An error means that the connection is broken; the caller then drops it.
    pub(super) fn write(&mut self, socket: &dyn Socket) -> io::Result<()> {
        match socket.try_write(&self.unsent) {
            Ok(taken) => {
                self.taken += taken as u64;
                self.unsent.advance(taken);
                Ok(())
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Handles the next reply; `said` is `None` if it cannot be read. Returns the entry that waits for it, or `None` if
    /// no request is in flight.
    ///
    /// Called for each reply in the order of arrival: see invariant 1.
    pub(super) fn replied(&mut self, said: Option<&Said>) -> Option<PendingReply> {
        self.has_answered |= said.is_some();
        self.is_garbled |= said.is_none();
        let waiting = self.waiting.pop_front()?;
        if !self.waiting.is_empty() {
            self.heard = Some(BootInstant::now());
        }
        if let Some(script) = waiting.script {
            // A refusal may mean that the server does not have the script, or has not read its text.
            match said.is_some_and(Result::is_ok) {
                true => self.learn(script),
                false => self.known.retain(|known| !std::ptr::eq(*known, script)),
            }
        }
        Some(waiting)
    }

    /// Notes that the server knows this script.
    fn learn(&mut self, script: &'static Script) {
        if !self.knows(script) {
            self.known.push(script);
        }
    }

    /// Returns when the oldest request in flight came in.
    ///
    /// If that is longer ago than a time-out, the server hangs, unless it answered others in the meantime.
    pub(super) fn waits_since(&self) -> Option<BootInstant> {
        self.waiting.front().map(|first| first.since)
    }

    /// Returns when a reply last came while others were still to come.
    ///
    /// A server that has sent some lately is slow, and does not hang.
    pub(super) fn heard(&self) -> Option<BootInstant> {
        self.heard
    }

    /// Tells the callers that wait for a reply that there will be none.
    pub(super) fn end(self, error: &Error) -> Ended {
        // Garbled bytes may not have been the reply to the request that they were matched with.
        let mut is_settled = self.open.is_some() && !self.is_garbled;
        for PendingReply { end, caller, .. } in self.waiting {
            // A server does not run part of a command, so a request that was written in part is unsent.
            let was_sent = end <= self.taken;
            is_settled &= !was_sent;
            let broken = match was_sent {
                false => Broken::Unsent(error.clone()),
                true => Broken::Cut(error.clone()),
            };
            if let Some(caller) = caller {
                caller.send(Err(broken)).ok();
            }
        }
        Ended {
            has_answered: self.has_answered,
            is_settled,
        }
    }
}

/// Builds the error of a process that uses a connection of its parent.
fn forked() -> Error {
    let text = "this process was forked from the one that connected; it needs its own client";
    Error::new(ErrorKind::Backend, text).passing()
}

/// Builds the error for the time without a connection, if no better reason is known.
pub(super) fn no_connection() -> Error {
    Error::new(ErrorKind::Backend, "there is no connection to the server").passing()
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::AsyncReadExt;
    use tokio::net::{TcpListener, TcpStream};

    // fault: S61
    #[tokio::test]
    async fn connection_of_another_process_takes_no_request() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap());
        let mut desk = Desk::new(Arc::new(near.await.unwrap()));
        // As in a forked child, whose process id differs.
        desk.open.as_mut().unwrap().process += 1;
        let refused = desk.post(&WireRequest::of(&["PING"]));
        let error = refused.err().unwrap().to_string();
        assert!(error.contains("forked"), "{error}");
        assert!(!desk.has_unsent());
    }

    #[tokio::test]
    async fn what_fills_a_packet_is_written_before_the_others_are_answered() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let near = TcpStream::connect(address).await.unwrap();
        let (mut far, _) = listener.accept().await.unwrap();
        near.writable().await.unwrap();
        let mut desk = Desk::new(Arc::new(near));
        let request = WireRequest::of(&["PING", &"x".repeat(100)]);
        let mut replies = vec![desk.send(&request).unwrap()];
        assert!(!desk.has_unsent(), "nothing was under way");
        let mut gathered = 0;
        loop {
            replies.push(desk.send(&request).unwrap());
            if !desk.has_unsent() {
                break;
            }
            gathered += request.bytes().len();
            assert!(gathered < PACKET);
        }
        assert!(gathered + request.bytes().len() >= PACKET);
        let mut arrived = vec![0; replies.len() * request.bytes().len()];
        far.read_exact(&mut arrived).await.unwrap();
        assert_eq!(arrived, request.bytes().repeat(replies.len()));
    }
}
