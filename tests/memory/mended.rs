//! What was mended after others had read the code: late news, levels that ended before their release, readers to whom
//! the lock was left, and data that moves.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

use futures_util::FutureExt;
use redlatch::{Error, LockGuard, MemoryServer, MultiLock, Owner, ReadWriteLock, RedLock};
use redlatch_testkit::script;
use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};
use tokio::time::{sleep, timeout};

use crate::support::probe::{begin, millis, secs, stranger};
use crate::support::sha;
use crate::{client, counted, two};

/// Counts the calls that give back a fair lock which was moved to a hold that nobody has.
fn given_back(server: &MemoryServer) -> Arc<AtomicUsize> {
    let hash = sha("fair_sign");
    counted(server, move |words| {
        let named = words.get(1);
        let is_sign =
            named.is_some_and(|it| it == hash.as_bytes() || it == script("fair_sign").as_bytes());
        // Behind the number of keys, five keys and four arguments.
        is_sign && words.get(12).is_some_and(|gone| !gone.is_empty())
    })
}

/// The waiter learned of its grant by a sign of life, and has long given the lock back when the release that granted it
/// is read.
#[tokio::test(start_paused = true)]
async fn news_of_a_grant_that_is_read_late_gives_nothing_back() {
    let (server, client, _other) = two().await;
    let lock = || client.fair_lock("job").owned_by(&Owner::unique());
    let guard = lock().lock().await.unwrap();
    let next = lock();
    let next = tokio::spawn(async move { next.lock().await?.unlock().await });
    // The next sign is due in a moment.
    sleep(millis(950)).await;
    let given_back = given_back(&server);
    let unlocking = begin(guard.unlock());
    sleep(secs(3)).await;
    assert!(next.is_finished());
    next.await.unwrap().unwrap();
    unlocking.await.unwrap();
    sleep(millis(100)).await;
    assert_eq!(given_back.load(Relaxed), 0);
}

/// Without the answer, the next sign of life would find out.
#[tokio::test(start_paused = true)]
async fn release_that_nobody_polls_grants_the_next_here_before_the_next_sign() {
    let (_server, client, _other) = two().await;
    let kinds = [(None, true), (None, false), (Some("other"), true)];
    for (other, is_dropped) in kinds {
        let names = ["job"].into_iter().chain(other);
        let guard = MultiLock::new(names.map(|name| client.fair_lock(name)))
            .lock()
            .await;
        let guard = guard.unwrap();
        let next = client.fair_lock("job").owned_by(&Owner::unique());
        let next = tokio::spawn(async move { next.lock().await });
        sleep(millis(10)).await;
        let unpolled = Some(begin(guard.unlock())).filter(|_| !is_dropped);
        let next = timeout(millis(100), next).await.expect("told").unwrap();
        next.unwrap().unlock().await.unwrap();
        drop(unpolled);
    }
}

/// As after a failover to a replica that did not know that the call had ended.
#[tokio::test(start_paused = true)]
async fn closing_waits_until_what_was_moved_to_a_call_that_has_ended_is_given_back() {
    let (server, client, other) = two().await;
    let guard = client.fair_lock("job").lock().await.unwrap();
    let lock = client.fair_lock("job").owned_by(&Owner::unique());
    let ended = tokio::spawn(async move { lock.lock().await });
    sleep(millis(10)).await;
    let earlier = server.simulated().with_same_data();
    ended.abort();
    sleep(millis(10)).await;
    server.simulated().restart_with(&earlier);
    sleep(secs(1)).await;
    let given_back = given_back(&server);
    let unlocking = begin(guard.unlock());
    sleep(millis(1)).await;
    server.stop_answering();
    unlocking.await.unwrap();
    let closed = client.clone();
    let closing = tokio::spawn(async move { closed.close().await });
    sleep(millis(100)).await;
    assert!(!closing.is_finished(), "the lock is still to be given back");
    server.resume();
    timeout(secs(5), closing).await.expect("closed").unwrap();
    assert_ne!(given_back.load(Relaxed), 0);
    let next = other.fair_lock("job").try_lock().await.unwrap();
    next.expect("given back").unlock().await.unwrap();
}

/// Its hash would say for as long as the owner reads that it writes.
#[tokio::test(start_paused = true)]
async fn writer_whose_release_comes_behind_its_lease_keeps_out_no_reader() {
    let (server, client, other) = two().await;
    let lock = client.read_write_lock("job").owned_by(&Owner::unique());
    let write = lock.clone().lease(secs(2)).write().await.unwrap();
    let read = lock.read().await.unwrap();
    server.stop_answering();
    sleep(secs(3)).await;
    server.resume();
    assert!(write.is_lost() && !read.is_lost());
    let beside = other.read_write_lock("job").try_read_for(secs(5)).await;
    beside.unwrap().expect("both read").unlock().await.unwrap();
    read.unlock().await.unwrap();
}

