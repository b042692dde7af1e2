//! The terminal, which belongs to one process group at a time.

use std::fs::{File, OpenOptions};
use std::io::{IsTerminal, stdin, stdout};

use nix::sys::signal::{SigSet, Signal};
use nix::unistd::{Pid, getpgrp, tcgetpgrp, tcsetpgrp};

/// The terminal that this process was started from.
#[derive(Debug)]
pub(crate) struct Terminal {
    tty: File,
    own: Pid,
    /// The group that was given the terminal.
    given: Option<Pid>,
}

impl Terminal {
    /// Opens the terminal, or returns `None` if there is none, as in a crontab.
    pub(crate) fn open() -> Option<Self> {
        let tty = OpenOptions::new()
            .read(true)
            .write(true)
            .open("/dev/tty")
            .ok()?;
        Some(Self {
            tty,
            own: getpgrp(),
            given: None,
        })
    }

    /// Whether the terminal is this process's alone: no other part of a pipeline reads from it or writes to it.
    pub(crate) fn is_alone(&self) -> bool {
        self.is_ours() && stdin().is_terminal() && stdout().is_terminal()
    }

    pub(crate) fn is_ours(&self) -> bool {
        tcgetpgrp(&self.tty) == Ok(self.own)
    }

    pub(crate) fn is_given(&self) -> bool {
        self.given.is_some()
    }

    /// Gives the terminal to another group: that group may read from it, and its Ctrl-C goes there.
    pub(crate) fn give(&mut self, group: Pid) {
        if self.set(group) {
            self.given = Some(group);
        }
    }

    /// Takes the terminal back from the group that it was given to. Returns whether it was given.
    pub(crate) fn take_back(&mut self) -> bool {
        let Some(group) = self.given.take() else {
            return false;
        };
        // The shell may have taken it by now.
        if tcgetpgrp(&self.tty) == Ok(group) {
            self.set(self.own);
        }
        true
    }

    fn set(&self, group: Pid) -> bool {
        // To a group that does not have the terminal, taking it is output: the signal for that would stop us.
        let mut output = SigSet::empty();
        output.add(Signal::SIGTTOU);
        let blocked = output.thread_block();
        let set = tcsetpgrp(&self.tty, group);
        if blocked.is_ok() {
            output.thread_unblock().ok();
        }
        set.is_ok()
    }
}
