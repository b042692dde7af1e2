//! The fair lock: the order in which waiters get it, and the delay that a waiter that dies, leaves or sleeps causes for
//! the others.

use std::env;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use crate::support::probe::{
    begin, calls, calls_of, millis, name_of, nothing_left, reset_calls, secs, soon, stranger,
};
use crate::support::{builder, client, eventually, sha, start, start_two};
use redlatch::{Client, FairLock, LockGuard, Owner};
use redlatch_testkit::{Connection, Proxy, Server};
use tokio::task::JoinHandle;

const QUEUE: &str = "redisson_lock_queue:{k}";
const SCORES: &str = "redisson_lock_timeout:{k}";
const PLACES: &str = "redlatch_lock_places:{k}";
const SIGNS: &str = "redlatch_lock_sign:{k}:";

/// The environment variable that makes this program a worker. Its value is the server's port and, for each waiter, its
/// number of sections and its priority.
const PART: &str = "REDLATCH_TEST_FAIR";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a process of its own, started by the other tests here"]
async fn worker() {
    let part = env::var(PART).expect("started by a test");
    let mut words = part.split(' ');
    let url = format!("redis://127.0.0.1:{}", words.next().unwrap());
    let client = Client::connect(url).await.unwrap();
    let waiters = words.map(|waiter| {
        let (sections, priority) = waiter.split_once('@').unwrap();
        let sections: u32 = sections.parse().unwrap();
        let lock = client.fair_lock("k").priority(priority.parse().unwrap());
        tokio::spawn(async move {
            for _ in 0..sections {
                lock.lock().await.unwrap().unlock().await.unwrap();
            }
        })
    });
    for waiter in waiters.collect::<Vec<_>>() {
        waiter.await.unwrap();
    }
    client.close().await;
}

/// A process with waiters, killed on drop.
struct Worker(Child);

impl Worker {
    /// Starts a process with one waiter for each pair of a number of sections and a priority.
    fn start(server: &Server, waiters: &[(u32, i32)]) -> Self {
        let mut part = server.port().to_string();
        for (sections, priority) in waiters {
            part += &format!(" {sections}@{priority}");
        }
        let child = Command::new(env::current_exe().unwrap())
            .args(["fair::worker", "--exact", "--ignored"])
            .env(PART, part)
            .stdout(Stdio::null())
            .spawn();
        Self(child.unwrap())
    }

