//! Who holds a lock: tasks, threads, unique and named owners, and levels that change hands.

use crate::support;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::support::probe::{
    acquiring, begin, eventually_free, eventually_heard, kind, millis, nothing_left, passes, secs,
    soon, stranger,
};
use crate::support::{builder, client, eventually, start, start_two};
use redlatch::{ErrorKind, Owner, ReentrantLock};
use redlatch_testkit::Server;

#[tokio::test]
async fn nested_calls_of_one_task_reenter_and_its_children_do_not() {
    async fn inner(lock: &ReentrantLock) -> u64 {
        let guard = lock.lock().await.unwrap();
        let count = lock.hold_count().await.unwrap();
        guard.unlock().await.unwrap();
        count
    }
    let (server, client) = start().await;
    let lock = client.lock("k");
    let outer = lock.clone();
    let task = tokio::spawn(async move {
        let guard = outer.lock().await.unwrap();
        assert_eq!(inner(&outer).await, 2);
        let child = outer.clone();
        let busy = tokio::spawn(async move { child.try_lock().await });
        assert!(busy.await.unwrap().unwrap().is_none(), "another task");
        assert!(outer.is_held().await.unwrap());
        guard.unlock().await.unwrap();
    });
    soon(task).await.unwrap();
    nothing_left(&server, [&client]).await;
}

#[tokio::test]
async fn guard_is_released_by_the_task_it_moved_to() {
    let (server, client) = start().await;
    let lock = client.lock("k");
    let guard = lock.lock().await.unwrap();
    let owner = guard.owner().clone();
    assert_eq!(owner, Owner::current());
    let task = tokio::spawn(async move {
        assert_ne!(Owner::current(), owner);
        assert_eq!(*guard.owner(), owner);
        guard.verify().await.unwrap();
        guard.extend(secs(60)).await.unwrap();
        guard.unlock().await
    });
    task.await.unwrap().unwrap();
    assert!(!lock.is_locked().await.unwrap());
    nothing_left(&server, [&client]).await;
}

#[tokio::test]
async fn owner_is_who_first_polls_the_call() {
    let (server, client) = start().await;
    let lock = client.lock("k");
    let call = {
        let lock = lock.clone();
        async move { lock.lock().await }
    };
    let task = tokio::spawn(async move { (call.await.unwrap(), Owner::current()) });
    let (guard, owner) = task.await.unwrap();
    assert_eq!(*guard.owner(), owner);
    guard.unlock().await.unwrap();
    nothing_left(&server, [&client]).await;
}

#[tokio::test]
async fn branches_of_a_join_are_one_owner() {
    let (server, client) = start().await;
    let lock = client.lock("k");
    for round in 0..20 {
        let (a, b, c) = soon(async { tokio::join!(lock.lock(), lock.lock(), lock.lock()) }).await;
        assert_eq!(lock.hold_count().await.unwrap(), 3, "round {round}");
        for guard in [a, b, c] {
            guard.unwrap().unlock().await.unwrap();
        }
        assert!(!lock.is_locked().await.unwrap());
    }
    nothing_left(&server, [&client]).await;
}

#[tokio::test]
async fn single_attempts_of_one_owner_at_once_both_get_in() {
    let (server, client) = start().await;
    let lock = client.lock("k");
    for round in 0..50 {
        let (a, b) = tokio::join!(lock.try_lock(), lock.try_lock());
        let (a, b) = (a.unwrap(), b.unwrap());
        assert!(
            a.is_some() && b.is_some(),
            "round {round}: nobody else holds it"
        );
        for guard in [a, b].into_iter().flatten() {
            guard.unlock().await.unwrap();
        }
    }
    nothing_left(&server, [&client]).await;
}

