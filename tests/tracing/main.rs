//! The log that an operator sees: the events in the life of a lock, none of which contains a secret.
//!
//! A program of its own, for its subscribers: each test records what happens on its thread.
#![allow(
    clippy::expect_used,
    clippy::unwrap_used,
    reason = "a test fails by panicking"
)]

mod faults;
mod life;
#[path = "../support/mod.rs"]
mod support;

use std::io;
use std::sync::{Arc, Mutex};

use support::eventually;
use tracing::subscriber::{DefaultGuard, set_default};
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::fmt::format::FmtSpan;

const PASSWORD: &str = "s3cret";

/// All log output, as text.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    /// Records what happens on this thread until the guard is dropped.
    fn record() -> (Self, DefaultGuard) {
        let log = Self::default();
        let subscriber = tracing_subscriber::fmt()
            .with_max_level(tracing::Level::TRACE)
            .with_span_events(FmtSpan::NEW | FmtSpan::CLOSE)
            .with_ansi(false)
            .with_writer(log.clone())
            .finish();
        (log, set_default(subscriber))
    }

    /// Returns the lines that an operator sees.
    fn told(&self) -> Vec<String> {
        let is_told = |line: &&str| {
            let level = line.split_whitespace().nth(1).unwrap_or_default();
            ["INFO", "WARN", "ERROR"].contains(&level)
        };
        self.text()
            .lines()
            .filter(is_told)
            .map(str::to_owned)
            .collect()
    }

    /// Checks that each event under the target `redlatch` is on its page, with its level and its fields.
    fn is_as_documented(&self) {
        let page = include_str!("../../src/tracing.rs");
        let rows = page.lines().filter_map(|line| line.strip_prefix("//! | `"));
        let rows: Vec<Vec<&str>> = rows.map(|row| row.split(" | ").collect()).collect();
        let text = self.text();
        for line in text.lines().filter(|line| line.contains(" redlatch: ")) {
            let level = line.split_whitespace().nth(1).unwrap().to_lowercase();
            let (_, event) = line.split_once(" redlatch: ").unwrap();
            let words = event.split(' ').take_while(|word| !word.contains('='));
            let name = words.collect::<Vec<_>>().join(" ");
            if ["new", "close"].contains(&&*name) {
                continue;
            }
            let row = rows.iter().find(|row| row[0].trim_end_matches('`') == name);
            let row = row.unwrap_or_else(|| panic!("not on the page: {line}"));
            assert!(row[1].contains(&level), "{level}: {line}");
            let first = event[name.len()..].trim_start().split('=').next().unwrap();
            assert!(row[2].contains(&format!("`{first}`")), "{first}: {line}");
        }
    }

    fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }

    async fn tells(&self, words: &[&str]) {
        let shown = format!("the log has a line with {words:?}");
        eventually(&shown, async || {
            self.text()
                .lines()
                .any(|line| words.iter().all(|word| line.contains(word)))
        })
        .await;
    }
}

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl MakeWriter<'_> for Log {
    type Writer = Self;

    fn make_writer(&self) -> Self {
        self.clone()
    }
}
