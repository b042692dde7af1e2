//! A connection to a server, past the handshake: sends requests, and reads what arrives.

use std::io;
use std::sync::Arc;

use bytes::BytesMut;

use super::resp::{self, Heard, Said, Version, WireRequest};
use super::socket::Socket;
use crate::clock::BootInstant;

/// The space in bytes that is reserved for replies before they arrive.
///
/// More is reserved while a longer reply arrives.
pub(super) const INBOX: usize = 16 << 10;
/// The first bytes that a server with TLS sends to a client that does not speak TLS.
const TLS_ALERT: [u8; 2] = [0x15, 0x03];

/// A connection that is ready for commands.
///
/// Used by one task at a time.
pub(super) struct Link {
    pub(super) socket: Arc<dyn Socket>,
    /// The version that the login has negotiated.
    pub(super) version: Version,
    /// The address or the path that it leads to.
    pub(super) place: String,
    /// How the server identifies this connection, if it says so.
    pub(super) connection_id: Option<ConnectionId>,
    /// When to log in again.
    pub(super) due: Option<BootInstant>,
    /// Bytes that have arrived and are not decoded yet.
    ///
    /// A reader may take over [`socket`](Self::socket) alone only while this is empty.
    arrived: BytesMut,
}

/// A server's identification of a connection: its id there, and the address that it comes from. A server that is
/// restarted gives out the same ids again, but an id does not come back with the same address. Over a unix socket, all
/// connections come from one address.
#[derive(Clone, Debug)]
pub(super) struct ConnectionId {
    /// Unique while the server runs.
    pub(super) id: String,
    /// Where the connection comes from, with its port.
    pub(super) address: String,
}

impl ConnectionId {
    /// Reads the answer to `CLIENT INFO`. Returns `None` if another connection may have the same identification one
    /// day.
    pub(super) fn read(info: &str) -> Option<Self> {
        let value = |name: &str| {
            let mut fields = info.split_ascii_whitespace();
            fields.find_map(|field| field.strip_prefix(name)?.strip_prefix('='))
        };
        // Port 0 is that of a unix socket.
        let address = value("addr").filter(|address| !address.ends_with(":0"))?;
        Some(Self {
            id: value("id")?.to_owned(),
            address: address.to_owned(),
        })
    }
}

impl Link {
    /// Creates a link that speaks RESP2 until the login chooses another version.
    pub(super) fn new(socket: Arc<dyn Socket>, place: String) -> Self {
        Self {
            socket,
            version: Version::Resp2,
            place,
            connection_id: None,
            due: None,
            arrived: BytesMut::with_capacity(INBOX),
        }
    }

    /// Whether it is time to log in again.
    pub(super) fn is_due(&self) -> bool {
        self.due.is_some_and(|due| due <= BootInstant::now())
    }

    /// Sends requests together, and waits for the replies to all of them. Returns the reply to the last command of each.
    ///
    /// Pushes that come in between are passed over. Dropping the future leaves replies unread, after which the link
    /// must not be used.
    pub(super) async fn talk(&mut self, requests: &[WireRequest]) -> io::Result<Vec<Said>> {
        // A server that hung up may have said why, so its words are read before the error of the write is returned.
        let sent = self.send(requests).await;
        let mut replies = Vec::with_capacity(requests.len());
        for request in requests {
            let mut unread = request.commands();
            while unread > 0 {
                match self.next().await {
                    Ok(Heard::Reply(said)) => {
                        unread -= 1;
                        if unread == 0 {
                            replies.push(said);
                        }
                    }
                    Ok(_) => {}
                    Err(ended) => return Err(sent.err().unwrap_or(ended)),
                }
            }
        }
        // The next reader would take the rest for replies to its own requests.
        match self.arrived.is_empty() {
            true => Ok(replies),
            false => Err(io::Error::other(
                "the server sent a reply that nobody asked for",
            )),
        }
    }

    /// Sends commands together, without waiting for replies.
    ///
    /// Dropping the future may leave a request half sent, after which the link must not be used.
    pub(super) async fn send(&mut self, requests: &[WireRequest]) -> io::Result<()> {
        let bytes: Vec<u8> = requests
            .iter()
            .flat_map(WireRequest::bytes)
            .copied()
            .collect();
        self.socket.write_all(&bytes).await
    }

    /// Waits for the next reply or push. Cancel safe: nothing is lost if the future is dropped.
    pub(super) async fn next(&mut self) -> io::Result<Heard> {
        loop {
            let heard = resp::next(&mut self.arrived).map_err(|garbled| {
                io::Error::other(match self.arrived.starts_with(&TLS_ALERT) {
                    true => "it uses TLS; the URL must begin with rediss://".to_owned(),
                    false => format!("{garbled}: is it a Redis or Valkey server?"),
                })
            });
            if let Some(heard) = heard? {
                return Ok(heard);
            }
            if self.socket.read(&mut self.arrived).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }
}
