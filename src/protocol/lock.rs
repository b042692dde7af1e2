//! Calls of the locks that are a hash, with a field for the owner and an acquisition field.

use std::sync::Arc;
use std::time::Duration;

use crate::error::Error;
use crate::name::LockName;
use crate::options::LeaseTime;
use crate::owner::Owner;
use crate::protocol::hold_key::{HoldKey, Kind};
use crate::protocol::script::{self, Arg, Call, Cut};

/// What Redisson publishes on an unlock.
pub(crate) const UNLOCKED: i64 = 0;
/// Stands in for the publish command, or for the message, if nobody is to be told.
pub(crate) const SILENT: Arg<'static> = Arg::Text("");

/// Whether an attempt may take a free lock or only join its owner, and whether it waits its turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AcquireMode {
    Free,
    JoinOnly,
    /// Asks one of several servers for its vote. It does not know who is next on the others, so its turn order does not
    /// count.
    Vote,
    /// The waiters of the lock take turns: if it is busy, take a place in the turn order, for at least `lasts`. When
    /// its turn comes, this process asks `within` that time: after the message if it `hears` of its turn, else by
    /// itself.
    InTurn {
        lasts: Duration,
        within: Duration,
        hears: bool,
    },
    /// For a fair lock: wait in the server queue until it is this owner's turn.
    Stand {
        priority: i32,
    },
}

impl From<AcquireMode> for Arg<'_> {
    fn from(mode: AcquireMode) -> Self {
        Self::Text(match mode {
            AcquireMode::Free
            | AcquireMode::Vote
            | AcquireMode::InTurn { .. }
            | AcquireMode::Stand { .. } => "take",
            AcquireMode::JoinOnly => "join",
        })
    }
}

pub(crate) fn acquire(key: &HoldKey, share: u32, lease: LeaseTime, mode: AcquireMode) -> Call<'_> {
    acquire_by(&script::LOCK_ACQUIRE, key, share, lease, mode)
}

/// Makes the same call with a different script, which may need more arguments after these.
pub(crate) fn acquire_by<'a>(
    script: &'static script::Script,
    key: &'a HoldKey,
    share: u32,
    lease: LeaseTime,
    mode: AcquireMode,
) -> Call<'a> {
    let millis = |time: Duration| i64::try_from(time.as_millis()).unwrap_or(i64::MAX);
    let (lasts, within) = match mode {
        AcquireMode::InTurn {
            lasts,
            within,
            hears,
        } => {
            let within = millis(within).max(1);
            (millis(lasts), if hears { within } else { -within })
        }
        _ => (0, 0),
    };
    let publish = match mode {
        AcquireMode::Vote => SILENT,
        _ => Arg::Publish,
    };
    let rest = [
        share.into(),
        lease.into(),
        mode.into(),
        Arg::Text(key.name.channel()),
        publish,
        Arg::Number(lasts),
        Arg::Number(within),
    ];
    call(key, script, rest)
}

/// Makes a call that gives up the place of a client in the turn order.
pub(crate) fn leave<'a>(name: &'a LockName, client: &'a str) -> Call<'a> {
    let args = vec![Arg::Text(name.channel()), Arg::Publish, Arg::Text(client)];
    Call::new(&script::TURN_LEAVE, vec![&**name.key()], args)
}

/// Returns the channel on which a client is told that its turn has come.
pub(crate) fn turn_channel(name: &LockName, client: &str) -> Arc<str> {
    format!("{}:{client}", name.channel()).into()
}

/// Decodes the message to the process behind the one whose turn began, which says after how long that turn ends.
/// Returns `None` for any other message.
pub(crate) fn turn_ends(message: &str) -> Option<Duration> {
    let millis = message.strip_prefix("next:")?.parse().ok()?;
    Some(Duration::from_millis(millis))
}

pub(crate) fn reenter(key: &HoldKey, to: ShareTarget, lease: LeaseTime) -> Call<'_> {
    let reenter = call(key, &script::LOCK_REENTER, [to.share.into(), lease.into()]);
    compared(reenter, &script::LOCK_REENTER_SPARE, to.known)
}

/// Returns what a release tells waiters. For kinds whose release Redisson does not announce, only those in the turn order
/// are told.
fn message(kind: &Kind) -> Arg<'static> {
    match kind.policy().listens {
        true => Arg::Number(UNLOCKED),
        false => SILENT,
    }
}

/// Makes a call that releases a lock.
pub(crate) fn release(key: &HoldKey, to: ShareTarget) -> Call<'_> {
    let channel = Arg::Text(key.name.channel());
    let rest = [to.share.into(), message(&key.kind), Arg::Publish, channel];
    let release = call(key, &script::LOCK_RELEASE, rest);
    compared(release, &script::LOCK_RELEASE_SPARE, to.known)
}

