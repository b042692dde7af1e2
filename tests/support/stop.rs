//! Stops a child process, and lets it continue.

use std::process::Child;

use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

/// Returns when the process has stopped.
pub fn pause(child: &Child) {
    signal(child, Signal::STOP);
    waitpid(Some(Pid::from_child(child)), WaitOptions::UNTRACED).expect("it stops");
}

pub fn resume(child: &Child) {
    signal(child, Signal::CONT);
}

fn signal(child: &Child, signal: Signal) {
    kill_process(Pid::from_child(child), signal).expect("signal the process");
}
