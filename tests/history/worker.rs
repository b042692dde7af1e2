//! A process that locks: this test program, started once more as a worker.

use std::env;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use tokio::runtime::{Builder, Runtime};

use super::event::{Event, Op, Step, now};
use super::history::Kill;
use super::journal::{Journal, Line};
use super::leftover::Quiet;
use super::{crew, puppet};
use crate::support::stop;

/// The environment variable that makes the test program a worker, and says which one.
const PART: &str = "REDLATCH_TEST_WORKER";
/// How long to wait for the next event of a healthy worker.
const PATIENCE: Duration = Duration::from_secs(30);

/// What a worker does.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Part {
    /// Carries out commands.
    Puppet,
    /// Locks at random for `lasts`. A victim stops in a section midway, to be killed there.
    Crew {
        seed: u64,
        lasts: Duration,
        victim: bool,
    },
}

/// A worker as seen by the process that started it. Killed on drop.
#[derive(Debug)]
pub(crate) struct Worker {
    process: u32,
    child: Child,
    lines: Receiver<Line>,
    seen: Vec<Line>,
}

impl Worker {
    pub(crate) fn start(process: u32, port: u16, part: Part) -> Self {
        let part = match part {
            Part::Puppet => "puppet".to_owned(),
            Part::Crew {
                seed,
                lasts,
                victim,
            } => format!("crew {seed} {} {victim}", lasts.as_millis()),
        };
        let mut child = Command::new(env::current_exe().expect("this program has a path"))
            .args(["worker", "--exact", "--ignored", "--nocapture"])
            .env(PART, format!("{process} {port} {part}"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("start this program once more");
        let output = child.stdout.take().expect("a pipe");
        let (sender, lines) = channel();
        thread::spawn(move || {
            let text = BufReader::new(output).lines().map_while(Result::ok);
            for line in text.filter_map(|line| Line::parse(&line)) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Self {
            process,
            child,
            lines,
            seen: Vec::new(),
        }
    }

    pub(crate) fn say(&mut self, command: &str) {
        let pipe = self.child.stdin.as_mut().expect("a pipe");
        writeln!(pipe, "{command}").expect("the worker listens");
    }

    /// Waits for the next event of this kind.
    #[track_caller]
    pub(crate) fn event(&mut self, op: Op, step: Step) -> Event {
        self.wait(PATIENCE, |line| match line {
            Line::Event(event) if event.is(op, step) => Some(*event),
            _ => None,
        })
        .unwrap_or_else(|| {
            panic!(
                "no {op} {step} from process {}: {:?}",
                self.process,
                self.tail()
            )
        })
    }

    /// Waits until the victim stays in its section.
    #[track_caller]
    pub(crate) fn stays(&mut self, within: Duration) {
        self.wait(within, |line| match line {
            Line::Event(event) if event.op == Op::Stay => Some(()),
            _ => None,
        })
        .unwrap_or_else(|| panic!("the victim got no lock: {:?}", self.tail()));
    }

    /// Waits until the worker has nothing left to do.
    #[track_caller]
    pub(crate) fn quiet(&mut self, within: Duration) -> Quiet {
        self.wait(within, |line| match line {
            Line::Quiet(quiet) => Some(quiet.clone()),
            _ => None,
        })
        .unwrap_or_else(|| panic!("process {} does not end: {:?}", self.process, self.tail()))
    }

    /// Kills the process with `SIGKILL`.
    pub(crate) fn kill(&mut self) -> Kill {
        let at = now();
        self.child.kill().expect("kill the worker");
        self.child.wait().expect("the worker ends");
        let process = self.process;
        Kill { process, at }
    }

    /// Stops the process, and returns when it has stopped.
    pub(crate) fn pause(&self) {
        stop::pause(&self.child);
    }

    pub(crate) fn resume(&self) {
        stop::resume(&self.child);
    }

    /// Makes the worker close its client, unless it was killed, and waits for its end. Returns all lines of the worker.
    #[track_caller]
    pub(crate) fn finish(mut self) -> Vec<Line> {
        if self.child.try_wait().expect("a child").is_none() {
            self.say("end");
            let status = self.child.wait().expect("the worker ends");
            assert!(status.success(), "process {}: {status}", self.process);
        }
        while let Ok(line) = self.lines.recv() {
            self.seen.push(line);
        }
        std::mem::take(&mut self.seen)
    }

    fn wait<T>(&mut self, within: Duration, wanted: impl Fn(&Line) -> Option<T>) -> Option<T> {
        let end = Instant::now() + within;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let line = self.lines.recv_timeout(left).ok()?;
            let found = wanted(&line);
            self.seen.push(line);
            if found.is_some() {
                return found;
            }
        }
    }

    fn tail(&self) -> &[Line] {
        &self.seen[self.seen.len().saturating_sub(5)..]
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// Runs the worker that the environment names, if it names one.
pub(crate) fn play() {
    let Ok(part) = env::var(PART) else { return };
    let words: Vec<&str> = part.split(' ').collect();
    let [process, port, ref part @ ..] = words[..] else {
        panic!("not a part: {part}");
    };
    let journal = Journal::new(process.parse().expect("a number"));
    let port = port.parse().expect("a port");
    match part {
        // The only thread of the runtime also takes the commands, so that a command can keep it from running anything.
        ["puppet"] => puppet::play(&runtime(&mut Builder::new_current_thread()), &journal, port),
        ["crew", seed, millis, victim] => {
            let runtime = runtime(Builder::new_multi_thread().worker_threads(2));
            let seed = seed.parse().expect("a seed");
            let lasts = Duration::from_millis(millis.parse().expect("milliseconds"));
            runtime.block_on(crew::play(journal, port, seed, lasts, *victim == "true"));
        }
        part => panic!("not a part: {part:?}"),
    }
}

fn runtime(builder: &mut Builder) -> Runtime {
    builder.enable_all().build().expect("a runtime")
}
