//! A user without permission to publish: its releases take effect, whatever the kind of lock or counter.
//! `tracing/faults.rs` tests that the operator is told once.

use crate::support::probe::{eventually_free, is_before_7, millis, secs, soon};
use crate::support::{builder, eventually};
use redlatch::{Client, MultiLock, Owner};
use redlatch_testkit::{Connection, Server};

/// Ways to lack the permission: for the commands, for the channels, and for everything to do with messages.
const FORBIDDEN: [&[&str]; 3] = [&["-publish", SHARDED], &["resetchannels"], &["-@pubsub"]];

/// A command that Redis 6.2 does not have.
const SHARDED: &str = "-spublish";

/// Returns a client of a user that lacks some permissions, on a server of its own.
async fn client(rules: &[&str]) -> (Server, Connection, Client) {
    let server = Server::start();
    let is_old = is_before_7(&server);
    let rules = rules
        .iter()
        .copied()
        .filter(|rule| !is_old || *rule != SHARDED);
    let mut probe = server.connection();
    let user = [
        "ACL", "SETUSER", "app", "on", ">s3cret", "~*", "&*", "+@all",
    ];
    let words: Vec<&str> = user.into_iter().chain(rules).collect();
    let done = probe.command(&words);
    assert_eq!(done, redlatch_testkit::Reply::Status("OK".to_owned()));
    let url = format!("redis://app:s3cret@127.0.0.1:{}", server.port());
    let client = builder(url)
        .poll_cap(millis(100))
        .local_handoff_limit(0)
        .build()
        .await
        .unwrap();
    (server, probe, client)
}

/// Acquires a lock and releases it in every way: by unlock, by drop, by force, and while a call of this process waits.
macro_rules! comes_back {
    ($server:expr, $probe:expr, $lock:expr) => {
        let lock = $lock;
        let stranger = lock.clone().owned_by(&Owner::unique());
        let guard = soon(lock.lock()).await.unwrap();
        guard.unlock().await.unwrap();
        assert!(!$probe.exists("k"), "{lock:?}: unlocked");
        drop(soon(lock.lock()).await.unwrap());
        eventually_free(&$server, "k").await;
        let guard = soon(lock.lock()).await.unwrap();
        assert!(lock.force_unlock().await.unwrap());
        assert!(!$probe.exists("k"), "{lock:?}: by force");
        assert!(guard.is_lost());
        drop(guard);
        let guard = soon(lock.lock()).await.unwrap();
        let waiting = tokio::spawn(async move { stranger.lock().await });
        tokio::task::yield_now().await;
        guard.unlock().await.unwrap();
        let guard = soon(waiting).await.unwrap().unwrap();
        guard.unlock().await.unwrap();
        eventually_free(&$server, "k").await;
    };
}

// fault: S19
#[tokio::test]
async fn locks_of_every_kind_come_back_without_the_right_to_publish() {
    for rules in FORBIDDEN {
        let (server, mut probe, client) = client(rules).await;
        comes_back!(server, probe, client.lock("k"));
        comes_back!(server, probe, client.fenced_lock("k"));
        comes_back!(server, probe, client.fair_lock("k"));
        comes_back!(server, probe, client.spin_lock("k"));
        comes_back!(server, probe, client.plain_lock("k"));
        comes_back!(server, probe, client.read_write_lock("k").reader());
        comes_back!(server, probe, client.read_write_lock("k").writer());
        let set = MultiLock::new([client.lock("a"), client.lock("b")]);
        soon(set.lock()).await.unwrap().unlock().await.unwrap();
        assert!(!probe.exists("a") && !probe.exists("b"));
        client.close().await;
    }
}

#[tokio::test]
async fn lock_that_another_process_waits_for_comes_back_without_the_right_to_publish() {
    for rules in FORBIDDEN {
        let (server, mut probe, client) = client(rules).await;
        let other = builder(server.url())
            .poll_cap(millis(100))
            .build()
            .await
            .unwrap();
        for fair in [false, true] {
            let guard = match fair {
                true => client.fair_lock("k").lock().await.unwrap(),
                false => client.lock("k").lock().await.unwrap(),
            };
            let (plain, queued) = (other.lock("k"), other.fair_lock("k"));
            let waiting = tokio::spawn(async move {
                match fair {
                    true => queued.lock().await,
                    false => plain.lock().await,
                }
            });
            eventually("it waits", async || !probe.channels().is_empty()).await;
            guard.unlock().await.unwrap();
            soon(waiting)
                .await
                .unwrap()
                .unwrap()
                .unlock()
                .await
                .unwrap();
            eventually("nobody listens", async || probe.channels().is_empty()).await;
        }
        client.close().await;
    }
}

#[tokio::test]
async fn counters_change_without_the_right_to_publish() {
    for rules in FORBIDDEN {
        let (_server, _probe, client) = client(rules).await;
        let semaphore = client.semaphore("s");
        assert!(semaphore.try_set_permits(1).await.unwrap());
        let permit = semaphore.acquire().await.unwrap();
        permit.release().await.unwrap();
        assert_eq!(semaphore.available_permits().await.unwrap(), 1);
        semaphore.add_permits(2).await.unwrap();
        drop(semaphore.acquire_many(3).await.unwrap());
        eventually("the permits are back", async || {
            semaphore.available_permits().await.unwrap() == 3
        })
        .await;

        let leased = client.expirable_semaphore("e").lease(millis(200));
        assert!(leased.try_set_permits(1).await.unwrap());
        let permit = leased.acquire().await.unwrap();
        permit.release().await.unwrap();
        assert_eq!(leased.available_permits().await.unwrap(), 1);
        leased.acquire().await.unwrap().forget();
        // Both the next call that acquires and the call that counts reclaim the permit.
        soon(leased.acquire()).await.unwrap().forget();
        eventually("the lease has ended", async || {
            leased.available_permits().await.unwrap() == 1
        })
        .await;

        let latch = client.latch("l");
        assert!(latch.try_set_count(1).await.unwrap());
        let waiter = latch.clone();
        let waiting = tokio::spawn(async move { waiter.wait_for(secs(10)).await });
        latch.count_down().await.unwrap();
        assert!(soon(waiting).await.unwrap().unwrap());
        assert!(latch.try_set_count(1).await.unwrap());
        assert!(latch.delete().await.unwrap());
        client.close().await;
    }
}
