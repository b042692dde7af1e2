//! The price of each thing by itself: a PING, an acquisition, a renewal, a wait, a connection, a held lock.

use std::time::{Duration, Instant};

use redlatch::{Client, ReentrantLock};
use redlatch_testkit::Server;
use tokio::time::sleep;

use super::bill::{Bill, Meter, memory};
use super::process::{self, hold, tell_all};
use crate::Failure;
use crate::crowd::Crowd;
use crate::effort::Sizing;
use crate::pipe::Pipe;
use crate::report::{Figure, Line, Target};
use crate::section::Section;

const LEASE: Duration = Duration::from_secs(30);
/// Renewed often, so that a short span has many renewals.
const SHORT_LEASE: Duration = Duration::from_millis(300);
const RENEWED_LEASE: Duration = Duration::from_secs(3);
/// Clients that hold one lock each, so that each script renews one.
const SINGLE: usize = 50;
const MANY: usize = 10_000;
const NAMES: usize = 1_000;
/// After this time a server has trimmed the buffers of a connection that rests.
const TRIM: Duration = Duration::from_secs(4);
/// The time after which each waiter has asked again: the default of `poll_cap`.
const POLL_CAP: Duration = Duration::from_secs(5);

/// What each thing costs by itself.
#[derive(Debug)]
pub(crate) struct Prices {
    /// What a server without clients spends in a second, in microseconds.
    pub(crate) idle: f64,
    pub(crate) ping: Bill,
    /// A lock and an unlock by the only task of a client.
    pub(crate) section: Bill,
    /// The same, by one of 64 tasks that share the connection.
    pub(crate) shared: Bill,
    /// The same, of a lock that 8 clients want.
    pub(crate) contended: Bill,
    /// One lease, in a script of its own, and as one of many; with the number of leases in a script.
    pub(crate) renewal: Bill,
    pub(crate) batched: (Bill, f64),
    /// The beginning of a wait for a name, and one second of it.
    pub(crate) wait: Bill,
    pub(crate) waiting: Bill,
    pub(crate) connection: Bill,
    pub(crate) client: Memory,
    /// The same of the server, once it has trimmed the buffers of the connections.
    pub(crate) resting: f64,
    pub(crate) held: Memory,
    pub(crate) waited: Memory,
}

/// Bytes that one thing takes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Memory {
    pub(crate) server: f64,
    pub(crate) client: f64,
}

impl Prices {
    pub(crate) async fn measure(sizing: &Sizing) -> Result<Self, Failure> {
        let idle = idle(sizing.span).await?;
        let (connection, client, resting) = connections(idle, sizing.clients.min(200)).await?;
        let (batched, held) = batched_renewals(idle, sizing.span).await?;
        let (wait, waiting, waited) = waits(idle).await?;
        Ok(Self {
            idle,
            ping: pings(idle, sizing.span).await?,
            section: sections(idle, sizing.span, 1).await?,
            shared: sections(idle, sizing.span, 64).await?,
            contended: contended(idle, sizing.span).await?,
            renewal: single_renewals(idle, sizing.span).await?,
            batched,
            wait,
            waiting,
            connection,
            client,
            resting,
            held,
            waited,
        })
    }

