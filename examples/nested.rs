//! Nested locking within one task: a function that holds a lock calls another function that acquires it again.
//!
//! `cargo run --example nested`

use redlatch::{Client, Error, Owner, ReentrantLock};
use redlatch_testkit::Playground;

#[tokio::main]
async fn main() -> Result<(), Error> {
    let server = Playground::open();
    let client = Client::connect(server.url()).await?;
    let account = client.lock("account:7");
    let other = account.clone().owned_by(&Owner::unique());

    transfer(&account, &other).await?;

    let free = !account.is_locked().await?;
    println!(
        "after transfer(): the account is {}",
        if free { "free" } else { "STILL HELD" }
    );
    assert!(free);
    client.close().await;
    Ok(())
}

async fn transfer(account: &ReentrantLock, other: &ReentrantLock) -> Result<(), Error> {
    let guard = account.lock().await?;
    println!(
        "transfer() holds the account, hold count {}",
        account.hold_count().await?
    );
    book(account).await?;
    println!(
        "book() has returned,          hold count {}",
        account.hold_count().await?
    );
    println!(
        "another owner acquires it meanwhile: {}",
        other.try_lock().await?.is_some()
    );
    guard.unlock().await
}

/// Can be called by itself, and from a caller that already holds the account.
async fn book(account: &ReentrantLock) -> Result<(), Error> {
    let guard = account.lock().await?;
    println!(
        "  book() acquired it again,   hold count {}",
        account.hold_count().await?
    );
    guard.unlock().await
}
