//! A lock without messages: its waiters retry after pauses.
//!
//! `cargo run --example spin`

use std::time::{Duration, Instant};

use redlatch::config::Backoff;
use redlatch::{Client, Error};
use redlatch_testkit::Playground;

#[tokio::main]
async fn main() -> Result<(), Error> {
    let server = Playground::open();
    let (holder, waiter) = (
        Client::connect(server.url()).await?,
        Client::connect(server.url()).await?,
    );
    let guard = holder.spin_lock("report").lock().await?;

    let pauses = Backoff::fixed(Duration::from_millis(50)).jitter(Duration::from_millis(25));
    let lock = waiter.spin_lock("report").backoff(pauses);
    let asked = Instant::now();
    let busy = lock
        .clone()
        .max_attempts(4)
        .try_lock_for(Duration::from_secs(60))
        .await?;
    assert!(busy.is_none());
    println!("busy after 4 attempts, {:?}", asked.elapsed());

    let waiting = tokio::spawn(async move {
        let guard = lock.lock().await?;
        let granted = Instant::now();
        guard.unlock().await?;
        waiter.close().await;
        Ok::<_, Error>(granted)
    });
    tokio::time::sleep(Duration::from_millis(200)).await;
    let unlocked = Instant::now();
    guard.unlock().await?;
    match waiting.await {
        Ok(granted) => println!(
            "granted {:?} after the unlock was sent, by a retry",
            granted?.saturating_duration_since(unlocked)
        ),
        Err(panic) => std::panic::resume_unwind(panic.into_panic()),
    }
    holder.close().await;
    Ok(())
}
