//! A lock on a function: acquired before the body and released after it. The caller learns if it is busy or lost.
//!
//! `cargo run --example locked_fn`

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use redlatch::{Client, Error, locked};
use redlatch_testkit::Playground;
use tokio::time::sleep;

#[derive(Debug)]
enum Failure {
    Busy(u64),
    Lock(Error),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Lock(error)
    }
}

struct Shop {
    client: Client,
    packing: AtomicU32,
    packed: AtomicU32,
}

impl Shop {
    #[locked(client = self.client, name = "order:{id}")]
    async fn pack(&self, id: u64) -> Result<u32, Failure> {
        assert_eq!(self.packing.fetch_add(1, Ordering::Relaxed), 0);
        sleep(Duration::from_millis(100)).await;
        self.packing.fetch_sub(1, Ordering::Relaxed);
        Ok(self.packed.fetch_add(1, Ordering::Relaxed) + 1)
    }

    /// Calls `pack`, which acquires the same lock again.
    #[locked(client = self.client, name = "order:{id}", wait = "50ms", busy = Err(Failure::Busy(id)))]
    async fn ship(&self, id: u64) -> Result<u32, Failure> {
        self.pack(id).await
    }

    /// Runs for longer than its lease.
    #[locked(client = self.client, name = "order:{id}", lease = "200ms")]
    async fn recount(&self, id: u64) -> Result<(), Failure> {
        sleep(Duration::from_secs(60)).await;
        println!("order {id}: recounted");
        Ok(())
    }
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let server = Playground::open();
    let shop = Shop {
        client: Client::connect(server.url()).await?,
        packing: AtomicU32::new(0),
        packed: AtomicU32::new(0),
    };
    let order = shop.client.lock("order:42");

    println!(
        "ship() calls pack(), under the same name: packed {}",
        shop.ship(42).await?
    );

    let held = order
        .clone()
        .owned_by(&redlatch::Owner::unique())
        .lock()
        .await?;
    match shop.ship(42).await {
        Err(Failure::Busy(id)) => println!("ship() while another owner holds order {id}: busy"),
        other => panic!("not busy: {other:?}"),
    }
    let packing = shop.pack(42);
    let giving_back = async {
        sleep(Duration::from_millis(100)).await;
        println!("pack() waits until the lock is released");
        held.unlock().await
    };
    let (packed, given_back) = tokio::join!(packing, giving_back);
    given_back?;
    println!("pack() has packed {}", packed?);

    match shop.recount(42).await {
        Err(Failure::Lock(error)) => println!("recount() outlives its lease: {error}"),
        other => panic!("not lost: {other:?}"),
    }
    println!("pack() has packed {}", shop.pack(42).await?);

    let free = !order.is_locked().await?;
    println!(
        "after all of these the lock is {}",
        if free { "free" } else { "STILL HELD" }
    );
    assert!(free);
    assert_eq!(shop.packed.into_inner(), 3);
    shop.client.close().await;
    Ok(())
}
