//! The command of `redlatch run`, from its start to its end.

use std::io;
use std::mem;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::thread;
use std::time::Duration;

use nix::sys::signal::{Signal, kill, raise};
use nix::unistd::Pid;
use redlatch::{Client, ErrorKind};
use serde_json::{Value, json};
use tokio::process::{Child, Command};
use tokio::time::{Instant, interval, sleep_until};

use crate::args::{OnLoss, Run};
use crate::exit::{self, Ending, Failure};
use crate::family::Family;
use crate::job;
use crate::notes::Notes;
use crate::process::Process;
use crate::run::Guard;
use crate::signals::Signals;
use crate::span;
use crate::terminal::Terminal;
use crate::warden::Warden;

/// The command, just started.
pub(crate) struct Started {
    child: Child,
    pid: Pid,
    family: Family,
    warden: Option<Warden>,
}

impl Started {
    pub(crate) fn new(
        client: &Client,
        guard: &Guard,
        args: &Run,
        warden: io::Result<Option<Warden>>,
    ) -> Result<Self, Failure> {
        let mut warden = warden.map_err(|error| {
            Failure::system("cannot start the process next to the command", &error)
        })?;
        let lease = guard.lease();
        // A short lease, or a pause of this process, may be over by now.
        if lease.is_lost() {
            if let Some(warden) = warden {
                warden.dismiss();
            }
            let text = format!("{} was lost before its command was started", args.name);
            return Err(Failure::new(exit::SERVER, text));
        }
        // Before the command, which nobody would end if this process were stopped in between.
        if let Some(warden) = &mut warden {
            warden.held_for(lease.remaining());
        }
        let (program, rest) = args
            .command
            .split_first()
            .ok_or_else(|| Failure::usage("no command is named"))?;
        let mut command = Command::new(program);
        command
            .args(rest)
            .process_group(warden.as_ref().map_or(0, Warden::id))
            .env("REDLATCH_LOCK", &args.name)
            .env("REDLATCH_OWNER", client.owner_field(lease.owner()))
            // That of a `redlatch run` around this one is another lock's.
            .env_remove("REDLATCH_TOKEN");
        if let Guard::Fenced(guard) = guard {
            command.env("REDLATCH_TOKEN", guard.token().get().to_string());
        }
        let child = match command.spawn() {
            Ok(child) => child,
            Err(error) => {
                if let Some(warden) = warden {
                    warden.dismiss();
                }
                let program = program.display();
                return Err(match error.kind() {
                    io::ErrorKind::NotFound => {
                        let text = format!("{program}: there is no such command");
                        Failure::new(exit::NOT_FOUND, text)
                    }
                    _ => {
                        let text = format!("{program} cannot be run: {error}");
                        Failure::new(exit::NOT_RUN, text)
                    }
                });
            }
        };
        let pid = child.id().and_then(|id| i32::try_from(id).ok());
        // It has one until it was waited for, which happens later.
        let pid = pid
            .map(Pid::from_raw)
            .ok_or_else(|| Failure::new(exit::SYSTEM, "the command has no process id"))?;
        let command = Process::find(pid);
        let mut group = pid;
        if let Some(warden) = &mut warden {
            group = Pid::from_raw(warden.id());
            if let Some(command) = command {
                warden.looks_after(command);
            }
        }
        Ok(Self {
            child,
            pid,
            family: Family::of_child(group, pid, command),
            warden,
        })
    }
}

/// The command, while it runs.
pub(crate) struct Running<'a> {
    args: &'a Run,
    notes: &'a Notes,
    guard: Guard,
    child: Child,
    pid: Pid,
    /// It was started in the process group of the warden, if there is one.
    family: Family,
    warden: Option<Warden>,
    terminal: Option<Terminal>,
    /// Whether Ctrl-Z was passed on, so that `redlatch` stops with the command.
    suspends: bool,
    /// Whether the command was told that nobody can give it the terminal.
    is_hung_up: bool,
    is_lost: bool,
    kill_at: Option<Instant>,
}

impl<'a> Running<'a> {
    pub(crate) fn new(started: Started, guard: Guard, args: &'a Run, notes: &'a Notes) -> Self {
        let mut running = Self {
            args,
            notes,
            guard,
            child: started.child,
            pid: started.pid,
            family: started.family,
            warden: started.warden,
            terminal: Terminal::open(),
            suspends: false,
            is_hung_up: false,
            is_lost: false,
            kill_at: None,
        };
        running.tell_warden();
        if running.terminal.as_ref().is_some_and(Terminal::is_alone) {
            running.give_terminal();
        }
        running
    }

