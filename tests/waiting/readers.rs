//! Readers of one process that share one record on the server.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::support::probe::{kind, millis, nothing_left, secs, soon};
use crate::support::scene::{Scene, patient};
use crate::support::{client, eventually, start, start_two};
use redlatch::config::Prefer;
use redlatch::{Client, ErrorKind, LockGuard, Owner, ReadWriteLock};
use redlatch_testkit::{Connection, Server};

const WRITER_MARK: &str = "redlatch_rwlock_writer:{k}";
/// How long an unlock may rely on the server's last answer.
const SEEN_FOR: Duration = Duration::from_millis(10);

/// Returns the lock `k` for an owner of its own.
fn somebody(client: &Client) -> ReadWriteLock {
    client.read_write_lock("k").owned_by(&Owner::unique())
}

/// Returns how many levels the server counts.
fn levels(probe: &mut Connection) -> u64 {
    let fields = probe.hgetall("k");
    let levels = fields.iter().filter(|(field, _)| *field != "mode");
    levels
        .map(|(_, levels)| levels.parse::<u64>().unwrap())
        .sum()
}

/// Returns two guards that read by one record, which the first of them began.
async fn two(
    probe: &mut Connection,
    lock: impl Fn() -> ReadWriteLock,
) -> [(ReadWriteLock, LockGuard); 2] {
    loop {
        let [one, two] = [lock(), lock()];
        let first = one.read().await.unwrap();
        let second = two.read().await.unwrap();
        if levels(probe) == 1 {
            return [(one, first), (two, second)];
        }
        // On a busy machine, the second came too late to join, and sent a request of its own.
        first.unlock().await.unwrap();
        second.unlock().await.unwrap();
    }
}

/// Sends enough pings that background requests reach the server before the last of them.
async fn background_had_its_turn(client: &Client) {
    for _ in 0..20 {
        client.ping().await.unwrap();
    }
}

#[tokio::test]
async fn last_of_the_readers_frees_the_lock_whoever_began() {
    let (server, here, there) = start_two().await;
    let mut probe = server.connection();
    for first_ends_first in [true, false] {
        let [(one, first), (two, second)] = two(&mut probe, || somebody(&here)).await;
        for lock in [&one, &two] {
            assert!(lock.reader().is_held().await.unwrap());
            assert_eq!(lock.reader().hold_count().await.unwrap(), 1);
        }
        let (leaves, stays) = match first_ends_first {
            true => ((one, first), second),
            false => ((two, second), first),
        };
        leaves.1.unlock().await.unwrap();
        assert!(!leaves.0.reader().is_held().await.unwrap());
        stays.verify().await.unwrap();
        assert!(somebody(&there).try_write().await.unwrap().is_none());
        stays.unlock().await.unwrap();
        let free = somebody(&there).try_write().await.unwrap();
        free.expect("it is free").unlock().await.unwrap();
    }
    nothing_left(&server, [&here, &there]).await;
}

#[tokio::test]
async fn whoever_began_what_others_read_may_write_when_they_have_gone() {
    let (server, client) = start().await;
    let mut probe = server.connection();
    let [(one, first), (two, second)] = two(&mut probe, || somebody(&client)).await;
    assert_eq!(kind(one.try_write().await), ErrorKind::Refused);
    assert_eq!(kind(two.try_write().await), ErrorKind::Refused);
    first.unlock().await.unwrap();
    assert!(
        one.try_write().await.unwrap().is_none(),
        "busy, and no more"
    );
    let writer = tokio::spawn(async move { one.write().await });
    eventually("it waits", async || probe.exists(WRITER_MARK)).await;
    assert_eq!(kind(two.try_write().await), ErrorKind::Refused);
    second.unlock().await.unwrap();
    soon(writer).await.unwrap().unwrap().unlock().await.unwrap();
    nothing_left(&server, [&client]).await;
}

