//! Compare and change, for calls that run plain commands where no script may run: read the keys, and change them unless
//! another client has changed them in between.

use std::fmt;

use crate::protocol::reply::Reply;

/// The decisions of a call that replaces its script. Given what was found at its keys, decides what to change, and what
/// the script would have answered.
pub(crate) trait CompareAndChange: fmt::Debug + Send + Sync {
    /// Returns the command that suffices if the only key is free, if this call takes free keys.
    fn take(&self) -> Option<Take<'_>>;

    /// Returns whether the call changes nothing, whatever is found.
    fn only_asks(&self) -> bool;

    /// Returns whether to look once more, behind the requests of other calls, after a transaction that `answered`.
    fn looks_again(&self, answered: &Reply) -> bool;

    /// Decides about the key with this index.
    fn decide(&self, at: usize, found: &Found) -> Decision<'_>;

    /// Returns the answer of the script, given the answers for its keys.
    fn answer(&self, answers: Vec<Reply>) -> Reply;
}

/// A value that is set if the key is free, with its TTL in milliseconds, and the answer if it was.
#[derive(Debug)]
pub(crate) struct Take<'a> {
    pub(crate) value: &'a str,
    pub(crate) millis: u64,
    pub(crate) answer: Reply,
}

/// What was found at a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    Nothing,
    /// A value, and its TTL as `PTTL` reports it.
    Value(String, i64),
    /// A value that is not a string.
    Other,
}

/// The change to make to a key, unless another client changes it first. TTLs are in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change<'a> {
    /// The key is free: set it to this value, with this TTL.
    Set(&'a str, u64),
    Delete,
    Expire(u64),
}

/// The decision about one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Decision<'a> {
    pub(crate) change: Option<Change<'a>>,
    /// The answer once the change is made; `None` if the key is not of the kind that the call is about.
    pub(crate) answer: Option<Reply>,
}
