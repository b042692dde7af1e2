//! The plain lock: the format that other clients share, with compare-and-change by script and by transaction.

mod holds;
mod transactions;
mod waiters;

use crate::support::builder;
use crate::support::probe::{secs, soon};
use redlatch::config::ReleaseBy;
use redlatch::{Client, LockGuard, PlainLock};
use redlatch_testkit::{Connection, Reply, Server};

const NAME: &str = "k";
const BOTH: [ReleaseBy; 2] = [ReleaseBy::Script, ReleaseBy::Transaction];

fn value(probe: &mut Connection) -> Reply {
    probe.command(&["GET", NAME])
}

fn is(text: &str) -> Reply {
    Reply::Text(text.as_bytes().to_vec())
}

async fn take(lock: &PlainLock) -> LockGuard {
    soon(lock.lock()).await.expect("the lock can be had")
}

/// Starts a server that refuses every script.
fn scriptless() -> Server {
    let server = Server::start();
    let mut admin = server.connection();
    let done = admin.command(&["ACL", "SETUSER", "default", "-@scripting"]);
    assert_eq!(done, Reply::Status("OK".to_owned()));
    server
}

fn waiting(client: &Client, calls: usize) -> bool {
    format!("{client:?}").contains(&format!("waiting: {calls},"))
}

/// Connects a client whose requests and leases outlast what is done to its connections.
async fn patient(url: String) -> Client {
    builder(url)
        .command_timeout(secs(8))
        .watchdog_lease(secs(60))
        .build()
        .await
        .unwrap()
}
