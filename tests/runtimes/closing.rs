//! Closing: by a call, with the last handle, and with the runtime on which the client connected.

use std::future::pending;
use std::mem::forget;
use std::time::Instant;

use crate::support::probe::{
    acquiring, begin, eventually_free, eventually_heard, kind, nothing_left, secs, soon, stranger,
};
use crate::support::{builder, client, eventually, start, start_two};
use redlatch::{Client, Error, ErrorKind, LockGuard, LossReason, ReentrantLock};
use redlatch_testkit::Server;
use tokio::runtime::Builder;

use super::{block_on, runtime};

/// Makes every call of a handle and of a guard that could talk to the server, and returns the results by name.
async fn every_call(
    lock: &ReentrantLock,
    guard: LockGuard,
) -> Vec<(&'static str, Result<(), Error>)> {
    vec![
        ("lock", lock.lock().await.map(drop)),
        ("try_lock", lock.try_lock().await.map(drop)),
        ("try_lock_for", lock.try_lock_for(secs(60)).await.map(drop)),
        ("unlock", lock.unlock().await),
        ("adopt", lock.adopt().await.map(drop)),
        ("is_locked", lock.is_locked().await.map(drop)),
        ("is_held", lock.is_held().await.map(drop)),
        ("hold_count", lock.hold_count().await.map(drop)),
        ("remaining_lease", lock.remaining_lease().await.map(drop)),
        ("holder", lock.holder().await.map(drop)),
        ("force_unlock", lock.force_unlock().await.map(drop)),
        ("guard.reenter", guard.reenter().await.map(drop)),
        ("guard.extend", guard.extend(secs(9)).await),
        ("guard.verify", guard.verify().await),
        ("guard.unlock", guard.unlock().await),
    ]
}

/// Returns the server's line about each connection, the one that looks included.
fn listed(server: &Server) -> Vec<String> {
    let list = server.connection().command(&["CLIENT", "LIST"]).text();
    list.lines().map(str::to_owned).collect()
}

/// Returns the lines about the connections that have a name. Those that look have none, and the server may list one of
/// them after it has been closed.
fn connections(server: &Server) -> Vec<String> {
    let mut lines = listed(server);
    lines.retain(|line| !line.contains(" name= "));
    lines
}

fn assert_connected(server: &Server, when: &str) {
    let found = connections(server);
    assert_eq!(found.len(), 2, "{when}: commands and messages: {found:#?}");
}

async fn eventually_unconnected(server: &Server) {
    eventually("all connections are closed", async || {
        listed(server).len() == 1
    })
    .await;
}

/// What is held when the body ends is released by the time that `run` returns.
#[tokio::test]
async fn run_closes_the_client_on_every_way_out() {
    let server = Server::start();
    for fails in [false, true] {
        let ended = Client::with(server.url(), async |client| {
            let guard = client.lock("k").lock().await?;
            if fails {
                drop(client.lock("").lock().await?);
            }
            // Neither released nor left behind: it lives as long as the client does.
            forget(guard);
            Ok::<_, Error>(client.clone())
        })
        .await;
        assert!(!server.connection().exists("k"), "fails: {fails}");
        match ended {
            Ok(client) => assert!(!fails && !client.is_connected()),
            Err(error) => assert!(fails && error.kind() == ErrorKind::InvalidInput),
        }
    }
}

/// A clone that is left elsewhere does not keep the client open.
#[tokio::test]
async fn run_that_is_dropped_or_panics_closes_the_client() {
    let server = Server::start();
    for panics in [false, true] {
        let (left, mut leaves) = tokio::sync::mpsc::unbounded_channel();
        let url = server.url();
        let running = tokio::spawn(Client::with(url, async move |client: &Client| {
            let guard = client.lock("k").lock().await?;
            left.send((client.clone(), guard)).ok();
            assert!(!panics, "as asked");
            pending::<Result<(), Error>>().await
        }));
        let (client, guard) = soon(leaves.recv()).await.unwrap();
        running.abort();
        assert_eq!(running.await.unwrap_err().is_panic(), panics);
        assert_eq!(soon(guard.lost()).await, LossReason::Closed);
        eventually_free(&server, "k").await;
        let call = client.lock("k").lock().await.unwrap_err();
        assert_eq!(call.kind(), ErrorKind::Closed);
    }
}

#[test]
fn calls_after_the_connecting_runtime_answer_closed() {
    let server = Server::start();
    let (short, other) = (runtime(), runtime());
    let client = short.block_on(client(&server));
    let lock = client.lock("k").lease(secs(2));
    let guard = short.block_on(stranger(&lock).lock()).unwrap();
    let waiting = other.spawn({
        let lock = stranger(&lock);
        async move { lock.lock().await }
    });
    other.block_on(eventually_heard(&server, "k", 1));
    drop(short);
    other.block_on(async {
        assert_eq!(kind(soon(waiting).await.unwrap()), ErrorKind::Closed);
        for (call, result) in soon(every_call(&lock, guard)).await {
            assert_eq!(kind(result), ErrorKind::Closed, "{call}");
        }
        soon(client.close()).await;
    });
    let guardless = block_on(lock.try_lock());
    assert_eq!(kind(guardless), ErrorKind::Closed);
}