    /// Looks after the command until it has ended.
    pub(crate) async fn go_on(&mut self, signals: &mut Signals) -> Result<ExitStatus, Failure> {
        // Often enough for a deadline that moves with each renewal, at every third of the lease.
        let mut often =
            (self.args.lease.span() / 10).clamp(Duration::from_millis(10), Duration::from_secs(1));
        if self.terminal.is_some() {
            // Nobody waits long for the terminal.
            often = often.min(Duration::from_millis(100));
        }
        let mut tick = interval(often);
        loop {
            let kill_at = self.kill_at;
            tokio::select! {
                biased;
                status = self.child.wait() => {
                    return status.map_err(|error| Failure::system("cannot wait for the command", &error));
                }
                _ = self.guard.lease().lost(), if !self.is_lost => self.lost(),
                signal = signals.next() => self.take(signal, signals),
                () = until(kill_at) => {
                    self.kill_at = None;
                    self.family.tell_all(Signal::SIGKILL);
                }
                _ = tick.tick(), if !self.is_lost => {
                    self.tell_warden();
                    self.follow();
                    // The nearer the deadline, the more often: the warden is to learn of a renewal that is confirmed
                    // shortly before it.
                    let half = self.guard.lease().remaining() / 2;
                    tick.reset_after(half.clamp(Duration::from_millis(10), often));
                }
            }
        }
    }

    fn tell_warden(&mut self) {
        if self.warden.as_ref().is_some_and(Warden::is_gone) {
            self.replace_warden();
        }
        if let Some(warden) = &mut self.warden {
            warden.held_for(self.guard.lease().remaining());
        }
    }

    /// Starts another warden in place of one that was killed: without one nobody ends the command if this process is
    /// killed, too.
    fn replace_warden(&mut self) {
        let what = "the process next to the command, which ends it if redlatch cannot, was killed";
        let text = match self.restart_warden() {
            Ok(()) => format!("{what}: another one is started"),
            Err(error) => {
                self.warden = None;
                format!("{what}, and another one cannot be started: {error}")
            }
        };
        let (notes, fields) = (self.notes.clone(), json!({ "name": self.args.name }));
        // In a thread of its own: nobody may read a pipe, and the lock is to be renewed meanwhile.
        thread::Builder::new()
            .spawn(move || notes.note("warden", &text, fields))
            .ok();
    }

    fn restart_warden(&mut self) -> io::Result<()> {
        if let Some(warden) = &mut self.warden {
            warden.replace(self.family.group(), self.args, self.notes)?;
            if let Some(command) = Process::find(self.pid) {
                warden.looks_after(command);
            }
        }
        Ok(())
    }

    /// Ends the command, since the lock is lost.
    fn lost(&mut self) {
        self.is_lost = true;
        let what = match self.args.on_loss {
            OnLoss::Term => "its command is told to end",
            OnLoss::Kill => "its command is killed",
            OnLoss::Ignore => "its command goes on without it",
        };
        match self.args.on_loss {
            OnLoss::Term => {
                self.kill_at = Some(Instant::now() + self.args.grace);
                if let Some(warden) = &mut self.warden {
                    warden.ends_within(self.args.grace);
                }
                self.family.tell_all(Signal::SIGTERM);
                // A command that is stopped would get it only when it continues.
                self.family.tell_all(Signal::SIGCONT);
            }
            OnLoss::Kill => self.family.tell_all(Signal::SIGKILL),
            OnLoss::Ignore => {}
        }
        // Afterwards, since writing to a terminal or a pipe may take as long as nobody reads.
        let text = format!("{} was lost: {what}", self.args.name);
        self.note("lost", &text);
    }

    fn take(&mut self, signal: Signal, signals: &mut Signals) {
        match signal {
            Signal::SIGCHLD => {
                self.reap();
                self.stopped(signals);
            }
            // They mean something to the command alone, and would end those of its children that do not know them.
            Signal::SIGUSR1 | Signal::SIGUSR2 => {
                kill(self.pid, signal).ok();
            }
            // Where nobody could continue it, Ctrl-Z stops no program.
            Signal::SIGTSTP if self.terminal.is_some() && !job::can_be_continued() => {}
            _ => {
                self.suspends |= signal == Signal::SIGTSTP && self.terminal.is_some();
                self.family.tell_command(signal);
            }
        }
    }

    /// Takes note of the end of children that this process has not started.
    fn reap(&self) {
        let warden = self.warden.as_ref().map(|it| Pid::from_raw(it.id()));
        job::reap(&[self.pid, warden.unwrap_or(self.pid)]);
    }

