//! A request id as the owner: locked in one process, acquired again and released in another.
//!
//! `cargo run --example request_id`

use std::env;
use std::process::Command;

use redlatch::{Client, Owner};
use redlatch_testkit::Playground;

type Failure = Box<dyn std::error::Error + Send + Sync>;

const REQUEST: &str = "req-7";
const LOCK: &str = "order:42";

fn main() -> Result<(), Failure> {
    match env::args().collect::<Vec<_>>().as_slice() {
        [_, role, url] if role == "next" => next(url),
        _ => first(),
    }
}

#[tokio::main]
async fn first() -> Result<(), Failure> {
    let server = Playground::open();
    let client = Client::connect(server.url()).await?;
    let owner = Owner::named(REQUEST);
    let lock = client.lock(LOCK);
    let guard = lock.clone().owned_by(&owner).lock().await?;
    println!("here, locked under {owner}");
    // From now on nobody renews the lock: it lasts until its lease ends, unless the next process takes it over.
    drop(guard.detach());
    println!("here, left to the next process that works for {owner}");

    let next = Command::new(env::current_exe()?)
        .args(["next", server.url()])
        .status()?;
    assert!(next.success());
    assert!(!lock.is_locked().await?);
    println!("here, the lock is free");
    client.close().await;
    Ok(())
}

#[tokio::main]
async fn next(url: &str) -> Result<(), Failure> {
    let client = Client::connect(url).await?;
    let stranger = client.lock(LOCK).try_lock().await?;
    println!(
        "  there, another owner acquires it: {}",
        if stranger.is_some() { "yes" } else { "no" }
    );
    assert!(stranger.is_none());

    let lock = client.lock(LOCK).owned_by(&Owner::named(REQUEST));
    let Some(taken_over) = lock.adopt().await? else {
        return Err("nothing was left to adopt".into());
    };
    println!("  there, {REQUEST} takes the lock over, and its lease is renewed");
    let inner = lock.lock().await?;
    println!(
        "  there, it acquires the lock again: held {} times",
        lock.hold_count().await?
    );
    inner.unlock().await?;
    taken_over.unlock().await?;
    println!("  there, released");
    client.close().await;
    Ok(())
}
