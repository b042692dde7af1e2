//! A process of this machine, as `/proc` shows it.

use std::fs;
use std::process;

use nix::unistd::Pid;

/// A process at one look. The same id with another start is another process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Process {
    pub(crate) pid: Pid,
    pub(crate) parent: Pid,
    pub(crate) group: Pid,
    /// When it was started, in ticks of the system.
    pub(crate) started: u64,
    /// Whether it has ended, and was not waited for.
    pub(crate) has_ended: bool,
}

impl Process {
    /// Returns a process, or `None` if there is none, or no `/proc` with the ids that this process knows.
    pub(crate) fn find(pid: Pid) -> Option<Self> {
        ids_are_ours().then(|| Self::read(pid))?
    }

    /// Returns all that are visible: nothing where there is no `/proc` with the ids that this process knows.
    pub(crate) fn all() -> Vec<Self> {
        let entries = ids_are_ours().then(|| fs::read_dir("/proc").ok()).flatten();
        let entries = entries.into_iter().flatten().flatten();
        // Those without a number are no processes of their own.
        let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        pids.filter_map(|pid| Self::read(Pid::from_raw(pid)))
            .collect()
    }

    pub(crate) fn is(&self, other: &Self) -> bool {
        (self.pid, self.started) == (other.pid, other.started)
    }

    fn read(pid: Pid) -> Option<Self> {
        let stat = fs::read(format!("/proc/{pid}/stat")).ok()?;
        let stat = String::from_utf8_lossy(&stat);
        // Behind the name, which may contain anything.
        let (_, rest) = stat.rsplit_once(") ")?;
        let fields: Vec<&str> = rest.split(' ').collect();
        let number = |at: usize| fields.get(at)?.parse().ok().map(Pid::from_raw);
        Some(Self {
            pid,
            parent: number(1)?,
            group: number(2)?,
            started: fields.get(19)?.parse().ok()?,
            has_ended: matches!(*fields.first()?, "Z" | "X"),
        })
    }
}

/// Whether `/proc` is of the namespace of this process: in another one the same ids are other processes.
fn ids_are_ours() -> bool {
    fs::read_link("/proc/self").is_ok_and(|link| link.as_os_str() == &*process::id().to_string())
}
