//! The fencing tokens of the fenced lock: they rise, even after the server has forgotten them, and they end with an
//! error.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::support::probe::{
    begin, calls_of, kind, reset_calls, scripts_run, secs, soon, stranger,
};
use crate::support::{client, eventually, start, start_two};
use redlatch::{Client, ErrorKind, FencedGuard, FencedLock, LockGuard, MultiLock, Owner};
use redlatch_testkit::{Connection, Server};

const NAME: &str = "k";
const TOKEN: &str = "redisson_lock_token:{k}";
/// 2^53: Lua counts exactly up to this number.
const HIGHEST: u64 = 9_007_199_254_740_992;

async fn next(lock: &FencedLock) -> u64 {
    let guard = soon(lock.lock()).await.unwrap();
    let token = guard.token();
    assert_eq!(token.to_string(), token.get().to_string());
    guard.unlock().await.unwrap();
    token.get()
}

fn stored(probe: &mut Connection) -> String {
    probe.command(&["GET", TOKEN]).text()
}

#[tokio::test]
async fn every_hold_has_a_higher_token_and_all_its_levels_the_same() {
    let server = Server::start();
    let clients = [client(&server).await, client(&server).await];
    let mut probe = server.connection();
    let mut last = 0;
    for round in 0..50 {
        let lock = clients[round % 2].fenced_lock(NAME);
        let guard = lock.lock().await.unwrap();
        let inner = lock.lock().await.unwrap();
        let third = inner.reenter().await.unwrap();
        assert!(guard.token().get() > last);
        assert!(guard.token() == inner.token() && inner.token() == third.token());
        last = guard.token().get();
        assert_eq!(stored(&mut probe), last.to_string());
        drop((guard, inner));
        third.unlock().await.unwrap();
    }
}

// fault: S39 S40
#[tokio::test]
async fn tokens_rise_when_the_lock_is_passed_on_within_a_process() {
    let (server, client) = start().await;
    let mut probe = server.connection();
    // The token is ahead of the clock, which would rise by itself.
    probe.command(&["SET", TOKEN, &(HIGHEST - 1_000).to_string()]);
    let lock = client.fenced_lock(NAME);
    let mut guard = lock.lock().await.unwrap();
    let first = guard.token().get();
    for passed_on in 1..=20 {
        let waiter = stranger(&lock);
        let waiting = begin(async move { waiter.lock().await });
        let ((), next) =
            soon(async { tokio::join!(async { guard.unlock().await.unwrap() }, waiting) }).await;
        let next: FencedGuard = next.unwrap();
        assert_eq!(next.token().get(), first + passed_on);
        guard = next;
    }
    // The lock was passed on each time but the first, when no token was reserved.
    assert_eq!(calls_of(&mut probe, "publish"), 1);
    assert!(stored(&mut probe).parse::<u64>().unwrap() >= guard.token().get());
    guard.unlock().await.unwrap();
}

// fault: S37
#[tokio::test]
async fn late_write_is_refused_by_a_store_that_checks_tokens() {
    let (_server, one, two) = start_two().await;
    let mut highest = 0;
    let mut writes = |guard: &FencedGuard| {
        let is_taken = guard.token().get() >= highest;
        highest = highest.max(guard.token().get());
        is_taken
    };
    let late = one.fenced_lock(NAME).lease(secs(1)).lock().await.unwrap();
    assert!(!late.is_lost(), "the check ahead of its write");
    // Here the process stops for longer than its lease.
    let next = soon(two.fenced_lock(NAME).lock()).await.unwrap();
    assert!(writes(&next));
    assert!(!writes(&late));
}

// fault: S1 S8
#[tokio::test]
async fn tokens_rise_over_a_flush_and_an_empty_restart() {
    let (server, client) = start().await;
    let lock = client.fenced_lock(NAME);
    let first = next(&lock).await;
    server.connection().command(&["FLUSHALL"]);
    let second = next(&lock).await;
    assert!(second > first);
    server.restart();
    let third = next(&lock).await;
    assert!(third > second);
}

