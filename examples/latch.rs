//! A report that waits until all its parts are in, whichever client brings them.
//!
//! `cargo run --example latch`

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use redlatch::{Client, Error};
use redlatch_testkit::Playground;

const PARTS: u32 = 3;

#[tokio::main]
async fn main() -> Result<(), Error> {
    let server = Playground::open();
    let reporter = Client::connect(server.url()).await?;
    let latch = reporter.latch("parts of the report");
    latch.delete().await?;
    assert!(latch.try_set_count(PARTS).await?);
    println!("{PARTS} parts are missing; a wait of 100 ms is not enough:");
    assert!(!latch.wait_for(Duration::from_millis(100)).await?);

    let done = Arc::new(AtomicU32::new(0));
    for part in 1..=PARTS {
        let worker = Client::connect(server.url()).await?;
        let done = done.clone();
        tokio::spawn(async move {
            tokio::time::sleep(Duration::from_millis(100) * part).await;
            done.fetch_add(1, Ordering::SeqCst);
            worker.latch("parts of the report").count_down().await?;
            println!("  part {part} is in");
            worker.close().await;
            Ok::<_, Error>(())
        });
    }
    let asked = Instant::now();
    assert!(latch.wait_for(Duration::from_secs(30)).await?);
    println!("woken after {:?}", asked.elapsed());
    assert_eq!(done.load(Ordering::SeqCst), PARTS);
    println!(
        "all {PARTS} parts are in, and the count is {}",
        latch.count().await?
    );
    reporter.close().await;
    Ok(())
}
