//! This crate next to other locks: Redisson, redsync, rslock, and the loop that many write themselves.

mod comparison;
mod contestant;
mod entrant;
mod kit;
mod monitor;
mod plain;

use std::time::{Duration, Instant};

use redlatch_testkit::Server;

pub(crate) use self::comparison::Comparison;
use self::contestant::Contestant;
pub(crate) use self::contestant::{ROLE, work};
use self::entrant::Entrant;
use self::monitor::Monitor;
use crate::Failure;
use crate::effort::Effort;
use crate::pipe::Pipe;
use crate::report::{Chapter, Line};
use crate::waits::Waits;

const TASKS: usize = 64;
/// How often the crowd of each contestant is measured.
const CROWDS: usize = 3;
/// The time for calls that are not counted: a JVM needs some thousands.
const LONGEST_WARM_UP: Duration = Duration::from_secs(2);
/// How long the holder keeps the lock before a hand-over. After a short hold every poller still sleeps in its first
/// pause; a long one, of random length, ends anywhere in a pause.
const SHORT_HOLD: Duration = Duration::from_millis(5);
const MOST_OF_LONG_HOLD: Duration = Duration::from_millis(255);
/// The wait in which commands are counted.
const COUNTED_WAIT: Duration = Duration::from_secs(2);

pub(crate) async fn run(effort: &Effort) -> Result<Chapter, Failure> {
    let server = Server::start();
    let mut entrants = Vec::new();
    for contestant in Contestant::ALL {
        match contestant.command() {
            Ok(command) => entrants.push(Entrant::start(contestant, command, &server).await?),
            Err(missing) => eprintln!("locks: {contestant} is not measured: {missing}"),
        }
    }
    let pings = measure(effort, &server, &mut entrants).await?;
    Ok(Chapter {
        title: "Next to other locks",
        how: "Every lock is used with its defaults, by processes of its own, on one server; blocks of all alternate. \
              Lock and unlock: one task, beside two PINGs over a bare connection. 64 tasks (threads, goroutines) of \
              one process pass empty sections under one name. Hand-over: one process unlocks while another one \
              waits, from the call of unlock to the return of lock, on the wall clock; in turns, after 5 ms and \
              after 5 to 255 ms at random. Commands are those that clients sent for their locks, as MONITOR shows \
              them, in blocks that are not timed. redsync never runs out of tries here; its default is 32. rslock \
              acquires with `acquire`, which never does. The loop sends `SET NX PX`, sleeps for 25 to 75 ms while \
              somebody else holds the lock, and deletes with a script, over a bare connection.",
        lines: lines(&entrants, &pings),
        curves: Vec::new(),
        comparison: Some(Comparison::new(&entrants, pings)),
    })
}

/// Measures all entrants in turns. Returns the times of two PINGs over a bare connection.
async fn measure(
    effort: &Effort,
    server: &Server,
    entrants: &mut [Entrant],
) -> Result<Waits, Failure> {
    let warm_up = (effort.calls / 4).min(LONGEST_WARM_UP);
    for entrant in entrants.iter_mut() {
        entrant.warm_up(warm_up).await?;
    }
    let pipe = Pipe::connect(&server.url()).await?;
    let (block, mut pings) = (effort.block / 2, Vec::new());
    for pair in 0..effort.pairs {
        for entrant in in_turn(entrants, pair) {
            entrant.pass_cycles(block).await?;
        }
        pings.extend(pairs_of_pings(&pipe, block).await?);
    }
    for round in 0..CROWDS {
        for entrant in in_turn(entrants, round) {
            entrant.pass_crowd(effort.waits / 5).await?;
        }
    }
    let rounds = effort.wakeups / 10;
    for round in 0..rounds {
        for entrant in in_turn(entrants, round) {
            entrant.hand_over(SHORT_HOLD).await?;
        }
        let long = SHORT_HOLD + (MOST_OF_LONG_HOLD - SHORT_HOLD).mul_f64(fastrand::f64());
        for entrant in in_turn(entrants, round).filter(|_| round % 2 == 0) {
            entrant.hand_over_after_long(long).await?;
        }
    }
    let mut monitor = Monitor::start(server)?;
    for entrant in entrants {
        entrant.count_commands(&mut monitor, effort.block).await?;
    }
    Ok(Waits::new(pings))
}

/// Returns the entrants, beginning with another one each round.
fn in_turn(entrants: &mut [Entrant], round: usize) -> impl Iterator<Item = &mut Entrant> {
    let first = round % entrants.len().max(1);
    let (later, sooner) = entrants.split_at_mut(first);
    sooner.iter_mut().chain(later)
}

async fn pairs_of_pings(pipe: &Pipe, span: Duration) -> Result<Vec<Duration>, Failure> {
    let pipe = pipe.clone();
    let pings = tokio::spawn(async move {
        let (start, mut took) = (Instant::now(), Vec::new());
        while start.elapsed() < span {
            let started = Instant::now();
            pipe.ask("PING", &[]).await?;
            pipe.ask("PING", &[]).await?;
            took.push(started.elapsed());
        }
        Ok::<_, Failure>(took)
    });
    pings.await?
}

fn lines(entrants: &[Entrant], pings: &Waits) -> Vec<Line> {
    let missing = |contestant: Contestant| Line {
        shape: contestant.to_string(),
        product: "not measured".to_owned(),
        floor: String::new(),
        figure: None,
    };
    Contestant::ALL
        .into_iter()
        .flat_map(|contestant| {
            match entrants
                .iter()
                .find(|entrant| entrant.contestant == contestant)
            {
                Some(entrant) => entrant.lines(pings),
                None => vec![missing(contestant)],
            }
        })
        .collect()
}
