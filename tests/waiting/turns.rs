//! Processes that wait for a lock take turns: only the first in the turn order is told, by name, that it is its turn.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use crate::support::probe::{
    NEVER, acquiring, channel, eventually_free, eventually_heard, eventually_waiting, millis,
    name_of, nothing_left, passes, reset_calls, scripts_run, secs, soon, stranger,
};
use crate::support::{builder, eventually};
use redlatch::{Client, LockGuard, MultiLock, RedLock};
use redlatch_testkit::{Connection, Proxy, Server, script};
use tokio::task::JoinHandle;
use tokio::time::sleep;

const LINE: &str = "redlatch_turns:{k}";

type Waiter = JoinHandle<Result<LockGuard, redlatch::Error>>;

/// Returns a client that never polls: only a message wakes its waiters.
async fn patient(url: impl AsRef<str>) -> Client {
    let builder = builder(url).watchdog_lease(secs(600)).poll_cap(NEVER / 2);
    builder.build().await.unwrap()
}

fn line(server: &Server) -> Vec<String> {
    let range = &["ZRANGE", LINE, "0", "-1"];
    server.connection().command(range).texts()
}

/// Returns how many connections listen to the lock's own channel, on which Redisson publishes.
fn told_with_all(server: &Server) -> i64 {
    let count = &["PUBSUB", "NUMSUB", &channel("k")];
    server.connection().command(count).array()[1].int()
}

/// Makes this client wait for the lock, last in the turn order.
async fn waits(server: &Server, client: &Client) -> Waiter {
    let waiter = acquiring(&client.lock("k"));
    let stands = || {
        line(server)
            .last()
            .is_some_and(|last| *last == name_of(client))
    };
    eventually("it stands in line", async || stands()).await;
    waiter
}

// fault: S63
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn crowd_of_processes_is_served_in_order_by_three_requests_each() {
    const PROCESSES: usize = 12;
    const ROUNDS: usize = 5;
    let server = Server::start();
    let mut clients = Vec::new();
    for _ in 0..PROCESSES {
        clients.push(patient(server.url()).await);
    }
    let first = clients[0].lock("k").lock().await.unwrap();
    let mut waiting = Vec::new();
    for client in &clients[1..] {
        waiting.push(waits(&server, client).await);
    }
    let mut guard = first;
    let mut last = clients[0].clone();
    let mut probe = server.connection();
    reset_calls(&mut probe);
    for turn in 0..ROUNDS * PROCESSES {
        assert_eq!(line(&server).len(), PROCESSES - 1);
        guard.unlock().await.unwrap();
        let next = waiting.remove(0);
        guard = soon(next).await.unwrap().unwrap();
        waiting.push(waits(&server, &last).await);
        last = clients[(turn + 1) % PROCESSES].clone();
    }
    // Three requests per turn: a release, the request of the next client, and one for a new place. The second client
    // also asks when the turn of the first would end.
    let asked = scripts_run(&mut probe);
    let turns = (ROUNDS * PROCESSES) as u64;
    assert!(asked <= 4 * turns, "{asked} for {turns}");
    for waiter in waiting {
        guard.unlock().await.unwrap();
        guard = soon(waiter).await.unwrap().unwrap();
    }
    guard.unlock().await.unwrap();
    nothing_left(&server, []).await;
}

#[tokio::test]
async fn free_lock_is_left_to_the_first_in_line() {
    let server = Server::start();
    let (proxy, holder) = (
        Proxy::start(server.port()).await,
        patient(server.url()).await,
    );
    let first = patient(proxy.url()).await;
    let guard = holder.lock("k").lock().await.unwrap();
    let waiter = waits(&server, &first).await;
    let mut gate = proxy.stop("EVAL");
    guard.unlock().await.unwrap();
    gate.reached().await;
    // The first was told, and its request is on its way.
    let late = stranger(&holder.lock("k"));
    assert!(late.try_lock().await.unwrap().is_none());
    let set = MultiLock::new(["{k}:a", "k"].map(|name| holder.lock(name)));
    assert!(set.try_lock().await.unwrap().is_none());
    assert!(!server.connection().exists("{k}:a"));
    gate.open();
    passes(waiter).await;
    late.try_lock()
        .await
        .unwrap()
        .unwrap()
        .unlock()
        .await
        .unwrap();
    nothing_left(&server, [&holder, &first]).await;
}

