//! What stands between the callers of a connection and its socket: what is to be written, and who waits for what reply.
//!
//! # Invariants
//!
//! 1. A request enters the buffer and the list of those that wait for a reply in one step, so replies, which come in the
//!    order of requests, cannot be taken for another's.
//! 2. Of a request that the socket did not take as a whole nothing was carried out.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

use bytes::{Buf, BytesMut};
use tokio::sync::oneshot;
use tokio::time::error::Elapsed;

use super::link::Socket;
use super::resp::{Request, Said};
use crate::clock::BootInstant;
use crate::error::{Error, ErrorKind};
use crate::protocol::script::Script;

/// How many requests may be on their way. More than a server answers in a time-out.
const MOST_WAITING: usize = 1 << 17;
/// How much may wait for the socket to take it.
const MOST_UNSENT: usize = 32 << 20;
/// What goes through most networks in one packet.
const PACKET: usize = 1400;

/// A request that brought no reply.
#[derive(Debug)]
pub(super) enum Broken {
    /// It did not run.
    Unsent(Error),
    /// The connection broke after it was sent: it may have run.
    Cut(Error),
    /// It may have run, or run yet.
    TimedOut(Elapsed),
    /// It was sent, and what came in the place of its reply is none.
    Garbled(Error),
}

/// Where the reply to a request arrives.
pub(super) type Reply = oneshot::Receiver<Result<Said, Broken>>;

/// The requests of one connection. Without one nothing is taken.
#[derive(Default)]
pub(super) struct Desk {
    open: Option<Open>,
    /// What the socket has not taken so far.
    unsent: BytesMut,
    /// Those whose replies are still to come, in the order of their requests.
    waiting: VecDeque<Waiting>,
    /// Bytes of this connection that were given to it, and those that the socket has taken.
    given: u64,
    taken: u64,
    /// A caller had a reply.
    has_answered: bool,
    /// Scripts that this connection has answered: the server knows them by their hashes.
    known: Vec<&'static Script>,
}

struct Open {
    /// If it can be written to from here.
    socket: Option<Arc<Socket>>,
    /// The process that connected. A child has a copy of the socket, and of the desk.
    process: u32,
}

struct Waiting {
    /// Where its request ends.
    end: u64,
    since: BootInstant,
    /// None of a command that only prepares the next.
    caller: Option<oneshot::Sender<Result<Said, Broken>>>,
    script: Option<&'static Script>,
}

impl Broken {
    /// Says in an error what it comes from.
    pub(super) fn causes(self, error: Error) -> Error {
        match self {
            Self::Unsent(cause) | Self::Cut(cause) | Self::Garbled(cause) => error.caused_by(cause),
            Self::TimedOut(late) => error.caused_by(late),
        }
    }
}

impl Desk {
    /// Of a new connection.
    pub(super) fn new(socket: Option<Arc<Socket>>) -> Self {
        Self {
            open: Some(Open {
                socket,
                process: std::process::id(),
            }),
            ..Self::default()
        }
    }

    /// Takes a request. What was taken is given to the socket at once if nothing else is under way, or if it fills a
    /// packet: the server works on that while the callers go on.
    pub(super) fn send(&mut self, request: &Request) -> Result<Reply, Error> {
        let is_idle = self.waiting.is_empty() && self.unsent.is_empty();
        let is_due = is_idle || self.unsent.len() + request.bytes().len() >= PACKET;
        self.take(request, is_due)
    }

    /// Takes a request of one who cannot wait, and gives the socket what it takes at once: the runtime may end now, and
    /// all that writes later with it.
    pub(super) fn post(&mut self, request: &Request) -> Result<Reply, Error> {
        self.take(request, true)
    }

