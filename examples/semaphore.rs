//! At most three uploads at a time, from two clients; and a permit that comes back from a crashed holder.
//!
//! `cargo run --example semaphore`

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use redlatch::{Client, Error};
use redlatch_testkit::Playground;
use tokio::task::JoinSet;

#[tokio::main]
async fn main() -> Result<(), Error> {
    let server = Playground::open();
    let clients = [
        Client::connect(server.url()).await?,
        Client::connect(server.url()).await?,
    ];
    at_most_three(&clients).await?;
    comes_back(&clients).await?;
    for client in clients {
        client.close().await;
    }
    Ok(())
}

async fn at_most_three(clients: &[Client; 2]) -> Result<(), Error> {
    let name = "uploads";
    let semaphore = clients[0].semaphore(name);
    if !semaphore.try_set_permits(3).await? {
        // An earlier run has set the permits.
        semaphore.drain_permits().await?;
        semaphore.add_permits(3).await?;
    }
    let (now, most) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    let mut uploads = JoinSet::new();
    for upload in 0..12 {
        let semaphore = clients[upload % 2].semaphore(name);
        let (now, most) = (now.clone(), most.clone());
        uploads.spawn(async move {
            let permit = semaphore.acquire().await?;
            most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            tokio::time::sleep(Duration::from_millis(50)).await;
            now.fetch_sub(1, Ordering::SeqCst);
            permit.release().await
        });
    }
    for uploaded in uploads.join_all().await {
        uploaded?;
    }
    let most = most.load(Ordering::SeqCst);
    let free = semaphore.available_permits().await?;
    println!(
        "12 uploads from two clients: at most {most} at a time, {free} permits are free again"
    );
    assert_eq!((most, free), (3, 3));
    Ok(())
}

async fn comes_back(clients: &[Client; 2]) -> Result<(), Error> {
    let name = "desks";
    let desks = clients[0]
        .expirable_semaphore(name)
        .lease(Duration::from_secs(1));
    desks.try_set_permits(1).await?;
    // Simulates a crashed holder: nobody releases the permit.
    desks.acquire().await?.forget();
    let asked = Instant::now();
    let elsewhere = clients[1]
        .expirable_semaphore(name)
        .lease(Duration::from_secs(60));
    let permit = elsewhere.acquire().await?;
    println!(
        "the desk of a crashed holder was free again after {:?}",
        asked.elapsed()
    );
    assert!(asked.elapsed() < Duration::from_secs(2));

    let id = permit.id();
    permit.forget();
    println!("its next holder passed the permit's id to another client: {id}");
    assert!(desks.release_permit(&id).await?);
    assert_eq!(elsewhere.available_permits().await?, 1);
    println!("the other client released it");
    Ok(())
}
