//! Calls and answers of a lock over several servers: its members' acquisitions behind a guard, and the marks that tell
//! which servers remember their votes.

use std::time::Duration;

use crate::error::Error;
use crate::options::LeaseTime;
use crate::protocol::answer::Acquired;
use crate::protocol::quorum::Mark;
use crate::protocol::reply::Reply;
use crate::protocol::script::{self, Arg, Call, Unscripted};

/// Where a server's mark stands. It is the server's, and the same for every lock; in a cluster, where each slot may have
/// another server tomorrow, it stands beside the lock.
pub(crate) const MARK: &str = "redlatch_redlock_mark";

/// On what terms a server votes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Franchise {
    /// The longest lease of the fleet: what a server may have forgotten is over after so long.
    pub(crate) longest: LeaseTime,
    /// The server loses nothing that it has answered.
    pub(crate) durable: bool,
}

/// Takes a member, if its server votes.
pub(crate) fn guarded<'a>(acquire: Call<'a>, mark: &'a str, franchise: Franchise) -> Call<'a> {
    let script = match std::ptr::eq(acquire.script, &script::PLAIN_ACQUIRE) {
        true => &script::RED_PLAIN_ACQUIRE,
        false => &script::RED_ACQUIRE,
    };
    let Call {
        mut keys, mut args, ..
    } = acquire;
    let counts = if franchise.durable { "data" } else { "run" };
    keys.push(mark);
    args.extend([Arg::from(franchise.longest), Arg::Text(counts)]);
    Call {
        unscripted: Unscripted::Refused("a RedLock"),
        ..Call::new(script, keys, args)
    }
}

/// Reads a server's mark.
pub(crate) fn look(mark: &str) -> Call<'_> {
    Call::new(&script::RED_MARK, vec![mark], Vec::new()).of("a RedLock")
}

/// Lets a server vote whose mark was read, as one of a fleet that is used for the first time.
pub(crate) fn begin<'a>(mark: &'a str, read: &'a Mark, fleet: &'a str) -> Call<'a> {
    let args = vec![Arg::Text(&read.made), Arg::Text(fleet)];
    Call::new(&script::RED_BEGIN, vec![mark], args).of("a RedLock")
}

/// What one server says when it is asked for its vote.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Polled {
    Voted(Acquired),
    /// It may have forgotten votes, and has a mark of this age.
    Resting {
        left: Duration,
        age: Duration,
    },
}

impl Polled {
    #[cfg(test)]
    pub(crate) const TAGS: &[&str] = &[
        "resting",
        "granted",
        "busy",
        "free",
        "exhausted",
        "wrong_kind",
    ];
    #[cfg(test)]
    pub(crate) const PLAIN_TAGS: &[&str] = &["resting", "granted", "busy"];

    pub(crate) fn decode(reply: &Reply) -> Result<Self, Error> {
        match reply.tagged() {
            Some(("resting", &[Reply::Integer(left), Reply::Integer(age)])) => Ok(Self::Resting {
                left: millis(left),
                age: millis(age),
            }),
            _ => Acquired::decode(reply).map(Self::Voted),
        }
    }
}

/// The answer to a look at a mark.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Marked {
    Marked(Mark),
    Absent,
}

impl Marked {
    #[cfg(test)]
    pub(crate) const TAGS: &[&str] = &["marked", "absent"];

    pub(crate) fn decode(reply: &Reply) -> Result<Self, Error> {
        match reply.tagged() {
            Some(("marked", [Reply::Text(made), Reply::Text(fleet), Reply::Integer(age)])) => {
                Ok(Self::Marked(Mark {
                    made: made.as_str().into(),
                    fleet: (!fleet.is_empty()).then(|| fleet.as_str().into()),
                    age: millis(*age),
                }))
            }
            Some(("absent", [])) => Ok(Self::Absent),
            _ => Err(reply.unexpected()),
        }
    }
}

/// The answer to the beginning of a fleet's first use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Begun {
    Begun,
    Changed,
}

impl Begun {
    #[cfg(test)]
    pub(crate) const TAGS: &[&str] = &["begun", "changed"];

    pub(crate) fn decode(reply: &Reply) -> Result<Self, Error> {
        match reply.tagged() {
            Some(("begun", [])) => Ok(Self::Begun),
            Some(("changed", [])) => Ok(Self::Changed),
            _ => Err(reply.unexpected()),
        }
    }
}

fn millis(millis: i64) -> Duration {
    Duration::from_millis(u64::try_from(millis).unwrap_or(0))
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
            Reply::List(vec![text("resting"), Reply::Integer(1)]),
            Reply::List(vec![
                text("marked"),
                text("a:1"),
                Reply::Nil,
                Reply::Integer(1),
            ]),
            Reply::List(vec![text("begun"), Reply::Nil]),
        ] {
            let kinds = [
                Polled::decode(&reply).unwrap_err().kind(),
                Marked::decode(&reply).unwrap_err().kind(),
                Begun::decode(&reply).unwrap_err().kind(),
            ];
            assert_eq!(kinds, [ErrorKind::Protocol; 3], "{reply:?}");
        }
    }
}