#[tokio::test]
async fn calls_of_one_owner_in_several_tasks_all_get_in() {
    let (server, client) = start().await;
    for owner in [Owner::unique(), Owner::named("req")] {
        let lock = client.lock("k").owned_by(&owner);
        let tasks: Vec<_> = (0..8)
            .map(|_| {
                let lock = lock.clone();
                tokio::spawn(async move { lock.lock().await })
            })
            .collect();
        let mut guards = Vec::new();
        for task in tasks {
            guards.push(soon(task).await.unwrap().unwrap());
        }
        assert_eq!(lock.hold_count().await.unwrap(), 8);
        for guard in guards {
            guard.unlock().await.unwrap();
        }
        nothing_left(&server, [&client]).await;
    }
}

#[tokio::test]
async fn branches_with_owners_of_their_own_exclude_each_other() {
    let (server, client) = start().await;
    let lock = client.lock("k");
    let inside = AtomicUsize::new(0);
    let branch = async || {
        let guard = stranger(&lock).lock().await.unwrap();
        assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
        tokio::time::sleep(millis(20)).await;
        inside.fetch_sub(1, Ordering::SeqCst);
        guard.unlock().await.unwrap();
    };
    soon(async { tokio::join!(branch(), branch(), branch()) }).await;
    nothing_left(&server, [&client]).await;
}

#[tokio::test]
async fn waiting_call_reenters_when_its_owner_gets_in_elsewhere() {
    let (server, client) = start().await;
    let lock = client.lock("k");
    let held = stranger(&lock).lock().await.unwrap();
    let shared = lock.clone().owned_by(&Owner::unique());
    let start = |lock: &ReentrantLock| {
        let lock = lock.clone();
        begin(async move { lock.lock().await })
    };
    let (first, between, second) = (start(&shared), start(&stranger(&lock)), start(&shared));
    let between = tokio::spawn(between);
    held.unlock().await.unwrap();
    let (first, second) = soon(async { tokio::join!(first, second) }).await;
    let (first, second) = (first.unwrap(), second.unwrap());
    assert_eq!(shared.hold_count().await.unwrap(), 2);
    assert!(!between.is_finished());
    first.unlock().await.unwrap();
    second.unlock().await.unwrap();
    passes(between).await;
    nothing_left(&server, [&client]).await;
}

#[tokio::test]
async fn holds_of_two_clients_under_one_name_add_up_and_end_apart() {
    let (server, one, two) = start_two().await;
    let owner = Owner::named("req-7");
    let (here, there) = (
        one.lock("k").owned_by(&owner),
        two.lock("k").owned_by(&owner),
    );
    let first = here.lock().await.unwrap();
    let second = there.try_lock().await.unwrap().unwrap();
    let third = there.lock().await.unwrap();
    for handle in [&here, &there] {
        assert_eq!(handle.hold_count().await.unwrap(), 3);
        assert_eq!(handle.holder().await.unwrap().unwrap().owner(), "req-7");
    }
    assert!(stranger(&here).try_lock().await.unwrap().is_none());
    first.unlock().await.unwrap();
    assert_eq!(here.hold_count().await.unwrap(), 2);
    second.verify().await.unwrap();
    third.unlock().await.unwrap();
    assert!(here.is_locked().await.unwrap());
    second.unlock().await.unwrap();
    assert!(!here.is_locked().await.unwrap());
    nothing_left(&server, [&one, &two]).await;
}

#[tokio::test]
async fn unlock_in_another_client_takes_a_level_of_a_named_owner() {
    let (server, one, two) = start_two().await;
    let owner = Owner::named("req-7");
    let (here, there) = (
        one.lock("k").owned_by(&owner),
        two.lock("k").owned_by(&owner),
    );
    let outer = here.lock().await.unwrap();
    let inner = here.lock().await.unwrap();
    there.unlock().await.unwrap();
    assert_eq!(here.hold_count().await.unwrap(), 1);
    outer.verify().await.unwrap();
    there.unlock().await.unwrap();
    assert!(!there.is_locked().await.unwrap());
    assert_eq!(kind(there.unlock().await), ErrorKind::NotHeld);
    for guard in [outer, inner] {
        assert_eq!(kind(guard.verify().await), ErrorKind::LeaseLost);
        assert!(guard.is_lost());
        assert_eq!(kind(guard.unlock().await), ErrorKind::LeaseLost);
    }
    nothing_left(&server, [&one, &two]).await;
}

