//! Calls and answers of the reentrant lock.

use std::sync::Arc;
use std::time::Duration;

use uuid::Uuid;

use crate::error::{Error, ErrorKind};
use crate::name::LockName;
use crate::options::LeaseTime;
use crate::owner::Owner;
use crate::protocol::reply::Reply;
use crate::protocol::script::{self, Arg, Call};

/// What Redisson publishes on an unlock.
const UNLOCKED: u64 = 0;
const PUBLISH: &str = "PUBLISH";

/// Tells one hold from every other, of the same owner too: random, so that a command of an old hold that arrives
/// late changes nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HoldNumber(Arc<str>);

impl HoldNumber {
    pub(crate) fn random() -> Self {
        let (high, low) = Uuid::new_v4().as_u64_pair();
        // The `h` keeps it text: one in 750 strings of 16 hex digits is a number to Lua.
        Self(format!("h{:016x}", high ^ low).into())
    }
}

/// Which hold a call is about: the lock, the owner's fields in it, and the number.
#[derive(Clone, Debug)]
pub(crate) struct HoldKey {
    pub(crate) name: LockName,
    /// `<client>:<number>`, or the name of a named owner: Redisson's field, with the hold count as its value.
    field: Arc<str>,
    /// `|<client>:<own part>`: this client's share of that count, beside the hold number.
    companion: Arc<str>,
    own_part: Arc<str>,
    number: HoldNumber,
}

impl HoldKey {
    pub(crate) fn new(name: LockName, client: &str, owner: &Owner) -> Self {
        let own_part: Arc<str> = owner.own_part().into();
        Self {
            name,
            field: field(client, owner).into(),
            companion: format!("|{client}:{own_part}").into(),
            own_part,
            number: HoldNumber::random(),
        }
    }

    /// Takes the lock, or joins its owner; with `join_only` never takes a free one.
    pub(crate) fn acquire(&self, share: u32, lease: LeaseTime, join_only: bool) -> Call {
        let mode = Arg::Word(if join_only { "join" } else { "take" });
        self.call(&script::LOCK_ACQUIRE, [share.into(), lease.into(), mode])
    }

    pub(crate) fn reenter(&self, share: u32, lease: LeaseTime) -> Call {
        self.call(&script::LOCK_REENTER, [share.into(), lease.into()])
    }

    pub(crate) fn release(&self, share: u32) -> Call {
        let mut call = self.call(
            &script::LOCK_RELEASE,
            [share.into(), Arg::Number(UNLOCKED), Arg::Word(PUBLISH)],
        );
        call.keys.push(self.name.channel().clone());
        call
    }

    /// Takes one level over from a donor; without a lease the TTL stays as it is. Without a donor it only finds out
    /// whether the share is reached already.
    pub(crate) fn adopt(
        &self,
        share: u32,
        lease: Option<LeaseTime>,
        donor: Option<&Donor>,
    ) -> Call {
        let lease = lease.map_or(Arg::Number(0), Arg::from);
        let (field, record) = match donor {
            Some(donor) => (donor.field.clone(), donor.record.clone()),
            None => (self.field.clone(), "".into()),
        };
        self.call(
            &script::LOCK_ADOPT,
            [share.into(), lease, Arg::Text(field), Arg::Text(record)],
        )
    }

    /// Who records a level of this owner that could be taken over: nobody, as for a foreign client's, else another
    /// client.
    pub(crate) fn donor(&self, fields: &[(String, String)]) -> Result<Option<Donor>, Error> {
        let Some((_, total)) = fields.iter().find(|(field, _)| **field == *self.field) else {
            return Ok(None);
        };
        let Ok(count) = total.parse::<u64>() else {
            return Err(Error::wrong_kind(self.name.key()));
        };
        let ending = format!(":{}", self.own_part);
        let share = |record: &str| record.split_once(':')?.1.parse::<u64>().ok();
        let shares = fields
            .iter()
            .filter(|(field, _)| field.starts_with('|') && field.get(37..) == Some(&*ending))
            .filter_map(|(field, record)| Some((field, record, share(record)?)));
        let recorded: u64 = shares.clone().map(|(_, _, share)| share).sum();
        let (field, record) = if count > recorded {
            (&*self.field, &**total)
        } else {
            match shares
                .into_iter()
                .find(|(field, _, _)| **field != *self.companion)
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

    pub(crate) fn extend(&self, lease: LeaseTime, exactly: bool) -> Call {
        let mode = Arg::Word(if exactly { "exactly" } else { "at_least" });
        self.call(&script::LOCK_EXTEND, [lease.into(), mode])
    }

    fn call<const N: usize>(&self, script: &'static script::Script, rest: [Arg; N]) -> Call {
        let mut args = Vec::with_capacity(N + 3);
        args.extend([
            Arg::Text(self.field.clone()),
            Arg::Text(self.companion.clone()),
            Arg::Text(self.number.0.clone()),
        ]);
        args.extend(rest);
        Call {
            script,
            keys: vec![self.name.key().clone()],
            args,
        }
    }
}

/// Where a level can be taken over from, as it was read: a field, and what it held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Donor {
    field: Arc<str>,
    record: Arc<str>,
}

impl From<u32> for Arg {
    fn from(share: u32) -> Self {
        Self::Number(share.into())
    }
}

impl From<LeaseTime> for Arg {
    fn from(lease: LeaseTime) -> Self {
        Self::Number(lease.millis())
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
pub(crate) fn renew<'a>(holds: impl Iterator<Item = (&'a HoldKey, LeaseTime)>) -> Call {
    let (mut keys, mut args) = (Vec::new(), Vec::new());
    for (hold, lease) in holds {
        keys.push(hold.name.key().clone());
        args.extend([
            Arg::Text(hold.companion.clone()),
            Arg::Text(hold.number.0.clone()),
            lease.into(),
        ]);
    }
    Call::new(&script::LOCK_RENEW, keys, args)
}

/// Asks of many holds whether they still stand.
pub(crate) fn check<'a>(holds: impl Iterator<Item = &'a HoldKey>) -> Call {
    let (mut keys, mut args) = (Vec::new(), Vec::new());
    for hold in holds {
        keys.push(hold.name.key().clone());
        args.extend([
            Arg::Text(hold.companion.clone()),
            Arg::Text(hold.number.0.clone()),
        ]);
    }
    Call::new(&script::LOCK_CHECK, keys, args)
}

