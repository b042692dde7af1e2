//! Several processes on shared locks: what they believed, wrote and left behind, and the effects of a kill or a pause.
#![allow(
    clippy::expect_used,
    clippy::unwrap_used,
    reason = "a test fails by panicking"
)]
#![allow(unreachable_pub, reason = "shared with other test programs")]

mod crew;
mod event;
mod exclusion;
mod history;
mod hold;
mod journal;
mod leftover;
mod liveness;
mod puppet;
mod sketch;
#[path = "../support/mod.rs"]
mod support;
mod update;
mod worker;

use std::env;
use std::fs;
use std::time::{Duration, Instant};

use crew::{LOCKS, TASKS, WATCHDOG_LEASE};
use event::{Op, Step, now};
use exclusion::overlaps;
use history::History;
use hold::{End, Hold, holds, robberies};
use journal::Line;
use leftover::Leftover;
use liveness::{Gap, Promise, delays, gaps};
use redlatch_testkit::{Connection, Server};
use support::probe::scripts_run;
use support::soak;
use update::lost_updates;
use worker::{Part, Worker, play};

const PROCESSES: u32 = 4;
const VICTIM: u32 = 0;
/// The time for processes on a loaded machine to be woken and to report it.
const SLACK: Duration = Duration::from_millis(250);

#[test]
#[ignore = "a process of its own, started by the other tests here"]
fn worker() {
    play();
}

// fault: S30 S58
#[test]
fn processes_share_locks_without_overlap_loss_or_leftover() {
    let seed = match env::var("REDLATCH_SEED") {
        Ok(seed) => seed.parse().expect("REDLATCH_SEED is a number"),
        Err(_) => fastrand::u64(..),
    };
    let lasts = soak::asked_for().unwrap_or(Duration::from_secs(20));
    println!("REDLATCH_SEED={seed}, {PROCESSES} processes of {TASKS} tasks for {lasts:?}");

    let server = Server::start();
    let mut connection = server.connection();
    let connections_before = connections(&mut connection);
    let crew = |process| {
        let victim = process == VICTIM;
        let part = Part::Crew {
            seed,
            lasts,
            victim,
        };
        Worker::start(process, server.port(), part)
    };
    let mut workers: Vec<Worker> = (0..PROCESSES).map(crew).collect();

    let mut history = History::default();
    workers[0].stays(lasts);
    history.kills.push(workers[0].kill());
    let quiet = workers[1..]
        .iter_mut()
        .map(|worker| worker.quiet(lasts + Duration::from_secs(60)));
    let mut leftover = Leftover {
        workers: quiet.collect(),
        // Each process has one connection for commands, one for messages and one for the counters.
        connections_expected: connections_before + 3 * (workers.len() - 1),
        ..Leftover::default()
    };
    let lines = {
        let found = &mut leftover;
        // The last requests are known to be done only when the server shows it.
        within(Duration::from_secs(10), || {
            found.connections = connections(&mut connection);
            found.channels = connection.channels();
            found.keys = connection.keys();
            found.keys.retain(|key| !key.starts_with("count-"));
            found.leaks().is_empty()
        });
        workers.into_iter().flat_map(Worker::finish)
    };
    let mut errors = Vec::new();
    for line in lines {
        match line {
            Line::Event(event) => history.events.push(event),
            Line::Error(error) => errors.push(error),
            Line::Quiet(_) => {}
        }
    }
    let closed = within(Duration::from_secs(10), || {
        connections(&mut connection) == connections_before
    });

    let holds = holds(&history);
    let gaps = gaps(&history, &holds);
    report(&history, &holds, &gaps, &errors);
    let values: Vec<u64> = (0..LOCKS)
        .map(|lock| counter(&mut connection, lock))
        .collect();
    let promise = Promise {
        within: SLACK,
        lease: WATCHDOG_LEASE,
    };
    let violations = [
        overlaps(&holds),
        robberies(&history),
        lost_updates(&history, &values),
        delays(&history, &gaps, promise),
        leftover.leaks(),
        held_after_death(&history, &holds),
    ]
    .concat();
    if !violations.is_empty() {
        let path = format!("{}/history-{seed}", env!("CARGO_TARGET_TMPDIR"));
        let lines: Vec<String> = history.events.iter().map(ToString::to_string).collect();
        fs::write(&path, lines.join("\n")).expect("write the history");
        let first = &violations[..violations.len().min(20)];
        panic!("{} violations, see {path}: {first:#?}", violations.len());
    }
    assert!(closed, "connections are left when every process has ended");
}

