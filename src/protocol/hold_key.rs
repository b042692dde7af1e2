//! Which hold a call is about.

use std::fmt::Write;
use std::sync::Arc;

use crate::name::LockName;
use crate::options::{LeaseTime, ReleaseBy};
use crate::owner::Owner;

/// The kinds of lock that a name can have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Reentrant,
    /// A reentrant lock that tells nobody of its release.
    Spin,
    /// A reentrant lock with a token for each hold.
    Fenced(Arc<Fencing>),
    /// A reentrant lock that is granted in order of arrival.
    Fair(Arc<Line>),
    /// A string with a value that tells the holder.
    Plain(ReleaseBy),
}

/// Where a fenced lock keeps its tokens.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Fencing {
    pub(crate) key: Box<str>,
    /// How long the last token is remembered; without end if nothing is said.
    pub(crate) ttl: Option<LeaseTime>,
}

/// Where a fair lock keeps those that wait for it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Line {
    pub(crate) queue: Box<str>,
    pub(crate) scores: Box<str>,
    pub(crate) places: Box<str>,
}

/// Which scripts renew and check a hold: holds of one shape share a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Shape {
    Hash,
    Plain(ReleaseBy),
}

impl Kind {
    pub(crate) fn shape(&self) -> Shape {
        match self {
            Self::Reentrant | Self::Spin | Self::Fenced(_) | Self::Fair(_) => Shape::Hash,
            Self::Plain(by) => Shape::Plain(*by),
        }
    }

    /// What a lock of this kind is called.
    pub(crate) fn title(&self) -> &'static str {
        match self {
            Self::Reentrant => "a reentrant lock",
            Self::Spin => "a spin lock",
            Self::Fenced(_) => "a fenced lock",
            Self::Fair(_) => "a fair lock",
            Self::Plain(_) => "a plain lock",
        }
    }

    /// Whether an owner may take the lock again, and a hold be moved to another owner of its process.
    pub(crate) fn is_reentrant(&self) -> bool {
        !matches!(self, Self::Plain(_))
    }

    /// Whether holds of both kinds are alike.
    pub(crate) fn is(&self, other: &Self) -> bool {
        self == other || matches!((self, other), (Self::Plain(_), Self::Plain(_)))
    }
}

/// Where the field of an owner without a name begins: behind the bar.
const UNNAMED_AT: usize = 1;

/// Which hold a call is about: the lock, the owner's fields in it, and the number.
///
/// The hold number tells one hold from every other, of the same owner too: random, so that a command of an old hold
/// that arrives late changes nothing. It is `h` and 16 hex digits; the `h` keeps it text, since one in 750 strings of
/// 16 hex digits is a number to Lua.
#[derive(Clone, Debug)]
pub(crate) struct HoldKey {
    pub(crate) name: LockName,
    pub(crate) kind: Kind,
    /// `|<client>:<own part>:<number>`, in one piece: it is made for each acquisition.
    text: Box<str>,
    /// Where Redisson's field begins in it: `<client>:<number>`, or for a named owner the name.
    field_at: usize,
    field_end: usize,
}

impl HoldKey {
    pub(crate) fn new(
        name: LockName,
        kind: Kind,
        client: &str,
        owner: &Owner,
        number: u64,
    ) -> Self {
        let own_part = owner.own_part();
        let mut text = String::with_capacity(3 + client.len() + own_part.len() + 17);
        text.extend(["|", client, ":", &own_part]);
        let field_end = text.len();
        // Writing to a string cannot fail.
        write!(text, ":h{number:016x}").ok();
        let field_at = if owner.is_named() {
            field_end - own_part.len()
        } else {
            UNNAMED_AT
        };
        Self {
            name,
            kind,
            text: text.into(),
            field_at,
            field_end,
        }
    }

    /// The field with the hold count as its value.
    pub(crate) fn field(&self) -> &str {
        &self.text[self.field_at..self.field_end]
    }

    /// The field with this client's share of that count, beside the hold number.
    pub(crate) fn companion(&self) -> &str {
        &self.text[..self.field_end]
    }

    pub(crate) fn number(&self) -> &str {
        &self.text[self.field_end + 1..]
    }

    pub(crate) fn is_named(&self) -> bool {
        self.field_at != UNNAMED_AT
    }

    /// The value of a plain lock: of a named owner the name, else text that no other hold has.
    pub(crate) fn value(&self) -> &str {
        match self.is_named() {
            true => self.field(),
            false => &self.text[UNNAMED_AT..],
        }
    }
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
        assert_eq!(key.field(), format!("c-1:{owner}"));
        assert_eq!(key.companion(), format!("|c-1:{owner}"));
        assert_eq!(key.number(), "h0000000000000001");

        let named = HoldKey::new(name, Kind::Reentrant, "c-1", &Owner::named("req-7"), 1);
        assert_eq!((named.field(), named.companion()), ("req-7", "|c-1:req-7"));

        assert_eq!(key.value(), format!("c-1:{owner}:h0000000000000001"));
        assert_eq!((named.value(), named.number()), ("req-7", key.number()));
    }

    #[test]
    fn hashes_of_numbered_owners_stay_compact() {
        let client = Uuid::nil().to_string();
        let key = HoldKey::new(
            LockName::new("", "k").unwrap(),
            Kind::Reentrant,
            &client,
            &Owner::unique(),
            1,
        );
        assert!(key.companion().len() < 64 && key.field().len() < 64);
    }
}
