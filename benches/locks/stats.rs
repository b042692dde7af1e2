//! The server's statistics of the commands that it ran.

use std::collections::BTreeMap;

use redlatch_testkit::Connection;

/// The commands that clients of a lock send. A server also counts the commands inside scripts, both in its total and in
/// its table, but scripts run none of these.
const SENT_BY_CLIENTS: [&str; 5] = ["evalsha", "eval", "subscribe", "unsubscribe", "ping"];

/// `INFO commandstats` since the last [`reset`].
#[derive(Debug)]
pub(crate) struct Stats(BTreeMap<String, Figures>);

/// How often one command ran, and how many microseconds that took in total.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Figures {
    pub(crate) calls: u64,
    pub(crate) micros: u64,
}

/// Resets the server's counters to zero.
pub(crate) fn reset(connection: &mut Connection) {
    connection.command(&["CONFIG", "RESETSTAT"]);
}

impl Stats {
    pub(crate) fn read(connection: &mut Connection) -> Self {
        let text = connection.command(&["INFO", "commandstats"]).text();
        let lines = text
            .lines()
            .filter_map(|line| line.strip_prefix("cmdstat_")?.split_once(':'));
        Self(
            lines
                .map(|(command, figures)| (command.to_owned(), Figures::parse(figures)))
                .collect(),
        )
    }

    pub(crate) fn of(&self, command: &str) -> Figures {
        self.0.get(command).copied().unwrap_or_default()
    }

    /// Returns how many commands clients sent.
    pub(crate) fn sent_by_clients(&self) -> u64 {
        SENT_BY_CLIENTS
            .iter()
            .map(|command| self.of(command).calls)
            .sum()
    }

    /// Returns the figures of a command and of all its subcommands together.
    pub(crate) fn of_all(&self, command: &str) -> Figures {
        let is_one = |name: &str| name.split('|').next() == Some(command);
        let figures = self.0.iter().filter(|(name, _)| is_one(name));
        figures.fold(Figures::default(), |sum, (_, figures)| Figures {
            calls: sum.calls + figures.calls,
            micros: sum.micros + figures.micros,
        })
    }
}

impl Figures {
    fn parse(text: &str) -> Self {
        let number = |name: &str| {
            text.split(',')
                .filter_map(|field| field.split_once('='))
                .find(|(field, _)| *field == name)
                .and_then(|(_, number)| number.parse().ok())
                .unwrap_or_default()
        };
        Self {
            calls: number("calls"),
            micros: number("usec"),
        }
    }
}
