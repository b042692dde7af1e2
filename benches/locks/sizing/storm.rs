//! Many clients that lose their server at the same time: what it costs the server until all are back.

use std::time::{Duration, Instant};

use redlatch::Client;
use redlatch_testkit::Server;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::time::{sleep, timeout};

use super::bill::{Bill, Meter, number_of};
use super::prices::figure;
use super::process::{connect, hold};
use crate::Failure;
use crate::effort::Sizing;
use crate::report::Line;

/// Of each client.
const LEASES: usize = 10;
/// Long, so that no renewals are counted.
const LEASE: Duration = Duration::from_secs(600);
const PATIENCE: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_millis(20);

/// How patient the clients are: with the defaults, and with what a large fleet should have.
const PATIENT: [(&str, &str, &str); 2] = [
    ("default timeouts", "storm", ""),
    (
        "timeouts of 10 s",
        "storm_patient",
        "?connect_timeout=10s&command_timeout=10s",
    ),
];

pub(crate) async fn lines(sizing: &Sizing, idle: f64) -> Result<Vec<Line>, Failure> {
    let count = sizing.clients.min(sockets()? / 2 - 100);
    let mut lines = Vec::new();
    for (timeouts, key, query) in PATIENT {
        let (bill, back, lost) = storm(count, query, idle).await?;
        let line = |what: &str, product: String, key: String, value: f64| Line {
            shape: format!(
                "{count} clients with {LEASES} leases each and {timeouts}, cut off: {what}"
            ),
            product,
            floor: String::new(),
            figure: figure(&key, value),
        };
        lines.extend([
            line(
                "the server, for a client",
                bill.of_server(),
                format!("{key}_server_us"),
                bill.server,
            ),
            line(
                "all are back",
                format!(
                    "{back:.1?}, {lost} lost, {:.0} µs of each client",
                    bill.client
                ),
                format!("{key}_back_s"),
                back.as_secs_f64(),
            ),
        ]);
    }
    Ok(lines)
}

/// Cuts so many clients off. Returns the costs of one, the time until all were back, and the leases that were lost.
async fn storm(count: usize, query: &str, idle: f64) -> Result<(Bill, Duration, usize), Failure> {
    let server = Server::builder().arg("tcp-backlog", 4096).start();
    let url = format!("{}{query}", server.url());
    let (mut clients, mut guards) = (Vec::new(), Vec::new());
    for number in 0..count {
        let client = connect(&url, LEASE).await?;
        guards.extend(hold(&client, LEASES, &format!("bench:{number}"), Duration::ZERO).await?);
        clients.push(client);
    }
    let mut meter = Meter::start(&server);
    let started = Instant::now();
    // As a failover does: the scripts are gone too.
    for command in [
        "SCRIPT FLUSH",
        "CLIENT KILL TYPE pubsub",
        "CLIENT KILL TYPE normal",
    ] {
        meter.command(command);
    }
    // Two connections of each, that of the meter, and that which asks.
    let connections = 2.0 * count as f64 + 2.0;
    let all_back = async {
        while number_of(&server, "clients", "connected_clients") < connections
            || !clients.iter().all(Client::is_connected)
        {
            sleep(LOOK).await;
        }
    };
    timeout(PATIENCE, all_back).await?;
    let back = started.elapsed();
    // Their holds have been checked by then.
    sleep(Duration::from_secs(1)).await;
    let (bill, _) = meter.stop(idle);
    let lost = guards.iter().filter(|guard| guard.is_lost()).count();
    for client in clients {
        client.close().await;
    }
    Ok((bill.over(count as f64)?, back, lost))
}

/// Raises the limit of open files as far as this process may, and returns it.
fn sockets() -> Result<usize, Failure> {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    let current = maximum;
    setrlimit(Resource::Nofile, Rlimit { current, maximum })?;
    Ok(maximum.unwrap_or(u64::MAX).try_into()?)
}
