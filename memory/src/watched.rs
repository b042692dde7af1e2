//! What a simulation sees of a server: each command, before and after it is carried out, and what is stored.

use std::sync::Arc;

use crate::keys::{Database, Keys};
use crate::value::Value;

/// A message that was published: its channel, its text, and how many heard it.
pub(crate) type Publication = (Vec<u8>, Vec<u8>, usize);

/// What looks at each command, once before it is carried out and once after it.
#[derive(Clone)]
pub(crate) struct Watcher(pub(crate) Arc<dyn Fn(&mut Watched<'_>) + Send + Sync>);

/// A command, and the data of the server before or after it.
#[derive(Debug)]
pub struct Watched<'a> {
    /// The command with its arguments.
    pub words: &'a [Vec<u8>],
    /// What it has published. `None` before it is carried out.
    pub told: Option<Vec<Publication>>,
    /// The server's clock, in milliseconds since 1970.
    pub now: u64,
    pub(crate) keys: &'a mut Database,
}

/// What is stored under a key: fields, members with their scores, entries of a list, or a text, and when it ends.
#[derive(Clone, Debug, PartialEq)]
pub struct Stored {
    /// In the order of the server. Where there is only a name or only a value, the other text is empty.
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
    pub(crate) fn read(keys: &mut Keys<'_>, key: &str) -> Option<Self> {
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
