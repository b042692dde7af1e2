//! What a simulation of whole fleets asks of a server, besides the faults that tests have: see the crate `simulation`.

use std::sync::Arc;

use crate::Server;
use crate::channels;
use crate::reply::Refusal;
use crate::watched::{Stored, Watched, Watcher};

impl Server {
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

    /// Hands the keys that are meant over to another server, with what is stored there.
    pub fn hand_over(&self, to: &Self, is_meant: impl Fn(&str) -> bool) {
        let is_meant = |key: &[u8]| is_meant(&String::from_utf8_lossy(key));
        let mut moved = Vec::new();
        self.with(|state| {
            for (number, database) in &mut state.data.databases {
                let all = std::mem::take(database).into_iter();
                let (meant, kept) = all.partition(|(key, _)| is_meant(key));
                *database = kept;
                moved.push((*number, meant));
            }
        });
        to.with(|state| {
            for (number, mut meant) in moved {
                let database = state.data.databases.entry(number).or_default();
                database.append(&mut meant);
            }
        });
    }

    /// Ends subscriptions to the sharded channels that are meant, as a server does that no longer has their slot.
    pub fn unsubscribe(&self, is_meant: impl Fn(&str) -> bool) {
        self.with(|state| {
            let mut told = Vec::new();
            for (id, connection) in &mut state.data.connections {
                let channels = connection.channels[1].iter();
                let meant = channels.filter(|one| is_meant(&String::from_utf8_lossy(one)));
                let meant: Vec<_> = meant.cloned().collect();
                if !meant.is_empty() {
                    let replies = channels::subscribe(connection, "SUNSUBSCRIBE", &meant);
                    told.extend(replies.into_iter().map(|reply| (*id, reply)));
                }
            }
            told.into_iter()
                .for_each(|(id, reply)| state.data.send(id, reply));
        });
    }

    /// Moves the clock of the server by this many milliseconds. A negative number sets it back. A restart keeps the
    /// shift.
    pub fn set_clock(&self, by: i64) {
        self.with(|state| state.data.set_clock(by));
    }

    /// Shows each command of a connection to `watch`, once before it is carried out and once after it.
    pub fn watch(&self, watch: impl Fn(&mut Watched<'_>) + Send + Sync + 'static) {
        self.with(|state| state.data.watcher = Some(Watcher(Arc::new(watch))));
    }

    /// Returns what is stored under a key of the first database.
    pub fn stored(&self, key: &str) -> Option<Stored> {
        self.with(|state| Stored::read(&mut state.data.keys(0), key))
    }

    /// Refuses all scripts and all commands about keys with this text, or no longer.
    pub fn refuse(&self, text: Option<&str>) {
        self.with(|state| state.data.refusal = text.map(Refusal::new));
    }
}
