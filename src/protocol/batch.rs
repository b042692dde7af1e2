//! Calls for several locks of one server at once, and their answers.

use crate::error::Error;
use crate::options::LeaseTime;
use crate::protocol::answer::{Released, unsigned};
use crate::protocol::fenced;
use crate::protocol::hold_key::{HoldKey, Kind};
use crate::protocol::lock::UNLOCKED;
use crate::protocol::reply::Reply;
use crate::protocol::script::{self, Arg, Call};

const SET: &str = "a set of locks";

impl Kind {
    /// Returns whether one call can take several locks of such kinds on one server, and one call release them.
    pub(crate) fn is_batched(&self) -> bool {
        matches!(self, Self::Reentrant | Self::Fenced(_))
    }
}

/// Makes a call that acquires the locks of `holds`, all or none. All holds are of [such kinds](Kind::is_batched), of
/// one owner and with one acquisition id.
pub(crate) fn acquire<'a>(holds: &[(&'a HoldKey, LeaseTime)]) -> Call<'a> {
    let mut keys = Vec::with_capacity(holds.len() * 2);
    keys.extend(holds.iter().map(|(hold, _)| &**hold.name.key()));
    let mut args = Vec::with_capacity(4 + holds.len() * 3);
    if let Some((first, _)) = holds.first() {
        args.extend([
            Arg::Text(first.field()),
            Arg::Text(first.acquisition_field()),
            Arg::Text(first.number()),
            Arg::Publish,
        ]);
    }
    for (hold, lease) in holds {
        let remembered = match &hold.kind {
            Kind::Fenced(fencing) => {
                let (tokens, remembered) = fenced::tokens(fencing);
                keys.push(tokens);
                remembered
            }
            _ => Arg::Number(-1),
        };
        let channel = Arg::Text(hold.name.channel());
        args.extend([Arg::from(*lease), remembered, channel]);
    }
    Call::new(&script::LOCK_ACQUIRE_ALL, keys, args).of(SET)
}

/// Makes a call that lowers holds of such kinds, of one owner, to these shares.
pub(crate) fn release<'a>(holds: &[(&'a HoldKey, u32)]) -> Call<'a> {
    let mut keys = Vec::with_capacity(holds.len());
    let mut args = Vec::with_capacity(4 + holds.len() * 3);
    if let Some((first, _)) = holds.first() {
        args.extend([
            Arg::Text(first.field()),
            Arg::Text(first.acquisition_field()),
            Arg::Number(UNLOCKED),
            Arg::Publish,
        ]);
    }
    for (hold, share) in holds {
        keys.push(&**hold.name.key());
        args.extend([
            Arg::Text(hold.number()),
            (*share).into(),
            Arg::Text(hold.name.channel()),
        ]);
    }
    Call::new(&script::LOCK_RELEASE_ALL, keys, args).of(SET)
}

/// The answer to an attempt to acquire several locks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum AllAcquired {
    /// The tokens of those locks that have them.
    Granted(Vec<u64>),
    /// No lock was taken, because of the lock at index `at`.
    Not { at: usize, because: Obstacle },
}

/// The reason why a lock was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Obstacle {
    Busy,
    /// The hold count would pass its maximum.
    Exhausted,
    /// The tokens of a fenced lock are used up.
    Spent,
    WrongKind,
}

/// The answers to the release of several holds, one for each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AllReleased(pub(crate) Vec<Released>);

impl AllAcquired {
    #[cfg(test)]
    pub(crate) const TAGS: &[&str] = &["granted", "busy", "exhausted", "spent", "wrong_kind"];

    /// Decodes the answer to a call for `locks` locks.
    pub(crate) fn decode(reply: &Reply, locks: usize) -> Result<Self, Error> {
        let (because, place) = match reply.tagged() {
            Some(("granted", [Reply::List(tokens)])) if tokens.len() <= locks => {
                let token = |token: &Reply| match *token {
                    Reply::Integer(token) => Ok(unsigned(token)),
                    _ => Err(reply.unexpected()),
                };
                let tokens = tokens.iter().map(token).collect::<Result<_, _>>()?;
                return Ok(Self::Granted(tokens));
            }
            Some(("busy", &[Reply::Integer(place)])) => (Obstacle::Busy, place),
            Some(("exhausted", &[Reply::Integer(place)])) => (Obstacle::Exhausted, place),
            Some(("spent", &[Reply::Integer(place)])) => (Obstacle::Spent, place),
            Some(("wrong_kind", &[Reply::Integer(place)])) => (Obstacle::WrongKind, place),
            _ => return Err(reply.unexpected()),
        };
        match usize::try_from(place) {
            // The script counts from 1.
            Ok(place) if (1..=locks).contains(&place) => Ok(Self::Not {
                at: place - 1,
                because,
            }),
            _ => Err(reply.unexpected()),
        }
    }
}

impl AllReleased {
    #[cfg(test)]
    pub(crate) const TAGS: &[&str] = &["done"];

    /// Decodes the answer to a call for `holds` holds.
    pub(crate) fn decode(reply: &Reply, holds: usize) -> Result<Self, Error> {
        let one = |outcome: &Reply| match *outcome {
            Reply::Integer(-1) => Ok(Released::Kept),
            Reply::Integer(-2) => Ok(Released::Absent),
            Reply::Integer(told @ 0..) => Ok(Released::Freed {
                told: unsigned(told),
            }),
            _ => Err(reply.unexpected()),
        };
        match reply.tagged() {
            Some(("done", [Reply::List(items)])) if items.len() == holds => {
                items.iter().map(one).collect::<Result<_, _>>().map(Self)
            }
            _ => Err(reply.unexpected()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    #[test]
    fn answers_are_one_for_each_lock_and_name_one_of_them() {
        let list = |items: &[i64]| Reply::List(items.iter().copied().map(Reply::Integer).collect());
        let tagged = |tag: &str, rest: Reply| Reply::List(vec![Reply::Text(tag.into()), rest]);
        let granted = AllAcquired::decode(&tagged("granted", list(&[7])), 2).unwrap();
        assert_eq!(granted, AllAcquired::Granted(vec![7]));
        let busy = AllAcquired::decode(&tagged("busy", Reply::Integer(2)), 2).unwrap();
        let because = Obstacle::Busy;
        assert_eq!(busy, AllAcquired::Not { at: 1, because });
        let released = AllReleased::decode(&tagged("done", list(&[-2, 0, -1])), 3).unwrap();
        let freed = Released::Freed { told: 0 };
        assert_eq!(released.0, [Released::Absent, freed, Released::Kept]);

        for odd in [
            Reply::Nil,
            tagged("granted", Reply::Integer(1)),
            tagged("granted", list(&[1, 2, 3])),
            tagged("granted", Reply::List(vec![Reply::Nil])),
            tagged("busy", Reply::Integer(0)),
            tagged("busy", Reply::Integer(3)),
            tagged("spent", Reply::Nil),
            tagged("done", list(&[0])),
            tagged("done", list(&[0, -3])),
        ] {
            let kinds = [
                AllAcquired::decode(&odd, 2).unwrap_err().kind(),
                AllReleased::decode(&odd, 2).unwrap_err().kind(),
            ];
            assert_eq!(kinds, [ErrorKind::Protocol; 2], "{odd:?}");
        }
    }
}
