//! Calls of the fair lock, whose waiters have places in a queue on the server.
//!
//! A release moves the lock only to a waiter of the releasing client, which can be told at once. A waiter elsewhere may
//! be gone, so it gets a message instead.
//!
//! Scores matter only to Redisson. It considers a waiter dead some time after the one before it. So when a place of
//! ours goes, granted or not, those behind it move closer by what it was worth, as with Java's grants. If no client of
//! Redisson's waits, nobody relies on scores, and a grant costs the same however many wait.

use std::sync::Arc;
use std::time::Duration;

use crate::error::Error;
use crate::name::LockName;
use crate::options::LeaseTime;
use crate::protocol::answer::Ttl;
use crate::protocol::hold_key::{HoldKey, Kind, ServerQueue};
use crate::protocol::lock::{self, ShareTarget, UNLOCKED};
use crate::protocol::reply::Reply;
use crate::protocol::script::{self, Arg, Call};

/// How long a place is kept while its client sends signs of life that do not name the place.
pub(crate) const PLACE_KEPT: Duration = Duration::from_secs(60);

impl ServerQueue {
    /// Makes the keys that Redisson uses for a fair lock of this name, and the key of ours next to them.
    pub(crate) fn new(name: &LockName, worth: Duration) -> Self {
        Self {
            worth,
            list: name.beside("redisson_lock_queue").into(),
            scores: name.beside("redisson_lock_timeout").into(),
            places: name.beside("redlatch_lock_places").into(),
        }
    }

    fn worth(&self) -> Arg<'_> {
        // At most a day, in milliseconds.
        Arg::Number(self.worth.as_millis() as i64)
    }
}

/// Makes a call that acquires the lock if it is this owner's turn. Otherwise, if `stand` is a priority, the owner gets
/// or keeps a place in the queue.
pub(crate) fn acquire<'a>(
    key: &'a HoldKey,
    queue: &'a ServerQueue,
    lease: LeaseTime,
    stand: Option<i32>,
) -> Call<'a> {
    let rest = [
        lease.into(),
        Arg::Text(if stand.is_some() { "wait" } else { "try" }),
        Arg::Number(stand.unwrap_or(0).into()),
        Arg::Number(UNLOCKED),
        Arg::Publish,
        queue.worth(),
    ];
    call(key, queue, &script::FAIR_ACQUIRE, rest)
}

pub(crate) fn release<'a>(key: &'a HoldKey, queue: &'a ServerQueue, to: ShareTarget) -> Call<'a> {
    let rest = [
        to.share.into(),
        Arg::Number(UNLOCKED),
        Arg::Publish,
        queue.worth(),
    ];
    let release = call(key, queue, &script::FAIR_RELEASE, rest);
    lock::compared(release, &script::FAIR_RELEASE_SPARE, to.known)
}

pub(crate) fn force_release<'a>(name: &'a LockName, queue: &'a ServerQueue) -> Call<'a> {
    let args = vec![Arg::Number(UNLOCKED), Arg::Publish, queue.worth()];
    Call::new(&script::FAIR_FORCE_RELEASE, keys(name, queue), args)
}

/// Makes a call that gives a sign of life of this client for all its places in the queue of one lock, and refreshes the
/// time stamps of these `places`. Returns `None` if `places` is empty, or if the first is not of a fair lock.
pub(crate) fn sign<'a>(client: &'a str, places: &[&'a HoldKey]) -> Option<Call<'a>> {
    signed(client, places.first()?, "", places)
}

/// Makes a sign of life that gives back the lock of `place`, if it is with the hold that has the acquisition id `gone`.
/// Returns `None` if it is not a fair lock.
pub(crate) fn give_back<'a>(place: &'a HoldKey, gone: &'a str) -> Option<Call<'a>> {
    signed(place.client(), place, gone, &[])
}

fn signed<'a>(
    client: &'a str,
    place: &'a HoldKey,
    gone: &'a str,
    places: &[&'a HoldKey],
) -> Option<Call<'a>> {
    let Kind::Fair(queue) = &place.kind else {
        return None;
    };
    let mut args = Vec::with_capacity(5 + places.len() * 2);
    args.extend([
        Arg::Text(client),
        Arg::Number(UNLOCKED),
        Arg::Publish,
        queue.worth(),
        Arg::Text(gone),
    ]);
    for place in places {
        args.extend([Arg::Text(place.field()), Arg::Text(place.number())]);
    }
    let call = Call::new(&script::FAIR_SIGN, keys(&place.name, queue), args);
    Some(call.of(place.kind.title()))
}

