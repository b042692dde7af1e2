//! A primary dies before its replicas have the lock. The first holder is told, the second acquires the lock, and a
//! store that checks tokens refuses the first holder's late write.
//!
//! `cargo run --example failover`

use std::time::{Duration, Instant};

use redlatch::{Client, Error, FencingToken};
use redlatch_testkit::Sentinels;

/// A store that refuses a write whose token is older than the newest token that it has seen.
#[derive(Debug, Default)]
struct Store {
    seen: Option<FencingToken>,
    value: &'static str,
}

impl Store {
    fn write(&mut self, token: FencingToken, value: &'static str) -> Result<(), FencingToken> {
        match self.seen {
            Some(seen) if token < seen => Err(seen),
            _ => {
                self.seen = Some(token);
                self.value = value;
                Ok(())
            }
        }
    }
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    let set = Sentinels::start();
    println!("a primary, two replicas and three sentinels: {}", set.url());
    let mut store = Store::default();
    let (first, second) = (
        Client::connect(set.url()).await?,
        Client::connect(set.url()).await?,
    );

    let lock = first.fenced_lock("invoice:42");
    let guard = lock.lease(Duration::from_secs(60)).lock().await?;
    println!("the first holder has token {}", guard.token());
    let lock = second.fenced_lock("invoice:42");
    let waiter = tokio::spawn(async move { lock.lock().await });

    // Replication is asynchronous. `FLUSHALL` simulates replicas that have received nothing when the primary dies.
    tokio::time::sleep(Duration::from_millis(300)).await;
    for replica in set.replicas() {
        replica.connection().command(&["FLUSHALL"]);
    }
    set.primary().kill();
    let killed = Instant::now();
    println!("the primary is killed; the replicas know nothing of the lock");

    guard.lost().await;
    let after = killed.elapsed();
    println!("lost() fires after {after:.1?}, without waiting for the end of the 60 s lease");
    let next = match waiter.await {
        Ok(next) => next?,
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    };
    println!(
        "the second holder has the lock, with token {}",
        next.token()
    );
    assert!(next.token() > guard.token());
    assert!(store.write(next.token(), "from the second").is_ok());

    println!("the first holder ignores lost() and writes");
    match store.write(guard.token(), "from the first, too late") {
        Ok(()) => unreachable!("a store that checks tokens takes no older one"),
        Err(seen) => println!("the store refuses the write: it has seen token {seen}"),
    }
    assert_eq!(store.value, "from the second");
    match guard.unlock().await {
        Ok(()) => unreachable!("the hold was lost"),
        Err(error) => println!("and its unlock returns: {error}"),
    }
    next.unlock().await?;
    first.close().await;
    second.close().await;
    Ok(())
}
