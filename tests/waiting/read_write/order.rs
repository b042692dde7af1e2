//! The order in which readers and writers get in, of one process and of several: neither side starves, and a call that
//! leaves, dies or is not polled keeps nobody waiting for long.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::support::probe::{begin, calls_of, millis, nothing_left, passes, secs, soon};
use crate::support::scene::Scene;
use crate::support::{client, eventually, start, start_two};
use redlatch::config::Prefer;
use redlatch::{Client, ReadWriteLock};
use redlatch_testkit::Server;
use tokio::task::JoinHandle;

use super::{
    Preferring, Process, READER_MARK, WRITER_MARK, both, eventually_heard, eventually_marked,
    eventually_waiting, preferring, reading, somebody, writing,
};

/// Spawns tasks that read again and again, in turns, so that somebody always reads.
fn stream_of_readers(
    client: &impl Process,
    stop: &Arc<AtomicBool>,
    drops: bool,
) -> Vec<JoinHandle<u64>> {
    let reads = |lock: ReadWriteLock, stop: Arc<AtomicBool>| async move {
        let mut reads = 0;
        while !stop.load(Ordering::Relaxed) {
            let guard = lock.read().await.unwrap();
            tokio::time::sleep(millis(3)).await;
            match drops {
                true => drop(guard),
                false => guard.unlock().await.unwrap(),
            }
            reads += 1;
        }
        reads
    };
    let task = |_| tokio::spawn(reads(somebody(client), stop.clone()));
    (0..4).map(task).collect()
}

// fault: S70
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writer_is_not_starved_by_readers_of_two_processes() {
    let server = Server::start();
    for (prefer, drops) in [
        (Prefer::Arrival, false),
        (Prefer::Arrival, true),
        (Prefer::Writers, false),
    ] {
        let (one, two) = both(&server, prefer).await;
        let stop = Arc::new(AtomicBool::new(false));
        let mut readers = stream_of_readers(&one, &stop, drops);
        readers.extend(stream_of_readers(&two, &stop, drops));
        let mut probe = server.connection();
        eventually("they read", async || probe.exists("k")).await;
        for _ in 0..20 {
            let started = Instant::now();
            let guard = soon(somebody(&one).write()).await.unwrap();
            let took = started.elapsed();
            assert!(took < secs(1), "{prefer:?}: waited {took:?}");
            guard.unlock().await.unwrap();
        }
        stop.store(true, Ordering::Relaxed);
        for reader in readers {
            assert!(soon(reader).await.unwrap() > 0, "readers get in too");
        }
        nothing_left(&server, [&one, &two]).await;
        one.close().await;
        two.close().await;
    }
}

// fault: S70
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reader_is_not_starved_by_writers_that_come_in_turns() {
    let server = Server::start();
    let (one, two) = both(&server, Prefer::Arrival).await;
    let stop = Arc::new(AtomicBool::new(false));
    let writers: Vec<_> = [&one, &one, &two, &two]
        .map(|client| {
            let (lock, stop) = (somebody(client), stop.clone());
            tokio::spawn(async move {
                while !stop.load(Ordering::Relaxed) {
                    let guard = lock.write().await.unwrap();
                    tokio::time::sleep(millis(2)).await;
                    guard.unlock().await.unwrap();
                }
            })
        })
        .into();
    for _ in 0..20 {
        let guard = soon(somebody(&one).read()).await.unwrap();
        guard.unlock().await.unwrap();
    }
    stop.store(true, Ordering::Relaxed);
    for writer in writers {
        soon(writer).await.unwrap();
    }
    nothing_left(&server, [&one, &two]).await;
}

