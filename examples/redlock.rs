//! A lock over three servers: with one killed the lock is granted, with two killed it is not.
//!
//! `cargo run --example redlock`

use std::time::{Duration, Instant};

use redlatch::{Client, Error, ErrorKind, RedLock};
use redlatch_testkit::Server;

#[tokio::main]
async fn main() -> Result<(), Error> {
    let servers = [Server::start(), Server::start(), Server::start()];
    let mut clients = Vec::new();
    for server in &servers {
        // These servers have just started. Without this setting they would abstain for a minute, since the start may
        // have been a restart.
        let client = Client::builder().url(server.url());
        clients.push(client.trust_fresh_servers(true).build().await?);
    }
    let members = clients.iter().map(|client| client.lock("report"));
    let lock = RedLock::new(members);

    let guard = lock.lock().await?;
    println!(
        "three servers: granted, for {:.1?} unless it is renewed",
        guard.remaining()
    );
    guard.unlock().await?;

    servers[0].kill();
    let asked = Instant::now();
    let guard = lock.lock().await?;
    println!(
        "one killed:    granted by the other two, after {:.1?}",
        asked.elapsed()
    );

    servers[1].kill();
    let lost = Instant::now();
    match guard.verify().await {
        Ok(()) => println!("two killed:    still confirmed, which must not happen"),
        Err(error) => println!(
            "two killed:    the holder verifies its hold and is told, after {:.1?}: {error}",
            lost.elapsed()
        ),
    }
    match lock.try_lock_for(Duration::from_millis(500)).await {
        Err(error) if error.kind() == ErrorKind::Quorum => {
            println!("               the next caller is told: {error}");
        }
        other => println!("               the next caller: {other:?}, which must not happen"),
    }
    drop(guard);
    for client in &clients {
        client.close().await;
    }
    Ok(())
}
