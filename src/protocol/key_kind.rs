//! Describes the value at a key that a call cannot use.

use std::borrow::Cow;

use crate::error::quote;
use crate::protocol::reply::Reply;
use crate::protocol::script::{self, Call};

/// The type of the value at a key, as the server reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KeyKind(String);

pub(crate) fn ask(key: &str) -> Call<'_> {
    Call::new(&script::KEY_KIND, vec![key], Vec::new())
}

impl KeyKind {
    #[cfg(test)]
    pub(crate) const TAGS: &[&str] = &["kind"];

    /// Decodes the answer. Returns `None` for an answer that the script does not give, which would add nothing to an
    /// error.
    pub(crate) fn decode(reply: &Reply) -> Option<Self> {
        match reply.tagged() {
            Some(("kind", [Reply::Text(kind)])) => Some(Self(kind.clone())),
            _ => None,
        }
    }

    /// Returns whether there is nothing at the key.
    pub(crate) fn is_none(&self) -> bool {
        self.0 == "none"
    }

    /// Returns for people what is at the key, or `None` if nothing is.
    pub(crate) fn shown(&self, key: &str) -> Option<Cow<'static, str>> {
        Some(Cow::Borrowed(match &*self.0 {
            "none" => return None,
            "lock" => "a reentrant, fair or fenced lock",
            "read_write" => "a read-write lock",
            "plain" => "a string with a lease, such as a plain lock",
            "count" => "a number, such as a semaphore or a latch",
            "hash" => "a hash",
            "string" => "a string",
            "list" if key.starts_with("redisson_lock_queue:") => "the queue of a fair lock",
            "list" => "a list",
            "set" => "a set",
            "zset" => "a sorted set",
            "stream" => "a stream",
            other => return Some(quote(format_args!("a value of the type {other}")).into()),
        }))
    }
}
