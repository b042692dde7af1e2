//! The answers of the scripts about a hold, as data.

use std::time::Duration;

use crate::error::Error;
use crate::protocol::reply::Reply;

/// The remaining lifetime of a key, as `PTTL` reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ttl {
    Ends(Duration),
    Never,
}

impl Ttl {
    pub(crate) fn from_millis(millis: i64) -> Self {
        match u64::try_from(millis) {
            Ok(millis) => Self::Ends(Duration::from_millis(millis)),
            Err(_) if millis == -1 => Self::Never,
            Err(_) => Self::Ends(Duration::ZERO),
        }
    }

    pub(crate) fn left(self) -> Option<Duration> {
        match self {
            Self::Ends(left) => Some(left),
            Self::Never => None,
        }
    }
}

/// The answer to an attempt to take the lock once more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reentered {
    Granted {
        count: u64,
    },
    Absent,
    Exhausted,
    /// See [`Known`](super::lock::Known).
    Fewer {
        taken: u32,
    },
}

/// The answer to the question whether a hold that several owners of this process share still stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Confirmed {
    Stands {
        /// Present if others wait for the lock. For a read lock: how long a writer has waited.
        others: Option<Duration>,
    },
    Absent,
}

/// The answer to a release.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Released {
    /// The lock is free, and `told` subscribers received the message.
    Freed {
        told: u64,
    },
    /// The fair lock was moved to the hold with this acquisition id, which waited for it in this client.
    Moved {
        number: Box<str>,
    },
    Kept,
    Absent,
    /// Another owner holds the plain lock.
    Taken,
    /// See [`Known`](super::lock::Known).
    Fewer {
        taken: u32,
    },
}

/// The answer to an attempt to take over a level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Adopted {
    Moved,
    Changed,
    Absent,
    WrongKind,
    /// See [`Known`](super::lock::Known).
    Fewer {
        taken: u32,
    },
}

/// The answer to a request for a new lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Extended {
    Set,
    /// The remaining lease is longer, and the request was not allowed to cut it. It ends at `ends`, by the server's
    /// clock.
    Longer {
        ends: i64,
    },
    Absent,
}

/// The answer to a read of a fencing token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Token {
    Stands(u64),
    Absent,
}

/// The answer to a forced release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ForceReleased {
    Released,
    Free,
    /// Other owners hold the lock than those whose holds were to end.
    Others,
    WrongKind,
}

/// The answer to an inspection of the lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Inspected {
    Held {
        ttl: Ttl,
        fields: Vec<(String, String)>,
        /// For a read-write lock: the values of the keys of one owner's levels.
        levels: Vec<String>,
    },
    Free,
    WrongKind,
}

impl Reentered {
    #[cfg(test)]
    pub(crate) const TAGS: &[&str] = &["granted", "absent", "exhausted"];
    #[cfg(test)]
    pub(crate) const SPARE_TAGS: &[&str] = &["granted", "absent", "exhausted", "fewer"];

    pub(crate) fn decode(reply: &Reply) -> Result<Self, Error> {
        match reply.tagged() {
            Some(("granted", &[Reply::Integer(count)])) => Ok(Self::Granted {
                count: unsigned(count),
            }),
            Some(("absent", [])) => Ok(Self::Absent),
            Some(("exhausted", [])) => Ok(Self::Exhausted),
            Some(("fewer", [taken])) => fewer(reply, taken).map(|taken| Self::Fewer { taken }),
            _ => Err(reply.unexpected()),
        }
    }
}

impl Confirmed {
    #[cfg(test)]
    pub(crate) const TAGS: &[&str] = &["stands", "absent"];

    pub(crate) fn decode(reply: &Reply) -> Result<Self, Error> {
        match reply.tagged() {
            Some(("stands", &[Reply::Integer(waited)])) => Ok(Self::Stands {
                others: waiting(waited),
            }),
            Some(("absent", [])) => Ok(Self::Absent),
            _ => Err(reply.unexpected()),
        }
    }
}

