//! The renewal of leases: 10,000 next to the floor, and 100,000 by themselves.

use std::time::Duration;

use redlatch::{Client, LockGuard};
use redlatch_testkit::{Connection, Server};
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::Failure;
use crate::alternation::Alternation;
use crate::clock;
use crate::effort::Effort;
use crate::floor::{Floor, Lease};
use crate::report::{Chapter, Figure, Line, Target};
use crate::stats::{self, Stats};

const LEASES: usize = 10_000;
const BATCH: usize = 100;
/// Renewed after a third of it.
const LEASE: Duration = Duration::from_secs(3);
const WATCHED: Duration = Duration::from_secs(2);
const TAKERS: usize = 64;
const MANY: usize = 100_000;
/// The default, renewed after a third of it.
const LONG_LEASE: Duration = Duration::from_secs(30);
const PERIOD: Duration = Duration::from_secs(10);
/// Paced to take as long as the product is watched: a server that rests between scripts runs each script slower.
const FLOOR_ROUNDS: usize = 2;
const FLOOR_PAUSE: Duration = Duration::from_millis(10);

/// The cost of renewing one lease, and the number of leases per script.
#[derive(Clone, Copy, Debug)]
struct Cost {
    server: f64,
    client: f64,
    batch: f64,
}

pub(crate) async fn run(effort: &Effort) -> Result<Chapter, Failure> {
    let server = Server::start();
    let bare = Floor::of_fred(&server.url()).await?;
    let mut lost = 0;
    let measured = Alternation::run(
        effort.renewals,
        async || {
            let (cost, lost_now) = renewed_by_watchdog(&server).await?;
            lost += lost_now;
            Ok(cost)
        },
        async || renewed_bare(&server, &bare).await,
    )
    .await?;
    let round = |costs: &[Cost], part: fn(&Cost) -> f64| {
        let parts: f64 = costs.iter().map(part).sum();
        Duration::from_secs_f64(parts / costs.len().max(1) as f64 * LEASES as f64)
    };
    let line = |shape: &str, part: fn(&Cost) -> f64, figure| Line {
        shape: format!("renewal of 10,000 leases: {shape}"),
        product: format!("{:.1?}", round(&measured.product, part)),
        floor: format!("{:.1?}", round(&measured.floor, part)),
        figure,
    };
    let ratio = measured.median(|product, floor| product.server / floor.server);
    let batch = measured.median(|product, _| product.batch);
    Ok(Chapter {
        title: "Renewal",
        how: "One client holds 10,000 locks with a lease of 3 s, each renewed about once a second. The figures are \
              the time that the server counts for the scripts and the processor time of the client, for one round \
              of all leases. Floor: the same script over batches of 100 names, spread over the same time. Phases \
              alternate; the ratio is the median over the pairs. The watchdog spreads a round over a fifth of the \
              period on purpose, so there is no wall time to compare.",
        lines: vec![
            line(
                "the server's time",
                |cost| cost.server,
                Some(Figure::new(
                    "renewal_server_time_ratio",
                    ratio,
                    Target::None,
                )),
            ),
            line("the client's processor time", |cost| cost.client, None),
            Line {
                shape: "renewal of 10,000 leases: leases a script".to_owned(),
                product: format!("{batch:.0}"),
                floor: BATCH.to_string(),
                figure: None,
            },
            Line {
                shape: "renewal of 10,000 leases: leases lost".to_owned(),
                product: lost.to_string(),
                floor: String::new(),
                figure: None,
            },
        ],
        curves: Vec::new(),
        comparison: None,
    })
}

