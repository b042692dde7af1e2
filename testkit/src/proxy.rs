use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::select;
use tokio::sync::{oneshot, watch};

use crate::gate::Gate;
use crate::link::{Link, discard};
use crate::parcel::Parcel;
use crate::trap::{Fate, Trap, Traps};

/// A TCP proxy in front of one server, with faults that can be switched on and off.
///
/// It runs on the runtime that started it, so a blocking client needs a runtime with more than one thread. A needle is
/// searched for in the bytes of one read, which contain any request that its client sent in one write.
#[derive(Debug)]
pub struct Proxy {
    port: u16,
    // The tasks end when the sender is dropped.
    faults: watch::Sender<Faults>,
    traps: Arc<Traps>,
    census: Arc<Census>,
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Faults {
    pub(crate) black_hole: bool,
    pub(crate) hold_replies: bool,
    pub(crate) delay: Duration,
    /// Whether clients may end other connections of theirs with CLIENT KILL.
    pub(crate) kills: bool,
    /// The number of bytes after which a new connection is reset.
    pub(crate) reset: Option<usize>,
    /// A connection lives as long as this number is the same as when the connection was accepted.
    cuts: u64,
}

#[derive(Debug, Default)]
struct Census {
    accepted: AtomicUsize,
    live: AtomicUsize,
}

impl Proxy {
    /// Starts a proxy to a port of the loopback interface.
    ///
    /// # Panics
    /// Panics if it can bind no port.
    pub async fn start(server_port: u16) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0))
            .await
            .expect("bind a port");
        let proxy = Self {
            port: listener.local_addr().expect("a bound port").port(),
            faults: watch::Sender::default(),
            traps: Arc::default(),
            census: Arc::default(),
        };
        let door = Door {
            server_port,
            faults: proxy.faults.subscribe(),
            traps: proxy.traps.clone(),
            census: proxy.census.clone(),
        };
        tokio::spawn(door.keep(listener));
        proxy
    }

    /// Returns the port that clients connect to.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Returns the URL for clients of a server without password and TLS.
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Closes all connections. New ones work.
    pub fn cut(&self) {
        self.faults.send_modify(|faults| faults.cuts += 1);
    }

    /// Switches the black hole on or off. While it is on, every byte in both directions is lost, and so is every end of
    /// a stream. A connection that lost something stays silent, even after the black hole is switched off.
    pub fn black_hole(&self, on: bool) {
        self.faults.send_modify(|faults| faults.black_hole = on);
    }

    /// Lets requests pass and holds replies back, on every connection.
    pub fn hold_replies(&self) {
        self.faults.send_modify(|faults| faults.hold_replies = true);
    }

    /// Passes on the replies that were held back, in their order.
    pub fn release_replies(&self) {
        self.faults
            .send_modify(|faults| faults.hold_replies = false);
    }

    /// From now on, resets each new connection after `bytes` bytes have passed, counted in both directions together,
    /// even in the middle of a request or a reply. `None` ends this for new connections.
    pub fn reset_after(&self, bytes: impl Into<Option<usize>>) {
        let reset = bytes.into();
        self.faults.send_modify(|faults| faults.reset = reset);
    }

    /// From now on, lets clients end connections with CLIENT KILL. Until then, a client that tries is told that there
    /// is no such command, like a user without the right: after a kill, requests that are late on a connection that the
    /// client gave up would never arrive, and to let them arrive late is what the proxy is for.
    pub fn allow_kills(&self) {
        self.faults.send_modify(|faults| faults.kills = true);
    }

    /// Adds a delay to each direction, without reducing the throughput.
    pub fn delay(&self, delay: Duration) {
        self.faults.send_modify(|faults| faults.delay = delay);
    }

    /// Cuts off one reply: the next request that contains `needle` passes, and the connection closes in place of the
    /// next bytes from the server. When the client sees the end, the server has run the request.
    pub fn cut_reply_to(&self, needle: impl Into<Vec<u8>>) {
        self.traps.set(Trap::new(needle.into(), Fate::CutReply));
    }

    /// Cuts a connection after one reply: the next request that contains `needle` passes, and so do the next bytes from
    /// the server, followed at once by the end of the connection.
    pub fn cut_after_reply_to(&self, needle: impl Into<Vec<u8>>) {
        self.traps
            .set(Trap::new(needle.into(), Fate::CutAfterReply));
    }

    /// Returns whether [`cut_reply_to`](Self::cut_reply_to) or [`cut_after_reply_to`](Self::cut_after_reply_to) still
    /// waits for its request.
    pub fn cut_reply_armed(&self) -> bool {
        self.traps.cuts_a_reply()
    }

    /// Holds one request back: the bytes that arrive together with the next `needle` are kept in the parcel, and the
    /// client loses its connection; the server does not.
    pub fn hold_request(&self, needle: impl Into<Vec<u8>>) -> Parcel {
        let (caught, arrival) = oneshot::channel();
        self.traps.set(Trap::new(needle.into(), Fate::Hold(caught)));
        Parcel::new(arrival)
    }

    /// Stops one connection: that of the next request that contains `needle` waits, with that request, at the gate.
    pub fn stop(&self, needle: impl Into<Vec<u8>>) -> Gate {
        let (gate, waiting) = Gate::new();
        self.traps
            .set(Trap::new(needle.into(), Fate::Wait(waiting)));
        gate
    }

    /// Returns how many connections are open, on at least one side.
    pub fn connections(&self) -> usize {
        self.census.live.load(Ordering::SeqCst)
    }

    /// Returns how many connections were ever accepted.
    pub fn accepted(&self) -> usize {
        self.census.accepted.load(Ordering::SeqCst)
    }
}

/// The accepting side, cloned for each connection.
#[derive(Clone)]
struct Door {
    server_port: u16,
    faults: watch::Receiver<Faults>,
    traps: Arc<Traps>,
    census: Arc<Census>,
}

impl Door {
    async fn keep(self, listener: TcpListener) {
        let mut faults = self.faults.clone();
        loop {
            let client = select! {
                accepted = listener.accept() => accepted,
                _ = faults.wait_for(|_| false) => return,
            };
            if let Ok((client, _)) = client {
                tokio::spawn(self.clone().admit(client, Guest::of(&self.census)));
            }
        }
    }

    async fn admit(self, client: TcpStream, _guest: Guest) {
        let mut faults = self.faults.clone();
        let born = faults.borrow().cuts;
        select! {
            // First, so that nothing passes after a cut.
            biased;
            _ = faults.wait_for(|faults| faults.cuts != born) => {}
            // An error ends the connection, whichever side it came from.
            _ = self.connect(client) => {}
        }
    }

    async fn connect(self, mut client: TcpStream) -> io::Result<()> {
        if self.faults.borrow().black_hole {
            return discard(&mut client).await;
        }
        let link = Link {
            server: TcpStream::connect(("127.0.0.1", self.server_port)).await?,
            client,
            faults: self.faults,
            traps: self.traps,
        };
        link.relay().await
    }
}

/// Counts one connection as live until it is dropped.
struct Guest {
    census: Arc<Census>,
}

impl Guest {
    fn of(census: &Arc<Census>) -> Self {
        census.accepted.fetch_add(1, Ordering::SeqCst);
        census.live.fetch_add(1, Ordering::SeqCst);
        Self {
            census: census.clone(),
        }
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        self.census.live.fetch_sub(1, Ordering::SeqCst);
    }
}
