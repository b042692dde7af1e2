//! Clients and guards on other runtimes, on none, and after their end; closing.
//!
//! A program of its own: its tests count the open connections of the process.
#![allow(
    clippy::expect_used,
    clippy::unwrap_used,
    reason = "a test fails by panicking"
)]

mod closing;
#[path = "../support/mod.rs"]
mod support;

use std::env;
use std::future::pending;
use std::mem::forget;
use std::pin::pin;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake};
use std::thread::Thread;

use futures_util::future::try_join_all;
use redlatch::semaphore::{ExpirablePermit, SemaphorePermit};
use redlatch::{
    Client, Error, ErrorKind, LockGuard, LossReason, MultiGuard, MultiLock, Owner, ReentrantLock,
};
use redlatch_testkit::{Proxy, Server};
use support::mixed::{KINDS, try_take};
use support::probe::{
    acquiring, begin, calls_of, eventually_free, eventually_heard, kind, millis, nothing_left,
    reset_calls, secs, soon, stranger,
};
use support::{builder, choose_provider, client, eventually, start, with_tls};
use tokio::runtime::{Builder, Runtime};

fn runtime() -> Runtime {
    Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap()
}

/// An executor that knows nothing of tokio.
fn block_on<F: Future>(future: F) -> F::Output {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Arc::new(Unpark(std::thread::current())).into();
    let mut context = Context::from_waker(&waker);
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(output) => return output,
            Poll::Pending => std::thread::park(),
        }
    }
}

// fault: S56
#[tokio::test]
async fn guard_dropped_on_a_thread_without_runtime_releases() {
    let (server, client) = start().await;
    let guard = client.lock("k").lock().await.unwrap();
    std::thread::spawn(move || drop(guard)).join().unwrap();
    eventually_free(&server, "k").await;
    nothing_left(&server, [&client]).await;
}

// fault: S56
#[test]
fn guard_dropped_after_its_runtime_does_not_panic_and_its_key_goes() {
    let server = Server::start();
    let short = runtime();
    let (client, guard, waiting) = short.block_on(async {
        let client = client(&server).await;
        let guard = client.lock("k").lease(secs(2)).lock().await.unwrap();
        let lock = stranger(&client.lock("k"));
        let waiting = begin(async move { lock.lock().await });
        (client, guard, waiting)
    });
    drop(short);
    assert!(guard.is_lost(), "nobody watches it any more");
    drop((waiting, guard, client));
    // The release was written while the tasks of the runtime ended; otherwise the key goes by its lease.
    runtime().block_on(eventually_free(&server, "k"));
}

// fault: S57
#[test]
fn runtime_that_ends_under_a_hundred_holds_does_not_panic_and_their_keys_go() {
    let server = Server::start();
    let short = runtime();
    let guards = short.block_on(async {
        let client = builder(server.url()).watchdog_lease(secs(6));
        let client = client.build().await.unwrap();
        let locks = (0..100).map(|n| client.lock(format!("k{n}")));
        try_join_all(locks.map(|lock| async move { lock.lock().await }))
            .await
            .unwrap()
    });
    short.shutdown_background();
    runtime().block_on(eventually("their leases end", async || {
        server.connection().keys().is_empty()
    }));
    assert!(guards.iter().all(|guard| guard.is_lost()));
    drop(guards);
}

#[test]
fn client_is_used_from_a_second_runtime() {
    let server = Server::start();
    let (first, second) = (runtime(), runtime());
    let client = first.block_on(client(&server));
    let lock = client.lock("k");
    let held = first.block_on(stranger(&lock).lock()).unwrap();
    let granted = second.block_on(async {
        assert!(lock.try_lock().await.unwrap().is_none());
        assert!(lock.try_lock_for(millis(50)).await.unwrap().is_none());
        let waiting = acquiring(&lock);
        eventually_heard(&server, "k", 1).await;
        held.unlock().await.unwrap();
        soon(waiting).await.unwrap().unwrap()
    });
    drop(second);
    first.block_on(async {
        granted.verify().await.unwrap();
        granted.unlock().await.unwrap();
        nothing_left(&server, [&client]).await;
    });
}