/// Makes a call that renews a hold that was passed on, and asks whether others wait: processes in the turn order, or
/// clients of Redisson's, which are assumed to wait if the lock's channel has more subscribers than the `listeners` of
/// this process. With `None`, ignores Redisson's clients.
pub(crate) fn confirm(key: &HoldKey, lease: LeaseTime, listeners: Option<u64>) -> Call<'_> {
    let args = vec![
        Arg::Text(key.acquisition_field()),
        Arg::Text(key.number()),
        lease.into(),
        Arg::Number(listeners.map_or(-1, |listeners| listeners as i64)),
        Arg::Publish,
        Arg::Text(key.name.channel()),
    ];
    Call::new(&script::LOCK_CONFIRM, vec![&**key.name.key()], args)
}

/// Makes a call that takes over one level from `source`. Without a lease the TTL stays as it is. Without a source the
/// call only finds out whether the share is reached already.
pub(crate) fn adopt<'a>(
    key: &'a HoldKey,
    to: ShareTarget,
    lease: Option<LeaseTime>,
    source: Option<&'a TransferSource>,
) -> Call<'a> {
    let lease = lease.map_or(Arg::Number(0), Arg::from);
    let (field, record) = match source {
        Some(source) => (&*source.field, &*source.record),
        None => (key.field(), ""),
    };
    let rest = [to.share.into(), lease, Arg::Text(field), Arg::Text(record)];
    let adopt = call(key, &script::LOCK_ADOPT, rest);
    compared(adopt, &script::LOCK_ADOPT_SPARE, to.known)
}

pub(crate) fn extend(key: &HoldKey, lease: LeaseTime, cut: Cut) -> Call<'_> {
    call(key, &script::LOCK_EXTEND, [lease.into(), cut.into()])
}

/// Finds a level of this owner that could be taken over: first a level that no client recorded, like those of
/// Redisson's clients, otherwise one that another client recorded. Returns `None` if there is none.
pub(crate) fn source(
    key: &HoldKey,
    fields: &[(String, String)],
) -> Result<Option<TransferSource>, Error> {
    let Some((_, total)) = fields.iter().find(|(field, _)| **field == *key.field()) else {
        return Ok(None);
    };
    let Ok(count) = total.parse::<u64>() else {
        return Err(Error::wrong_kind(key.name.key()));
    };
    // The owner's name comes after the client, and is the same for all clients. The field for levels taken over begins
    // with two bars.
    let is_ours = |field: &str| {
        let parts = field
            .strip_prefix('|')
            .and_then(|rest| rest.split_once(':'));
        parts.is_some_and(|(client, owner)| !client.starts_with('|') && owner == key.field())
    };
    let share = |record: &str| record.split(':').nth(1)?.parse::<u64>().ok();
    let shares = fields
        .iter()
        .filter(|(field, _)| is_ours(field))
        .filter_map(|(field, record)| Some((field, record, share(record)?)));
    let recorded: u64 = shares.clone().map(|(_, _, share)| share).sum();
    let (field, record) = if count > recorded {
        (key.field(), &**total)
    } else {
        match shares
            .into_iter()
            .find(|(field, _, _)| **field != *key.acquisition_field())
        {
            Some((field, record, _)) => (&**field, &**record),
            None => return Ok(None),
        }
    };
    Ok(Some(TransferSource {
        field: field.into(),
        record: record.into(),
    }))
}

/// Changes a call so that its script runs only if no more levels were taken over than this client knows of.
pub(super) fn compared<'a>(
    mut call: Call<'a>,
    script: &'static script::Script,
    known: Option<Known>,
) -> Call<'a> {
    if let Some(Known { taken, recorded }) = known {
        call.script = script;
        call.args.extend([taken, recorded].map(Arg::from));
    }
    call
}

/// Makes a call of a script whose arguments begin with the hold's identity, and whose first key is the lock.
pub(crate) fn call<'a, const N: usize>(
    key: &'a HoldKey,
    script: &'static script::Script,
    rest: [Arg<'a>; N],
) -> Call<'a> {
    let mut args = Vec::with_capacity(N + 3);
    args.extend([
        Arg::Text(key.field()),
        Arg::Text(key.acquisition_field()),
        Arg::Text(key.number()),
    ]);
    args.extend(rest);
    let mut keys = Vec::with_capacity(2);
    keys.push(&**key.name.key());
    Call::begun(script, keys, args)
}

/// The share that a client is to have after a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ShareTarget {
    pub(crate) share: u32,
    /// Set for a hold that has left levels to a named owner or adopted some, so that other clients may have taken
    /// levels over.
    pub(crate) known: Option<Known>,
}

