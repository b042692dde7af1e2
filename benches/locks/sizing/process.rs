//! One process of a fleet: it connects, holds, waits and passes sections as it is told.

use std::ops::Range;
use std::time::Duration;

use redlatch::{Client, LockGuard};
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};

use crate::Failure;
use crate::clock;
use crate::crowd::Crowd;
use crate::memory::resident;
use crate::section::Section;
use crate::worker::{self, Lines, Worker, number};

/// The role of such a process.
pub(crate) const ROLE: &str = "sizing";
/// How many locks are taken at the same time.
const TAKERS: usize = 64;
const PARTS: usize = 50;
const PATIENCE: Duration = Duration::from_secs(20);

/// What a process answers to an order.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Answer {
    /// The growth of its resident memory, in bytes.
    pub(crate) grown: f64,
    /// Its processor time meanwhile, in microseconds.
    pub(crate) spent: f64,
    /// Sections that it passed.
    pub(crate) passed: f64,
    /// Holds that it has lost so far.
    pub(crate) lost: f64,
}

/// Starts a process with one client, whose locks have this lease.
pub(crate) async fn start(url: &str, lease: Duration) -> Result<Worker, Failure> {
    Worker::start(&[ROLE, url, &lease.as_millis().to_string()]).await
}

/// Gives one order to all processes, and returns the sum of their answers.
pub(crate) async fn tell_all(
    processes: &mut [Worker],
    busy: Duration,
    mut order: impl FnMut(usize) -> String,
) -> Result<Answer, Failure> {
    for (number, process) in processes.iter_mut().enumerate() {
        process.tell(&order(number))?;
    }
    let mut sum = Answer::default();
    for process in processes {
        let line = process.hear(busy).await?;
        let words = line.split(' ').map(str::parse::<f64>);
        let words: Vec<f64> = words.collect::<Result<_, _>>()?;
        let [grown, spent, passed, lost] = words[..] else {
            return Err(format!("no answer: {line:?}").into());
        };
        sum.grown += grown;
        sum.spent += spent;
        sum.passed += passed;
        sum.lost += lost;
    }
    Ok(sum)
}

/// The state of a process between two orders.
struct Process {
    url: String,
    lease: Duration,
    client: Client,
    others: Vec<Client>,
    guards: Vec<LockGuard>,
    waiting: JoinSet<()>,
}

/// Runs the worker.
pub(crate) async fn work(url: &str, lease: &str) -> Result<(), Failure> {
    let mut orders = Lines::orders();
    let lease = Duration::from_millis(lease.parse()?);
    let mut process = Process {
        client: connect(url, lease).await?,
        url: url.to_owned(),
        lease,
        others: Vec::new(),
        guards: Vec::new(),
        waiting: JoinSet::new(),
    };
    worker::answer("ready")?;
    while let Some(order) = orders.next().await {
        let (memory, spent) = (resident()?, clock::processor_time());
        let passed = process.obey(&order).await?;
        let grown = resident()? as f64 - memory as f64;
        let spent = (clock::processor_time() - spent).as_micros();
        let lost = process.guards.iter().filter(|guard| guard.is_lost());
        worker::answer(&format!("{grown} {spent} {passed} {}", lost.count()))?;
    }
    Ok(())
}

impl Process {
    /// Carries out an order, and returns how many sections were passed.
    async fn obey(&mut self, order: &str) -> Result<usize, Failure> {
        let words: Vec<&str> = order.split(' ').collect();
        match words[..] {
            ["connect", count] => {
                for _ in 0..count.parse()? {
                    self.others.push(connect(&self.url, self.lease).await?);
                }
            }
            ["hold", count, stem, over] => {
                self.guards = hold(&self.client, count.parse()?, stem, millis(over)?).await?;
            }
            ["wait", names, stem] => self.wait(names.parse()?, stem).await?,
            ["live", each_second, span] => {
                return self.live(each_second.parse()?, millis(span)?).await;
            }
            ["crowd", tasks, span] => {
                let own = |task| {
                    self.client
                        .lock(format!("bench:{}:{task}", std::process::id()))
                };
                let crowd = Crowd::run((0..tasks.parse()?).map(own), millis(span)?).await?;
                return Ok(crowd.waits.count());
            }
            _ => return Err(format!("no order: {order:?}").into()),
        }
        Ok(0)
    }

    /// Has one task wait for each of these names, and returns once all do.
    async fn wait(&mut self, names: usize, stem: &str) -> Result<(), Failure> {
        for number in 0..names {
            let lock = self.client.lock(format!("{stem}:{number}"));
            self.waiting.spawn(async move { drop(lock.lock().await) });
        }
        let waiting = format!("waiting: {names},");
        let all_wait = async {
            while !format!("{:?}", self.client).contains(&waiting) {
                sleep(Duration::from_millis(20)).await;
            }
        };
        timeout(PATIENCE, all_wait).await?;
        // The first requests, the subscriptions and the places in the turn order.
        sleep(Duration::from_millis(500)).await;
        Ok(())
    }

    /// Passes sections of its own at this rate for a while, and nothing at the rate 0.
    async fn live(&self, each_second: f64, span: Duration) -> Result<usize, Failure> {
        if each_second == 0.0 {
            sleep(span).await;
            return Ok(0);
        }
        let lock = self.client.lock(format!("bench:{}", std::process::id()));
        let mut pace = interval(Duration::from_secs_f64(1.0 / each_second));
        pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let end = tokio::time::Instant::now() + span;
        let mut passed = 0;
        while pace.tick().await < end {
            lock.pass().await?;
            passed += 1;
        }
        Ok(passed)
    }
}

pub(crate) async fn connect(url: &str, lease: Duration) -> Result<Client, Failure> {
    let client = Client::builder().url(url).watchdog_lease(lease);
    Ok(client.build().await?)
}

/// Takes so many locks, in parts spread over this time. Their renewals are then as far apart as those of locks that are
/// taken at different times.
pub(crate) async fn hold(
    client: &Client,
    count: usize,
    stem: &str,
    over: Duration,
) -> Result<Vec<LockGuard>, Failure> {
    let mut guards = Vec::with_capacity(count);
    let parts = if over.is_zero() { 1 } else { PARTS };
    for part in 0..parts {
        let numbers = count * part / parts..count * (part + 1) / parts;
        guards.extend(take(client, numbers, stem).await?);
        if !over.is_zero() {
            sleep(over / parts as u32).await;
        }
    }
    Ok(guards)
}

async fn take(
    client: &Client,
    numbers: Range<usize>,
    stem: &str,
) -> Result<Vec<LockGuard>, Failure> {
    let mut takers = JoinSet::new();
    for taker in 0..TAKERS.min(numbers.len()) {
        let (client, stem, numbers) = (client.clone(), stem.to_owned(), numbers.clone());
        takers.spawn(async move {
            let mut guards = Vec::new();
            for number in numbers.skip(taker).step_by(TAKERS) {
                guards.push(client.lock(format!("{stem}:{number:05}")).lock().await?);
            }
            Ok::<_, redlatch::Error>(guards)
        });
    }
    let mut guards = Vec::with_capacity(numbers.len());
    while let Some(taken) = takers.join_next().await {
        guards.extend(taken??);
    }
    Ok(guards)
}

fn millis(word: &str) -> Result<Duration, Failure> {
    Ok(Duration::from_millis(number(Some(word))?))
}
