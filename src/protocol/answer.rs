//! What the scripts answer, as data.

use std::time::Duration;

use crate::clock::BootInstant;
use crate::error::Error;
use crate::protocol::reply::Reply;

/// How long a key will live, as `PTTL` tells.
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

/// The answer to a try to take the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Acquired {
    Granted {
        count: u64,
        /// Of a fenced lock.
        tokens: Option<Tokens>,
        /// Of a read lock: for how long a writer has waited for it, if one waits.
        writer: Option<Duration>,
    },
    Busy(Ttl),
    /// Of a fair lock: there is a place in the queue, `anew` if there was none before.
    Queued {
        anew: bool,
        /// A release by Redisson's may be the one that it waits for.
        is_foreign: bool,
    },
    /// Busy, and its process stands in line for its turn, if it could.
    Stands {
        ttl: Ttl,
        standing: Standing,
    },
    /// Busy, and the place of this call is known: of a read-write lock.
    Waits {
        ttl: Ttl,
        place: WaiterMark,
    },
    Free,
    /// The owner reads, and asks to write.
    Upgrade,
    Exhausted,
    /// The tokens of a fenced lock are used up.
    Spent,
    WrongKind,
}

/// The token of a hold of a fenced lock, and those that were reserved with it for the holds that it is passed on to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tokens {
    pub(crate) first: u64,
    last: u64,
}

impl Tokens {
    /// A token and those behind it, `all` together.
    pub(crate) fn new(first: u64, all: u64) -> Self {
        Self {
            first,
            last: first.saturating_add(all.saturating_sub(1)),
        }
    }

    /// Those of the next hold, if any was reserved for it.
    pub(crate) fn next(self) -> Option<Self> {
        (self.first < self.last).then(|| Self {
            first: self.first + 1,
            ..self
        })
    }
}

/// How a process stands that waits for its turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// There is no place for it.
    Nowhere,
    /// It is first or second. A client of Redisson's may hold the lock, which tells nobody by name.
    Near {
        is_foreign: bool,
    },
    Behind,
}

impl Standing {
    /// Whether nobody tells it by name when the lock is free.
    pub(crate) fn is_told_with_all(self) -> bool {
        matches!(self, Self::Nowhere | Self::Near { is_foreign: true })
    }
}

/// The place of a call among those that wait for a read-write lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WaiterMark {
    /// When it came, by the server's clock in microseconds; before the server told, how long it has waited, negative.
    pub(crate) came: i64,
    /// Whether a mark on the server tells others that it waits.
    pub(crate) marked: bool,
}

impl WaiterMark {
    /// The same in a request that is sent `now`, of a call that came at `came`.
    pub(crate) fn sent(self, came: BootInstant, now: BootInstant) -> Self {
        let waited = || i64::try_from(came.until(now).as_micros()).unwrap_or(i64::MAX);
        Self {
            came: if self.came > 0 { self.came } else { -waited() },
            ..self
        }
    }
}

/// The answer to a try to take it once more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reentered {
    Granted { count: u64 },
    Absent,
    Exhausted,
}

/// The answer to whether a hold that several owners of this process have still stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Confirmed {
    Stands {
        /// Others wait for the lock: of a read lock a writer, for so long.
        others: Option<Duration>,
    },
    Absent,
}

/// The answer to a release.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Released {
    /// The lock is free, and so many subscribers were told.
    Freed {
        told: u64,
    },
    /// Of a fair lock: it is with the hold of this number, which waited for it in this client.
    Moved {
        number: Box<str>,
    },
    Kept,
    Absent,
    /// Of a plain lock: somebody else holds it.
    Taken,
}

/// The answer to a try to take a level over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Adopted {
    Moved,
    Changed,
    Absent,
    WrongKind,
}

/// The answer to a new lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Extended {
    Set,
    /// What is left is longer, and was not to be cut. When it ends, by the server's clock.
    Longer {
        ends: i64,
    },
    Absent,
}

/// The answer to a look at a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Token {
    Stands(u64),
    Absent,
}

/// The answer to a release by force.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ForceReleased {
    Released,
    Free,
    WrongKind,
}

