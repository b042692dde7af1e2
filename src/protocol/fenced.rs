//! Calls of the fenced lock, whose every hold has a token.

use crate::options::LeaseTime;
use crate::protocol::hold_key::{Fencing, HoldKey};
use crate::protocol::lock::{self, AcquireMode};
use crate::protocol::script::{self, Arg, Call};

/// Takes the lock; if it is free, with this many tokens.
pub(crate) fn acquire<'a>(
    key: &'a HoldKey,
    fencing: &'a Fencing,
    share: u32,
    lease: LeaseTime,
    mode: AcquireMode,
    tokens: u32,
) -> Call<'a> {
    let mut call = lock::acquire_by(&script::FENCED_ACQUIRE, key, share, lease, mode);
    call.args.extend([ttl(fencing), Arg::Number(tokens.into())]);
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
