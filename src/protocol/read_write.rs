//! Calls of the read-write lock: one hash for both sides, and a key for each level, with the acquisition id as its
//! value.
//!
//! Java counts the fields of the hash, so there is no acquisition field in it. Java's forced release deletes the hash
//! and leaves the keys of the levels. So even a lost hold owes a release, which removes those keys. If a writer goes on
//! reading when its lease has ended, the release also removes the count of its levels, which keeps out other readers.
//!
//! A reader of Java cuts the hash to its own lease with each renewal. So shared holds are checked every second, and
//! the check extends the hash to their levels again.
//!
//! Across processes, waiter marks keep the order. A mark is owed like a hold: a call that gives up sends a release,
//! which removes it. Java's readers respect no mark, so next to them, a reader respects a writer's mark for only a
//! second: more would gain the writer nothing.

use std::time::Duration;

use crate::name::LockName;
use crate::options::{LeaseTime, Prefer};
use crate::protocol::acquired::WaiterMark;
use crate::protocol::hold_key::{HoldKey, Kind, ReadWrite};
use crate::protocol::lock::{AcquireMode, ShareTarget, TransferSource, compared};
use crate::protocol::script::{self, Arg, Call, Cut, Script};

/// How long a waiter mark lasts, counted from the last request of its waiter.
pub(crate) const WAITER_MARK_TTL: Duration = Duration::from_secs(1);

pub(crate) fn acquire<'a>(
    key: &'a HoldKey,
    sides: &'a ReadWrite,
    share: u32,
    lease: LeaseTime,
    mode: AcquireMode,
    waits: Option<WaiterMark>,
) -> Call<'a> {
    let [came, mark] = place(waits);
    let (script, entry) = match (key.kind.is_shared(), mode) {
        (true, _) => (&script::READ_ACQUIRE, entry(key)),
        (false, AcquireMode::JoinOnly) => (&script::WRITE_ACQUIRE, "join"),
        (false, _) => (&script::WRITE_ACQUIRE, entry(key)),
    };
    let prefer = sides.prefer.into();
    let entry = Arg::Text(entry);
    let rest = [share.into(), lease.into(), prefer, came, mark, entry];
    let mut call = call(key, sides, script, rest);
    call.keys.extend([&*sides.writer, &*sides.reader]);
    call
}

/// Returns how an owner takes and releases a level: `share` if it may have levels that this client does not know of,
/// otherwise `take`. A numbered owner belongs to this client alone: only a copy of this process could use the same
/// number.
fn entry(key: &HoldKey) -> &'static str {
    match key.is_named() {
        true => "share",
        false => "take",
    }
}

/// Returns the arguments for when a call arrived and how long its mark lasts.
fn place<'a>(waits: Option<WaiterMark>) -> [Arg<'a>; 2] {
    let came = waits.map_or(0, |place| place.came);
    let mark = waits.map_or(0, |_| WAITER_MARK_TTL.as_millis() as i64);
    [came, mark].map(Arg::Number)
}

pub(crate) fn reenter<'a>(
    key: &'a HoldKey,
    sides: &'a ReadWrite,
    to: ShareTarget,
    lease: LeaseTime,
) -> Call<'a> {
    let rest = [to.share.into(), lease.into()];
    let reenter = call(key, sides, &script::RW_REENTER, rest);
    compared(reenter, &script::RW_REENTER_SPARE, to.known)
}

pub(crate) fn release<'a>(key: &'a HoldKey, sides: &'a ReadWrite, to: ShareTarget) -> Call<'a> {
    let mark = match key.kind {
        Kind::Write(_) => &*sides.writer,
        _ => &*sides.reader,
    };
    let keys = vec![&**key.name.key(), &**key.name.channel(), &*sides.stem, mark];
    let args = vec![
        Arg::Text(key.field()),
        Arg::Text(key.number()),
        to.share.into(),
        Arg::Number(message(&key.kind)),
        Arg::Publish,
        Arg::Text(entry(key)),
    ];
    let release = Call::new(&script::RW_RELEASE, keys, args);
    compared(release, &script::RW_RELEASE_SPARE, to.known)
}

/// Makes a call that renews a read lock that several owners share, and asks whether a writer waits.
pub(crate) fn confirm<'a>(key: &'a HoldKey, sides: &'a ReadWrite, lease: LeaseTime) -> Call<'a> {
    let rest = [lease.into(), sides.prefer.into()];
    let mut call = call(key, sides, &script::RW_CONFIRM, rest);
    call.keys.push(&*sides.writer);
    call
}

pub(crate) fn adopt<'a>(
    key: &'a HoldKey,
    sides: &'a ReadWrite,
    to: ShareTarget,
    lease: Option<LeaseTime>,
    source: Option<&'a TransferSource>,
) -> Call<'a> {
    let lease = lease.map_or(Arg::Number(0), Arg::from);
    // There is no level 0 to take over.
    let (level, record) = source.map_or(("0", ""), |source| (&*source.field, &*source.record));
    let rest = [to.share.into(), lease, Arg::Text(level), Arg::Text(record)];
    let adopt = call(key, sides, &script::RW_ADOPT, rest);
    compared(adopt, &script::RW_ADOPT_SPARE, to.known)
}