impl Released {
    #[cfg(test)]
    pub(crate) const TAGS: &[&str] = &["released", "kept", "absent"];
    #[cfg(test)]
    pub(crate) const SPARE_TAGS: &[&str] = &["released", "kept", "absent", "fewer"];
    #[cfg(test)]
    pub(crate) const FAIR_TAGS: &[&str] = &["released", "moved", "kept", "absent"];
    #[cfg(test)]
    pub(crate) const FAIR_SPARE_TAGS: &[&str] = &["released", "moved", "kept", "absent", "fewer"];
    #[cfg(test)]
    pub(crate) const PLAIN_TAGS: &[&str] = &["released", "absent", "taken"];

    pub(crate) fn decode(reply: &Reply) -> Result<Self, Error> {
        match reply.tagged() {
            Some(("released", &[Reply::Integer(told)])) => Ok(Self::Freed {
                told: unsigned(told),
            }),
            // A fair lock, where only the first in the server queue is told.
            Some(("released", [])) => Ok(Self::Freed { told: 0 }),
            Some(("moved", [Reply::Text(number)])) => Ok(Self::Moved {
                number: number.as_str().into(),
            }),
            Some(("kept", [Reply::Integer(_)])) => Ok(Self::Kept),
            Some(("absent", [])) => Ok(Self::Absent),
            Some(("taken", [])) => Ok(Self::Taken),
            Some(("fewer", [taken])) => fewer(reply, taken).map(|taken| Self::Fewer { taken }),
            _ => Err(reply.unexpected()),
        }
    }
}

impl Adopted {
    #[cfg(test)]
    pub(crate) const TAGS: &[&str] = &["adopted", "changed", "absent", "wrong_kind"];
    #[cfg(test)]
    pub(crate) const SPARE_TAGS: &[&str] = &["adopted", "changed", "absent", "wrong_kind", "fewer"];
    #[cfg(test)]
    pub(crate) const PLAIN_TAGS: &[&str] = &["adopted", "absent"];

    pub(crate) fn decode(reply: &Reply) -> Result<Self, Error> {
        match reply.tagged() {
            Some(("adopted", [Reply::Integer(_)])) => Ok(Self::Moved),
            Some(("changed", [])) => Ok(Self::Changed),
            Some(("absent", [])) => Ok(Self::Absent),
            Some(("wrong_kind", [])) => Ok(Self::WrongKind),
            Some(("fewer", [taken])) => fewer(reply, taken).map(|taken| Self::Fewer { taken }),
            _ => Err(reply.unexpected()),
        }
    }
}

impl Extended {
    #[cfg(test)]
    pub(crate) const TAGS: &[&str] = &["extended", "longer", "absent"];
    #[cfg(test)]
    pub(crate) const PERMIT_TAGS: &[&str] = &["extended", "absent"];

    pub(crate) fn decode(reply: &Reply) -> Result<Self, Error> {
        match reply.tagged() {
            Some(("extended", [])) => Ok(Self::Set),
            Some(("longer", &[Reply::Integer(ends)])) => Ok(Self::Longer { ends }),
            Some(("absent", [])) => Ok(Self::Absent),
            _ => Err(reply.unexpected()),
        }
    }
}

impl Token {
    #[cfg(test)]
    pub(crate) const TAGS: &[&str] = &["token", "absent"];

    pub(crate) fn decode(reply: &Reply) -> Result<Self, Error> {
        match reply.tagged() {
            Some(("token", &[Reply::Integer(token)])) => Ok(Self::Stands(unsigned(token))),
            Some(("absent", [])) => Ok(Self::Absent),
            _ => Err(reply.unexpected()),
        }
    }
}

impl ForceReleased {
    #[cfg(test)]
    pub(crate) const TAGS: &[&str] = &["released", "free", "others", "wrong_kind"];

