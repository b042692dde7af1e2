use std::env;

use crate::connection::Connection;
use crate::reply::Reply;
use crate::server::Server;

/// The server that an example runs against.
#[derive(Debug)]
pub struct Playground {
    url: String,
    _server: Option<Server>,
}

impl Playground {
    /// Uses the server that `REDIS_URL` names, or else starts a private one. Prints which of the two it is.
    ///
    /// # Panics
    /// Panics as [`Server::start`] does.
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

    /// Returns the URL for clients.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Opens a connection that bypasses the crate, logged in as the URL says. The server must be one without TLS.
    ///
    /// # Panics
    /// Panics if the server cannot be reached, or refuses the login.
    pub fn connection(&self) -> Connection {
        let rest = self.url.split_once("://").map_or("", |(_, rest)| rest);
        let authority = rest.split(['/', '?']).next().unwrap_or_default();
        let (login, server) = authority.rsplit_once('@').unwrap_or(("", authority));
        let (host, port) = server.rsplit_once(':').unwrap_or((server, "6379"));
        let mut connection = Connection::open_at(host, port.parse().expect("a port"));
        let login: Vec<_> = login.split(':').filter(|word| !word.is_empty()).collect();
        if !login.is_empty() {
            let reply = connection.command(&[&["AUTH"], &login[..]].concat());
            assert_eq!(reply, Reply::Status("OK".to_owned()));
        }
        connection
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
