//! What one owner holds on either side: its levels, what it may take besides, and how leases and levels end.

use std::time::{Duration, Instant};

use crate::support::probe::{kind, millis, nothing_left, passes, secs, soon};
use crate::support::{builder, client, eventually, eventually_idle, start, start_two};
use redlatch::config::Prefer;
use redlatch::{ErrorKind, Owner};
use redlatch_testkit::Server;

use super::{
    PREFERENCES, WRITER_MARK, both, eventually_heard, eventually_marked, eventually_waiting,
    preferring, reading, somebody, writing,
};

#[tokio::test]
async fn both_sides_are_reentrant_and_have_redissons_form() {
    let (server, client) = start().await;
    let mut probe = server.connection();
    for side in ["read", "write"] {
        let lock = somebody(&client);
        let take = async || match side {
            "read" => lock.read().await.unwrap(),
            _ => lock.write().await.unwrap(),
        };
        let (outer, inner) = (take().await, take().await);
        let third = inner.reenter().await.unwrap();
        let suffix = if side == "write" { ":write" } else { "" };
        let field = format!("{}{suffix}", client.owner_field(outer.owner()));
        let hash = probe.hgetall("k");
        assert_eq!((&*hash["mode"], &*hash[&field]), (side, "3"));
        assert_eq!(hash.len(), 2, "Java counts the fields");
        let mut keys = probe.keys();
        keys.retain(|key| key != "k");
        let levels = (1..=3).map(|level| format!("{{k}}:{field}:rwlock_timeout:{level}"));
        assert_eq!(keys, levels.collect::<Vec<_>>());
        for guard in [third, outer, inner] {
            guard.verify().await.unwrap();
            guard.unlock().await.unwrap();
        }
        assert_eq!(probe.keys(), [""; 0]);
    }
    nothing_left(&server, [&client]).await;
}

// fault: S71
#[tokio::test]
async fn writer_that_reads_and_stops_writing_lets_readers_in() {
    let server = Server::start();
    let (one, two) = both(&server, Prefer::Arrival).await;
    let mut probe = server.connection();
    let lock = somebody(&one);
    let write = lock.write().await.unwrap();
    let read = lock.read().await.unwrap();
    let waiting = [reading(&one), reading(&two)];
    eventually_heard(&mut probe, 2).await;
    assert!(waiting.iter().all(|task| !task.is_finished()));
    write.unlock().await.unwrap();
    for task in waiting {
        let guard = soon(task).await.unwrap().unwrap();
        guard.unlock().await.unwrap();
    }
    read.verify().await.unwrap();
    assert!(somebody(&two).try_write().await.unwrap().is_none());
    read.unlock().await.unwrap();
    nothing_left(&server, [&one, &two]).await;
}