/// The answer to a look at the lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Inspected {
    Held {
        ttl: Ttl,
        fields: Vec<(String, String)>,
        /// What the keys of one owner's levels hold: of a read-write lock.
        levels: Vec<String>,
    },
    Free,
    WrongKind,
}

impl Acquired {
    #[cfg(test)]
    pub(crate) const TAGS: &[&str] = &[
        "granted",
        "busy",
        "stands",
        "free",
        "exhausted",
        "wrong_kind",
    ];
    #[cfg(test)]
    pub(crate) const FENCED_TAGS: &[&str] = &[
        "granted",
        "busy",
        "stands",
        "free",
        "exhausted",
        "spent",
        "wrong_kind",
    ];
    #[cfg(test)]
    pub(crate) const FAIR_TAGS: &[&str] = &[
        "granted",
        "queued",
        "waiting",
        "busy",
        "exhausted",
        "wrong_kind",
    ];
    #[cfg(test)]
    pub(crate) const PLAIN_TAGS: &[&str] = &["granted", "busy"];

    #[cfg(test)]
    pub(crate) const READ_TAGS: &[&str] = &["granted", "busy", "exhausted", "wrong_kind"];
    #[cfg(test)]
    pub(crate) const WRITE_TAGS: &[&str] =
        &["granted", "busy", "upgrade", "exhausted", "wrong_kind"];

    pub(crate) fn decode(reply: &Reply) -> Result<Self, Error> {
        match reply.tagged() {
            Some(("granted", &[Reply::Integer(count), Reply::Integer(waited)])) => {
                Ok(Self::Granted {
                    count: unsigned(count),
                    tokens: None,
                    writer: waiting(waited),
                })
            }
            Some(("granted", [Reply::Integer(count), rest @ ..])) => Ok(Self::Granted {
                count: unsigned(*count),
                tokens: tokens(rest).ok_or_else(|| reply.unexpected())?,
                writer: None,
            }),
            Some(("spent", [])) => Ok(Self::Spent),
            Some(("busy", &[Reply::Integer(millis)])) => Ok(Self::Busy(Ttl::from_millis(millis))),
            Some((
                "stands",
                &[
                    Reply::Integer(millis),
                    Reply::Integer(place),
                    Reply::Integer(foreign @ (0 | 1)),
                ],
            )) => Ok(Self::Stands {
                ttl: Ttl::from_millis(millis),
                standing: match place {
                    ..0 => Standing::Nowhere,
                    0 | 1 => Standing::Near {
                        is_foreign: foreign == 1,
                    },
                    2.. => Standing::Behind,
                },
            }),
            Some((tag @ ("queued" | "waiting"), &[Reply::Integer(foreign @ (0 | 1))])) => {
                Ok(Self::Queued {
                    anew: tag == "queued",
                    is_foreign: foreign == 1,
                })
            }
            Some((
                "busy",
                &[
                    Reply::Integer(millis),
                    Reply::Integer(came),
                    Reply::Integer(marked @ (0 | 1)),
                ],
            )) => Ok(Self::Waits {
                ttl: Ttl::from_millis(millis),
                place: WaiterMark {
                    came,
                    marked: marked == 1,
                },
            }),
            Some(("free", [])) => Ok(Self::Free),
            Some(("upgrade", [])) => Ok(Self::Upgrade),
            Some(("exhausted", [])) => Ok(Self::Exhausted),
            Some(("wrong_kind", [])) => Ok(Self::WrongKind),
            _ => Err(reply.unexpected()),
        }
    }
}

impl Reentered {
    #[cfg(test)]
    pub(crate) const TAGS: &[&str] = &["granted", "absent", "exhausted"];

