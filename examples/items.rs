//! Three processes go through the same orders, several at a time. Each order is shipped once, and a process that finds
//! one busy goes on to the next.
//!
//! `cargo run --example items`

use std::env;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::iter;
use redlatch::Client;
use redlatch_testkit::Playground;

type Failure = Box<dyn std::error::Error + Send + Sync>;

const ORDERS: u32 = 60;
const AT_A_TIME: usize = 4;

fn main() -> Result<(), Failure> {
    match env::args().collect::<Vec<_>>().as_slice() {
        [_, role, store, url] if role == "worker" => {
            let worker = Client::with(url, async |client| worker(client, Path::new(store)).await);
            tokio::runtime::Runtime::new()?.block_on(worker)
        }
        _ => narrate(),
    }
}

fn narrate() -> Result<(), Failure> {
    let server = Playground::open();
    let store = env::temp_dir().join(format!("redlatch-example-{}", std::process::id()));
    fs::create_dir(&store)?;
    println!("three processes ship {ORDERS} orders, {AT_A_TIME} at a time each:");
    let start = |_| {
        Command::new(env::current_exe()?)
            .args([Path::new("worker"), &store, Path::new(server.url())])
            .stdout(Stdio::inherit())
            .spawn()
    };
    let workers = (0..3).map(start).collect::<io::Result<Vec<_>>>()?;
    for mut worker in workers {
        worker.wait()?;
    }
    let shipped = fs::read_dir(&store)?.count();
    fs::remove_dir_all(&store)?;
    println!("{shipped} are shipped");
    assert_eq!(shipped, ORDERS as usize);
    Ok(())
}

async fn worker(client: &Client, store: &Path) -> Result<(), Failure> {
    let shipped = AtomicU32::new(0);
    let each = async |order: u32| {
        let lock = client.lock(format!("example:order:{order}"));
        // Each branch has an owner of its own, though all are one task. A lock that is busy is `None`: another process
        // ships that order, so this one goes on to the next.
        match lock.try_run(ship(store.join(order.to_string()))).await {
            Ok(Some(true)) => drop(shipped.fetch_add(1, Ordering::Relaxed)),
            Ok(Some(false) | None) => {}
            Err(error) => eprintln!("order {order}: {error}"),
        }
    };
    iter(0..ORDERS).for_each_concurrent(AT_A_TIME, each).await;
    println!("  process {}: {shipped:?}", std::process::id());
    Ok(())
}

/// Ships an order, unless another process has done so before. Returns whether it did.
async fn ship(receipt: PathBuf) -> Result<bool, Failure> {
    if receipt.exists() {
        return Ok(false);
    }
    tokio::time::sleep(Duration::from_millis(20)).await;
    fs::File::create_new(receipt)?; // fails if the order was shipped twice
    Ok(true)
}