#[tokio::test]
async fn turn_of_one_that_hangs_ends_and_the_next_has_it() {
    let server = Server::start();
    let proxy = Proxy::start(server.port()).await;
    let (holder, next) = (patient(server.url()).await, patient(server.url()).await);
    let hangs = patient(proxy.url()).await;
    let guard = holder.lock("k").lock().await.unwrap();
    let lost = waits(&server, &hangs).await;
    let waiter = waits(&server, &next).await;
    proxy.black_hole(true);
    let freed = Instant::now();
    guard.unlock().await.unwrap();
    let guard = soon(waiter).await.unwrap().unwrap();
    let took = freed.elapsed();
    assert!(took > millis(250), "{took:?}: it was left to the first");
    assert!(took < secs(3), "{took:?}");
    guard.unlock().await.unwrap();
    proxy.black_hole(false);
    passes(lost).await;
    eventually_free(&server, "k").await;
    eventually("the line is gone", async || line(&server).is_empty()).await;
}

#[tokio::test]
async fn one_that_has_died_has_no_turn() {
    let server = Server::start();
    let (holder, next) = (patient(server.url()).await, patient(server.url()).await);
    let guard = holder.lock("k").lock().await.unwrap();
    let mut probe = server.connection();
    for place in ["dead-1", "dead-2"] {
        probe.command(&["ZADD", LINE, "1", place]);
    }
    let waiter = waits(&server, &next).await;
    let freed = Instant::now();
    guard.unlock().await.unwrap();
    passes(waiter).await;
    assert!(freed.elapsed() < millis(250), "{:?}", freed.elapsed());
    nothing_left(&server, [&holder, &next]).await;
}

#[tokio::test]
async fn who_leaves_tells_those_that_move_up() {
    let server = Server::start();
    let holder = patient(server.url()).await;
    let mut clients = Vec::new();
    for _ in 0..4 {
        clients.push(patient(server.url()).await);
    }
    let guard = holder.lock("k").lock().await.unwrap();
    let mut waiting = Vec::new();
    for client in &clients {
        waiting.push(waits(&server, client).await);
    }
    // The second in the turn order leaves, and then the first.
    let gone = |waiter: Waiter| {
        waiter.abort();
        async { assert!(waiter.await.unwrap_err().is_cancelled()) }
    };
    gone(waiting.remove(1)).await;
    eventually("it has left the line", async || line(&server).len() == 3).await;
    gone(waiting.remove(0)).await;
    guard.unlock().await.unwrap();
    for waiter in waiting {
        passes(waiter).await;
    }
    eventually("the line is gone", async || line(&server).is_empty()).await;

    // If a client leaves after it was told, nobody waits for its turn to end.
    let guard = holder.lock("k").lock().await.unwrap();
    let waiter = waits(&server, &clients[0]).await;
    let mut probe = server.connection();
    probe.command(&["ZADD", LINE, "1", "told"]);
    let told = Connection::subscribe(server.port(), &[format!("{}:told", channel("k"))]);
    guard.unlock().await.unwrap();
    let freed = Instant::now();
    let (leave, channel) = (script("turn_leave"), channel("k"));
    probe.command(&["EVAL", leave, "1", "k", &channel, "PUBLISH", "told"]);
    passes(waiter).await;
    assert!(freed.elapsed() < millis(250), "{:?}", freed.elapsed());
    drop(told);
    nothing_left(&server, [&holder]).await;
}

#[tokio::test]
async fn each_in_line_has_its_turn_as_leases_run_out() {
    let server = Server::start();
    let mut holders = Vec::new();
    let mut waiting = Vec::new();
    // Many, since those that happen to ask at the right time need no message.
    for turn in 0..9 {
        let client = patient(server.url()).await;
        // The first hold lasts until all others stand in line.
        let lease = if turn == 0 { 3_000 } else { 300 };
        let lock = client.lock("k").lease(millis(lease));
        holders.push(client.clone());
        if turn == 0 {
            // Nobody releases this hold.
            drop(lock.lock().await.unwrap().detach());
            continue;
        }
        waiting.push(acquiring(&lock));
        let stands = || line(&server).len() == turn;
        eventually("it stands in line", async || stands()).await;
    }
    for waiter in waiting {
        drop(soon(waiter).await.unwrap().unwrap().detach());
    }
    eventually_free(&server, "k").await;
    nothing_left(&server, []).await;
}