    fn ends(mut self) {
        assert!(self.0.wait().unwrap().success());
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

/// The stream of all commands that a server runs, in order.
struct Monitor(BufReader<TcpStream>);

impl Monitor {
    fn start(server: &Server) -> Self {
        let mut stream = TcpStream::connect(("127.0.0.1", server.port())).unwrap();
        stream.set_read_timeout(Some(secs(30))).unwrap();
        stream.write_all(b"MONITOR\r\n").unwrap();
        let mut monitor = Self(BufReader::new(stream));
        assert_eq!(monitor.line(), "+OK");
        monitor
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.0.read_line(&mut line).expect("a line in time");
        line.trim_end().to_owned()
    }

    /// Returns the words of the commands that scripts have run, up to a word that the test itself has sent.
    fn until(mut self, end: &str) -> Vec<Vec<String>> {
        let mut commands = Vec::new();
        loop {
            let line = self.line();
            if line.contains(end) {
                return commands;
            }
            if line.contains(" lua] ") {
                let words = line.split('"').skip(1).step_by(2);
                commands.push(words.map(str::to_owned).collect());
            }
        }
    }
}

/// Returns the grants that went to one owner although it was the turn of another, according to the commands that the
/// server ran, and the number of grants while owners were waiting.
fn inversions(commands: &[Vec<String>]) -> (Vec<String>, usize) {
    // The owner field and the priority of each waiter, in order of arrival.
    let mut waiting: Vec<(String, i32)> = Vec::new();
    let (mut wrong, mut grants) = (Vec::new(), 0);
    for command in commands {
        let words: Vec<&str> = command.iter().map(String::as_str).collect();
        match words[..] {
            ["RPUSH" | "LPUSH", QUEUE, field] | ["LINSERT", QUEUE, _, _, field] => {
                waiting.push((field.to_owned(), 0));
            }
            ["HSET", PLACES, field, line] => {
                let priority = line.split(' ').nth(3).unwrap().parse().unwrap();
                let entry = waiting.iter_mut().find(|(waiter, _)| waiter == field);
                entry.expect("a place has an entry").1 = priority;
            }
            ["HSET", "k", field, "1", ..] => {
                // The earliest waiter with the highest priority. Reversed, since `max_by_key` returns the last of equal
                // elements.
                let next = waiting.iter().rev().max_by_key(|(_, priority)| *priority);
                if let Some((expected, _)) = next {
                    grants += 1;
                    if expected != field {
                        wrong.push(format!("{field} before {expected}: {waiting:?}"));
                    }
                }
                waiting.retain(|(waiter, _)| waiter != field);
            }
            _ => {}
        }
    }
    (wrong, grants)
}

/// Spawns a task that waits for the lock for an owner of its own, and returns once that owner has its place.
async fn waiting(server: &Server, lock: &FairLock) -> JoinHandle<LockGuard> {
    let before = queue(&mut server.connection());
    let lock = stranger(lock);
    let waiter = tokio::spawn(async move { lock.lock().await.unwrap() });
    queued(server, before + 1).await;
    waiter
}

fn queue(probe: &mut Connection) -> i64 {
    probe.command(&["LLEN", QUEUE]).int()
}

async fn queued(server: &Server, waiters: i64) {
    let mut probe = server.connection();
    eventually("the waiters have their places", async || {
        queue(&mut probe) == waiters
    })
    .await;
}

#[test]
fn processes_are_served_in_the_order_in_which_the_server_saw_them() {
    let server = Server::start();
    let monitor = Monitor::start(&server);
    let workers: Vec<_> = (0..5)
        .map(|_| Worker::start(&server, &[(30, 0); 4]))
        .collect();
    workers.into_iter().for_each(Worker::ends);
    server.connection().command(&["ECHO", "all-have-ended"]);
    let (wrong, grants) = inversions(&monitor.until("all-have-ended"));
    assert_eq!(wrong, Vec::<String>::new());
    assert!(grants >= 500, "{grants} of 600 grants were waited for");
    // A process that has ended leaves nothing but its last sign of life, for as long as that counts.
    let mut probe = server.connection();
    for key in probe.keys() {
        assert!(key.starts_with(SIGNS), "{key}");
        assert!(probe.pttl(&key) <= 3_000);
    }
}

#[test]
fn higher_priorities_of_all_processes_are_served_first() {
    let server = Server::start();
    let monitor = Monitor::start(&server);
    let waiters: Vec<_> = [0, 5, -5].into_iter().flat_map(|p| [(20, p); 4]).collect();
    let workers: Vec<_> = waiters
        .chunks(6)
        .map(|waiters| Worker::start(&server, waiters))
        .collect();
    workers.into_iter().for_each(Worker::ends);
    server.connection().command(&["ECHO", "all-have-ended"]);
    let (wrong, grants) = inversions(&monitor.until("all-have-ended"));
    assert_eq!(wrong, Vec::<String>::new());
    assert!(grants > 150, "{grants} of 240 grants were waited for");
}

// fault: S69
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_waiter_at_the_front_costs_seconds() {
    let (server, client) = start().await;
    let lock = client.fair_lock("k");
    let held = lock.lock().await.unwrap();
    let mut first = Worker::start(&server, &[(1, 0)]);
    queued(&server, 1).await;
    let next = waiting(&server, &lock).await;

    first.0.kill().unwrap();
    let killed = Instant::now();
    held.unlock().await.unwrap();
    let guard = soon(next).await.unwrap();
    assert!(killed.elapsed() < secs(5), "{:?}", killed.elapsed());
    guard.unlock().await.unwrap();
    nothing_left(&server, [&client]).await;
}

/// Simulates a server clock that was set back by one hour: moves the dates that it gave to places ahead by as much.
// fault: S40
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clock_set_back_does_not_keep_a_dead_waiter_at_the_front() {
    let (server, client) = start().await;
    let lock = client.fair_lock("k");
    let held = lock.lock().await.unwrap();
    let mut first = Worker::start(&server, &[(1, 0)]);
    queued(&server, 1).await;
    first.0.kill().unwrap();
    first.0.wait().unwrap();
    let mut probe = server.connection();
    for (field, line) in probe.hgetall(PLACES) {
        let mut words: Vec<_> = line.trim_end().split(' ').map(str::to_owned).collect();
        words[2] = (words[2].parse::<u64>().unwrap() + 3_600_000).to_string();
        probe.command(&["HSET", PLACES, &field, &(words.join(" ") + "\n")]);
        probe.command(&["ZINCRBY", SCORES, "3600000", &field]);
    }
    let next = waiting(&server, &lock).await;
    let released = Instant::now();
    held.unlock().await.unwrap();
    let guard = soon(next).await.unwrap();
    assert!(released.elapsed() < secs(5), "{:?}", released.elapsed());
    guard.unlock().await.unwrap();
    nothing_left(&server, [&client]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn release_to_a_waiter_of_this_process_sends_no_message() {
    let (server, client) = start().await;
    let lock = client.fair_lock("k");
    let mut probe = server.connection();
    let mut held = stranger(&lock).lock().await.unwrap();
    let mut waiters = Vec::new();
    for _ in 0..20 {
        waiters.push(waiting(&server, &lock).await);
    }
    reset_calls(&mut probe);
    let started = Instant::now();
    for waiter in waiters {
        held.unlock().await.unwrap();
        held = soon(waiter).await.unwrap();
    }
    // Otherwise each waiter would learn of the release when it asks again, after half a second on average.
    let took = started.elapsed();
    assert!(took < secs(3), "{took:?}");
    let calls = calls(&mut probe);
    assert!(!calls.contains_key("publish"), "{calls:?}");
    held.unlock().await.unwrap();
    nothing_left(&server, [&client]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn release_wakes_the_first_in_another_process() {
    let (server, one, two) = start_two().await;
    let held = one.fair_lock("k").lock().await.unwrap();
    let first = waiting(&server, &two.fair_lock("k")).await;
    let mut probe = server.connection();
    eventually("it listens", async || probe.channels().len() == 1).await;
    let mut fastest = secs(10);
    let mut held = Some(held);
    let mut first = Some(first);
    for _ in 0..5 {
        let released = Instant::now();
        held.take().unwrap().unlock().await.unwrap();
        held = Some(soon(first.take().unwrap()).await.unwrap());
        fastest = fastest.min(released.elapsed());
        first = Some(waiting(&server, &one.fair_lock("k")).await);
        held.take().unwrap().unlock().await.unwrap();
        held = Some(soon(first.take().unwrap()).await.unwrap());
        first = Some(waiting(&server, &two.fair_lock("k")).await);
    }
    // Without the message, the waiter would learn of the release when it asks again, after about a second.
    assert!(fastest < millis(300), "{fastest:?}");
    held.take().unwrap().unlock().await.unwrap();
    soon(first.take().unwrap())
        .await
        .unwrap()
        .unlock()
        .await
        .unwrap();
    nothing_left(&server, [&one, &two]).await;
}

// fault: S55
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_gives_up_harms_nobodys_place() {
    let (server, client) = start().await;
    let lock = client.fair_lock("k");
    let held = lock.lock().await.unwrap();
    let first = waiting(&server, &lock).await;
    let dropped = waiting(&server, &lock).await;
    let late = stranger(&lock);
    let late = tokio::spawn(async move { late.try_lock_for(secs(1)).await.unwrap() });
    queued(&server, 3).await;
    let last = waiting(&server, &lock).await;

    dropped.abort();
    assert!(soon(late).await.unwrap().is_none());
    queued(&server, 2).await;
    held.unlock().await.unwrap();
    let guard = soon(first).await.unwrap();
    assert!(!last.is_finished());
    guard.unlock().await.unwrap();
    soon(last).await.unwrap().unlock().await.unwrap();
    nothing_left(&server, [&client]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiter_that_is_granted_while_it_leaves_gives_the_lock_back() {
    let (server, client) = start().await;
    let lock = client.fair_lock("k");
    for _ in 0..50 {
        let held = stranger(&lock).lock().await.unwrap();
        let leaving = waiting(&server, &lock).await;
        let next = waiting(&server, &lock).await;
        let unlock = tokio::spawn(held.unlock());
        leaving.abort();
        unlock.await.unwrap().unwrap();
        drop(leaving.await);
        soon(next).await.unwrap().unlock().await.unwrap();
    }
    nothing_left(&server, [&client]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiter_that_nobody_polls_holds_nobody_up() {
    let (server, one, two) = start_two().await;
    // The lock is moved to the sleeping waiter by the release, or by the waiter's process once that is told.
    for holder in [&one, &two] {
        let lock = one.fair_lock("k");
        let held = stranger(&holder.fair_lock("k")).lock().await.unwrap();
        let asleep = stranger(&lock);
        let mut asleep = begin(asleep.lock());
        queued(&server, 1).await;
        let next = waiting(&server, &lock).await;
        held.unlock().await.unwrap();
        soon(next).await.unwrap().unlock().await.unwrap();
        // The sleeping waiter queues again when it is polled.
        let guard = soon(asleep.as_mut()).await.unwrap();
        assert!(!guard.is_lost());
        guard.unlock().await.unwrap();
    }
    nothing_left(&server, [&one, &two]).await;
}

/// Spawns this many tasks that wait for the lock and release it at once, and returns when all of them have a place.
async fn crowd(server: &Server, lock: &FairLock, waiters: i64) -> Vec<JoinHandle<()>> {
    let before = queue(&mut server.connection());
    let pass = |lock: FairLock| async move { lock.lock().await.unwrap().unlock().await.unwrap() };
    let crowd: Vec<_> = (0..waiters)
        .map(|_| tokio::spawn(pass(stranger(lock))))
        .collect();
    queued(server, before + waiters).await;
    crowd
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_of_one_process_cost_one_request_a_second_and_one_channel() {
    let (server, one, two) = start_two().await;
    let held = two.fair_lock("k").lock().await.unwrap();
    let crowd = crowd(&server, &one.fair_lock("k"), 100).await;
    let mut probe = server.connection();
    eventually("it listens", async || probe.channels().len() == 1).await;
    reset_calls(&mut probe);
    // Longer than a place lasts without a sign of life.
    tokio::time::sleep(millis(4_500)).await;
    let asked = calls_of(&mut probe, "evalsha");
    assert!((3..=8).contains(&asked), "{asked} requests");
    assert_eq!(probe.channels().len(), 1);
    let last = waiting(&server, &two.fair_lock("k")).await;
    queued(&server, 101).await;
    held.unlock().await.unwrap();
    for waiter in crowd {
        soon(waiter).await.unwrap();
    }
    soon(last).await.unwrap().unlock().await.unwrap();
    nothing_left(&server, [&one, &two]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crowd_whose_places_a_server_has_lost_queues_again_within_seconds() {
    let (server, one, two) = start_two().await;
    let lock = two.fair_lock("k").lease(secs(60));
    let held = lock.lock().await.unwrap();
    let crowd = crowd(&server, &one.fair_lock("k"), 800).await;
    let mut probe = server.connection();
    let signs = format!("{SIGNS}{}", name_of(&one));
    eventually("it has given a sign", async || probe.exists(&signs)).await;
    // The holder's record stays, as after a failover that lost only the last writes.
    probe.command(&["DEL", QUEUE, SCORES, PLACES, &signs]);
    let lost = Instant::now();
    queued(&server, 800).await;
    assert!(lost.elapsed() < secs(4), "{:?}", lost.elapsed());
    held.unlock().await.unwrap();
    for waiter in crowd {
        soon(waiter).await.unwrap();
    }
    nothing_left(&server, [&one, &two]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sign_that_takes_the_lock_unheard_reaches_its_waiter_all_the_same() {
    let server = Server::start();
    let proxy = Proxy::start(server.port()).await;
    let behind = builder(proxy.url()).build().await.unwrap();
    let other = client(&server).await;
    let held = other.fair_lock("k").lock().await.unwrap();
    let first = waiting(&server, &behind.fair_lock("k")).await;
    let mut probe = server.connection();
    let signs = format!("{SIGNS}{}", name_of(&behind));
    eventually("it has given a sign", async || probe.exists(&signs)).await;
    proxy.cut_reply_to(sha("fair_sign"));
    held.unlock().await.unwrap();
    let guard = soon(first).await.unwrap();
    assert!(!proxy.cut_reply_armed());
    guard.verify().await.unwrap();
    guard.unlock().await.unwrap();
    nothing_left(&server, [&behind, &other]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn named_owner_that_waits_in_two_processes_has_the_lock_in_both() {
    let (server, one, two) = start_two().await;
    let held = one.fair_lock("k").lock().await.unwrap();
    let owner = Owner::named("request 7");
    let waiters = [&one, &two].map(|client| {
        let lock = client.fair_lock("k").owned_by(&owner);
        tokio::spawn(async move { lock.lock().await.unwrap() })
    });
    let mut probe = server.connection();
    let signs = [&one, &two].map(|client| format!("{SIGNS}{}", name_of(client)));
    for sign in signs {
        eventually("both wait", async || probe.exists(&sign)).await;
    }
    assert_eq!(queue(&mut probe), 1);
    held.unlock().await.unwrap();
    let mut guards = Vec::new();
    for waiter in waiters {
        guards.push(soon(waiter).await.unwrap());
    }
    for guard in guards {
        guard.unlock().await.unwrap();
    }
    nothing_left(&server, [&one, &two]).await;
}

/// Redisson's clients tell an owner, and know nothing of processes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn release_by_redisson_wakes_the_first() {
    const JAVA: &str = "00000000-0000-4000-8000-00000000000a:57";
    let (server, client) = start().await;
    let lock = client.fair_lock("k");
    let mut probe = server.connection();
    let mut fastest = secs(10);
    for _ in 0..4 {
        probe.command(&["HSET", "k", JAVA, "1"]);
        probe.command(&["PEXPIRE", "k", "30000"]);
        let first = waiting(&server, &lock).await;
        let field = probe.command(&["LINDEX", QUEUE, "0"]).text();
        let told = format!("redisson_lock__channel:{{k}}:{field}");
        eventually("it listens", async || probe.channels().contains(&told)).await;
        probe.command(&["DEL", "k"]);
        let released = Instant::now();
        probe.command(&["PUBLISH", &told, "0"]);
        let guard = soon(first).await.unwrap();
        fastest = fastest.min(released.elapsed());
        guard.unlock().await.unwrap();
    }
    // Without the message, the waiter would get the lock by the next sign of life, after half a second on average.
    assert!(fastest < millis(100), "{fastest:?}");
    nothing_left(&server, [&client]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn holder_that_dies_is_followed_by_the_first_when_its_lease_ends() {
    let server = Server::start();
    let proxy = Proxy::start(server.port()).await;
    let (dying, client) = (
        builder(proxy.url()).build().await.unwrap(),
        client(&server).await,
    );
    let held = dying.fair_lock("k").lease(secs(2)).lock().await.unwrap();
    proxy.black_hole(true);
    let started = Instant::now();
    let first = waiting(&server, &client.fair_lock("k")).await;
    let second = waiting(&server, &client.fair_lock("k")).await;
    let guard = soon(first).await.unwrap();
    let took = started.elapsed();
    assert!(took > secs(1) && took < millis(2_500), "{took:?}");
    assert!(!second.is_finished());
    guard.unlock().await.unwrap();
    soon(second).await.unwrap().unlock().await.unwrap();
    drop(held);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn grant_whose_answer_is_lost_reaches_its_waiter_all_the_same() {
    let server = Server::start();
    let proxy = Proxy::start(server.port()).await;
    let client = builder(proxy.url()).build().await.unwrap();
    let lock = client.fair_lock("k");
    // From here on, the server knows the scripts.
    lock.lock().await.unwrap().unlock().await.unwrap();
    let held = lock.lock().await.unwrap();
    let first = waiting(&server, &lock).await;
    proxy.cut_reply_to(sha("fair_release"));
    held.unlock().await.unwrap();
    assert!(!proxy.cut_reply_armed());
    let guard = soon(first).await.unwrap();
    guard.verify().await.unwrap();
    guard.unlock().await.unwrap();
    nothing_left(&server, [&client]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn place_that_was_taken_away_is_entered_again() {
    let (server, client) = start().await;
    let lock = client.fair_lock("k");
    let held = lock.lock().await.unwrap();
    let waiter = waiting(&server, &lock).await;
    let mut probe = server.connection();
    let field = probe.command(&["LPOP", QUEUE]).text();
    probe.command(&["ZREM", SCORES, &field]);
    queued(&server, 1).await;
    held.unlock().await.unwrap();
    soon(waiter).await.unwrap().unlock().await.unwrap();
    nothing_left(&server, [&client]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn long_wait_keeps_its_place_and_asks_about_once_a_second() {
    let (server, client) = start().await;
    let lock = client.fair_lock("k");
    let held = lock.lock().await.unwrap();
    let waiter = waiting(&server, &lock).await;
    let mut probe = server.connection();
    let field = probe.command(&["LINDEX", QUEUE, "0"]).text();
    eventually("it listens", async || probe.channels().len() == 1).await;
    reset_calls(&mut probe);
    // Longer than a place lasts if nobody asks for it.
    tokio::time::sleep(millis(4_500)).await;
    let asked = calls_of(&mut probe, "evalsha");
    assert!((3..=8).contains(&asked), "{asked} requests");
    // A waiter that arrives now removes dead places at the front.
    let second = waiting(&server, &lock).await;
    assert_eq!(probe.command(&["LINDEX", QUEUE, "0"]).text(), field);
    held.unlock().await.unwrap();
    soon(waiter).await.unwrap().unlock().await.unwrap();
    soon(second).await.unwrap().unlock().await.unwrap();
    nothing_left(&server, [&client]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_owner_nests_and_its_calls_share_one_place() {
    let (server, client) = start().await;
    let lock = client.fair_lock("k");
    let held = lock.lock().await.unwrap();
    let mine = stranger(&lock);
    let calls: Vec<_> = (0..3)
        .map(|_| {
            let mine = mine.clone();
            tokio::spawn(async move { mine.lock().await.unwrap() })
        })
        .collect();
    queued(&server, 1).await;
    let other = waiting(&server, &lock).await;
    held.unlock().await.unwrap();
    let mut guards = Vec::new();
    for call in calls {
        guards.push(soon(call).await.unwrap());
    }
    assert_eq!(mine.hold_count().await.unwrap(), 3);
    assert!(!other.is_finished());
    guards.push(soon(mine.lock()).await.unwrap());
    assert!(lock.try_lock().await.unwrap().is_none());
    for guard in guards {
        guard.unlock().await.unwrap();
    }
    soon(other).await.unwrap().unlock().await.unwrap();
    nothing_left(&server, [&client]).await;
}

#[tokio::test]
async fn an_owner_that_waits_here_is_answered_at_once_when_it_tries() {
    let server = Server::start();
    let client = builder(server.url())
        .command_timeout(secs(20))
        .watchdog_lease(secs(120))
        .build()
        .await
        .unwrap();
    let lock = client.fair_lock("k");
    let held = lock.lock().await.unwrap();
    let mine = stranger(&lock);
    let waiter = tokio::spawn({
        let mine = mine.clone();
        async move { mine.lock().await.unwrap() }
    });
    queued(&server, 1).await;
    assert!(soon(mine.try_lock()).await.unwrap().is_none());
    queued(&server, 1).await;
    held.unlock().await.unwrap();
    soon(waiter).await.unwrap().unlock().await.unwrap();
    nothing_left(&server, [&client]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn release_by_force_grants_the_first() {
    let (server, client) = start().await;
    let lock = client.fair_lock("k");
    let held = lock.lock().await.unwrap();
    let waiter = waiting(&server, &lock).await;
    assert!(lock.force_unlock().await.unwrap());
    assert!(held.is_lost());
    soon(waiter).await.unwrap().unlock().await.unwrap();
    nothing_left(&server, [&client]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn detached_hold_of_a_named_owner_is_adopted_elsewhere() {
    let (server, one, two) = start_two().await;
    let owner = Owner::named("request 7");
    let guard = one.fair_lock("k").owned_by(&owner).lock().await.unwrap();
    let waiter = waiting(&server, &one.fair_lock("k")).await;
    drop(guard.detach());
    let adopted = two.fair_lock("k").owned_by(&owner).adopt().await.unwrap();
    adopted.expect("it is held").unlock().await.unwrap();
    soon(waiter).await.unwrap().unlock().await.unwrap();
    nothing_left(&server, [&one, &two]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn closed_client_leaves_the_queue() {
    let (server, one, two) = start_two().await;
    let held = one.fair_lock("k").lock().await.unwrap();
    let lock = two.fair_lock("k");
    let waiter = tokio::spawn(async move { lock.lock().await.map(drop) });
    queued(&server, 1).await;
    two.close().await;
    assert!(waiter.await.unwrap().is_err());
    assert_eq!(queue(&mut server.connection()), 0);
    held.unlock().await.unwrap();
    nothing_left(&server, [&one]).await;
}
