//! The keys of one database: their values, and when they end.

use std::collections::BTreeMap;

use crate::reply::Refusal;
use crate::value::{Value, ValueKind};

/// The keys of one database, in order.
pub(crate) type Database = BTreeMap<Vec<u8>, Entry>;

/// The value of a key, and when it ends.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Entry {
    pub(crate) value: Value,
    /// In milliseconds since 1970. `None` if it never ends.
    pub(crate) ends: Option<u64>,
}

/// A database at an instant, which is the same during the whole of a command or script.
///
/// A key that has ended is gone as soon as somebody asks for it.
pub(crate) struct Keys<'a> {
    pub(crate) database: &'a mut Database,
    /// In milliseconds since 1970.
    pub(crate) now: u64,
}

impl Keys<'_> {
    /// Returns what is stored under a key.
    pub(crate) fn entry(&mut self, key: &[u8]) -> Option<&mut Entry> {
        // A key lives through the millisecond at which it ends, as in Redis.
        let has_ended = |entry: &Entry| entry.ends.is_some_and(|ends| self.now > ends);
        if self.database.get(key).is_some_and(has_ended) {
            self.database.remove(key);
        }
        self.database.get_mut(key)
    }

    /// Returns all keys that have not ended.
    pub(crate) fn all(&mut self) -> impl Iterator<Item = (&Vec<u8>, &Entry)> {
        let now = self.now;
        self.database
            .retain(|_, entry| entry.ends.is_none_or(|ends| now <= ends));
        self.database.iter()
    }

    /// Returns the value of a key, or `None` if there is no such key.
    pub(crate) fn read<T: ValueKind>(&mut self, key: &[u8]) -> Result<Option<&T>, Refusal> {
        match self.entry(key) {
            Some(entry) => T::of(&entry.value)
                .map(Some)
                .ok_or_else(Refusal::wrong_type),
            None => Ok(None),
        }
    }

    /// Changes the value of a key, which begins empty, and removes the key if its value is empty then.
    pub(crate) fn edit<T: ValueKind, R>(
        &mut self,
        key: &[u8],
        change: impl FnOnce(&mut T) -> R,
    ) -> Result<R, Refusal> {
        let Some(entry) = self.entry(key) else {
            let mut value = T::default();
            let changed = change(&mut value);
            if !value.is_empty() {
                self.set(key, value.into_value(), None);
            }
            return Ok(changed);
        };
        let value = T::of_mut(&mut entry.value).ok_or_else(Refusal::wrong_type)?;
        let changed = change(value);
        if value.is_empty() {
            self.database.remove(key);
        }
        Ok(changed)
    }

    /// Sets a key, whatever it held before.
    pub(crate) fn set(&mut self, key: &[u8], value: Value, ends: Option<u64>) {
        self.database.insert(key.to_vec(), Entry { value, ends });
    }

    /// Removes a key. Returns whether there was one.
    pub(crate) fn remove(&mut self, key: &[u8]) -> bool {
        self.entry(key).is_some() && self.database.remove(key).is_some()
    }
}