#[tokio::test]
async fn lock_is_passed_on_no_further_when_others_are_seen_in_line() {
    const TASKS: usize = 20;
    let server = Server::start();
    let many = builder(server.url())
        .local_handoff_limit(0)
        .build()
        .await
        .unwrap();
    let one = patient(server.url()).await;
    let guard = many.lock("k").lock().await.unwrap();
    let sections = Arc::new(AtomicUsize::new(0));
    let mut tasks = Vec::new();
    for _ in 0..TASKS {
        let (lock, sections) = (stranger(&many.lock("k")), sections.clone());
        tasks.push(tokio::spawn(async move {
            let guard = lock.lock().await.unwrap();
            sections.fetch_add(1, Ordering::SeqCst);
            // Gives the request that asks the server about other waiters time to finish.
            sleep(millis(10)).await;
            guard.unlock().await.unwrap();
        }));
    }
    let waiter = waits(&server, &one).await;
    guard.unlock().await.unwrap();
    let guard = soon(waiter).await.unwrap().unwrap();
    let before = sections.load(Ordering::SeqCst);
    assert!(before <= 3, "{before} sections there went before");
    guard.unlock().await.unwrap();
    for task in tasks {
        soon(task).await.unwrap();
    }
    nothing_left(&server, [&many, &one]).await;
}

#[tokio::test]
async fn votes_of_a_red_lock_heed_nobody_who_waits() {
    let server = Server::start();
    let client = builder(server.url())
        .trust_fresh_servers(true)
        .build()
        .await
        .unwrap();
    let own = format!("{}:other", channel("k"));
    let _others = Connection::subscribe(server.port(), &[channel("k"), own]);
    server.connection().command(&["ZADD", LINE, "1", "other"]);
    let lock = RedLock::new([client.lock("k")]);
    for _ in 0..3 {
        let guard = lock.try_lock().await.unwrap().expect("free");
        guard.unlock().await.unwrap();
    }
}

#[tokio::test]
async fn place_is_the_processs_and_outlives_a_waiter_that_leaves() {
    let server = Server::start();
    let (holder, other) = (patient(server.url()).await, patient(server.url()).await);
    let client = patient(server.url()).await;
    let guard = holder.lock("k").lock().await.unwrap();
    let first = waits(&server, &client).await;
    let second = acquiring(&client.lock("k"));
    let behind = waits(&server, &other).await;
    first.abort();
    assert!(first.await.unwrap_err().is_cancelled());
    eventually_waiting(&client, 1).await;
    assert_eq!(line(&server), [name_of(&client), name_of(&other)]);
    guard.unlock().await.unwrap();
    passes(second).await;
    passes(behind).await;
    nothing_left(&server, [&holder, &other, &client]).await;
}

#[tokio::test]
async fn clients_of_redissons_that_listen_have_their_turn_before_ours() {
    let server = Server::start();
    let (client, other) = (patient(server.url()).await, patient(server.url()).await);
    let java = Connection::subscribe(server.port(), &[channel("k")]);
    let mut probe = server.connection();
    let guard = client.lock("k").lock().await.unwrap();
    let waiter = waits(&server, &other).await;
    guard.unlock().await.unwrap();
    assert_eq!(line(&server).first().map(String::as_str), Some("*"));
    // A Redisson waiter disregards our turn order.
    probe.command(&["HSET", "k", "java:1", "1"]);
    probe.command(&["PEXPIRE", "k", "600000"]);
    eventually("ours listens where Redisson publishes", async || {
        told_with_all(&server) == 2
    })
    .await;
    assert!(!waiter.is_finished());
    probe.command(&["DEL", "k"]);
    probe.command(&["PUBLISH", &channel("k"), "0"]);
    passes(waiter).await;
    drop(java);
    // If no Redisson client comes, their turn is short.
    let java = Connection::subscribe(server.port(), &[channel("k")]);
    for _ in 0..10 {
        let guard = soon(client.lock("k").lock()).await.unwrap();
        guard.unlock().await.unwrap();
    }
    // A call that does not wait acquires a free lock even during that turn.
    let guard = client.lock("k").try_lock().await.unwrap().unwrap();
    guard.unlock().await.unwrap();
    drop(java);
    nothing_left(&server, [&client, &other]).await;
}

#[tokio::test]
async fn line_that_may_not_be_written_is_none_and_everybody_is_told() {
    let server = Server::start();
    let mut admin = server.connection();
    let rules = [
        "ACL", "SETUSER", "plain", "on", ">pw", "~*", "&*", "+@all", "-zadd", "-zrange",
    ];
    admin.command(&rules);
    let url = format!("redis://plain:pw@127.0.0.1:{}", server.port());
    let mut clients = Vec::new();
    for _ in 0..3 {
        clients.push(patient(&url).await);
    }
    let guard = clients[0].lock("k").lock().await.unwrap();
    let waiting = clients[1..].iter().map(|client| {
        let lock = client.lock("k");
        // Without a turn order they may be served in any order, so each releases the lock itself.
        tokio::spawn(async move { lock.lock().await?.unlock().await })
    });
    let waiting: Vec<_> = waiting.collect();
    eventually_heard(&server, "k", 2).await;
    eventually("both listen to the channel of all", async || {
        told_with_all(&server) == 2
    })
    .await;
    guard.unlock().await.unwrap();
    for waiter in waiting {
        soon(waiter).await.unwrap().unwrap();
    }
    nothing_left(&server, [&clients[0], &clients[1], &clients[2]]).await;
}