/// The watchdog runs on the runtime of the client, and is late if that is busy.
#[test]
fn loss_is_told_at_its_deadline_though_the_runtime_of_the_client_is_busy() {
    let server = Server::start();
    let (busy, other) = (runtime(), runtime());
    let builder = Client::builder().url(server.url()).watchdog_lease(secs(1));
    let client = busy.block_on(builder.build()).unwrap();
    let owner = Owner::unique();
    let lock = |name: &str| client.lock(name).owned_by(&owner);
    let take = |name: &str| busy.block_on(lock(name).lock()).unwrap();
    let (told, stopped, plain) = (take("told"), take("stopped"), take("plain"));
    let set = MultiLock::new([lock("a"), lock("b")]);
    let set = busy.block_on(set.lock()).unwrap();
    let run = lock("run");
    let run = other.spawn(async move { run.run(pending::<()>()).await });
    other.block_on(eventually("all are held", async || {
        client.stats().total().held == 6
    }));
    let (go_on, stays) = std::sync::mpsc::channel::<()>();
    busy.spawn(async move { stays.recv().ok() });

    let reason = |ended: Result<(), Error>| ended.unwrap_err().loss_reason().unwrap();
    other.block_on(async {
        let stopped = stopped.run_until_lost(pending());
        assert_eq!(soon(told.lost()).await, LossReason::Expired);
        assert_eq!(reason(soon(stopped).await), LossReason::Expired);
        assert_eq!(soon(set.lost()).await, LossReason::Expired);
        assert_eq!(reason(soon(run).await.unwrap()), LossReason::Expired);
    });
    assert_eq!(block_on(plain.lost()), LossReason::Expired);
    assert!(
        [&told, &stopped, &plain]
            .iter()
            .all(|guard| guard.is_lost())
    );
    drop(go_on);
}

#[test]
fn plain_executor_locks_waits_and_is_woken_under_an_explicit_owner() {
    let server = Server::start();
    let tokio = runtime();
    let client = tokio.block_on(client(&server));
    let lock = client.lock("k").owned_by(&Owner::unique());
    std::thread::scope(|scope| {
        let plain = scope.spawn(|| {
            block_on(async {
                let outer = lock.lock().await.unwrap();
                let inner = lock.try_lock().await.unwrap().unwrap();
                assert_eq!(lock.hold_count().await.unwrap(), 2);
                assert!(lock.is_held().await.unwrap());
                inner.unlock().await.unwrap();
                let busy = stranger(&lock).try_lock_for(millis(100)).await.unwrap();
                assert!(busy.is_none());
                let again = outer.reenter().await.unwrap();
                again.extend(secs(60)).await.unwrap();
                again.verify().await.unwrap();
                drop(again);
                outer.run_until_lost(async {}).await.unwrap();
                let left = outer.detach();
                lock.clone().owned_by(&left).adopt().await.unwrap().unwrap()
            })
        });
        let guard = plain.join().unwrap();
        let waiter = scope.spawn(|| {
            block_on(async {
                let guard = stranger(&lock).lock().await.unwrap();
                assert!(lock.force_unlock().await.unwrap());
                guard.lost().await;
            });
        });
        tokio.block_on(eventually_heard(&server, "k", 1));
        drop(guard);
        waiter.join().unwrap();
    });
    tokio.block_on(nothing_left(&server, [&client]));
}

