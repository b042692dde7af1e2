//! The cost of calls while their server is away, and how soon everything works again after its return.

use std::sync::Arc;
use std::time::Duration;

use redlatch::{Client, Error, Member, MultiLock};
use redlatch_testkit::{Reply, Server};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};

use crate::Failure;
use crate::clock;
use crate::effort::Effort;
use crate::memory::resident;
use crate::report::{Chapter, Figure, Line, Target};
use crate::worker::{self, Lines, Worker, number};

/// The role of the worker that makes the calls.
pub(crate) const ROLE: &str = "outage";
/// How many calls are made during an outage of [`SPAN`]; a shorter run makes fewer, at the same pace.
const CALLS: u64 = 10_000;
const SPAN: Duration = Duration::from_secs(60);
/// Calls before the outage, so that every kind has been used and has allocated its memory.
const WARM_UP: u64 = 2_000;
/// Of each semaphore.
const PERMITS: u32 = 1 << 20;
/// How long the last call may take to fail after the span, and the first answer to come after the server's return.
const LAST: Duration = Duration::from_secs(10);
const SETTLED_LIMIT: Duration = Duration::from_secs(40);
const LOOK: Duration = Duration::from_millis(5);
const KINDS: [&str; 9] = [
    "reentrant",
    "fenced",
    "fair",
    "read",
    "write",
    "semaphore",
    "permits",
    "plain",
    "multi",
];

/// How the server goes away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outage {
    /// Killed, and started again on the same port, with its data.
    Killed,
    /// Stopped, with its sockets open, and continued.
    Hung,
}

/// The measurements of one outage.
struct Measured {
    failed: u64,
    /// The most by which the client's memory exceeded its size before, in bytes.
    grown: u64,
    first: Duration,
    settled: Duration,
}

pub(crate) async fn run(effort: &Effort) -> Result<Chapter, Failure> {
    let mut lines = Vec::new();
    let mut worst = Measured {
        failed: 0,
        grown: 0,
        first: Duration::ZERO,
        settled: Duration::ZERO,
    };
    for (outage, name) in [
        (Outage::Killed, "killed and started again"),
        (Outage::Hung, "stopped and continued"),
    ] {
        let measured = Measured::of(outage, effort.outage).await?;
        lines.push(Line {
            shape: format!("{name}, {} calls failed meanwhile", measured.failed),
            product: format!(
                "{:.1} MB more, first answer after {:.1?}, settled after {:.1?}",
                measured.megabytes(),
                measured.first,
                measured.settled
            ),
            floor: String::new(),
            figure: None,
        });
        worst.grown = worst.grown.max(measured.grown);
        worst.first = worst.first.max(measured.first);
        worst.settled = worst.settled.max(measured.settled);
    }
    let figure = |shape: &str, key, value, most| Line {
        shape: shape.to_owned(),
        product: format!("{value:.1}"),
        floor: String::new(),
        figure: Some(Figure::new(key, value, Target::AtMost(most))),
    };
    let seconds = worst.settled.as_secs_f64();
    lines.extend([
        figure("memory, MB more", "outage_rss_mb", worst.megabytes(), 5.0),
        figure(
            "first answer, ms after the return",
            "outage_first_answer_ms",
            worst.first.as_secs_f64() * 1e3,
            500.0,
        ),
        figure(
            "all paid, s after the return",
            "outage_settled_s",
            seconds,
            5.0,
        ),
    ]);
    Ok(Chapter {
        title: "Outages",
        how: "A server is killed, or stopped, while a client in a process of its own continues to make calls, with \
              new lock names each time: locks of all kinds, permits with and without a lease, two locks at once. \
              The figures are the most by which the client's memory grows until everything is paid, the time from \
              the server's return to the first answer to a call that began before it, and the time until the \
              server stores nothing that was not granted.",
        lines,
        curves: Vec::new(),
        comparison: None,
    })
}

impl Measured {
    fn megabytes(&self) -> f64 {
        self.grown as f64 / f64::from(1 << 20)
    }

    async fn of(outage: Outage, span: Duration) -> Result<Self, Failure> {
        let server = Arc::new(Server::builder().persistent().start());
        let mut caller = Worker::start(&[ROLE, &server.url()]).await?;
        match outage {
            Outage::Killed => server.kill(),
            Outage::Hung => server.freeze(),
        }
        caller.tell(&span.as_millis().to_string())?;
        caller.hear(span + LAST).await?;
        let back = match outage {
            Outage::Killed => {
                let restarted = server.clone();
                let restarting = tokio::task::spawn_blocking(move || restarted.restart());
                // The server counts as back as soon as it listens.
                while TcpStream::connect(("127.0.0.1", server.port()))
                    .await
                    .is_err()
                {
                    sleep(Duration::from_millis(1)).await;
                }
                let back = clock::now();
                restarting.await?;
                back
            }
            Outage::Hung => {
                server.thaw();
                clock::now()
            }
        };
        let first = caller.hear(LAST).await?;
        let first = Duration::from_nanos(number(Some(&first))?).saturating_sub(back);
        let settled = timeout(SETTLED_LIMIT, async {
            while !is_settled(&server) {
                sleep(LOOK).await;
            }
            clock::now() - back
        });
        let settled = settled.await?;
        caller.tell("report")?;
        let report = caller.hear(Duration::ZERO).await?;
        let mut words = report.split(' ');
        Ok(Self {
            failed: number(words.next())?,
            grown: number(words.next())?,
            first,
            settled,
        })
    }
}

