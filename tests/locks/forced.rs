//! A holder is told that another client has released its lock by force.

use redlatch::{Client, DistributedGuard, LockGuard, LossReason, NamedLock, Owner};
use redlatch_testkit::{Connection, Server};

use crate::support::probe::{calls_of, millis, own_channel, reset_calls, secs, soon};
use crate::support::{builder, client, eventually};

/// Connects a client that holds a lock for longer, and waits until it is told of what concerns it.
async fn told(server: &Server) -> (Client, LockGuard) {
    let client = unhurried(server).await;
    let held = client.lock("held for longer").lock().await.unwrap();
    let mut probe = server.connection();
    eventually("it listens", async || listeners(&mut probe, &client) == 1).await;
    // What may have been missed before it listened. From here on, only messages have it ask.
    is_checked(&mut probe).await;
    (client, held)
}

/// Connects a client whose renewals come too late for any test.
async fn unhurried(server: &Server) -> Client {
    let client = builder(server.url()).watchdog_lease(secs(3600));
    client.build().await.unwrap()
}

/// Returns how many connections of a client listen to that.
fn listeners(probe: &mut Connection, client: &Client) -> i64 {
    probe
        .command(&["PUBSUB", "NUMSUB", &own_channel(client)])
        .array()[1]
        .int()
}

/// Waits until the server was asked whether a lock still stands.
async fn is_checked(probe: &mut Connection) {
    eventually("it is checked", async || calls_of(probe, "hget") > 0).await;
}

/// Acquires a lock, has another client release it by force, and checks that the holder is told.
async fn is_told<L: NamedLock>(here: L, elsewhere: L) {
    let guard = here.lock().await.unwrap();
    assert!(elsewhere.force_unlock().await.unwrap());
    assert_eq!(soon(guard.lost()).await, LossReason::Forced);
    assert!(guard.unlock().await.is_err());
}

#[tokio::test]
async fn holder_is_told_by_a_message_that_another_client_released_its_lock_by_force() {
    let server = Server::start();
    let ((here, _held), elsewhere) = (told(&server).await, client(&server).await);
    let named = |client: &Client| client.lock("k").owned_by(&Owner::named("req-7"));
    is_told(here.lock("k"), elsewhere.lock("k")).await;
    is_told(named(&here), named(&elsewhere)).await;
    is_told(here.lock("k").lease(secs(600)), elsewhere.lock("k")).await;
    is_told(here.fenced_lock("k"), elsewhere.fenced_lock("k")).await;
    is_told(here.fair_lock("k"), elsewhere.fair_lock("k")).await;
    is_told(here.spin_lock("k"), elsewhere.spin_lock("k")).await;
    is_told(here.plain_lock("k"), elsewhere.plain_lock("k")).await;
    let sides = [&here, &elsewhere].map(|client| client.read_write_lock("k"));
    is_told(sides[0].writer(), sides[1].writer()).await;
    is_told(sides[0].reader(), sides[1].reader()).await;
}

#[tokio::test]
async fn every_reader_of_a_client_is_told() {
    let server = Server::start();
    let ((here, _held), elsewhere) = (told(&server).await, client(&server).await);
    let reader = || {
        here.read_write_lock("k")
            .reader()
            .owned_by(&Owner::unique())
    };
    let first = reader().lock().await.unwrap();
    let second = reader().lock().await.unwrap();
    let reader = elsewhere.read_write_lock("k").reader();
    assert!(reader.force_unlock().await.unwrap());
    assert_eq!(soon(first.lost()).await, LossReason::Forced);
    assert_eq!(soon(second.lost()).await, LossReason::Forced);
}

/// Has an operator release a lock from those who were seen to hold it, and checks that the holder is told.
#[cfg(feature = "unstable-admin")]
async fn is_told_of_an_operator<L: NamedLock>(here: L, elsewhere: &Client) {
    let guard = here.lock().await.unwrap();
    let admin = elsewhere.admin();
    let found = admin.inspect(here.name()).await.unwrap().unwrap();
    assert!(admin.force_unlock(&found).await.unwrap());
    assert_eq!(soon(guard.lost()).await, LossReason::Forced);
}

#[cfg(feature = "unstable-admin")]
#[tokio::test]
async fn holder_is_told_when_those_who_were_seen_are_released() {
    let server = Server::start();
    let ((here, _held), elsewhere) = (told(&server).await, client(&server).await);
    is_told_of_an_operator(here.lock("k"), &elsewhere).await;
    is_told_of_an_operator(here.plain_lock("k"), &elsewhere).await;
    is_told_of_an_operator(here.read_write_lock("k").writer(), &elsewhere).await;
}

