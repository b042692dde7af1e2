//! What several test files share.
#![allow(
    dead_code,
    unreachable_pub,
    reason = "each test file uses its own part"
)]

pub mod place;
pub mod polls;
pub mod probe;
pub mod rogue;
pub mod scene;

use std::time::{Duration, Instant};

use redlatch::{Client, ClientBuilder};
use redlatch_testkit::Server;

/// A client of this server that notices faults within a test's patience.
pub fn builder(url: impl AsRef<str>) -> ClientBuilder {
    Client::builder()
        .url(url)
        .command_timeout(Duration::from_millis(300))
}

/// A client of this server, with default settings.
pub async fn client(server: &Server) -> Client {
    Client::connect(server.url())
        .await
        .expect("the server is up")
}

/// A script of `lua/`, behind the one that stands ahead of it, if any does.
pub fn source(script: &str) -> String {
    let ahead: &[&str] = match script {
        "rw_release" | "rw_force_release" => &["rw_fit"],
        "rw_extend" => &["rw_fit", "lease_end"],
        "plain_extend" => &["lease_end"],
        "lock_extend" => &["lock_share", "lease_end"],
        "lock_move" | "fenced_move" | "fair_release" => &["lock_share", "lock_take_out"],
        "lock_release" | "lock_release_all" => &["lock_take_out"],
        "lock_acquire" | "lock_acquire_all" | "lock_reenter" | "lock_adopt" | "lock_renew"
        | "fenced_acquire" | "fair_acquire" => &["lock_share"],
        _ => &[],
    };
    let file = |script| {
        let path = format!("{}/lua/{script}.lua", env!("CARGO_MANIFEST_DIR"));
        std::fs::read_to_string(path).expect("a script of lua/")
    };
    ahead.iter().copied().chain([script]).map(file).collect()
}

/// The SHA-1 that a script of `lua/` is sent by: what to look for in a request.
pub fn sha(script: &str) -> String {
    sha1_smol::Sha1::from(source(script)).digest().to_string()
}

/// Waits for something that another task, process or server is about to do; fails after ten seconds.
pub async fn eventually(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(10);
    while !condition().await {
        assert!(Instant::now() < end, "not within ten seconds: {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// Waits until a client has nothing in its maps: no lock in use, no hold, no channel.
pub async fn eventually_idle(client: &Client) {
    eventually("the client is idle", async || {
        let shown = format!("{client:?}");
        ["locks: 0,", "holds: 0,", "channels: 0,"]
            .iter()
            .all(|part| shown.contains(part))
    })
    .await;
}
