//! The terminal, which belongs to one process group at a time.

use std::fs::{File, OpenOptions};
use std::io::{IsTerminal, stdin, stdout};

use nix::errno::Errno;
use nix::sys::signal::{SigSet, Signal, killpg};
use nix::unistd::{Pid, getpgrp, tcgetpgrp, tcsetpgrp};

/// The terminal that this process was started from.
#[derive(Debug)]
pub(crate) struct Terminal {
    tty: File,
    own: Pid,
    /// The groups that were given the terminal, one after the other.
    given: Vec<Pid>,
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
            given: Vec::new(),
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
        !self.given.is_empty()
    }

    /// Whether the group that was given the terminal last still has it, and another one is to have it.
    pub(crate) fn is_with_another_than(&self, group: Pid) -> bool {
        let last = self.given.last().copied();
        last.is_some_and(|last| last != group && tcgetpgrp(&self.tty) == Ok(last))
    }

    /// Gives the terminal to another group: that group may read from it, and its Ctrl-C goes there. Returns whether that
    /// was possible.
    pub(crate) fn give(&mut self, group: Pid) -> bool {
        let is_set = self.set(group);
        if is_set {
            self.given.push(group);
        }
        is_set
    }

    /// Takes the terminal back from the group that it was given to. Returns whether it was given.
    pub(crate) fn take_back(&mut self) -> bool {
        let given = std::mem::take(&mut self.given);
        if given.is_empty() {
            return false;
        }
        // The shell may have taken it by now. A shell under the lock that was killed has left it to nobody.
        let is_free = |group| given.contains(&group) || killpg(group, None) == Err(Errno::ESRCH);
        if tcgetpgrp(&self.tty).is_ok_and(is_free) {
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
