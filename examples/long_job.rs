//! Drop-in lease renewal for long jobs: the lease is short, so that a crash frees the lock soon, and the watchdog
//! renews it as long as the job runs.
//!
//! `cargo run --example long_job`

use std::time::Duration;

use redlatch::{Client, Error};
use redlatch_testkit::Playground;

#[tokio::main]
async fn main() -> Result<(), Error> {
    let server = Playground::open();
    let client = Client::builder()
        .url(server.url())
        .watchdog_lease(Duration::from_secs(1))
        .build()
        .await?;
    let other = Client::connect(server.url()).await?;
    let lock = client.lock("migration");

    let guard = lock.lock().await?;
    println!("the job holds the lock with a lease of 1 s, and takes 4 s");
    guard.run_until_lost(job(&client, &other)).await??;
    guard.unlock().await?;

    let free = !lock.is_locked().await?;
    println!(
        "the job is done, and the lock is {}",
        if free { "free" } else { "STILL HELD" }
    );
    assert!(free);
    client.close().await;
    other.close().await;
    Ok(())
}

async fn job(client: &Client, other: &Client) -> Result<(), Error> {
    for second in 1..=4 {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let left = client
            .lock("migration")
            .remaining_lease()
            .await?
            .unwrap_or_default();
        let intruder = other.lock("migration").try_lock().await?.is_some();
        println!(
            "after {second} s the lease has {left:?} left; another client acquires the lock: {intruder}"
        );
        assert!(!intruder);
    }
    Ok(())
}
