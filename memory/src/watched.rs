//! What a simulation sees of a server: each command, before and after it is carried out, and what is stored.

use std::fmt;
use std::sync::Arc;

use super::keys::{Database, Keys};
use super::value::Value;

/// A message that was published: its channel, its text, and how many heard it.
pub(super) type Publication = (Vec<u8>, Vec<u8>, usize);

/// What looks at each command, once before it is carried out and once after it.
#[derive(Clone)]
pub(super) struct Watcher(pub(super) Arc<dyn Fn(&mut Watched<'_>) + Send + Sync>);

impl fmt::Debug for Watcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Watcher")
    }
}

/// A command, and the data of the server before or after it.
#[doc(hidden)]
#[derive(Debug)]
pub struct Watched<'a> {
    pub words: &'a [Vec<u8>],
    /// What it has published. `None` before it is carried out.
    pub told: Option<Vec<Publication>>,
    /// The server's clock, in milliseconds since 1970.
    pub now: u64,
    pub(super) keys: &'a mut Database,
}

/// What is stored under a key: fields, members with their scores, entries of a list, or a text, and when it ends.
#[doc(hidden)]
#[derive(Clone, Debug, PartialEq)]
pub struct Stored {
    pub parts: Vec<(String, String)>,
    /// In milliseconds since 1970, by the server's clock. `None` if it never ends.
    pub ends: Option<u64>,
}

impl Watched<'_> {
    /// Returns what is stored under a key.
    pub fn stored(&mut self, key: &str) -> Option<Stored> {
        let (now, database) = (self.now, &mut *self.keys);
        Stored::read(&mut Keys { database, now }, key)
    }
}

impl Stored {
    pub(super) fn read(keys: &mut Keys<'_>, key: &str) -> Option<Self> {
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
        Some(Self {
            parts,
            ends: entry.ends,
        })
    }
}
