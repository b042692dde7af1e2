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

/// A TCP proxy in front of one server, with faults to switch on and off.
///
/// It runs on the runtime that started it, so a blocking client needs a
/// runtime with more than one thread. A needle is looked for in what one read
/// brought, which is any request that its client sent in one write.
#[derive(Debug)]
pub struct Proxy {
    port: u16,
    // The tasks end when the sender goes.
    faults: watch::Sender<Faults>,
    traps: Arc<Traps>,
    census: Arc<Census>,
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Faults {
    pub(crate) black_hole: bool,
    pub(crate) hold_replies: bool,
    pub(crate) delay: Duration,
    /// Clients may end connections, others of theirs.
    pub(crate) kills: bool,
    /// After how many bytes a new connection is reset.
    pub(crate) reset: Option<usize>,
    /// A connection lives as long as this number is the one it was born with.
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
    /// When it can bind no port.
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

    /// The port that clients connect to.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The URL for clients of a server without password and TLS.
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Closes all connections; new ones work.
    pub fn cut(&self) {
        self.faults.send_modify(|faults| faults.cuts += 1);
    }

    /// While on, every byte in both directions is lost, and so is every end of
    /// a stream. A connection that lost something stays silent for ever.
    pub fn black_hole(&self, on: bool) {
        self.faults.send_modify(|faults| faults.black_hole = on);
    }

    /// Requests pass, replies are kept, on every connection.
    pub fn hold_replies(&self) {
        self.faults.send_modify(|faults| faults.hold_replies = true);
    }

    /// Passes the kept replies in their order.
    pub fn release_replies(&self) {
        self.faults
            .send_modify(|faults| faults.hold_replies = false);
    }

    /// From now on, a new connection is reset when so many bytes have passed, in both directions together, be that in
    /// the middle of a request or of a reply.
    pub fn reset_after(&self, bytes: impl Into<Option<usize>>) {
        let reset = bytes.into();
        self.faults.send_modify(|faults| faults.reset = reset);
    }

    /// From now on clients may end connections by CLIENT KILL. Else what came late on one that they gave up, which is
    /// what this is for, would never arrive: they are told that there is no such command, as a user without the right is.
    pub fn allow_kills(&self) {
        self.faults.send_modify(|faults| faults.kills = true);
    }

    /// Adds a delay to each direction, without less throughput.
    pub fn delay(&self, delay: Duration) {
        self.faults.send_modify(|faults| faults.delay = delay);
    }

    /// Once: the next request that contains `needle` passes, and with the next
    /// bytes from the server the connection closes in their stead. When the
    /// client sees the end, the server has run the request.
    pub fn cut_reply_to(&self, needle: impl Into<Vec<u8>>) {
        self.traps.set(Trap {
            needle: needle.into(),
            fate: Fate::CutReply,
        });
    }

    /// Once: the next request that contains `needle` passes, and so do the next
    /// bytes from the server, with the end of the connection right behind them.
    pub fn cut_after_reply_to(&self, needle: impl Into<Vec<u8>>) {
        self.traps.set(Trap {
            needle: needle.into(),
            fate: Fate::CutAfterReply,
        });
    }

    /// Whether [`cut_reply_to`](Self::cut_reply_to) or
    /// [`cut_after_reply_to`](Self::cut_after_reply_to) still waits for its request.
    pub fn cut_reply_armed(&self) -> bool {
        self.traps.cuts_a_reply()
    }

    /// Once: what arrives together with the next `needle` is held back in the
    /// parcel, and the client loses its connection; the server does not.
    pub fn hold_request(&self, needle: impl Into<Vec<u8>>) -> Parcel {
        let (caught, arrival) = oneshot::channel();
        self.traps.set(Trap {
            needle: needle.into(),
            fate: Fate::Hold(caught),
        });
        Parcel::new(arrival)
    }

    /// Once: the connection of the next request that contains `needle` waits, with that request, at the gate.
    pub fn stop(&self, needle: impl Into<Vec<u8>>) -> Gate {
        let (gate, waiting) = Gate::new();
        self.traps.set(Trap {
            needle: needle.into(),
            fate: Fate::Wait(waiting),
        });
        gate
    }

    /// How many connections are open, on at least one side.
    pub fn connections(&self) -> usize {
        self.census.live.load(Ordering::SeqCst)
    }

    /// How many connections were ever accepted.
    pub fn accepted(&self) -> usize {
        self.census.accepted.load(Ordering::SeqCst)
    }
}

/// The accepting side, and what each connection gets from it.
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
            // An error is the end of the connection, whichever side it came from.
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

/// Counts one connection as live until it goes.
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
