//! Connections that the application opens: every one comes through its connector, and whatever it returns carries them.

use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use redlatch::config::{Address, Connect, Tls};
use redlatch::{Client, Config, ErrorKind};
use redlatch_testkit::{Cluster, Sentinels, Server};
use tokio::io::{
    AsyncRead, AsyncWrite, BufStream, DuplexStream, ReadBuf, copy_bidirectional, duplex,
};
use tokio::net::TcpStream;
use tokio::sync::mpsc;

use crate::support::probe::{self, millis, soon};
use crate::support::{client, eventually, with_tls};

/// Takes turns on a lock, also by a transaction, over connections that this opens.
async fn take_turns(config: Config) {
    // Some of these connections are slow.
    let builder = Client::builder()
        .config(config)
        .command_timeout(probe::secs(60));
    let client = builder.build().await.unwrap();
    probe::take_turns(&client).await;
    let plain = client.plain_lock("plain");
    let plain = plain.release_by(redlatch::config::ReleaseBy::Transaction);
    let guard = soon(plain.lock()).await.unwrap();
    soon(guard.unlock()).await.unwrap();
    client.close().await;
}

/// Connects to a host of this name on this machine, and notes the port.
#[derive(Clone)]
struct Named(&'static str, Arc<Mutex<Vec<u16>>>);

impl Named {
    fn new(name: &'static str) -> Self {
        Self(name, Arc::default())
    }

    /// Returns the ports in the order in which they were connected to.
    fn ports(&self) -> Vec<u16> {
        self.1.lock().unwrap().clone()
    }
}

impl Connect for Named {
    type Stream = TcpStream;

    async fn connect(&self, address: Address) -> io::Result<TcpStream> {
        let Address::Tcp { host, port } = address else {
            panic!("{address:?}");
        };
        assert_eq!(host, self.0);
        self.1.lock().unwrap().push(port);
        TcpStream::connect(("127.0.0.1", port)).await
    }
}

#[tokio::test]
async fn every_connection_to_a_server_comes_through_the_connector() {
    let server = Server::start();
    let by = Named::new("redis.internal");
    take_turns(Config::server("redis.internal", server.port()).connector(by.clone())).await;
    // For commands, for messages and for the transaction.
    assert_eq!(by.ports(), [server.port(); 3]);
}

#[tokio::test]
async fn sentinels_and_the_primary_that_they_name_come_through_it() {
    let set = Sentinels::start();
    let by = Named::new("127.0.0.1");
    let config = Config::from_url(set.url()).unwrap().connector(by.clone());
    take_turns(config).await;
    let ports = by.ports();
    let (first, primary) = (set.sentinels()[0].port(), set.primary().port());
    assert!(ports.contains(&first), "{ports:?}");
    let to_primary = ports.iter().filter(|port| **port == primary).count();
    assert_eq!(to_primary, 3, "{ports:?}");
}

#[tokio::test]
async fn servers_that_a_cluster_names_come_through_it() {
    let cluster = Cluster::start();
    let by = Named::new("127.0.0.1");
    let one = cluster.nodes()[0].port();
    let config = Config::cluster([("127.0.0.1", one)]).connector(by.clone());
    let client = Client::builder().config(config).build().await.unwrap();
    for name in 0..64 {
        let guard = client.lock(name.to_string()).lock().await.unwrap();
        guard.unlock().await.unwrap();
    }
    for node in cluster.nodes() {
        let (ports, port) = (by.ports(), node.port());
        assert!(ports.contains(&port), "{port}: {ports:?}");
    }
    client.close().await;
}

#[tokio::test]
async fn unix_socket_comes_through_it_with_its_path() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("redis.sock");
    let _server = Server::builder().arg("unixsocket", path.display()).start();
    let expected = Address::Unix(path.clone());
    let by = move |address: Address| {
        assert_eq!(address, expected);
        let Address::Unix(path) = address else {
            unreachable!()
        };
        tokio::net::UnixStream::connect(path)
    };
    take_turns(Config::unix_socket(&path).connector(by)).await;
}

#[tokio::test]
async fn tls_is_set_up_on_what_the_connector_returns() {
    let Some(server) = with_tls(Server::builder().tls()) else {
        return;
    };
    let port = server.port();
    let tls = Tls::new().roots(server.ca_pem()).server_name("localhost");
    for room in [100, 100_000] {
        let by = move |_: Address| async move { Ok(narrow(port, room).await) };
        let config = Config::server("redis.internal", 6379).connector(by);
        take_turns(config.tls(tls.clone())).await;
    }
    // What the certificate names is checked all the same.
    let by = move |_: Address| TcpStream::connect(("127.0.0.1", port));
    let config = Config::server("redis.internal", 6379).connector(by);
    let config = config.tls(Tls::new().roots(server.ca_pem()));
    let error = Client::builder().config(config).build().await.unwrap_err();
    assert!(error.to_string().contains("tls_server_name"), "{error}");
}

/// Connects to a server through a pipe that holds only so many bytes in each direction.
async fn narrow(port: u16, room: usize) -> DuplexStream {
    let mut server = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    let (near, mut far) = duplex(room);
    tokio::spawn(async move { copy_bidirectional(&mut far, &mut server).await });
    near
}