/// Returns whether the server has nothing left of what was asked for: no lock, and each semaphore has all its permits.
fn is_settled(server: &Server) -> bool {
    let mut probe = server.connection();
    let keys = probe.keys();
    let locks = keys
        .iter()
        .filter(|key| key.starts_with("bench:") || key.contains("{bench:"));
    let semaphores = ["semaphore", "permits"].map(|name| probe.command(&["GET", name]));
    let full = Reply::Text(PERMITS.to_string().into_bytes());
    locks.filter(|key| !key.contains("token")).count() == 0
        && semaphores.iter().all(|permits| *permits == full)
}

/// Runs the worker: makes warm-up calls, then calls for as long as it is told, then reports what it has measured.
pub(crate) async fn work(url: &str) -> Result<(), Failure> {
    let mut orders = Lines::orders();
    let client = Client::connect(url).await?;
    client
        .semaphore("semaphore")
        .try_set_permits(PERMITS)
        .await?;
    client
        .expirable_semaphore("permits")
        .try_set_permits(PERMITS)
        .await?;
    for call in 0..WARM_UP {
        try_take(&client, call).await?;
    }
    worker::answer("ready")?;
    let order = orders.next().await;
    let span = Duration::from_millis(number(order.as_deref())?);
    let before = resident()?;
    let (failed, mut grown) = call_on(&client, span, before).await?;
    // A call that begins before the server is back.
    let waiting = client.lock("bench:first");
    let first = tokio::spawn(async move {
        loop {
            if let Ok(Some(guard)) = waiting.try_lock().await {
                return (clock::now(), guard);
            }
        }
    });
    worker::answer("failed")?;
    let (at, guard) = first.await?;
    worker::answer(&at.as_nanos().to_string())?;
    guard.unlock().await?;
    while timeout(LOOK, orders.next()).await.is_err() {
        grown = grown.max(resident()?.saturating_sub(before));
    }
    worker::answer(&format!("{failed} {grown}"))?;
    client.close().await;
    Ok(())
}

/// Makes calls for `span` at the pace of the full run. Returns how many failed, and the most by which the memory grew.
async fn call_on(client: &Client, span: Duration, before: u64) -> Result<(u64, u64), Failure> {
    let calls = (CALLS as f64 * span.as_secs_f64() / SPAN.as_secs_f64()) as u64;
    let mut pace = interval(SPAN / CALLS as u32);
    // After the machine was busy elsewhere, the calls must not all come at once.
    pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut failed, mut grown) = (0, 0);
    let mut calling = JoinSet::new();
    for call in WARM_UP..WARM_UP + calls {
        pace.tick().await;
        let client = client.clone();
        calling.spawn(async move { try_take(&client, call).await });
        while let Some(called) = calling.try_join_next() {
            failed += u64::from(called?.is_err());
        }
        grown = grown.max(resident()?.saturating_sub(before));
    }
    while let Some(called) = calling.join_next().await {
        failed += u64::from(called?.is_err());
    }
    Ok((failed, grown))
}

/// Acquires and drops a hold or permit of the kind whose turn it is.
async fn try_take(client: &Client, call: u64) -> Result<(), Error> {
    let name = format!("bench:{call}");
    match KINDS[call as usize % KINDS.len()] {
        "reentrant" => client.lock(name).try_lock().await.map(drop),
        "fenced" => client.fenced_lock(name).try_lock().await.map(drop),
        "fair" => client.fair_lock(name).try_lock().await.map(drop),
        "read" => client.read_write_lock(name).try_read().await.map(drop),
        "write" => client.read_write_lock(name).try_write().await.map(drop),
        "semaphore" => client.semaphore("semaphore").try_acquire().await.map(drop),
        "permits" => client
            .expirable_semaphore("permits")
            .try_acquire()
            .await
            .map(drop),
        "plain" => client.plain_lock(name).try_lock().await.map(drop),
        _ => {
            let members =
                ["a", "b"].map(|part| Member::from(client.lock(format!("{name}:{part}"))));
            MultiLock::new(members).try_lock().await.map(drop)
        }
    }
}
