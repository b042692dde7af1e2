//! The signals that `redlatch run` takes.

use std::fs;
use std::future::poll_fn;
use std::io;
use std::task::Poll;

use nix::sys::signal::Signal;
use tokio::signal::unix::{self, SignalKind, signal};

use crate::job;

/// Those that are passed on, and SIGCHLD, which tells that the command was stopped.
const TAKEN: [Signal; 9] = [
    Signal::SIGINT,
    Signal::SIGTERM,
    Signal::SIGHUP,
    Signal::SIGQUIT,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
    Signal::SIGTSTP,
    Signal::SIGCONT,
    Signal::SIGCHLD,
];

/// A stream of the signals that this process gets.
#[derive(Debug)]
pub(crate) struct Signals {
    streams: Vec<(Signal, unix::Signal)>,
    /// Whether the next Ctrl-Z is the one that this process has sent to its own job.
    is_echo: bool,
}

impl Signals {
    /// Takes signals from now on. Those that this process was started to ignore, as by `nohup`, stay ignored, and the
    /// command ignores them too.
    pub(crate) fn listen() -> io::Result<Self> {
        let ignored = ignored();
        let taken = TAKEN
            .into_iter()
            // Where SIGCHLD is ignored, the system keeps no exit code of a command.
            .filter(|taken| *taken == Signal::SIGCHLD || ignored & (1 << (*taken as u32 - 1)) == 0);
        let streams = taken.map(|taken| Ok((taken, signal(SignalKind::from_raw(taken as i32))?)));
        Ok(Self {
            streams: streams.collect::<io::Result<_>>()?,
            is_echo: false,
        })
    }

    /// Sends Ctrl-Z to the job, this process included, which takes no note of it.
    pub(crate) fn tell_job_to_stop(&mut self) {
        // Where it is ignored, no signal comes back.
        let is_taken = self
            .streams
            .iter()
            .any(|(taken, _)| *taken == Signal::SIGTSTP);
        self.is_echo = job::tell(Signal::SIGTSTP) && is_taken;
    }

    /// Waits for the next signal. None is lost if the future is dropped.
    pub(crate) async fn next(&mut self) -> Signal {
        poll_fn(|context| {
            for (taken, stream) in &mut self.streams {
                while let Poll::Ready(Some(())) = stream.poll_recv(context) {
                    let is_stop = *taken == Signal::SIGTSTP;
                    if !is_stop || !std::mem::take(&mut self.is_echo) {
                        return Poll::Ready(*taken);
                    }
                }
            }
            Poll::Pending
        })
        .await
    }
}

/// Returns the set of ignored signals, where the system tells it without unsafe code; elsewhere the empty set.
fn ignored() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let set = line.and_then(|set| u64::from_str_radix(set.trim(), 16).ok());
    set.unwrap_or_default()
}