/// Writes from calls, from drops and from the writing task take turns on a stream that takes a few bytes at a time. If one
/// took the wake-up that another waits for, what is left over would stay.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_narrow_stream_does_not_take_at_once_is_written_though_others_write_meanwhile() {
    let server = Server::start();
    let port = server.port();
    let by = move |_: Address| async move { Ok(narrow(port, 64).await) };
    let config = Config::server("redis.internal", 6379).connector(by);
    let builder = Client::builder().config(config);
    let client = builder
        .command_timeout(probe::secs(60))
        .build()
        .await
        .unwrap();
    let mut tasks = tokio::task::JoinSet::new();
    for task in 0..32 {
        let client = client.clone();
        tasks.spawn(async move {
            for round in 0..20 {
                let lock = client.lock(format!("{task}:{round}"));
                let guard = lock.lock().await.unwrap();
                match round % 2 {
                    0 => drop(guard),
                    _ => guard.unlock().await.unwrap(),
                }
            }
        });
    }
    let done = tokio::time::timeout(probe::secs(60), tasks.join_all()).await;
    done.expect("nothing is left over");
    eventually("all is free", async || {
        server.connection().keys().is_empty()
    })
    .await;
    client.close().await;
}

#[tokio::test]
async fn what_a_stream_gathers_is_flushed() {
    let server = Server::start();
    let port = server.port();
    let by = move |_: Address| async move {
        let stream = TcpStream::connect(("127.0.0.1", port)).await?;
        Ok(BufStream::new(stream))
    };
    take_turns(Config::server("redis.internal", 6379).connector(by)).await;
}

/// A stream that gathers what is written, and whose flush takes some polls.
struct Slow(BufStream<TcpStream>, u8);

impl AsyncRead for Slow {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, buffer)
    }
}

impl AsyncWrite for Slow {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.1 = 3;
        Pin::new(&mut self.0).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.1 > 0 {
            self.1 -= 1;
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }
}

#[tokio::test]
async fn flush_that_takes_its_time_is_gone_on_with() {
    let server = Server::start();
    let port = server.port();
    let by = move |_: Address| async move {
        let stream = TcpStream::connect(("127.0.0.1", port)).await?;
        Ok(Slow(BufStream::new(stream), 0))
    };
    take_turns(Config::server("redis.internal", 6379).connector(by)).await;
}

/// The task that drops its guard has used up its share of the runtime's time, and the runtime ends right after: nobody
/// would write later.
#[test]
fn guard_dropped_as_its_runtime_ends_is_released_over_such_a_stream() {
    let server = Server::start();
    let port = server.port();
    let runtime = || {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        builder.enable_all().build().unwrap()
    };
    for _ in 0..10 {
        runtime().block_on(async {
            let by = move |_: Address| TcpStream::connect(("127.0.0.1", port));
            let config = Config::server("redis.internal", 6379).connector(by);
            let client = Client::builder().config(config).build().await.unwrap();
            let guard = client.lock("k").lock().await.unwrap();
            let (sender, mut receiver) = mpsc::unbounded_channel();
            (0..1_000).for_each(|_| sender.send(()).unwrap());
            while tokio::task::coop::has_budget_remaining() {
                receiver.recv().await;
            }
            drop(guard);
        });
        runtime().block_on(eventually("the lock is free", async || {
            server.connection().keys().is_empty()
        }));
    }
}

#[tokio::test]
async fn connector_that_fails_or_hangs_is_an_error_that_says_so() {
    let connect = async |config: Config| {
        let config = config.connect_timeout(millis(50));
        Client::builder().config(config).build().await.unwrap_err()
    };
    let here = || Config::server("redis.internal", 6379);
    let closed = here().connector(async |_: Address| -> io::Result<TcpStream> {
        Err(io::Error::other("the tunnel is closed"))
    });
    let hangs = here()
        .connector(async |_: Address| -> io::Result<TcpStream> { std::future::pending().await });
    for (config, words) in [(closed, "the tunnel is closed"), (hangs, "no answer")] {
        assert!(!format!("{config:?}").contains("tunnel"));
        let error = connect(config).await;
        assert_eq!(error.kind(), ErrorKind::Backend);
        let text = error.to_string();
        assert!(text.contains("redis.internal:6379"), "{text}");
        assert!(text.contains(words), "{text}");
    }
}

/// A connector that hands out the same kind of stream as before: the client makes its way back by it.
#[tokio::test]
async fn broken_connection_is_replaced_through_the_connector() {
    let server = Server::start();
    let by = Named::new("redis.internal");
    let config = Config::server("redis.internal", server.port()).connector(by.clone());
    let one = Client::builder().config(config).build().await.unwrap();
    let guard = one.lock("k").lock().await.unwrap();
    let kill = ["CLIENT", "KILL", "TYPE", "normal"];
    server.connection().command(&kill);
    eventually("there is another connection", async || by.ports().len() > 2).await;
    guard.verify().await.unwrap();
    let two = client(&server).await;
    assert!(two.lock("k").try_lock().await.unwrap().is_none());
    guard.unlock().await.unwrap();
}

#[tokio::test]
async fn connector_that_panics_is_asked_again() {
    let server = Server::start();
    let port = server.port();
    let panics = Arc::new(AtomicBool::new(true));
    let by = {
        let panics = panics.clone();
        move |_: Address| {
            let panics = panics.load(Ordering::Relaxed);
            async move {
                assert!(!panics, "not now");
                TcpStream::connect(("127.0.0.1", port)).await
            }
        }
    };
    let config = Config::server("redis.internal", 6379).connector(by);
    let client = Client::builder().config(config).connect_lazily();
    let client = client.command_timeout(millis(200)).build().await.unwrap();
    let lock = client.lock("k");
    eventually("the reason is known", async || {
        let error = lock.try_lock().await.unwrap_err();
        error.to_string().contains("the connector panicked")
    })
    .await;
    panics.store(false, Ordering::Relaxed);
    eventually("it is connected", async || lock.try_lock().await.is_ok()).await;
    client.close().await;
}
