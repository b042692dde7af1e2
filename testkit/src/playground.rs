use std::env;

use crate::server::Server;

/// The server that an example runs against.
#[derive(Debug)]
pub struct Playground {
    url: String,
    _server: Option<Server>,
}

impl Playground {
    /// The server that `REDIS_URL` names, else a private one; prints which.
    ///
    /// # Panics
    /// As [`Server::start`] does.
    pub fn open() -> Self {
        let (url, server) = match env::var("REDIS_URL") {
            Ok(url) => (url, None),
            Err(_) => {
                let server = Server::start();
                (server.url(), Some(server))
            }
        };
        match &server {
            None => println!("using the server of REDIS_URL"),
            Some(_) => println!("using a private server at {url} (set REDIS_URL for another)"),
        }
        Self {
            url,
            _server: server,
        }
    }

    /// The URL for clients.
    pub fn url(&self) -> &str {
        &self.url
    }
}

/// Runs the body of a doc test against a private server.
pub fn doc<E: std::fmt::Debug>(body: impl AsyncFnOnce(&str) -> Result<(), E>) {
    let server = Server::start();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build();
    let runtime = runtime.expect("a tokio runtime");
    runtime
        .block_on(body(&server.url()))
        .expect("the example succeeds");
}
