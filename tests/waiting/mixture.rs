//! Guards that are dropped among guards that are unlocked: nobody is told of a loss that there was not.

use std::time::Duration;

use redlatch::{Client, DistributedGuard, Error, NamedLock};
use redlatch_testkit::Server;
use tokio::task::{JoinSet, spawn_blocking};
use tokio::time::sleep;

use crate::support::probe::{reset_calls, scripts_run, stranger};
use crate::support::{client, eventually_idle, start};

/// How many clients share the name, and how many tasks each of them has.
const CLIENTS: usize = 3;
const TASKS: usize = 6;
/// How many sections each task goes through.
const SECTIONS: usize = 40;

/// Goes through a section for an owner of its own, which may hold the lock twice, and of whose guards each is dropped,
/// here or on another thread, or unlocked.
async fn section(lock: impl NamedLock) -> Result<(), Error> {
    let mut guards = vec![lock.lock().await?];
    if fastrand::bool() {
        guards.push(lock.lock().await?);
    }
    if fastrand::bool() {
        sleep(Duration::from_millis(fastrand::u64(0..3))).await;
    }
    for guard in guards {
        match fastrand::u8(0..4) {
            0 => guard.unlock().await?,
            1 => spawn_blocking(move || drop(guard)).await.unwrap(),
            _ => drop(guard),
        }
    }
    Ok(())
}

/// Returns what went wrong while the tasks of several clients had the lock in turns.
async fn mixture<L: NamedLock>(of: impl Fn(&Client) -> L) -> Vec<Error> {
    let server = Server::start();
    let mut tasks = JoinSet::new();
    for _ in 0..CLIENTS {
        let lock = of(&client(&server).await);
        for _ in 0..TASKS {
            let lock = lock.clone();
            tasks.spawn(async move {
                let mut errors = Vec::new();
                for _ in 0..SECTIONS {
                    errors.extend(section(stranger(&lock)).await.err());
                }
                errors
            });
        }
    }
    tasks.join_all().await.concat()
}

/// Has all kinds that pass a record on, or share it, used in a mixture.
async fn of_all_kinds() {
    let (reentrant, fenced, read, write) = tokio::join!(
        mixture(|client| client.lock("k")),
        mixture(|client| client.fenced_lock("k")),
        mixture(|client| client.read_write_lock("k").reader()),
        mixture(|client| client.read_write_lock("k").writer()),
    );
    let errors = [reentrant, fenced, read, write];
    assert_eq!(errors.each_ref().map(Vec::len), [0; 4], "{errors:?}");
}

/// A second release would find nothing, which is what a loss looks like.
#[tokio::test]
async fn guards_that_are_dropped_together_are_released_by_one_request() {
    let (server, client) = start().await;
    let mut probe = server.connection();
    for round in 0..3 {
        let lock = client.lock("k");
        let guard = lock.lock().await.unwrap();
        let guards = (guard.reenter().await.unwrap(), guard);
        // From the second round on the server is known to have the scripts.
        reset_calls(&mut probe);
        drop(guards);
        eventually_idle(&client).await;
        assert_eq!(scripts_run(&mut probe), 1, "{round}");

        let reader = client.read_write_lock("rw").reader();
        let (guard, joined) = loop {
            let [one, two] = [stranger(&reader), stranger(&reader)];
            let both = (one.lock().await.unwrap(), two.lock().await.unwrap());
            // On a busy machine, the second may come too late to join.
            if probe.hgetall("rw").len() == 2 {
                break both;
            }
        };
        let guards = (guard.reenter().await.unwrap(), guard, joined);
        reset_calls(&mut probe);
        drop(guards);
        eventually_idle(&client).await;
        assert_eq!(scripts_run(&mut probe), 1, "{round}, readers");
    }
}

#[tokio::test]
async fn guards_dropped_beside_others_make_nobody_lose_the_lock() {
    of_all_kinds().await;
}

// fault: S60
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn guards_dropped_beside_others_on_many_threads_make_nobody_lose_the_lock() {
    of_all_kinds().await;
}