    /// Finds out whether the command was stopped, and does what a shell would.
    fn stopped(&mut self, signals: &mut Signals) {
        let Some(signal) = job::stopped(self.pid) else {
            return;
        };
        let Some(terminal) = &self.terminal else {
            // Whoever stopped it will continue it. The lock stays with it.
            return;
        };
        let for_terminal = matches!(signal, Signal::SIGTTIN | Signal::SIGTTOU);
        if for_terminal && terminal.is_ours() {
            self.give_terminal();
        } else if for_terminal || terminal.is_given() || self.suspends {
            self.suspend(for_terminal, signals);
        }
    }

    /// Stops this process together with the command, until the user continues it.
    fn suspend(&mut self, for_terminal: bool, signals: &mut Signals) {
        let was_told = mem::take(&mut self.suspends);
        let was_given = self.terminal.as_mut().is_some_and(Terminal::take_back);
        let can_be_continued = job::can_be_continued();
        if can_be_continued {
            // What the terminal would have told the whole job, a script around `redlatch` included, it has told the
            // command alone.
            if !was_told {
                signals.tell_job_to_stop();
            }
            raise(Signal::SIGSTOP).ok();
        }
        // Before the command continues: if the lock is lost by now, it must not go on as if nothing had happened.
        if self.guard.lease().is_lost() && !self.is_lost {
            self.lost();
        }
        let is_ours = self.terminal.as_ref().is_some_and(Terminal::is_ours);
        if was_given && is_ours {
            self.give_terminal();
        } else if for_terminal && !can_be_continued {
            self.hang_up();
        } else {
            self.family.tell_command(Signal::SIGCONT);
        }
    }

    /// Ends a command that waits for a terminal which nobody can give to it. Continued alone, it would be stopped again
    /// at once, and so on; one that goes on in spite of this stays stopped.
    fn hang_up(&mut self) {
        if !mem::replace(&mut self.is_hung_up, true) {
            self.family.tell_command(Signal::SIGHUP);
            self.family.tell_command(Signal::SIGCONT);
        }
    }

    fn give_terminal(&mut self) {
        if let Some(terminal) = &mut self.terminal {
            // A command in another session, as by `setsid`, cannot have it.
            let _ =
                terminal.give(self.family.present_group()) || terminal.give(self.family.group());
        }
        // It may have been stopped because it had no terminal so far.
        self.family.tell_command(Signal::SIGCONT);
    }

    /// Has the terminal go with a command that leaves its group, unless it takes it along, as shells do.
    fn follow(&mut self) {
        let group = self.family.present_group();
        if let Some(terminal) = &mut self.terminal
            && terminal.is_with_another_than(group)
            && terminal.give(group)
        {
            self.family.tell_command(Signal::SIGCONT);
        }
    }

    fn note(&self, event: &str, text: &str) {
        let fields: Value = json!({ "name": self.args.name });
        self.notes.note(event, text, fields);
    }

    /// Releases the lock after the command has ended.
    pub(crate) async fn release(mut self, status: ExitStatus) -> Result<Ending, Failure> {
        self.family.command_has_ended();
        let had_terminal = self.terminal.as_mut().is_some_and(Terminal::take_back);
        let number = status.signal();
        let signal = number.and_then(|number| Signal::try_from(number).ok());
        let ignores = self.args.on_loss == OnLoss::Ignore;
        if self.guard.lease().is_lost() && !ignores {
            // What the command has left behind must not outlive the lock either.
            self.family.tell_all(Signal::SIGKILL);
        }
        if let Some(warden) = self.warden.take() {
            warden.dismiss();
        }
        let Self {
            args,
            notes,
            guard,
            is_lost,
            ..
        } = self;
        let ending = match (status.code(), signal) {
            (Some(code), _) => Ending::Code(code as u8),
            // The terminal has told the command alone.
            (None, Some(signal @ (Signal::SIGINT | Signal::SIGQUIT))) if had_terminal => {
                Ending::Keyboard(signal)
            }
            (None, Some(signal)) => Ending::Signal(signal),
            // A real-time signal, which has no name.
            (None, None) => Ending::Code(number.map_or(exit::SYSTEM, |number| 128 + number as u8)),
        };
        let Err(error) = guard.unlock().await else {
            return Ok(ending);
        };
        if error.kind() == ErrorKind::LeaseLost {
            let text = format!("{} was lost before the command had ended", args.name);
            if !is_lost {
                notes.note("lost", &text, json!({ "name": args.name }));
            }
            if !ignores {
                return Ok(Ending::Code(exit::LOST));
            }
        } else {
            let lease = span::show(args.lease.span());
            let text = format!(
                "the command has ended, but {} may stay held for up to {lease}: {error}",
                args.name
            );
            notes.note("not_released", &text, json!({ "name": args.name }));
        }
        Ok(ending)
    }
}

async fn until(end: Option<Instant>) {
    match end {
        Some(end) => sleep_until(end).await,
        None => std::future::pending().await,
    }
}
