//! The journal of a worker. Each line is flushed at once, so that a kill loses nothing.

use std::io::{self, BufRead, Write};
use std::process::exit;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use redlatch::LockGuard;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use super::event::{Event, Op, Step, now};
use super::leftover::Quiet;

/// A line of a worker. Everything else on its standard output comes from the test harness.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Line {
    Event(Event),
    Quiet(Quiet),
    /// The error of an operation. A loaded machine can cause such errors.
    Error(String),
}

/// The writing end, in the worker.
#[derive(Debug)]
pub(crate) struct Journal {
    process: u32,
    guards: AtomicU32,
}

impl Line {
    pub(crate) fn parse(line: &str) -> Option<Self> {
        let (kind, rest) = line.strip_prefix('@')?.split_once(' ')?;
        match kind {
            "event" => Event::parse(rest).map(Self::Event),
            "quiet" => Quiet::parse(rest).map(Self::Quiet),
            "error" => Some(Self::Error(rest.to_owned())),
            _ => None,
        }
    }
}

impl Journal {
    pub(crate) fn new(process: u32) -> Self {
        // The test harness leaves its own line unfinished.
        write("\n");
        Self {
            process,
            guards: AtomicU32::new(0),
        }
    }

    pub(crate) fn process(&self) -> u32 {
        self.process
    }

    pub(crate) fn next_guard(&self) -> u32 {
        self.guards.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Writes an event that happens now. `of` is the owner and the lock; a deadline of zero means that none is known.
    pub(crate) fn note(&self, of: (u32, u32), op: Op, step: Step, guard: u32, deadline: u64) {
        let (owner, lock) = of;
        let event = Event {
            at: now(),
            process: self.process,
            owner,
            lock,
            op,
            step,
            guard,
            deadline,
        };
        write(&format!("@event {event}\n"));
    }

    pub(crate) fn quiet(&self, quiet: &Quiet) {
        write(&format!("@quiet {}\n", quiet.line()));
    }

    pub(crate) fn error(&self, error: &redlatch::Error) {
        write(&format!("@error process {}: {error}\n", self.process));
    }
}

/// Returns the time until which a guard can at least be trusted, or zero if it cannot be trusted.
pub(crate) fn deadline(guard: &LockGuard) -> u64 {
    // The clock is read first, so that time between the two readings does not make the hold look longer.
    let now = now();
    match guard.remaining().as_nanos() as u64 {
        0 => 0,
        left => now + left,
    }
}

/// Returns the commands of the parent process, the last of which is `end`. If the parent ends before it sends `end`,
/// this process exits.
pub(crate) fn commands() -> UnboundedReceiver<String> {
    let (sender, commands) = unbounded_channel();
    thread::spawn(move || {
        for line in io::stdin().lock().lines() {
            let Ok(line) = line else { break };
            let last = line == "end";
            if sender.send(line).is_err() || last {
                return;
            }
        }
        exit(3);
    });
    commands
}

fn write(text: &str) {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes()).expect("somebody reads");
    out.flush().expect("somebody reads");
}
