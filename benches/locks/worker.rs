//! A worker: this program again, in a process of its own, which is told what to do line by line.
//!
//! It reads requests from its standard input, and writes answers to its standard output. It ends when that input ends,
//! and therefore with the process that started it. It is killed when its handle is dropped.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::Duration;
use std::{env, thread};

use tokio::sync::mpsc::{self, UnboundedReceiver};
use tokio::time::timeout;

use crate::Failure;

/// The first argument of a worker.
pub(crate) const ROLE: &str = "worker";
/// How long a worker may take to come up, or to answer, in addition to the time of the work that it was told to do.
const PATIENCE: Duration = Duration::from_secs(20);

/// A worker, seen from the process that started it.
#[derive(Debug)]
pub(crate) struct Worker {
    process: Child,
    orders: ChildStdin,
    answers: Lines,
}

/// The lines of a stream, as they arrive.
#[derive(Debug)]
pub(crate) struct Lines(UnboundedReceiver<String>);

impl Worker {
    /// Starts a worker and waits until it is ready.
    pub(crate) async fn start(args: &[&str]) -> Result<Self, Failure> {
        Self::run(&mut command(args)?).await
    }

    /// Starts another program that works in the same way, and waits until it is ready.
    pub(crate) async fn run(program: &mut Command) -> Result<Self, Failure> {
        let mut process = program
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let (Some(orders), Some(answers)) = (process.stdin.take(), process.stdout.take()) else {
            return Err("a worker without pipes".into());
        };
        let mut worker = Self {
            process,
            orders,
            answers: Lines::of(answers),
        };
        worker.hear(Duration::ZERO).await?;
        Ok(worker)
    }

    pub(crate) fn tell(&mut self, order: &str) -> Result<(), Failure> {
        writeln!(self.orders, "{order}")?;
        Ok(self.orders.flush()?)
    }

    /// Returns the next line from the worker, which may take `busy` and [`PATIENCE`] over it.
    pub(crate) async fn hear(&mut self, busy: Duration) -> Result<String, Failure> {
        let line = timeout(busy + PATIENCE, self.answers.next()).await?;
        line.ok_or_else(|| "a worker ended early, see above".into())
    }
}

/// Returns the command that starts a worker.
pub(crate) fn command(args: &[&str]) -> Result<Command, Failure> {
    let mut command = Command::new(env::current_exe()?);
    command.arg(ROLE).args(args);
    Ok(command)
}

impl Drop for Worker {
    fn drop(&mut self) {
        // The process may have ended by itself.
        drop(self.process.kill());
        drop(self.process.wait());
    }
}

impl Lines {
    /// Returns the requests to this process, if it is a worker.
    pub(crate) fn orders() -> Self {
        Self::of(std::io::stdin())
    }

    fn of(stream: impl Read + Send + 'static) -> Self {
        let (sender, lines) = mpsc::unbounded_channel();
        thread::spawn(move || {
            for line in BufReader::new(stream).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Self(lines)
    }

    /// Returns the next line, or `None` at the end of the stream.
    pub(crate) async fn next(&mut self) -> Option<String> {
        self.0.recv().await
    }
}

/// Sends a line to the process that started this one.
pub(crate) fn answer(line: &str) -> Result<(), Failure> {
    let mut output = std::io::stdout().lock();
    writeln!(output, "{line}")?;
    Ok(output.flush()?)
}

/// Parses a number that is a word of a line.
pub(crate) fn number(word: Option<&str>) -> Result<u64, Failure> {
    Ok(word.ok_or("a line ends early")?.parse()?)
}
