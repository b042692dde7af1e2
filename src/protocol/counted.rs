//! What the scripts of semaphores and latches answer, as data.

use crate::error::Error;
use crate::protocol::reply::Reply;

/// A count: read, or as it is after a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Count(pub(crate) i64);

/// The answer to a count that is set unless there is one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Set {
    Done,
    Present,
}

/// The answer to a latch that is removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Deleted {
    Done,
    Absent,
}

impl Count {
    #[cfg(test)]
    pub(crate) const TAGS: &[&str] = &["count", "wrong_kind"];
    #[cfg(test)]
    pub(crate) const DOWN_TAGS: &[&str] = &["counted", "wrong_kind"];

    /// `name` is the counter, for an error.
    pub(crate) fn decode(reply: &Reply, name: &str) -> Result<Self, Error> {
        match reply.tagged() {
            Some(("count" | "counted", &[Reply::Integer(count)])) => Ok(Self(count)),
            _ => Err(unexpected(reply, name)),
        }
    }

    /// None below zero.
    pub(crate) fn unsigned(self) -> u32 {
        u32::try_from(self.0.max(0)).unwrap_or(u32::MAX)
    }
}

impl Set {
    #[cfg(test)]
    pub(crate) const TAGS: &[&str] = &["set", "present", "wrong_kind"];

    pub(crate) fn decode(reply: &Reply, name: &str) -> Result<Self, Error> {
        match reply.tagged() {
            Some(("set", [])) => Ok(Self::Done),
            Some(("present", [])) => Ok(Self::Present),
            _ => Err(unexpected(reply, name)),
        }
    }
}

impl Deleted {
    #[cfg(test)]
    pub(crate) const TAGS: &[&str] = &["deleted", "absent", "wrong_kind"];

    pub(crate) fn decode(reply: &Reply, name: &str) -> Result<Self, Error> {
        match reply.tagged() {
            Some(("deleted", [])) => Ok(Self::Done),
            Some(("absent", [])) => Ok(Self::Absent),
            _ => Err(unexpected(reply, name)),
        }
    }
}

fn unexpected(reply: &Reply, name: &str) -> Error {
    match reply.tagged() {
        Some(("wrong_kind", [])) => Error::wrong_kind(name),
        _ => reply.unexpected(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    #[test]
    fn unknown_answers_are_errors() {
        let text = |text: &str| Reply::Text(text.into());
        let list = Reply::List;
        for reply in [
            Reply::Nil,
            Reply::Integer(1),
            list(vec![]),
            list(vec![text("count"), text("many")]),
            list(vec![text("granted")]),
            list(vec![text("set"), Reply::Integer(1)]),
            list(vec![text("wrong_kind"), Reply::Nil]),
        ] {
            let kinds = [
                Count::decode(&reply, "k").unwrap_err().kind(),
                Set::decode(&reply, "k").unwrap_err().kind(),
                Deleted::decode(&reply, "k").unwrap_err().kind(),
            ];
            assert_eq!(kinds, [ErrorKind::Protocol; 3], "{reply:?}");
        }
        let reply = list(vec![text("wrong_kind")]);
        assert_eq!(
            Set::decode(&reply, "k").unwrap_err().kind(),
            ErrorKind::WrongKind
        );
    }
}