#[tokio::test]
async fn tokens_that_java_drew_are_older() {
    let (server, client) = start().await;
    let lock = client.fenced_lock(NAME);
    let mut probe = server.connection();
    // Java's tokens begin at 1. After a token of ours, they continue from there.
    probe.command(&["INCR", TOKEN]);
    let ours = next(&lock).await;
    let javas = probe.command(&["INCR", TOKEN]).int() as u64;
    assert_eq!(javas, ours + 1);
    assert!(next(&lock).await > javas);
}

// fault: S68
#[tokio::test]
async fn tokens_are_exact_up_to_their_end_and_refused_beyond() {
    let (server, client) = start().await;
    let lock = client.fenced_lock(NAME);
    let mut probe = server.connection();
    probe.command(&["SET", TOKEN, &(HIGHEST - 3).to_string()]);
    for token in [HIGHEST - 2, HIGHEST - 1] {
        assert_eq!(next(&lock).await, token);
    }
    // The last token is given out while a caller waits for the lock to be passed on.
    let guard = lock.lock().await.unwrap();
    assert_eq!(guard.token().get(), HIGHEST);
    let waiter = stranger(&lock);
    let waiting = begin(async move { waiter.lock().await });
    let (unlocked, refused) = soon(async { tokio::join!(guard.unlock(), waiting) }).await;
    unlocked.unwrap();
    assert_eq!(kind(refused), ErrorKind::Refused);
    assert_eq!(kind(lock.try_lock().await), ErrorKind::Refused);
    assert_eq!(stored(&mut probe), HIGHEST.to_string());
    assert!(!lock.is_locked().await.unwrap());
}

// fault: S68
#[tokio::test]
async fn token_that_is_no_number_is_the_wrong_kind_and_stays() {
    let (server, client) = start().await;
    let lock = client.fenced_lock(NAME);
    let mut probe = server.connection();
    probe.command(&["SET", TOKEN, "abc"]);
    assert_eq!(kind(lock.lock().await), ErrorKind::WrongKind);
    assert_eq!(stored(&mut probe), "abc");
    assert!(!probe.exists(NAME));
    probe.command(&["DEL", TOKEN]);
    probe.command(&["RPUSH", TOKEN, "1"]);
    assert_eq!(kind(lock.lock().await), ErrorKind::WrongKind);
    assert!(!probe.exists(NAME));
}

#[tokio::test]
async fn token_key_has_an_end_only_if_it_is_given_one() {
    let server = Server::start();
    let mut probe = server.connection();
    let client = client(&server).await;
    let lock = client.fenced_lock(NAME);
    next(&lock).await;
    assert_eq!(probe.pttl(TOKEN), -1);
    let lock = lock.token_ttl(secs(100));
    let last = next(&lock).await;
    let left = probe.pttl(TOKEN);
    assert!(left > 90_000 && left <= 100_000, "{left}");
    probe.command(&["DEL", TOKEN]);
    assert!(next(&lock).await > last, "the clock goes on");
}

#[tokio::test]
async fn bad_token_ttl_is_refused_before_anything_is_sent() {
    let server = Server::start();
    let client = client(&server).await;
    let mut probe = server.connection();
    reset_calls(&mut probe);
    let lock = client.fenced_lock(NAME);
    for (bad, why) in [
        (lock.clone().token_ttl(Duration::ZERO), "token_ttl"),
        (lock.clone().token_ttl(Duration::MAX), "token_ttl"),
        // Shorter than the lease, which is that of the watchdog or a fixed one.
        (lock.clone().token_ttl(secs(29)), "token_ttl"),
        (lock.clone().lease(secs(2)).token_ttl(secs(1)), "token_ttl"),
    ] {
        for error in [
            bad.lock().await.unwrap_err(),
            bad.try_lock().await.unwrap_err(),
            bad.adopt().await.unwrap_err(),
            MultiLock::new([bad.clone()]).lock().await.unwrap_err(),
        ] {
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
            assert!(error.to_string().contains(why), "{error}");
        }
    }
    assert_eq!(scripts_run(&mut probe), 0, "nothing was sent");
    next(&lock.lease(secs(1)).token_ttl(secs(1))).await;
}

