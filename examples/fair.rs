//! A queue over several clients: first come, first served, except that a higher priority goes first.
//!
//! `cargo run --example fair`

use std::time::Duration;

use redlatch::{Client, Error, FairLock};
use redlatch_testkit::Playground;
use tokio::sync::mpsc;
use tokio::time::sleep;

#[tokio::main]
async fn main() -> Result<(), Error> {
    let server = Playground::open();
    let mut clients = Vec::new();
    for _ in 0..3 {
        clients.push(Client::connect(server.url()).await?);
    }
    let guard = clients[0].fair_lock("printer").lock().await?;
    println!("the printer is in use; six jobs wait for it, from three clients:");

    let (served, mut order) = mpsc::unbounded_channel();
    for job in 1..=6 {
        let urgent = job == 5;
        let printer = clients[job % 3].fair_lock("printer");
        let printer = printer.priority(if urgent { 1 } else { 0 });
        tokio::spawn(print(printer, job, served.clone()));
        println!("  job {job}{}", if urgent { ", urgent" } else { "" });
        // The pause makes the requests reach the server in this order.
        sleep(Duration::from_millis(50)).await;
    }
    drop(served);
    guard.unlock().await?;

    let mut jobs = Vec::new();
    while let Some(printed) = order.recv().await {
        jobs.push(printed?);
    }
    println!("printed: {jobs:?}");
    assert_eq!(jobs, [5, 1, 2, 3, 4, 6]);
    for client in clients {
        client.close().await;
    }
    Ok(())
}

async fn print(printer: FairLock, job: usize, served: mpsc::UnboundedSender<Result<usize, Error>>) {
    let printed = async {
        let guard = printer.lock().await?;
        served.send(Ok(job)).ok();
        guard.unlock().await
    };
    if let Err(error) = printed.await {
        served.send(Err(error)).ok();
    }
}
