//! The scripts of the plain lock as commands, for a server that runs no scripts. Given the value at a key, decides the
//! change to make and the answer. The answers are those of the scripts.

use std::slice;

use crate::options::LeaseTime;
use crate::protocol::compare::{Change, Decision, Found, Take};
use crate::protocol::reply::Reply;
use crate::protocol::script::{Cut, ScriptStep, Steps};

/// Stands in for the end of a lease, since a transaction fails if anything about its key has changed after the look.
const WATCHED: i64 = 1;

impl<'a> Steps<'a> {
    pub(crate) fn take(&self) -> Option<Take<'_>> {
        match *self {
            Self::One(ScriptStep::Acquire { value, lease, .. }) => Some(Take {
                value,
                millis: lease.millis(),
                answer: granted(),
            }),
            _ => None,
        }
    }

    pub(crate) fn only_asks(&self) -> bool {
        let asks =
            |step: &ScriptStep<'_>| matches!(step, ScriptStep::Check { .. } | ScriptStep::Inspect);
        self.each().iter().all(asks)
    }

    /// The acquisition that a release undoes may still be in flight.
    pub(crate) fn looks_again(&self, answered: &Reply) -> bool {
        matches!(self, Self::One(ScriptStep::Release { .. })) && *answered != released()
    }

    pub(crate) fn decide(&self, at: usize, found: &Found) -> Decision<'_> {
        self.each()[at].decide(found)
    }

    pub(crate) fn answer(&self, mut answers: Vec<Reply>) -> Reply {
        match self {
            Self::One(_) => answers.pop().unwrap_or(Reply::Nil),
            Self::Each(_) => Reply::List(answers),
        }
    }

    /// Returns the step for each key.
    fn each(&self) -> &[ScriptStep<'a>] {
        match self {
            Self::One(step) => slice::from_ref(step),
            Self::Each(steps) => steps,
        }
    }
}

impl<'a> ScriptStep<'a> {
    /// Decides what to do about a key, given what was found there.
    fn decide(self, found: &Found) -> Decision<'a> {
        let (holder, ttl) = match found {
            Found::Value(holder, ttl) => (Some(&**holder), *ttl),
            Found::Nothing => (None, 0),
            Found::Other => return self.other(),
        };
        let ours = |value| holder == Some(value);
        let raised = |lease| (ttl < millis(lease)).then_some(Change::Expire(lease.millis()));
        let (change, answer) = match self {
            Self::Acquire {
                value,
                lease,
                is_unique,
            } => match holder {
                None => (Some(Change::Set(value, lease.millis())), granted()),
                // Only this hold has this value, so this request or a copy of it has taken the lock before.
                Some(_) if ours(value) && is_unique => (raised(lease), granted()),
                Some(_) => (None, counted("busy", ttl)),
            },
            Self::Release { value } => match holder {
                None => (None, tag("absent")),
                Some(_) if ours(value) => (Some(Change::Delete), released()),
                Some(_) => (None, tag("taken")),
            },
            Self::Extend { value, .. } | Self::Adopt { value, .. } if !ours(value) => {
                (None, tag("absent"))
            }
            Self::Extend { lease, cut, .. } => match cut {
                Cut::Never => (raised(lease), tag("extended")),
                Cut::Ask if ttl > millis(lease) => (None, counted("longer", WATCHED)),
                Cut::Ask | Cut::Ending(_) => {
                    (Some(Change::Expire(lease.millis())), tag("extended"))
                }
            },
            Self::Adopt { lease, .. } => (lease.and_then(raised), counted("adopted", 1)),
            Self::Renew { value, lease } if ours(value) => (raised(lease), Reply::Integer(1)),
            Self::Renew { .. } => (None, Reply::Integer(0)),
            Self::Check { value } => (None, Reply::Integer(ours(value).into())),
            Self::Inspect | Self::ForceRelease
                if holder.is_some_and(|value| !is_lock(value, ttl >= 0)) =>
            {
                (None, tag("wrong_kind"))
            }
            Self::Inspect => (
                None,
                holder.map_or_else(|| tag("free"), |value| held(value, ttl)),
            ),
            Self::ForceRelease => match holder {
                None => (None, tag("free")),
                Some(_) => (Some(Change::Delete), tag("released")),
            },
        };
        Decision {
            change,
            answer: Some(answer),
        }
    }

    /// Decides about a key that is not a lock of this shape. A call about many holds reports such a hold as gone, so
    /// that the others get their answers.
    fn other(self) -> Decision<'a> {
        let gone = matches!(self, Self::Renew { .. } | Self::Check { .. });
        Decision {
            change: None,
            answer: gone.then_some(Reply::Integer(0)),
        }
    }
}

/// Returns whether a string is a lock, as `lua/plain_shape.lua` does.
pub(crate) fn is_lock(value: &str, has_lease: bool) -> bool {
    let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    let is_token = value.len() == 32 && value.bytes().all(is_digit) && value.as_bytes()[12] == b'1';
    has_lease || is_token
}

/// Returns the answer for a free lock that was taken.
fn granted() -> Reply {
    counted("granted", 1)
}

/// Returns the answer for a lock that was released.
fn released() -> Reply {
    counted("released", 0)
}

/// Returns a lease as `PTTL` counts it: a lease is at most a century.
fn millis(lease: LeaseTime) -> i64 {
    lease.millis() as i64
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
