//! What a client does, in numbers: a recorder for Prometheus, some locking with contention, and the page that
//! Prometheus would fetch.
//!
//! `cargo run --example metrics`
//!
//! A service serves the page instead of printing it: `with_http_listener`, of `metrics-exporter-prometheus`.
//! `dashboards/grafana.json` shows it.

use std::error::Error;
use std::time::Duration;

use metrics_exporter_prometheus::{Matcher, PrometheusBuilder};
use redlatch::Client;
use redlatch::metrics::BUCKETS;
use redlatch_testkit::Playground;
use tokio::task::JoinSet;
use tokio::time::sleep;

const WORKERS: usize = 4;
const SECTIONS: usize = 25;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    let server = Playground::open();
    // First the recorder, then the clients: each goes on with the recorder that it finds.
    let page = PrometheusBuilder::new()
        .set_buckets_for_metric(Matcher::Suffix("_seconds".to_owned()), BUCKETS)?
        .install_recorder()?;
    let client = Client::builder()
        .url(server.url())
        .label("orders")
        .metrics_by_name(["nightly"]) // the one lock with series of its own
        .build()
        .await?;

    let mut workers = JoinSet::new();
    for _ in 0..WORKERS {
        let stock = client.lock("stock:7");
        workers.spawn(async move {
            for _ in 0..SECTIONS {
                let guard = stock.lock().await?;
                sleep(Duration::from_millis(1)).await;
                guard.unlock().await?;
            }
            Ok::<_, redlatch::Error>(())
        });
    }
    while let Some(worker) = workers.join_next().await {
        worker??;
    }
    println!("{WORKERS} tasks took the lock {SECTIONS} times each");

    let nightly = client.lock("nightly");
    let guard = nightly.lock().await?;
    let other = Client::connect(server.url()).await?;
    let outcome = other
        .lock("nightly")
        .try_lock_for(Duration::from_millis(50))
        .await?;
    println!("another client waited 50 ms for a second lock, in vain");
    assert!(outcome.is_none());
    nightly.force_unlock().await?;
    println!("that lock was released by force, so its holder has lost it\n");

    let is_told = |line: &&str| {
        line.starts_with("redlatch_") && !line.ends_with(" 0") && !line.contains("_bucket")
    };
    for line in page.render().lines().filter(is_told) {
        println!("{line}");
    }

    let stats = client.stats();
    println!(
        "\nwithout a recorder: {:?}, {:?}",
        stats.reentrant, stats.lost
    );
    assert_eq!(stats.reentrant.granted as usize, WORKERS * SECTIONS + 1);
    assert_eq!((stats.reentrant.held, stats.lost.forced), (0, 1));
    drop(guard);
    client.close().await;
    other.close().await;
    Ok(())
}
