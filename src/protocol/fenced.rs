//! Calls of the fenced lock, whose every hold has a token.

use crate::options::LeaseTime;
use crate::protocol::hold_key::{Fencing, HoldKey};
use crate::protocol::lock::{self, Take};
use crate::protocol::script::{self, Arg, Call};

/// Takes the lock; if it is free, with this many tokens.
pub(crate) fn acquire<'a>(
    key: &'a HoldKey,
    fencing: &'a Fencing,
    share: u32,
    lease: LeaseTime,
    take: Take,
    tokens: u32,
) -> Call<'a> {
    let tokens = Arg::Number(tokens.into());
    let [channel, publish, lasts] = lock::in_line(key, take);
    let rest = [
        share.into(),
        lease.into(),
        take.into(),
        channel,
        publish,
        lasts,
        ttl(fencing),
        tokens,
    ];
    let mut call = lock::call(key, &script::FENCED_ACQUIRE, rest);
    call.keys.push(&fencing.key);
    call
}

/// Reads the token of the hold that stands.
pub(crate) fn token<'a>(key: &'a HoldKey, fencing: &'a Fencing) -> Call<'a> {
    let keys = vec![&**key.name.key(), &*fencing.key];
    Call::new(&script::FENCED_TOKEN, keys, Vec::new())
}

/// Where the last token is, and how long it is remembered.
pub(crate) fn tokens(fencing: &Fencing) -> (&str, Arg<'_>) {
    (&fencing.key, ttl(fencing))
}

fn ttl(fencing: &Fencing) -> Arg<'_> {
    fencing.ttl.map_or(Arg::Number(0), Arg::from)
}