/// Returns the acquisition id in the hash of a lock that is held.
fn acquisition_id(probe: &mut Connection, name: &str) -> String {
    let values = probe.command(&["HVALS", name]).texts();
    let record = values.iter().find(|value| value.starts_with('h'));
    let (id, _) = record.unwrap().split_once(':').unwrap();
    id.to_owned()
}

// fault: S34
#[tokio::test]
async fn message_ends_no_hold_that_stands_and_no_later_one() {
    let server = Server::start();
    let client = unhurried(&server).await;
    let mut probe = server.connection();
    let [lock, other] = ["k", "l"].map(|name| client.lock(name));
    let earlier = lock.lock().await.unwrap();
    let earlier_id = acquisition_id(&mut probe, "k");
    earlier.unlock().await.unwrap();

    let guard = lock.lock().await.unwrap();
    let id = acquisition_id(&mut probe, "k");
    // What may have been missed before it listened.
    is_checked(&mut probe).await;
    reset_calls(&mut probe);
    for message in [&*earlier_id, "", "0", "h", "next:300", &id] {
        assert_eq!(
            probe
                .command(&["PUBLISH", &own_channel(&client), message])
                .int(),
            1
        );
    }
    is_checked(&mut probe).await;
    // What comes behind it shows that it was dealt with.
    let last = other.lock().await.unwrap();
    let last_id = acquisition_id(&mut probe, "l");
    probe.command(&["DEL", "l"]);
    probe.command(&["PUBLISH", &own_channel(&client), &last_id]);
    assert_eq!(soon(last.lost()).await, LossReason::Forced);
    assert!(!guard.is_lost());
    guard.unlock().await.unwrap();
}

#[tokio::test]
async fn release_by_force_is_heard_while_a_lock_is_held_for_longer() {
    let server = Server::start();
    let (here, elsewhere) = (unhurried(&server).await, client(&server).await);
    let mut probe = server.connection();
    let [first, second] = ["a", "b"].map(|name| (here.lock(name), elsewhere.lock(name)));
    let held = here.lock("k").lease(secs(600)).lock().await.unwrap();
    eventually("it listens", async || listeners(&mut probe, &here) == 1).await;
    is_checked(&mut probe).await;
    is_told(first.0, first.1).await;
    reset_calls(&mut probe);
    probe.command(&["CLIENT", "KILL", "TYPE", "pubsub"]);
    eventually("it listens again", async || {
        listeners(&mut probe, &here) == 1
    })
    .await;
    is_checked(&mut probe).await;
    is_told(second.0, second.1).await;
    held.unlock().await.unwrap();
    eventually("it listens no more", async || {
        listeners(&mut probe, &here) == 0
    })
    .await;
}

/// Nobody was told: the client asks, as soon as it listens, what it has missed.
#[tokio::test]
async fn release_by_force_in_the_first_moment_is_noticed_in_the_next() {
    let server = Server::start();
    let elsewhere = client(&server).await.lock("k");
    let eager = unhurried(&server).await;
    let lazy = builder(server.url()).connect_lazily();
    let lazy = lazy.watchdog_lease(secs(3600)).build().await.unwrap();
    for here in [eager, lazy] {
        let guard = here.lock("k").lock().await.unwrap();
        assert!(elsewhere.force_unlock().await.unwrap());
        soon(guard.lost()).await;
    }
}

/// With the rights of an older line of docs/rights.md, which has no channel of the client.
#[tokio::test]
async fn holder_without_the_right_to_listen_finds_out_at_its_next_renewal() {
    let server = Server::start();
    let rules = [
        "on",
        ">secret",
        "~*",
        "+@all",
        "resetchannels",
        "&redisson*",
    ];
    let mut probe = server.connection();
    probe.command(&[&["ACL", "SETUSER", "app"], &rules[..]].concat());
    let url = format!("redis://app:secret@127.0.0.1:{}", server.port());
    let here = builder(&url).watchdog_lease(millis(900)).build();
    let (here, elsewhere) = (here.await.unwrap(), builder(&url).build().await.unwrap());
    let guard = here.lock("k").lock().await.unwrap();
    assert!(elsewhere.lock("k").force_unlock().await.unwrap());
    assert_eq!(soon(guard.lost()).await, LossReason::Gone);
}