#[tokio::test]
async fn reentry_of_a_named_owner_does_not_queue_behind_other_processes_waiters() {
    let (server, one, two) = start_two().await;
    let owner = Owner::named("req-7");
    let guard = one.lock("k").owned_by(&owner).lock().await.unwrap();
    let lock = two.lock("k");
    let waiting = [acquiring(&lock), acquiring(&lock)];
    eventually_heard(&server, "k", 1).await;
    let shared = lock.clone().owned_by(&owner);
    for wait in [None, Some(secs(60)), Some(millis(0))] {
        let inner = match wait {
            None => soon(shared.lock()).await.unwrap(),
            Some(wait) => soon(shared.try_lock_for(wait)).await.unwrap().unwrap(),
        };
        assert_eq!(shared.hold_count().await.unwrap(), 2);
        inner.unlock().await.unwrap();
    }
    guard.unlock().await.unwrap();
    for task in waiting {
        soon(task).await.unwrap().unwrap().unlock().await.unwrap();
    }
    nothing_left(&server, [&one, &two]).await;
}

#[tokio::test]
async fn detached_level_lives_until_its_lease_only() {
    let server = Server::start();
    let client = builder(server.url())
        .watchdog_lease(millis(900))
        .build()
        .await
        .unwrap();
    let lock = client.lock("k");
    let owner = lock.lock().await.unwrap().detach();
    assert!(lock.is_held().await.unwrap());
    let next = stranger(&lock);
    assert!(next.try_lock().await.unwrap().is_none(), "not released");
    let next = soon(next.lock()).await.unwrap();
    assert_eq!(
        kind(lock.owned_by(&owner).unlock().await),
        ErrorKind::NotHeld
    );
    next.unlock().await.unwrap();
    nothing_left(&server, [&client]).await;
}

#[tokio::test]
async fn detached_level_is_adopted_or_unlocked_by_its_owner() {
    let (server, one, two) = start_two().await;
    let named = Owner::named("req-7");
    for (owner, receiver) in [
        (Owner::unique(), &one),
        (named.clone(), &one),
        (named, &two),
    ] {
        let left = one.lock("k").owned_by(&owner);
        let taken = receiver.lock("k").owned_by(&owner);
        assert!(taken.adopt().await.unwrap().is_none(), "free");

        assert_eq!(left.lock().await.unwrap().detach(), owner);
        let guard = taken.adopt().await.unwrap().unwrap();
        assert_eq!(*guard.owner(), owner);
        assert_eq!(taken.hold_count().await.unwrap(), 1);
        guard.verify().await.unwrap();
        guard.unlock().await.unwrap();
        assert!(!left.is_locked().await.unwrap());

        drop(left.lock().await.unwrap().detach());
        taken.unlock().await.unwrap();
        assert!(!left.is_locked().await.unwrap());
        assert_eq!(kind(taken.unlock().await), ErrorKind::NotHeld);

        // An adopted guard releases on drop like any other.
        drop(left.lock().await.unwrap().detach());
        drop(taken.adopt().await.unwrap().unwrap());
        eventually_free(&server, "k").await;
    }
    one.close().await;
    nothing_left(&server, [&two]).await;
}

#[tokio::test]
async fn adopted_level_is_renewed_by_whom_it_was_adopted() {
    let server = Server::start();
    let (one, two) = (
        client(&server).await,
        builder(server.url()).watchdog_lease(millis(300)),
    );
    let two = two.build().await.unwrap();
    let owner = Owner::named("req-7");
    let lock = one.lock("k").lease(millis(600)).owned_by(&owner);
    drop(lock.lock().await.unwrap().detach());
    let guard = two
        .lock("k")
        .owned_by(&owner)
        .adopt()
        .await
        .unwrap()
        .unwrap();
    let kept = tokio::time::timeout(secs(2), guard.lost()).await;
    assert!(kept.is_err(), "renewed far beyond the first lease");
    guard.unlock().await.unwrap();
    nothing_left(&server, [&one, &two]).await;
}

