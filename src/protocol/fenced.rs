//! Calls of the fenced lock, whose every hold has a token.

use crate::options::LeaseTime;
use crate::protocol::hold_key::{Fencing, HoldKey};
use crate::protocol::lock::{self, Take};
use crate::protocol::script::{self, Arg, Call};

pub(crate) fn acquire<'a>(
    key: &'a HoldKey,
    fencing: &'a Fencing,
    share: u32,
    lease: LeaseTime,
    take: Take,
) -> Call<'a> {
    let rest = [share.into(), lease.into(), take.into(), ttl(fencing)];
    let mut call = lock::call(key, &script::FENCED_ACQUIRE, rest);
    call.keys.push(&fencing.key);
    call
}

pub(crate) fn take_from<'a>(
    key: &'a HoldKey,
    fencing: &'a Fencing,
    old: &'a HoldKey,
    lease: LeaseTime,
    yield_beyond: Option<u64>,
) -> Call<'a> {
    let rest = lock::take_from_rest(old, lease, yield_beyond);
    let mut call = lock::call(key, &script::FENCED_MOVE, rest);
    call.keys.extend([&**key.name.channel(), &*fencing.key]);
    call.args.push(ttl(fencing));
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
