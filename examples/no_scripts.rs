//! A lock for a user without the right to run scripts, in the format that redis-py's `Lock` and redsync share.
//!
//! `cargo run --example no_scripts`

use std::time::Duration;

use redlatch::{Client, Owner};
use redlatch_testkit::{Playground, Reply};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let server = Playground::open();
    let mut admin = server.connection();
    let mut acl = |words: &str| {
        let words: Vec<_> = ["ACL"].into_iter().chain(words.split(' ')).collect();
        match admin.command(&words) {
            Reply::Error(text) => Err(text),
            _ => Ok(()),
        }
    };
    acl("SETUSER redlatch-demo reset on >demo ~* &* +@all -@scripting")?;
    let url = server
        .url()
        .replace("redis://", "redis://redlatch-demo:demo@");

    let client = Client::connect(url).await?;
    match client.lock("report").try_lock().await {
        Err(error) => println!("as expected: {error}"),
        Ok(_) => return Err("a user without the right to run scripts ran one".into()),
    }

    let lock = client.plain_lock("report");
    let guard = lock.lock().await?;
    println!("held, and renewed:            {:?} left", guard.remaining());
    let other = lock.clone().owned_by(&Owner::unique());
    println!(
        "another owner acquires it:    {}",
        other.try_lock().await?.is_some()
    );
    guard.extend(Duration::from_secs(60)).await?;
    guard.verify().await?;
    println!("extended by transaction:      {:?} left", guard.remaining());
    guard.unlock().await?;
    let free = !lock.is_locked().await?;
    println!(
        "released by transaction:      the lock is {}",
        if free { "free" } else { "STILL HELD" }
    );
    assert!(free);

    client.close().await;
    acl("DELUSER redlatch-demo")?;
    Ok(())
}
