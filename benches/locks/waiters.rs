//! Ten thousand tasks of one process that wait for one lock: the cost of each while it waits.

use std::time::Duration;

use redlatch::Client;
use redlatch_testkit::{Connection, Server};
use tokio::time::{sleep, timeout};

use crate::Failure;
use crate::effort::Effort;
use crate::memory::resident;
use crate::report::{Chapter, Figure, Line, Target, rate};
use crate::stats::{self, Stats};
use crate::worker::{self, Lines, Worker, number};

/// The role of a worker whose tasks wait.
pub(crate) const ROLE: &str = "waiters";
const FAIR: &str = "fair";
const PLAIN: &str = "plain";

const WAITERS: usize = 10_000;
/// How many tasks start at once: few enough for their requests to fit into buffers of the usual size.
const GROUP: usize = 100;
/// How long it may take until all tasks wait.
const PATIENCE: Duration = Duration::from_secs(20);
/// How long they then wait before their process's memory is read.
const REST: Duration = Duration::from_millis(1_200);

pub(crate) async fn run(effort: &Effort) -> Result<Chapter, Failure> {
    let fair = Waited::new(FAIR, effort).await?;
    let plain = Waited::new(PLAIN, effort).await?;
    let bytes = |shape: &str, key, waited: &Waited, most| Line {
        shape: shape.to_owned(),
        product: format!("{:.0} B", waited.bytes),
        floor: String::new(),
        figure: Some(Figure::new(key, waited.bytes, Target::AtMost(most))),
    };
    Ok(Chapter {
        title: "Waiting: 10,000 tasks of one process for one lock",
        how: "Another client holds the lock and does not release it. The requests are the EVALSHAs that the server \
              counts once all tasks wait. The bytes are the growth of the process in resident memory, including \
              the tasks themselves, per waiter.",
        lines: vec![
            Line {
                shape: "10,000 tasks, one fair lock: requests".to_owned(),
                product: rate(fair.scripts),
                floor: String::new(),
                figure: Some(Figure::new(
                    "fair10k_scripts_per_s",
                    fair.scripts,
                    Target::AtMost(100.0),
                )),
            },
            bytes(
                "10,000 tasks, one fair lock: a waiter",
                "fair10k_bytes",
                &fair,
                4_096.0,
            ),
            bytes(
                "10,000 tasks, one reentrant lock: a waiter",
                "waiters10k_bytes",
                &plain,
                2_048.0,
            ),
        ],
        curves: Vec::new(),
        comparison: None,
    })
}

/// The cost of waiting.
struct Waited {
    /// EVALSHAs that the server counts per second.
    scripts: f64,
    /// Memory of the process per waiter.
    bytes: f64,
}

impl Waited {
    async fn new(kind: &str, effort: &Effort) -> Result<Self, Failure> {
        let server = Server::start();
        let holder = Client::connect(server.url()).await?;
        let held = match kind {
            FAIR => holder.fair_lock(NAME).lock().await?,
            _ => holder.lock(NAME).lock().await?,
        };
        let mut crowd = Worker::start(&[ROLE, &server.url(), kind]).await?;
        crowd.tell("wait")?;
        let grown = number(Some(&crowd.hear(PATIENCE).await?))?;
        let scripts = scripts_per_second(&mut server.connection(), effort.waits / 2).await;
        drop(crowd);
        drop(held);
        holder.close().await;
        Ok(Self {
            scripts,
            bytes: grown as f64 / WAITERS as f64,
        })
    }
}

const NAME: &str = "bench:product";

async fn scripts_per_second(connection: &mut Connection, span: Duration) -> f64 {
    stats::reset(connection);
    sleep(span).await;
    let scripts = Stats::read(connection).of("evalsha");
    scripts.calls as f64 / span.as_secs_f64()
}

/// Runs the worker: has its tasks wait, and reports by how much its memory has grown.
pub(crate) async fn work(url: &str, kind: &str) -> Result<(), Failure> {
    let mut orders = Lines::orders();
    let client = Client::connect(url).await?;
    worker::answer("ready")?;
    while orders.next().await.is_some() {
        let before = resident()?;
        for _ in 0..WAITERS / GROUP {
            for _ in 0..GROUP {
                match kind {
                    FAIR => {
                        let lock = client.fair_lock(NAME);
                        tokio::spawn(async move { lock.lock().await.map(drop) });
                    }
                    _ => {
                        let lock = client.lock(NAME);
                        tokio::spawn(async move { lock.lock().await.map(drop) });
                    }
                }
            }
            sleep(Duration::from_millis(5)).await;
        }
        timeout(PATIENCE, all_wait(&client)).await?;
        sleep(REST).await;
        worker::answer(&(resident()?.saturating_sub(before)).to_string())?;
    }
    Ok(())
}

async fn all_wait(client: &Client) {
    let waiting = format!("waiting: {WAITERS},");
    while !format!("{client:?}").contains(&waiting) {
        sleep(Duration::from_millis(20)).await;
    }
}
