//! The answers of the scripts of semaphores and latches, as data.

use crate::error::{Error, ErrorKind};
use crate::protocol::answer::Ttl;
use crate::protocol::reply::Reply;

/// A count: as it was read, or as it is after a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CounterValue(pub(crate) i64);

/// Whether a counter was set, or deleted. It was not if it has permits or a count already, or is not there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Changed(pub(crate) bool);

/// The answer to an attempt to take permits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Taken {
    Granted,
    /// Fewer permits are free than requested. Has the time until the first lease of a permit ends.
    Busy(Ttl),
    /// These permits were given up or returned before: the request arrived late.
    Returned,
}

/// The answer to the return of permits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Returned {
    /// For permits with leases: how many of them had not ended.
    Done(i64),
    Absent,
}

impl CounterValue {
    #[cfg(test)]
    pub(crate) const TAGS: &[&str] = &["count", "wrong_kind"];
    #[cfg(test)]
    pub(crate) const DOWN_TAGS: &[&str] = &["counted", "wrong_kind"];
    #[cfg(test)]
    pub(crate) const ADD_TAGS: &[&str] = &["added", "exhausted", "wrong_kind"];
    #[cfg(test)]
    pub(crate) const DRAIN_TAGS: &[&str] = &["drained", "wrong_kind"];

    /// Decodes a count. `name` is the counter, for errors.
    pub(crate) fn decode(reply: &Reply, name: &str) -> Result<Self, Error> {
        match reply.tagged() {
            Some(("count" | "counted" | "added" | "drained", &[Reply::Integer(count)])) => {
                Ok(Self(count))
            }
            Some(("exhausted", [])) => Err(Error::new(
                ErrorKind::Refused,
                format!("{name:?} would have more than 2^31 - 1 free permits, or fewer than -2^31"),
            )),
            _ => Err(unexpected(reply, name)),
        }
    }

    /// Returns the count, or 0 if it is negative.
    pub(crate) fn unsigned(self) -> u32 {
        u32::try_from(self.0.max(0)).unwrap_or(u32::MAX)
    }

    pub(crate) fn signed(self) -> i32 {
        let end = if self.0 < 0 { i32::MIN } else { i32::MAX };
        i32::try_from(self.0).unwrap_or(end)
    }
}

impl Changed {
    #[cfg(test)]
    pub(crate) const SET_TAGS: &[&str] = &["set", "present", "wrong_kind"];
    #[cfg(test)]
    pub(crate) const DELETED_TAGS: &[&str] = &["deleted", "absent", "wrong_kind"];

    pub(crate) fn decode(reply: &Reply, name: &str) -> Result<Self, Error> {
        match reply.tagged() {
            Some(("set" | "deleted", [])) => Ok(Self(true)),
            Some(("present" | "absent", [])) => Ok(Self(false)),
            _ => Err(unexpected(reply, name)),
        }
    }
}

impl Taken {
    #[cfg(test)]
    pub(crate) const TAGS: &[&str] = &["granted", "busy", "returned", "wrong_kind"];

    pub(crate) fn decode(reply: &Reply, name: &str) -> Result<Self, Error> {
        match reply.tagged() {
            Some(("granted", [Reply::Integer(_)])) => Ok(Self::Granted),
            Some(("busy", &[Reply::Integer(millis)])) => Ok(Self::Busy(Ttl::from_millis(millis))),
            Some(("returned", [])) => Ok(Self::Returned),
            _ => Err(unexpected(reply, name)),
        }
    }
}

impl Returned {
    #[cfg(test)]
    pub(crate) const TAGS: &[&str] = &["returned", "absent"];
    #[cfg(test)]
    pub(crate) const LEASED_TAGS: &[&str] = &["returned"];

    pub(crate) fn decode(reply: &Reply, name: &str) -> Result<Self, Error> {
        match reply.tagged() {
            Some(("returned", &[Reply::Integer(count)])) => Ok(Self::Done(count)),
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
                CounterValue::decode(&reply, "k").unwrap_err().kind(),
                Changed::decode(&reply, "k").unwrap_err().kind(),
                Taken::decode(&reply, "k").unwrap_err().kind(),
                Returned::decode(&reply, "k").unwrap_err().kind(),
            ];
            assert_eq!(kinds, [ErrorKind::Protocol; 4], "{reply:?}");
        }
        let reply = list(vec![text("wrong_kind")]);
        assert_eq!(
            Changed::decode(&reply, "k").unwrap_err().kind(),
            ErrorKind::WrongKind
        );
    }

    #[test]
    fn counts_beyond_javas_stay_at_its_ends() {
        assert_eq!(
            (CounterValue(-3).unsigned(), CounterValue(-3).signed()),
            (0, -3)
        );
        assert_eq!(CounterValue(i64::MAX).signed(), i32::MAX);
        assert_eq!(CounterValue(i64::MIN).signed(), i32::MIN);
    }
}
