//! The key of a hold: what identifies it in calls.

use std::fmt::Write;
use std::mem::discriminant;
use std::sync::Arc;
use std::time::Duration;

use crate::error::Error;
use crate::label;
use crate::name::{LocalKey, LockName, Users};
use crate::options::{LeaseTime, Prefer, ReleaseBy};
use crate::owner::Owner;

/// The kinds of lock that a name can have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Reentrant,
    /// A reentrant lock whose release is not announced.
    Spin,
    /// A reentrant lock with a fencing token for each hold.
    Fenced(Arc<Fencing>),
    /// A reentrant lock that is granted in order of arrival.
    Fair(Arc<ServerQueue>),
    /// A string whose value identifies the holder.
    Plain(ReleaseBy),
    /// The shared side of a read-write lock.
    Read(Arc<ReadWrite>),
    /// The exclusive side of a read-write lock.
    Write(Arc<ReadWrite>),
}

/// Where a fenced lock keeps its tokens, and for how long.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fencing {
    pub(crate) key: Box<str>,
    /// How long the last token is remembered, by default forever. [Checked](Self::check) before a call is made.
    pub(crate) ttl: Option<Duration>,
}

impl Fencing {
    /// Returns `Err` for a time that cannot be set, or that is shorter than the lease of a hold.
    pub(crate) fn check(&self, lease: LeaseTime) -> Result<(), Error> {
        let Some(given) = self.ttl else {
            return Ok(());
        };
        if LeaseTime::of_setting("token_ttl", given)? < lease {
            let lease = lease.get();
            return Err(Error::invalid(format!(
                "a token_ttl of {given:?} would forget tokens of holds that last {lease:?}"
            )));
        }
        Ok(())
    }
}

/// Where a fair lock keeps its waiters.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ServerQueue {
    pub(crate) list: Box<str>,
    pub(crate) scores: Box<str>,
    pub(crate) places: Box<str>,
    /// What one of our places is worth to Redisson: how much later it considers the waiters behind it dead.
    pub(crate) worth: Duration,
}

/// The keys next to a read-write lock, and which side goes first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ReadWrite {
    /// The prefix of the keys of its levels.
    pub(crate) stem: Box<str>,
    /// The key of the mark that a writer waits.
    pub(crate) writer: Box<str>,
    /// The key of the mark that a reader waits.
    pub(crate) reader: Box<str>,
    pub(crate) prefer: Prefer,
}

impl ReadWrite {
    pub(crate) fn new(name: &LockName, prefer: Prefer) -> Self {
        Self {
            stem: name.stem().into(),
            writer: name.beside("redlatch_rwlock_writer").into(),
            reader: name.beside("redlatch_rwlock_reader").into(),
            prefer,
        }
    }
}

/// The shape of a lock's key, which selects the scripts that renew and check a hold. Holds of one shape share a
/// request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Shape {
    Hash,
    Plain(ReleaseBy),
    ReadWrite,
}

impl Kind {
    pub(crate) fn shape(&self) -> Shape {
        match self {
            Self::Reentrant | Self::Spin | Self::Fenced(_) | Self::Fair(_) => Shape::Hash,
            Self::Plain(by) => Shape::Plain(*by),
            Self::Read(_) | Self::Write(_) => Shape::ReadWrite,
        }
    }

    /// Returns the [`ReadWrite`] of a read-write lock, or `None` for another kind.
    pub(crate) fn sides(&self) -> Option<&ReadWrite> {
        match self {
            Self::Read(sides) | Self::Write(sides) => Some(sides),
            _ => None,
        }
    }

    /// Returns whether the lock owns keys next to its own. Another lock must not use the names of those keys too.
    pub(crate) fn has_keys_beside(&self) -> bool {
        match self {
            Self::Fenced(_) | Self::Fair(_) | Self::Read(_) | Self::Write(_) => true,
            Self::Reentrant | Self::Spin | Self::Plain(_) => false,
        }
    }

