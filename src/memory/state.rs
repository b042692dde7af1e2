//! A server: its data and scripts, and the faults that were asked for.

use std::io;
use std::task::{Context, Poll, Waker};

use bytes::{Buf, BytesMut};
use redis_protocol::resp2;
use redis_protocol::resp2::types::OwnedFrame;

use super::connection::Connection;
use super::data::Data;
use super::dialogue::Dialogue;
use super::reply::{Refusal, Reply};
use super::scripts::Scripts;

/// A server. What a client writes is carried out at once, by the task that writes.
pub(super) struct State {
    pub(super) data: Data,
    scripts: Scripts,
    /// The id of the last connection.
    last: u64,
    /// Whether connections are accepted.
    pub(super) is_up: bool,
    /// Whether what arrives is carried out, and not left for later.
    answers: bool,
}

impl State {
    pub(super) fn new() -> Self {
        Self {
            data: Data::new(),
            scripts: Scripts::default(),
            last: 0,
            is_up: true,
            answers: true,
        }
    }

    /// Accepts a connection. Returns its id.
    pub(super) fn accept(&mut self) -> io::Result<u64> {
        if !self.is_up {
            return Err(io::ErrorKind::ConnectionRefused.into());
        }
        self.last += 1;
        self.data
            .connections
            .insert(self.last, Connection::default());
        Ok(self.last)
    }

    /// Takes bytes that a client has written, and carries out the commands in them.
    pub(super) fn write(&mut self, id: u64, bytes: &[u8]) -> io::Result<()> {
        let connection = self.data.connections.get_mut(&id);
        let connection = connection.ok_or(io::ErrorKind::BrokenPipe)?;
        connection.inbox.extend_from_slice(bytes);
        if self.answers {
            self.carry_out(id);
        }
        Ok(())
    }

    /// Moves bytes to a client that reads, at most as many as there is room for. None mean that the connection has
    /// ended.
    pub(super) fn read(
        &mut self,
        id: u64,
        most: usize,
        context: &Context<'_>,
    ) -> (Poll<Vec<u8>>, Option<Waker>) {
        let Some(connection) = self.data.connections.get_mut(&id) else {
            return (Poll::Ready(Vec::new()), None);
        };
        if connection.outbox.is_empty() {
            let before = connection.reader.replace(context.waker().clone());
            return (Poll::Pending, before);
        }
        let count = most.min(connection.outbox.len());
        (
            Poll::Ready(connection.outbox.drain(..count).collect()),
            None,
        )
    }

    /// Ends a connection that its client has left. What was written there is carried out before.
    pub(super) fn leave(&mut self, id: u64) {
        match self.answers {
            true => self.end(id),
            false => {
                let connection = self.data.connections.get_mut(&id);
                connection
                    .into_iter()
                    .for_each(|connection| connection.is_left = true);
            }
        }
    }

    /// Ends a connection.
    fn end(&mut self, id: u64) {
        let ended = self.data.connections.remove(&id);
        // Not dropped here, under the mutex: what the waker belongs to may have a connection too.
        self.data.woken.extend(ended.and_then(|ended| ended.reader));
    }

    /// Ends all connections.
    pub(super) fn cut(&mut self) {
        let connections = std::mem::take(&mut self.data.connections);
        let readers = connections.into_values().filter_map(|one| one.reader);
        self.data.woken.extend(readers);
    }

    /// Chooses whether what arrives is carried out. If so, all that has been left is, one connection after the other.
    pub(super) fn set_answering(&mut self, answers: bool) {
        self.answers = answers;
        if !answers {
            return;
        }
        let ids: Vec<_> = self.data.connections.keys().copied().collect();
        for id in ids {
            self.carry_out(id);
            if self
                .data
                .connections
                .get(&id)
                .is_some_and(|one| one.is_left)
            {
                self.end(id);
            }
        }
    }

    /// Ends this run of the server and everything in it, and begins another one.
    pub(super) fn restart_empty(&mut self) {
        self.cut();
        let woken = std::mem::take(&mut self.data.woken);
        self.data = Data::new();
        self.data.woken = woken;
        self.scripts = Scripts::default();
        self.is_up = true;
        self.answers = true;
    }

    /// Carries out the commands that have arrived as a whole.
    fn carry_out(&mut self, id: u64) {
        loop {
            let Some(connection) = self.data.connections.get_mut(&id) else {
                return;
            };
            match command(&mut connection.inbox) {
                Ok(None) => return,
                Ok(Some(words)) => Dialogue {
                    data: &mut self.data,
                    scripts: &mut self.scripts,
                    id,
                }
                .carry_out(&words),
                Err(refusal) => {
                    connection.inbox.clear();
                    self.data.send(id, Reply::Refusal(refusal));
                    return;
                }
            }
        }
    }
}

/// Takes the first command out of what has arrived. Returns `None` if it has not arrived as a whole.
fn command(inbox: &mut BytesMut) -> Result<Option<Vec<Vec<u8>>>, Refusal> {
    let garbled = || Refusal::new("ERR Protocol error: expected an array of bulk strings");
    let decoded = resp2::decode::decode(inbox).map_err(|_| garbled())?;
    let Some((frame, length)) = decoded else {
        return Ok(None);
    };
    inbox.advance(length);
    let OwnedFrame::Array(parts) = frame else {
        return Err(garbled());
    };
    let words = parts.into_iter().map(|part| match part {
        OwnedFrame::BulkString(bytes) => Ok(bytes),
        _ => Err(garbled()),
    });
    words.collect::<Result<_, _>>().map(Some)
}
