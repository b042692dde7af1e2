//! Calls of the fenced lock, each hold of which has a fencing token.
//!
//! If a hold could not be passed on in memory for lack of tokens, the process reserves several at once. The next holder
//! of the record uses the next one, and unused ones are skipped. A repeated request returns only the last of them, so
//! no token is used twice.

use crate::options::LeaseTime;
use crate::protocol::hold_key::{Fencing, HoldKey};
use crate::protocol::lock::{self, AcquireMode};
use crate::protocol::script::{self, Arg, Call};

/// Makes a call that acquires the lock. If the lock is free, it is taken with this many tokens.
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

/// Makes a call that reads the token of the current hold, which a client of ours has `recorded`, or none. In that case,
/// it records the token once a client of ours has a level of the hold.
pub(crate) fn token<'a>(key: &'a HoldKey, fencing: &'a Fencing, recorded: bool) -> Call<'a> {
    let keys = vec![&**key.name.key(), &*fencing.key];
    let args = vec![Arg::Number(recorded.into())];
    Call::new(&script::FENCED_TOKEN, keys, args)
}

/// Returns the key of the last token, and how long that token is remembered.
pub(crate) fn tokens(fencing: &Fencing) -> (&str, Arg<'_>) {
    (&fencing.key, ttl(fencing))
}

fn ttl(fencing: &Fencing) -> Arg<'_> {
    // At most a century, in milliseconds.
    Arg::Number(fencing.ttl.map_or(0, |ttl| ttl.as_millis() as i64))
}
