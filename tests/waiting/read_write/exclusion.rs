//! Readers are in together and a writer is alone, and all get in: also where calls are dropped, replies are lost or
//! handles differ.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use crate::support::polls::Polls;
use crate::support::probe::{millis, nothing_left, passes, secs, soon};
use crate::support::scene::{Scene, patient};
use crate::support::{client, eventually, sha, start_two};
use redlatch::config::Prefer;
use redlatch_testkit::Server;

use super::{
    PREFERENCES, READER_MARK, both, eventually_heard, eventually_marked, eventually_waiting,
    reading, somebody, writing,
};

#[tokio::test]
async fn readers_of_all_processes_share_and_a_writer_is_alone() {
    let (server, one, two) = start_two().await;
    let mut guards = Vec::new();
    for client in [&one, &one, &two] {
        guards.push(somebody(client).try_read().await.unwrap().unwrap());
        assert!(somebody(&two).try_write().await.unwrap().is_none());
    }
    let lock = somebody(&one);
    assert!(lock.reader().is_locked().await.unwrap());
    assert!(!lock.writer().is_locked().await.unwrap());
    assert_eq!(lock.writer().holder().await.unwrap(), None);
    for guard in &guards {
        guard.verify().await.unwrap();
    }
    for guard in guards {
        assert!(lock.try_write_for(millis(1)).await.unwrap().is_none());
        guard.unlock().await.unwrap();
    }
    let write = lock.try_write().await.unwrap().unwrap();
    for client in [&one, &two] {
        assert!(somebody(client).try_read().await.unwrap().is_none());
        assert!(somebody(client).try_write().await.unwrap().is_none());
    }
    assert!(lock.writer().is_held().await.unwrap());
    assert!(!lock.reader().is_locked().await.unwrap());
    let holder = lock.writer().holder().await.unwrap().unwrap();
    assert_eq!(holder.owner(), one.owner_field(write.owner()));
    write.unlock().await.unwrap();
    nothing_left(&server, [&one, &two]).await;
}

#[tokio::test]
async fn waiters_of_both_sides_are_woken_by_a_release() {
    let server = Server::start();
    let mut probe = server.connection();
    for prefer in PREFERENCES {
        let (one, two) = both(&server, prefer).await;
        let write = somebody(&one).write().await.unwrap();
        let readers: Vec<_> = [&one, &one, &two, &two].map(reading).into();
        eventually_heard(&mut probe, 2).await;
        write.unlock().await.unwrap();
        let mut guards = Vec::new();
        for reader in readers {
            guards.push(soon(reader).await.unwrap().unwrap());
        }
        let writer = writing(&two);
        eventually_heard(&mut probe, 2).await;
        for guard in guards {
            assert!(!writer.is_finished());
            guard.unlock().await.unwrap();
        }
        passes(writer).await;
        nothing_left(&server, [&one, &two]).await;
        one.close().await;
        two.close().await;
    }
}

#[tokio::test]
async fn readers_all_get_in_though_their_writer_was_ended_by_force_or_one_of_them_has_left() {
    let server = Server::start();
    let (here, there) = both(&server, Prefer::Arrival).await;
    let mut probe = server.connection();
    for by_force in [true, false] {
        let write = somebody(&here).write().await.unwrap();
        let mut readers = vec![reading(&here)];
        // The first reader's mark stands for all of them.
        eventually_marked(&mut probe, READER_MARK).await;
        readers.extend((0..5).map(|_| reading(&here)));
        eventually_waiting(&here, 6).await;
        if by_force {
            assert!(somebody(&there).writer().force_unlock().await.unwrap());
        } else {
            let first = readers.remove(0);
            first.abort();
            assert!(first.await.is_err());
            write.unlock().await.unwrap();
        }
        let mut guards = Vec::new();
        for reader in readers {
            guards.push(soon(reader).await.unwrap().unwrap());
        }
        for guard in guards {
            guard.unlock().await.unwrap();
        }
    }
    nothing_left(&server, [&here, &there]).await;
}