/// The answer to a sign of life.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Signed {
    Stands {
        /// An earlier sign still stands, so the server has forgotten nothing.
        is_known: bool,
        /// The TTL of the lock, if the first in the queue waits in this client.
        ttl: Ttl,
        /// The acquisition id of the hold that the lock was moved to.
        moved: Option<String>,
        /// The acquisition id of a hold of this client that has the lock, or whose owner has it.
        holder: Option<String>,
        /// The acquisition ids of the named places that do not exist.
        missing: Vec<String>,
    },
    WrongKind,
}

impl Signed {
    #[cfg(test)]
    pub(crate) const TAGS: &[&str] = &["signed", "wrong_kind"];

    pub(crate) fn decode(reply: &Reply) -> Result<Self, Error> {
        let text = |item: &Reply| match item {
            Reply::Text(text) => Ok(text.clone()),
            _ => Err(reply.unexpected()),
        };
        // Empty if there is none.
        let number = |item: &Reply| text(item).map(|text| (!text.is_empty()).then_some(text));
        match reply.tagged() {
            Some((
                "signed",
                [
                    Reply::Integer(known @ (0 | 1)),
                    Reply::Integer(millis),
                    moved,
                    holder,
                    missing @ ..,
                ],
            )) => Ok(Self::Stands {
                is_known: *known == 1,
                ttl: Ttl::from_millis(*millis),
                moved: number(moved)?,
                holder: number(holder)?,
                missing: missing.iter().map(text).collect::<Result<_, _>>()?,
            }),
            Some(("wrong_kind", [])) => Ok(Self::WrongKind),
            _ => Err(reply.unexpected()),
        }
    }
}

/// Returns the channel on which Redisson's clients tell the owner of this hold that it is first and the lock is free.
/// Our own clients tell the owner's client instead.
pub(crate) fn channel(key: &HoldKey) -> Arc<str> {
    format!("{}:{}", key.name.channel(), key.field()).into()
}

fn call<'a, const N: usize>(
    key: &'a HoldKey,
    queue: &'a ServerQueue,
    script: &'static script::Script,
    rest: [Arg<'a>; N],
) -> Call<'a> {
    let mut call = lock::call(key, script, rest);
    call.keys = keys(&key.name, queue);
    call
}

fn keys<'a>(name: &'a LockName, queue: &'a ServerQueue) -> Vec<&'a str> {
    vec![
        &**name.key(),
        &**name.channel(),
        &*queue.list,
        &*queue.scores,
        &*queue.places,
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::owner::Owner;

    #[test]
    fn keys_and_channels_follow_redissons_rules() {
        for (name, tagged) in [("k", "{k}"), ("{t}:x", "{t}:x")] {
            let name = LockName::new("", name).unwrap();
            let queue = ServerQueue::new(&name, Duration::from_secs(300));
            assert_eq!(*queue.list, format!("redisson_lock_queue:{tagged}"));
            assert_eq!(*queue.scores, format!("redisson_lock_timeout:{tagged}"));
            assert_eq!(*queue.places, format!("redlatch_lock_places:{tagged}"));
            let kind = Kind::Fair(Arc::new(queue));
            let key = HoldKey::new(name, kind, "c-1", &Owner::named("req-7"), 1);
            let expected = format!("redisson_lock__channel:{tagged}:req-7");
            assert_eq!(*channel(&key), expected);
        }
    }
}
