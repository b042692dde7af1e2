//! Calls and answers of a lock over several servers: its members' acquisitions behind a guard, which lets a server vote
//! only while nothing that it may have forgotten is in force.

use std::fmt;
use std::time::Duration;

use crate::error::Error;
use crate::options::LeaseTime;
use crate::protocol::answer::Acquired;
use crate::protocol::reply::Reply;
use crate::protocol::script::{self, Arg, Call, Unscripted};

/// Where a server's epoch stands. It is the server's, and the same for every lock; in a cluster, where each slot may have
/// another server tomorrow, it stands beside the lock.
pub(crate) const EPOCH_KEY: &str = "redlatch_redlock_mark";

/// When a server that may have forgotten grants votes again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RestartPolicy {
    /// The longest lease of the fleet: what a server may have forgotten is over after that.
    pub(crate) longest: LeaseTime,
    /// The server loses nothing that it has answered.
    pub(crate) durable: bool,
    /// A server that was started a moment ago had granted nothing before.
    pub(crate) trusts_fresh: bool,
    /// Epochs end when their lock has not been asked for during two longest leases. An epoch that ended costs nothing but
    /// what it knew of a promotion or a flush, and after that time its lock has been forgotten by everybody.
    pub(crate) epochs_end: bool,
}

/// Takes a member, if its server votes.
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

/// What one server says when it is asked for its vote.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Polled {
    Voted(Acquired),
    Abstains(Abstention),
}

/// A server may have forgotten grants, and votes when the last of them is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Abstention {
    pub(crate) left: Duration,
    pub(crate) cause: Cause,
}

/// Why a server may have forgotten grants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Cause {
    Started,
    Cleared,
    Replication,
    Clock,
}

impl Polled {
    #[cfg(test)]
    pub(crate) const TAGS: &[&str] = &[
        "abstains",
        "granted",
        "busy",
        "stands",
        "free",
        "exhausted",
        "wrong_kind",
    ];
    #[cfg(test)]
    pub(crate) const PLAIN_TAGS: &[&str] = &["abstains", "granted", "busy"];

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
