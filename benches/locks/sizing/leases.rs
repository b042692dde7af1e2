//! The leases of one client, from a thousand to a hundred thousand: what a renewal costs, and whether it comes in time.

use std::time::{Duration, Instant};

use redlatch::LockGuard;
use redlatch_testkit::Server;
use tokio::time::sleep;

use super::bill::{Bill, Meter};
use super::prices::figure;
use super::process::{connect, hold};
use crate::Failure;
use crate::effort::Sizing;
use crate::report::Line;

const LEASE: Duration = Duration::from_secs(6);
const PERIOD: Duration = Duration::from_secs(2);
/// What the promise of a lease is shorter than the lease: a hundredth and 2 ms.
const MARGIN: Duration = Duration::from_millis(62);
const LOOK: Duration = Duration::from_millis(50);

/// What a number of leases costs.
struct Held {
    leases: usize,
    /// Of one renewal.
    bill: Bill,
    /// In a second.
    renewals: f64,
    batch: f64,
    /// How late a renewal was confirmed at the worst, counted from a third of the lease.
    lag: Duration,
    lost: usize,
}

pub(crate) async fn lines(sizing: &Sizing, idle: f64) -> Result<Vec<Line>, Failure> {
    let mut lines = Vec::new();
    for &leases in sizing.leases {
        lines.extend(Held::measure(leases, sizing.span, idle).await?.lines());
    }
    Ok(lines)
}

impl Held {
    async fn measure(leases: usize, span: Duration, idle: f64) -> Result<Self, Failure> {
        let server = Server::start();
        let client = connect(&server.url(), LEASE).await?;
        let guards = hold(&client, leases, "bench:lease", PERIOD).await?;
        sleep(PERIOD).await;
        let meter = Meter::start(&server);
        sleep(span).await;
        let (bill, seconds) = meter.stop(idle);
        let least = least_left(&guards, span.max(PERIOD)).await;
        let lost = guards.iter().filter(|guard| guard.is_lost()).count();
        client.close().await;
        Ok(Self {
            leases,
            bill: bill.over(bill.renewed)?,
            renewals: bill.renewed / seconds,
            batch: bill.renewed / bill.commands,
            lag: (LEASE - PERIOD - MARGIN).saturating_sub(least),
            lost,
        })
    }

    fn lines(&self) -> Vec<Line> {
        let Self { leases, bill, .. } = self;
        let share = |micros: f64| micros * self.renewals / 1e4;
        let line = |what: &str, product: String, key: &str, value: f64| Line {
            shape: format!("{leases} leases of one client: {what}"),
            product,
            floor: String::new(),
            figure: figure(&format!("leases{leases}_{key}"), value),
        };
        let lag = self.lag.as_secs_f64() * 1e3;
        vec![
            line(
                "a renewal, the server",
                format!(
                    "{:.2} µs, {:.0} in a script: {:.1} % for {:.0}/s",
                    bill.server,
                    self.batch,
                    share(bill.server),
                    self.renewals
                ),
                "server_us",
                bill.server,
            ),
            line(
                "a renewal, the client",
                format!("{:.2} µs: {:.1} %", bill.client, share(bill.client)),
                "client_us",
                bill.client,
            ),
            line(
                "the latest renewal, ms after a third of the lease",
                format!("{lag:.0} ms, {} lost", self.lost),
                "lag_ms",
                lag,
            ),
        ]
    }
}

/// Returns the least that any lease had left within this time.
async fn least_left(guards: &[LockGuard], span: Duration) -> Duration {
    let (started, mut least) = (Instant::now(), LEASE);
    while started.elapsed() < span {
        let left = guards.iter().map(|guard| guard.remaining());
        least = left.min().unwrap_or_default().min(least);
        sleep(LOOK).await;
    }
    least
}
