//! Calls of the plain lock: a string whose value identifies the holder.

use crate::name::LockName;
use crate::options::{LeaseTime, ReleaseBy};
use crate::owner::Owner;
use crate::protocol::hold_key::HoldKey;
use crate::protocol::script::{self, Arg, Call, Cut, Script, Steps, Unscripted};

pub(crate) fn acquire(key: &HoldKey, by: ReleaseBy, lease: LeaseTime) -> Call<'_> {
    let whose = if key.is_named() { "owner" } else { "hold" };
    let rest = [lease.into(), Arg::Text(whose)];
    about(key, by, &script::PLAIN_ACQUIRE, Steps::Acquire, rest)
}

pub(crate) fn release(key: &HoldKey, by: ReleaseBy) -> Call<'_> {
    about(key, by, &script::PLAIN_RELEASE, Steps::Release, [])
}

pub(crate) fn extend(key: &HoldKey, by: ReleaseBy, lease: LeaseTime, cut: Cut) -> Call<'_> {
    let rest = [lease.into(), cut.into()];
    about(key, by, &script::PLAIN_EXTEND, Steps::Extend, rest)
}

/// Makes a call that takes over a hold. Without a lease the TTL stays as it is.
pub(crate) fn adopt(key: &HoldKey, by: ReleaseBy, lease: Option<LeaseTime>) -> Call<'_> {
    let lease = lease.map_or(Arg::Number(0), Arg::from);
    about(key, by, &script::PLAIN_ADOPT, Steps::Adopt, [lease])
}

/// Makes a call that renews many holds, each with its own lease.
pub(crate) fn renew<'a>(
    holds: impl Iterator<Item = (&'a HoldKey, LeaseTime)>,
    by: ReleaseBy,
) -> Call<'a> {
    let (mut keys, mut args) = (Vec::new(), Vec::new());
    for (hold, lease) in holds {
        keys.push(&**hold.name.key());
        args.extend([Arg::Text(hold.value()), lease.into()]);
    }
    call(&script::PLAIN_RENEW, keys, args, Steps::Renew, by)
}

/// Makes a call that checks whether many holds still stand.
pub(crate) fn check<'a>(holds: impl Iterator<Item = &'a HoldKey>, by: ReleaseBy) -> Call<'a> {
    let (keys, args) = holds
        .map(|hold| (&**hold.name.key(), Arg::Text(hold.value())))
        .unzip();
    call(&script::PLAIN_CHECK, keys, args, Steps::Check, by)
}

pub(crate) fn force_release(name: &LockName, by: ReleaseBy) -> Call<'_> {
    let keys = vec![&**name.key()];
    let script = &script::PLAIN_FORCE_RELEASE;
    call(script, keys, Vec::new(), Steps::ForceRelease, by)
}

pub(crate) fn inspect(name: &LockName, by: ReleaseBy) -> Call<'_> {
    let keys = vec![&**name.key()];
    call(&script::PLAIN_INSPECT, keys, Vec::new(), Steps::Inspect, by)
}

/// Returns whether a value belongs to this owner, whichever hold wrote it. `field` is the owner's field, as a hash
/// would have it.
pub(crate) fn is_of(value: &str, field: &str, owner: &Owner) -> bool {
    let rest = value.strip_prefix(field);
    rest.is_some_and(|rest| match owner.is_named() {
        true => rest.is_empty(),
        false => rest.starts_with(":h"),
    })
}

/// Makes a call about one hold, with its value as the first argument.
fn about<'a, const N: usize>(
    key: &'a HoldKey,
    by: ReleaseBy,
    script: &'static Script,
    steps: Steps,
    rest: [Arg<'a>; N],
) -> Call<'a> {
    let mut args = vec![Arg::Text(key.value())];
    args.extend(rest);
    call(script, vec![&**key.name.key()], args, steps, by)
}

fn call<'a>(
    script: &'static Script,
    keys: Vec<&'a str>,
    args: Vec<Arg<'a>>,
    steps: Steps,
    by: ReleaseBy,
) -> Call<'a> {
    Call {
        unscripted: Unscripted::Steps(steps, by),
        ..Call::new(script, keys, args)
    }
}
