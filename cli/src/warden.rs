//! The warden: a small process next to `redlatch run` that ends the command if `redlatch` cannot.
//!
//! `redlatch` may be killed, or stopped for longer than the lease, and then nobody would end the command when the lock is
//! lost. So a second process, in a group of its own, reads from a pipe until when the lock is held. If that time passes,
//! or if the pipe ends without a word, it ends the command.

use std::io::{BufRead, Write, stdin};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;
use std::{env, io};

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::signal::{SigSet, Signal, killpg};
use nix::time::{ClockId, clock_gettime};
use nix::unistd::Pid;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;

use crate::args::{self, OnLoss};

/// How much later than `redlatch` the warden acts, in milliseconds: as long as `redlatch` runs, it does so itself.
const LEEWAY: u64 = 20;
/// The longest sleep. A sleep does not count the time in which the machine is suspended.
const LONGEST: u64 = 500;

/// The end of the pipe that `redlatch` writes to.
#[derive(Debug)]
pub(crate) struct Warden {
    child: Child,
    pipe: Option<ChildStdin>,
}

impl Warden {
    /// Starts the warden, or returns `None` if the command is to go on without the lock.
    pub(crate) fn start(on_loss: OnLoss, grace: Duration) -> io::Result<Option<Self>> {
        let on_loss = match on_loss {
            OnLoss::Term => "term",
            OnLoss::Kill => "kill",
            OnLoss::Ignore => return Ok(None),
        };
        let mut child = Command::new(this_program()?)
            .args(["__warden", "--on-loss", on_loss, "--grace"])
            .arg(format!("{}ms", grace.as_millis()))
            // The URL may hold a password.
            .env_remove("REDIS_URL")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            // A signal to the group of `redlatch` stops or ends `redlatch` alone.
            .process_group(0)
            .spawn()?;
        let pipe = child.stdin.take();
        if let Some(pipe) = &pipe {
            // A warden that somebody stopped must not stop this process: it misses some lines then.
            fcntl(pipe, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
        }
        Ok(Some(Self { child, pipe }))
    }

    /// Says which process group the command has.
    pub(crate) fn guards(&mut self, group: Pid) -> io::Result<()> {
        self.say(format_args!("group {group}"))
    }

    /// Says for how long the lock is still held.
    pub(crate) fn held_for(&mut self, left: Duration) -> io::Result<()> {
        self.say(format_args!("until {}", after(left)))
    }

    /// Says that the command has been told to end, and will be killed after this time.
    pub(crate) fn ends_within(&mut self, grace: Duration) -> io::Result<()> {
        self.say(format_args!("ends {}", after(grace)))
    }

    fn say(&mut self, line: std::fmt::Arguments<'_>) -> io::Result<()> {
        match &mut self.pipe {
            // In one write, so that no line is ever cut in two.
            Some(pipe) => pipe.write_all(format!("{line}\n").as_bytes()),
            None => Ok(()),
        }
    }

    /// Lets the warden go: the command has ended.
    pub(crate) fn dismiss(mut self) {
        // Without the word it would end the group; if the warden is gone there is nobody to tell.
        self.say(format_args!("done")).ok();
        drop(self.pipe.take());
        // Not waited for: it has nothing to do any more, and the lock is still to be released.
        self.child.try_wait().ok();
    }
}

/// Returns the program that this process runs, even if its file was replaced.
fn this_program() -> io::Result<PathBuf> {
    let file = env::current_exe()?;
    Ok(match file.exists() {
        true => file,
        false => PathBuf::from("/proc/self/exe"),
    })
}

/// Returns the milliseconds of a clock that all processes share and that goes on while the machine is suspended.
fn now() -> u64 {
    #[cfg(any(target_os = "linux", target_os = "android"))]
    let clock = ClockId::CLOCK_BOOTTIME;
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    let clock = ClockId::CLOCK_MONOTONIC;
    match clock_gettime(clock) {
        Ok(time) => Duration::from(time).as_millis() as u64,
        // Every system has this clock. Were it to fail, the deadline would count as passed, which is safe.
        Err(_) => u64::MAX,
    }
}

fn after(span: Duration) -> u64 {
    now().saturating_add(u64::try_from(span.as_millis()).unwrap_or(u64::MAX))
}

/// What the warden knows.
#[derive(Debug, Default)]
struct Watch {
    group: Option<Pid>,
    /// When the lock is lost.
    lost_at: Option<u64>,
    /// When the command, which was told to end, is killed.
    kill_at: Option<u64>,
}

/// Runs the warden. Returns its exit code.
pub(crate) fn keep_watch(args: &args::Warden) -> u8 {
    // Whoever ends a whole session or a whole container group asks `redlatch`, and the warden stays to see it through.
    let mut blocked = SigSet::empty();
    for signal in [
        Signal::SIGHUP,
        Signal::SIGINT,
        Signal::SIGQUIT,
        Signal::SIGTERM,
        Signal::SIGTSTP,
        Signal::SIGUSR1,
        Signal::SIGUSR2,
    ] {
        blocked.add(signal);
    }
    blocked.thread_block().ok();

    let lines = lines();
    let mut watch = Watch::default();
    loop {
        let wake = [
            watch.lost_at.map(|at| at.saturating_add(LEEWAY)),
            watch.kill_at,
        ];
        let next = wake.into_iter().flatten().min().unwrap_or(u64::MAX);
        let pause = next.saturating_sub(now()).min(LONGEST);
        match lines.recv_timeout(Duration::from_millis(pause)) {
            Ok(line) => match line.split_once(' ') {
                Some(("group", group)) => watch.group = group.parse().ok().map(Pid::from_raw),
                Some(("until", at)) => watch.lost_at = at.parse().ok(),
                Some(("ends", at)) => {
                    watch.lost_at = None;
                    watch.kill_at = at.parse().ok().map(|at: u64| at.saturating_add(LEEWAY));
                }
                _ => return 0,
            },
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return watch.alone(args),
        }
        if watch.kill_at.is_some_and(|at| now() >= at) {
            watch.send(Signal::SIGKILL);
            return 0;
        }
        if watch
            .lost_at
            .is_some_and(|at| now() >= at.saturating_add(LEEWAY))
        {
            watch.lost_at = None;
            watch.end(args);
        }
    }
}

/// Returns the lines that `redlatch` writes.
fn lines() -> Receiver<String> {
    let (sender, receiver) = channel();
    thread::spawn(move || {
        for line in stdin().lock().lines() {
            if line.is_err() || line.is_ok_and(|line| sender.send(line).is_err()) {
                return;
            }
        }
    });
    receiver
}

impl Watch {
    /// Ends the command after `redlatch` has gone without a word.
    fn alone(mut self, args: &args::Warden) -> u8 {
        if self.group.is_none() {
            return 0;
        }
        eprintln!("redlatch: redlatch itself was killed: its command is ended");
        if self.kill_at.is_none() {
            // Nobody renews the lock any more, so the grace is over when its lease is.
            let lost_at = self.lost_at.take();
            self.end(args);
            self.kill_at = self.kill_at.into_iter().chain(lost_at).min();
        }
        while let Some(left) = self.kill_at.map(|at| at.saturating_sub(now()))
            && left > 0
            && self.is_alive()
        {
            thread::sleep(Duration::from_millis(left.min(20)));
        }
        self.send(Signal::SIGKILL);
        0
    }

    /// Tells the command to end, and notes when it is killed.
    fn end(&mut self, args: &args::Warden) {
        if args.on_loss == OnLoss::Kill {
            self.kill_at = Some(0);
            self.send(Signal::SIGKILL);
            return;
        }
        self.kill_at = Some(after(args.grace));
        self.send(Signal::SIGTERM);
        // A command that is stopped would get it only when it continues.
        self.send(Signal::SIGCONT);
    }

    fn is_alive(&self) -> bool {
        self.group.is_some_and(|group| killpg(group, None).is_ok())
    }

    /// Sends a signal to the command and its children. That there are none any more is what was wanted.
    fn send(&self, signal: Signal) {
        if let Some(group) = self.group {
            killpg(group, signal).ok();
        }
    }
}