    /// Returns the key under which this process keeps the waiters of the lock. For a read-write lock it also names the
    /// side; the two sides share one queue.
    pub(crate) fn local_key(&self, name: &LockName) -> LocalKey {
        name.local_key(match self {
            Self::Read(_) => Users::Readers,
            Self::Write(_) => Users::Writers,
            _ => Users::Owners,
        })
    }

    /// Returns the owner whose levels a field of the lock's hash counts, or `None` if the field counts no levels of
    /// this kind. For a plain lock, `field` is the value that identifies the owner.
    pub(crate) fn owner_of<'a>(&self, field: &'a str) -> Option<&'a str> {
        let writer = field.strip_suffix(WRITE);
        match self {
            Self::Reentrant | Self::Spin | Self::Fenced(_) | Self::Fair(_) => {
                (!field.starts_with('|')).then_some(field)
            }
            Self::Plain(_) => Some(field),
            Self::Read(_) => (field != "mode" && writer.is_none()).then_some(field),
            Self::Write(_) => writer,
        }
    }

    /// Returns the field that counts the levels of an owner: the inverse of [`owner_of`](Self::owner_of).
    pub(crate) fn field_of(&self, owner: &str) -> String {
        match self {
            Self::Write(_) => format!("{owner}{WRITE}"),
            _ => owner.to_owned(),
        }
    }

    /// Returns the label of the client that holds a lock for this owner. It is in the fields of the hash or, for a
    /// read-write lock, in the keys of the owner's levels.
    pub(crate) fn label_of<'a>(
        &self,
        owner: &'a str,
        fields: &'a [(String, String)],
        levels: &'a [String],
    ) -> Option<&'a str> {
        match self {
            Self::Plain(_) => label::client_of(owner)?.0,
            Self::Read(_) | Self::Write(_) => Some(levels.first()?.split_once('/')?.1),
            _ => label::of_holder(owner, fields.iter().map(|(field, _)| &**field)),
        }
    }

    /// Returns the maximum number of levels of an owner.
    pub(crate) fn most_levels(&self) -> u64 {
        match self.sides() {
            None => 2_147_483_647,
            Some(_) => 1_000,
        }
    }

    /// Returns what a lock of this kind is called, with its article.
    pub(crate) fn title(&self) -> &'static str {
        match self {
            Self::Reentrant => "a reentrant lock",
            Self::Spin => "a spin lock",
            Self::Fenced(_) => "a fenced lock",
            Self::Fair(_) => "a fair lock",
            Self::Plain(_) => "a plain lock",
            Self::Read(_) | Self::Write(_) => "a read-write lock",
        }
    }

    /// Returns whether the two are the same kind of lock, whatever the settings of the handles. A hold may use the
    /// record of another only if the kinds are equal, settings included.
    pub(crate) fn is(&self, other: &Self) -> bool {
        discriminant(self) == discriminant(other)
    }
}

/// The suffix of a writer's field.
const WRITE: &str = ":write";

/// The identity of a hold: the lock, the owner's fields in it, and the acquisition id.
///
/// The acquisition id tells one hold from every other, including those of the same owner. It is random, so a late
/// command of an old hold changes nothing. It is written as `h` and 16 hex digits. The `h` keeps it text, because one
/// in 750 strings of 16 hex digits is a number to Lua.
///
/// The label of the client, for people, is not part of Redisson's field. It is in the acquisition field or, if there is
/// none, behind the acquisition id.
#[derive(Clone, Debug)]
pub(crate) struct HoldKey {
    pub(crate) name: LockName,
    pub(crate) kind: Kind,
    /// `|<label>/<client id>:<own part>:<acquisition id>`, in one allocation, because it is made for each acquisition.
    /// A writer's own part ends in `:write`. The acquisition id of a read-write lock has `/<label>` behind it.
    text: Box<str>,
    label_end: usize,
    /// Where the acquisition field ends, which begins with the bar. For an owner without a name it ends with the
    /// client: such an owner exists only in this client, and so the field is short enough for a label.
    acquisition_end: usize,
    /// Where Redisson's field begins in `text`: `<client id>:<number>`, or the name for a named owner.
    field_at: usize,
    field_end: usize,
}

