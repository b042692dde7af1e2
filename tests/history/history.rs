//! The history of what several processes did to shared locks, and the rules that it must obey.
use super::event::Event;

/// The events of all processes, and which processes were killed.
#[derive(Debug, Default)]
pub(crate) struct History {
    pub(crate) events: Vec<Event>,
    pub(crate) kills: Vec<Kill>,
}

/// The end of a process that was killed, and so could not report it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kill {
    pub(crate) process: u32,
    /// The time just before the signal was sent.
    pub(crate) at: u64,
}

impl History {
    pub(crate) fn killed(&self, process: u32) -> Option<u64> {
        let kill = self.kills.iter().find(|kill| kill.process == process);
        kill.map(|kill| kill.at)
    }
}
