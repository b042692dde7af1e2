//! What something cost: the server, the network between, and this process.

use std::ops::{Add, Mul};
use std::time::{Duration, Instant};

use redlatch_testkit::{Connection, Server};

use crate::Failure;
use crate::clock;
use crate::stats::{self, Stats};

/// Costs of a span, of one piece of work, or of a second. Times are microseconds of a processor.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Bill {
    /// All that the server spent, with its reads and writes.
    pub(crate) server: f64,
    /// What it counts for the commands of clients: a part of `server`.
    pub(crate) inside: f64,
    pub(crate) commands: f64,
    /// Bytes that the server received and sent.
    pub(crate) received: f64,
    pub(crate) sent: f64,
    /// All that this process spent, in every thread.
    pub(crate) client: f64,
    /// Leases that were renewed.
    pub(crate) renewed: f64,
}

/// Measures a [`Bill`] from its start on.
pub(crate) struct Meter {
    connection: Connection,
    server: f64,
    client: Duration,
    started: Instant,
}

impl Meter {
    pub(crate) fn start(server: &Server) -> Self {
        let mut connection = server.connection();
        let server = processor(&mut connection);
        stats::reset(&mut connection);
        Self {
            connection,
            server,
            client: clock::processor_time(),
            started: Instant::now(),
        }
    }

    /// Has the server carry out a command on the connection of the meter.
    pub(crate) fn command(&mut self, words: &str) {
        let words: Vec<&str> = words.split(' ').collect();
        self.connection.command(&words);
    }

    /// Returns the costs since the start, less what a server spends in that time without clients, and the seconds.
    pub(crate) fn stop(mut self, idle: f64) -> (Bill, f64) {
        let seconds = self.started.elapsed().as_secs_f64();
        let client = clock::processor_time() - self.client;
        let server = processor(&mut self.connection) - self.server - idle * seconds;
        let traffic = info(&mut self.connection, "stats");
        let stats = Stats::read(&mut self.connection);
        let mut kinds = vec![stats.of_all("client")];
        let words = [
            "evalsha",
            "eval",
            "subscribe",
            "unsubscribe",
            "ping",
            "hello",
        ];
        kinds.extend(words.map(|word| stats.of(word)));
        let bill = Bill {
            server: server.max(0.0),
            inside: kinds.iter().map(|kind| kind.micros as f64).sum(),
            commands: kinds.iter().map(|kind| kind.calls as f64).sum(),
            received: field(&traffic, "total_net_input_bytes"),
            sent: field(&traffic, "total_net_output_bytes"),
            client: client.as_secs_f64() * 1e6,
            // The script reads one field of each lease, and no other script does.
            renewed: stats.of("hget").calls as f64,
        };
        (bill, seconds)
    }
}

impl Bill {
    /// Returns the part of one, where these are the costs of so many.
    pub(crate) fn over(self, count: f64) -> Result<Self, Failure> {
        if count <= 0.0 {
            return Err("nothing was done that could be paid for".into());
        }
        Ok(self * (1.0 / count))
    }

    /// Returns the costs on the server and on the way to it, as text.
    pub(crate) fn of_server(&self) -> String {
        format!(
            "{:.1} µs, {:.1} of them in {:.2} commands; {:.0} B in, {:.0} B out",
            self.server, self.inside, self.commands, self.received, self.sent
        )
    }

    pub(crate) fn bytes(&self) -> f64 {
        self.received + self.sent
    }
}

impl Mul<f64> for Bill {
    type Output = Self;

    fn mul(self, times: f64) -> Self {
        Self {
            server: self.server * times,
            inside: self.inside * times,
            commands: self.commands * times,
            received: self.received * times,
            sent: self.sent * times,
            client: self.client * times,
            renewed: self.renewed * times,
        }
    }
}

impl Add for Bill {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            server: self.server + other.server,
            inside: self.inside + other.inside,
            commands: self.commands + other.commands,
            received: self.received + other.received,
            sent: self.sent + other.sent,
            client: self.client + other.client,
            renewed: self.renewed + other.renewed,
        }
    }
}

/// Returns the memory that the server has allocated, in bytes.
pub(crate) fn memory(server: &Server) -> f64 {
    field(&info(&mut server.connection(), "memory"), "used_memory")
}

/// Returns a number from a section of `INFO`.
pub(crate) fn number_of(server: &Server, section: &str, name: &str) -> f64 {
    field(&info(&mut server.connection(), section), name)
}

/// Returns the processor time that the server has spent, in microseconds.
fn processor(connection: &mut Connection) -> f64 {
    let spent = info(connection, "cpu");
    (field(&spent, "used_cpu_user") + field(&spent, "used_cpu_sys")) * 1e6
}

fn info(connection: &mut Connection, section: &str) -> String {
    connection.command(&["INFO", section]).text()
}

fn field(info: &str, name: &str) -> f64 {
    let values = info
        .lines()
        .filter_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    let mut values = values.filter_map(|value| value.trim().parse().ok());
    values.next().unwrap_or_default()
}
