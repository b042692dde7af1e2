//! What the scripts of the plain lock do, told in commands for a server that runs none: given what stands at a
//! key, what is to become of it, and the answer then. The answers are those of the scripts.

use crate::protocol::reply::Reply;
use crate::protocol::script::{Arg, Steps};

/// In place of the end of a lease: a transaction is off if anything about its key has changed since it looked.
const WATCHED: i64 = 1;

/// What stands at a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    Nothing,
    /// A value, and what `PTTL` says of it.
    Value(String, i64),
    /// Something that is no string.
    Other,
}

/// What is to become of a key, unless somebody changes it meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change<'a> {
    /// The key is free: it gets this value, for so many milliseconds.
    Set(&'a str, i64),
    Delete,
    Expire(i64),
}

/// The decision about one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Decision<'a> {
    pub(crate) change: Option<Change<'a>>,
    /// The answer once that is done; none if the key is no lock of this shape.
    pub(crate) answer: Option<Reply>,
}

impl Steps {
    /// The answer when a free lock was taken.
    pub(crate) fn granted(self) -> Reply {
        counted("granted", 1)
    }

    /// The answer when a lock was given back.
    pub(crate) fn released(self) -> Reply {
        counted("released", 0)
    }

    /// Whether nothing is changed, whatever is found.
    pub(crate) fn only_asks(self) -> bool {
        matches!(self, Self::Check | Self::Inspect)
    }

    /// What to do about a key, with the arguments that the script has for it.
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

    fn other<'a>(self) -> Decision<'a> {
        let gone = matches!(self, Self::Renew | Self::Check);
        Decision {
            change: None,
            answer: gone.then_some(Reply::Integer(0)),
        }
    }

    /// The answer of the script, from those for its keys.
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