/// As in a `LazyLock` that is filled inside `block_on`: the runtime ends before it has polled any task of the client.
#[test]
fn client_whose_runtime_only_connected_it_answers_closed() {
    let server = Server::start();
    let other = runtime();
    for is_lazy in [false, true] {
        let short = Builder::new_current_thread().enable_all().build().unwrap();
        let mut builder = builder(server.url()).command_timeout(secs(60));
        if is_lazy {
            builder = builder.connect_lazily();
        }
        let client = short.block_on(builder.build()).unwrap();
        let lock = client.lock("k");
        // Nobody reads the answers: that runtime does not run.
        let (waiting, asking) =
            other.block_on(async { (begin(lock.lock()), begin(lock.is_locked())) });
        drop(short);
        other.block_on(async {
            assert_eq!(kind(soon(waiting).await), ErrorKind::Closed);
            assert_eq!(kind(soon(asking).await), ErrorKind::Closed);
            assert_eq!(kind(soon(lock.lock()).await), ErrorKind::Closed);
            assert_eq!(kind(soon(client.ping()).await), ErrorKind::Closed);
            assert!(!client.is_connected());
            soon(client.close()).await;
        });
    }
}

#[tokio::test]
async fn close_ends_holds_waiters_and_later_calls() {
    let (server, client, other) = start_two().await;
    let lock = client.lock("k");
    let guard = lock.lock().await.unwrap();
    let again = lock.lock().await.unwrap();
    let elsewhere = client.scoped("s:").lock("k").lock().await.unwrap();
    let waiting = [acquiring(&lock), acquiring(&lock)];
    let next = acquiring(&other.lock("k"));
    eventually_heard(&server, "k", 2).await;
    let started = Instant::now();
    tokio::join!(client.close(), client.close(), async {
        soon(guard.lost()).await;
        soon(elsewhere.lost()).await;
    });
    assert!(started.elapsed() < secs(5), "the server answers");
    assert!(
        !server.connection().exists("s:k"),
        "released when close returns"
    );
    assert!(again.is_lost());
    for task in waiting {
        assert_eq!(kind(soon(task).await.unwrap()), ErrorKind::Closed);
    }
    soon(next).await.unwrap().unwrap().unlock().await.unwrap();
    for (call, result) in every_call(&lock, guard).await {
        assert_eq!(kind(result), ErrorKind::Closed, "{call}");
    }
    assert_eq!(
        kind(client.scoped("x:").lock("k").try_lock().await),
        ErrorKind::Closed
    );
    soon(client.close()).await;
    drop((again, elsewhere));
    nothing_left(&server, [&other]).await;
    eventually("those of the other client are left", async || {
        connections(&server).len() == 2
    })
    .await;
}

#[tokio::test]
async fn close_dropped_once_polled_goes_on() {
    let (server, client) = start().await;
    let guard = client.lock("k").lock().await.unwrap();
    drop(begin(client.close()));
    soon(guard.lost()).await;
    eventually_free(&server, "k").await;
    eventually_unconnected(&server).await;
}

#[tokio::test]
async fn last_handle_or_guard_to_go_closes_the_connections() {
    let server = Server::start();
    for round in [
        "client",
        "lock",
        "guard",
        "scope",
        "dropped with the client",
    ] {
        let client = client(&server).await;
        assert_connected(&server, round);
        let mut keep: Box<dyn std::any::Any> = Box::new(());
        match round {
            "client" => keep = Box::new(client.clone()),
            "lock" => keep = Box::new(client.lock("k")),
            "guard" => keep = Box::new(client.lock("k").lock().await.unwrap()),
            "scope" => keep = Box::new(client.scoped("s:")),
            _ => drop(client.lock("k").lock().await.unwrap()),
        }
        drop(client);
        if round != "dropped with the client" {
            // There is no event to wait for: that nothing was closed is shown by what works afterwards.
            let still_open = keep
                .downcast_ref::<ReentrantLock>()
                .cloned()
                .or_else(|| keep.downcast_ref::<Client>().map(|client| client.lock("k")));
            if let Some(lock) = still_open {
                assert!(!lock.is_locked().await.unwrap());
            } else if let Some(guard) = keep.downcast_ref::<LockGuard>() {
                guard.verify().await.unwrap();
            }
            assert_connected(&server, &format!("{round} keeps them"));
        }
        drop(keep);
        eventually_unconnected(&server).await;
        eventually_free(&server, "k").await;
    }
}

#[tokio::test]
async fn dropped_connect_and_refused_connect_leave_nothing_open() {
    let server = Server::start();
    for _ in 0..5 {
        drop(begin(Client::connect(server.url())));
    }
    eventually_unconnected(&server).await;
    let client = client(&server).await;
    assert_connected(&server, "connected");
    client.close().await;
    eventually_unconnected(&server).await;
}

#[test]
fn client_whose_runtime_rests_is_closed_all_the_same() {
    let server = Server::start();
    let (rests, other) = (runtime(), runtime());
    let client = rests.block_on(client(&server));
    let lock = client.lock("k");
    let guard = rests.block_on(lock.lock()).unwrap();
    other.block_on(async {
        soon(client.close()).await;
        assert_eq!(soon(guard.lost()).await, LossReason::Closed);
        assert_eq!(kind(soon(lock.lock()).await), ErrorKind::Closed);
    });
    // The runtime runs again.
    rests.block_on(eventually_free(&server, "k"));
    // Outside of any runtime.
    let client = rests.block_on(self::client(&server));
    block_on(client.close());
}