#[tokio::test]
async fn handles_of_one_lock_may_remember_its_tokens_for_different_times() {
    let server = Server::start();
    let client = client(&server).await;
    let mut probe = server.connection();
    let lock = client.fenced_lock(NAME);
    let [short, long] = [100, 1_000].map(|ttl| lock.clone().token_ttl(secs(ttl)));
    // The lock goes back and forth between them, and the tokens rise.
    let tokens = Arc::new(Mutex::new(Vec::new()));
    let tasks = [&lock, &short, &long, &short].map(|lock| {
        let (lock, tokens) = (stranger(lock), tokens.clone());
        tokio::spawn(async move {
            for _ in 0..50 {
                let guard = lock.lock().await.unwrap();
                tokens.lock().unwrap().push(guard.token().get());
                guard.unlock().await.unwrap();
            }
        })
    });
    for task in tasks {
        soon(task).await.unwrap();
    }
    assert!(tokens.lock().unwrap().is_sorted_by(|one, next| one < next));
    // The hold that was granted last decides, and its owner may take it again by any of them.
    for (ttl, ends) in [
        (&long, 900_000..1_000_001),
        (&short, 90_000..100_001),
        (&lock, -1..0),
    ] {
        let guard = ttl.lock().await.unwrap();
        let again = [short.lock().await.unwrap(), long.lock().await.unwrap()];
        assert!(again.iter().all(|again| again.token() == guard.token()));
        let left = probe.pttl(TOKEN);
        assert!(ends.contains(&left), "{left}");
    }
}

#[tokio::test]
async fn level_that_is_adopted_elsewhere_keeps_its_token() {
    let (_server, client, other) = start_two().await;
    let owner = Owner::named("req-7");
    let guard = client
        .fenced_lock(NAME)
        .owned_by(&owner)
        .lock()
        .await
        .unwrap();
    let token = guard.token();
    let joined = other
        .fenced_lock(NAME)
        .owned_by(&owner)
        .lock()
        .await
        .unwrap();
    assert_eq!(joined.token(), token);
    joined.unlock().await.unwrap();
    drop(guard.detach());
    let adopted = other
        .fenced_lock(NAME)
        .owned_by(&owner)
        .adopt()
        .await
        .unwrap()
        .expect("a level");
    assert_eq!(adopted.token(), token);
    adopted.unlock().await.unwrap();
}

/// A hold that a named owner took without a token, and the same lock as a fenced one elsewhere. The last token that the
/// server knows is of an earlier hold.
async fn held_without_a_token() -> (Server, LockGuard, FencedLock) {
    let (server, client, other) = start_two().await;
    let owner = Owner::named("req-7");
    next(&client.fenced_lock(NAME)).await;
    let held = client.lock(NAME).owned_by(&owner).lock().await.unwrap();
    (server, held, other.fenced_lock(NAME).owned_by(&owner))
}

#[tokio::test]
async fn hold_that_a_named_owner_took_without_a_token_has_none() {
    let (_server, held, fenced) = held_without_a_token().await;
    assert_eq!(kind(fenced.lock().await), ErrorKind::WrongKind);
    held.unlock().await.unwrap();
}

#[tokio::test]
async fn set_joins_no_hold_without_a_token() {
    let (server, held, _) = held_without_a_token().await;
    let client = client(&server).await;
    // A set of one lock asks as that lock does.
    let set = MultiLock::new([NAME, "another"].map(|name| client.fenced_lock(name)));
    let set = set.owned_by(held.owner());
    assert_eq!(kind(set.lock().await), ErrorKind::WrongKind);
    held.unlock().await.unwrap();
}

#[tokio::test]
async fn level_without_a_token_is_not_adopted_with_one() {
    let (server, held, fenced) = held_without_a_token().await;
    let owner = held.owner().clone();
    drop(held.detach());
    assert_eq!(kind(fenced.adopt().await), ErrorKind::WrongKind);
    // The level is where it was.
    let lock = client(&server).await.lock(NAME).owned_by(&owner);
    let level = lock.adopt().await.unwrap().expect("a level");
    level.unlock().await.unwrap();
}

/// The owner field of a thread in Java.
const JAVA: &str = "8f2d4a5c-0000-4000-8000-000000000000:31";

/// Takes a level as `RFencedLock` does, which records its owner alone, and a token for each level.
fn java_locks(probe: &mut Connection, token: u64) {
    probe.command(&["SET", TOKEN, &token.to_string()]);
    probe.command(&["HINCRBY", NAME, JAVA, "1"]);
    probe.command(&["PEXPIRE", NAME, "60000"]);
}