    fn take(&mut self, request: &Request, at_once: bool) -> Result<Reply, Error> {
        let socket = self.open()?.socket.clone();
        if !self.has_room(request) {
            let text = "too many requests are waiting for this server";
            return Err(Error::new(ErrorKind::Backend, text).passing());
        }
        let reply = self.wait_for(request);
        self.unsent.extend_from_slice(request.bytes());
        if let Some(socket) = socket.filter(|_| at_once) {
            // What goes wrong here goes wrong again where it is told.
            self.write(&socket).ok();
        }
        Ok(reply)
    }

    /// The connection, if it is one of this process: the server answers a child where the parent reads.
    fn open(&self) -> Result<&Open, Error> {
        let open = self.open.as_ref().ok_or_else(no_connection)?;
        match open.process == std::process::id() {
            true => Ok(open),
            false => Err(forked()),
        }
    }

    fn has_room(&self, request: &Request) -> bool {
        let unsent = self.unsent.len() + request.bytes().len();
        self.waiting.len() < MOST_WAITING && unsent <= MOST_UNSENT
    }

    /// Whether the server surely knows a script by its hash.
    pub(super) fn knows(&self, script: &'static Script) -> bool {
        self.known.iter().any(|known| std::ptr::eq(*known, script))
    }

    fn wait_for(&mut self, request: &Request) -> Reply {
        let (caller, reply) = oneshot::channel();
        self.given += request.bytes().len() as u64;
        let (end, since) = (self.given, BootInstant::now());
        let waiting = |caller, script| Waiting {
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

    /// Whether something waits for the socket to take it.
    pub(super) fn has_unsent(&self) -> bool {
        !self.unsent.is_empty()
    }

    /// Gives the socket what it takes at once.
    pub(super) fn write(&mut self, socket: &Socket) -> io::Result<()> {
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

    /// Everything that is to be written, for one who writes it as a whole.
    #[cfg(feature = "tls")]
    pub(super) fn take_unsent(&mut self) -> BytesMut {
        // Of what is on its way nobody knows how much has arrived.
        self.taken += self.unsent.len() as u64;
        self.unsent.split()
    }

    /// The next reply came: who waits for it, if anybody; none if nothing was asked.
    pub(super) fn replied(
        &mut self,
        said: Option<&Said>,
    ) -> Option<Option<oneshot::Sender<Result<Said, Broken>>>> {
        self.has_answered |= said.is_some();
        let Waiting { caller, script, .. } = self.waiting.pop_front()?;
        let is_answer = said.is_some_and(Result::is_ok);
        if let Some(script) = script.filter(|script| is_answer && !self.knows(script)) {
            self.known.push(script);
        }
        Some(caller)
    }

    /// When the first request came in that still waits for its reply.
    pub(super) fn waits_since(&self) -> Option<BootInstant> {
        self.waiting.front().map(|first| first.since)
    }

    /// Tells those that wait for a reply that there will be none. Whether others had one.
    pub(super) fn end(self, error: &Error) -> bool {
        for Waiting { end, caller, .. } in self.waiting {
            let broken = match end > self.taken {
                true => Broken::Unsent(error.clone()),
                false => Broken::Cut(error.clone()),
            };
            if let Some(caller) = caller {
                caller.send(Err(broken)).ok();
            }
        }
        self.has_answered
    }
}

fn forked() -> Error {
    let text = "this process was forked off the one that connected; it needs a client of its own";
    Error::new(ErrorKind::Backend, text).passing()
}

pub(super) fn no_connection() -> Error {
    Error::new(ErrorKind::Backend, "there is no connection to the server").passing()
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::AsyncReadExt;
    use tokio::net::{TcpListener, TcpStream};

    #[tokio::test]
    async fn what_fills_a_packet_is_written_before_the_others_are_answered() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let near = TcpStream::connect(address).await.unwrap();
        let (mut far, _) = listener.accept().await.unwrap();
        near.writable().await.unwrap();
        let (_reader, writer) = near.into_split();
        let mut desk = Desk::new(Some(Arc::new(Socket::Tcp(writer))));
        let request = Request::of(&["PING", &"x".repeat(100)]);
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
