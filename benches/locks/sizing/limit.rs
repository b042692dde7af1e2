//! The most that one server carries, and how a cluster spreads it.

use std::ops::Add;
use std::time::Duration;

use redlatch_testkit::{Cluster, Server};
use tokio::time::sleep;

use super::bill::{Bill, Meter, number_of};
use super::prices::figure;
use super::process::{self, hold, tell_all};
use crate::Failure;
use crate::effort::Sizing;
use crate::report::{Line, rate};

const LEASE: Duration = Duration::from_secs(30);
/// Of the locks in the cluster, so that a short span has many renewals.
const SHORT_LEASE: Duration = Duration::from_secs(3);
const PROCESSES: usize = 4;
/// Tasks of each process.
const TASKS: usize = 32;
const SPREAD: usize = 3_000;

pub(crate) async fn lines(sizing: &Sizing, idle: f64) -> Result<Vec<Line>, Failure> {
    let server = Server::start();
    let mut processes = Vec::new();
    for _ in 0..PROCESSES {
        processes.push(process::start(&server.url(), LEASE).await?);
    }
    let meter = Meter::start(&server);
    let order = |_| format!("crowd {TASKS} {}", sizing.span.as_millis());
    let answer = tell_all(&mut processes, sizing.span, order).await?;
    let (bill, seconds) = meter.stop(idle);
    let bill: Bill = bill.over(answer.passed)?;
    let (reached, full) = (answer.passed / seconds, 1e6 / bill.server);
    drop(processes);
    let mut lines = vec![
        Line {
            shape: "one server, 4 processes × 32 tasks with names of their own: sections"
                .to_owned(),
            product: format!(
                "{}, at {:.0} % of a processor",
                rate(reached),
                reached / full * 100.0
            ),
            floor: String::new(),
            figure: figure("limit_sections_per_s", reached),
        },
        Line {
            shape: "the same, on a whole processor".to_owned(),
            product: format!("{}, {:.1} µs each", rate(full), bill.server),
            floor: String::new(),
            figure: figure("limit_full_sections_per_s", full),
        },
    ];
    lines.extend(cluster(sizing.span).await?);
    Ok(lines)
}

/// Returns how a cluster of three spreads the locks of a client, and what their renewals cost there.
async fn cluster(span: Duration) -> Result<[Line; 3], Failure> {
    let cluster = Cluster::start();
    let client = process::connect(&cluster.url(), SHORT_LEASE).await?;
    // Each server talks to the others, with or without clients.
    let idle = watch(&cluster, span).await;
    let held = hold(&client, SPREAD, "bench:lease", SHORT_LEASE / 3).await?;
    let nodes = cluster.nodes();
    let keys: Vec<usize> = nodes
        .iter()
        .map(|node| node.connection().keys().len())
        .collect();
    let connections = nodes
        .iter()
        .map(|node| number_of(node, "clients", "connected_clients") - 1.0);
    let connections: Vec<f64> = connections.collect();
    let busy = watch(&cluster, span).await;
    client.close().await;
    drop(held);
    let bill = (busy + idle * -1.0).over(busy.renewed)?;
    let most = keys.iter().max().copied().unwrap_or_default() as f64;
    let line = |what: &str, product: String, key: &str, value: f64| Line {
        shape: format!("{SPREAD} locks of one client in a cluster of 3: {what}"),
        product,
        floor: String::new(),
        figure: figure(key, value),
    };
    Ok([
        line(
            "of each primary",
            format!("{keys:?} locks, {connections:?} connections"),
            "cluster_most_of_mean",
            most * keys.len() as f64 / SPREAD as f64,
        ),
        line(
            "a renewal, the servers",
            bill.of_server(),
            "cluster_renewal_server_us",
            bill.server,
        ),
        line(
            "a renewal, the client",
            format!("{:.1} µs", bill.client),
            "cluster_renewal_client_us",
            bill.client,
        ),
    ])
}

/// Returns what all servers of a cluster spend in this time, and the client.
async fn watch(cluster: &Cluster, span: Duration) -> Bill {
    let meters: Vec<Meter> = cluster.nodes().iter().map(Meter::start).collect();
    sleep(span).await;
    let bills: Vec<Bill> = meters.into_iter().map(|meter| meter.stop(0.0).0).collect();
    let client = bills.first().map_or(0.0, |bill| bill.client);
    let sum = bills.into_iter().fold(Bill::default(), Bill::add);
    Bill { client, ..sum }
}
