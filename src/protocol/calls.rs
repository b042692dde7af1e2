//! The calls of each kind of lock.

use crate::error::Error;
use crate::label;
use crate::name::LockName;
use crate::options::LeaseTime;
use crate::owner::Owner;
use crate::protocol::acquired::WaiterMark;
use crate::protocol::hold_key::{HoldKey, Kind, Shape};
use crate::protocol::lock::{self, AcquireMode, ShareTarget, TransferSource};
use crate::protocol::script::{self, Arg, Call, Cut};
use crate::protocol::{fair, fenced, plain, read_write};

impl HoldKey {
    /// Makes a call that acquires the lock. `waits` is the place of a call that will wait if the lock is busy. `tokens`
    /// is the number of tokens that a fenced lock is taken with.
    pub(crate) fn acquire(
        &self,
        share: u32,
        lease: LeaseTime,
        mode: AcquireMode,
        waits: Option<WaiterMark>,
        tokens: u32,
    ) -> Call<'_> {
        let call = match &self.kind {
            Kind::Read(sides) | Kind::Write(sides) => {
                read_write::acquire(self, sides, share, lease, mode, waits)
            }
            Kind::Reentrant | Kind::Spin => lock::acquire(self, share, lease, mode),
            Kind::Fenced(fencing) => fenced::acquire(self, fencing, share, lease, mode, tokens),
            Kind::Fair(queue) => match mode {
                AcquireMode::JoinOnly => lock::acquire(self, share, lease, mode),
                AcquireMode::Free | AcquireMode::Vote | AcquireMode::InTurn { .. } => {
                    fair::acquire(self, queue, lease, None)
                }
                AcquireMode::Stand { priority } => {
                    fair::acquire(self, queue, lease, Some(priority))
                }
            },
            Kind::Plain(by) => plain::acquire(self, *by, lease),
        };
        call.of(self.kind.title())
    }

    pub(crate) fn reenter(&self, to: ShareTarget, lease: LeaseTime) -> Call<'_> {
        let call = match self.kind.sides() {
            Some(sides) => read_write::reenter(self, sides, to, lease),
            None => lock::reenter(self, to, lease),
        };
        call.of(self.kind.title())
    }

    pub(crate) fn release(&self, to: ShareTarget) -> Call<'_> {
        let call = match &self.kind {
            Kind::Fair(queue) => fair::release(self, queue, to),
            Kind::Plain(by) => plain::release(self, *by),
            Kind::Read(sides) | Kind::Write(sides) => read_write::release(self, sides, to),
            _ => lock::release(self, to),
        };
        call.of(self.kind.title())
    }

    /// Makes a call that renews a hold that several owners of this process share, and asks whether others wait for the
    /// lock.
    pub(crate) fn confirm(&self, lease: LeaseTime, listeners: Option<u64>) -> Call<'_> {
        let call = match self.kind.sides() {
            Some(sides) => read_write::confirm(self, sides, lease),
            None => lock::confirm(self, lease, listeners),
        };
        call.of(self.kind.title())
    }

    /// Makes a call that takes over one level from `source`. Without a lease the TTL stays as it is. Without a source
    /// the call only finds out whether the share is reached already.
    pub(crate) fn adopt<'a>(
        &'a self,
        to: ShareTarget,
        lease: Option<LeaseTime>,
        source: Option<&'a TransferSource>,
    ) -> Call<'a> {
        let call = match &self.kind {
            Kind::Plain(by) => plain::adopt(self, *by, lease),
            Kind::Read(sides) | Kind::Write(sides) => {
                read_write::adopt(self, sides, to, lease, source)
            }
            _ => lock::adopt(self, to, lease, source),
        };
        call.of(self.kind.title())
    }

    /// Finds a level of this owner that could be taken over: first a level that no client recorded, like those of
    /// Redisson's clients, otherwise one that another client recorded (for a read-write lock: another hold). Returns
    /// `None` if there is none.
    pub(crate) fn source(
        &self,
        fields: &[(String, String)],
        levels: &[String],
    ) -> Result<Option<TransferSource>, Error> {
        match self.kind.sides() {
            Some(_) => Ok(read_write::source(self, levels)),
            None => lock::source(self, fields),
        }
    }

    /// Makes a call that reads what the server records of the lock, and of the levels of this owner.
    pub(crate) fn inspect(&self) -> Call<'_> {
        self.kind.inspect(&self.name, self.field())
    }

    pub(crate) fn extend(&self, lease: LeaseTime, cut: Cut) -> Call<'_> {
        let call = match &self.kind {
            Kind::Plain(by) => plain::extend(self, *by, lease, cut),
            Kind::Read(sides) | Kind::Write(sides) => read_write::extend(self, sides, lease, cut),
            _ => lock::extend(self, lease, cut),
        };
        call.of(self.kind.title())
    }

    /// Makes a call that reads the token of this hold, which a client of ours has `recorded`, or none. Returns `None`
    /// if its kind has no tokens.
    pub(crate) fn token(&self, recorded: bool) -> Option<Call<'_>> {
        match &self.kind {
            Kind::Reentrant
            | Kind::Spin
            | Kind::Fair(_)
            | Kind::Plain(_)
            | Kind::Read(_)
            | Kind::Write(_) => None,
            Kind::Fenced(fencing) => Some(fenced::token(self, fencing, recorded)),
        }
    }
}