// fault: S58
#[test]
fn waiter_gets_the_lock_of_a_killed_process_within_one_lease() {
    let server = Server::start();
    let [mut holder, mut waiter] = puppets(&server);
    holder.say("take a - 0");
    holder.event(Op::Acquire, Step::Ok);
    waiter.say("take a - 0");
    waiter.event(Op::Acquire, Step::Invoke);

    // Long enough for renewals: the waiter's first estimate of the end of the lease is out of date.
    std::thread::sleep(puppet::LEASE);
    let killed = holder.kill().at;
    let granted = waiter.event(Op::Acquire, Step::Ok).at;
    let took = Duration::from_nanos(granted - killed);
    println!("granted {took:?} after the kill");
    assert!(granted > killed);
    assert!(took <= puppet::LEASE + SLACK, "{took:?}");
}

// fault: S36
#[test]
fn paused_holder_knows_at_once_that_it_lost_the_lock() {
    let server = Server::start();
    let [mut holder, mut other] = puppets(&server);
    holder.say("take a - 0");
    holder.event(Op::Acquire, Step::Ok);
    other.say("take a - 0");
    other.event(Op::Acquire, Step::Invoke);
    // The first action of the holder when it resumes is to look: no task of its runtime can have told it before.
    holder.say("block");
    holder.event(Op::Stay, Step::Invoke);
    holder.pause();
    holder.say("look");
    holder.say("give");
    std::thread::sleep(puppet::LEASE * 2);
    let granted = other.event(Op::Acquire, Step::Ok);

    let resumed = now();
    holder.resume();
    let looked = holder.event(Op::Hold, Step::Fail);
    assert!(granted.at < resumed && looked.at > resumed);
    holder.event(Op::Release, Step::Fail);
    // The late release of the holder took nothing from the other process.
    other.say("look");
    other.event(Op::Hold, Step::Ok);
    other.say("give");
    other.event(Op::Release, Step::Ok);
}

#[test]
fn hold_of_a_named_owner_outlives_another_process_of_that_owner() {
    let server = Server::start();
    let mut connection = server.connection();
    let [mut mortal, mut survivor] = puppets(&server);
    for process in [&mut mortal, &mut survivor] {
        process.say("take a both 0");
        process.event(Op::Acquire, Step::Ok);
    }
    assert_eq!(connection.hgetall("a")["both"], "2");
    mortal.kill();
    std::thread::sleep(puppet::LEASE * 2);
    survivor.say("look");
    survivor.event(Op::Hold, Step::Ok);
    assert_eq!(connection.hgetall("a")["both"], "2");

    survivor.say("give");
    let released = survivor.event(Op::Release, Step::Ok).at;
    // Only the level of the dead process is left, and nobody renews it.
    let gone = within(puppet::LEASE + SLACK, || !connection.exists("a"));
    let took = Duration::from_nanos(now() - released);
    assert!(gone, "still there {took:?} after the release");
}

