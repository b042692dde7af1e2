//! A server: its data and scripts, and the faults that were asked for.

use std::io;
use std::task::{Context, Poll, Waker};

use bytes::{Buf, BytesMut};

use crate::connection::Connection;
use crate::data::Data;
use crate::dialogue::Dialogue;
use crate::reply::{Refusal, Reply};
use crate::scripts::Scripts;

/// The most words of a command, as in Redis.
const MOST_WORDS: usize = 1 << 20;
/// The longest word in bytes, as in Redis.
const LONGEST_WORD: usize = 512 << 20;
/// More than the bytes of any line that announces one of them.
const LONGEST_LINE: usize = 32;

/// A server. What a client writes is carried out at once, by the task that writes.
pub(crate) struct State {
    pub(crate) data: Data,
    scripts: Scripts,
    /// The id of the last connection.
    last: u64,
    /// Whether connections are accepted.
    pub(crate) is_up: bool,
    /// Whether what arrives is carried out, and not left for later.
    answers: bool,
}

impl State {
    pub(crate) fn new() -> Self {
        Self {
            data: Data::new(0),
            scripts: Scripts::default(),
            last: 0,
            is_up: true,
            answers: true,
        }
    }

    /// Accepts a connection. Returns its id.
    pub(crate) fn accept(&mut self) -> io::Result<u64> {
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
    pub(crate) fn write(&mut self, id: u64, bytes: &[u8]) -> io::Result<()> {
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
    pub(crate) fn read(
        &mut self,
        id: u64,
        most: usize,
        context: &Context<'_>,
    ) -> (Poll<Vec<u8>>, Option<Waker>) {
        let Some(connection) = self.data.connections.get_mut(&id) else {
            return (Poll::Ready(Vec::new()), None);
        };
        if connection.outbox.is_empty() {
            if connection.is_finished && self.answers {
                return (Poll::Ready(Vec::new()), None);
            }
            let before = connection.reader.replace(context.waker().clone());
            return (Poll::Pending, before);
        }
        let count = most.min(connection.outbox.len());
        (
            Poll::Ready(connection.outbox.drain(..count).collect()),
            None,
        )
    }

    /// Notes that a client writes nothing more. Its connection ends once it has read all that it is owed.
    pub(crate) fn finish(&mut self, id: u64) {
        if let Some(connection) = self.data.connections.get_mut(&id) {
            connection.is_finished = true;
            self.data.woken.extend(connection.reader.take());
        }
    }

    /// Ends a connection that its client has left. What was written there is carried out before.
    pub(crate) fn leave(&mut self, id: u64) {
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
    pub(crate) fn cut(&mut self) {
        let connections = std::mem::take(&mut self.data.connections);
        let readers = connections.into_values().filter_map(|one| one.reader);
        self.data.woken.extend(readers);
    }

    /// Chooses whether what arrives is carried out. If so, all that has been left is, one connection after the other.
    pub(crate) fn set_answering(&mut self, answers: bool) {
        self.answers = answers;
        if !answers {
            return;
        }
        let ids: Vec<_> = self.data.connections.keys().copied().collect();
        for id in ids {
            self.carry_out(id);
            match self.data.connections.get(&id) {
                Some(connection) if connection.is_left => self.end(id),
                Some(connection) if connection.is_finished => self.finish(id),
                _ => {}
            }
        }
    }

    /// Ends this run of the server and everything in it, and begins another one.
    pub(crate) fn restart_empty(&mut self) {
        self.cut();
        let woken = std::mem::take(&mut self.data.woken);
        let watcher = self.data.watcher.take();
        self.data = Data::new(self.data.ahead);
        self.data.woken = woken;
        self.data.watcher = watcher;
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
                // Redis passes over a command without words too.
                Ok(Some(words)) if words.is_empty() => {}
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
///
/// A command is flat, and this reader too: one that follows nested arrays could be made to exhaust the stack.
fn command(inbox: &mut BytesMut) -> Result<Option<Vec<Vec<u8>>>, Refusal> {
    let mut rest = &inbox[..];
    let Some(count) = length(&mut rest, b'*', MOST_WORDS)? else {
        return Ok(None);
    };
    let mut words = Vec::new();
    for _ in 0..count {
        let Some(length) = length(&mut rest, b'$', LONGEST_WORD)? else {
            return Ok(None);
        };
        let Some((word, behind)) = rest.split_at_checked(length + 2) else {
            return Ok(None);
        };
        words.push(word[..length].to_vec());
        rest = behind;
    }
    let taken = inbox.len() - rest.len();
    inbox.advance(taken);
    Ok(Some(words))
}

/// Reads a line that announces a length, and goes behind it. Returns `None` if it has not arrived as a whole.
fn length(rest: &mut &[u8], mark: u8, most: usize) -> Result<Option<usize>, Refusal> {
    let garbled = || Refusal::new("ERR Protocol error: expected an array of bulk strings");
    let Some(end) = rest.iter().position(|byte| *byte == b'\n') else {
        let may_come = rest.len() < LONGEST_LINE && rest.first().is_none_or(|first| *first == mark);
        return may_come.then_some(None).ok_or_else(garbled);
    };
    let digits = rest[..end].strip_prefix(&[mark]);
    let digits = digits.and_then(|digits| digits.strip_suffix(b"\r"));
    let length = digits.and_then(|digits| str::from_utf8(digits).ok()?.parse().ok());
    *rest = &rest[end + 1..];
    let length = length.filter(|length| *length <= most);
    length.map(Some).ok_or_else(garbled)
}
