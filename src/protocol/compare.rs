//! Compare and change, for calls that run plain commands where no script may run: read the keys, and change them unless
//! another client has changed them in between.

use crate::protocol::reply::Reply;

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