#[tokio::test]
async fn writer_that_gives_up_lets_readers_in_at_once() {
    let server = Server::start();
    let (client, other) = both(&server, Prefer::Arrival).await;
    let mut probe = server.connection();
    let read = somebody(&client).read().await.unwrap();
    for (end, of_another_process) in [
        ("limit", true),
        ("drop", true),
        ("limit", false),
        ("drop", false),
    ] {
        let lock = somebody(&client);
        let writer = tokio::spawn(async move {
            let wait = if end == "limit" {
                millis(300)
            } else {
                secs(60)
            };
            lock.try_write_for(wait).await
        });
        eventually_marked(&mut probe, WRITER_MARK).await;
        let reader = match of_another_process {
            true => reading(&other),
            false => reading(&client),
        };
        match of_another_process {
            true => eventually_marked(&mut probe, READER_MARK).await,
            false => eventually_waiting(&client, 2).await,
        }
        assert!(!reader.is_finished());
        if end == "drop" {
            writer.abort();
        } else {
            assert!(soon(writer).await.unwrap().unwrap().is_none());
        }
        let gave_up = Instant::now();
        let guard = soon(reader).await.unwrap().unwrap();
        assert!(
            gave_up.elapsed() < millis(500),
            "before its mark lapses: {:?}",
            gave_up.elapsed()
        );
        guard.unlock().await.unwrap();
        eventually("no mark is left", async || {
            !probe.exists(WRITER_MARK) && !probe.exists(READER_MARK)
        })
        .await;
    }
    read.unlock().await.unwrap();
    nothing_left(&server, [&client, &other]).await;
}

