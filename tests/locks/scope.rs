//! Whose call it is: scopes, `run`, and owners by call.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::support::probe::{eventually_free, kind, millis, soon};
use crate::support::{builder, start};
use futures_util::StreamExt;
use futures_util::stream::{FuturesUnordered, iter};
use redlatch::config::Owners;
use redlatch::{Client, ErrorKind, MultiLock, Owner, RedLock};
use redlatch_testkit::Server;
use tokio::sync::Barrier;

/// How many are inside at the same time, and the most that ever were.
#[derive(Default)]
struct Inside(AtomicUsize, AtomicUsize);

impl Inside {
    async fn section(&self) {
        let now = self.0.fetch_add(1, Ordering::SeqCst) + 1;
        self.1.fetch_max(now, Ordering::SeqCst);
        tokio::time::sleep(millis(5)).await;
        self.0.fetch_sub(1, Ordering::SeqCst);
    }

    fn most(&self) -> usize {
        self.1.load(Ordering::SeqCst)
    }
}

async fn by_call(server: &Server) -> Client {
    let builder = builder(server.url()).owners(Owners::Call);
    builder.build().await.unwrap()
}

/// The case that `run` is for: what is seen here is why the manual warns of it.
#[tokio::test]
async fn branches_of_one_task_share_what_they_lock_and_exclude_what_they_run() {
    let (_server, client) = start().await;
    let lock = client.lock("k");
    // Each waits inside until all of them are.
    let all = Barrier::new(8);
    let each = async |_| {
        let guard = lock.lock().await.unwrap();
        all.wait().await;
        guard.unlock().await.unwrap();
    };
    soon(iter(0..8).for_each_concurrent(8, each)).await;
    let run = Inside::default();
    let each = async |_| lock.run(run.section()).await.unwrap();
    soon(iter(0..8).for_each_concurrent(8, each)).await;
    assert_eq!(run.most(), 1);
}

#[tokio::test]
async fn scopes_of_their_own_and_owners_by_call_exclude_too() {
    let (server, client) = start().await;
    let scoped = Inside::default();
    let by_call = by_call(&server).await;
    let called = Inside::default();
    let section = async |client: &Client, inside: &Inside| {
        let guard = client.lock("k").lock().await.unwrap();
        inside.section().await;
        guard.unlock().await.unwrap();
    };
    let own = || Owner::unique().scope(section(&client, &scoped));
    let own: FuturesUnordered<_> = (0..8).map(|_| own()).collect();
    soon(own.collect::<()>()).await;
    assert_eq!(scoped.most(), 1);
    let own: FuturesUnordered<_> = (0..8).map(|_| section(&by_call, &called)).collect();
    soon(own.collect::<()>()).await;
    assert_eq!(called.most(), 1);
}

#[tokio::test]
async fn call_in_a_scope_acts_for_its_owner_on_every_lock_without_one() {
    let (_server, client) = start().await;
    let request = Owner::named("request-7");
    let work = async {
        assert_eq!(Owner::current(), request);
        let guard = client.lock("a").lock().await.unwrap();
        assert_eq!(*guard.owner(), request);
        let other = Owner::unique();
        let apart = client.lock("b").owned_by(&other).lock().await.unwrap();
        assert_eq!(*apart.owner(), other);
        let set = MultiLock::new([client.lock("c")]).lock().await.unwrap();
        assert_eq!(*set.owner(), request);
        (guard, apart, set)
    };
    let kept = request.clone().scope(work).await;
    assert_ne!(Owner::current(), request);
    assert!(client.lock("a").try_lock().await.unwrap().is_none());
    drop(kept);
}

#[tokio::test]
async fn child_task_gets_in_with_the_owner_of_its_parent_only() {
    let (_server, client) = start().await;
    let lock = client.lock("k");
    let guard = lock.lock().await.unwrap();
    let child = |lock: redlatch::ReentrantLock| async move {
        let wait = lock.try_lock_for(millis(100)).await;
        wait.unwrap().is_some()
    };
    assert!(!tokio::spawn(child(lock.clone())).await.unwrap());
    let passed_on = Owner::current().scope(child(lock.clone()));
    assert!(tokio::spawn(passed_on).await.unwrap());
    guard.unlock().await.unwrap();
}

#[tokio::test]
async fn run_within_what_is_held_around_it_does_not_wait_for_itself() {
    let (server, client) = start().await;
    let (a, b) = (client.lock("a"), client.lock("b"));
    let deep = a.run(async {
        let in_a = Owner::current();
        // Again, by a call and by a run.
        let again = a.lock().await.unwrap();
        assert_eq!(*again.owner(), in_a);
        let both = MultiLock::new([a.clone(), b.clone()]);
        let nested = a.run(b.run(async {
            assert_ne!(Owner::current(), in_a);
            // What the owner around holds is held in here, too.
            assert!(a.is_held().await.unwrap() && b.is_held().await.unwrap());
            drop(a.try_lock().await.unwrap().expect("held around"));
        }));
        nested.await.unwrap().unwrap();
        both.run(async {}).await.unwrap();
        again.unlock().await.unwrap();
    });
    soon(deep).await.unwrap();
    eventually_free(&server, "a").await;
    eventually_free(&server, "b").await;

    let held = a.lock().await.unwrap();
    soon(a.run(async {})).await.unwrap();
    held.verify().await.unwrap();
    held.unlock().await.unwrap();
}