// fault: S71
#[tokio::test]
async fn upgrade_is_refused_at_once_wherever_the_owner_reads() {
    let (server, one, two) = start_two().await;
    let lock = somebody(&one);
    let read = lock.read().await.unwrap();
    for refused in [
        soon(lock.write()).await.map(Some),
        lock.try_write().await,
        soon(lock.try_write_for(Duration::MAX)).await,
    ] {
        let error = refused.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Refused);
        assert!(error.to_string().contains("\"k\""), "{error}");
    }
    // A writer that waits for this very reader stands before it in the local queue.
    let writer = writing(&one);
    eventually_marked(&mut server.connection(), WRITER_MARK).await;
    assert_eq!(kind(soon(lock.write()).await), ErrorKind::Refused);
    read.unlock().await.unwrap();
    let write = soon(writer).await.unwrap().unwrap();
    write.unlock().await.unwrap();

    let named = Owner::named("request 7");
    let elsewhere = two.read_write_lock("k").owned_by(&named);
    let read = elsewhere.read().await.unwrap();
    let here = one.read_write_lock("k").owned_by(&named);
    assert_eq!(kind(soon(here.write()).await), ErrorKind::Refused);
    read.unlock().await.unwrap();
    here.write().await.unwrap().unlock().await.unwrap();
    nothing_left(&server, [&one, &two]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_just_dropped_is_no_upgrade_and_no_place_for_the_next() {
    let (server, client) = start().await;
    let lock = somebody(&client);
    for _ in 0..200 {
        drop(lock.read().await.unwrap());
        let write = lock.write().await.expect("the read is on its way out");
        drop(write);
        let read = lock.read().await.unwrap();
        assert_eq!(lock.reader().hold_count().await.unwrap(), 1);
        drop(read);
    }
    nothing_left(&server, [&client]).await;
}

#[tokio::test]
async fn owner_that_has_the_lock_may_read_whoever_waits_for_it() {
    let (server, here, there) = start_two().await;
    let lock = somebody(&here);
    let write = lock.write().await.unwrap();
    let waiting = writing(&here);
    eventually_waiting(&here, 1).await;
    soon(lock.read()).await.unwrap().unlock().await.unwrap();
    write.unlock().await.unwrap();
    passes(waiting).await;

    // The owner asks to read before it writes, behind a writer that waits for the owner to finish.
    let outside = somebody(&there).write().await.unwrap();
    let write = tokio::spawn({
        let lock = lock.clone();
        async move { lock.write().await }
    });
    eventually_waiting(&here, 1).await;
    let waiting = writing(&here);
    eventually_waiting(&here, 2).await;
    let read = tokio::spawn(async move { lock.read().await });
    eventually_waiting(&here, 3).await;
    outside.unlock().await.unwrap();
    let write = soon(write).await.unwrap().unwrap();
    let read = tokio::time::timeout(millis(500), read).await;
    read.expect("past those that wait for it")
        .unwrap()
        .unwrap()
        .unlock()
        .await
        .unwrap();
    write.unlock().await.unwrap();
    passes(waiting).await;

    // The named owner already reads from another process.
    let job = Owner::named("job");
    let elsewhere = there.read_write_lock("k").owned_by(&job);
    let elsewhere = elsewhere.read().await.unwrap();
    let waiting = writing(&here);
    eventually_waiting(&here, 1).await;
    let again = here.read_write_lock("k").owned_by(&job);
    let again = tokio::time::timeout(millis(500), again.read()).await;
    again
        .expect("past the writer")
        .unwrap()
        .unlock()
        .await
        .unwrap();
    elsewhere.unlock().await.unwrap();
    passes(waiting).await;
    nothing_left(&server, [&here, &there]).await;
}

// fault: S70
#[tokio::test]
async fn dead_reader_frees_its_share_within_its_lease_though_others_read() {
    let (_server, dies, lives) = start_two().await;
    let dead = dies
        .read_write_lock("k")
        .owned_by(&Owner::unique())
        .lease(secs(2));
    drop(dead.read().await.unwrap().detach());
    let started = Instant::now();
    let live = somebody(&lives).lease(secs(60)).read().await.unwrap();
    assert!(somebody(&lives).try_write().await.unwrap().is_none());
    live.unlock().await.unwrap();
    let write = soon(somebody(&lives).write()).await.unwrap();
    let took = started.elapsed();
    assert!(took > millis(1_500) && took < millis(3_500), "{took:?}");
    write.unlock().await.unwrap();
    eventually_idle(&lives).await;
}

#[tokio::test]
async fn owner_that_dies_keeps_the_lock_for_what_it_still_has_and_not_for_what_it_gave_back() {
    let (_server, dies, lives) = start_two().await;
    for gives_back in [true, false] {
        let lock = somebody(&dies);
        let write = lock.clone().lease(secs(2)).write().await.unwrap();
        let read = lock.lease(secs(60)).read().await.unwrap();
        let started = Instant::now();
        if gives_back {
            read.unlock().await.unwrap();
        } else {
            read.extend(millis(500)).await.unwrap();
            drop(read.detach());
        }
        drop(write.detach());
        let next = soon(somebody(&lives).write()).await.unwrap();
        let took = started.elapsed();
        assert!(took > millis(1_500) && took < millis(3_500), "{took:?}");
        next.unlock().await.unwrap();
    }
    eventually_idle(&lives).await;
}

#[tokio::test]
async fn both_sides_are_renewed_and_a_lost_one_says_so() {
    let server = Server::start();
    let client = builder(server.url())
        .watchdog_lease(millis(600))
        .build()
        .await
        .unwrap();
    let lock = somebody(&client);
    let write = lock.write().await.unwrap();
    let read = lock.read().await.unwrap();
    tokio::time::sleep(millis(1_500)).await;
    write.verify().await.unwrap();
    write.unlock().await.unwrap();
    tokio::time::sleep(millis(1_500)).await;
    read.verify().await.unwrap();
    server.connection().command(&["DEL", "k"]);
    soon(read.lost()).await;
    assert_eq!(kind(read.unlock().await), ErrorKind::LeaseLost);
    nothing_left(&server, [&client]).await;
}

#[tokio::test]
async fn renewal_of_a_java_reader_does_not_cut_ours_short() {
    let (server, client) = start().await;
    let mut java = server.connection();
    let read = somebody(&client).lease(secs(60)).read().await.unwrap();
    java.command(&["HSET", "k", "java:1", "1"]);
    java.command(&["SET", "{k}:java:1:rwlock_timeout:1", "1", "PX", "3000"]);
    for _ in 0..2 {
        // This is what Redisson's watchdog does. The Java reader dies after the second time.
        java.command(&["PEXPIRE", "{k}:java:1:rwlock_timeout:1", "3000"]);
        java.command(&["PEXPIRE", "k", "3000"]);
        let cut = Instant::now();
        eventually("the hash lasts as long as ours", async || {
            java.pttl("k") > 50_000
        })
        .await;
        assert!(cut.elapsed() < millis(1_500), "{:?}", cut.elapsed());
    }
    tokio::time::sleep(millis(3_200)).await;
    read.verify().await.unwrap();
    assert!(somebody(&client).try_write().await.unwrap().is_none());
    read.unlock().await.unwrap();
    // Only the release of the last live reader removes what the dead reader left.
    assert!(!java.exists("k"));
    nothing_left(&server, [&client]).await;
}

/// Java's forced release deletes the hash and nothing else.
#[tokio::test]
async fn keys_of_levels_whose_hash_was_taken_away_go_with_the_next_call() {
    let (server, client) = start().await;
    let mut probe = server.connection();
    for call in ["verify", "extend", "reenter", "unlock"] {
        for side in ["read", "write"] {
            let lock = somebody(&client);
            let guard = match side {
                "read" => lock.read().await.unwrap(),
                _ => lock.write().await.unwrap(),
            };
            let inner = guard.reenter().await.unwrap();
            probe.command(&["DEL", "k"]);
            assert_eq!(probe.keys().len(), 2, "one for each level");
            let lost = match call {
                "verify" => guard.verify().await,
                "extend" => guard.extend(secs(60)).await,
                "reenter" => guard.reenter().await.map(drop),
                _ => inner.unlock().await,
            };
            assert_eq!(kind(lost), ErrorKind::LeaseLost, "{call}");
            eventually("nothing stays", async || probe.keys().is_empty()).await;
        }
    }
    nothing_left(&server, [&client]).await;
}

#[tokio::test]
async fn force_ends_one_side_here_at_once() {
    let (server, client) = start().await;
    let lock = somebody(&client);
    assert!(!lock.reader().force_unlock().await.unwrap());
    let (one, two) = (
        lock.read().await.unwrap(),
        somebody(&client).read().await.unwrap(),
    );
    assert!(!lock.writer().force_unlock().await.unwrap());
    assert!(!one.is_lost());
    assert!(lock.reader().force_unlock().await.unwrap());
    assert!(one.is_lost() && two.is_lost());
    let write = lock.write().await.unwrap();
    assert!(lock.writer().force_unlock().await.unwrap());
    assert!(write.is_lost());
    drop((one, two, write));
    nothing_left(&server, [&client]).await;
}

#[tokio::test]
async fn grant_on_one_side_shows_at_once_what_was_lost_on_the_other() {
    let server = Server::start();
    let client = preferring(&server, Prefer::Arrival).await;
    let write = somebody(&client).write().await.unwrap();
    server.connection().command(&["FLUSHALL"]);
    let read = somebody(&client).read().await.unwrap();
    soon(write.lost()).await;
    assert!(!read.is_lost());
    drop(write);
    read.verify().await.unwrap();
    read.unlock().await.unwrap();
    nothing_left(&server, [&client]).await;
}

#[tokio::test]
async fn named_owner_adopts_a_level_of_either_side() {
    let (server, one, two) = start_two().await;
    let owner = Owner::named("request 7");
    let locks = [&one, &two].map(|client| client.read_write_lock("k").owned_by(&owner));
    for write in [false, true] {
        let guard = match write {
            true => locks[0].write().await.unwrap(),
            false => locks[0].read().await.unwrap(),
        };
        let adopted = match write {
            true => locks[1].writer().adopt().await.unwrap(),
            false => locks[1].reader().adopt().await.unwrap(),
        };
        let adopted = adopted.expect("the owner holds it");
        assert_eq!(kind(guard.verify().await), ErrorKind::LeaseLost);
        adopted.verify().await.unwrap();
        adopted.unlock().await.unwrap();
        drop(guard);
    }
    nothing_left(&server, [&one, &two]).await;
}

#[tokio::test]
async fn owner_takes_the_lock_again_by_a_handle_with_another_preference() {
    let server = Server::start();
    let client = client(&server).await;
    let lock = somebody(&client);
    for write in [false, true] {
        let mut guards = Vec::new();
        for prefer in PREFERENCES {
            let lock = lock.clone().prefer(prefer);
            let guard = if write {
                lock.write().await
            } else {
                lock.read().await
            };
            guards.push(guard.unwrap());
        }
        for guard in guards {
            guard.unlock().await.unwrap();
        }
    }
    nothing_left(&server, [&client]).await;
}
