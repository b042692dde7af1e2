//! The server in memory: next to a real one, with faults, and by a clock that a test moves.
#![cfg(feature = "memory")]
#![allow(
    clippy::expect_used,
    clippy::unwrap_used,
    reason = "a test fails by panicking"
)]
#![allow(unreachable_pub, reason = "shared with other test programs")]

mod call;
mod faults;
mod mended;
mod permits;
mod same;
mod served;
mod sets;
#[path = "../support/mod.rs"]
mod support;
mod time;
mod unpolled;
mod unpolled_adopted;

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use redlatch::{Client, MemoryServer};

async fn client(server: &MemoryServer) -> Client {
    Client::builder()
        .config(server.config())
        .build()
        .await
        .unwrap()
}

/// Starts three servers that count for a RedLock at once, and returns a client of each.
async fn three(watchdog_lease: Duration) -> Vec<Client> {
    let mut clients = Vec::new();
    for _ in 0..3 {
        let builder = Client::builder().config(MemoryServer::new().config());
        let builder = builder.trust_fresh_servers(true);
        let client = builder.watchdog_lease(watchdog_lease).build();
        clients.push(client.await.unwrap());
    }
    clients
}

/// Counts the commands that are meant, by their words, once the server has carried them out.
fn counted(
    server: &MemoryServer,
    is_meant: impl Fn(&[Vec<u8>]) -> bool + Send + Sync + 'static,
) -> Arc<AtomicUsize> {
    let count = Arc::new(AtomicUsize::new(0));
    let counted = count.clone();
    server.simulated().watch(move |seen| {
        let is_done = seen.told.is_some();
        counted.fetch_add(usize::from(is_done && is_meant(seen.words)), Relaxed);
    });
    count
}

/// Starts a server with two clients.
async fn two() -> (MemoryServer, Client, Client) {
    let server = MemoryServer::new();
    let (one, two) = (client(&server).await, client(&server).await);
    (server, one, two)
}
