//! A holder that was paused: what `verify` sees, and what only a token stops.
//!
//! `cargo run --example verify_or_fence`

use std::sync::Mutex;
use std::time::Duration;

use redlatch::{Client, Error, FencingToken};
use redlatch_testkit::Playground;

/// A store that refuses a write whose token is older than one that it has seen.
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
    println!("it asks the server: its hold stands. Then it is paused, before it writes");

    let guard = second.fenced_lock("invoice:42").lock().await?;
    println!("its lease ends; the second has token {}", guard.token());
    assert!(guard.token() > paused.token());
    assert!(store.write(guard.token(), "from the second").is_ok());

    println!("the first wakes up. It asked before its pause, and writes");
    match store.write(paused.token(), "from the first, too late") {
        Ok(()) => unreachable!("a store that checks tokens takes no older one"),
        Err(seen) => println!(
            "the store refuses token {}: it has seen {seen}",
            paused.token()
        ),
    }
    match paused.verify().await {
        Ok(()) => unreachable!("the server gave the lock to the second"),
        Err(error) => println!("and verify now says: {error}"),
    }
    guard.unlock().await?;
    first.close().await;
    second.close().await;
    Ok(())
}
