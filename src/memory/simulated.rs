//! What a simulation of whole fleets asks of a server, besides the faults that tests have: see the crate `simulation`.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::MemoryServer;
use super::argument::Args;
use super::channels;
use super::data::Data;
use super::keys::{Database, Keys};
use super::reply::Refusal;
use super::value::Value;
use crate::clock;

/// A message that was published: its channel, its text, and how many heard it.
pub(super) type Told = (Vec<u8>, Vec<u8>, usize);

/// What looks at each command, once before it is carried out and once after it.
#[derive(Clone)]
pub(super) struct Watcher(Arc<dyn Fn(&mut Seen<'_>) + Send + Sync>);

impl fmt::Debug for Watcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Watcher")
    }
}

/// A command, and the data of the server before or after it.
#[doc(hidden)]
#[derive(Debug)]
pub struct Seen<'a> {
    pub words: &'a [Vec<u8>],
    /// What it has published. `None` before it is carried out.
    pub told: Option<Vec<Told>>,
    /// The server's clock, in milliseconds since 1970.
    pub now: u64,
    keys: &'a mut Database,
}

/// What is stored under a key: fields, members with their scores, entries of a list, or a text, and when it ends.
#[doc(hidden)]
#[derive(Clone, Debug, PartialEq)]
pub struct Stored {
    pub parts: Vec<(String, String)>,
    /// In milliseconds since 1970, by the server's clock. `None` if it never ends.
    pub ends: Option<u64>,
}

impl Seen<'_> {
    /// Returns what is stored under a key.
    pub fn stored(&mut self, key: &str) -> Option<Stored> {
        let (now, database) = (self.now, &mut *self.keys);
        stored(&mut Keys { database, now }, key)
    }
}

fn stored(keys: &mut Keys<'_>, key: &str) -> Option<Stored> {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let entry = keys.entry(key.as_bytes())?;
    let parts = match &entry.value {
        Value::Text(one) => vec![(String::new(), text(one))],
        Value::Hash(hash) => {
            let fields = hash.0.iter();
            fields.map(|(one, two)| (text(one), text(two))).collect()
        }
        Value::List(list) => list.iter().map(|one| (text(one), String::new())).collect(),
        Value::Sorted(sorted) => {
            let members = sorted.0.iter();
            members
                .map(|(member, score)| (text(member), score.to_string()))
                .collect()
        }
    };
    Some(Stored {
        parts,
        ends: entry.ends,
    })
}

/// Shows a command of a connection to whoever watches.
pub(super) fn show(data: &mut Data, id: u64, words: Args<'_>, is_over: bool) {
    let Some(Watcher(watch)) = data.watcher.clone() else {
        return;
    };
    let told = std::mem::take(&mut data.told);
    let Some(connection) = data.connections.get(&id) else {
        return;
    };
    watch(&mut Seen {
        words,
        told: is_over.then_some(told),
        now: data.now.as_millis() as u64,
        keys: data.databases.entry(connection.database).or_default(),
    });
}

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
                let channels = connection.shards.iter();
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
    pub fn watch(&self, watch: impl Fn(&mut Seen<'_>) + Send + Sync + 'static) {
        self.with(|state| state.data.watcher = Some(Watcher(Arc::new(watch))));
    }

    /// Returns what is stored under a key of the first database.
    pub fn stored(&self, key: &str) -> Option<Stored> {
        self.with(|state| stored(&mut state.data.keys(0), key))
    }

    /// Refuses all scripts and all commands about keys with this text, or no longer.
    pub fn refuse(&self, text: Option<&str>) {
        self.with(|state| state.data.refusal = text.map(Refusal::new));
    }
}
