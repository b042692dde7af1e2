//! Calls and answers of the reentrant lock.

use std::fmt::Write;
use std::time::Duration;

use crate::error::{Error, ErrorKind};
use crate::name::LockName;
use crate::options::LeaseTime;
use crate::owner::Owner;
use crate::protocol::reply::Reply;
use crate::protocol::script::{self, Arg, Call};

/// What Redisson publishes on an unlock.
const UNLOCKED: i64 = 0;
const PUBLISH: &str = "PUBLISH";

/// Which hold a call is about: the lock, the owner's fields in it, and the number.
///
/// The hold number tells one hold from every other, of the same owner too: random, so that a command of an old hold
/// that arrives late changes nothing. It is `h` and 16 hex digits; the `h` keeps it text, since one in 750 strings of
/// 16 hex digits is a number to Lua.
#[derive(Clone, Debug)]
pub(crate) struct HoldKey {
    pub(crate) name: LockName,
    /// `|<client>:<own part><number>`, in one piece: it is made for each acquisition.
    text: Box<str>,
    /// Where Redisson's field begins in it: `<client>:<number>`, or for a named owner the name.
    field_at: usize,
    number_at: usize,
}

impl HoldKey {
    pub(crate) fn new(name: LockName, client: &str, owner: &Owner, number: u64) -> Self {
        let own_part = owner.own_part();
        let mut text = String::with_capacity(2 + client.len() + own_part.len() + 17);
        text.extend(["|", client, ":", &own_part]);
        let number_at = text.len();
        // Writing to a string cannot fail.
        write!(text, "h{number:016x}").ok();
        let field_at = if owner.is_named() {
            number_at - own_part.len()
        } else {
            1
        };
        Self {
            name,
            text: text.into(),
            field_at,
            number_at,
        }
    }

    /// The field with the hold count as its value.
    fn field(&self) -> &str {
        &self.text[self.field_at..self.number_at]
    }

    /// The field with this client's share of that count, beside the hold number.
    fn companion(&self) -> &str {
        &self.text[..self.number_at]
    }

    fn number(&self) -> &str {
        &self.text[self.number_at..]
    }

    /// Takes the lock, or joins its owner; with `join_only` never takes a free one.
    pub(crate) fn acquire(&self, share: u32, lease: LeaseTime, join_only: bool) -> Call<'_> {
        let mode = Arg::Text(if join_only { "join" } else { "take" });
        self.call(&script::LOCK_ACQUIRE, [share.into(), lease.into(), mode])
    }

    pub(crate) fn reenter(&self, share: u32, lease: LeaseTime) -> Call<'_> {
        self.call(&script::LOCK_REENTER, [share.into(), lease.into()])
    }

    pub(crate) fn release(&self, share: u32) -> Call<'_> {
        let rest = [share.into(), Arg::Number(UNLOCKED), Arg::Text(PUBLISH)];
        let mut call = self.call(&script::LOCK_RELEASE, rest);
        call.keys.push(self.name.channel());
        call
    }

    /// Moves the lock here from a hold of this process that is given back. With `yield_beyond`, frees it instead if
    /// its channel has more subscribers than that.
    pub(crate) fn take_from<'a>(
        &'a self,
        old: &'a Self,
        lease: LeaseTime,
        yield_beyond: Option<u64>,
    ) -> Call<'a> {
        let rest = [
            lease.into(),
            Arg::Text(old.field()),
            Arg::Text(old.companion()),
            Arg::Text(old.number()),
            Arg::Number(yield_beyond.map_or(-1, |listeners| listeners as i64)),
            Arg::Number(UNLOCKED),
            Arg::Text(PUBLISH),
        ];
        let mut call = self.call(&script::LOCK_MOVE, rest);
        call.keys.push(self.name.channel());
        call
    }

    /// Takes one level over from a donor; without a lease the TTL stays as it is. Without a donor it only finds out
    /// whether the share is reached already.
    pub(crate) fn adopt<'a>(
        &'a self,
        share: u32,
        lease: Option<LeaseTime>,
        donor: Option<&'a Donor>,
    ) -> Call<'a> {
        let lease = lease.map_or(Arg::Number(0), Arg::from);
        let (field, record) = match donor {
            Some(donor) => (&*donor.field, &*donor.record),
            None => (self.field(), ""),
        };
        self.call(
            &script::LOCK_ADOPT,
            [share.into(), lease, Arg::Text(field), Arg::Text(record)],
        )
    }

    pub(crate) fn extend(&self, lease: LeaseTime, exactly: bool) -> Call<'_> {
        let mode = Arg::Text(if exactly { "exactly" } else { "at_least" });
        self.call(&script::LOCK_EXTEND, [lease.into(), mode])
    }

    /// Who records a level of this owner that could be taken over: nobody, as for a foreign client's, else another
    /// client.
    pub(crate) fn donor(&self, fields: &[(String, String)]) -> Result<Option<Donor>, Error> {
        let Some((_, total)) = fields.iter().find(|(field, _)| **field == *self.field()) else {
            return Ok(None);
        };
        let Ok(count) = total.parse::<u64>() else {
            return Err(Error::wrong_kind(self.name.key()));
        };
        let ending = self.companion()[37..].to_owned();
        let share = |record: &str| record.split_once(':')?.1.parse::<u64>().ok();
        let shares = fields
            .iter()
            .filter(|(field, _)| field.starts_with('|') && field.get(37..) == Some(&*ending))
            .filter_map(|(field, record)| Some((field, record, share(record)?)));
        let recorded: u64 = shares.clone().map(|(_, _, share)| share).sum();
        let (field, record) = if count > recorded {
            (self.field(), &**total)
        } else {
            match shares
                .into_iter()
                .find(|(field, _, _)| **field != *self.companion())
            {
                Some((field, record, _)) => (&**field, &**record),
                None => return Ok(None),
            }
        };
        Ok(Some(Donor {
            field: field.into(),
            record: record.into(),
        }))
    }

    fn call<'a, const N: usize>(
        &'a self,
        script: &'static script::Script,
        rest: [Arg<'a>; N],
    ) -> Call<'a> {
        let mut args = Vec::with_capacity(N + 3);
        args.extend([
            Arg::Text(self.field()),
            Arg::Text(self.companion()),
            Arg::Text(self.number()),
        ]);
        args.extend(rest);
        let mut keys = Vec::with_capacity(2);
        keys.push(&**self.name.key());
        Call { script, keys, args }
    }
}

