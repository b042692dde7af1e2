//! What a simulation of whole fleets asks of a server, besides the faults that tests have: see the crate `simulation`.

use std::time::Duration;

use super::MemoryServer;
use super::reply::Refusal;
use crate::clock;

#[doc(hidden)]
impl MemoryServer {
    /// Has the clocks of this process begin at this time since 1970, whatever those of the computer say, so that a
    /// process can be repeated. For a process that has asked no clock so far.
    pub fn begin_time(unix: Duration) {
        clock::begin_at(unix);
    }

    /// Returns another server with the data of this one.
    #[must_use]
    pub fn with_same_data(&self) -> Self {
        let databases = self.with(|state| state.data.databases.clone());
        let copy = Self::new();
        copy.with(|state| state.data.databases = databases);
        copy
    }

    /// Ends this run of the server and begins another one, with the data of `earlier`.
    pub fn restart_with(&self, earlier: &Self) {
        let databases = earlier.with(|state| state.data.databases.clone());
        self.with(|state| {
            state.restart_empty();
            state.data.databases = databases;
        });
    }

    /// Refuses all scripts and all commands about keys with this text, or no longer.
    pub fn refuse(&self, text: Option<&str>) {
        self.with(|state| state.data.refusal = text.map(Refusal::new));
    }
}