    pub(crate) fn decode(reply: &Reply) -> Result<Self, Error> {
        match reply.tagged() {
            Some(("granted", &[Reply::Integer(count)])) => Ok(Self::Granted {
                count: unsigned(count),
            }),
            Some(("absent", [])) => Ok(Self::Absent),
            Some(("exhausted", [])) => Ok(Self::Exhausted),
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
    pub(crate) const FAIR_TAGS: &[&str] = &["released", "moved", "kept", "absent"];
    #[cfg(test)]
    pub(crate) const PLAIN_TAGS: &[&str] = &["released", "absent", "taken"];

    pub(crate) fn decode(reply: &Reply) -> Result<Self, Error> {
        match reply.tagged() {
            Some(("released", &[Reply::Integer(told)])) => Ok(Self::Freed {
                told: unsigned(told),
            }),
            // Of a fair lock, where only the first in the queue is told.
            Some(("released", [])) => Ok(Self::Freed { told: 0 }),
            Some(("moved", [Reply::Text(number)])) => Ok(Self::Moved {
                number: number.as_str().into(),
            }),
            Some(("kept", [Reply::Integer(_)])) => Ok(Self::Kept),
            Some(("absent", [])) => Ok(Self::Absent),
            Some(("taken", [])) => Ok(Self::Taken),
            _ => Err(reply.unexpected()),
        }
    }
}

impl Adopted {
    #[cfg(test)]
    pub(crate) const TAGS: &[&str] = &["adopted", "changed", "absent", "wrong_kind"];
    #[cfg(test)]
    pub(crate) const PLAIN_TAGS: &[&str] = &["adopted", "absent"];

    pub(crate) fn decode(reply: &Reply) -> Result<Self, Error> {
        match reply.tagged() {
            Some(("adopted", [Reply::Integer(_)])) => Ok(Self::Moved),
            Some(("changed", [])) => Ok(Self::Changed),
            Some(("absent", [])) => Ok(Self::Absent),
            Some(("wrong_kind", [])) => Ok(Self::WrongKind),
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
    pub(crate) const TAGS: &[&str] = &["released", "free", "wrong_kind"];
    #[cfg(test)]
    pub(crate) const PLAIN_TAGS: &[&str] = &["released", "free"];

    pub(crate) fn decode(reply: &Reply) -> Result<Self, Error> {
        match reply.tagged() {
            Some(("released", [])) => Ok(Self::Released),
            Some(("free", [])) => Ok(Self::Free),
            Some(("wrong_kind", [])) => Ok(Self::WrongKind),
            _ => Err(reply.unexpected()),
        }
    }
}

impl Inspected {
    #[cfg(test)]
    pub(crate) const TAGS: &[&str] = &["held", "free", "wrong_kind"];
    #[cfg(test)]
    pub(crate) const PLAIN_TAGS: &[&str] = &["held", "free"];

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

/// The tokens that end an answer, if there are any: the first, and how many they are. None if there is something else.
fn tokens(rest: &[Reply]) -> Option<Option<Tokens>> {
    match rest {
        [] => Some(None),
        &[Reply::Integer(first), Reply::Integer(all @ 1..)] => {
            Some(Some(Tokens::new(unsigned(first), unsigned(all))))
        }
        _ => None,
    }
}

/// For how long somebody has waited, told in microseconds; -1 if nobody waits.
fn waiting(waited: i64) -> Option<Duration> {
    u64::try_from(waited).ok().map(Duration::from_micros)
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
            Reply::List(vec![Reply::Text("busy".into()), Reply::Text("soon".into())]),
            Reply::List(vec![Reply::Text("queued".into())]),
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
            Reply::List(vec![
                Reply::Text("busy".into()),
                Reply::Integer(1),
                Reply::Integer(1),
                Reply::Integer(2),
            ]),
        ];
        for reply in &odd {
            let kinds = [
                Acquired::decode(reply).unwrap_err().kind(),
                Reentered::decode(reply).unwrap_err().kind(),
                Confirmed::decode(reply).unwrap_err().kind(),
                Released::decode(reply).unwrap_err().kind(),
                Adopted::decode(reply).unwrap_err().kind(),
                Extended::decode(reply).unwrap_err().kind(),
                Token::decode(reply).unwrap_err().kind(),
                ForceReleased::decode(reply).unwrap_err().kind(),
                Inspected::decode(reply).unwrap_err().kind(),
            ];
            assert_eq!(kinds, [ErrorKind::Protocol; 9], "{reply:?}");
        }
    }
}