/// The other readers of its record have renewed it for longer.
#[tokio::test(start_paused = true)]
async fn reader_that_is_left_to_its_owner_keeps_the_lock_for_its_own_lease_only() {
    let (_server, client, other) = two().await;
    let reader = || stranger(&client.read_write_lock("job").reader());
    let detached = reader().lock().await.unwrap();
    let guard = reader().lock().await.unwrap();
    assert_eq!(client.stats().total().handed_over, 1, "one record");
    drop(detached.detach());
    sleep(secs(29)).await;
    guard.unlock().await.unwrap();
    let writer = other.read_write_lock("job");
    assert!(writer.try_write().await.unwrap().is_none());
    let write = writer.try_write_for(secs(2)).await.unwrap();
    write.expect("the lease is over").unlock().await.unwrap();
    assert_eq!(client.stats().lost.total(), 0, "nobody relied on it");
}

type Reading<'a> = Pin<Box<dyn Future<Output = Result<LockGuard, Error>> + 'a>>;

/// Has a reader give the lock back while another one waits for the turn of its owner. Returns the call of that one, to
/// which the lock was left, and which nobody has polled since.
async fn left<'a>(server: &MemoryServer, lock: &'a ReadWriteLock) -> Reading<'a> {
    let before = lock.clone().owned_by(&Owner::unique());
    let before = before.read().await.unwrap();
    // With this lease, the call that has the turn does not join the reader.
    let another = lock.clone().lease(secs(30));
    server.stop_answering();
    let asking = begin(another.try_read());
    let reading: Reading<'a> = begin(lock.read());
    drop(before);
    drop(asking);
    server.resume();
    reading
}

#[tokio::test(start_paused = true)]
async fn reader_to_whom_the_lock_was_left_is_checked_each_second() {
    let (server, client, other) = two().await;
    // From then on, the client is told of releases by force, and has checked all that it holds.
    let held = client.lock("another").lock().await.unwrap();
    sleep(secs(1)).await;
    let lock = client.read_write_lock("job").lease(secs(60));
    let lock = lock.owned_by(&Owner::unique());
    let reading = left(&server, &lock).await;
    let guard = reading.await.unwrap();
    assert_eq!(client.stats().total().handed_over, 1);
    // Behind the question whether the lock still stood, which raises the lease.
    sleep(millis(100)).await;

    // A reader of Redisson's cuts the lease of the hash with each renewal.
    let (mut near, far) = duplex(1 << 10);
    let served = server.clone();
    tokio::spawn(async move { served.serve(far).await });
    let cut = b"*3\r\n$7\r\nPEXPIRE\r\n$3\r\njob\r\n$4\r\n3000\r\n";
    near.write_all(cut).await.unwrap();
    let mut answer = [0; 4];
    near.read_exact(&mut answer).await.unwrap();
    assert_eq!(&answer, b":1\r\n");
    sleep(secs(10)).await;
    let writer = other.read_write_lock("job").try_write().await.unwrap();
    assert!(writer.is_none(), "somebody reads");
    guard.unlock().await.unwrap();
    held.unlock().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn reader_joins_by_the_lease_of_the_one_to_whom_the_lock_was_left() {
    let (server, client, _other) = two().await;
    let lock = client.read_write_lock("job").lease(secs(60));
    let lock = lock.owned_by(&Owner::unique());
    let reading = left(&server, &lock).await;
    let guard = reading.await.unwrap();
    assert_eq!(client.stats().total().handed_over, 1);
    // Behind the question whether the lock still stood, which would rule out a cut.
    sleep(millis(1)).await;
    guard.extend(secs(2)).await.unwrap();
    let third = lock.clone().owned_by(&Owner::unique());
    let third = third.read().await.unwrap();
    sleep(secs(5)).await;
    assert!(guard.is_lost() && !third.is_lost());
    third.unlock().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn lock_that_was_left_to_a_reader_is_not_taken_over_beside_a_writer() {
    let (server, client, other) = two().await;
    let lock = client.read_write_lock("job").lease(secs(60));
    let lock = lock.owned_by(&Owner::unique());
    let mut reading = left(&server, &lock).await;
    let readers = other.read_write_lock("job").reader();
    assert!(readers.force_unlock().await.unwrap());
    let writer = client.read_write_lock("job").owned_by(&Owner::unique());
    let writing = writer.try_write().await.unwrap().expect("it was freed");
    let read = reading.as_mut().now_or_never();
    assert!(read.is_none(), "somebody writes");
    writing.unlock().await.unwrap();
    let read = timeout(secs(5), reading).await.expect("nobody writes");
    read.unwrap().unlock().await.unwrap();
}

/// The epoch of a RedLock lies next to the lock in a cluster, and moves with its slot.
#[tokio::test(start_paused = true)]
async fn server_that_takes_over_the_epoch_of_another_does_not_vote_before_that_one_would() {
    let older = MemoryServer::new();
    sleep(secs(100)).await;
    let fresh = MemoryServer::new();
    let [there, here] = [client(&older).await, client(&fresh).await]
        .map(|client| RedLock::new([client.lock("job")]));
    assert!(here.try_lock().await.is_err(), "it has just started");
    fresh.simulated().hand_over(older.simulated(), |_| true);
    assert!(there.try_lock().await.is_err(), "that one has just started");
    sleep(secs(70)).await;
    there.lock().await.unwrap().unlock().await.unwrap();
}