/// Readers that follow each other closely send requests only to learn what has changed.
#[tokio::test]
async fn reader_joins_none_past_a_writer_that_waits_elsewhere() {
    for prefer in [Prefer::Arrival, Prefer::Writers] {
        let server = Server::start();
        let (here, there) = (client(&server).await, client(&server).await);
        let mut probe = server.connection();
        let preferring = || somebody(&here).prefer(prefer);
        let [(_, first), (_, second)] = two(&mut probe, preferring).await;
        let read = Arc::new(AtomicU64::new(0));
        let stream = {
            let (here, read) = (here.clone(), read.clone());
            tokio::spawn(async move {
                loop {
                    let lock = somebody(&here).prefer(prefer);
                    let guard = lock.read().await.unwrap();
                    guard.unlock().await.unwrap();
                    read.fetch_add(1, Ordering::Relaxed);
                    tokio::task::yield_now().await;
                }
            })
        };
        let some = async || {
            let before = read.load(Ordering::Relaxed);
            // Long enough for a busy machine to let those that do not wait read.
            tokio::time::sleep(millis(250)).await;
            read.load(Ordering::Relaxed) - before
        };
        eventually("they come and go", async || {
            read.load(Ordering::Relaxed) > 100
        })
        .await;
        let writer = somebody(&there);
        let writer = tokio::spawn(async move { writer.write().await });
        eventually("they wait", async || some().await == 0).await;
        assert!(probe.exists(WRITER_MARK) && !writer.is_finished());
        first.unlock().await.unwrap();
        second.unlock().await.unwrap();
        soon(writer).await.unwrap().unwrap().unlock().await.unwrap();
        stream.abort();
        assert!(stream.await.unwrap_err().is_cancelled());
        nothing_left(&server, [&here, &there]).await;
    }
}

#[tokio::test]
async fn unlock_vouches_only_for_what_the_server_has_said_lately() {
    let (server, client) = start().await;
    let mut probe = server.connection();
    let [(_, first), (_, second)] = two(&mut probe, || somebody(&client)).await;
    probe.command(&["DEL", "k"]);
    // The claim is about elapsed time, so the test must sleep.
    tokio::time::sleep(SEEN_FOR * 3).await;
    assert_eq!(kind(soon(second.unlock()).await), ErrorKind::LeaseLost);
    // The other guard that has the record learns of the loss as well.
    soon(first.lost()).await;
    drop(first);
    eventually("the level is taken away", async || probe.keys().is_empty()).await;
    nothing_left(&server, [&client]).await;
}

#[tokio::test]
async fn unlock_far_from_the_server_does_not_vouch_for_a_lock_that_a_writer_has() {
    let scene = Scene::open(patient).await;
    let mut probe = scene.server.connection();
    scene.proxy.delay(millis(40));
    let [(_, first), (_, second)] = two(&mut probe, || somebody(&scene.client)).await;
    let lock = scene.other.read_write_lock("k").owned_by(&Owner::unique());
    assert!(lock.reader().force_unlock().await.unwrap());
    let writing = lock.write().await.unwrap();
    assert_eq!(kind(second.unlock().await), ErrorKind::LeaseLost);
    drop(first);
    writing.unlock().await.unwrap();
}

#[tokio::test]
async fn owner_that_joined_may_read_again() {
    let (server, client) = start().await;
    let mut probe = server.connection();
    let [(_, first), (two, second)] = two(&mut probe, || somebody(&client)).await;
    let (again, once_more) = (two.read().await.unwrap(), second.reenter().await.unwrap());
    assert_eq!(two.reader().hold_count().await.unwrap(), 3);
    assert_eq!(levels(&mut probe), 1, "the server counts one for all");
    first.unlock().await.unwrap();
    second.unlock().await.unwrap();
    once_more.verify().await.unwrap();
    once_more.unlock().await.unwrap();
    assert_eq!(two.reader().hold_count().await.unwrap(), 1);
    again.verify().await.unwrap();
    again.unlock().await.unwrap();
    nothing_left(&server, [&client]).await;
}

#[tokio::test]
async fn one_that_detaches_keeps_the_lock_until_its_lease_ends() {
    let (server, client) = start().await;
    let mut probe = server.connection();
    let lock = || somebody(&client).lease(millis(700));
    let [(_, first), (two, second)] = two(&mut probe, lock).await;
    drop(second.detach());
    first.unlock().await.unwrap();
    assert!(two.reader().is_held().await.unwrap());
    assert!(somebody(&client).try_write().await.unwrap().is_none());
    soon(somebody(&client).write())
        .await
        .unwrap()
        .unlock()
        .await
        .unwrap();
    nothing_left(&server, [&client]).await;
}

#[tokio::test]
async fn extension_of_one_cuts_no_other_short() {
    let (server, client) = start().await;
    let mut probe = server.connection();
    let lock = || somebody(&client).lease(secs(20));
    let [(_, first), (_, second)] = two(&mut probe, lock).await;
    // No request about the record is on its way then, which would rule out a cut too.
    second.verify().await.unwrap();
    second.extend(secs(2)).await.unwrap();
    let left = probe.command(&["PTTL", "k"]).int();
    assert!(left > 15_000, "{left} ms");
    assert!(first.remaining() > secs(15));
    second.extend(secs(40)).await.unwrap();
    let left = probe.command(&["PTTL", "k"]).int();
    assert!(left > 35_000, "{left} ms");
    first.unlock().await.unwrap();
    second.unlock().await.unwrap();
    nothing_left(&server, [&client]).await;
}