impl HoldKey {
    /// Makes the identity of a hold of the client with this name.
    pub(crate) fn new(
        name: LockName,
        kind: Kind,
        client: &str,
        owner: &Owner,
        number: u64,
    ) -> Self {
        let own_part = owner.own_part();
        let side = if matches!(kind, Kind::Write(_)) {
            WRITE
        } else {
            ""
        };
        let (label, id) = label::split(client);
        let label = label.unwrap_or_default();
        let mut text = String::with_capacity(
            2 + client.len() + own_part.len() + side.len() + 19 + label.len(),
        );
        text.extend(["|", client, ":", &own_part, side]);
        let field_end = text.len();
        // Writing to a string cannot fail.
        write!(text, ":h{number:016x}").ok();
        if kind.sides().is_some() && !label.is_empty() {
            text.extend(["/", label]);
        }
        let (acquisition_end, field_at) = match owner.is_named() {
            true => (field_end, field_end - own_part.len() - side.len()),
            false => (1 + client.len(), 1 + client.len() - id.len()),
        };
        Self {
            name,
            kind,
            text: text.into(),
            label_end: 1 + label.len(),
            acquisition_end,
            field_at,
            field_end,
        }
    }

    /// Returns whether the owner has a name, which other clients may share.
    pub(crate) fn is_named(&self) -> bool {
        // The acquisition field of an owner without a name does not contain the owner.
        self.acquisition_end == self.field_end
    }

    /// Returns the label of the client, which is empty only in tests.
    pub(crate) fn label(&self) -> &str {
        &self.text[1..self.label_end]
    }

    /// Returns the name of the client.
    pub(crate) fn client(&self) -> &str {
        let field = &self.acquisition_field()[1..];
        field.split_once(':').map_or(field, |(client, _)| client)
    }

    /// Returns whether a call about this hold can touch no other hold. The value of a plain lock of a named owner is
    /// the same for all its holds.
    pub(crate) fn is_told_apart(&self) -> bool {
        !(self.is_named() && matches!(self.kind, Kind::Plain(_)))
    }

    /// Returns the key under which this process keeps the waiters of this lock.
    pub(crate) fn local_key(&self) -> LocalKey {
        self.kind.local_key(&self.name)
    }

    /// Returns the field whose value is the hold count.
    pub(crate) fn field(&self) -> &str {
        &self.text[self.field_at..self.field_end]
    }

    /// Returns the acquisition field: its value is the acquisition id and this client's share of the hold count.
    pub(crate) fn acquisition_field(&self) -> &str {
        &self.text[..self.acquisition_end]
    }

    /// Returns the acquisition id as text.
    pub(crate) fn number(&self) -> &str {
        &self.text[self.field_end + 1..]
    }

    /// Returns the acquisition id as a number.
    pub(crate) fn numeral(&self) -> u64 {
        numeral(self.number()).unwrap_or_default()
    }

    /// Returns the value of a plain lock: the name of a named owner, otherwise text that no other hold has.
    pub(crate) fn value(&self) -> &str {
        match self.is_named() {
            true => self.field(),
            false => &self.text[1..],
        }
    }
}

