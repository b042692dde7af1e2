//! A fleet of processes, next to what the prices say that it costs.

use std::time::Duration;

use redlatch_testkit::Server;

use super::bill::{Bill, Meter, memory, number_of};
use super::prices::{Prices, figure};
use super::process::{self, tell_all};
use crate::Failure;
use crate::effort::Sizing;
use crate::report::Line;

/// A lease is renewed after a third of it, less up to a fifth at random, at the beginning of a fiftieth.
const RENEWALS_OF_A_LEASE: f64 = 3.0 / 0.89;
/// The fiftieths over which the renewals of one process spread.
const FIFTIETHS: f64 = 0.89 * 50.0;
/// The most leases in one script.
const BATCH: f64 = 100.0;

/// The processes of one fleet are alike.
#[derive(Clone, Copy, Debug)]
struct Fleet {
    processes: usize,
    /// Of each process: locks that it holds, sections a second, names that it waits for.
    held: usize,
    sections: f64,
    waits: usize,
    lease: Duration,
}

impl Fleet {
    const fn growing(processes: usize) -> Self {
        Self {
            processes,
            held: 100,
            sections: 5.0,
            waits: 2,
            lease: Duration::from_secs(6),
        }
    }

    /// The one with the most renewals.
    const fn of_short_leases(processes: usize) -> Self {
        Self {
            processes,
            held: 200,
            sections: 10.0,
            waits: 0,
            lease: Duration::from_secs(3),
        }
    }

    /// Returns what a second of this fleet costs, by the formula of `SIZING.md`.
    fn predicted(&self, prices: &Prices) -> Bill {
        let held = self.held as f64;
        let renewals = held * RENEWALS_OF_A_LEASE / self.lease.as_secs_f64();
        let (batched, leases) = prices.batched;
        // One script costs `script` and each lease in it `lease`.
        let script = (prices.renewal + batched * -1.0) * (1.0 / (1.0 - 1.0 / leases));
        let lease = prices.renewal + script * -1.0;
        let mean = held / FIFTIETHS;
        let batch = (mean / (1.0 - (-mean).exp())).min(BATCH);
        let mut process = prices.section * self.sections
            + lease * renewals
            + script * (renewals / batch)
            + prices.waiting * self.waits as f64;
        if self.waits > 0 {
            process = process + prices.ping;
        }
        let mut fleet = process * self.processes as f64;
        // Of one process, unlike the rest.
        fleet.client = process.client;
        fleet
    }

    fn label(&self) -> String {
        let waits = match self.waits {
            0 => String::new(),
            waits => format!(", {waits} waits"),
        };
        format!(
            "{} × ({} leases of {:?}, {}/s{waits})",
            self.processes, self.held, self.lease, self.sections
        )
    }

    async fn lines(&self, prices: &Prices, span: Duration) -> Result<Vec<Line>, Failure> {
        let server = Server::start();
        let other = process::connect(&server.url(), Duration::from_secs(30)).await?;
        let mut held = Vec::new();
        for number in 0..self.waits {
            held.push(other.lock(format!("bench:held:{number}")).lock().await?);
        }
        let mut processes = Vec::new();
        let before = memory(&server);
        for _ in 0..self.processes {
            processes.push(process::start(&server.url(), self.lease).await?);
        }
        let period = self.lease / 3;
        let holding = |process| {
            format!(
                "hold {} bench:lease:{process} {}",
                self.held,
                period.as_millis()
            )
        };
        tell_all(&mut processes, self.lease, holding).await?;
        if self.waits > 0 {
            let waiting = |_| format!("wait {} bench:held", self.waits);
            tell_all(&mut processes, self.lease, waiting).await?;
        }
        let live = |span: Duration| format!("live {} {}", self.sections, span.as_millis());
        tell_all(&mut processes, period, |_| live(period)).await?;
        let meter = Meter::start(&server);
        let answer = tell_all(&mut processes, span, |_| live(span)).await?;
        let (bill, seconds) = meter.stop(prices.idle);
        let measured = Bill {
            client: answer.spent / self.processes as f64,
            ..bill
        };
        let measured = measured.over(seconds)?;
        let grown = memory(&server) - before;
        let connections = number_of(&server, "clients", "connected_clients") - 3.0;
        let channels = number_of(&server, "stats", "pubsub_channels");
        drop(processes);
        other.close().await;
        drop(held);
        let sizes = Line {
            shape: format!("{}: connections, channels, leases lost", self.label()),
            product: format!("{connections:.0}, {channels:.0}, {:.0}", answer.lost),
            floor: format!("{}, {}, 0", self.processes * 2, self.processes * self.waits),
            figure: None,
        };
        let mut lines = self.compared(prices, measured, grown);
        lines.push(sizes);
        Ok(lines)
    }

    /// Returns the lines that show each cost next to what the formula says.
    fn compared(&self, prices: &Prices, measured: Bill, grown: f64) -> Vec<Line> {
        let predicted = self.predicted(prices);
        let each = |price: f64, count: usize| price * count as f64;
        let memory = prices.client.server
            + each(prices.held.server, self.held)
            + each(prices.waited.server, self.waits);
        let memory = memory * self.processes as f64;
        let percent = |micros: f64| format!("{:.2} % of a processor", micros / 1e4);
        let kilobytes = |bytes: f64| format!("{:.1} kB", bytes / 1e3);
        let line =
            |what: &str, key: &str, measured: f64, predicted: f64, text: &dyn Fn(f64) -> String| {
                Line {
                    shape: format!("{}: {what}", self.label()),
                    product: text(measured),
                    floor: format!("{}, by the formula", text(predicted)),
                    figure: figure(
                        &format!(
                            "fleet{}_lease{}_{key}",
                            self.processes,
                            self.lease.as_secs()
                        ),
                        measured / predicted,
                    ),
                }
            };
        vec![
            line(
                "the server",
                "server",
                measured.server,
                predicted.server,
                &percent,
            ),
            line(
                "a process",
                "client",
                measured.client,
                predicted.client,
                &percent,
            ),
            line(
                "commands a second",
                "commands",
                measured.commands,
                predicted.commands,
                &|count| format!("{count:.0}"),
            ),
            line(
                "bytes a second",
                "bytes",
                measured.bytes(),
                predicted.bytes(),
                &kilobytes,
            ),
            line("memory of the server", "memory", grown, memory, &kilobytes),
        ]
    }
}

pub(crate) async fn lines(sizing: &Sizing, prices: &Prices) -> Result<Vec<Line>, Failure> {
    let mut lines = Vec::new();
    let mut fleets: Vec<Fleet> = sizing.fleets.iter().copied().map(Fleet::growing).collect();
    let most = sizing.fleets.iter().max().copied().unwrap_or_default();
    fleets.push(Fleet::of_short_leases(most.div_ceil(4)));
    for fleet in fleets {
        lines.extend(fleet.lines(prices, sizing.span).await?);
    }
    Ok(lines)
}