#[tokio::test]
async fn hold_of_java_that_one_client_has_adopted_has_its_token_for_the_next() {
    let (server, client, other) = start_two().await;
    let mut probe = server.connection();
    let owner = Owner::named(JAVA);
    java_locks(&mut probe, 7);
    let [here, there] = [client, other].map(|it| it.fenced_lock(NAME).owned_by(&owner));
    let adopted = here.adopt().await.unwrap().expect("a level");
    assert_eq!(adopted.token().get(), 7);
    drop(adopted.detach());
    assert_eq!(there.lock().await.unwrap().token().get(), 7);
}

#[tokio::test]
async fn level_of_java_that_is_adopted_later_has_the_later_token() {
    let (server, client, other) = start_two().await;
    let mut probe = server.connection();
    let owner = Owner::named(JAVA);
    let [here, there] = [client, other].map(|it| it.fenced_lock(NAME).owned_by(&owner));
    let mut adopted = Vec::new();
    for (token, lock) in [(7, here), (8, there)] {
        java_locks(&mut probe, token);
        let level = lock.adopt().await.unwrap().expect("a level");
        assert_eq!(level.token().get(), token);
        adopted.push(level);
    }
}

// fault: S17
#[tokio::test]
async fn kinds_of_one_shape_exclude_each_other() {
    let (_server, client, other) = start_two().await;
    let held = client.fenced_lock(NAME).lock().await.unwrap();
    assert!(other.lock(NAME).try_lock().await.unwrap().is_none());
    assert!(other.spin_lock(NAME).try_lock().await.unwrap().is_none());
    held.unlock().await.unwrap();
    let held = client.lock(NAME).lock().await.unwrap();
    assert!(other.fenced_lock(NAME).try_lock().await.unwrap().is_none());
    held.unlock().await.unwrap();
    let held = client.spin_lock(NAME).lock().await.unwrap();
    assert!(other.fenced_lock(NAME).try_lock().await.unwrap().is_none());
    held.unlock().await.unwrap();
}

#[tokio::test]
async fn owner_of_one_kind_is_told_when_it_asks_for_another() {
    let (_server, client) = start().await;
    let held = client.lock(NAME).lock().await.unwrap();
    for error in [
        kind(client.fenced_lock(NAME).lock().await),
        kind(client.spin_lock(NAME).try_lock().await),
        kind(client.fenced_lock(NAME).adopt().await),
        kind(
            client
                .fenced_lock(NAME)
                .try_lock_for(Duration::from_secs(60))
                .await,
        ),
    ] {
        assert_eq!(error, ErrorKind::WrongKind);
    }
    held.verify().await.unwrap();
    held.unlock().await.unwrap();
}

#[tokio::test]
async fn hold_outlasts_the_memory_of_its_token() {
    let server = Server::start();
    let brief = async || {
        let builder = Client::builder().url(server.url()).watchdog_lease(secs(2));
        builder.build().await.unwrap()
    };
    let (client, other) = (brief().await, brief().await);
    let owner = Owner::named("req-7");
    let [there, here] = [&other, &client].map(|client| {
        let lock = client.fenced_lock(NAME).token_ttl(secs(2));
        lock.owned_by(&owner)
    });
    let mut probe = server.connection();
    // The token is ahead of the clock, which would rise by itself.
    probe.command(&["SET", TOKEN, &(HIGHEST - 1_000).to_string()]);
    let guard = here.lock().await.unwrap();
    let token = guard.token();
    assert_eq!(token.get(), HIGHEST - 999);
    eventually("the token is forgotten", async || !probe.exists(TOKEN)).await;
    guard.verify().await.unwrap();

    let joined = there.lock().await.unwrap();
    assert_eq!(joined.token(), token);
    joined.unlock().await.unwrap();
    let again = here.lock().await.unwrap();
    assert_eq!(again.token(), token);
    again.unlock().await.unwrap();
    drop(guard.detach());
    let adopted = there.adopt().await.unwrap().expect("a level");
    assert_eq!(adopted.token(), token);
    adopted.unlock().await.unwrap();
}