// fault: S54
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acquisition_dropped_at_any_await_leaves_nothing() {
    let scene = Scene::open(patient).await;
    for (holds, asks) in [
        ("nobody", "read"),
        ("write", "read"),
        ("read", "write"),
        ("write", "write"),
    ] {
        let what = format!("{asks} while somebody holds {holds}");
        Polls::sweep(&scene.proxy, &what, async |_, polls| {
            let guard = match holds {
                "read" => Some(somebody(&scene.other).read().await.unwrap()),
                "write" => Some(somebody(&scene.other).write().await.unwrap()),
                _ => None,
            };
            let lock = somebody(&scene.client);
            let ask = async {
                match asks {
                    "read" => lock.read().await,
                    _ => lock.write().await,
                }
            };
            let give_back = async {
                if let Some(guard) = guard {
                    guard.unlock().await.unwrap();
                }
            };
            drop(polls.run_until(ask, give_back).await);
            let next = soon(somebody(&scene.other).write()).await.unwrap();
            next.unlock().await.unwrap();
        })
        .await;
    }
    scene.ends_clean().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_reads_beside_a_writer_and_no_write_is_lost() {
    let server = Server::start();
    let clients = [client(&server).await, client(&server).await];
    let (inside, counter) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    const WRITER: u64 = 1 << 32;
    let mut tasks = Vec::new();
    for task in 0..24_u64 {
        let lock = somebody(&clients[(task % 2) as usize]);
        let (inside, counter) = (inside.clone(), counter.clone());
        tasks.push(tokio::spawn(async move {
            for turn in 0..25 {
                if (task + turn) % 8 == 0 {
                    let guard = lock.write().await.unwrap();
                    assert_eq!(inside.fetch_add(WRITER, Ordering::SeqCst), 0);
                    let before = counter.load(Ordering::SeqCst);
                    tokio::task::yield_now().await;
                    counter.store(before + 1, Ordering::SeqCst);
                    inside.fetch_sub(WRITER, Ordering::SeqCst);
                    guard.unlock().await.unwrap();
                } else {
                    let guard = lock.read().await.unwrap();
                    assert!(inside.fetch_add(1, Ordering::SeqCst) < WRITER);
                    tokio::task::yield_now().await;
                    inside.fetch_sub(1, Ordering::SeqCst);
                    guard.unlock().await.unwrap();
                }
            }
        }));
    }
    for task in tasks {
        tokio::time::timeout(secs(60), task).await.unwrap().unwrap();
    }
    assert_eq!(counter.load(Ordering::SeqCst), 24 * 25 / 8);
    nothing_left(&server, [&clients[0], &clients[1]]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn readers_whose_shared_request_goes_unanswered_are_all_in_once() {
    let scene = Scene::open(patient).await;
    let mut probe = scene.server.connection();
    for _ in 0..10 {
        let writer = somebody(&scene.other).write().await.unwrap();
        let readers: Vec<_> = (0..16).map(|_| reading(&scene.client)).collect();
        eventually_marked(&mut probe, READER_MARK).await;
        eventually_heard(&mut probe, 1).await;
        scene.proxy.cut_reply_to(sha("read_acquire"));
        writer.unlock().await.unwrap();
        let mut guards = Vec::new();
        for reader in readers {
            guards.push(soon(reader).await.unwrap().unwrap());
        }
        eventually("the cut", async || !scene.proxy.cut_reply_armed()).await;
        for guard in &guards {
            guard.verify().await.unwrap();
        }
        // On a busy machine, what the server said may be too old for some of them to join by: they ask again.
        let lock = probe.hgetall("k");
        let mut records = lock.iter().filter(|(field, _)| *field != "mode");
        assert!(
            records.all(|(_, levels)| levels == "1"),
            "each record counts once: {lock:?}"
        );
        scene.proxy.cut_reply_to(sha("rw_release"));
        let releases: Vec<_> = guards
            .into_iter()
            .map(|guard| tokio::spawn(guard.unlock()))
            .collect();
        for release in releases {
            soon(release).await.unwrap().unwrap();
        }
        assert!(!scene.proxy.cut_reply_armed());
    }
    scene.ends_clean().await;
}

#[tokio::test]
async fn reader_that_leaves_takes_nobody_with_it_whose_request_it_sends() {
    let scene = Scene::open(patient).await;
    // Long enough for the others to gather behind the first.
    scene.proxy.delay(millis(3));
    for round in 0..24 {
        let mut readers: Vec<_> = (0..8).map(|_| reading(&scene.client)).collect();
        // A sweep: the first two senders are dropped at a different point on their way in each round.
        tokio::time::sleep(millis(round)).await;
        for leaving in readers.drain(..2) {
            leaving.abort();
            drop(leaving.await);
        }
        let mut releases = Vec::new();
        for reader in readers {
            let guard = soon(reader).await.unwrap().unwrap();
            guard.verify().await.unwrap();
            releases.push(tokio::spawn(guard.unlock()));
        }
        for leaving in releases.drain(..2) {
            tokio::task::yield_now().await;
            leaving.abort();
            drop(leaving.await);
        }
        for release in releases {
            soon(release).await.unwrap().unwrap();
        }
    }
    scene.proxy.delay(Duration::ZERO);
    scene.ends_clean().await;
}

/// Handles of one lock may differ in who goes first: here three of them in each of two processes, on both sides.
#[tokio::test]
async fn handles_with_different_preferences_exclude_each_other_and_all_get_in() {
    let server = Server::start();
    let clients = [client(&server).await, client(&server).await];
    // The number of readers, or -1 for a writer.
    let inside = Arc::new(AtomicI64::new(0));
    let mut tasks = Vec::new();
    for (client, prefer) in clients
        .iter()
        .flat_map(|it| PREFERENCES.map(|prefer| (it, prefer)))
    {
        for write in [false, true] {
            let lock = somebody(client).prefer(prefer);
            let inside = inside.clone();
            tasks.push(tokio::spawn(async move {
                for _ in 0..20 {
                    let (guard, change) = match write {
                        true => (lock.write().await.unwrap(), -1),
                        false => (lock.read().await.unwrap(), 1),
                    };
                    let before = inside.fetch_add(change, Ordering::SeqCst);
                    assert!(before == 0 || before > 0 && !write, "{before}");
                    tokio::task::yield_now().await;
                    inside.fetch_sub(change, Ordering::SeqCst);
                    guard.unlock().await.unwrap();
                }
            }));
        }
    }
    // If calls here waited for each other until their time was up, this would take a second for each round.
    soon(async {
        for task in tasks {
            task.await.unwrap();
        }
    })
    .await;
    let [one, two] = &clients;
    nothing_left(&server, [one, two]).await;
}
