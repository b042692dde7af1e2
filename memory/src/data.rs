//! What commands and scripts act on: the databases, the connections, and the run of the server.

use std::collections::BTreeMap;
use std::task::Waker;
use std::time::Duration;

use crate::argument::{Args, is};
use crate::clock::unix_time;
use crate::connection::Connection;
use crate::keys::{Database, Keys};
use crate::life::Life;
use crate::reply::{Answer, Refusal, Reply};
use crate::watched::{Publication, Watched, Watcher};

/// All data of a server.
pub(crate) struct Data {
    pub(crate) databases: BTreeMap<u32, Database>,
    /// By their ids. A connection that has ended is not there.
    pub(crate) connections: BTreeMap<u64, Connection>,
    pub(crate) life: Life,
    /// The time at which the present command or script began, since 1970.
    pub(crate) now: Duration,
    /// By how many milliseconds its clock was set ahead of tokio's. Negative if it was set back.
    pub(crate) ahead: i64,
    /// What everything but the connections themselves is refused with.
    pub(crate) refusal: Option<Refusal>,
    /// Tasks that have something to read, to be woken once nothing is locked any more.
    pub(crate) woken: Vec<Waker>,
    /// What looks at each command, in a simulation.
    pub(crate) watcher: Option<Watcher>,
    /// What the present command has published, if anything looks.
    pub(crate) told: Vec<Publication>,
}

impl Data {
    pub(crate) fn new(ahead: i64) -> Self {
        let now = shifted(unix_time(), ahead);
        Self {
            databases: BTreeMap::new(),
            connections: BTreeMap::new(),
            life: Life::begin(now),
            now,
            ahead,
            refusal: None,
            woken: Vec::new(),
            watcher: None,
            told: Vec::new(),
        }
    }

    /// Shows a command of a connection to whoever watches.
    pub(crate) fn show(&mut self, id: u64, words: Args<'_>, is_over: bool) {
        let Some(Watcher(watch)) = self.watcher.clone() else {
            return;
        };
        let told = std::mem::take(&mut self.told);
        let Some(connection) = self.connections.get(&id) else {
            return;
        };
        watch(&mut Watched {
            words,
            told: is_over.then_some(told),
            now: self.now.as_millis() as u64,
            keys: self.databases.entry(connection.database).or_default(),
        });
    }

    /// Reads the clock, for a command or a script.
    pub(crate) fn read_clock(&mut self) {
        // Never back: a thread outside of the runtime reads another clock than a test that moves time.
        self.now = self.now.max(shifted(unix_time(), self.ahead));
    }

    /// Moves the clock by this many milliseconds. A negative number sets it back.
    pub(crate) fn set_clock(&mut self, by: i64) {
        self.ahead += by;
        self.now = shifted(self.now, by);
    }

    /// Returns the keys of a database as they are now.
    pub(crate) fn keys(&mut self, database: u32) -> Keys<'_> {
        Keys {
            now: self.now.as_millis() as u64,
            database: self.databases.entry(database).or_default(),
        }
    }

    /// Fails while the server refuses.
    pub(crate) fn refused(&self) -> Result<(), Refusal> {
        self.refusal.clone().map_or(Ok(()), Err)
    }

    /// Sends a reply or a message to a connection, if it is still there.
    pub(crate) fn send(&mut self, id: u64, reply: Reply) {
        let connection = self.connections.get_mut(&id);
        self.woken
            .extend(connection.and_then(|connection| connection.send(reply)));
    }
}

fn shifted(time: Duration, by: i64) -> Duration {
    let span = Duration::from_millis(by.unsigned_abs());
    match by < 0 {
        true => time.saturating_sub(span),
        false => time.saturating_add(span),
    }
}

/// `TIME`
pub(crate) fn time(data: &mut Data, _: Args<'_>) -> Answer {
    let (seconds, micros) = (data.now.as_secs(), data.now.subsec_micros());
    Ok(Reply::bulks([seconds.to_string(), micros.to_string()]))
}

/// `INFO [section..]`
pub(crate) fn info(data: &mut Data, args: Args<'_>) -> Answer {
    Ok(data.life.info(args, data.now))
}

/// `ROLE`
pub(crate) fn role(_: &mut Data, _: Args<'_>) -> Answer {
    let replicas = Reply::List(Vec::new());
    Ok(Reply::List(vec![
        Reply::bulk("master"),
        Reply::Integer(0),
        replicas,
    ]))
}

/// `CONFIG GET name`
pub(crate) fn config(_: &mut Data, args: Args<'_>) -> Answer {
    match args {
        [word, name] if is(word, "GET") => Ok(Reply::Map(match &**name {
            b"min-replicas-to-write" => vec![(name.clone(), b"0".to_vec())],
            b"appendfsync" => vec![(name.clone(), b"everysec".to_vec())],
            _ => Vec::new(),
        })),
        _ => Err(Refusal::new(
            "ERR this server in memory has nothing to configure",
        )),
    }
}
