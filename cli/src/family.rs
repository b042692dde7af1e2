//! The processes of a command: the group that it was started in, and those of its descendants that have left the group.
//!
//! `timeout`, `setsid` and shells on a terminal leave it.

use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::{Pid, getpgid, getpid};

use crate::process::Process;

#[derive(Debug)]
pub(crate) struct Family {
    /// The group that the command was started in. It exists as long as this value is used.
    group: Pid,
    /// The command, as long as nobody else can have its id.
    command: Option<Pid>,
    /// The command and its descendants, as they were at the last look.
    members: Vec<Process>,
}

impl Family {
    /// The family of a child of this process, which has not been waited for. `found` is what `/proc` says of it.
    pub(crate) fn of_child(group: Pid, command: Pid, found: Option<Process>) -> Self {
        Self {
            group,
            command: Some(command),
            members: found.into_iter().collect(),
        }
    }

    /// The family of a command that is not known yet.
    pub(crate) fn of_group(group: Pid) -> Self {
        Self {
            group,
            command: None,
            members: Vec::new(),
        }
    }

    /// Says which command it is. If its id is another process's by now, it has ended, and nothing is added.
    pub(crate) fn add(&mut self, pid: Pid, started: u64) {
        let found = Process::find(pid).filter(|found| found.started == started);
        self.members.extend(found);
    }

    /// Says that the command was waited for, so that its id may become another process's.
    pub(crate) fn command_has_ended(&mut self) {
        self.command = None;
    }

    /// Returns the group that the command was started in.
    pub(crate) fn group(&self) -> Pid {
        self.group
    }

    /// Returns the group that the command is in now.
    pub(crate) fn present_group(&self) -> Pid {
        let group = self.command.and_then(|pid| getpgid(Some(pid)).ok());
        group.unwrap_or(self.group)
    }

    /// Sends a signal to the group that the command was started in and, if it is in another one, there too.
    pub(crate) fn tell_command(&self, signal: Signal) {
        self.tell_child(signal);
        killpg(self.group, signal).ok();
    }

    /// Sends a signal to the command and to all of its descendants that can be found.
    pub(crate) fn tell_all(&mut self, signal: Signal) {
        self.look();
        self.tell_child(signal);
        let leads = |group: Pid| self.members.iter().any(|member| member.pid == group);
        for member in &self.members {
            let is_leader = member.pid == member.group;
            // Its leader stands for it.
            let is_led = !is_leader && leads(member.group);
            if !is_led && Some(member.pid) != self.command {
                self.tell(member.pid, member.group, signal);
            }
        }
        // Last, since the warden is one of the group, and KILL ends it too.
        killpg(self.group, signal).ok();
    }

    /// Whether one of them still runs, other than this process, as far as the system tells.
    pub(crate) fn runs(&mut self) -> bool {
        self.look();
        let mut others = self.members.iter().filter(|member| member.pid != getpid());
        self.members.is_empty() || others.any(|member| !member.has_ended)
    }

    fn tell_child(&self, signal: Signal) {
        if let Some(command) = self.command {
            self.tell(command, self.present_group(), signal);
        }
    }

    /// Sends a signal to a process that is in this group, unless it is the one that the command was started in.
    ///
    /// To the whole group if the process leads it: that reaches the children of this moment, too. A group that somebody
    /// else leads may have other members.
    fn tell(&self, pid: Pid, group: Pid, signal: Signal) {
        if group == self.group {
            return;
        }
        // That there is nobody any more is what was wanted.
        match group == pid {
            true => killpg(group, signal).ok(),
            false => kill(pid, signal).ok(),
        };
    }

    /// Finds the members and their descendants. Those that were found before count even if their parent has ended.
    fn look(&mut self) {
        let (mut found, mut others): (Vec<_>, Vec<_>) =
            Process::all().into_iter().partition(|process| {
                process.group == self.group || self.members.iter().any(|known| known.is(process))
            });
        loop {
            let (children, rest): (Vec<_>, Vec<_>) = others
                .into_iter()
                .partition(|process| found.iter().any(|parent| parent.pid == process.parent));
            if children.is_empty() {
                break;
            }
            found.extend(children);
            others = rest;
        }
        self.members = found;
    }
}
