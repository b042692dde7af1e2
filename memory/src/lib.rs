//! The server in memory of the crate [`redlatch`](https://docs.rs/redlatch), which exports it with its feature
//! `memory`.
//!
//! Use it through that crate. The page of `redlatch::MemoryServer` says what the server can and cannot do. What is here
//! is for redlatch and its simulation, and may change in any version.
//!
//! # How it works
//!
//! What a client writes is carried out at once, by the task that writes, under one mutex: there is no task of the
//! server's, and no timer, so that nothing but the clients decides in which order things happen. Keys end lazily, when
//! somebody asks for them.
//!
//! From top to bottom: `pipe` is the client's side of a connection, `connection` the server's; `state` is the server;
//! `dialogue` carries out a command of a connection, `scripts` a script, and `table` has the commands that both may
//! use, by the type of value: `texts`, `hashes`, `lists`, `sorted_sets`, `generic` for any, and `channels` for none.

mod argument;
mod channels;
pub mod clock;
mod connection;
mod data;
mod dialogue;
mod generic;
mod hashes;
mod keys;
mod life;
mod lists;
mod pipe;
mod reply;
mod scripts;
mod simulated;
mod sorted_sets;
mod state;
mod table;
mod texts;
mod value;
mod watched;

use std::fmt;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, copy, split};

pub use pipe::Stream;
use state::State;
pub use watched::{Stored, Watched};

/// A server in memory. All clones are the same server, which lives as long as one of them, or of its connections.
#[derive(Clone)]
pub struct Server {
    /// The number of this server in the process.
    number: u64,
    state: Arc<Mutex<State>>,
}

impl Server {
    /// Starts a server that has no data.
    #[must_use]
    pub fn new() -> Self {
        static NUMBERS: AtomicU64 = AtomicU64::new(1);
        Self {
            number: NUMBERS.fetch_add(1, Ordering::Relaxed),
            state: Arc::new(Mutex::new(State::new())),
        }
    }

    /// Returns the number of this server, which no other one in the process has.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Opens a connection. Fails while the server is stopped.
    pub fn connect(&self) -> io::Result<Stream> {
        Stream::open(self)
    }

    /// Serves a connection that came from elsewhere, until it ends: commands are read from `stream`, and the answers
    /// are written there.
    ///
    /// # Errors
    ///
    /// Those of the stream, and `ConnectionRefused` while the server is [stopped](Self::stop).
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the connection ends. What was read before has been carried out.
    pub async fn serve(&self, stream: impl AsyncRead + AsyncWrite) -> io::Result<()> {
        let (mut answers, mut server) = split(self.connect()?);
        let (mut from, mut to) = split(stream);
        let requests = async {
            copy(&mut from, &mut server).await?;
            server.shutdown().await
        };
        tokio::select! {
            // A peer that closes its half has its answers to come.
            Err(error) = requests => Err(error),
            ended = copy(&mut answers, &mut to) => ended.map(drop),
        }
    }

    /// Stops answering requests, including those under way, until [`resume`](Self::resume). Connections stay open.
    pub fn stop_answering(&self) {
        self.with(|state| state.set_answering(false));
    }

    /// Answers requests again, and first all that have come in the meantime.
    pub fn resume(&self) {
        self.with(|state| state.set_answering(true));
    }

    /// Ends all connections, and accepts new ones. The data stays.
    pub fn cut(&self) {
        self.with(State::cut);
    }

    /// Ends all connections and refuses new ones, until [`start`](Self::start). The data stays, and keys end in time.
    pub fn stop(&self) {
        self.with(|state| {
            state.cut();
            state.is_up = false;
        });
    }

    /// Accepts connections again, after [`stop`](Self::stop).
    pub fn start(&self) {
        self.with(|state| state.is_up = true);
    }

    /// Ends this run of the server with all of its faults, and begins another one without data.
    pub fn restart_empty(&self) {
        self.with(State::restart_empty);
    }

    /// Does something under the mutex, and then wakes whoever has something to read.
    fn with<T>(&self, act: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let done = act(&mut state);
        let woken = std::mem::take(&mut state.data.woken);
        drop(state);
        for reader in woken {
            reader.wake();
        }
        done
    }
}

impl Default for Server {
    fn default() -> Self {
        Self::new()
    }
}

impl PartialEq for Server {
    fn eq(&self, other: &Self) -> bool {
        self.number == other.number
    }
}

impl Eq for Server {}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Server").field(&self.number).finish()
    }
}
