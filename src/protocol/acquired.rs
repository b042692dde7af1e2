//! The answers to an attempt to acquire a lock, as data, and what a waiter learns from them.

use std::time::Duration;

use crate::clock::BootInstant;
use crate::error::Error;
use crate::protocol::answer::{Ttl, unsigned, waiting};
use crate::protocol::reply::Reply;

/// The answer to an attempt to acquire the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Acquired {
    Granted {
        count: u64,
        /// The tokens of a fenced lock.
        tokens: Option<Tokens>,
        /// For a read lock: how long a writer has waited for it, if one waits.
        writer: Option<Duration>,
    },
    Busy(Ttl),
    /// The caller has a place in the server queue of a fair lock; `anew` if it had none before.
    Queued {
        anew: bool,
        /// Whether this waiter may depend on a release by one of Redisson's clients.
        is_foreign: bool,
    },
    /// Another owner holds the lock, or it is reserved. The process of the caller has a place in the turn order, if one
    /// could be made.
    Stands {
        ttl: Ttl,
        standing: Standing,
    },
    /// Another owner holds the read-write lock, and the place of this call among its waiters is known.
    Waits {
        ttl: Ttl,
        place: WaiterMark,
    },
    /// Nobody holds the lock, and the request might only join its holder.
    Free,
    /// The owner holds the read lock and asks for the write lock.
    Upgrade,
    /// The hold count would pass its maximum.
    Exhausted,
    /// The tokens of a fenced lock are used up.
    Spent,
    WrongKind,
}

/// The fencing token of one hold, and the tokens reserved for the holds that its record is passed on to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tokens {
    pub(crate) first: u64,
    last: u64,
}

impl Tokens {
    /// Makes a token and its successors, `all` in total.
    pub(crate) fn new(first: u64, all: u64) -> Self {
        Self {
            first,
            last: first.saturating_add(all.saturating_sub(1)),
        }
    }

    /// Returns the tokens of the next hold, or `None` if none is reserved for it.
    pub(crate) fn next(self) -> Option<Self> {
        (self.first < self.last).then(|| Self {
            first: self.first + 1,
            ..self
        })
    }
}

/// The position of a waiting process in the turn order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// The process has no place.
    Nowhere,
    /// The process is first or second. `is_foreign` if one of Redisson's clients may hold the lock: those tell nobody
    /// by name.
    Near {
        is_foreign: bool,
    },
    Behind,
}

impl Standing {
    /// Returns whether this process is not told by name when the lock becomes free.
    pub(crate) fn is_told_with_all(self) -> bool {
        matches!(self, Self::Nowhere | Self::Near { is_foreign: true })
    }
}

/// The place of a call among the waiters of a read-write lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WaiterMark {
    /// The time at which the call arrived, in microseconds by the server's clock. Until the server has reported it: how
    /// long the call has waited, in microseconds and negative.
    pub(crate) came: i64,
    /// Whether a waiter mark on the server tells others that the call waits.
    pub(crate) marked: bool,
}

impl WaiterMark {
    /// Returns the same place for a request that is sent at `now`, of a call that arrived at `came`.
    pub(crate) fn sent(self, came: BootInstant, now: BootInstant) -> Self {
        let waited = || i64::try_from(came.until(now).as_micros()).unwrap_or(i64::MAX);
        Self {
            came: if self.came > 0 { self.came } else { -waited() },
            ..self
        }
    }
}

#[cfg(test)]
impl Acquired {
    pub(crate) const TAGS: &[&str] = &[
        "granted",
        "busy",
        "stands",
        "free",
        "exhausted",
        "wrong_kind",
    ];
    pub(crate) const FENCED_TAGS: &[&str] = &[
        "granted",
        "busy",
        "stands",
        "free",
        "exhausted",
        "spent",
        "wrong_kind",
    ];
    pub(crate) const FAIR_TAGS: &[&str] = &[
        "granted",
        "queued",
        "waiting",
        "busy",
        "exhausted",
        "wrong_kind",
    ];
    pub(crate) const PLAIN_TAGS: &[&str] = &["granted", "busy"];

    pub(crate) const READ_TAGS: &[&str] = &["granted", "busy", "exhausted", "wrong_kind"];
    pub(crate) const WRITE_TAGS: &[&str] =
        &["granted", "busy", "upgrade", "exhausted", "wrong_kind"];
}

impl Acquired {
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

/// Decodes the tokens at the end of an answer, if there are any: the first token and the number of tokens. Returns
/// `None` if something else is there.
fn tokens(rest: &[Reply]) -> Option<Option<Tokens>> {
    match rest {
        [] => Some(None),
        &[Reply::Integer(first), Reply::Integer(all @ 1..)] => {
            Some(Some(Tokens::new(unsigned(first), unsigned(all))))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    #[test]
    fn unknown_answers_are_errors() {
        let odd = [
            Reply::Nil,
            Reply::List(vec![Reply::Text("granted".into())]),
            Reply::List(vec![Reply::Text("busy".into()), Reply::Text("soon".into())]),
            Reply::List(vec![Reply::Text("queued".into())]),
            Reply::List(vec![
                Reply::Text("busy".into()),
                Reply::Integer(1),
                Reply::Integer(1),
                Reply::Integer(2),
            ]),
        ];
        for reply in &odd {
            let kind = Acquired::decode(reply).unwrap_err().kind();
            assert_eq!(kind, ErrorKind::Protocol, "{reply:?}");
        }
    }
}
