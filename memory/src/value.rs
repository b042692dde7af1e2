//! What a key may hold: a text, a hash, a list or a sorted set.

use std::cmp::Ordering;
use std::collections::VecDeque;

/// The value of a key.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Value {
    Text(Vec<u8>),
    Hash(Hash),
    List(List),
    Sorted(Sorted),
}

/// Fields and their values, in the order in which the fields came, as in a small hash of Redis.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Hash(pub(crate) Vec<(Vec<u8>, Vec<u8>)>);

pub(crate) type List = VecDeque<Vec<u8>>;

/// Members with their scores, in order of the scores, and in order of the members where scores are equal.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Sorted(pub(crate) Vec<(Vec<u8>, f64)>);

/// A type of value. An empty value is none: its key goes.
pub(crate) trait ValueKind: Default + 'static {
    fn of(value: &Value) -> Option<&Self>;
    fn of_mut(value: &mut Value) -> Option<&mut Self>;
    fn into_value(self) -> Value;
    fn is_empty(&self) -> bool;
}

macro_rules! kind {
    ($kind:ty, $variant:ident, $is_empty:expr) => {
        impl ValueKind for $kind {
            fn of(value: &Value) -> Option<&Self> {
                match value {
                    Value::$variant(kind) => Some(kind),
                    _ => None,
                }
            }
            fn of_mut(value: &mut Value) -> Option<&mut Self> {
                match value {
                    Value::$variant(kind) => Some(kind),
                    _ => None,
                }
            }
            fn into_value(self) -> Value {
                Value::$variant(self)
            }
            fn is_empty(&self) -> bool {
                let is_empty: fn(&Self) -> bool = $is_empty;
                is_empty(self)
            }
        }
    };
}

// A text may be empty and is a value all the same.
kind!(Vec<u8>, Text, |_| false);
kind!(Hash, Hash, |hash| hash.0.is_empty());
kind!(List, List, |list| list.is_empty());
kind!(Sorted, Sorted, |sorted| sorted.0.is_empty());

impl Value {
    /// Returns the word for the type, as `TYPE` has it.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Self::Text(_) => "string",
            Self::Hash(_) => "hash",
            Self::List(_) => "list",
            Self::Sorted(_) => "zset",
        }
    }

    /// Returns about how many bytes the value takes.
    pub(crate) fn size(&self) -> usize {
        match self {
            Self::Text(text) => text.len(),
            Self::Hash(hash) => hash
                .0
                .iter()
                .map(|(name, value)| name.len() + value.len())
                .sum(),
            Self::List(list) => list.iter().map(Vec::len).sum(),
            Self::Sorted(sorted) => sorted.0.iter().map(|(member, _)| member.len() + 8).sum(),
        }
    }
}

impl Hash {
    pub(crate) fn get(&self, field: &[u8]) -> Option<&Vec<u8>> {
        let found = self.0.iter().find(|(name, _)| name == field);
        found.map(|(_, value)| value)
    }

    /// Sets a field. Returns whether it is new.
    pub(crate) fn set(&mut self, field: &[u8], value: Vec<u8>) -> bool {
        match self.0.iter_mut().find(|(name, _)| name == field) {
            Some((_, old)) => {
                *old = value;
                false
            }
            None => {
                self.0.push((field.to_vec(), value));
                true
            }
        }
    }

    /// Removes a field. Returns whether there was one.
    pub(crate) fn remove(&mut self, field: &[u8]) -> bool {
        let before = self.0.len();
        self.0.retain(|(name, _)| name != field);
        self.0.len() < before
    }
}

impl Sorted {
    pub(crate) fn score(&self, member: &[u8]) -> Option<f64> {
        let found = self.0.iter().find(|(name, _)| name == member);
        found.map(|(_, score)| *score)
    }

    pub(crate) fn rank(&self, member: &[u8]) -> Option<usize> {
        self.0.iter().position(|(name, _)| name == member)
    }

    /// Sets the score of a member, and moves it to where it belongs.
    pub(crate) fn set(&mut self, member: &[u8], score: f64) {
        self.remove(member);
        let at = self.0.partition_point(|(name, other)| {
            let by_score = other.partial_cmp(&score).unwrap_or(Ordering::Equal);
            by_score.then_with(|| name.as_slice().cmp(member)) == Ordering::Less
        });
        self.0.insert(at, (member.to_vec(), score));
    }

    /// Removes a member. Returns whether there was one.
    pub(crate) fn remove(&mut self, member: &[u8]) -> bool {
        let before = self.0.len();
        self.0.retain(|(name, _)| name != member);
        self.0.len() < before
    }
}
