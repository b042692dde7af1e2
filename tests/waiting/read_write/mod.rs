//! The read-write lock: readers share it, a writer holds it alone, and the preference decides who goes first.

mod exclusion;
mod hold;
mod order;

use std::ops::Deref;

use crate::support::eventually;
use crate::support::probe::subscribers;
use crate::support::scene::patient;
use redlatch::config::Prefer;
use redlatch::{Client, Error, LockGuard, Owner, ReadWriteLock};
use redlatch_testkit::{Connection, Server};
use tokio::task::JoinHandle;

const CHANNEL: &str = "redisson_rwlock:{k}";
const WRITER_MARK: &str = "redlatch_rwlock_writer:{k}";
const READER_MARK: &str = "redlatch_rwlock_reader:{k}";
const PREFERENCES: [Prefer; 3] = [Prefer::Arrival, Prefer::Writers, Prefer::Readers];

/// Makes handles to the lock `k`.
trait Process {
    fn handle(&self) -> ReadWriteLock;
}

impl Process for Client {
    fn handle(&self) -> ReadWriteLock {
        self.read_write_lock("k")
    }
}

/// A client whose handles have this preference.
struct Preferring(Client, Prefer);

impl Process for Preferring {
    fn handle(&self) -> ReadWriteLock {
        self.0.handle().prefer(self.1)
    }
}

impl Deref for Preferring {
    type Target = Client;

    fn deref(&self) -> &Client {
        &self.0
    }
}

/// Returns the lock for an owner of its own.
fn somebody(process: &impl Process) -> ReadWriteLock {
    process.handle().owned_by(&Owner::unique())
}

/// Builds a client that waits for messages and leases long enough that a test would notice.
async fn preferring(server: &Server, prefer: Prefer) -> Preferring {
    let builder = patient(Client::builder().url(server.url()));
    Preferring(builder.build().await.unwrap(), prefer)
}

/// Builds two of them.
async fn both(server: &Server, prefer: Prefer) -> (Preferring, Preferring) {
    (
        preferring(server, prefer).await,
        preferring(server, prefer).await,
    )
}

fn reading(client: &impl Process) -> JoinHandle<Result<LockGuard, Error>> {
    let lock = somebody(client);
    tokio::spawn(async move { lock.read().await })
}

fn writing(client: &impl Process) -> JoinHandle<Result<LockGuard, Error>> {
    let lock = somebody(client);
    tokio::spawn(async move { lock.write().await })
}

async fn eventually_marked(probe: &mut Connection, mark: &str) {
    eventually("it waits", async || probe.exists(mark)).await;
}

async fn eventually_waiting(client: &Client, calls: usize) {
    let waiting = format!("waiting: {calls},");
    eventually(&waiting, async || format!("{client:?}").contains(&waiting)).await;
}

/// Waits until this many connections listen, so that what is counted by their messages is complete.
async fn eventually_heard(probe: &mut Connection, connections: i64) {
    eventually("waiters listen", async || {
        subscribers(probe, CHANNEL) == connections
    })
    .await;
}
