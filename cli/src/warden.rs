//! The warden: a small process next to `redlatch run` that ends the command if `redlatch` cannot.
//!
//! `redlatch` may be killed, or stopped for longer than the lease, and then nobody would end the command when the lock is
//! lost. So a second process reads from a pipe until when the lock is held. If that time passes, or if the pipe ends
//! without a word, it ends the command.
//!
//! The command is started in the process group of the warden, so there is no moment at which the warden does not know
//! whom to end. A command that leaves the group is told by its process id, which is known a moment later. Signals to the
//! group reach the warden too, which has them blocked from its first moment on.

use std::env;
use std::io::{self, Read, Stdin, Write, stdin, stdout};
use std::mem;
use std::ops::ControlFlow;
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, poll};
use nix::sys::signal::{SigSet, SigmaskHow, Signal};
use nix::time::{ClockId, clock_gettime};
use nix::unistd::{Pid, getpgrp, getpid};
use serde_json::json;
use tokio::io::AsyncReadExt;
use tokio::process::ChildStdout;
use tokio::time::timeout;

use crate::args::{self, OnLoss};
use crate::exit;
use crate::family::Family;
use crate::notes::Notes;
use crate::process::Process;

/// The word by which `redlatch` is a warden.
pub(crate) const WORD: &str = "__warden";

/// How much later than `redlatch` the warden acts, in milliseconds: as long as `redlatch` runs, it does so itself.
const LEEWAY: u64 = 20;
/// The longest sleep. A sleep does not count the time in which the machine is suspended.
const LONGEST: u16 = 500;
/// Two deadlines are the same if they are no further apart, in milliseconds: they are computed from what is left.
const SAME: u64 = 2;

/// How often a warden looks whether the command has ended.
const OFTEN: u64 = 50;
/// How long a warden may take to start.
const START: Duration = Duration::from_secs(10);

/// The warden, as `redlatch` knows it.
#[derive(Debug)]
pub(crate) struct Warden {
    child: Child,
    pipe: ChildStdin,
    /// The deadline that the pipe has taken last.
    told: u64,
}

impl Warden {
    /// Starts the warden, or returns `None` if the command is to go on without the lock.
    pub(crate) async fn start(args: &args::Run, notes: &Notes) -> io::Result<Option<Self>> {
        if args.on_loss == OnLoss::Ignore {
            return Ok(None);
        }
        let mut warden = Self::spawn(0, args, notes)?;
        let out = warden.child.stdout.take();
        let out = ChildStdout::from_std(out.ok_or(io::ErrorKind::BrokenPipe)?);
        // If it is none, as where another program has the place of this one by now, no command is started.
        timeout(START, out?.read_u8()).await??;
        Ok(Some(warden))
    }

    /// Whether the warden has ended: it reads this pipe for as long as it lives.
    pub(crate) fn is_gone(&self) -> bool {
        let mut pipe = [PollFd::new(self.pipe.as_fd(), PollFlags::empty())];
        poll(&mut pipe, 0_u8).is_ok_and(|changed| changed > 0)
    }

    /// Starts another warden in place of this one, which is gone, in the process group of the command.
    pub(crate) fn replace(
        &mut self,
        group: Pid,
        args: &args::Run,
        notes: &Notes,
    ) -> io::Result<()> {
        let next = Self::spawn(group.as_raw(), args, notes)?;
        // Only now: until it was waited for, nobody else can have its id, which is that of the group.
        mem::replace(self, next).child.wait().ok();
        Ok(())
    }