#[tokio::test]
async fn reader_of_another_lease_or_of_an_owner_with_a_name_has_a_record_of_its_own() {
    let (server, client) = start().await;
    let mut probe = server.connection();
    let first = somebody(&client).read().await.unwrap();
    let longer = somebody(&client).lease(secs(60)).read().await.unwrap();
    let named = client
        .read_write_lock("k")
        .owned_by(&Owner::named("request 7"));
    let named = named.read().await.unwrap();
    assert_eq!(levels(&mut probe), 3);
    for guard in [first, longer, named] {
        guard.unlock().await.unwrap();
    }
    nothing_left(&server, [&client]).await;
}

#[tokio::test]
async fn nobody_reads_by_the_record_of_one_that_writes() {
    let (server, client) = start().await;
    let writes = somebody(&client);
    let write = writes.write().await.unwrap();
    let read = writes.read().await.unwrap();
    assert!(somebody(&client).try_read().await.unwrap().is_none());
    write.unlock().await.unwrap();
    let other = somebody(&client).try_read().await.unwrap();
    other.expect("nobody writes").unlock().await.unwrap();
    read.unlock().await.unwrap();
    nothing_left(&server, [&client]).await;
}

#[tokio::test]
async fn closing_gives_back_what_several_read() {
    let (server, client) = start().await;
    let mut probe = server.connection();
    let [(_, first), (_, second)] = two(&mut probe, || somebody(&client)).await;
    client.close().await;
    assert!(first.is_lost() && second.is_lost());
    assert_eq!(probe.keys(), Vec::<String>::new());
}

#[tokio::test]
async fn level_that_is_owed_late_takes_nothing_from_the_others() {
    let (server, here, there) = start_two().await;
    let mut probe = server.connection();
    let [(_, first), (two, second)] = two(&mut probe, || somebody(&here)).await;
    let again = two.read().await.unwrap();
    // Both in one step, so that the release that is owed for one level runs when the other has gone too.
    drop(second);
    drop(again);
    background_had_its_turn(&here).await;
    first.verify().await.unwrap();
    assert!(somebody(&there).try_write().await.unwrap().is_none());
    first.unlock().await.unwrap();
    nothing_left(&server, [&here, &there]).await;
}

#[tokio::test]
async fn what_others_read_by_under_its_field_is_none_of_an_owners_own() {
    let (server, here, there) = start_two().await;
    let mut probe = server.connection();
    let [(one, first), (_, second)] = two(&mut probe, || somebody(&here)).await;
    first.unlock().await.unwrap();
    // Too late to join the record that this owner began.
    tokio::time::sleep(SEEN_FOR * 3).await;
    let anew = one.read().await.unwrap();
    assert_eq!(levels(&mut probe), 2);
    assert_eq!(one.reader().hold_count().await.unwrap(), 1);
    let adopted = one.reader().adopt().await.unwrap().expect("it is held");
    second.verify().await.unwrap();
    adopted.unlock().await.unwrap();
    drop(anew);
    background_had_its_turn(&here).await;
    assert!(somebody(&there).try_write().await.unwrap().is_none());
    second.verify().await.unwrap();
    second.unlock().await.unwrap();
    nothing_left(&server, [&here, &there]).await;
}

/// What the server says to readers that go first does not tell of the writers that others let go first.
#[tokio::test]
async fn readers_share_no_record_with_those_of_another_preference() {
    let server = Server::start();
    let (here, there) = (client(&server).await, client(&server).await);
    let mut probe = server.connection();
    let somebody_of = |prefer| somebody(&here).prefer(prefer);
    for _ in 0..10 {
        let first = somebody_of(Prefer::Readers).read().await.unwrap();
        let second = somebody_of(Prefer::Arrival).read().await.unwrap();
        assert_eq!(levels(&mut probe), 2);
        first.unlock().await.unwrap();
        second.unlock().await.unwrap();
    }
    let reading = somebody_of(Prefer::Readers).read().await.unwrap();
    let writer = somebody(&there);
    let writer = tokio::spawn(async move { writer.write().await });
    eventually("it waits", async || probe.exists(WRITER_MARK)).await;
    for _ in 0..10 {
        let guard = somebody_of(Prefer::Readers).try_read().await.unwrap();
        for prefer in [Prefer::Arrival, Prefer::Writers] {
            let late = somebody_of(prefer).try_read().await.unwrap();
            assert!(late.is_none(), "{prefer:?}");
        }
        guard.expect("it goes first").unlock().await.unwrap();
    }
    reading.unlock().await.unwrap();
    soon(writer).await.unwrap().unwrap().unlock().await.unwrap();
    nothing_left(&server, [&here, &there]).await;
}
