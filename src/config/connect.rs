//! How connections are opened, where that is not left to the network of this machine.

use std::io;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use tokio::io::{AsyncRead, AsyncWrite};

use super::Config;
use super::Given;

/// Opens the connections of a client: turns an address into a stream that can be read and written. Passed to
/// [`Config::connector`].
///
/// Use it if something lies between a client and its servers: a SOCKS proxy, an SSH tunnel, a service mesh, or a
/// simulated network in a test. Without a connector, a client resolves the host and connects by TCP, or connects to the
/// unix socket.
///
/// A client opens every connection through it, reconnects included: those for commands, for messages and for
/// transactions, to sentinels and to all servers that a cluster or sentinels name. The stream then carries TLS, if it
/// is configured, the login, and the choice of the database. A call that takes longer than
/// [`connect_timeout`](Config::connect_timeout) is dropped, and one that panics has failed.
///
/// A closure that takes an [`Address`] and returns a future implements it.
///
/// # What a stream has to do
///
/// A stream sends what is written without further calls, or when it is flushed. Dropping the stream ends the
/// connection. A guard that is dropped writes its release at once, even as its runtime ends, so a stream should take
/// bytes without waiting for another task. It may be polled from any thread.
///
/// # Examples
///
/// ```
/// # redlatch_testkit::doc(async |url| {
/// # let port = url.rsplit_once(':').unwrap().1.parse::<u16>().unwrap();
/// use redlatch::config::Address;
/// use redlatch::{Client, Config};
/// use tokio::net::TcpStream;
///
/// // A tunnel ends on this machine: the name of the server is known only at its other end.
/// let tunnel = move |_: Address| TcpStream::connect(("127.0.0.1", port));
/// let config = Config::server("redis.internal", 6379).connector(tunnel);
/// let client = Client::builder().config(config).build().await?;
/// let guard = client.lock("orders:42").lock().await?;
/// guard.unlock().await?;
/// # client.close().await;
/// # Ok::<(), redlatch::Error>(()) });
/// ```
///
/// As a type of its own:
///
/// ```
/// use std::collections::HashMap;
/// use std::io;
/// use redlatch::config::{Address, Connect};
/// use tokio::net::TcpStream;
///
/// /// Servers of a cluster behind a gateway, which has a port for each of them.
/// struct Gateway {
///     ports: HashMap<Address, u16>,
/// }
///
/// impl Connect for Gateway {
///     type Stream = TcpStream;
///
///     async fn connect(&self, address: Address) -> io::Result<TcpStream> {
///         let port = self.ports.get(&address).ok_or(io::ErrorKind::AddrNotAvailable)?;
///         TcpStream::connect(("gateway.internal", *port)).await
///     }
/// }
/// # let _ = Gateway { ports: HashMap::new() };
/// ```
pub trait Connect: Send + Sync + 'static {
    /// An open connection.
    type Stream: AsyncRead + AsyncWrite + Send + 'static;

    /// Opens a connection to this address.
    ///
    /// # Errors
    ///
    /// Any error means that the server cannot be reached. Calls return it as the reason, and the client tries again.
    /// After `ConnectionRefused`, which says that nobody listens there, the client tries more often.
    ///
    /// # Cancel safety
    ///
    /// The client drops the future when its time is over, and when the client closes. The future must then leave no
    /// connection behind.
    fn connect(&self, address: Address) -> impl Future<Output = io::Result<Self::Stream>> + Send;
}

impl<F, R, S> Connect for F
where
    F: Fn(Address) -> R + Send + Sync + 'static,
    R: Future<Output = io::Result<S>> + Send,
    S: AsyncRead + AsyncWrite + Send + 'static,
{
    type Stream = S;

    fn connect(&self, address: Address) -> impl Future<Output = io::Result<S>> + Send {
        self(address)
    }
}

/// The address of a server or a sentinel: as configured, or as a cluster or a sentinel names it. Passed to a
/// [`Connect`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Address {
    /// A host, by its name or its IP address, and a port.
    Tcp {
        /// Without brackets, if it is an IPv6 address.
        host: String,
        /// From 1 on.
        port: u16,
    },
    /// The path of a unix socket.
    Unix(PathBuf),
}

/// A [`Connect`] of any type.
pub(crate) type Connector = Given<dyn DynConnect>;

/// An open connection of any type.
pub(crate) type Stream = Pin<Box<dyn ByteStream>>;

pub(crate) trait ByteStream: AsyncRead + AsyncWrite + Send {}

impl<S: AsyncRead + AsyncWrite + Send> ByteStream for S {}

/// What a [`Connect`] does, with types that depend on nothing.
pub(crate) trait DynConnect: Send + Sync {
    fn open(&self, address: Address) -> BoxFuture<'_, io::Result<Stream>>;
}

impl<C: Connect> DynConnect for C {
    fn open(&self, address: Address) -> BoxFuture<'_, io::Result<Stream>> {
        Box::pin(async { Ok(Box::pin(self.connect(address).await?) as Stream) })
    }
}

setters! { Config:
    /// Opens all connections by `connect` instead of the network of this machine. [`Connect`] has an example.
    connector(connect: impl Connect) => connector = Some(Given(Arc::new(connect)));
}