#[tokio::test]
async fn branches_of_a_run_exclude_each_other_on_other_locks() {
    let (_server, client) = start().await;
    let (a, b) = (client.lock("a"), client.lock("b"));
    let inside = Inside::default();
    let branches = async {
        let each = async |_| b.run(inside.section()).await.unwrap();
        iter(0..8).for_each_concurrent(8, each).await;
    };
    soon(a.run(branches)).await.unwrap();
    assert_eq!(inside.most(), 1);
}

#[tokio::test]
async fn run_ends_with_its_lock_and_says_so() {
    let server = Server::start();
    let builder = builder(server.url()).trust_fresh_servers(true);
    let client = builder.watchdog_lease(millis(300)).build().await.unwrap();
    let lock = client.lock("k");
    let never = lock.run(std::future::pending::<()>());
    let end = async {
        soon(async {
            while !server.connection().exists("k") {
                tokio::task::yield_now().await;
            }
        })
        .await;
        server.connection().command(&["DEL", "k"]);
    };
    let (ended, ()) = tokio::join!(soon(never), end);
    assert_eq!(kind(ended), ErrorKind::LeaseLost);
    assert_eq!(lock.run(async { 7 }).await.unwrap(), 7);
    let red = RedLock::new([client.lock("r")]);
    assert_eq!(red.run(async { 7 }).await.unwrap(), 7);
    // Dropped, it gives the lock back.
    let dropped = tokio::time::timeout(
        Duration::from_millis(20),
        lock.run(std::future::pending::<()>()),
    );
    assert!(dropped.await.is_err());
    eventually_free(&server, "k").await;
    eventually_free(&server, "r").await;
}

#[tokio::test]
async fn run_of_a_side_knows_the_other_side_that_is_held_around_it() {
    let (_server, client) = start().await;
    let (lock, other) = (client.read_write_lock("rw"), client.lock("other"));
    let reading = lock.read().await.unwrap();
    let upgrade = soon(lock.writer().run(async {})).await;
    assert_eq!(kind(upgrade), ErrorKind::Refused);
    let inside = other.run(async { kind(lock.write().await) });
    assert_eq!(soon(inside).await.unwrap(), ErrorKind::Refused);
    reading.unlock().await.unwrap();

    let writing = lock.write().await.unwrap();
    soon(lock.reader().run(async {})).await.unwrap();
    let inside = other.run(async { lock.read().await.unwrap().unlock().await });
    soon(inside).await.unwrap().unwrap();
    writing.unlock().await.unwrap();
    let (reader, writer) = (lock.reader(), lock.writer());
    let nested = writer.run(reader.run(async {}));
    soon(nested).await.unwrap().unwrap();
}

#[tokio::test]
async fn set_acts_for_the_one_owner_around_it_that_holds_any_of_its_locks() {
    let (_server, client) = start().await;
    let (a, b) = (client.lock("a"), client.lock("b"));
    let set = MultiLock::new([a.clone(), b.clone()]);
    let held = a.lock().await.unwrap();
    let both = b.run(async { kind(set.lock().await) });
    assert_eq!(soon(both).await.unwrap(), ErrorKind::Refused);
    let c = client.lock("c");
    let around = c.run(async { set.lock().await.unwrap().owner().clone() });
    assert_eq!(soon(around).await.unwrap(), *held.owner());
    soon(set.run(async {})).await.unwrap();
    held.unlock().await.unwrap();
    let apart = Owner::current();
    assert_ne!(set.run(async { Owner::current() }).await.unwrap(), apart);
}

#[tokio::test]
async fn owners_by_call_stay_apart_in_a_run_and_a_child_gets_what_is_held_around_it() {
    let (server, client) = start().await;
    let by_call = by_call(&server).await;
    let (a, b) = (by_call.lock("a"), by_call.lock("b"));
    let both = a.run(async { tokio::join!(b.try_lock(), b.try_lock()) });
    let (left, right) = soon(both).await.unwrap();
    assert_ne!(left.unwrap().is_some(), right.unwrap().is_some());

    let lock = client.lock("k");
    let held = lock.lock().await.unwrap();
    let child = async {
        let lock = lock.clone();
        let child = async move { lock.lock().await.unwrap().unlock().await };
        tokio::spawn(Owner::current().scope(child)).await.unwrap()
    };
    soon(client.lock("other").run(child))
        .await
        .unwrap()
        .unwrap();
    held.unlock().await.unwrap();
}