/// Where a level can be taken over from, as it was read: a field, and what it held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Donor {
    field: Box<str>,
    record: Box<str>,
}

impl From<u32> for Arg<'_> {
    fn from(share: u32) -> Self {
        Self::Number(share.into())
    }
}

impl From<LeaseTime> for Arg<'_> {
    fn from(lease: LeaseTime) -> Self {
        // A century of milliseconds.
        Self::Number(lease.millis() as i64)
    }
}

/// The field of the lock's hash that this owner's hold count stands under.
pub(crate) fn field(client: &str, owner: &Owner) -> String {
    let part = owner.own_part();
    if owner.is_named() {
        part.into_owned()
    } else {
        format!("{client}:{part}")
    }
}

/// Renews many holds, each with its lease.
pub(crate) fn renew<'a>(holds: impl Iterator<Item = (&'a HoldKey, LeaseTime)>) -> Call<'a> {
    let (mut keys, mut args) = (Vec::new(), Vec::new());
    for (hold, lease) in holds {
        keys.push(&**hold.name.key());
        args.extend([
            Arg::Text(hold.companion()),
            Arg::Text(hold.number()),
            lease.into(),
        ]);
    }
    Call::new(&script::LOCK_RENEW, keys, args)
}

/// Asks of many holds whether they still stand.
pub(crate) fn check<'a>(holds: impl Iterator<Item = &'a HoldKey>) -> Call<'a> {
    let (mut keys, mut args) = (Vec::new(), Vec::new());
    for hold in holds {
        keys.push(&**hold.name.key());
        args.extend([Arg::Text(hold.companion()), Arg::Text(hold.number())]);
    }
    Call::new(&script::LOCK_CHECK, keys, args)
}

pub(crate) fn force_release(name: &LockName) -> Call<'_> {
    let keys = vec![&**name.key(), &**name.channel()];
    let args = vec![Arg::Number(UNLOCKED), Arg::Text(PUBLISH)];
    Call::new(&script::LOCK_FORCE_RELEASE, keys, args)
}

pub(crate) fn inspect(name: &LockName) -> Call<'_> {
    Call::new(&script::LOCK_INSPECT, vec![&**name.key()], Vec::new())
}

/// How long a key will live, as `PTTL` tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ttl {
    Ends(Duration),
    Never,
}

impl Ttl {
    fn from_millis(millis: i64) -> Self {
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

/// The answer to [`HoldKey::acquire`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Acquired {
    Granted { count: u64 },
    Busy(Ttl),
    Free,
    Exhausted,
    WrongKind,
}

/// The answer to [`HoldKey::reenter`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reentered {
    Granted { count: u64 },
    Absent,
    Exhausted,
}

