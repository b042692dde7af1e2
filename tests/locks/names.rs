//! What handles and guards are called, and how `Debug` shows them: in one line, by what a person knows.

use std::fmt::Debug;
use std::time::Duration;

use redlatch::{Client, Error, MultiLock, NamedLock, Owner, RedLock};

use crate::support::probe::secs;
use crate::support::{builder, start};

/// Checks a value's name, and that `Debug` shows this, where `..` stands for anything.
fn is_shown(value: &impl Debug, name: &str, shown: &str) {
    let debug = format!("{value:?}");
    let mut rest = &*debug;
    for part in shown.split("..") {
        let at = rest.find(part);
        let at = at.unwrap_or_else(|| panic!("{debug}, not {shown}"));
        rest = &rest[at + part.len()..];
    }
    assert!(
        rest.is_empty() && debug.starts_with(&shown[..8]),
        "{debug}, not {shown}"
    );
    assert!(debug.contains(&format!("{name:?}")), "{debug}");
    assert!(debug.len() < 120 && !debug.contains('\n'), "{debug}");
}

#[tokio::test]
async fn handles_of_all_kinds_have_a_name_and_show_it() {
    fn is_named(lock: impl NamedLock + Debug, kind: &str) {
        assert_eq!(lock.name(), "app:orders");
        is_shown(
            &lock,
            "app:orders",
            &format!("{kind} {{ name: \"app:orders\" }}"),
        );
        let lock = lock.owned_by(&Owner::named("req-7")).lease(secs(10));
        let shown = format!("{kind} {{ name: \"app:orders\", owner: req-7, lease: 10s }}");
        is_shown(&lock, "app:orders", &shown);
    }

    let (_server, client) = start().await;
    let app = client.scoped("app:");
    is_named(app.lock("orders"), "ReentrantLock");
    is_named(app.fair_lock("orders"), "FairLock");
    is_named(app.fenced_lock("orders"), "FencedLock");
    is_named(app.spin_lock("orders"), "SpinLock");
    is_named(app.plain_lock("orders"), "PlainLock");
    is_named(app.read_write_lock("orders").reader(), "ReadLock");
    is_named(app.read_write_lock("orders").writer(), "WriteLock");
    let both = app.read_write_lock("orders");
    assert_eq!(both.name(), "app:orders");
    is_shown(
        &both,
        "app:orders",
        "ReadWriteLock { name: \"app:orders\" }",
    );

    let (semaphore, expirable) = (app.semaphore("s"), app.expirable_semaphore("s"));
    assert_eq!((semaphore.name(), expirable.name()), ("app:s", "app:s"));
    is_shown(&semaphore, "app:s", "Semaphore { name: \"app:s\" }");
    is_shown(
        &expirable,
        "app:s",
        "ExpirableSemaphore { name: \"app:s\" }",
    );
    let latch = app.latch("l");
    assert_eq!(latch.name(), "app:l");
    is_shown(&latch, "app:l", "Latch { name: \"app:l\" }");
    let (election, job) = (app.leader("e"), app.job("j", secs(60)));
    assert_eq!(
        (election.name(), election.watch().name(), job.name()),
        ("app:e", "app:e", "app:j")
    );
    is_shown(&election, "app:e", "Election { name: \"app:e\"..}");
    is_shown(
        &election.watch(),
        "app:e",
        "LeaderWatch { name: \"app:e\"..}",
    );
    is_shown(&job, "app:j", "Job { name: \"app:j\"..}");

    let set = MultiLock::new([app.lock("a"), app.lock("b")]);
    assert!(set.names().eq(["app:a", "app:b"]));
    is_shown(&set, "app:b", "MultiLock { names: [\"app:a\", \"app:b\"] }");
    let red = RedLock::new([app.lock("a"), app.lock("b")]);
    assert_eq!(red.name(), "app:a");
    is_shown(&red, "app:a", "RedLock { name: \"app:a\", servers: 2 }");
    assert_eq!(client.lock("").name(), "", "one that cannot work");
}

#[tokio::test]
async fn guards_of_all_kinds_have_a_name_and_show_who_holds_for_how_long() {
    let (server, client) = start().await;
    let owner = Owner::named("req-7");
    let guard = client.lock("orders").owned_by(&owner).lock().await.unwrap();
    assert_eq!(guard.name(), "orders");
    let rest = "{ name: \"orders\", owner: req-7, remaining: ..s }";
    is_shown(&guard, "orders", &format!("LockGuard {rest}"));
    is_shown(&*guard, "orders", &format!("Lease {rest}"));
    guard.unlock().await.unwrap();

    let guard = client
        .fenced_lock("orders")
        .owned_by(&owner)
        .lock()
        .await
        .unwrap();
    is_shown(
        &guard,
        "orders",
        "FencedGuard { name: \"orders\", owner: req-7, remaining: ..s, token: .. }",
    );
    drop(guard);
    let term = client
        .leader("e")
        .identity("web-7")
        .campaign()
        .await
        .unwrap();
    assert_eq!(term.name(), "e");
    is_shown(
        &term,
        "e",
        "Term { name: \"e\", owner: web-7/..s, token: .. }",
    );
    drop(term);
    let job = client.job("j", secs(60));
    job.execute(async |run| {
        is_shown(run, "j", "Execution { name: \"j\", owner: ..s, token: .. }");
        Ok::<_, Error>(())
    })
    .await
    .unwrap();

    let set = MultiLock::new([client.lock("a"), client.lock("b")]).owned_by(&owner);
    let guard = set.lock().await.unwrap();
    assert!(guard.names().eq(["a", "b"]));
    is_shown(
        &guard,
        "b",
        "MultiGuard { names: [\"a\", \"b\"], owner: req-7, remaining: ..s }",
    );
    let members: Client = builder(server.url())
        .trust_fresh_servers(true)
        .build()
        .await
        .unwrap();
    let red = RedLock::new([members.lock("m")]).owned_by(&owner);
    let guard = red.lock().await.unwrap();
    assert_eq!(guard.name(), "m");
    is_shown(
        &guard,
        "m",
        "RedGuard { name: \"m\", owner: req-7, remaining: ..s }",
    );

    let (plain, leased) = (client.semaphore("p"), client.expirable_semaphore("q"));
    plain.try_set_permits(3).await.unwrap();
    leased.try_set_permits(3).await.unwrap();
    let permit = plain.acquire_many(2).await.unwrap();
    assert_eq!(permit.name(), "p");
    is_shown(&permit, "p", "SemaphorePermit { name: \"p\", permits: 2 }");
    let permit = leased.acquire().await.unwrap();
    assert_eq!(permit.name(), "q");
    is_shown(&permit, "q", "ExpirablePermit { name: \"q\", permits: 1 }");

    // A short time is shown to the millisecond.
    let lock = client.lock("short").lease(Duration::from_millis(500));
    is_shown(
        &lock.lock().await.unwrap(),
        "short",
        "LockGuard { name: \"short\", owner: ..ms }",
    );
}