pub(crate) fn extend<'a>(
    key: &'a HoldKey,
    sides: &'a ReadWrite,
    lease: LeaseTime,
    cut: Cut,
) -> Call<'a> {
    call(key, sides, &script::RW_EXTEND, [lease.into(), cut.into()])
}

/// Finds a level of an owner that could be taken over, from the values of its level keys: first a level that no client
/// of this crate recorded, otherwise a level of another hold. Returns `None` if there is none.
pub(crate) fn source(key: &HoldKey, levels: &[String]) -> Option<TransferSource> {
    let foreign = |record: &String| !record.starts_with('h');
    let at = levels
        .iter()
        .position(foreign)
        .or_else(|| levels.iter().position(|record| *record != *key.number()))?;
    Some(TransferSource {
        field: (at + 1).to_string().into(),
        record: levels.get(at)?.as_str().into(),
    })
}

pub(crate) fn force_release<'a>(name: &'a LockName, kind: &Kind, sides: &'a ReadWrite) -> Call<'a> {
    let side = if kind.is_shared() { "read" } else { "write" };
    let keys = vec![&**name.key(), &**name.channel(), &*sides.stem];
    let message = Arg::Number(message(kind));
    let args = vec![Arg::Text(side), message, Arg::Publish];
    Call::new(&script::RW_FORCE_RELEASE, keys, args)
}

/// Makes a call that reads what the server records of a lock, and of the levels under one field.
pub(crate) fn inspect<'a>(name: &'a LockName, sides: &'a ReadWrite, field: &'a str) -> Call<'a> {
    let keys = vec![&**name.key(), &*sides.stem];
    Call::new(&script::RW_INSPECT, keys, vec![Arg::Text(field)])
}

/// Returns what Redisson publishes: after 0 it wakes one waiter of a process, after 1 all of them.
fn message(kind: &Kind) -> i64 {
    if kind.is_shared() { 0 } else { 1 }
}

fn call<'a, const N: usize>(
    key: &'a HoldKey,
    sides: &'a ReadWrite,
    script: &'static Script,
    rest: [Arg<'a>; N],
) -> Call<'a> {
    let mut args = Vec::with_capacity(N + 3);
    args.extend([key.field(), key.number()].map(Arg::Text));
    args.extend(rest);
    let mut keys = Vec::with_capacity(4);
    keys.extend([&**key.name.key(), &*sides.stem]);
    Call::begun(script, keys, args)
}

impl From<Prefer> for Arg<'_> {
    fn from(prefer: Prefer) -> Self {
        Self::Text(match prefer {
            Prefer::Arrival => "arrival",
            Prefer::Writers => "writers",
            Prefer::Readers => "readers",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::owner::Owner;
    use std::sync::Arc;

    fn sides() -> (LockName, Arc<ReadWrite>) {
        let name = LockName::read_write("", "k").unwrap();
        let sides = Arc::new(ReadWrite::new(&name, Prefer::Arrival));
        (name, sides)
    }

    #[test]
    fn only_named_owners_share_a_write_hold_with_others() {
        let (name, sides) = sides();
        let lease = LeaseTime::new(Duration::from_secs(1)).unwrap();
        for (owner, mode, entry) in [
            (Owner::named("req-7"), AcquireMode::Free, "share"),
            (Owner::named("req-7"), AcquireMode::JoinOnly, "join"),
            (Owner::unique(), AcquireMode::Free, "take"),
        ] {
            let key = HoldKey::new(name.clone(), Kind::Write(sides.clone()), "c", &owner, 1);
            let call = key.acquire(1, lease, mode, None, 1);
            assert_eq!(call.args.last(), Some(&Arg::Text(entry)));
        }
    }

    #[test]
    fn call_that_waits_says_since_when_and_for_how_long_its_mark_stands() {
        let (name, sides) = sides();
        let lease = LeaseTime::new(Duration::from_secs(1)).unwrap();
        let key = HoldKey::new(name, Kind::Read(sides), "c", &Owner::unique(), 1);
        let place = WaiterMark {
            came: 7,
            marked: true,
        };
        for (waits, expected) in [(None, [0, 0]), (Some(place), [7, 1_000])] {
            let call = key.acquire(1, lease, AcquireMode::Free, waits, 1);
            assert_eq!(call.args[5..7], expected.map(Arg::Number));
        }
    }

    #[test]
    fn levels_are_taken_over_from_nobody_first_then_from_another_hold_never_from_our_own() {
        let (name, sides) = sides();
        let key = HoldKey::new(name, Kind::Read(sides), "c", &Owner::named("req-7"), 1);
        let source = |levels: &[&str]| {
            let levels: Vec<_> = levels.iter().map(ToString::to_string).collect();
            source(&key, &levels)
                .map(|source| (source.field.to_string(), source.record.to_string()))
        };
        let level = |at: &str, record: &str| Some((at.to_owned(), record.to_owned()));
        let mine = key.number();
        assert_eq!(source(&[]), None);
        assert_eq!(source(&[mine]), None);
        assert_eq!(source(&[mine, "h2"]), level("2", "h2"));
        assert_eq!(source(&["h2", mine, "1"]), level("3", "1"));
        assert_eq!(source(&[mine, ""]), level("2", ""));
    }
}