impl Shape {
    /// Makes a call that renews many holds of this shape, each with its own lease.
    pub(crate) fn renew<'a>(
        self,
        holds: impl Iterator<Item = (&'a HoldKey, LeaseTime)>,
    ) -> Call<'a> {
        let leased = |(hold, lease)| (hold, Some(lease));
        match self {
            Self::Hash => lock::each(&script::LOCK_RENEW, holds.map(leased)),
            Self::Plain(by) => plain::renew(holds, by),
            Self::ReadWrite => lock::each(&script::RW_RENEW, holds.map(leased)),
        }
    }

    /// Makes a call that checks whether many holds of this shape still stand.
    pub(crate) fn check<'a>(self, holds: impl Iterator<Item = &'a HoldKey>) -> Call<'a> {
        let bare = |hold| (hold, None);
        match self {
            Self::Hash => lock::each(&script::LOCK_CHECK, holds.map(bare)),
            Self::Plain(by) => plain::check(holds, by),
            Self::ReadWrite => lock::each(&script::RW_CHECK, holds.map(bare)),
        }
    }
}

impl Kind {
    /// Makes a call that frees a lock if its holders are those with these owner fields, or whoever holds it if there
    /// are none.
    pub(crate) fn force_release<'a>(
        &'a self,
        name: &'a LockName,
        holders: &'a [String],
    ) -> Call<'a> {
        let mut call = match self {
            Self::Plain(by) => plain::force_release(name, *by, holders.first().map(String::as_str)),
            Self::Fair(queue) => fair::force_release(name, queue),
            Self::Read(sides) | Self::Write(sides) => read_write::force_release(name, self, sides),
            _ => lock::force_release(name, self),
        };
        // The lock may have another owner by then.
        call.once = holders.is_empty();
        if !matches!(self, Self::Plain(_)) {
            call.args
                .extend(holders.iter().map(|field| Arg::Text(field)));
        }
        call.of(self.title())
    }

    /// Makes a call that reads what the server records of a lock, and for a read-write lock, of the levels under this
    /// field, unless it is empty.
    pub(crate) fn inspect<'a>(&'a self, name: &'a LockName, field: &'a str) -> Call<'a> {
        let call = match self {
            Self::Plain(by) => plain::inspect(name, *by),
            Self::Read(sides) | Self::Write(sides) => read_write::inspect(name, sides, field),
            _ => lock::inspect(name),
        };
        call.of(self.title())
    }

    /// Returns whether the holder that the server records, in a field or as the value of a plain lock, is this owner.
    pub(crate) fn is_of(&self, holder: &str, client: &str, owner: &Owner) -> bool {
        match self {
            Self::Plain(_) => plain::is_of(holder, &lock::field(client, owner), owner),
            // The label of a client is no part of the owner field.
            _ => holder == lock::field(label::split(client).1, owner),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::{Prefer, ReleaseBy};
    use crate::protocol::hold_key::{Fencing, ReadWrite, ServerQueue};
    use crate::protocol::lock::Known;
    use std::sync::Arc;
    use std::time::Duration;

    #[test]
    fn calls_have_the_arity_of_their_scripts() {
        let fencing = Fencing {
            key: "t".into(),
            ttl: None,
        };
        let name = LockName::read_write("", "k").unwrap();
        let sides = Arc::new(ReadWrite::new(&name, Prefer::Arrival));
        let lease = LeaseTime::new(Duration::from_secs(1)).unwrap();
        let kinds = [
            Kind::Reentrant,
            Kind::Spin,
            Kind::Fenced(Arc::new(fencing)),
            Kind::Fair(Arc::new(ServerQueue::new(&name, lease.get()))),
            Kind::Plain(ReleaseBy::Auto),
            Kind::Read(sides.clone()),
            Kind::Write(sides),
        ];
        for kind in kinds {
            drop(kind.force_release(&name, &[]));
            let key = HoldKey::new(name.clone(), kind, "c", &Owner::unique(), 1);
            let left = ShareTarget {
                share: 1,
                known: Some(Known::default()),
            };
            let calls = [
                key.acquire(1, lease, AcquireMode::Free, None, 1),
                key.acquire(1, lease, AcquireMode::JoinOnly, None, 1),
                key.acquire(
                    1,
                    lease,
                    AcquireMode::InTurn {
                        lasts: lease.get(),
                        within: lease.get(),
                        hears: false,
                    },
                    None,
                    1,
                ),
                lock::leave(&key.name, "c"),
                key.acquire(1, lease, AcquireMode::Stand { priority: -1 }, None, 1),
                key.reenter(2.into(), lease),
                key.release(0.into()),
                key.confirm(lease, Some(1)),
                key.adopt(1.into(), None, None),
                key.reenter(left, lease),
                key.release(left),
                key.adopt(left, None, None),
                key.extend(lease, Cut::Ask),
            ];
            let holders = ["c:1".to_owned()];
            let more = [
                key.kind.force_release(&key.name, &[]),
                key.kind.force_release(&key.name, &holders),
                key.kind.inspect(&key.name, ""),
                key.inspect(),
            ];
            for call in calls.into_iter().chain(more).chain(key.token(true)) {
                drop(Call::new(call.script, call.keys, call.args));
            }
        }
    }
}
