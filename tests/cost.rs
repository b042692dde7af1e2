//! What locks cost this process, in counts that are the same on every machine: the allocations of a call that finds the
//! lock free, and the memory of one that waits.
//!
//! A count that rises is a defect or a decision, and one that falls is written down here. The bytes are those of a debug
//! build, with some room for other versions of the compiler: futures are smaller in a release build.
#![allow(clippy::expect_used, reason = "a test fails by panicking")]

use allocation_counter::measure;
use redlatch::{Client, Error, LockGuard};
use redlatch_testkit::Server;
use tokio::runtime::{Builder, Runtime};
use tokio::task::yield_now;

const NAME: &str = "job";
const CYCLES: u32 = 200;
const WAITERS: u32 = 1_000;

#[derive(Clone, Copy, Debug)]
enum Kind {
    Reentrant,
    Fair,
    Plain,
    Read,
    Write,
}

/// Returns a runtime on this thread, since only the allocations of this thread are counted.
fn runtime() -> Runtime {
    let runtime = Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime")
}

fn connect(runtime: &Runtime, server: &Server) -> Client {
    let connected = runtime.block_on(Client::connect(server.url()));
    connected.expect("the server is up")
}

async fn lock(client: &Client, kind: Kind) -> Result<LockGuard, Error> {
    match kind {
        Kind::Reentrant => client.lock(NAME).lock().await,
        Kind::Fair => client.fair_lock(NAME).lock().await,
        Kind::Plain => client.plain_lock(NAME).lock().await,
        Kind::Read => client.read_write_lock(NAME).read().await,
        Kind::Write => client.read_write_lock(NAME).write().await,
    }
}

async fn cycles(client: &Client, kind: Kind, count: u32) {
    for _ in 0..count {
        let guard = lock(client, kind).await.expect("free");
        guard.unlock().await.expect("held until now");
    }
}

#[test]
fn lock_and_unlock_allocate_no_more_than_they_did() {
    let (server, runtime) = (Server::start(), runtime());
    let client = connect(&runtime, &server);
    for (kind, most) in [
        (Kind::Reentrant, 39.0),
        (Kind::Fair, 45.0),
        (Kind::Plain, 41.0),
        (Kind::Read, 45.0),
        (Kind::Write, 45.0),
    ] {
        runtime.block_on(cycles(&client, kind, CYCLES));
        let counted = measure(|| runtime.block_on(cycles(&client, kind, CYCLES)));
        let each = counted.count_total as f64 / f64::from(CYCLES);
        assert!(each <= most, "{kind:?}: {each} of {most} allocations");
    }
}

/// Has so many tasks wait for a lock.
async fn wait(client: &Client, kind: Kind) {
    for _ in 0..WAITERS {
        let client = client.clone();
        drop(tokio::spawn(
            async move { lock(&client, kind).await.map(drop) },
        ));
        yield_now().await;
    }
    let waiting = || {
        client
            .stats()
            .kinds()
            .map(|(_, it)| it.waiting)
            .sum::<u64>()
    };
    while waiting() < u64::from(WAITERS) {
        yield_now().await;
    }
    // The answer comes behind those to all requests so far, and the second one behind those that followed these.
    for _ in 0..2 {
        client.ping().await.expect("the server is up");
    }
}

#[test]
fn waiting_call_takes_no_more_memory_than_it_did() {
    for (kind, most) in [
        (Kind::Reentrant, 2_560),
        (Kind::Fair, 4_200),
        (Kind::Write, 2_830),
    ] {
        let (server, runtime) = (Server::start(), runtime());
        let [holder, client] = [(); 2].map(|()| connect(&runtime, &server));
        let _held = runtime.block_on(lock(&holder, kind)).expect("free");
        let counted = measure(|| runtime.block_on(wait(&client, kind)));
        let each = counted.bytes_current / i64::from(WAITERS);
        assert!(each <= most, "{kind:?}: {each} of {most} bytes");
    }
}
