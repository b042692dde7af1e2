//! The gate in front of a server that is one of several: gives the answers of such a server that the one in memory does
//! not have.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::network::End;

/// The words of a command.
pub type Words = Vec<Vec<u8>>;

/// The state of a connection.
pub struct Guest {
    pub process: usize,
    /// Whether its next command may be about a slot that is moving to this server.
    pub is_asking: bool,
}

/// Decides what a server carries out.
pub trait Gate: Send + Sync {
    /// Returns a command for the server to carry out in place of this one, if the gate replaces it.
    fn admit(&self, guest: &mut Guest, words: &[Vec<u8>]) -> Option<Words>;
}

/// The server's end of a connection, behind a gate. The gate turns a refused command into a script that returns the
/// refusal. So replies keep their order, and a server that hangs answers nothing.
pub struct Front {
    end: End,
    gate: Arc<dyn Gate>,
    guest: Guest,
    inbox: Vec<u8>,
    admitted: Vec<u8>,
}

impl Front {
    pub fn new(end: End, gate: Arc<dyn Gate>) -> Self {
        Self {
            guest: Guest {
                process: end.process().unwrap_or_default(),
                is_asking: false,
            },
            end,
            gate,
            inbox: Vec::new(),
            admitted: Vec::new(),
        }
    }
}

impl AsyncRead for Front {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        while this.admitted.is_empty() {
            let mut bytes = [0; 4096];
            let mut arrived = ReadBuf::new(&mut bytes);
            ready!(Pin::new(&mut this.end).poll_read(context, &mut arrived))?;
            if arrived.filled().is_empty() {
                return Poll::Ready(Ok(()));
            }
            this.inbox.extend_from_slice(arrived.filled());
            while let Some(words) = command(&mut this.inbox) {
                let words = this.gate.admit(&mut this.guest, &words).unwrap_or(words);
                write(&words, &mut this.admitted);
            }
        }
        let count = this.admitted.len().min(buffer.remaining());
        buffer.put_slice(&this.admitted[..count]);
        this.admitted.drain(..count);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Front {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.end).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.end).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.end).poll_shutdown(context)
    }
}

/// Takes the first complete command out of the bytes that have arrived.
pub fn command(inbox: &mut Vec<u8>) -> Option<Words> {
    let mut rest = &inbox[..];
    let count = length(&mut rest)?;
    let mut words = Vec::new();
    for _ in 0..count {
        let length = length(&mut rest)?;
        let (word, behind) = rest.split_at_checked(length + 2)?;
        words.push(word[..length].to_vec());
        rest = behind;
    }
    let taken = inbox.len() - rest.len();
    inbox.drain(..taken);
    Some(words)
}

/// Reads a line that announces a length, and skips it.
fn length(rest: &mut &[u8]) -> Option<usize> {
    let end = rest.iter().position(|byte| *byte == b'\n')?;
    let digits = str::from_utf8(rest.get(1..end.checked_sub(1)?)?).ok()?;
    *rest = &rest[end + 1..];
    digits.parse().ok()
}

/// Encodes a command.
pub fn write(words: &[impl AsRef<[u8]>], to: &mut Vec<u8>) {
    to.extend(format!("*{}\r\n", words.len()).bytes());
    for word in words.iter().map(AsRef::as_ref) {
        to.extend(format!("${}\r\n", word.len()).bytes());
        to.extend(word);
        to.extend(b"\r\n");
    }
}

/// Returns a command that runs this script.
pub fn answer(script: &str, arguments: &[&str]) -> Words {
    let words = [&["EVAL", script, "0"], arguments].concat();
    words.iter().map(|word| word.as_bytes().to_vec()).collect()
}

/// Returns a command that is refused with this text.
pub fn refusal(text: &str) -> Words {
    answer("return redis.error_reply(ARGV[1])", &[text])
}

/// Returns the name of a command, in capitals.
pub fn name(words: &[Vec<u8>]) -> String {
    let first = words.first().map_or(&[][..], Vec::as_slice);
    String::from_utf8_lossy(first).to_uppercase()
}

/// Returns the keys of a script, if the command runs one.
pub fn keys(words: &[Vec<u8>]) -> &[Vec<u8>] {
    let count = match (&*name(words), words.get(2)) {
        ("EVAL" | "EVALSHA", Some(count)) => str::from_utf8(count).ok(),
        _ => None,
    };
    let count = count.and_then(|count| count.parse().ok()).unwrap_or(0);
    words.get(3..3 + count).unwrap_or_default()
}
