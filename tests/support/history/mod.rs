//! What several processes did to shared locks, and what must be true of it.

pub(crate) mod crew;
pub(crate) mod event;
pub(crate) mod exclusion;
pub(crate) mod hold;
pub(crate) mod journal;
pub(crate) mod leftover;
pub(crate) mod liveness;
pub(crate) mod puppet;
pub(crate) mod update;
pub(crate) mod worker;

#[cfg(test)]
mod sketch;

use event::Event;

/// The events of all processes, and who was killed.
#[derive(Debug, Default)]
pub(crate) struct History {
    pub(crate) events: Vec<Event>,
    pub(crate) kills: Vec<Kill>,
}

/// The end of a process that could say nothing any more.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kill {
    pub(crate) process: u32,
    /// When the signal was about to be sent.
    pub(crate) at: u64,
}

impl History {
    pub(crate) fn killed(&self, process: u32) -> Option<u64> {
        let kill = self.kills.iter().find(|kill| kill.process == process);
        kill.map(|kill| kill.at)
    }
}