    pub(crate) fn lines(&self) -> Vec<Line> {
        let (batched, leases) = &self.batched;
        let many = format!("a renewal, {leases:.0} in a script");
        let bills = [
            ("a bare PING", "ping", &self.ping),
            ("a lock and an unlock", "section", &self.section),
            ("the same, among 64 tasks", "shared", &self.shared),
            (
                "the same, wanted by 8 clients",
                "contended",
                &self.contended,
            ),
            ("a renewal, alone in its script", "renewal", &self.renewal),
            (many.as_str(), "batched", batched),
            ("the beginning of a wait", "wait", &self.wait),
            ("a second of a wait", "waiting", &self.waiting),
            ("a client that connects", "connection", &self.connection),
        ];
        let mut lines = vec![Line {
            shape: "a server without clients, in a second".to_owned(),
            product: format!("{:.0} µs", self.idle),
            floor: String::new(),
            figure: figure("idle_server_us", self.idle),
        }];
        for (what, key, bill) in bills {
            lines.extend([
                Line {
                    shape: format!("{what}: the server"),
                    product: bill.of_server(),
                    floor: format!("{:.1} µs, a PING", self.ping.server),
                    figure: figure(&format!("{key}_server_us"), bill.server),
                },
                Line {
                    shape: format!("{what}: the client"),
                    product: format!("{:.1} µs", bill.client),
                    floor: format!("{:.1} µs, a PING", self.ping.client),
                    figure: figure(&format!("{key}_client_us"), bill.client),
                },
            ]);
        }
        let memories = [
            ("a connected client", "client", self.client),
            ("a held lock", "held", self.held),
            ("a name that a process waits for", "waited", self.waited),
        ];
        for (what, key, memory) in memories {
            let line = |side: &str, bytes: f64| Line {
                shape: format!("{what}: bytes of the {side}"),
                product: format!("{bytes:.0} B"),
                floor: String::new(),
                figure: figure(&format!("{key}_{side}_bytes"), bytes),
            };
            lines.extend([line("server", memory.server), line("client", memory.client)]);
        }
        lines.push(Line {
            shape: "a connected client, at rest: bytes of the server".to_owned(),
            product: format!("{:.0} B", self.resting),
            floor: String::new(),
            figure: figure("resting_server_bytes", self.resting),
        });
        lines
    }
}

/// Returns the figure of a line of this chapter.
pub(crate) fn figure(key: &str, value: f64) -> Option<Figure> {
    Some(Figure::new(&format!("sizing_{key}"), value, Target::None))
}

async fn idle(span: Duration) -> Result<f64, Failure> {
    let server = Server::start();
    let meter = Meter::start(&server);
    sleep(span).await;
    let (bill, seconds) = meter.stop(0.0);
    Ok(bill.server / seconds)
}

async fn pings(idle: f64, span: Duration) -> Result<Bill, Failure> {
    let server = Server::start();
    let pipe = Pipe::connect(&server.url()).await?;
    let meter = Meter::start(&server);
    let asking = tokio::spawn(async move {
        let (started, mut pings) = (Instant::now(), 0.0);
        while started.elapsed() < span / 2 {
            pipe.ask("PING", &[]).await?;
            pings += 1.0;
        }
        Ok::<f64, Failure>(pings)
    });
    let pings = asking.await??;
    meter.stop(idle).0.over(pings)
}

async fn sections(idle: f64, span: Duration, tasks: usize) -> Result<Bill, Failure> {
    let server = Server::start();
    let client = Client::connect(server.url()).await?;
    let names = |task| client.lock(format!("bench:product:{task:02}"));
    let locks: Vec<ReentrantLock> = (0..tasks).map(names).collect();
    // Loads the scripts.
    locks[0].pass().await?;
    let meter = Meter::start(&server);
    let crowd = Crowd::run(locks, span / 2).await?;
    let bill = meter.stop(idle).0.over(crowd.waits.count() as f64);
    client.close().await;
    bill
}

async fn contended(idle: f64, span: Duration) -> Result<Bill, Failure> {
    let server = Server::start();
    let mut clients = Vec::new();
    for _ in 0..8 {
        clients.push(Client::connect(server.url()).await?);
    }
    let locks: Vec<ReentrantLock> = clients
        .iter()
        .map(|client| client.lock("bench:product"))
        .collect();
    locks[0].pass().await?;
    let meter = Meter::start(&server);
    let crowd = Crowd::run(locks, span / 2).await?;
    let bill = meter.stop(idle).0.over(crowd.waits.count() as f64);
    for client in clients {
        client.close().await;
    }
    bill
}

