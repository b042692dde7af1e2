//! Tests your own code: locks on a server in memory, with nothing installed.
//!
//! `cargo run --example in_memory --features memory`

use std::time::Duration;

use redlatch::{Client, Error, MemoryServer};

/// The code under test: at most one process at a time pays out an order, and gives up after three seconds.
async fn pay_out(client: &Client, order: u64) -> Result<bool, Error> {
    let lock = client.lock(format!("orders:{order}"));
    let Some(guard) = lock.try_lock_for(Duration::from_secs(3)).await? else {
        return Ok(false);
    };
    // ..
    guard.unlock().await?;
    Ok(true)
}

// The clock is paused: waits take no time.
#[tokio::main(flavor = "current_thread", start_paused = true)]
async fn main() -> Result<(), Error> {
    let server = MemoryServer::new();
    let here = Client::builder().config(server.config()).build().await?;
    let there = Client::builder().config(server.config()).build().await?;

    println!("free: paid out is {}", pay_out(&here, 42).await?);
    let guard = there.lock("orders:42").lock().await?;
    println!("held elsewhere: paid out is {}", pay_out(&here, 42).await?);

    server.stop_answering();
    println!(
        "the server hangs: {}",
        pay_out(&here, 42).await.unwrap_err()
    );
    guard.lost().await;
    println!("and the lock that is held is lost at its deadline");
    Ok(())
}
