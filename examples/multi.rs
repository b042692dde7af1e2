//! Transfers between two accounts in opposite directions, each of which locks both accounts; and a set of locks with
//! one busy member.
//!
//! `cargo run --example multi`

use std::time::{Duration, Instant};

use redlatch::{Client, Error, Member, MultiLock};
use redlatch_testkit::Playground;
use tokio::time::sleep;

const TRANSFERS: u32 = 50;

#[tokio::main]
async fn main() -> Result<(), Error> {
    let server = Playground::open();
    let (here, there) = (
        Client::connect(server.url()).await?,
        Client::connect(server.url()).await?,
    );

    // Opposite orders: two locks that are acquired one after the other in these orders would soon deadlock.
    let started = Instant::now();
    let (there_and_back, back) = tokio::join!(
        tokio::spawn(transfers(here.clone(), ["account:3", "account:7"])),
        tokio::spawn(transfers(there.clone(), ["account:7", "account:3"])),
    );
    joined(there_and_back)?;
    joined(back)?;
    let took = started.elapsed();
    println!("{TRANSFERS} transfers in each direction took {took:?}, without a deadlock");

    // All or nothing, also across different kinds of locks.
    let seat = there.lock("seat:12").lock().await?;
    let booking = MultiLock::new([
        Member::from(here.fenced_lock("ledger")),
        here.lock("seat:12").into(),
        here.read_write_lock("timetable").reader().into(),
    ]);
    assert!(booking.try_lock().await?.is_none());
    println!("the seat is locked, so the set holds nothing");
    assert!(there.lock("ledger").try_lock().await?.is_some());

    let wait = Duration::from_secs(2);
    let (booked, ()) = tokio::join!(booking.try_lock_for(wait), async {
        sleep(Duration::from_millis(200)).await;
        seat.unlock()
            .await
            .unwrap_or_else(|error| println!("{error}"));
    });
    if let Some(guard) = booked? {
        let tokens: Vec<_> = guard.tokens().flatten().collect();
        println!("acquired all three, with the ledger's token {}", tokens[0]);
        guard.unlock().await?;
    }

    here.close().await;
    there.close().await;
    Ok(())
}

async fn transfers(client: Client, accounts: [&'static str; 2]) -> Result<(), Error> {
    let both = MultiLock::new(accounts.map(|account| client.lock(account)));
    for _ in 0..TRANSFERS {
        let guard = both.lock().await?;
        guard
            .run_until_lost(sleep(Duration::from_millis(1)))
            .await?;
        guard.unlock().await?;
    }
    Ok(())
}

fn joined<T>(result: Result<Result<T, Error>, tokio::task::JoinError>) -> Result<T, Error> {
    result.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()))
}