#[tokio::test]
async fn line_of_another_type_keeps_nobody_out() {
    let server = Server::start();
    let (client, other) = (patient(server.url()).await, patient(server.url()).await);
    let mut probe = server.connection();
    probe.command(&["SET", LINE, "mine"]);
    let guard = soon(client.lock("k").lock()).await.unwrap();
    let waiter = acquiring(&other.lock("k"));
    eventually("it listens to the channel of all", async || {
        told_with_all(&server) == 1
    })
    .await;
    guard.unlock().await.unwrap();
    passes(waiter).await;
    assert_eq!(probe.command(&["GET", LINE]).text(), "mine");
    probe.command(&["DEL", LINE]);
    nothing_left(&server, [&client, &other]).await;
}

// fault: S40
#[tokio::test]
async fn clock_that_was_set_back_makes_nobody_wait_for_what_was_set_back() {
    let server = Server::start();
    let (holder, client) = (patient(server.url()).await, patient(server.url()).await);
    let mut probe = server.connection();
    let guard = holder.lock("k").lock().await.unwrap();
    let waiter = waits(&server, &client).await;
    // As if the first had been told at a time one hour in the future.
    let hour = 3_600_000;
    let time = probe.command(&["TIME"]).texts();
    let told = time[0].parse::<i64>().unwrap() * 1000 + hour - 1_000_000_000_000_000;
    probe.command(&["ZADD", LINE, &told.to_string(), "hangs"]);
    let hangs = Connection::subscribe(server.port(), &[format!("{}:hangs", channel("k"))]);
    // As if the lease of the holder had run out, which no client publishes.
    probe.command(&["DEL", "k"]);
    probe.command(&[
        "PUBLISH",
        &format!("{}:{}", channel("k"), name_of(&client)),
        "0",
    ]);
    passes(waiter).await;
    drop((hangs, guard));
    eventually_free(&server, "k").await;
    nothing_left(&server, [&holder, &client]).await;
}

#[tokio::test]
async fn release_of_a_spin_lock_tells_the_first_in_line() {
    let server = Server::start();
    let (holder, client) = (patient(server.url()).await, patient(server.url()).await);
    let guard = holder.spin_lock("k").lock().await.unwrap();
    let waiter = waits(&server, &client).await;
    guard.unlock().await.unwrap();
    passes(waiter).await;
    let guard = holder.spin_lock("k").lock().await.unwrap();
    let waiter = waits(&server, &client).await;
    assert!(holder.spin_lock("k").force_unlock().await.unwrap());
    passes(waiter).await;
    drop(guard);
    nothing_left(&server, [&holder, &client]).await;
}

#[tokio::test]
async fn name_in_braces_has_a_turn_order_of_its_own() {
    let server = Server::start();
    let (holder, client) = (patient(server.url()).await, patient(server.url()).await);
    let other = patient(server.url()).await;
    let guard = holder.lock("{k}").lock().await.unwrap();
    let waiter = acquiring(&client.lock("{k}"));
    eventually_waiting(&client, 1).await;
    eventually_heard(&server, "k", 1).await;
    for _ in 0..3 {
        let free = soon(other.lock("k").lock()).await.unwrap();
        free.unlock().await.unwrap();
    }
    assert!(line(&server).is_empty(), "nobody waits for the other name");
    guard.unlock().await.unwrap();
    passes(waiter).await;
    nothing_left(&server, [&holder, &client, &other]).await;
}

#[tokio::test]
async fn who_watches_all_channels_is_no_waiter() {
    let server = Server::start();
    let (holder, next) = (patient(server.url()).await, patient(server.url()).await);
    let mut monitor = server.connection();
    monitor.command(&["PSUBSCRIBE", "*"]);
    let guard = holder.lock("k").lock().await.unwrap();
    let mut probe = server.connection();
    for dead in ["dead-1", "dead-2"] {
        probe.command(&["ZADD", LINE, "1", dead]);
    }
    let waiter = waits(&server, &next).await;
    guard.unlock().await.unwrap();
    let ahead = line(&server).into_iter().find(|it| *it != name_of(&next));
    assert_eq!(
        ahead, None,
        "neither the dead nor Redisson's clients have a turn"
    );
    passes(waiter).await;
    nothing_left(&server, [&holder, &next]).await;
}
