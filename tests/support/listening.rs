//! A server in memory that also listens on a port, for what looks at it past the library.

use redlatch::MemoryServer;
use redlatch_testkit::Connection;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;

/// A server in memory, with a port for as long as this value lives.
pub struct Listening {
    pub server: MemoryServer,
    pub port: u16,
    /// Serves the connections to the port.
    runtime: Option<Runtime>,
}

impl Listening {
    pub fn start() -> Self {
        let server = MemoryServer::new();
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        let runtime = builder.worker_threads(1).enable_all().build();
        let runtime = runtime.expect("a thread");
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = listener.local_addr().expect("it is bound").port();
        listener.set_nonblocking(true).expect("a socket");
        let served = server.clone();
        runtime.spawn(async move {
            let listener = TcpListener::from_std(listener).expect("a listener");
            while let Ok((stream, _)) = listener.accept().await {
                stream.set_nodelay(true).ok();
                let served = served.clone();
                tokio::spawn(async move { served.serve(stream).await });
            }
        });
        Self {
            server,
            port,
            runtime: Some(runtime),
        }
    }

    pub fn connection(&self) -> Connection {
        Connection::open(self.port)
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        // A runtime that is dropped on another one would wait there for its tasks.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}