async fn single_renewals(idle: f64, span: Duration) -> Result<Bill, Failure> {
    let server = Server::start();
    let mut held = Vec::new();
    for number in 0..SINGLE {
        let client = process::connect(&server.url(), SHORT_LEASE).await?;
        held.push((
            hold(&client, 1, &format!("bench:lease:{number}"), Duration::ZERO).await?,
            client,
        ));
    }
    let meter = Meter::start(&server);
    sleep(span).await;
    let (bill, _) = meter.stop(idle);
    for (_, client) in held {
        client.close().await;
    }
    bill.over(bill.renewed)
}

/// Measures the renewals of many leases, and what a held lock takes.
async fn batched_renewals(idle: f64, span: Duration) -> Result<((Bill, f64), Memory), Failure> {
    let server = Server::start();
    let mut holder = [process::start(&server.url(), RENEWED_LEASE).await?];
    let before = memory(&server);
    let order = |_| format!("hold {MANY} bench:lease 0");
    let held = tell_all(&mut holder, RENEWED_LEASE, order).await?;
    let held = Memory {
        server: (memory(&server) - before) / MANY as f64,
        client: held.grown / MANY as f64,
    };
    let live = |span: Duration| format!("live 0 {}", span.as_millis());
    // A period, over which the renewals spread.
    tell_all(&mut holder, RENEWED_LEASE, |_| live(RENEWED_LEASE / 3)).await?;
    let meter = Meter::start(&server);
    let spent = tell_all(&mut holder, span, |_| live(span)).await?;
    let (bill, _) = meter.stop(idle);
    let bill = Bill {
        client: spent.spent,
        ..bill
    };
    let leases = bill.renewed / bill.commands;
    Ok(((bill.over(bill.renewed)?, leases), held))
}

/// Measures the waits of one process for many names: their beginning, a second of each, and their memory.
async fn waits(idle: f64) -> Result<(Bill, Bill, Memory), Failure> {
    let server = Server::start();
    let other = process::connect(&server.url(), LEASE).await?;
    let held = {
        let mut held = Vec::new();
        for number in 0..NAMES {
            held.push(other.lock(format!("bench:held:{number}")).lock().await?);
        }
        held
    };
    let mut process = [process::start(&server.url(), LEASE).await?];
    let (before, meter) = (memory(&server), Meter::start(&server));
    let began = tell_all(&mut process, LEASE, |_| format!("wait {NAMES} bench:held")).await?;
    let (wait, _) = meter.stop(idle);
    let waited = Memory {
        server: (memory(&server) - before) / NAMES as f64,
        client: began.grown / NAMES as f64,
    };
    let meter = Meter::start(&server);
    let order = |_| format!("live 0 {}", POLL_CAP.as_millis());
    let spent = tell_all(&mut process, POLL_CAP, order).await?;
    let (waiting, seconds) = meter.stop(idle);
    let of_client = |bill: Bill, client: f64| Bill { client, ..bill };
    let wait = of_client(wait, began.spent).over(NAMES as f64)?;
    let waiting = of_client(waiting, spent.spent).over(NAMES as f64 * seconds)?;
    drop(process);
    other.close().await;
    drop(held);
    Ok((wait, waiting, waited))
}

/// Measures what it costs to connect a client, and what a connected client takes.
async fn connections(idle: f64, clients: usize) -> Result<(Bill, Memory, f64), Failure> {
    let server = Server::start();
    let mut process = [process::start(&server.url(), LEASE).await?];
    let (before, meter) = (memory(&server), Meter::start(&server));
    let patience = Duration::from_secs(10);
    let grown = tell_all(&mut process, patience, |_| format!("connect {clients}")).await?;
    let (bill, _) = meter.stop(idle);
    let count = clients as f64;
    let bill = Bill {
        client: grown.spent,
        ..bill
    };
    let connected = Memory {
        server: (memory(&server) - before) / count,
        client: grown.grown / count,
    };
    sleep(TRIM).await;
    let resting = (memory(&server) - before) / count;
    Ok((bill.over(count)?, connected, resting))
}
