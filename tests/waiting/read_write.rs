//! The read-write lock: readers share it, a writer holds it alone, and the preference decides who goes first.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::support::polls::Polls;
use crate::support::probe::{
    begin, calls_of, kind, millis, nothing_left, passes, secs, soon, subscribers,
};
use crate::support::scene::{Scene, patient};
use crate::support::{builder, client, eventually, eventually_idle, sha, start, start_two};
use redlatch::config::Prefer;
use redlatch::{Client, Error, ErrorKind, LockGuard, Owner, ReadWriteLock};
use redlatch_testkit::{Connection, Server};
use tokio::task::JoinHandle;

const CHANNEL: &str = "redisson_rwlock:{k}";
const WRITER_MARK: &str = "redlatch_rwlock_writer:{k}";
const READER_MARK: &str = "redlatch_rwlock_reader:{k}";
const PREFERENCES: [Prefer; 3] = [Prefer::Arrival, Prefer::Writers, Prefer::Readers];

/// Makes handles to the lock `k`.
trait Process {
    fn handle(&self) -> ReadWriteLock;
}

impl Process for Client {
    fn handle(&self) -> ReadWriteLock {
        self.read_write_lock("k")
    }
}

/// A client whose handles have this preference.
struct Preferring(Client, Prefer);

impl Process for Preferring {
    fn handle(&self) -> ReadWriteLock {
        self.0.handle().prefer(self.1)
    }
}

impl Deref for Preferring {
    type Target = Client;

    fn deref(&self) -> &Client {
        &self.0
    }
}

/// Returns the lock for an owner of its own.
fn somebody(process: &impl Process) -> ReadWriteLock {
    process.handle().owned_by(&Owner::unique())
}

/// Builds a client that waits for messages and leases long enough that a test would notice.
async fn preferring(server: &Server, prefer: Prefer) -> Preferring {
    let builder = patient(Client::builder().url(server.url()));
    Preferring(builder.build().await.unwrap(), prefer)
}

/// Builds two of them.
async fn both(server: &Server, prefer: Prefer) -> (Preferring, Preferring) {
    (
        preferring(server, prefer).await,
        preferring(server, prefer).await,
    )
}

fn reading(client: &impl Process) -> JoinHandle<Result<LockGuard, Error>> {
    let lock = somebody(client);
    tokio::spawn(async move { lock.read().await })
}

fn writing(client: &impl Process) -> JoinHandle<Result<LockGuard, Error>> {
    let lock = somebody(client);
    tokio::spawn(async move { lock.write().await })
}

async fn eventually_marked(probe: &mut Connection, mark: &str) {
    eventually("it waits", async || probe.exists(mark)).await;
}

async fn eventually_waiting(client: &Client, calls: usize) {
    let waiting = format!("waiting: {calls},");
    eventually(&waiting, async || format!("{client:?}").contains(&waiting)).await;
}

/// Waits until this many connections listen, so that what is counted by their messages is complete.
async fn eventually_heard(probe: &mut Connection, connections: i64) {
    eventually("waiters listen", async || {
        subscribers(probe, CHANNEL) == connections
    })
    .await;
}

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
