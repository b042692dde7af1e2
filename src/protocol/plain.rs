//! Calls of the plain lock: a string whose value identifies the holder.

use crate::name::LockName;
use crate::options::{LeaseTime, ReleaseBy};
use crate::owner::Owner;
use crate::protocol::hold_key::HoldKey;
use crate::protocol::script::{self, Arg, Call, Cut, Script, ScriptStep, Steps, Unscripted};

pub(crate) fn acquire(key: &HoldKey, by: ReleaseBy, lease: LeaseTime) -> Call<'_> {
    let step = ScriptStep::Acquire {
        value: key.value(),
        lease,
        is_unique: !key.is_named(),
    };
    about(&key.name, by, &script::PLAIN_ACQUIRE, step)
}

pub(crate) fn release(key: &HoldKey, by: ReleaseBy) -> Call<'_> {
    let value = key.value();
    let step = ScriptStep::Release { value };
    about(&key.name, by, &script::PLAIN_RELEASE, step)
}

pub(crate) fn extend(key: &HoldKey, by: ReleaseBy, lease: LeaseTime, cut: Cut) -> Call<'_> {
    let value = key.value();
    let step = ScriptStep::Extend { value, lease, cut };
    about(&key.name, by, &script::PLAIN_EXTEND, step)
}

/// Makes a call that takes over a hold. Without a lease the TTL stays as it is.
pub(crate) fn adopt(key: &HoldKey, by: ReleaseBy, lease: Option<LeaseTime>) -> Call<'_> {
    let value = key.value();
    let step = ScriptStep::Adopt { value, lease };
    about(&key.name, by, &script::PLAIN_ADOPT, step)
}

/// Makes a call that renews many holds, each with its own lease.
pub(crate) fn renew<'a>(
    holds: impl Iterator<Item = (&'a HoldKey, LeaseTime)>,
    by: ReleaseBy,
) -> Call<'a> {
    let steps = holds.map(|(hold, lease)| {
        let value = hold.value();
        (hold, ScriptStep::Renew { value, lease })
    });
    about_each(steps, by, &script::PLAIN_RENEW)
}

/// Makes a call that checks whether many holds still stand.
pub(crate) fn check<'a>(holds: impl Iterator<Item = &'a HoldKey>, by: ReleaseBy) -> Call<'a> {
    let steps = holds.map(|hold| {
        let value = hold.value();
        (hold, ScriptStep::Check { value })
    });
    about_each(steps, by, &script::PLAIN_CHECK)
}

/// Makes a call that frees a lock if it has this value; without one, whatever its value.
pub(crate) fn force_release<'a>(
    name: &'a LockName,
    by: ReleaseBy,
    value: Option<&'a str>,
) -> Call<'a> {
    let step = value.map_or(ScriptStep::ForceRelease, |value| ScriptStep::Release {
        value,
    });
    about(name, by, &script::PLAIN_FORCE_RELEASE, step)
}

pub(crate) fn inspect(name: &LockName, by: ReleaseBy) -> Call<'_> {
    about(name, by, &script::PLAIN_INSPECT, ScriptStep::Inspect)
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

/// Returns how a call is made on a server that runs no scripts.
fn unscripted(steps: Steps<'_>, by: ReleaseBy) -> Unscripted<'_> {
    match by {
        ReleaseBy::Auto => Unscripted::Fallback(Box::new(steps)),
        ReleaseBy::Script => Unscripted::Unwanted,
        ReleaseBy::Transaction => Unscripted::Instead(Box::new(steps)),
    }
}

/// Makes a call about one lock.
fn about<'a>(
    name: &'a LockName,
    by: ReleaseBy,
    script: &'static Script,
    step: ScriptStep<'a>,
) -> Call<'a> {
    let mut args = Vec::new();
    step.describe(&mut args);
    Call {
        unscripted: unscripted(Steps::One(step), by),
        ..Call::new(script, vec![&**name.key()], args)
    }
}

/// Makes a call about many holds at once.
fn about_each<'a>(
    about: impl Iterator<Item = (&'a HoldKey, ScriptStep<'a>)>,
    by: ReleaseBy,
    script: &'static Script,
) -> Call<'a> {
    let (mut keys, mut args, mut steps) = (Vec::new(), Vec::new(), Vec::new());
    for (hold, step) in about {
        keys.push(&**hold.name.key());
        step.describe(&mut args);
        steps.push(step);
    }
    Call {
        unscripted: unscripted(Steps::Each(steps), by),
        ..Call::new(script, keys, args)
    }
}

impl<'a> ScriptStep<'a> {
    /// Appends the arguments that describe the step to a script.
    fn describe(self, args: &mut Vec<Arg<'a>>) {
        match self {
            Self::Acquire {
                value,
                lease,
                is_unique,
            } => {
                let whose = if is_unique { "hold" } else { "owner" };
                args.extend([Arg::Text(value), lease.into(), Arg::Text(whose)]);
            }
            Self::Extend { value, lease, cut } => {
                args.extend([Arg::Text(value), lease.into(), cut.into()]);
            }
            Self::Adopt { value, lease } => {
                let lease = lease.map_or(Arg::Number(0), Arg::from);
                args.extend([Arg::Text(value), lease]);
            }
            Self::Renew { value, lease } => args.extend([Arg::Text(value), lease.into()]),
            Self::Release { value } | Self::Check { value } => args.push(Arg::Text(value)),
            Self::Inspect | Self::ForceRelease => {}
        }
    }
}
