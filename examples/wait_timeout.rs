//! Acquiring with a wait limit: the call waits at most that long, and is woken by the unlock rather than by polling.
//!
//! `cargo run --example wait_timeout`

use std::time::{Duration, Instant};

use redlatch::{Client, Error};
use redlatch_testkit::Playground;

#[tokio::main]
async fn main() -> Result<(), Error> {
    let server = Playground::open();
    let holder = Client::connect(server.url()).await?;
    let waiter = Client::connect(server.url()).await?;

    let guard = holder.lock("report").lock().await?;
    println!("the first client holds the lock");

    let asked = Instant::now();
    let outcome = waiter
        .lock("report")
        .try_lock_for(Duration::from_millis(500))
        .await?;
    let word = if outcome.is_none() { "busy" } else { "granted" };
    println!(
        "the second client waited at most 500 ms: {word} after {:?}",
        asked.elapsed()
    );
    assert!(outcome.is_none());

    let waiting = tokio::spawn(async move {
        let outcome = waiter
            .lock("report")
            .try_lock_for(Duration::from_secs(10))
            .await?;
        let granted = Instant::now();
        if let Some(guard) = outcome {
            guard.unlock().await?;
        }
        waiter.close().await;
        Ok::<_, Error>(granted)
    });
    println!("it waits again, at most 10 s; the first client works for a second and unlocks");
    tokio::time::sleep(Duration::from_secs(1)).await;
    let unlocked = Instant::now();
    guard.unlock().await?;
    match waiting.await {
        Ok(granted) => println!(
            "granted {:?} after the unlock was sent",
            granted?.saturating_duration_since(unlocked)
        ),
        Err(panic) => std::panic::resume_unwind(panic.into_panic()),
    }
    holder.close().await;
    Ok(())
}
