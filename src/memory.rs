//! A server in memory, as the users of this crate see it.

use std::fmt;
use std::future::ready;
use std::io;

use redlatch_memory::Server;
use tokio::io::{AsyncRead, AsyncWrite};

use crate::clock;
use crate::config::{Config, PORT};

/// A server in memory, for tests of code that uses locks.
///
/// Clients that are given its [`config`](Self::config) work on it as on a Redis of their own: the same scripts take and
/// release locks, releases wake waiters by messages, leases end, and commands go through the same connections, encoded
/// as on a network. So what a test sees is what happens with a server, but nothing has to be installed or started, each
/// test has a server of its own, and a lock takes microseconds. If one client is enough, use
/// [`Client::in_memory`](crate::Client::in_memory).
///
/// All clones are the same server, which lives as long as one of them, or of its clients.
///
/// # Time
///
/// Leases are measured by tokio's clock. In a test that [pauses](tokio::time::pause) it, time passes when all tasks
/// wait: a lease of 30 s ends, or is renewed for an hour, within milliseconds of real time.
///
/// ```
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), redlatch::Error> {
/// use std::time::Duration;
/// use redlatch::Client;
///
/// let client = Client::in_memory().await?;
/// let lock = client.lock("orders:42").lease(Duration::from_secs(30));
/// let guard = lock.lock().await?;
/// tokio::time::sleep(Duration::from_secs(29)).await;
/// assert!(!guard.is_lost());
/// guard.lost().await; // at once, by this computer's clock
/// # Ok(()) }
/// ```
///
/// Tokio can pause the clock of a runtime with one thread, for the tasks of that runtime. So all clients of a server
/// whose clock is paused must be on that runtime. Other threads read the computer's clock, so there `remaining` and
/// `is_lost` of a lease mean nothing.
///
/// From the first server on, leases are measured by tokio's clock in the whole process. On Linux, tokio's clock stops
/// while the machine is suspended, and the clock that this crate uses otherwise does not.
///
/// # Faults
///
/// A test can have the server stop answering ([`stop_answering`](Self::stop_answering)), cut all connections
/// ([`cut`](Self::cut)), be away for a time ([`stop`](Self::stop)), or come back without its data
/// ([`restart_empty`](Self::restart_empty)).
///
/// # What it is not
///
/// It is not Redis. It knows the commands that this crate's clients and scripts use, in the forms in which they use
/// them, and answers others with an error:
///
/// - keys: `DEL`, `EXISTS`, `EXPIRE`, `KEYS`, `MEMORY USAGE`, `PERSIST`, `PEXPIRE`, `PEXPIREAT`, `PEXPIRETIME`, `PTTL`,
///   `RENAME`, `SCAN`, `TTL`, `TYPE`
/// - strings: `DECR`, `DECRBY`, `GET`, `GETRANGE`, `INCR`, `INCRBY`, `SET`
/// - hashes: `HDEL`, `HEXISTS`, `HGET`, `HGETALL`, `HINCRBY`, `HKEYS`, `HLEN`, `HMGET`, `HSET`
/// - lists: `LINDEX`, `LINSERT`, `LLEN`, `LPOP`, `LPOS`, `LPUSH`, `LRANGE`, `LREM`, `RPUSH`
/// - sorted sets: `ZADD`, `ZCARD`, `ZCOUNT`, `ZINCRBY`, `ZRANGE`, `ZRANK`, `ZREM`, `ZREMRANGEBYSCORE`, `ZSCORE`
/// - channels: `PUBLISH`, `PUBSUB`, `SPUBLISH`, `SSUBSCRIBE`, `SUBSCRIBE`, `SUNSUBSCRIBE`, `UNSUBSCRIBE`
/// - scripts and transactions: `EVAL`, `EVALSHA`, `SCRIPT`, `DISCARD`, `EXEC`, `MULTI`, `UNWATCH`, `WATCH`
/// - the connection and the server: `AUTH`, `CLIENT`, `CONFIG GET`, `HELLO`, `INFO`, `PING`, `ROLE`, `SELECT`, `TIME`
///
/// It has no users but the default one, whom any password lets in, no persistence, no replicas, no cluster and no
/// limits on memory. Lua has its basic functions and `table`, `string` and `math`, but no `cjson`, `struct` or `bit`.
///
/// Scripts run in Lua 5.1, by the crate [`mlua`](https://docs.rs/mlua), and a program can have only one Lua: next to
/// another version of Lua in the same build, this feature does not compile.
/// Do not use it in production: it serves one process, and its data ends with that process.
///
/// # Examples
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), redlatch::Error> {
/// use redlatch::{Client, MemoryServer};
///
/// let server = MemoryServer::new();
/// let here = Client::builder().config(server.config()).build().await?;
/// let there = Client::builder().config(server.config()).build().await?;
///
/// let guard = here.lock("orders:42").lock().await?;
/// assert!(there.lock("orders:42").try_lock().await?.is_none());
/// guard.unlock().await?;
/// assert!(there.lock("orders:42").try_lock().await?.is_some());
/// # Ok(()) }
/// ```
#[doc(alias = "mock")]
#[derive(Clone, PartialEq, Eq)]
pub struct MemoryServer(Server);

impl MemoryServer {
    /// Starts a server that has no data.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), redlatch::Error> {
    /// use redlatch::{Client, MemoryServer, RedLock};
    ///
    /// // Three independent servers, as a RedLock needs them.
    /// let servers = [(); 3].map(|()| MemoryServer::new());
    /// let mut clients = Vec::new();
    /// for server in &servers {
    ///     // They have just started, so a RedLock would wait until no older lease can be in force.
    ///     let builder = Client::builder().config(server.config()).trust_fresh_servers(true);
    ///     clients.push(builder.build().await?);
    /// }
    /// let lock = RedLock::new(clients.iter().map(|client| client.lock("ledger")));
    /// let guard = lock.lock().await?;
    /// guard.unlock().await?;
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn new() -> Self {
        clock::follow_tokio();
        Self(Server::new())
    }

    /// Returns the configuration that leads to this server, for
    /// [`ClientBuilder::config`](crate::ClientBuilder::config).
    ///
    /// The client keeps the server. A password and a database may be set as for any server, and any password lets the
    /// user `default` in; there is no other user. A URL for this server does not exist.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), redlatch::Error> {
    /// use std::time::Duration;
    /// use redlatch::{Client, MemoryServer};
    ///
    /// let server = MemoryServer::new();
    /// let one = Client::builder().config(server.config()).build().await?;
    /// let two = Client::builder()
    ///     .config(server.config())
    ///     .watchdog_lease(Duration::from_secs(5)) // all settings work as with other servers
    ///     .build()
    ///     .await?;
    ///
    /// let guard = one.lock("orders:42").lock().await?;
    /// assert!(two.lock("orders:42").try_lock().await?.is_none());
    /// guard.unlock().await?;
    /// # Ok(()) }
    /// ```
    pub fn config(&self) -> Config {
        let server = self.0.clone();
        Config::server(self.to_string(), PORT).connector(move |_| ready(server.connect()))
    }

    /// Serves a connection that came from elsewhere, until it ends: commands are read from `stream`, and the answers
    /// are written there.
    ///
    /// Use it for peers outside this process: `redis-cli`, to look into a server while a test stands still, or another
    /// process that takes part in a test. Time passes in those processes, so do not pause the clock. Only for peers
    /// that you trust: a script that never ends stops the server, and all of its clients.
    ///
    /// # Errors
    ///
    /// Those of the stream, and `ConnectionRefused` while the server is [stopped](Self::stop).
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the connection ends. What was read before has been carried out.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use redlatch::{Client, MemoryServer};
    /// use tokio::net::TcpListener;
    ///
    /// let server = MemoryServer::new();
    /// let listener = TcpListener::bind("127.0.0.1:0").await?;
    /// let address = listener.local_addr()?; // redis-cli -p PORT
    /// let served = server.clone();
    /// tokio::spawn(async move {
    ///     while let Ok((stream, _)) = listener.accept().await {
    ///         let served = served.clone();
    ///         tokio::spawn(async move { served.serve(stream).await });
    ///     }
    /// });
    ///
    /// let near = Client::builder().config(server.config()).build().await?;
    /// let far = Client::connect(format!("redis://{address}")).await?;
    /// let guard = near.lock("orders:42").lock().await?;
    /// assert!(far.lock("orders:42").is_locked().await?);
    /// guard.unlock().await?;
    /// # Ok(()) }
    /// ```
    pub async fn serve(&self, stream: impl AsyncRead + AsyncWrite) -> io::Result<()> {
        self.0.serve(stream).await
    }

    /// Stops answering requests, including those under way, until [`resume`](Self::resume). Connections stay open. New
    /// ones are accepted, and not answered either. A process that was stopped, or that hangs, behaves like this.
    ///
    /// A lock that is held then ends at its deadline, since no renewal is confirmed, and calls return
    /// [`Timeout`](crate::ErrorKind::Timeout), or [`Backend`](crate::ErrorKind::Backend) once the client has given up
    /// the connection and knows that nothing was sent.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), redlatch::Error> {
    /// use redlatch::{Client, ErrorKind, MemoryServer};
    ///
    /// let server = MemoryServer::new();
    /// let client = Client::builder().config(server.config()).build().await?;
    /// let guard = client.lock("orders:42").lock().await?;
    ///
    /// server.stop_answering();
    /// let error = client.lock("orders:43").try_lock().await.unwrap_err();
    /// assert_eq!(error.kind(), ErrorKind::Timeout);
    /// guard.lost().await; // the code under test must stop here
    /// # Ok(()) }
    /// ```
    pub fn stop_answering(&self) {
        self.0.stop_answering();
    }

    /// Answers requests again, after [`stop_answering`](Self::stop_answering). Like a process that is continued, it
    /// first answers all requests that have come in the meantime, even those of clients that no longer wait.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), redlatch::Error> {
    /// use redlatch::{Client, MemoryServer};
    ///
    /// let server = MemoryServer::new();
    /// let client = Client::builder().config(server.config()).build().await?;
    /// server.stop_answering();
    /// assert!(client.ping().await.is_err());
    /// server.resume();
    /// client.lock("orders:42").lock().await?.unlock().await?;
    /// # Ok(()) }
    /// ```
    pub fn resume(&self) {
        self.0.resume();
    }

    /// Ends all connections, and accepts new ones. The data stays.
    ///
    /// A client reconnects by itself, and finds that its locks still stand.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), redlatch::Error> {
    /// use redlatch::{Client, MemoryServer};
    ///
    /// let server = MemoryServer::new();
    /// let client = Client::builder().config(server.config()).build().await?;
    /// let guard = client.lock("orders:42").lock().await?;
    /// server.cut();
    /// guard.verify().await?; // over another connection
    /// guard.unlock().await?;
    /// # Ok(()) }
    /// ```
    pub fn cut(&self) {
        self.0.cut();
    }

    /// Ends all connections and refuses new ones, until [`start`](Self::start). The data stays, and leases go on.
    ///
    /// Calls return [`Backend`](crate::ErrorKind::Backend), and a lock that is held ends at its deadline.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), redlatch::Error> {
    /// use redlatch::{Client, ErrorKind, MemoryServer};
    ///
    /// let server = MemoryServer::new();
    /// server.stop();
    /// let connecting = Client::builder().config(server.config()).build();
    /// assert_eq!(connecting.await.unwrap_err().kind(), ErrorKind::Backend);
    /// # Ok(()) }
    /// ```
    pub fn stop(&self) {
        self.0.stop();
    }

    /// Accepts connections again, after [`stop`](Self::stop).
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), redlatch::Error> {
    /// use std::time::Duration;
    /// use redlatch::{Client, MemoryServer};
    ///
    /// let server = MemoryServer::new();
    /// let client = Client::builder().config(server.config()).build().await?;
    /// let guard = client.lock("orders:42").lock().await?;
    ///
    /// server.stop();
    /// tokio::time::sleep(Duration::from_secs(10)).await;
    /// server.start();
    /// tokio::time::sleep(Duration::from_secs(600)).await;
    /// assert!(!guard.is_lost()); // the outage was shorter than the lease
    /// guard.unlock().await?;
    /// # Ok(()) }
    /// ```
    pub fn start(&self) {
        self.0.start();
    }

    /// Ends this run of the server, and begins another one without data, as a server without persistence does when its
    /// process is replaced.
    ///
    /// A client reconnects, and finds at once that its locks are gone. Ends every other fault.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), redlatch::Error> {
    /// use std::time::Duration;
    /// use redlatch::{Client, ErrorKind, MemoryServer};
    /// use tokio::time::Instant;
    ///
    /// let server = MemoryServer::new();
    /// let client = Client::builder().config(server.config()).build().await?;
    /// let guard = client.lock("orders:42").lock().await?;
    ///
    /// server.restart_empty();
    /// let restarted = Instant::now();
    /// guard.lost().await;
    /// assert!(restarted.elapsed() < Duration::from_secs(1)); // long before the lease ends
    /// assert_eq!(guard.unlock().await.unwrap_err().kind(), ErrorKind::LeaseLost);
    /// # Ok(()) }
    /// ```
    pub fn restart_empty(&self) {
        self.0.restart_empty();
    }

    /// Returns the server with what a simulation asks of it besides.
    #[doc(hidden)]
    pub fn simulated(&self) -> &Server {
        &self.0
    }
}

impl Default for MemoryServer {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Display for MemoryServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "memory-{}", self.0.number())
    }
}

impl fmt::Debug for MemoryServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("MemoryServer")
            .field(&self.0.number())
            .finish()
    }
}
