//! Takes part in the benchmark as rslock, told line by line what to do: the protocol is described in
//! benches/locks/peers/contestant.rs.

use std::env;
use std::error::Error;
use std::time::{Duration, Instant, SystemTime};

use rslock::{LockError, LockGuard, LockManager};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::task::JoinSet;

type Failure = Box<dyn Error + Send + Sync>;

const NAME: &str = "bench:rslock";
/// rslock has no default for this, and does not renew. The benchmark holds a lock for some two seconds at most.
const LEASE: Duration = Duration::from_secs(10);

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let url = env::args().nth(1).ok_or("no URL")?;
    // All tasks share one manager, and with it one connection.
    let manager = LockManager::new(vec![url]);
    let mut kept = None;
    println!("ready");
    let mut orders = BufReader::new(tokio::io::stdin()).lines();
    while let Some(order) = orders.next_line().await? {
        match order.split(' ').collect::<Vec<_>>()[..] {
            ["cycles", span] => {
                // On a thread of the runtime, where the connection's task is too.
                let took = tokio::spawn(cycles(manager.clone(), nanos(span)?)).await??;
                println!("{}", numbers(&took));
            }
            ["crowd", tasks, span] => {
                println!("{}", crowd(&manager, tasks.parse()?, nanos(span)?).await?);
            }
            ["take"] => {
                let asked = wall();
                kept = Some(lock(&manager).await?);
                println!("{asked} {}", wall());
            }
            ["release"] => {
                let released = wall();
                kept.take().ok_or("nothing is held")?.release().await;
                println!("{released}");
            }
            _ => return Err(format!("no order: {order:?}").into()),
        }
    }
    Ok(())
}

/// Has the defaults of rslock: three tries at a time, and `acquire` begins again for as long as it takes.
async fn lock(manager: &LockManager) -> Result<LockGuard, LockError> {
    manager.acquire(NAME, LEASE).await
}

async fn cycles(manager: LockManager, span: Duration) -> Result<Vec<Duration>, LockError> {
    let (start, mut took) = (Instant::now(), Vec::new());
    while start.elapsed() < span {
        let started = Instant::now();
        lock(&manager).await?.release().await;
        took.push(started.elapsed());
    }
    Ok(took)
}

async fn crowd(manager: &LockManager, tasks: usize, span: Duration) -> Result<String, Failure> {
    let end = Instant::now() + span;
    let mut crowd = JoinSet::new();
    for _ in 0..tasks {
        crowd.spawn(pass_until(manager.clone(), end));
    }
    let (mut waits, mut sections, mut served) = (Vec::new(), 0, 0);
    while let Some(ended) = crowd.join_next().await {
        let (own_waits, passed) = ended??;
        waits.extend(own_waits);
        sections += passed;
        served += usize::from(passed > 0);
    }
    Ok(format!("{sections} {served} {}", numbers(&waits)))
}

async fn pass_until(
    manager: LockManager,
    end: Instant,
) -> Result<(Vec<Duration>, usize), LockError> {
    let (mut waits, mut passed) = (Vec::new(), 0);
    while Instant::now() < end {
        let asked = Instant::now();
        let guard = lock(&manager).await?;
        waits.push(asked.elapsed());
        guard.release().await;
        passed += usize::from(Instant::now() < end);
    }
    Ok((waits, passed))
}

fn nanos(word: &str) -> Result<Duration, Failure> {
    Ok(Duration::from_nanos(word.parse()?))
}

fn numbers(durations: &[Duration]) -> String {
    let words: Vec<_> = durations
        .iter()
        .map(|took| took.as_nanos().to_string())
        .collect();
    words.join(" ")
}

/// Returns the time on the wall clock in nanoseconds.
fn wall() -> u128 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    now.unwrap_or_default().as_nanos()
}