/// The answer to [`HoldKey::take_from`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Moved {
    Here,
    /// The old hold was gone, and the lock was taken afresh.
    Taken,
    Busy(Ttl),
    Kept(Ttl),
    /// The lock is free, and so many subscribers were told.
    Yielded {
        told: u64,
    },
    WrongKind,
}

/// The answer to [`HoldKey::release`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Released {
    /// The lock is free, and so many subscribers were told.
    Freed {
        told: u64,
    },
    Kept,
    Absent,
}

/// The answer to [`HoldKey::adopt`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Adopted {
    Moved,
    Changed,
    Absent,
    WrongKind,
}

/// The answer to [`HoldKey::extend`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Extended {
    Set,
    Absent,
}

/// The answer to [`force_release`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ForceReleased {
    Released,
    Free,
    WrongKind,
}

/// The answer to [`inspect`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Inspected {
    Held {
        ttl: Ttl,
        fields: Vec<(String, String)>,
    },
    Free,
    WrongKind,
}

impl Acquired {
    #[cfg(test)]
    pub(crate) const TAGS: &[&str] = &["granted", "busy", "free", "exhausted", "wrong_kind"];

    pub(crate) fn decode(reply: &Reply) -> Result<Self, Error> {
        match reply.tagged() {
            Some(("granted", &[Reply::Integer(count)])) => Ok(Self::Granted {
                count: unsigned(count),
            }),
            Some(("busy", &[Reply::Integer(millis)])) => Ok(Self::Busy(Ttl::from_millis(millis))),
            Some(("free", [])) => Ok(Self::Free),
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

impl Moved {
    #[cfg(test)]
    pub(crate) const TAGS: &[&str] = &["moved", "taken", "busy", "kept", "yielded", "wrong_kind"];

    pub(crate) fn decode(reply: &Reply) -> Result<Self, Error> {
        match reply.tagged() {
            Some(("moved", [])) => Ok(Self::Here),
            Some(("taken", [])) => Ok(Self::Taken),
            Some(("busy", &[Reply::Integer(millis)])) => Ok(Self::Busy(Ttl::from_millis(millis))),
            Some(("kept", &[Reply::Integer(millis)])) => Ok(Self::Kept(Ttl::from_millis(millis))),
            Some(("yielded", &[Reply::Integer(told)])) => Ok(Self::Yielded {
                told: unsigned(told),
            }),
            Some(("wrong_kind", [])) => Ok(Self::WrongKind),
            _ => Err(reply.unexpected()),
        }
    }
}

impl Released {
    #[cfg(test)]
    pub(crate) const TAGS: &[&str] = &["released", "kept", "absent"];

    pub(crate) fn decode(reply: &Reply) -> Result<Self, Error> {
        match reply.tagged() {
            Some(("released", &[Reply::Integer(told)])) => Ok(Self::Freed {
                told: unsigned(told),
            }),
            Some(("kept", [Reply::Integer(_)])) => Ok(Self::Kept),
            Some(("absent", [])) => Ok(Self::Absent),
            _ => Err(reply.unexpected()),
        }
    }
}

impl Adopted {
    #[cfg(test)]
    pub(crate) const TAGS: &[&str] = &["adopted", "changed", "absent", "wrong_kind"];

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
    pub(crate) const TAGS: &[&str] = &["extended", "absent"];

    pub(crate) fn decode(reply: &Reply) -> Result<Self, Error> {
        match reply.tagged() {
            Some(("extended", [])) => Ok(Self::Set),
            Some(("absent", [])) => Ok(Self::Absent),
            _ => Err(reply.unexpected()),
        }
    }
}

impl ForceReleased {
    #[cfg(test)]
    pub(crate) const TAGS: &[&str] = &["released", "free", "wrong_kind"];

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

    pub(crate) fn decode(reply: &Reply) -> Result<Self, Error> {
        match reply.tagged() {
            Some(("held", [Reply::Integer(millis), Reply::List(items)])) => {
                let pair = |pair: &[Reply]| match pair {
                    [Reply::Text(field), Reply::Text(value)] => Ok((field.clone(), value.clone())),
                    _ => Err(reply.unexpected()),
                };
                let fields = items.chunks(2).map(pair).collect::<Result<_, _>>()?;
                Ok(Self::Held {
                    ttl: Ttl::from_millis(*millis),
                    fields,
                })
            }
            Some(("free", [])) => Ok(Self::Free),
            Some(("wrong_kind", [])) => Ok(Self::WrongKind),
            _ => Err(reply.unexpected()),
        }
    }
}

pub(crate) fn exhausted(name: &LockName) -> Error {
    let name = name.key();
    Error::new(
        ErrorKind::Refused,
        format!("{name:?} is held 2147483647 times by this owner, the most that can be counted"),
    )
}

fn unsigned(count: i64) -> u64 {
    u64::try_from(count).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use uuid::Uuid;

    #[test]
    fn fields_have_redissons_form() {
        let name = LockName::new("", "k").unwrap();
        let owner = Owner::unique();
        let key = HoldKey::new(name.clone(), "c-1", &owner, 1);
        assert_eq!(key.field(), format!("c-1:{owner}"));
        assert_eq!(key.companion(), format!("|c-1:{owner}"));
        assert_eq!(key.number(), "h0000000000000001");

        let named = HoldKey::new(name, "c-1", &Owner::named("req-7"), 1);
        assert_eq!((named.field(), named.companion()), ("req-7", "|c-1:req-7"));
    }

    #[test]
    fn hashes_of_numbered_owners_stay_compact() {
        let client = Uuid::nil().to_string();
        let key = HoldKey::new(
            LockName::new("", "k").unwrap(),
            &client,
            &Owner::unique(),
            1,
        );
        assert!(key.companion().len() < 64 && key.field().len() < 64);
    }

    #[test]
    fn levels_are_taken_over_from_nobody_first_then_from_another_client_never_from_ourselves() {
        let client = Uuid::nil().to_string();
        let key = HoldKey::new(
            LockName::new("", "k").unwrap(),
            &client,
            &Owner::named("req-7"),
            1,
        );
        let other = format!("|{}:req-7", Uuid::max());
        let donor = |fields: &[(&str, &str)]| {
            let fields: Vec<_> = fields
                .iter()
                .map(|(field, value)| (field.to_string(), value.to_string()))
                .collect();
            key.donor(&fields)
                .map(|donor| donor.map(|donor| donor.field.to_string()))
        };
        let from = |field: &str| Some(field.to_string());
        assert_eq!(donor(&[]).unwrap(), None);
        assert_eq!(donor(&[("other", "1")]).unwrap(), None);
        assert_eq!(donor(&[("req-7", "1")]).unwrap(), from("req-7"));
        assert_eq!(
            donor(&[("req-7", "1"), (&*other, "h1:1")]).unwrap(),
            from(&other)
        );
        assert_eq!(
            donor(&[("req-7", "2"), (&*other, "h1:1")]).unwrap(),
            from("req-7")
        );
        assert_eq!(
            donor(&[("req-7", "1"), (key.companion(), "h1:1")]).unwrap(),
            None
        );
        assert!(donor(&[("req-7", "abc"), (&*other, "h1:1")]).is_err());
    }

    #[test]
    fn calls_have_the_arity_of_their_scripts() {
        let key = HoldKey::new(LockName::new("", "k").unwrap(), "c", &Owner::unique(), 1);
        let lease = LeaseTime::new(Duration::from_secs(1)).unwrap();
        for call in [
            key.acquire(1, lease, false),
            key.reenter(2, lease),
            key.release(0),
            key.take_from(&key, lease, Some(1)),
            key.adopt(1, None, None),
            key.extend(lease, true),
        ] {
            drop(Call::new(call.script, call.keys, call.args));
        }
    }

    #[test]
    fn unknown_answers_are_errors() {
        let odd = [
            Reply::Nil,
            Reply::Integer(1),
            Reply::Text("OK".into()),
            Reply::List(vec![]),
            Reply::List(vec![Reply::Text("granted".into())]),
            Reply::List(vec![Reply::Text("busy".into()), Reply::Text("soon".into())]),
            Reply::List(vec![
                Reply::Text("held".into()),
                Reply::Integer(1),
                Reply::List(vec![Reply::Nil]),
            ]),
        ];
        for reply in &odd {
            let kinds = [
                Acquired::decode(reply).unwrap_err().kind(),
                Reentered::decode(reply).unwrap_err().kind(),
                Moved::decode(reply).unwrap_err().kind(),
                Released::decode(reply).unwrap_err().kind(),
                Adopted::decode(reply).unwrap_err().kind(),
                Extended::decode(reply).unwrap_err().kind(),
                ForceReleased::decode(reply).unwrap_err().kind(),
                Inspected::decode(reply).unwrap_err().kind(),
            ];
            assert_eq!(kinds, [ErrorKind::Protocol; 8], "{reply:?}");
        }
    }
}
