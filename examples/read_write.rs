//! Readers that share a catalogue, and a writer that updates it, from two clients.
//!
//! `cargo run --example read_write`

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use redlatch::{Client, Error, ErrorKind};
use redlatch_testkit::Playground;
use tokio::time::sleep;

const READERS: u32 = 8;
const SECTION: Duration = Duration::from_millis(100);

#[tokio::main]
async fn main() -> Result<(), Error> {
    let server = Playground::open();
    let (here, there) = (
        Client::connect(server.url()).await?,
        Client::connect(server.url()).await?,
    );

    let started = Instant::now();
    let most = Arc::new(AtomicU32::new(0));
    let inside = Arc::new(AtomicU32::new(0));
    let mut readers = Vec::new();
    for number in 0..READERS {
        let client = if number % 2 == 0 { &here } else { &there };
        let catalogue = client.read_write_lock("catalogue");
        let (inside, most) = (inside.clone(), most.clone());
        readers.push(tokio::spawn(async move {
            let guard = catalogue.read().await?;
            most.fetch_max(inside.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            sleep(SECTION).await;
            inside.fetch_sub(1, Ordering::SeqCst);
            guard.unlock().await
        }));
    }
    for reader in readers {
        joined(reader.await)?;
    }
    let (took, most) = (started.elapsed(), most.load(Ordering::SeqCst));
    println!(
        "{READERS} readers of {SECTION:?} each took {took:?}, {most} of them at the same time"
    );
    assert_eq!(most, READERS);

    let catalogue = here.read_write_lock("catalogue");
    let reading = catalogue.read().await?;
    match catalogue.write().await {
        Err(error) if error.kind() == ErrorKind::Refused => println!("refused: {error}"),
        other => println!("unexpected: {other:?}"),
    }

    // A writer of another client waits for this reader. A reader that arrives later waits for that writer.
    let writer = there.read_write_lock("catalogue");
    let writing = tokio::spawn(async move {
        let guard = writer.write().await?;
        println!("the writer holds the lock");
        sleep(SECTION).await;
        // A writer may also read. When it then releases the write lock, other readers get in while it still reads.
        let read = writer.read().await?;
        guard.unlock().await?;
        sleep(SECTION).await;
        read.unlock().await
    });
    sleep(SECTION).await;
    assert!(here_too(&here).await?.is_none());
    println!("a new reader is kept out while the writer waits");
    reading.unlock().await?;
    let started = Instant::now();
    let late = catalogue.read().await?;
    println!("a late reader waited {:?}", started.elapsed());
    late.unlock().await?;
    joined(writing.await)?;

    here.close().await;
    there.close().await;
    Ok(())
}

/// Tries to read as another owner.
async fn here_too(client: &Client) -> Result<Option<()>, Error> {
    let catalogue = client.read_write_lock("catalogue");
    let guard = catalogue
        .owned_by(&redlatch::Owner::unique())
        .try_read()
        .await?;
    Ok(guard.map(drop))
}

fn joined<T>(result: Result<Result<T, Error>, tokio::task::JoinError>) -> Result<T, Error> {
    result.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()))
}