pub(crate) fn force_release(name: &LockName) -> Call {
    let keys = vec![name.key().clone(), name.channel().clone()];
    Call::new(
        &script::LOCK_FORCE_RELEASE,
        keys,
        vec![Arg::Number(UNLOCKED), Arg::Word(PUBLISH)],
    )
}

pub(crate) fn inspect(name: &LockName) -> Call {
    Call::new(&script::LOCK_INSPECT, vec![name.key().clone()], Vec::new())
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

/// The answer to [`HoldKey::release`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Released {
    Freed,
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

impl Released {
    #[cfg(test)]
    pub(crate) const TAGS: &[&str] = &["released", "kept", "absent"];

    pub(crate) fn decode(reply: &Reply) -> Result<Self, Error> {
        match reply.tagged() {
            Some(("released", [])) => Ok(Self::Freed),
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

    #[test]
    fn fields_have_redissons_form() {
        let name = LockName::new("", "k").unwrap();
        let owner = Owner::unique();
        let key = HoldKey::new(name.clone(), "c-1", &owner);
        assert_eq!(key.field.as_ref(), format!("c-1:{owner}"));
        assert_eq!(key.companion.as_ref(), format!("|c-1:{owner}"));
        assert_eq!(key.number.0.len(), 17);

        let named = HoldKey::new(name, "c-1", &Owner::named("req-7"));
        assert_eq!(
            (named.field.as_ref(), named.companion.as_ref()),
            ("req-7", "|c-1:req-7")
        );
    }

    #[test]
    fn hashes_of_numbered_owners_stay_compact() {
        let client = Uuid::nil().to_string();
        let key = HoldKey::new(LockName::new("", "k").unwrap(), &client, &Owner::unique());
        assert!(key.companion.len() < 64 && key.field.len() < 64);
    }

    #[test]
    fn levels_are_taken_over_from_nobody_first_then_from_another_client_never_from_ourselves() {
        let client = Uuid::nil().to_string();
        let key = HoldKey::new(
            LockName::new("", "k").unwrap(),
            &client,
            &Owner::named("req-7"),
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
            donor(&[("req-7", "1"), (&other, "h1:1")]).unwrap(),
            from(&other)
        );
        assert_eq!(
            donor(&[("req-7", "2"), (&other, "h1:1")]).unwrap(),
            from("req-7")
        );
        assert_eq!(
            donor(&[("req-7", "1"), (&key.companion, "h1:1")]).unwrap(),
            None
        );
        assert!(donor(&[("req-7", "abc"), (&other, "h1:1")]).is_err());
    }

    #[test]
    fn calls_have_the_arity_of_their_scripts() {
        let key = HoldKey::new(LockName::new("", "k").unwrap(), "c", &Owner::unique());
        let lease = LeaseTime::new(Duration::from_secs(1)).unwrap();
        for call in [
            key.acquire(1, lease, false),
            key.reenter(2, lease),
            key.release(0),
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
                Released::decode(reply).unwrap_err().kind(),
                Adopted::decode(reply).unwrap_err().kind(),
                Extended::decode(reply).unwrap_err().kind(),
                ForceReleased::decode(reply).unwrap_err().kind(),
                Inspected::decode(reply).unwrap_err().kind(),
            ];
            assert_eq!(kinds, [ErrorKind::Protocol; 7], "{reply:?}");
        }
    }
}
