//! A lock for a user that may run no scripts, in the format that redis-py's `Lock` and redsync share.
//!
//! `cargo run --example no_scripts`

use std::time::Duration;

use fred::clients::Client as Fred;
use fred::interfaces::ClientLike;
use fred::types::config::Config;
use fred::types::{ClusterHash, CustomCommand};
use redlatch::{Client, Owner};
use redlatch_testkit::Playground;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let server = Playground::open();
    let admin = Fred::new(Config::from_url(server.url())?, None, None, None);
    admin.init().await?;
    let acl = |words: &'static str| {
        let command = CustomCommand::new_static("ACL", ClusterHash::FirstKey, false);
        admin.custom::<(), _>(command, words.split(' ').collect())
    };
    acl("SETUSER redlatch-demo reset on >demo ~* &* +@all -@scripting").await?;
    let url = server
        .url()
        .replace("redis://", "redis://redlatch-demo:demo@");

    let client = Client::connect(url).await?;
    match client.lock("report").try_lock().await {
        Err(error) => println!("as expected: {error}"),
        Ok(_) => return Err("a script was run by a user who may run none".into()),
    }

    let lock = client.plain_lock("report");
    let guard = lock.lock().await?;
    println!("held, and renewed:            {:?} left", guard.remaining());
    let other = lock.clone().owned_by(&Owner::unique());
    println!(
        "another owner gets in:        {}",
        other.try_lock().await?.is_some()
    );
    guard.extend(Duration::from_secs(60)).await?;
    guard.verify().await?;
    println!("extended by transaction:      {:?} left", guard.remaining());
    guard.unlock().await?;
    let free = !lock.is_locked().await?;
    println!(
        "given back by transaction:    the lock is {}",
        if free { "free" } else { "STILL HELD" }
    );
    assert!(free);

    client.close().await;
    acl("DELUSER redlatch-demo").await?;
    admin.quit().await?;
    Ok(())
}