#[test]
fn runtime_that_ends_under_a_call_of_a_plain_executor_makes_it_fail_and_not_panic() {
    type Call = fn(ReentrantLock, LockGuard) -> Result<(), Error>;
    // Each with the request that shows that the call is under way.
    let calls: [(&str, &str, Call); 4] = [
        ("lock", "subscribe", |lock, _guard| {
            block_on(stranger(&lock).lock()).map(drop)
        }),
        ("unlock", "eval", |_, guard| block_on(guard.unlock())),
        ("handle unlock", "eval", |lock, guard| {
            block_on(lock.owned_by(guard.owner()).unlock())
        }),
        ("is_locked", "evalsha", |lock, _guard| {
            block_on(lock.is_locked()).map(drop)
        }),
    ];
    let server = Server::start();
    let others = runtime();
    let mut probe = server.connection();
    for (name, request, call) in calls {
        let proxy = others.block_on(Proxy::start(server.port()));
        let short = runtime();
        let client = builder(proxy.url()).command_timeout(secs(60));
        let client = short.block_on(client.build()).unwrap();
        let lock = client.lock(name);
        let guard = short.block_on(lock.lock()).unwrap();
        proxy.hold_replies();
        reset_calls(&mut probe);
        let blocked = std::thread::spawn(move || call(lock, guard));
        others.block_on(eventually("the call is under way", async || {
            calls_of(&mut probe, request) > 0
        }));
        drop(short);
        let ended = blocked.join().expect(name);
        assert_eq!(kind(ended), ErrorKind::Closed, "{name}");
    }
}

/// The variable that tells the process that gives up: the server, the flavour of its runtime, the kind and the name that
/// it acquires.
const GIVES_UP: &str = "REDLATCH_GIVES_UP";

#[test]
#[ignore = "a process of its own, started by the test below"]
fn gives_up() {
    let told = env::var(GIVES_UP).expect("started by the test below");
    let [url, flavour, kind, name] = told.split(' ').collect::<Vec<_>>()[..] else {
        panic!("{told}");
    };
    choose_provider();
    let runtime = match flavour {
        "current_thread" => Builder::new_current_thread().enable_all().build(),
        _ => Builder::new_multi_thread().enable_all().build(),
    };
    // Like a `main` that returns an error while it holds something.
    let ended: Result<(), &str> = runtime.unwrap().block_on(async {
        let client = Client::connect(url).await.unwrap();
        let _taken = try_take(&client, kind, name).await.unwrap().expect("free");
        Err("no time to say goodbye")
    });
    std::process::exit(ended.is_err().into());
}

/// Has a process give up while it holds this.
fn give_up(url: &str, flavour: &str, kind: &str, name: &str) {
    let ended = Command::new(env::current_exe().unwrap())
        .args(["--ignored", "--exact", "gives_up", "--nocapture"])
        .env(GIVES_UP, format!("{url} {flavour} {kind} {name}"))
        .stdout(Stdio::null())
        .status();
    assert_eq!(ended.unwrap().code(), Some(1), "{kind} on {flavour}");
}

// fault: S56
#[tokio::test]
async fn guard_dropped_by_an_error_out_of_main_leaves_nothing() {
    let (server, client) = start().await;
    let mut probe = server.connection();
    for round in 0..100 {
        let kind = KINDS[round / 2 % KINDS.len()];
        let flavour = ["current_thread", "multi_thread"][round % 2];
        if kind == "semaphore" {
            client.semaphore("k").try_set_permits(1).await.unwrap();
        } else if kind == "expirable" {
            let semaphore = client.expirable_semaphore("k");
            semaphore.try_set_permits(1).await.unwrap();
        }
        give_up(&server.url(), flavour, kind, "k");
        let what = format!("round {round}: {kind} on {flavour} leaves nothing");
        eventually(&what, async || match kind {
            "semaphore" => client.semaphore("k").available_permits().await.unwrap() == 1,
            "expirable" => {
                let semaphore = client.expirable_semaphore("k");
                semaphore.available_permits().await.unwrap() == 1
            }
            _ => probe.keys().iter().all(|key| key.contains("token")),
        })
        .await;
        probe.command(&["FLUSHALL"]);
    }
    client.close().await;
}

