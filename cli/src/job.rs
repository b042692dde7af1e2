//! The job of the shell that `redlatch` is part of: its process group.

use nix::sys::signal::{Signal, killpg};
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::{Pid, getpgid, getpgrp, getpid, getppid, getsid};
use rustix::process::{self, WaitId, WaitIdOptions, waitid};

use crate::process::Process;

/// Sends a signal of the keyboard to the job, this process included. Returns whether that was possible.
///
/// For signals that the terminal would have sent to the job, had it not been given to the command.
pub(crate) fn tell(signal: Signal) -> bool {
    killpg(getpgrp(), signal).is_ok()
}

/// Whether there is a shell that can continue the job once it is stopped: a parent of the job, in its session.
///
/// The system has the same rule, by which it ignores Ctrl-Z otherwise. `redlatch` may be the first program on a
/// terminal, for example, as in a container.
pub(crate) fn can_be_continued() -> bool {
    let group = getpgrp();
    let mut parent = Some(getppid());
    while let Some(pid) = parent.filter(|pid| pid.as_raw() > 0) {
        if getpgid(Some(pid)) != Ok(group) {
            return getsid(Some(pid)) == getsid(None);
        }
        parent = Process::find(pid).map(|process| process.parent);
    }
    false
}

/// Waits for the children that have ended, other than these, if this is the first process of a container: the children of
/// all processes that have ended become its own.
pub(crate) fn reap(others: &[Pid]) {
    if getpid().as_raw() != 1 {
        return;
    }
    for child in Process::all() {
        if child.has_ended && child.parent == getpid() && !others.contains(&child.pid) {
            waitpid(child.pid, Some(WaitPidFlag::WNOHANG)).ok();
        }
    }
}

/// Returns the signal by which this child was stopped, if it was and that was not told before.
pub(crate) fn stopped(pid: Pid) -> Option<Signal> {
    let options = WaitIdOptions::STOPPED | WaitIdOptions::NOHANG;
    let child = WaitId::Pid(process::Pid::from_raw(pid.as_raw())?);
    let status = waitid(child, options).ok()??;
    Signal::try_from(status.stopping_signal()?).ok()
}
