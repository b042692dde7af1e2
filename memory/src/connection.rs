//! The server's side of one connection.

use std::collections::BTreeSet;
use std::task::Waker;

use bytes::BytesMut;

use crate::keys::Entry;
use crate::reply::Reply;

/// The commands of a transaction, or an error if one of them cannot be carried out.
pub(crate) type Queued = Result<Vec<Vec<Vec<u8>>>, ()>;

/// One connection: what came from its client, what goes there, and what the server keeps for it.
#[derive(Default)]
pub(crate) struct Connection {
    /// The name that the client gave.
    pub(crate) name: Vec<u8>,
    pub(crate) is_resp3: bool,
    /// The number of the database that its commands are about.
    pub(crate) database: u32,
    /// The channels that it listens to, and the sharded ones, which a single server keeps apart by nothing but their
    /// names.
    pub(crate) channels: [BTreeSet<Vec<u8>>; 2],
    /// The keys that it watches, each with its database and what was stored there.
    pub(crate) watched: Vec<(u32, Vec<u8>, Option<Entry>)>,
    /// What came since `MULTI`.
    pub(crate) queued: Option<Queued>,
    /// Bytes that have arrived and were not carried out so far.
    pub(crate) inbox: BytesMut,
    /// Bytes that the client has not read so far.
    pub(crate) outbox: Vec<u8>,
    /// The task that waits for more of them.
    pub(crate) reader: Option<Waker>,
    /// Whether nothing more comes from the client, which reads what it is owed.
    pub(crate) is_finished: bool,
    /// Whether the client has gone. What it sent before is carried out all the same.
    pub(crate) is_left: bool,
}

impl Connection {
    /// Sends a reply or a message. Returns the task that waits for it, which is to be woken.
    pub(crate) fn send(&mut self, reply: Reply) -> Option<Waker> {
        reply.write(self.is_resp3, &mut self.outbox);
        self.reader.take()
    }

    /// Whether the connection listens to any channel. In RESP2 it can do nothing else then.
    pub(crate) fn listens(&self) -> bool {
        self.channels.iter().any(|sort| !sort.is_empty())
    }
}