    pub(crate) fn decode(reply: &Reply) -> Result<Self, Error> {
        match reply.tagged() {
            // A number, and the answers absent and taken, come from a plain lock without a script.
            Some(("released", [] | [Reply::Integer(_)])) => Ok(Self::Released),
            Some(("free" | "absent", [])) => Ok(Self::Free),
            Some(("others" | "taken", [])) => Ok(Self::Others),
            Some(("wrong_kind", [])) => Ok(Self::WrongKind),
            _ => Err(reply.unexpected()),
        }
    }
}

impl Inspected {
    #[cfg(test)]
    pub(crate) const TAGS: &[&str] = &["held", "free", "wrong_kind"];

    pub(crate) fn decode(reply: &Reply) -> Result<Self, Error> {
        match reply.tagged() {
            Some(("held", [Reply::Integer(millis), Reply::List(items), rest @ ..])) => {
                let pair = |pair: &[Reply]| match pair {
                    [Reply::Text(field), Reply::Text(value)] => Ok((field.clone(), value.clone())),
                    _ => Err(reply.unexpected()),
                };
                let fields = items.chunks(2).map(pair).collect::<Result<_, _>>()?;
                let text = |item: &Reply| match item {
                    Reply::Text(text) => Ok(text.clone()),
                    _ => Err(reply.unexpected()),
                };
                let levels = match rest {
                    [] => Vec::new(),
                    [Reply::List(items)] => items.iter().map(text).collect::<Result<_, _>>()?,
                    _ => return Err(reply.unexpected()),
                };
                Ok(Self::Held {
                    ttl: Ttl::from_millis(*millis),
                    fields,
                    levels,
                })
            }
            Some(("free", [])) => Ok(Self::Free),
            Some(("wrong_kind", [])) => Ok(Self::WrongKind),
            _ => Err(reply.unexpected()),
        }
    }
}

/// Decodes how long somebody has waited, given in microseconds. Returns `None` for -1, which means that nobody waits.
pub(super) fn waiting(waited: i64) -> Option<Duration> {
    u64::try_from(waited).ok().map(Duration::from_micros)
}

/// Decodes how many levels were taken over.
fn fewer(reply: &Reply, taken: &Reply) -> Result<u32, Error> {
    match *taken {
        Reply::Integer(taken) => u32::try_from(taken).map_err(|_| reply.unexpected()),
        _ => Err(reply.unexpected()),
    }
}

pub(super) fn unsigned(count: i64) -> u64 {
    u64::try_from(count).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    #[test]
    fn unknown_answers_are_errors() {
        let odd = [
            Reply::Nil,
            Reply::Integer(1),
            Reply::Text("OK".into()),
            Reply::List(vec![]),
            Reply::List(vec![Reply::Text("granted".into())]),
            Reply::List(vec![Reply::Text("moved".into()), Reply::Nil]),
            Reply::List(vec![
                Reply::Text("held".into()),
                Reply::Integer(1),
                Reply::List(vec![Reply::Nil]),
            ]),
            Reply::List(vec![
                Reply::Text("held".into()),
                Reply::Integer(1),
                Reply::List(vec![]),
                Reply::List(vec![Reply::Integer(1)]),
            ]),
        ];
        for reply in &odd {
            let kinds = [
                Reentered::decode(reply).unwrap_err().kind(),
                Confirmed::decode(reply).unwrap_err().kind(),
                Released::decode(reply).unwrap_err().kind(),
                Adopted::decode(reply).unwrap_err().kind(),
                Extended::decode(reply).unwrap_err().kind(),
                Token::decode(reply).unwrap_err().kind(),
                ForceReleased::decode(reply).unwrap_err().kind(),
                Inspected::decode(reply).unwrap_err().kind(),
            ];
            assert_eq!(kinds, [ErrorKind::Protocol; 8], "{reply:?}");
        }
    }
}
