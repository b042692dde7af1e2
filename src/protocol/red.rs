//! Calls and answers of a lock over several servers. The acquisitions of its members run behind a check, which lets a
//! server vote only if no grant that it may have forgotten can be in force.
//!
//! The longest lease belongs to the lock and comes with each call, so it is not part of the epoch. A server's grants of
//! other locks do not matter.

use std::fmt;
use std::time::Duration;

use crate::error::Error;
use crate::options::LeaseTime;
use crate::protocol::acquired::Acquired;
use crate::protocol::reply::Reply;
use crate::protocol::script::{self, Arg, Call, Unscripted};

/// The key of a server's epoch. The epoch belongs to the server and is the same for every lock. In a cluster, where
/// each slot may move to another server, the epoch is stored next to the lock.
pub(crate) const EPOCH_KEY: &str = "redlatch_redlock_mark";

/// When a server that may have forgotten grants votes again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RestartPolicy {
    /// The longest lease of the fleet. After that time, every grant that a server may have forgotten has ended.
    pub(crate) longest: LeaseTime,
    /// Whether the server loses nothing that it has answered.
    pub(crate) durable: bool,
    /// Whether a server that was started a short time ago counts as having granted nothing before.
    pub(crate) trusts_fresh: bool,
    /// Whether an epoch ends when nobody has asked for its lock during two longest leases. That loses only what it knew
    /// of a promotion or a flush, and by then no grant of its lock is left.
    pub(crate) epochs_end: bool,
}

/// Makes a call that takes a member, if its server votes.
pub(crate) fn guarded<'a>(
    acquire: Call<'a>,
    epoch_key: &'a str,
    policy: RestartPolicy,
) -> Call<'a> {
    let script = match std::ptr::eq(acquire.script, &script::PLAIN_ACQUIRE) {
        true => &script::RED_PLAIN_ACQUIRE,
        false => &script::RED_ACQUIRE,
    };
    let Call {
        mut keys, mut args, ..
    } = acquire;
    let counts = if policy.durable { "data" } else { "run" };
    let fresh = if policy.trusts_fresh { "trust" } else { "wait" };
    let life = match policy.epochs_end {
        true => i64::try_from(2 * policy.longest.millis()).unwrap_or(i64::MAX),
        false => 0,
    };
    keys.push(epoch_key);
    args.extend([
        Arg::from(policy.longest),
        Arg::Text(counts),
        Arg::Text(fresh),
        Arg::Number(life),
    ]);
    Call {
        unscripted: Unscripted::Refused("a RedLock"),
        ..Call::new(script, keys, args)
    }
}

/// The answer of one server that is asked for its vote.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Polled {
    Voted(Acquired),
    Abstains(Abstention),
}

/// A server may have forgotten grants. It votes again after `left`, when the last of them has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Abstention {
    pub(crate) left: Duration,
    pub(crate) cause: Cause,
}

/// The reason why a server may have forgotten grants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Cause {
    Started,
    Cleared,
    Replication,
    Clock,
}

#[cfg(test)]
impl Polled {
    pub(crate) const TAGS: &[&str] = &[
        "abstains",
        "granted",
        "busy",
        "stands",
        "free",
        "exhausted",
        "wrong_kind",
    ];
    pub(crate) const PLAIN_TAGS: &[&str] = &["abstains", "granted", "busy"];
}

impl Polled {
    pub(crate) fn decode(reply: &Reply) -> Result<Self, Error> {
        let Some(("abstains", rest)) = reply.tagged() else {
            return Acquired::decode(reply).map(Self::Voted);
        };
        match rest {
            [Reply::Integer(left), Reply::Text(cause)] => {
                let cause = Cause::decode(cause).ok_or_else(|| reply.unexpected())?;
                let left = Duration::from_millis(u64::try_from(*left).unwrap_or(0));
                Ok(Self::Abstains(Abstention { left, cause }))
            }
            _ => Err(reply.unexpected()),
        }
    }
}

impl Cause {
    fn decode(text: &str) -> Option<Self> {
        match text {
            "started" => Some(Self::Started),
            "cleared" => Some(Self::Cleared),
            "replication" => Some(Self::Replication),
            "clock" => Some(Self::Clock),
            _ => None,
        }
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Started => "started a moment ago",
            Self::Cleared => "flushed, swapped, or its statistics reset",
            Self::Replication => "promoted, or its replicas changed",
            Self::Clock => "its clock was set back",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    #[test]
    fn unknown_answers_are_errors() {
        let text = |text: &str| Reply::Text(text.to_owned());
        for reply in [
            Reply::Nil,
            Reply::List(vec![text("abstains"), Reply::Integer(1)]),
            Reply::List(vec![text("abstains"), Reply::Integer(1), text("moonlight")]),
            Reply::List(vec![text("abstains"), text("1"), text("started")]),
        ] {
            let error = Polled::decode(&reply).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Protocol, "{reply:?}");
        }
    }
}