#[tokio::test]
async fn adopting_what_another_client_guards_loses_the_guard_there() {
    let (server, one, two) = start_two().await;
    let owner = Owner::named("req-7");
    let old = one.lock("k").owned_by(&owner).lock().await.unwrap();
    let new = two
        .lock("k")
        .owned_by(&owner)
        .adopt()
        .await
        .unwrap()
        .unwrap();
    assert_eq!(kind(old.verify().await), ErrorKind::LeaseLost);
    assert_eq!(kind(old.unlock().await), ErrorKind::LeaseLost);
    new.verify().await.unwrap();
    new.unlock().await.unwrap();
    nothing_left(&server, [&one, &two]).await;
}

#[tokio::test]
async fn adopting_what_is_guarded_here_adds_no_level() {
    let (server, client) = start().await;
    let lock = client.lock("k");
    let old = lock.lock().await.unwrap();
    let new = lock.adopt().await.unwrap().unwrap();
    assert_eq!(lock.hold_count().await.unwrap(), 1);
    new.unlock().await.unwrap();
    assert!(!lock.is_locked().await.unwrap());
    assert!(old.is_lost());
    assert_eq!(kind(old.unlock().await), ErrorKind::LeaseLost);
    nothing_left(&server, [&client]).await;
}

#[tokio::test]
async fn level_written_by_a_foreign_client_is_adopted_and_unlocked() {
    let (server, client) = start().await;
    let mut probe = server.connection();
    let lock = client.lock("k").owned_by(&Owner::named("java:31"));
    probe.command(&["HSET", "k", "java:31", "3"]);
    probe.command(&["PEXPIRE", "k", "60000"]);
    lock.unlock().await.unwrap();
    assert_eq!(
        probe.hgetall("k"),
        [("java:31".to_owned(), "2".to_owned())].into()
    );
    let guard = lock.adopt().await.unwrap().unwrap();
    assert_eq!(lock.hold_count().await.unwrap(), 2);
    guard.unlock().await.unwrap();
    assert_eq!(
        probe.hgetall("k"),
        [("java:31".to_owned(), "1".to_owned())].into()
    );
    lock.unlock().await.unwrap();
    assert!(!probe.exists("k"));
    nothing_left(&server, [&client]).await;
}

#[tokio::test]
async fn unlock_of_a_foreign_hold_without_end_gives_one_level_back() {
    let (server, client) = start().await;
    let mut probe = server.connection();
    let lock = client.lock("k").owned_by(&Owner::named("java:31"));
    probe.command(&["HSET", "k", "java:31", "2"]);
    lock.unlock().await.unwrap();
    assert_eq!(
        probe.hgetall("k"),
        [("java:31".to_owned(), "1".to_owned())].into()
    );
    assert_eq!(probe.pttl("k"), -1);
    lock.unlock().await.unwrap();
    nothing_left(&server, [&client]).await;
}

#[tokio::test]
async fn detaching_one_of_two_guards_leaves_the_other_as_it_was() {
    let server = Server::start();
    let client = builder(server.url())
        .watchdog_lease(millis(300))
        .build()
        .await
        .unwrap();
    let lock = client.lock("k");
    let kept = lock.lock().await.unwrap();
    drop(lock.lock().await.unwrap().detach());
    let lost = tokio::time::timeout(secs(1), kept.lost()).await;
    assert!(lost.is_err(), "renewal goes on");
    assert_eq!(lock.hold_count().await.unwrap(), 2);
    kept.unlock().await.unwrap();
    assert_eq!(
        lock.hold_count().await.unwrap(),
        1,
        "the detached level stays"
    );
    eventually_free(&server, "k").await;
    nothing_left(&server, [&client]).await;
}

