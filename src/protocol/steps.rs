//! The scripts of the plain lock as commands, for a server that runs no scripts: given the value found at a key, the
//! change to make and the answer that follows. The answers are those of the scripts.

use crate::protocol::reply::Reply;
use crate::protocol::script::{Arg, Steps};

/// Takes the place of the end of a lease: a transaction fails if anything about its key has changed since it looked.
const WATCHED: i64 = 1;

/// What was found at a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    Nothing,
    /// A value, and its TTL as `PTTL` reports it.
    Value(String, i64),
    /// A value that is not a string.
    Other,
}

/// The change to make to a key, unless somebody else changes it meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change<'a> {
    /// The key is free: set it to this value, for this many milliseconds.
    Set(&'a str, i64),
    Delete,
    Expire(i64),
}

/// The decision about one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Decision<'a> {
    pub(crate) change: Option<Change<'a>>,
    /// The answer once the change is made; `None` if the key is not a lock of this shape.
    pub(crate) answer: Option<Reply>,
}

impl Steps {
    /// Returns the answer for a free lock that was taken.
    pub(crate) fn granted(self) -> Reply {
        counted("granted", 1)
    }

    /// Returns the answer for a lock that was released.
    pub(crate) fn released(self) -> Reply {
        counted("released", 0)
    }

    /// Returns whether these steps change nothing, whatever is found.
    pub(crate) fn only_asks(self) -> bool {
        matches!(self, Self::Check | Self::Inspect)
    }

    /// Decides what to do about a key, given the arguments that the script has for it.
    pub(crate) fn decide<'a>(self, args: &[Arg<'a>], found: &Found) -> Decision<'a> {
        let text = |at: usize| match args.get(at) {
            Some(Arg::Text(text)) => *text,
            _ => "",
        };
        let number = |at: usize| match args.get(at) {
            Some(Arg::Number(number)) => *number,
            _ => 0,
        };
        let (value, ttl) = match found {
            Found::Value(value, ttl) => (Some(&**value), *ttl),
            Found::Nothing => (None, 0),
            Found::Other => return self.other(),
        };
        let ours = value == Some(text(0));
        let lease = number(1);
        let raised = (ttl < lease).then_some(Change::Expire(lease));
        let (change, answer) = match self {
            Self::Acquire => match value {
                None => (Some(Change::Set(text(0), lease)), counted("granted", 1)),
                // The value is this hold's alone, so this request or a copy of it has taken the lock before.
                Some(_) if ours && text(2) == "hold" => (raised, counted("granted", 1)),
                Some(_) => (None, counted("busy", ttl)),
            },
            Self::Release => match value {
                None => (None, tag("absent")),
                Some(_) if ours => (Some(Change::Delete), self.released()),
                Some(_) => (None, tag("taken")),
            },
            Self::Extend | Self::Adopt | Self::Renew if !ours => (
                None,
                match self {
                    Self::Renew => Reply::Integer(0),
                    _ => tag("absent"),
                },
            ),
            Self::Extend if text(2) == "at_least" => (raised, tag("extended")),
            Self::Extend if ttl > lease && number(2) == 0 => (None, counted("longer", WATCHED)),
            Self::Extend => (Some(Change::Expire(lease)), tag("extended")),
            Self::Adopt => (raised.filter(|_| lease > 0), counted("adopted", 1)),
            Self::Renew => (raised, Reply::Integer(1)),
            Self::Check => (None, Reply::Integer(ours.into())),
            Self::Inspect => (
                None,
                value.map_or_else(|| tag("free"), |value| held(value, ttl)),
            ),
            Self::ForceRelease => match value {
                None => (None, tag("free")),
                Some(_) => (Some(Change::Delete), tag("released")),
            },
        };
        Decision {
            change,
            answer: Some(answer),
        }
    }

    /// Decides about a key that is not a lock of this shape.
    fn other<'a>(self) -> Decision<'a> {
        let gone = matches!(self, Self::Renew | Self::Check);
        Decision {
            change: None,
            answer: gone.then_some(Reply::Integer(0)),
        }
    }

    /// Returns the answer of the script, given the answers for its keys.
    pub(crate) fn answer(self, mut answers: Vec<Reply>) -> Reply {
        match self {
            Self::Renew | Self::Check => Reply::List(answers),
            _ => answers.pop().unwrap_or(Reply::Nil),
        }
    }
}

fn tag(tag: &str) -> Reply {
    Reply::List(vec![Reply::Text(tag.to_owned())])
}

fn counted(tag: &str, number: i64) -> Reply {
    Reply::List(vec![Reply::Text(tag.to_owned()), Reply::Integer(number)])
}

fn held(value: &str, ttl: i64) -> Reply {
    let holder = [value, "1"].map(|text| Reply::Text(text.to_owned()));
    Reply::List(vec![
        Reply::Text("held".to_owned()),
        Reply::Integer(ttl),
        Reply::List(holder.into()),
    ])
}