/// What a client knows of its share. If other clients have taken over more of its levels, the client counts too many.
/// The server then says so and does nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Known {
    /// How many levels were taken over.
    pub(crate) taken: u32,
    /// What was recorded at the last answer. An unanswered request since may have raised it.
    pub(crate) recorded: u32,
}

impl From<u32> for ShareTarget {
    fn from(share: u32) -> Self {
        Self { share, known: None }
    }
}

/// Where a level can be taken over from, and the value that was read there. The place is a field of the hash, or the
/// number of a level.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TransferSource {
    pub(crate) field: Box<str>,
    pub(crate) record: Box<str>,
}

impl TransferSource {
    /// Whether a client of ours has recorded the level.
    pub(crate) fn is_recorded(&self) -> bool {
        self.field.starts_with('|')
    }
}

impl From<u32> for Arg<'_> {
    fn from(share: u32) -> Self {
        Self::Number(share.into())
    }
}

impl From<LeaseTime> for Arg<'_> {
    fn from(lease: LeaseTime) -> Self {
        // A lease is at most a century, in milliseconds.
        Self::Number(lease.millis() as i64)
    }
}

/// Returns the field of the lock's hash that counts the holds of this owner of the client with this id; for a plain
/// lock, what its value begins with for the client with this name.
pub(crate) fn field(client: &str, owner: &Owner) -> String {
    let part = owner.own_part();
    if owner.is_named() {
        part.into_owned()
    } else {
        format!("{client}:{part}")
    }
}

/// Makes a call about many holds, with a lease for each if the script takes one.
pub(crate) fn each<'a>(
    script: &'static script::Script,
    holds: impl Iterator<Item = (&'a HoldKey, Option<LeaseTime>)>,
) -> Call<'a> {
    let count = holds.size_hint().0;
    let (mut keys, mut args) = (Vec::with_capacity(count), Vec::with_capacity(4 * count));
    for (hold, lease) in holds {
        keys.push(&**hold.name.key());
        let number = hold.number();
        match hold.kind.sides() {
            Some(sides) => args.extend([hold.field(), &*sides.stem, number].map(Arg::Text)),
            None => args.extend([hold.acquisition_field(), number].map(Arg::Text)),
        }
        args.extend(lease.map(Arg::from));
    }
    Call::new(script, keys, args)
}

pub(crate) fn force_release<'a>(name: &'a LockName, kind: &Kind) -> Call<'a> {
    let args = vec![message(kind), Arg::Publish, Arg::Text(name.channel())];
    Call::new(&script::LOCK_FORCE_RELEASE, vec![&**name.key()], args)
}

pub(crate) fn inspect(name: &LockName) -> Call<'_> {
    Call::new(&script::LOCK_INSPECT, vec![&**name.key()], Vec::new())
}

#[cfg(test)]
mod tests {
    use super::*;
    use uuid::Uuid;

    #[test]
    fn levels_are_taken_over_from_nobody_first_then_from_another_client_never_from_ourselves() {
        let client = Uuid::nil().to_string();
        let key = HoldKey::new(
            LockName::new("", "k").unwrap(),
            Kind::Reentrant,
            &client,
            &Owner::named("req-7"),
            1,
        );
        let other = format!("|{}:req-7", Uuid::max());
        let source = |fields: &[(&str, &str)]| {
            let fields: Vec<_> = fields
                .iter()
                .map(|(field, value)| (field.to_string(), value.to_string()))
                .collect();
            key.source(&fields, &[])
                .map(|source| source.map(|source| source.field.to_string()))
        };
        let from = |field: &str| Some(field.to_string());
        assert_eq!(source(&[]).unwrap(), None);
        assert_eq!(source(&[("other", "1")]).unwrap(), None);
        assert_eq!(source(&[("req-7", "1")]).unwrap(), from("req-7"));
        assert_eq!(
            source(&[("req-7", "1"), (&*other, "h1:1")]).unwrap(),
            from(&other)
        );
        assert_eq!(
            source(&[("req-7", "2"), (&*other, "h1:1:1795313518629")]).unwrap(),
            from("req-7")
        );
        assert_eq!(
            source(&[("req-7", "1"), (key.acquisition_field(), "h1:1")]).unwrap(),
            None
        );
        let labelled = format!("|orders@host-7/{}:req-7", Uuid::max());
        let taken = format!("|{other}");
        assert_eq!(
            source(&[("req-7", "1"), (&*taken, "h1:1"), (&*labelled, "h2:1")]).unwrap(),
            from(&labelled)
        );
        assert!(source(&[("req-7", "abc"), (&*other, "h1:1")]).is_err());
    }
}