    /// Starts a warden in this process group, or in one of its own.
    fn spawn(group: i32, args: &args::Run, notes: &Notes) -> io::Result<Self> {
        let on_loss = match args.on_loss {
            OnLoss::Kill => "kill",
            OnLoss::Term | OnLoss::Ignore => "term",
        };
        let mut command = Command::new(this_program()?);
        command
            .args([WORD, "--on-loss", on_loss, "--grace"])
            .arg(format!("{}ms", args.grace.as_millis()))
            .arg(format!("--name={}", args.name))
            .args(notes.are_json().then_some("--json"))
            // The URL may hold a password.
            .env_remove("REDIS_URL")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .process_group(group);
        // A process begins with the mask of the thread that starts it.
        let before = blocked().thread_swap_mask(SigmaskHow::SIG_BLOCK)?;
        let child = command.spawn();
        before.thread_set_mask()?;
        let mut child = child?;
        let pipe = child.stdin.take().ok_or(io::ErrorKind::BrokenPipe)?;
        // A warden that somebody stopped must not stop this process: it misses some lines then.
        fcntl(&pipe, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
        Ok(Self {
            child,
            pipe,
            told: 0,
        })
    }

    /// Returns the process id. It is that of the process group for the command, if this is the first warden.
    pub(crate) fn id(&self) -> i32 {
        // A process id of the system fits.
        self.child.id() as i32
    }

    /// Says which process the command is.
    pub(crate) fn looks_after(&mut self, command: Process) {
        self.say(format_args!("command {} {}", command.pid, command.started));
    }

    /// Says for how long the lock is still held.
    pub(crate) fn held_for(&mut self, left: Duration) {
        let until = after(left);
        // A pipe that a stopped warden does not empty takes thousands of lines, and then none: this is said again later.
        if until.abs_diff(self.told) > SAME && self.say(format_args!("until {until}")) {
            self.told = until;
        }
    }

    /// Says that the command has been told to end, and will be killed after this time.
    pub(crate) fn ends_within(&mut self, grace: Duration) {
        self.say(format_args!("ends {}", after(grace)));
    }

    /// Writes a line, and returns whether the pipe has taken it. If the warden is gone, the command is still ended by
    /// this process.
    fn say(&mut self, line: std::fmt::Arguments<'_>) -> bool {
        // In one write, so that no line is ever cut in two.
        self.pipe.write_all(format!("{line}\n").as_bytes()).is_ok()
    }

    /// Lets the warden go: the command has ended.
    pub(crate) fn dismiss(mut self) {
        self.say(format_args!("done"));
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

/// Returns the signals that a warden does not take: all but those of faults of its own.
fn blocked() -> SigSet {
    let mut blocked = SigSet::all();
    for signal in [
        Signal::SIGABRT,
        Signal::SIGBUS,
        Signal::SIGFPE,
        Signal::SIGILL,
        Signal::SIGSEGV,
    ] {
        blocked.remove(signal);
    }
    blocked
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
#[derive(Debug)]
struct Watch {
    family: Family,
    /// When the lock is lost.
    lost_at: Option<u64>,
    /// When the command, which was told to end, is killed.
    kill_at: Option<u64>,
}

/// Runs the warden. Returns its exit code.
pub(crate) fn keep_watch(args: &args::Warden) -> u8 {
    let (Ok(mut lines), Ok(())) = (Lines::new(), ready()) else {
        return exit::SYSTEM;
    };
    let mut watch = Watch {
        family: Family::of_group(getpgrp()),
        lost_at: None,
        kill_at: None,
    };
    loop {
        let wake = [watch.lost_at, watch.kill_at].into_iter().flatten().min();
        let pause = wake.unwrap_or(u64::MAX).saturating_sub(now());
        // All that was said, before anything is done: this process may have been stopped, together with the command,
        // while the lock was renewed.
        let said = lines.next(u16::try_from(pause).unwrap_or(LONGEST).min(LONGEST));
        for line in &said {
            if watch.note(line).is_break() {
                return 0;
            }
        }
        if lines.have_ended {
            let was_told = watch.lost_at.or(watch.kill_at).is_some();
            // The first warden, which leads its group, is told of the lock before there is a command.
            return match was_told || getpgrp() != getpid() {
                true => watch.alone(args),
                false => 0,
            };
        }
        if watch.kill_at.is_some_and(|at| now() >= at) {
            return watch.kill();
        }
        if watch.lost_at.is_some_and(|at| now() >= at) {
            watch.lost_at = None;
            watch.end(args);
        }
    }
}

/// Says that the command may start.
fn ready() -> io::Result<()> {
    let mut out = stdout();
    out.write_all(b"!")?;
    out.flush()
}

/// The lines that `redlatch` writes.
struct Lines {
    input: Stdin,
    /// The bytes behind the last whole line.
    rest: Vec<u8>,
    have_ended: bool,
}

impl Lines {
    fn new() -> io::Result<Self> {
        let input = stdin();
        fcntl(&input, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
        Ok(Self {
            input,
            rest: Vec::new(),
            have_ended: false,
        })
    }

    /// Waits for lines, for at most this many milliseconds, and returns all that are there.
    fn next(&mut self, pause: u16) -> Vec<String> {
        // Whatever it says, the pipe is looked at.
        poll(
            &mut [PollFd::new(self.input.as_fd(), PollFlags::POLLIN)],
            pause,
        )
        .ok();
        let mut buffer = [0; 1 << 12];
        loop {
            match self.input.read(&mut buffer) {
                Ok(0) => self.have_ended = true,
                Ok(read) => {
                    self.rest.extend_from_slice(&buffer[..read]);
                    continue;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(_) => self.have_ended = true,
            }
            break;
        }
        let whole = self.rest.iter().rposition(|byte| *byte == b'\n');
        let rest = self.rest.split_off(whole.map_or(0, |end| end + 1));
        let lines = mem::replace(&mut self.rest, rest);
        let lines = String::from_utf8_lossy(&lines);
        lines.lines().map(str::to_owned).collect()
    }
}

impl Watch {
    /// Takes note of what `redlatch` says. Breaks if the command has ended.
    fn note(&mut self, line: &str) -> ControlFlow<()> {
        let at = |at: &str| at.parse().ok().map(|at: u64| at.saturating_add(LEEWAY));
        match line.split_once(' ') {
            Some(("until", end)) => self.lost_at = at(end),
            Some(("command", command)) => {
                let command = command.split_once(' ').unwrap_or_default();
                if let (Ok(pid), Ok(started)) = (command.0.parse(), command.1.parse()) {
                    self.family.add(Pid::from_raw(pid), started);
                }
            }
            Some(("ends", end)) => {
                self.lost_at = None;
                self.kill_at = at(end);
            }
            _ => return ControlFlow::Break(()),
        }
        ControlFlow::Continue(())
    }

    /// Ends the command after `redlatch` has gone without a word.
    fn alone(mut self, args: &args::Warden) -> u8 {
        let lost_at = self.lost_at.take();
        if self.kill_at.is_none() {
            // Nobody renews the lock any more, so the grace is over when its lease is.
            self.end(args);
            self.kill_at = self.kill_at.into_iter().chain(lost_at).min();
        }
        let noted = tell(args);
        while let Some(left) = self.kill_at.map(|at| at.saturating_sub(now()))
            && left > 0
            && self.family.runs()
        {
            thread::sleep(Duration::from_millis(left.min(OFTEN)));
        }
        // KILL ends this process too. The note has a moment, as long as the lock is held.
        let left = lost_at.map_or(0, |at| at.saturating_sub(now()));
        let moment = Duration::from_millis(left.min(LONGEST.into()));
        noted.recv_timeout(moment).ok();
        self.kill()
    }

    /// Tells the command to end, and notes when it is killed.
    fn end(&mut self, args: &args::Warden) {
        if args.on_loss == OnLoss::Kill {
            self.kill_at = Some(0);
            return;
        }
        self.kill_at = Some(after(args.grace));
        self.family.tell_all(Signal::SIGTERM);
        // A command that is stopped would get it only when it continues.
        self.family.tell_all(Signal::SIGCONT);
    }

    /// Kills the command and its children, and this process with them.
    fn kill(&mut self) -> u8 {
        self.family.tell_all(Signal::SIGKILL);
        0
    }
}

/// Says why the command is ended. Returns what ends as soon as that is written.
///
/// In a thread of its own: nobody may read a pipe, and Ctrl-S stops a terminal. If there is none, nothing is said.
fn tell(args: &args::Warden) -> Receiver<()> {
    let (done, noted) = channel();
    let notes = Notes::new(args.json);
    let name = args.name.clone();
    let note = move || {
        let text = format!("redlatch itself was killed while it held {name}: its command is ended");
        notes.note("killed", &text, json!({ "name": name }));
        drop(done);
    };
    thread::Builder::new().spawn(note).ok();
    noted
}