#[tokio::test]
async fn detached_level_outlives_a_closed_client() {
    let server = Server::start();
    for guards_beside in 0..2 {
        let client = client(&server).await;
        let lock = client.lock("k").owned_by(&Owner::named("req-7"));
        let beside: Vec<_> = match guards_beside {
            0 => vec![],
            _ => vec![lock.lock().await.unwrap()],
        };
        drop(lock.lock().await.unwrap().detach());
        client.close().await;
        drop(beside);
        let heir = support::client(&server).await;
        let lock = heir.lock("k").owned_by(&Owner::named("req-7"));
        eventually(
            "the guarded level is given back, the detached one is not",
            async || lock.hold_count().await.unwrap() == 1,
        )
        .await;
        lock.adopt()
            .await
            .unwrap()
            .expect("left to its owner")
            .unlock()
            .await
            .unwrap();
        nothing_left(&server, [&heir]).await;
    }
}

#[tokio::test]
async fn level_of_a_client_that_died_ends_with_its_own_lease_whoever_locks_under_the_name() {
    let (server, one, two) = start_two().await;
    let owner = Owner::named("req-7");
    let mut probe = server.connection();
    for died_before in [false, true] {
        // Nobody renews the level, as if its process were gone.
        let left = one.lock("k").lease(millis(600)).owned_by(&owner);
        drop(left.lock().await.unwrap().detach());
        let lock = two.lock("k").owned_by(&owner);
        let guard = lock.lock().await.unwrap();
        assert!(probe.pttl("k") > 20_000, "raised for the other");
        if died_before {
            eventually("its lease ends", async || {
                format!("{one:?}").contains("holds: 0,")
            })
            .await;
        }
        guard.unlock().await.unwrap();
        let ttl = probe.pttl("k");
        assert!(ttl <= 600, "{ttl} ms");
        eventually_free(&server, "k").await;
    }
    nothing_left(&server, [&one, &two]).await;
}

#[tokio::test]
async fn client_whose_own_lease_ended_locks_again_while_another_has_the_lock_under_the_name() {
    let (server, one, two) = start_two().await;
    let owner = Owner::named("req-7");
    let mut probe = server.connection();
    let here = one.lock("k").owned_by(&owner);
    let there = two.lock("k").owned_by(&owner);
    for adopts in [false, true] {
        let left = here.clone().lease(millis(200));
        drop(left.lock().await.unwrap().detach());
        let guard = there.lock().await.unwrap();
        eventually("its lease ends here", async || {
            format!("{one:?}").contains("holds: 0,")
        })
        .await;
        let mut again = None;
        eventually(
            "its lease ends on the server, and it is let in",
            async || {
                again = match adopts {
                    true => here.adopt().await.unwrap(),
                    false => here.try_lock().await.unwrap(),
                };
                again.is_some()
            },
        )
        .await;
        let levels = if adopts { 1 } else { 2 };
        assert_eq!(here.hold_count().await.unwrap(), levels);
        again.unwrap().unlock().await.unwrap();
        assert_eq!(guard.unlock().await.is_ok(), !adopts, "it was taken over");
        assert!(!probe.exists("k"));
    }
    nothing_left(&server, [&one, &two]).await;
}

/// Returns who holds a lock of any kind, as another client sees it.
macro_rules! seen {
    ($lock:expr, $elsewhere:expr) => {{
        let guard = $lock.lock().await.unwrap();
        let holder = $elsewhere.holder().await.unwrap().unwrap();
        let owner = guard.owner().clone();
        guard.unlock().await.unwrap();
        (holder, owner)
    }};
}