#[test]
fn processes_hand_a_lock_over_by_messages() {
    const HAND_OVERS: usize = 200;
    let server = Server::start();
    let mut connection = server.connection();
    let mut puppets = puppets(&server);
    puppets[0].say("take a - 600000");
    puppets[0].event(Op::Acquire, Step::Ok);
    let mut waits: Vec<Duration> = Vec::new();
    for n in 0..HAND_OVERS {
        let [holder, waiter] = &mut puppets;
        let (holder, waiter) = if n % 2 == 0 {
            (holder, waiter)
        } else {
            (waiter, holder)
        };
        let scripts = scripts_run(&mut connection);
        waiter.say("take a - 600000");
        // The waiter has asked, and may still be subscribing or may already be waiting: it must not miss a release. The
        // end of the lease and the poll cap are far off.
        let asked = within(Duration::from_secs(10), || {
            scripts_run(&mut connection) > scripts
        });
        assert!(asked, "the waiter does not ask");
        holder.say("give");
        let released = holder.event(Op::Release, Step::Invoke).at;
        let granted = waiter.event(Op::Acquire, Step::Ok).at;
        let wait = Duration::from_nanos(granted - released);
        // A wait that ends by a poll would take 4.5 seconds.
        assert!(wait < Duration::from_secs(2), "{wait:?}");
        waits.push(wait);
    }
    let total: Duration = waits.iter().sum();
    println!("{HAND_OVERS} hand-overs: {}", percentiles(&mut waits));
    assert!(total < Duration::from_secs(20), "{total:?}");
}

fn puppets(server: &Server) -> [Worker; 2] {
    [1, 2].map(|process| Worker::start(process, server.port(), Part::Puppet))
}

/// Describes the holds of killed processes whose lock nobody else got within one lease. A victim that held nothing
/// when it was killed is reported too.
fn held_after_death(history: &History, holds: &[Hold]) -> Vec<String> {
    let mut found = Vec::new();
    let killed: Vec<&Hold> = holds
        .iter()
        .filter(|hold| hold.end == End::Killed)
        .collect();
    if killed.is_empty() {
        found.push("the victim held nothing when it was killed".to_owned());
    }
    for dead in killed {
        let kill = history.killed(dead.owner.0).expect("it was killed");
        let latest = kill + (WATCHDOG_LEASE + SLACK).as_nanos() as u64;
        let next = holds
            .iter()
            .find(|hold| hold.lock == dead.lock && hold.from > kill);
        if next.is_none_or(|next| next.from > latest) {
            found.push(format!("held on after its death: {dead:?}, next {next:?}"));
        }
    }
    found
}

fn report(history: &History, holds: &[Hold], gaps: &[Gap], errors: &[String]) {
    let grants = |process| {
        let of = |event: &&event::Event| process == event.process && event.is_grant();
        history.events.iter().filter(of).count()
    };
    let grants: Vec<usize> = (0..PROCESSES).map(grants).collect();
    let lost = holds.iter().filter(|hold| hold.end == End::Lost).count();
    println!(
        "{} grants, by process {grants:?} (the first was killed half-way), {lost} leases passed, {} calls failed: {:?}",
        grants.iter().sum::<usize>(),
        errors.len(),
        &errors[..errors.len().min(3)],
    );
    let mut lengths: Vec<Duration> = gaps.iter().map(Gap::length).collect();
    println!(
        "{} grants to waiters after a release: {}",
        lengths.len(),
        percentiles(&mut lengths)
    );
}

fn percentiles(times: &mut [Duration]) -> String {
    times.sort();
    let last = times.len().saturating_sub(1);
    let at = |percent: usize| times.get(last * percent / 100).copied().unwrap_or_default();
    format!("p50 {:?}, p99 {:?}, max {:?}", at(50), at(99), at(100))
}

fn connections(connection: &mut Connection) -> usize {
    connection
        .command(&["CLIENT", "LIST"])
        .text()
        .lines()
        .count()
}

fn counter(connection: &mut Connection, lock: u32) -> u64 {
    let value = connection.command(&["GET", &crew::keys(lock).1]);
    value.text().parse().expect("a count")
}

/// Returns whether the condition came true within the limit.
fn within(limit: Duration, mut condition: impl FnMut() -> bool) -> bool {
    let end = Instant::now() + limit;
    loop {
        if condition() {
            return true;
        }
        if Instant::now() > end {
            return false;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}