pub(crate) async fn hundred_thousand(_: &Effort) -> Result<Chapter, Failure> {
    let server = Server::start();
    let client = Client::builder()
        .url(server.url())
        .watchdog_lease(LONG_LEASE)
        .build()
        .await?;
    let guards = take(&client, MANY).await?;
    // Each lease is renewed once within any period of this length.
    let meter = Meter::start(server.connection());
    sleep(PERIOD).await;
    let cost = meter.stop()?;
    let lost = guards.iter().filter(|guard| guard.is_lost()).count();
    client.close().await;
    let share = cost.client * MANY as f64 / PERIOD.as_secs_f64();
    Ok(Chapter {
        title: "Renewal: 100,000 leases",
        how: "One client holds 100,000 locks with a lease of 30 s, each renewed every 10 s. The figure is the \
              share of one processor that this takes.",
        lines: vec![Line {
            shape: "100,000 leases of 30 s: percent of a processor".to_owned(),
            product: format!(
                "{:.2} %, {lost} lost, {:.0} a script",
                share * 100.0,
                cost.batch
            ),
            floor: String::new(),
            figure: Some(Figure::new(
                "renew100k_core_percent",
                share * 100.0,
                Target::AtMost(2.5),
            )),
        }],
        curves: Vec::new(),
        comparison: None,
    })
}

/// Holds all locks for a while. Returns the cost, and how many locks were lost.
async fn renewed_by_watchdog(server: &Server) -> Result<(Cost, usize), Failure> {
    let client = Client::builder()
        .url(server.url())
        .watchdog_lease(LEASE)
        .build()
        .await?;
    let guards = take(&client, LEASES).await?;
    let meter = Meter::start(server.connection());
    sleep(WATCHED).await;
    let cost = meter.stop()?;
    let lost = guards.iter().filter(|guard| guard.is_lost()).count();
    client.close().await;
    drop(guards);
    server.connection().command(&["FLUSHALL"]);
    Ok((cost, lost))
}

async fn take(client: &Client, leases: usize) -> Result<Vec<LockGuard>, Failure> {
    let mut takers = JoinSet::new();
    for taker in 0..TAKERS {
        let client = client.clone();
        takers.spawn(async move {
            let mut guards = Vec::new();
            for number in (taker..leases).step_by(TAKERS) {
                guards.push(client.lock(name(number)).lock().await?);
            }
            Ok::<_, redlatch::Error>(guards)
        });
    }
    let mut guards = Vec::with_capacity(leases);
    while let Some(taken) = takers.join_next().await {
        guards.extend(taken??);
    }
    Ok(guards)
}

async fn renewed_bare(server: &Server, bare: &Floor) -> Result<Cost, Failure> {
    let leases: Vec<Lease> = (0..LEASES)
        .map(|number| Lease::new(name(number), (number % TAKERS) as u64))
        .collect();
    let mut connection = server.connection();
    for command in leases.iter().flat_map(Lease::commands) {
        connection.command(&command);
    }
    let mut batches = Vec::new();
    for batch in leases.chunks(BATCH) {
        batches.push(bare.renewal(batch).await?);
    }
    let meter = Meter::start(connection);
    for _ in 0..FLOOR_ROUNDS {
        for batch in &batches {
            batch.send().await?;
            sleep(FLOOR_PAUSE).await;
        }
    }
    let cost = meter.stop()?;
    server.connection().command(&["FLUSHALL"]);
    Ok(cost)
}

/// Returns the name of a lock, which product and floor share.
fn name(number: usize) -> String {
    format!("bench:lease:{number:05}")
}

/// Measures the cost of renewals from its start on.
struct Meter {
    connection: Connection,
    processor_time: Duration,
}

impl Meter {
    fn start(mut connection: Connection) -> Self {
        stats::reset(&mut connection);
        Self {
            connection,
            processor_time: clock::processor_time(),
        }
    }

    fn stop(mut self) -> Result<Cost, Failure> {
        let processor_time = clock::processor_time() - self.processor_time;
        let stats = Stats::read(&mut self.connection);
        let scripts = stats.of("evalsha");
        // The script reads one field of each lease that it renews.
        let renewed = stats.of("hget").calls as f64;
        if renewed == 0.0 {
            return Err("no lease was renewed".into());
        }
        Ok(Cost {
            server: scripts.micros as f64 / 1e6 / renewed,
            client: processor_time.as_secs_f64() / renewed,
            batch: renewed / scripts.calls as f64,
        })
    }
}
