//! What clients do when the server in memory falls silent, goes away, or forgets.

use std::pin::pin;
use std::sync::atomic::Ordering::Relaxed;

use futures_util::FutureExt;
use redlatch::config::{Protocol, ReleaseBy};
use redlatch::{
    Client, ClientBuilder, ErrorKind, LockGuard, MemoryServer, Owner, PlainLock, RedLock,
};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

use crate::support::probe::{acquiring, begin, kind, millis, passes, secs, stranger};
use crate::{client, counted, two};

#[tokio::test(start_paused = true)]
async fn silent_server_is_a_timeout_and_holds_are_lost_at_their_deadlines() {
    let (server, client, other) = two().await;
    let guard = client.lock("job").lock().await.unwrap();
    let (started, left) = (Instant::now(), guard.remaining());
    server.stop_answering();
    let call = other.lock("other").try_lock().await;
    assert_eq!(kind(call), ErrorKind::Timeout);
    guard.lost().await;
    assert_eq!(started.elapsed().as_secs(), left.as_secs());
    server.resume();
    // The renewals that were sent in the meantime prolong the lease on the server; the release that is owed ends it.
    let next = other.lock("job").try_lock_for(secs(60)).await.unwrap();
    next.expect("released").unlock().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn re_entry_that_a_silent_server_does_not_answer_says_so() {
    let (server, client, _) = two().await;
    let lock = client.lock("job");
    let _held = lock.lock().await.unwrap();
    server.stop_answering();
    let error = lock.try_lock().await.unwrap_err();
    assert!(error.to_string().contains("did not answer"), "{error}");
}

/// A replica that has lost its primary, at the address where a primary was.
#[tokio::test(start_paused = true)]
async fn replica_without_its_primary_is_left_for_a_new_connection() {
    for code in ["MASTERDOWN Link with MASTER is down", "READONLY"] {
        let (server, client, _other) = two().await;
        let lock = client.lock("job");
        assert!(lock.try_lock().await.unwrap().is_some());
        // A connection is used for a while.
        sleep(secs(2)).await;
        server.simulated().refuse(Some(code));
        let dialled = counted(&server, |words| words[0] == b"HELLO");
        assert_eq!(kind(lock.try_lock().await), ErrorKind::Backend);
        server.simulated().refuse(None);
        assert!(lock.try_lock().await.unwrap().is_some());
        assert_eq!(dialled.load(Relaxed), 1, "{code}");
    }
}

/// The server knows for two minutes that it has carried out a change.
#[tokio::test(start_paused = true)]
async fn changes_of_counters_are_not_sent_again_for_as_long_as_other_requests() {
    let server = MemoryServer::new();
    let builder = Client::builder().config(server.config());
    let builder = builder.command_timeout(secs(300));
    let client = builder.build().await.unwrap();
    let latch = client.latch("job");
    assert!(latch.try_set_count(3).await.unwrap());
    server.stop_answering();
    let counting = timeout(secs(21), latch.count_down()).await;
    assert_eq!(kind(counting.expect("ends")), ErrorKind::Timeout);
}

/// Returns a client that holds this many locks. A server is asked about 2,000 at a time. All are renewed after 1.6 to 2
/// seconds, and last for 5.938.
async fn crowd(server: &MemoryServer, holds: usize) -> (Client, Vec<LockGuard>) {
    let builder = Client::builder().config(server.config());
    let client = builder.watchdog_lease(secs(6)).build().await.unwrap();
    let mut guards = Vec::new();
    for at in 0..holds {
        guards.push(client.lock(format!("job:{at}")).lock().await.unwrap());
    }
    (client, guards)
}

/// Those that wait for room are not asked about before there is some: their time to answer has not begun.
#[tokio::test(start_paused = true)]
async fn silent_server_is_asked_about_so_many_holds_at_a_time_and_about_all_once_it_resumes() {
    let server = MemoryServer::new();
    let (client, guards) = crowd(&server, 5_000).await;
    server.stop_answering();
    let started = Instant::now();
    let mut failed = Vec::new();
    while started.elapsed() < millis(4_500) {
        sleep(millis(100)).await;
        failed.push(client.stats().renewals.failed);
        // Each request is given up after a second.
        let before = failed.iter().rev().nth(9).unwrap_or(&0);
        let at_a_time = failed.last().unwrap() - before;
        assert!(
            at_a_time <= 2_000,
            "{at_a_time} after {:?}",
            started.elapsed()
        );
    }
    assert!(failed.last() > Some(&2_000), "{failed:?}");
    server.resume();
    sleep(millis(100)).await;
    let least = guards.iter().map(|guard| guard.remaining()).min().unwrap();
    assert!(least > secs(5), "{least:?}");
    assert!(guards.iter().all(|guard| !guard.is_lost()));
}

/// Each request is given up after a second, so that the last two thousand still wait at their deadlines. They count as
/// lost though nobody looks at their guards.
#[tokio::test(start_paused = true)]
async fn holds_that_wait_for_room_at_a_silent_server_are_lost_at_their_deadlines() {
    let server = MemoryServer::new();
    let (client, guards) = crowd(&server, 10_000).await;
    server.stop_answering();
    let left = guards.iter().map(|guard| guard.remaining());
    sleep(left.max().unwrap() + millis(2)).await;
    assert_eq!(client.stats().lost.expired, 10_000);
}

#[tokio::test(start_paused = true)]
async fn holds_that_end_or_are_left_while_they_wait_for_room_are_not_renewed() {
    let server = MemoryServer::new();
    let (client, guards) = crowd(&server, 5_000).await;
    server.stop_answering();
    sleep(millis(2_100)).await;
    for (at, guard) in guards.into_iter().enumerate() {
        match at % 2 {
            0 => drop(guard),
            _ => drop(guard.detach()),
        }
    }
    server.resume();
    sleep(secs(1)).await;
    let renewals = client.stats().renewals;
    let asked = renewals.renewed + renewals.gone + renewals.failed;
    assert!(asked <= 2_000, "{renewals:?}");
}

#[tokio::test(start_paused = true)]
async fn server_that_resumes_carries_out_what_it_was_sent() {
    let (server, client, other) = two().await;
    server.stop_answering();
    let plain = client.plain_lock("job").lease(secs(300));
    let call = tokio::spawn(async move { plain.lock().await });
    sleep(secs(0)).await;
    server.resume();
    let guard = call.await.unwrap().unwrap();
    assert!(other.plain_lock("job").try_lock().await.unwrap().is_none());
    guard.unlock().await.unwrap();
}

/// The server takes both locks when it resumes, by requests that it had not read, long after the leases that were asked
/// for. The connection was given up with the first call, so no release is behind the request of the second.
#[tokio::test(start_paused = true)]
async fn release_is_owed_to_a_silent_server_however_late_it_resumes() {
    let (server, client, other) = two().await;
    // From here on, the server knows the scripts, and one request is enough.
    passes(acquiring(&other.lock("job"))).await;
    server.stop_answering();
    let (first, job) = (client.lock("first"), client.lock("job"));
    let later = async {
        sleep(millis(100)).await;
        job.try_lock().await
    };
    let (first, later) = tokio::join!(first.try_lock(), later);
    assert!(first.is_err() && later.is_err());
    sleep(secs(60)).await;
    server.resume();
    let next = other.lock("job").try_lock_for(secs(3)).await.unwrap();
    next.expect("released").unlock().await.unwrap();
}

/// The server is asked about the first hold before the second is given back. So the second is told by the answer to the
/// release of the third.
#[tokio::test(start_paused = true)]
async fn release_that_nobody_waits_for_any_more_is_no_loss_to_those_before() {
    let server = MemoryServer::new();
    let lock = client(&server).await.lock("job");
    let guard = lock.lock().await.unwrap();
    let [next, last] = [acquiring(&lock), acquiring(&lock)];
    // Time passes when everybody waits.
    sleep(millis(1)).await;
    server.stop_answering();
    let first = tokio::spawn(guard.unlock());
    let guard = next.await.unwrap().unwrap();
    sleep(millis(1)).await;
    let second = tokio::spawn(guard.unlock());
    let guard = last.await.unwrap().unwrap();
    let third = tokio::spawn(guard.unlock());
    sleep(millis(1)).await;
    third.abort();
    assert!(third.await.unwrap_err().is_cancelled());
    server.resume();
    first.await.unwrap().unwrap();
    second.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn holds_and_waits_outlast_a_cut() {
    let (server, client, other) = two().await;
    let guard = client.lock("job").lock().await.unwrap();
    let waiter = tokio::spawn(async move { other.lock("job").lock().await });
    for _ in 0..20 {
        sleep(secs(1)).await;
        server.cut();
    }
    guard.verify().await.unwrap();
    guard.unlock().await.unwrap();
    waiter.await.unwrap().unwrap().unlock().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn server_that_restarts_empty_is_noticed_at_once() {
    let (server, client, other) = two().await;
    let guard = client.lock("job").lock().await.unwrap();
    server.restart_empty();
    let started = Instant::now();
    guard.lost().await;
    assert!(started.elapsed() < secs(1));
    assert_eq!(kind(guard.verify().await), ErrorKind::LeaseLost);
    assert_eq!(kind(guard.unlock().await), ErrorKind::LeaseLost);
    let next = other.lock("job").try_lock_for(secs(5)).await.unwrap();
    next.expect("free").unlock().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn server_that_is_stopped_is_no_backend_until_it_starts() {
    let (server, client, _other) = two().await;
    let guard = client.lock("job").lock().await.unwrap();
    server.stop();
    let build = Client::builder().config(server.config()).build();
    assert_eq!(kind(build.await), ErrorKind::Backend);
    let call = client.lock("other").try_lock().await.unwrap_err();
    assert_eq!(call.kind(), ErrorKind::Backend);
    assert!(call.to_string().contains("not sent"), "{call}");
    server.start();
    sleep(secs(3600)).await;
    guard.unlock().await.unwrap();
}

/// A call that nobody polled learns late that there was no connection. The server has answered others since, so that is
/// no silence, for which those that wait would give up.
#[tokio::test(start_paused = true)]
async fn old_failure_of_a_call_that_nobody_polled_ends_no_wait() {
    let server = MemoryServer::new();
    let holder = client(&server).await;
    let guard = holder.lock("job").lock().await.unwrap();
    server.stop();
    let builder = Client::builder().config(server.config()).connect_lazily();
    let builder = builder.watchdog_lease(secs(3)).command_timeout(secs(1));
    let other = builder.build().await.unwrap();
    let lock = other.lock("rare");
    let mut unpolled = pin!(lock.try_lock());
    assert!(unpolled.as_mut().now_or_never().is_none());
    server.start();
    let waiting = [(); 2].map(|()| {
        let lock = other.lock("job");
        tokio::spawn(async move { lock.lock().await?.unlock().await })
    });
    // The second waits behind the first, and looks after each lease whether the server is silent.
    sleep(millis(59_990)).await;
    assert_eq!(kind(unpolled.await), ErrorKind::Backend);
    sleep(secs(60)).await;
    guard.unlock().await.unwrap();
    for waiter in waiting {
        waiter.await.unwrap().unwrap();
    }
}

/// As after a failover to a replica that did not know that they had ended.
#[tokio::test(start_paused = true)]
async fn places_of_calls_that_have_ended_keep_a_fair_lock_from_nobody() {
    let (server, client, other) = two().await;
    let guard = other.fair_lock("job").lock().await.unwrap();
    let waits = || {
        let lock = client.fair_lock("job").owned_by(&Owner::unique());
        tokio::spawn(async move { lock.lock().await })
    };
    let ended = [(); 20].map(|()| waits());
    sleep(millis(10)).await;
    let earlier = server.simulated().with_same_data();
    ended.iter().for_each(JoinHandle::abort);
    let waits = waits();
    sleep(millis(10)).await;
    server.simulated().restart_with(&earlier);
    // The waiter has lost its place, and gets another one behind those of the calls that have ended.
    sleep(secs(3)).await;
    let started = Instant::now();
    guard.unlock().await.unwrap();
    let next = waits.await.unwrap().unwrap();
    assert!(started.elapsed() < secs(3), "{:?}", started.elapsed());
    next.unlock().await.unwrap();
}

/// Returns a RedLock over all of these servers, each with a client of its own.
async fn red_lock(
    servers: &[MemoryServer],
    settings: impl Fn(ClientBuilder) -> ClientBuilder,
) -> RedLock {
    let mut locks = Vec::new();
    for server in servers {
        let builder = settings(Client::builder().config(server.config()));
        locks.push(builder.build().await.unwrap().lock("job"));
    }
    RedLock::new(locks)
}

#[tokio::test(start_paused = true)]
async fn fresh_servers_abstain_from_a_red_lock_unless_they_are_trusted() {
    let servers = [(); 3].map(|()| MemoryServer::new());
    let lock = |trusts| red_lock(&servers, move |builder| builder.trust_fresh_servers(trusts));
    let (careful, trusting) = (lock(false).await, lock(true).await);
    assert!(careful.try_lock().await.is_err(), "they have just started");
    servers[0].stop();
    trusting.lock().await.unwrap().unlock().await.unwrap();

    // Long enough that no lease from before the start can be in force.
    sleep(secs(100)).await;
    careful.lock().await.unwrap().unlock().await.unwrap();
    servers[0].start();
    servers[1].restart_empty();
    careful.lock().await.unwrap().unlock().await.unwrap();
    servers[2].restart_empty();
    assert!(careful.try_lock().await.is_err(), "two have forgotten");
}

/// The first call asks which servers they are, beside asking for the lock.
#[tokio::test(start_paused = true)]
async fn first_call_of_a_red_lock_waits_for_silent_servers_once_or_not_at_all() {
    let servers = [(); 5].map(|()| MemoryServer::new());
    let settings = |builder: ClientBuilder| {
        let builder = builder.trust_fresh_servers(true);
        builder.command_timeout(secs(1)).watchdog_lease(secs(30))
    };
    let lock = red_lock(&servers, settings).await;
    servers[3..].iter().for_each(MemoryServer::stop_answering);
    let started = Instant::now();
    lock.lock().await.unwrap().unlock().await.unwrap();
    assert!(started.elapsed() < millis(50), "{:?}", started.elapsed());

    let lock = red_lock(&servers[..3], settings).await;
    servers.iter().for_each(MemoryServer::stop_answering);
    let started = Instant::now();
    assert_eq!(kind(lock.try_lock().await), ErrorKind::Quorum);
    assert!(started.elapsed() < millis(1_100), "{:?}", started.elapsed());
}

/// The first server grants its part and has it taken away while the second still considers: two of three would have
/// granted, but one of them no longer stands by it.
#[tokio::test(start_paused = true)]
async fn grant_that_a_server_denied_before_the_majority_answered_does_not_count() {
    let servers = [(); 3].map(|()| MemoryServer::new());
    let lock = red_lock(&servers, |builder| builder.trust_fresh_servers(true)).await;
    let operator = client(&servers[0]).await;
    lock.lock().await.unwrap().unlock().await.unwrap();
    servers[1..].iter().for_each(MemoryServer::stop_answering);
    let call = tokio::spawn(async move { lock.lock().await });
    sleep(millis(300)).await;
    assert!(operator.lock("job").force_unlock().await.unwrap());
    sleep(millis(300)).await;
    servers[1].resume();
    sleep(millis(100)).await;
    assert!(!call.is_finished(), "one of three has granted it");
    servers[2].resume();
    let guard = call.await.unwrap().unwrap();
    assert!(!guard.is_lost());
    guard.unlock().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn plain_locks_without_scripts_exclude_each_other() {
    let (_server, client, other) = two().await;
    let of = |client: &Client| -> PlainLock {
        let lock = client.plain_lock("job").release_by(ReleaseBy::Transaction);
        stranger(&lock)
    };
    let guard = of(&client).lock().await.unwrap();
    assert!(of(&other).try_lock().await.unwrap().is_none());
    assert!(of(&other).force_unlock().await.unwrap());
    assert_eq!(kind(guard.unlock().await), ErrorKind::LeaseLost);
    of(&other).lock().await.unwrap().unlock().await.unwrap();
}

#[cfg(feature = "unstable-admin")]
#[tokio::test(start_paused = true)]
async fn admin_sees_locks_and_the_server() {
    let (_server, client, other) = two().await;
    let guard = client.lock("orders:42").lock().await.unwrap();
    let mut found = other.admin().list("orders:*").unwrap();
    let lock = found.next().await.unwrap().unwrap();
    assert_eq!(lock.name, "orders:42");
    assert_eq!(lock.holders.len(), 1);
    assert!(found.next().await.is_none());
    guard.unlock().await.unwrap();
    assert!(other.admin().list("*").unwrap().next().await.is_none());
}

#[tokio::test]
async fn any_password_lets_the_default_user_in_and_nobody_else() {
    let server = MemoryServer::new();
    for protocol in [Protocol::Resp2, Protocol::Resp3] {
        let config = server.config().password("secret").protocol(protocol);
        let client = Client::builder().config(config.clone()).build().await;
        client.unwrap().close().await;
        let other = Client::builder().config(config.user("locker"));
        assert_eq!(other.build().await.unwrap_err().kind(), ErrorKind::Backend);
    }
}

#[tokio::test(start_paused = true)]
async fn server_without_replicas_grants_nothing_to_a_client_that_asks_for_one() {
    let server = MemoryServer::new();
    let builder = Client::builder().config(server.config());
    let client = builder.min_replicas(1, secs(1)).build().await.unwrap();
    let lock = client.lock("job");
    assert_eq!(kind(lock.lock().await), ErrorKind::Backend);
    assert!(!lock.is_locked().await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn permits_that_closing_gave_back_are_handed_to_nobody() {
    let (_server, client, other) = two().await;
    let [mine, theirs] = [&client, &other].map(|client| client.semaphore("s"));
    mine.try_set_permits(1).await.unwrap();
    // From then on the server has the script, and one poll is enough for a grant.
    mine.acquire().await.unwrap().release().await.unwrap();
    let granted = begin(mine.acquire());
    client.close().await;
    let permit = theirs.try_acquire().await.unwrap();
    assert!(permit.is_some());
    assert_eq!(kind(granted.await), ErrorKind::Closed);
}

#[tokio::test(start_paused = true)]
async fn call_that_may_have_permits_does_not_wait_behind_one_that_wants_them() {
    let (server, client, other) = two().await;
    let [mine, theirs] = [&client, &other].map(|client| client.semaphore("s"));
    mine.try_set_permits(2).await.unwrap();
    let permit = theirs.acquire().await.unwrap();
    server.stop_answering();
    let [many, one] = [2, 1].map(|count| {
        let mine = mine.clone();
        tokio::spawn(async move { mine.acquire_many(count).await })
    });
    sleep(secs(2)).await;
    server.resume();
    permit.release().await.unwrap();
    let both = async {
        many.await.unwrap().unwrap().release().await.unwrap();
        one.await.unwrap().unwrap().release().await.unwrap();
    };
    timeout(secs(20), both).await.expect("one after the other");
    assert_eq!(mine.available_permits().await.unwrap(), 2);
}

#[tokio::test(start_paused = true)]
async fn release_by_force_that_was_meant_for_others_leaves_nothing_held() {
    let (_server, client, other) = two().await;
    let lock = |client: &Client| client.read_write_lock("job").owned_by(&Owner::unique());
    let mine = lock(&client).read().await.unwrap();
    let found = client.admin().inspect("job").await.unwrap().unwrap();
    let theirs = lock(&other).read().await.unwrap();
    assert!(!client.admin().force_unlock(&found).await.unwrap());
    assert!(mine.is_lost() && !theirs.is_lost());
    theirs.unlock().await.unwrap();
    let writer = lock(&other);
    let writer = writer.try_write_for(secs(1)).await.unwrap();
    assert!(
        writer.is_some(),
        "the hold that was ended here was released"
    );
}

#[tokio::test(start_paused = true)]
async fn extension_that_is_answered_after_the_end_of_its_hold_is_none() {
    let (server, client, other) = two().await;
    let lock = client.lock("job").lease(secs(2));
    let guard = lock.lock().await.unwrap();
    sleep(millis(1_800)).await;
    server.stop_answering();
    let mut extending = begin(guard.extend(secs(60)));
    guard.lost().await;
    server.resume();
    assert_eq!(kind(extending.as_mut().await), ErrorKind::LeaseLost);
    drop(extending);
    let next = other.lock("job").try_lock_for(secs(5)).await.unwrap();
    assert!(next.is_some(), "it was released");
}

#[tokio::test(start_paused = true)]
async fn nested_level_of_a_shared_record_vouches_for_nothing_that_no_server_confirms() {
    let (server, client, _other) = two().await;
    let lock = || client.read_write_lock("job").owned_by(&Owner::unique());
    let first = lock();
    let outer = first.read().await.unwrap();
    let beside = lock().read().await.unwrap();
    let inner = first.read().await.unwrap();
    sleep(millis(100)).await;
    server.stop_answering();
    assert_eq!(kind(inner.unlock().await), ErrorKind::Timeout);
    server.resume();
    beside.unlock().await.unwrap();
    outer.unlock().await.unwrap();
}