#[tokio::test]
async fn levels_of_clients_with_labels_are_found_in_their_shares() {
    let server = Server::start();
    let owner = Owner::named("req-7");
    let labels = [("orders@host-7", ""), ("", "orders@host-7"), ("a", "b")];
    for (here, there) in labels {
        let client = async |label: &str| match label {
            "" => client(&server).await,
            _ => builder(server.url()).label(label).build().await.unwrap(),
        };
        let (one, two) = (client(here).await, client(there).await);
        let there = two.lock("k").owned_by(&owner);
        let here = one.lock("k").owned_by(&owner);
        drop(there.lock().await.unwrap().detach());
        drop(there.lock().await.unwrap().detach());
        let adopted = here.adopt().await.unwrap().unwrap();
        let mut hash = server.connection().hgetall("k");
        hash.retain(|field, record| {
            field.starts_with('|') && !field.starts_with("||") && record.contains(":1:")
        });
        assert_eq!(hash.len(), 2, "a level in the share of each");
        adopted.unlock().await.unwrap();
        there.unlock().await.unwrap();
        assert!(!there.is_locked().await.unwrap());
        nothing_left(&server, [&one, &two]).await;
    }
}

#[tokio::test]
async fn holder_of_any_kind_is_shown_by_the_label_of_its_client_and_its_task() {
    let (server, other) = start().await;
    let labelled = |label: &str| builder(server.url()).label(label).build();
    let chosen = labelled("orders@host-7").await.unwrap();
    let by_default = builder(server.url()).build().await.unwrap();
    let process = format!("/{}", std::process::id());
    assert!(by_default.label().ends_with(&process), "{by_default:?}");
    assert_eq!(chosen.label(), "orders@host-7");
    for client in [&chosen, &by_default] {
        assert_eq!(client.id().len(), 36);
        let (here, there) = (client.clone().scoped("a:"), other.clone().scoped("a:"));
        for (holder, owner) in [
            seen!(here.lock("1"), there.lock("1")),
            seen!(here.fenced_lock("2"), there.fenced_lock("2")),
            seen!(here.fair_lock("3"), there.fair_lock("3")),
            seen!(here.spin_lock("4"), there.spin_lock("4")),
            seen!(here.plain_lock("5"), there.plain_lock("5")),
            seen!(
                here.read_write_lock("6").reader(),
                there.read_write_lock("6").reader()
            ),
            seen!(
                here.read_write_lock("7").writer(),
                there.read_write_lock("7").writer()
            ),
            seen!(here.lock("8").owned_by(&Owner::unique()), there.lock("8")),
            seen!(
                here.lock("9").owned_by(&Owner::named("request 7")),
                there.lock("9")
            ),
        ] {
            assert_eq!(holder.label(), Some(client.label()), "{holder:?}");
            assert_eq!(holder.to_string(), format!("{} {owner}", client.label()));
        }
    }
    assert!(Owner::current().to_string().starts_with("thread "));
    let in_task = tokio::spawn(async { Owner::current().to_string() });
    assert!(in_task.await.unwrap().starts_with("task "));
    assert!(Owner::unique().to_string().starts_with("unique "));

    // A leader too, also one with an identity.
    for election in [chosen.leader("l"), chosen.leader("l").identity("web-7")] {
        let term = election.campaign().await.unwrap();
        let leader = other.leader("l").current().await.unwrap().unwrap();
        assert_eq!(leader, term.leader());
        assert_eq!(leader.label(), Some("orders@host-7"));
        let shown = match leader.identity() {
            "web-7" => "web-7",
            _ => "orders@host-7",
        };
        assert_eq!(leader.to_string(), shown);
        term.step_down().await.unwrap();
    }
    // Redisson's owners are shown as they are.
    let java = "8743c9c0-0795-4907-87fd-6c719a6b4586:52";
    server.connection().command(&["HSET", "j", java, "1"]);
    let holder = other.lock("j").holder().await.unwrap().unwrap();
    assert_eq!((holder.label(), &*holder.to_string()), (None, java));
    for label in ["", "a:b", "a b", "{a}", "a|b", "\u{e9}", &"x".repeat(65)] {
        assert_eq!(
            kind(labelled(label).await),
            ErrorKind::InvalidInput,
            "{label:?}"
        );
    }
    let error = chosen.lock("k").unlock().await.unwrap_err();
    let owner = Owner::current();
    assert!(
        error
            .to_string()
            .contains(&format!("orders@host-7 {owner}")),
        "{error}"
    );
}