/// Unless the runtime drops the task of the connection first.
// fault: S56
#[test]
fn permits_that_outlive_the_runtime_of_their_client_are_given_back() {
    let server = Server::start();
    let mut probe = server.connection();
    probe.command(&["SET", "k", "20"]);
    let mut outlive = Vec::new();
    for _ in 0..20 {
        let short = Builder::new_current_thread().enable_all().build().unwrap();
        outlive.push(short.block_on(async {
            let client = Client::connect(server.url()).await.unwrap();
            client.semaphore("k").acquire().await.unwrap()
        }));
    }
    let free = probe.command(&["GET", "k"]).text();
    assert_ne!(free, "0");
    drop(outlive);
}

/// The task that goes on with the release has no timers of the runtime in which it was begun.
#[test]
fn permit_that_is_being_released_outlives_the_runtime_of_the_call() {
    let server = Server::start();
    let clients = runtime();
    let (client, permit) = clients.block_on(async {
        let client = client(&server).await;
        let semaphore = client.semaphore("k");
        semaphore.try_set_permits(1).await.unwrap();
        let permit = semaphore.acquire().await.unwrap();
        (client, permit)
    });
    let panics = Arc::new(AtomicUsize::new(0));
    let (counted, shown) = (panics.clone(), std::panic::take_hook());
    std::panic::set_hook(Box::new(move |panic| {
        if panic.to_string().contains("being shutdown") {
            counted.fetch_add(1, Ordering::Relaxed);
        }
        shown(panic);
    }));
    let short = Builder::new_current_thread().enable_all().build().unwrap();
    server.freeze();
    short.block_on(async { drop(begin(permit.release())) });
    drop(short);
    server.thaw();
    clients.block_on(eventually("it is given back", async || {
        client.semaphore("k").available_permits().await.unwrap() == 1
    }));
    assert_eq!(panics.load(Ordering::Relaxed), 0);
}

/// The tasks of a client do not run while nobody drives the runtime on which it connected.
#[test]
fn calls_about_a_hold_end_though_the_runtime_of_the_client_does_not_run() {
    let server = Server::start();
    let (resting, other) = (
        Builder::new_current_thread().enable_all().build().unwrap(),
        runtime(),
    );
    let builder = builder(server.url()).command_timeout(millis(100));
    let client = resting.block_on(builder.build()).unwrap();
    let lock = client.lock("k").owned_by(&Owner::unique());
    let guard = resting.block_on(lock.lock()).unwrap();
    let semaphore = client.semaphore("s");
    resting.block_on(semaphore.try_set_permits(1)).unwrap();
    let permit = resting.block_on(semaphore.acquire()).unwrap();
    other.block_on(async {
        let released = soon(permit.release()).await.unwrap_err();
        assert_eq!(released.kind(), ErrorKind::Timeout);
        let reentered = soon(guard.reenter()).await.unwrap_err();
        let extended = soon(guard.extend(secs(40))).await.unwrap_err();
        let taken = soon(lock.try_lock_for(millis(100))).await.unwrap_err();
        let kinds = [reentered, extended, taken].map(|error| error.kind());
        assert_eq!(kinds, [ErrorKind::Timeout; 3]);
    });
}

/// The level that was asked for, and the turn to ask, end with the call and not when its runtime comes to it.
#[test]
fn guard_dropped_behind_a_cancelled_reentry_releases_as_its_runtime_ends() {
    let server = Server::start();
    let mut probe = server.connection();
    let other = runtime();
    for _ in 0..10 {
        let proxy = other.block_on(Proxy::start(server.port()));
        let short = Builder::new_current_thread().enable_all().build().unwrap();
        short.block_on(async {
            let client = Client::connect(&proxy.url()).await.unwrap();
            let guard = client.lock("k").lock().await.unwrap();
            proxy.hold_replies();
            let reentered = tokio::time::timeout(millis(20), guard.reenter());
            assert!(reentered.await.is_err(), "it is not answered");
        });
        drop(short);
        other.block_on(eventually("the lock is free", async || !probe.exists("k")));
    }
}

