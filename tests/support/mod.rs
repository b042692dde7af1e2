//! Helpers that several test files share.
#![allow(
    dead_code,
    unreachable_pub,
    reason = "each test file uses its own part"
)]

#[cfg(feature = "memory")]
pub mod listening;
pub mod mixed;
pub mod place;
pub mod polls;
pub mod probe;
pub mod rogue;
pub mod scene;
pub mod soak;
pub mod stop;

use std::time::{Duration, Instant};

use redlatch::{Client, ClientBuilder};
use redlatch_testkit::{Server, ServerBuilder, skip};

/// Returns the builder of a client for this server that notices faults soon enough for a test.
pub fn builder(url: impl AsRef<str>) -> ClientBuilder {
    impatient(Client::builder().url(url))
}

/// Has a client notice faults soon enough for a test.
pub fn impatient(builder: ClientBuilder) -> ClientBuilder {
    builder.command_timeout(Duration::from_millis(300))
}

/// Connects a client with default settings to this server.
pub async fn client(server: &Server) -> Client {
    Client::connect(server.url())
        .await
        .expect("the server is up")
}

/// Starts a server without data, and connects a client with default settings to it.
pub async fn start() -> (Server, Client) {
    let server = Server::start();
    let client = client(&server).await;
    (server, client)
}

/// Starts a server without data, and connects two clients with default settings to it.
pub async fn start_two() -> (Server, Client, Client) {
    let (server, one) = start().await;
    let two = client(&server).await;
    (server, one, two)
}

/// Starts a server with TLS, for clients that use the process's provider of cryptography. Returns `None` if the server
/// was built without TLS.
pub fn with_tls(builder: ServerBuilder) -> Option<Server> {
    choose_provider();
    match builder.try_start() {
        Ok(server) => Some(server),
        Err(log) if log.to_lowercase().contains("tls") => {
            skip("tls", "this server was built without TLS");
            None
        }
        Err(log) => panic!("{log}"),
    }
}

/// Installs a provider of cryptography for this process, unless there is one: with all features redlatch chooses none.
pub fn choose_provider() {
    let provider = rustls::crypto::ring::default_provider();
    provider.install_default().ok();
}

/// Returns the SHA-1 by which a script is sent, to be looked for in a request.
pub fn sha(script: &str) -> String {
    sha1_smol::Sha1::from(redlatch_testkit::script(script))
        .digest()
        .to_string()
}

/// Waits until another task, process or server has made a condition true. Fails after ten seconds.
pub async fn eventually(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(10);
    while !condition().await {
        assert!(Instant::now() < end, "not within ten seconds: {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// Waits until a client's maps are empty: no lock in use, no hold, no channel.
pub async fn eventually_idle(client: &Client) {
    eventually("the client is idle", async || {
        let shown = format!("{client:?}");
        ["locks: 0,", "holds: 0,", "channels: 0,"]
            .iter()
            .all(|part| shown.contains(part))
    })
    .await;
}

/// Waits until a client knows that its server is away. Until then, a request may be written and lost.
pub async fn eventually_unreachable(client: &Client) {
    let lock = client.lock("away");
    eventually("the client knows that the server is away", async || {
        // A query, which leaves nothing behind wherever it gets lost.
        let asked = lock.is_locked().await;
        asked.is_err_and(|error| error.to_string().contains("not sent"))
    })
    .await;
}