/// Starts each call under an owner of its own, `true` for a writer. Returns the order in which they were let in.
async fn order_of(client: &Client, calls: &[(&'static str, bool)]) -> Vec<&'static str> {
    let (told, mut order) = tokio::sync::mpsc::unbounded_channel();
    let outside = somebody(client).write().await.unwrap();
    for (at, &(call, writes)) in calls.iter().enumerate() {
        let (lock, told) = (somebody(client), told.clone());
        tokio::spawn(async move {
            let guard = match writes {
                true => lock.write().await.unwrap(),
                false => lock.read().await.unwrap(),
            };
            told.send(call).unwrap();
            guard.unlock().await.unwrap();
        });
        eventually_waiting(client, at + 1).await;
    }
    outside.unlock().await.unwrap();
    let mut came = Vec::new();
    while came.len() < calls.len() {
        came.push(soon(order.recv()).await.unwrap());
    }
    came
}

#[tokio::test]
async fn within_a_process_too_whoever_came_first_goes_first() {
    let server = Server::start();
    let client = preferring(&server, Prefer::Arrival).await;
    let calls = [
        ("one", false),
        ("two", false),
        ("three", true),
        ("four", false),
        ("five", false),
        ("six", true),
        ("seven", true),
        ("eight", false),
    ];
    let mut in_time = 0;
    for _ in 0..20 {
        let began = Instant::now();
        let order = order_of(&client, &calls).await;
        // A call keeps behind those of the other side for a second at most: a busy machine may take longer.
        if began.elapsed() >= Duration::from_secs(1) {
            continue;
        }
        in_time += 1;
        let at = |call| order.iter().position(|came| *came == call).unwrap();
        for (n, &(later, late_writes)) in calls.iter().enumerate() {
            for &(call, writes) in &calls[..n] {
                let apart = writes || late_writes;
                assert!(!apart || at(call) < at(later), "{order:?}");
            }
        }
    }
    assert!(in_time > 0, "no round took less than a second");
    nothing_left(&server, [&client]).await;
}

#[tokio::test]
async fn writer_goes_behind_a_reader_of_its_process_whose_request_took_long() {
    let server = Server::start();
    let (here, there) = both(&server, Prefer::Arrival).await;
    let mut probe = server.connection();
    let outside = somebody(&there).write().await.unwrap();
    server.freeze();
    let reader = reading(&here);
    eventually_waiting(&here, 1).await;
    let writer = writing(&here);
    eventually_waiting(&here, 2).await;
    // Long enough that the writer would send its request by now if the reader were not there.
    tokio::time::sleep(millis(100)).await;
    server.thaw();
    eventually_marked(&mut probe, READER_MARK).await;
    eventually_marked(&mut probe, WRITER_MARK).await;
    outside.unlock().await.unwrap();
    let read = soon(reader).await.unwrap().unwrap();
    assert!(!writer.is_finished());
    read.unlock().await.unwrap();
    passes(writer).await;
    nothing_left(&server, [&here, &there]).await;
}

#[tokio::test]
async fn readers_that_wait_behind_a_writer_of_their_process_cost_the_server_little() {
    let (server, client) = start().await;
    let mut probe = server.connection();
    let first = somebody(&client).write().await.unwrap();
    let second = writing(&client);
    eventually_marked(&mut probe, WRITER_MARK).await;
    probe.command(&["CONFIG", "RESETSTAT"]);
    // They start one after the other, behind the second writer.
    let mut readers = Vec::new();
    for at in 0..30 {
        readers.push(reading(&client));
        eventually_waiting(&client, at + 2).await;
    }
    let sent = calls_of(&mut probe, "evalsha");
    assert!(sent <= 15, "{sent} scripts while 30 readers wait");
    first.unlock().await.unwrap();
    passes(second).await;
    for reader in readers {
        passes(reader).await;
    }
    nothing_left(&server, [&client]).await;
}

/// Futures that were polled and then no longer are, as in a branch of `select!` whose other branch takes its time.
#[tokio::test]
async fn calls_that_nobody_polls_keep_nobody_waiting_for_long() {
    let server = Server::start();
    let (client, other) = both(&server, Prefer::Arrival).await;
    let mut probe = server.connection();
    let (one, two) = (somebody(&client), somebody(&client));
    let outside = somebody(&client).read().await.unwrap();
    let mut writer = begin(one.write());
    assert!(
        tokio::time::timeout(millis(100), &mut writer)
            .await
            .is_err()
    );
    passes(reading(&client)).await;
    eventually("its mark lapses", async || !probe.exists(WRITER_MARK)).await;
    let read = somebody(&client).try_read_for(millis(200)).await.unwrap();
    read.expect("nobody is in the way").unlock().await.unwrap();
    drop(writer);
    outside.unlock().await.unwrap();

    // A reader that was refused, one that has sent its request and not read the answer, and one that waits behind a
    // writer of its process.
    for (polled, behind) in [(true, false), (false, false), (false, true)] {
        let outside = somebody(&other).write().await.unwrap();
        let first = behind.then(|| writing(&client));
        eventually_waiting(&client, usize::from(behind)).await;
        let mut reader = begin(two.read());
        if polled {
            assert!(
                tokio::time::timeout(millis(100), &mut reader)
                    .await
                    .is_err()
            );
        }
        let last = writing(&client);
        eventually_waiting(&client, 2 + usize::from(behind)).await;
        outside.unlock().await.unwrap();
        for writer in first.into_iter().chain([last]) {
            passes(writer).await;
        }
        drop(reader);
    }
    nothing_left(&server, [&client, &other]).await;
}

#[tokio::test]
async fn mark_of_a_writer_stands_while_it_waits_and_dies_with_its_process() {
    let server = Server::start();
    let (one, two) = both(&server, Prefer::Arrival).await;
    let mut probe = server.connection();
    let read = somebody(&one).read().await.unwrap();
    let writer = writing(&two);
    eventually_marked(&mut probe, WRITER_MARK).await;
    let end = Instant::now() + millis(2_500);
    while Instant::now() < end {
        assert!(probe.exists(WRITER_MARK), "as long as it waits");
        tokio::time::sleep(millis(5)).await;
    }
    assert!(somebody(&one).try_read().await.unwrap().is_none());
    // As if the writer's process had died: nobody renews the mark and nobody removes it.
    let mark = probe.command(&["GET", WRITER_MARK]).text();
    writer.abort();
    two.close().await;
    probe.command(&["SET", WRITER_MARK, &mark, "PX", "700"]);
    let guard = soon(somebody(&one).read()).await.unwrap();
    guard.unlock().await.unwrap();
    read.unlock().await.unwrap();
    nothing_left(&server, [&one]).await;
}

/// The writers of one process have a single order. If one were first in the local queue and another first at a gate,
/// both would wait until the gate's bound ends.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn writers_of_a_process_stand_in_one_order_in_line_and_at_the_gate() {
    const BOUND: Duration = Duration::from_secs(1);
    let server = Server::start();
    let client = preferring(&server, Prefer::Arrival).await;
    let writers = (0..16).map(|_| {
        let lock = somebody(&client);
        tokio::spawn(async move {
            let mut longest = Duration::ZERO;
            for _ in 0..500 {
                let asked = Instant::now();
                let guard = lock.write().await.unwrap();
                longest = longest.max(asked.elapsed());
                guard.unlock().await.unwrap();
            }
            longest
        })
    });
    for writer in writers.collect::<Vec<_>>() {
        let longest = writer.await.unwrap();
        assert!(longest < BOUND, "{longest:?}");
    }
    nothing_left(&server, [&client]).await;
}

#[tokio::test]
async fn readers_wait_beside_each_other_and_not_in_line() {
    let server = Server::start();
    let client = preferring(&server, Prefer::Arrival).await;
    let mut probe = server.connection();
    let write = somebody(&client).write().await.unwrap();
    let locks: Vec<_> = (0..8).map(|_| somebody(&client)).collect();
    let mut first = begin(locks[0].read());
    let rest: Vec<_> = (1..8).map(|_| reading(&client)).collect();
    eventually_heard(&mut probe, 1).await;
    write.unlock().await.unwrap();
    // The first in the local queue is not polled, and keeps nobody waiting.
    let mut guards = Vec::new();
    for reader in rest {
        guards.push(soon(reader).await.unwrap().unwrap());
    }
    guards.push(soon(&mut first).await.unwrap());
    for guard in guards {
        guard.unlock().await.unwrap();
    }
    drop(first);
    nothing_left(&server, [&client]).await;
}

#[tokio::test]
async fn reader_that_nobody_polls_leaves_the_others_time_for_a_request_of_their_own() {
    let scene = Scene::open(|builder| builder.command_timeout(secs(1))).await;
    let lock = somebody(&scene.client);
    scene.proxy.delay(millis(30));
    let mut first = begin(lock.read());
    passes(reading(&scene.client)).await;
    let first = soon(&mut first).await.unwrap();
    first.unlock().await.unwrap();
    nothing_left(&scene.server, [&scene.client]).await;
}

/// As documented, also for a reader that stands behind a writer of its own process.
#[tokio::test]
async fn reader_behind_a_writer_of_its_process_waits_a_second_for_javas_readers() {
    let (server, client) = start().await;
    let mut java = server.connection();
    java.command(&["HSET", "k", "mode", "read", "java:1", "1"]);
    java.command(&["PEXPIRE", "k", "60000"]);
    java.command(&["SET", "{k}:java:1:rwlock_timeout:1", "1", "PX", "60000"]);
    let writer = writing(&client);
    eventually_marked(&mut java, WRITER_MARK).await;
    let reader = soon(somebody(&client).read()).await.unwrap();
    reader.unlock().await.unwrap();
    writer.abort();
}

#[tokio::test]
async fn writer_waits_a_second_for_all_readers_that_nobody_polls() {
    let (_server, here, there) = start_two().await;
    let guard = there.read_write_lock("k").write().await.unwrap();
    let unpolled: Vec<_> = (0..10)
        .map(|_| {
            let reader = somebody(&here);
            begin(async move { reader.read().await })
        })
        .collect();
    let writer = writing(&here);
    eventually_waiting(&here, 11).await;
    guard.unlock().await.unwrap();
    soon(writer).await.unwrap().unwrap().unlock().await.unwrap();
    drop(unpolled);
}

/// The reader waits although it could join the record that its process reads by, in memory.
#[tokio::test]
async fn reader_of_a_process_lets_its_writers_go_first() {
    for prefer in [Prefer::Writers, Prefer::Arrival] {
        let server = Server::start();
        let client = Preferring(client(&server).await, prefer);
        let reading = somebody(&client).read().await.unwrap();
        let writer = writing(&client);
        eventually_marked(&mut server.connection(), WRITER_MARK).await;
        let reader = somebody(&client);
        let reader = tokio::spawn(async move { reader.read().await });
        eventually_waiting(&client, 2).await;
        reading.unlock().await.unwrap();
        let written = soon(writer).await.unwrap().unwrap();
        assert!(!reader.is_finished());
        written.unlock().await.unwrap();
        soon(reader).await.unwrap().unwrap().unlock().await.unwrap();
    }
}