/// Parses an acquisition id, with or without a label behind it. Returns `None` if `text` is not one.
pub(crate) fn numeral(text: &str) -> Option<u64> {
    let (digits, _label) = text.split_once('/').unwrap_or((text, ""));
    u64::from_str_radix(digits.strip_prefix('h')?, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use uuid::Uuid;

    #[test]
    fn fields_have_redissons_form() {
        let name = LockName::new("", "k").unwrap();
        let owner = Owner::unique();
        let key = HoldKey::new(name.clone(), Kind::Reentrant, "c-1", &owner, 1);
        let number = owner.own_part();
        assert_eq!(key.field(), format!("c-1:{number}"));
        assert_eq!(key.acquisition_field(), "|c-1");
        assert_eq!(key.number(), "h0000000000000001");
        assert_eq!(key.numeral(), 1);
        assert!(!key.is_named() && key.label().is_empty());

        let named = HoldKey::new(name, Kind::Reentrant, "c-1", &Owner::named("req-7"), 1);
        assert_eq!(
            (named.field(), named.acquisition_field()),
            ("req-7", "|c-1:req-7")
        );

        assert_eq!(key.value(), format!("c-1:{number}:h0000000000000001"));
        assert_eq!((named.value(), named.number()), ("req-7", key.number()));
        assert!(named.is_named());
    }

    #[test]
    fn label_stands_next_to_redissons_field_and_never_in_it() {
        let name = LockName::read_write("", "k").unwrap();
        let sides = Arc::new(ReadWrite::new(&name, Prefer::Arrival));
        let owner = Owner::unique();
        let number = owner.own_part();
        let key =
            |kind: Kind, owner: &Owner| HoldKey::new(name.clone(), kind, "web-3/812/c-1", owner, 1);
        let lock = key(Kind::Reentrant, &owner);
        assert_eq!(lock.field(), format!("c-1:{number}"));
        assert_eq!(lock.acquisition_field(), "|web-3/812/c-1");
        assert_eq!(lock.label(), "web-3/812");
        let named = key(Kind::Reentrant, &Owner::named("req-7"));
        assert_eq!(named.field(), "req-7");
        assert_eq!(named.acquisition_field(), "|web-3/812/c-1:req-7");
        let write = key(Kind::Write(sides), &owner);
        assert_eq!(write.field(), format!("c-1:{number}:write"));
        assert_eq!(write.number(), "h0000000000000001/web-3/812");
        assert_eq!(write.numeral(), 1);
    }

    #[test]
    fn sides_of_a_read_write_lock_have_a_field_a_queue_and_a_view_each() {
        let name = LockName::read_write("", "k").unwrap();
        let sides = Arc::new(ReadWrite::new(&name, Prefer::Arrival));
        let (read, write) = (Kind::Read(sides.clone()), Kind::Write(sides));
        for (owner, field) in [
            (Owner::named("req-7"), "req-7".to_owned()),
            (
                Owner::current(),
                format!("c-1:{}", Owner::current().own_part()),
            ),
        ] {
            let key = |kind: &Kind| HoldKey::new(name.clone(), kind.clone(), "c-1", &owner, 1);
            assert_eq!(key(&read).field(), field);
            assert_eq!(key(&write).field(), format!("{field}:write"));
            assert_eq!(key(&write).number(), "h0000000000000001");
        }
        assert_ne!(read.local_key(&name), write.local_key(&name));
        let both = [&read, &write].map(|kind| kind.local_key(&name).of_both_sides());
        assert_eq!(both[0], both[1]);
        let seen =
            |kind: &Kind| ["mode", "a", "a:write"].map(|field| kind.owner_of(field).is_some());
        assert_eq!(seen(&read), [false, true, false]);
        assert_eq!(seen(&write), [false, false, true]);
        assert_eq!(write.owner_of("a:write"), Some("a"));
        assert_eq!(Kind::Reentrant.owner_of("|c-1:a"), None);
    }

    #[test]
    fn hashes_of_numbered_owners_stay_compact_with_any_label_by_default() {
        let client = label::name_of_client(&"x".repeat(26), Uuid::nil());
        let name = LockName::new("", "k").unwrap();
        let key = HoldKey::new(name, Kind::Reentrant, &client, &Owner::unique(), 1);
        assert!(key.acquisition_field().len() <= 64 && key.field().len() < 64);
    }
}