#[tokio::test]
async fn guard_dropped_by_an_error_out_of_main_leaves_nothing_over_tls() {
    let Some(server) = with_tls(Server::builder().tls()) else {
        return;
    };
    let roots = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(&roots, server.ca_pem()).unwrap();
    let url = format!("{}?tls_roots={}", server.url(), roots.path().display());
    let client = Client::connect(&url).await.unwrap();
    for round in 0..2 * KINDS.len() {
        let kind = KINDS[round / 2];
        let flavour = ["current_thread", "multi_thread"][round % 2];
        let name = format!("k{round}");
        if kind == "semaphore" {
            client.semaphore(&name).try_set_permits(1).await.unwrap();
        } else if kind == "expirable" {
            let semaphore = client.expirable_semaphore(&name);
            semaphore.try_set_permits(1).await.unwrap();
        }
        give_up(&url, flavour, kind, &name);
        // Readers share the lock with one that was left behind.
        let kind = if kind == "read" { "write" } else { kind };
        eventually(&format!("{kind} on {flavour} is free"), async || {
            try_take(&client, kind, &name).await.unwrap().is_some()
        })
        .await;
    }
}

/// Takes something, and ends the process while that is given back and the server does not answer.
///
/// One thing at a time: a server that answers a process which has ended loses the requests that it has not read yet.
fn ends_giving_back<G, F: Future>(
    server: &Server,
    take: impl AsyncFnOnce(&Client) -> Result<G, Error>,
    give: impl FnOnce(G) -> F,
) {
    let short = Builder::new_current_thread().enable_all().build().unwrap();
    short.block_on(async {
        let client = client(server).await;
        let taken = take(&client).await.unwrap();
        server.freeze();
        // Nothing of it is even dropped.
        forget(begin(give(taken)));
    });
    drop(short);
    server.thaw();
}

/// A server that does not know a script by its hash may hang before it says so, and then there is nobody to send the
/// script.
#[test]
fn what_is_given_back_by_a_process_that_ends_is_sent_as_a_whole() {
    let server = Server::start();
    runtime().block_on(async {
        let client = client(&server).await;
        let (permits, leased) = (
            client.semaphore("permits"),
            client.expirable_semaphore("leased"),
        );
        permits.try_set_permits(1).await.unwrap();
        leased.try_set_permits(1).await.unwrap();
    });
    macro_rules! end_giving_back {
        ($client:ident: $take:expr, $give:path) => {
            ends_giving_back(&server, async |$client| $take.await, $give)
        };
    }
    end_giving_back!(client: client.lock("lock").lock(), LockGuard::unlock);
    end_giving_back!(client: client.fair_lock("fair").lock(), LockGuard::unlock);
    end_giving_back!(client: client.plain_lock("plain").lock(), LockGuard::unlock);
    end_giving_back!(client: client.read_write_lock("read").read(), LockGuard::unlock);
    end_giving_back!(client: MultiLock::new(["a", "b"].map(|name| client.lock(name))).lock(), MultiGuard::unlock);
    end_giving_back!(client: client.semaphore("permits").acquire(), SemaphorePermit::release);
    end_giving_back!(client: client.expirable_semaphore("leased").acquire(), ExpirablePermit::release);
    runtime().block_on(async {
        for name in ["lock", "fair", "plain", "read", "a", "b"] {
            eventually_free(&server, name).await;
        }
        let client = client(&server).await;
        let (permits, leased) = (
            client.semaphore("permits"),
            client.expirable_semaphore("leased"),
        );
        eventually("the permits are back", async || {
            let free = (
                permits.available_permits().await,
                leased.available_permits().await,
            );
            (free.0.unwrap(), free.1.unwrap()) == (1, 1)
        })
        .await;
    });
}

#[test]
fn connecting_outside_a_runtime_is_an_error() {
    let server = Server::start();
    let error = block_on(Client::connect(server.url())).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    assert!(error.to_string().contains("tokio runtime"), "{error}");
}
