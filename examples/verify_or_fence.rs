//! A holder that was paused: what `verify` detects, and what only a token stops.
//!
//! `cargo run --example verify_or_fence`

use std::sync::Mutex;
use std::time::Duration;

use redlatch::{Client, Error, FencingToken};
use redlatch_testkit::Playground;

/// A store that refuses a write whose token is older than the newest token that it has seen.
#[derive(Debug, Default)]
struct Store(Mutex<(Option<FencingToken>, &'static str)>);

impl Store {
    fn write(&self, token: FencingToken, value: &'static str) -> Result<(), FencingToken> {
        let Ok(mut state) = self.0.lock() else {
            return Err(token);
        };
        match state.0 {
            Some(seen) if token < seen => Err(seen),
            _ => {
                *state = (Some(token), value);
                Ok(())
            }
        }
    }
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    let server = Playground::open();
    let store = Store::default();
    let (first, second) = (
        Client::connect(server.url()).await?,
        Client::connect(server.url()).await?,
    );

    let lock = first.fenced_lock("invoice:42");
    let paused = lock.lease(Duration::from_millis(300)).lock().await?;
    println!("the first holder has token {}", paused.token());
    paused.verify().await?;
    println!("the server confirms its hold. Then the holder is paused, before it writes");

    let guard = second.fenced_lock("invoice:42").lock().await?;
    println!(
        "its lease ends; the second holder has token {}",
        guard.token()
    );
    assert!(guard.token() > paused.token());
    assert!(store.write(guard.token(), "from the second").is_ok());

    println!("the first holder resumes. It verified its hold before the pause, and writes");
    match store.write(paused.token(), "from the first, too late") {
        Ok(()) => unreachable!("a store that checks tokens takes no older one"),
        Err(seen) => println!(
            "the store refuses token {}: it has seen {seen}",
            paused.token()
        ),
    }
    match paused.verify().await {
        Ok(()) => unreachable!("the server gave the lock to the second"),
        Err(error) => println!("and verify now returns: {error}"),
    }
    guard.unlock().await?;
    first.close().await;
    second.close().await;
    Ok(())
}
