//! What each kind of lock says to the server.

use crate::error::Error;
use crate::name::LockName;
use crate::options::LeaseTime;
use crate::owner::Owner;
use crate::protocol::hold_key::{HoldKey, Kind, Shape};
use crate::protocol::lock::{self, Donor, PUBLISH, SILENT, Take};
use crate::protocol::script::Call;
use crate::protocol::{fair, fenced, plain};

impl HoldKey {
    pub(crate) fn acquire(&self, share: u32, lease: LeaseTime, take: Take) -> Call<'_> {
        let call = match &self.kind {
            Kind::Reentrant | Kind::Spin => lock::acquire(self, share, lease, take),
            Kind::Fenced(fencing) => fenced::acquire(self, fencing, share, lease, take),
            Kind::Fair(line) => match take {
                Take::JoinOnly => lock::acquire(self, share, lease, take),
                Take::Free => fair::acquire(self, line, lease, None),
                Take::Stand { priority } => fair::acquire(self, line, lease, Some(priority)),
            },
            Kind::Plain(by) => plain::acquire(self, *by, lease),
        };
        call.of(self.kind.title())
    }

    pub(crate) fn reenter(&self, share: u32, lease: LeaseTime) -> Call<'_> {
        lock::reenter(self, share, lease).of(self.kind.title())
    }

    pub(crate) fn release(&self, share: u32) -> Call<'_> {
        let call = match &self.kind {
            Kind::Fair(line) => fair::release(self, line, share),
            Kind::Plain(by) => plain::release(self, *by),
            kind => lock::release(self, share, kind.publish()),
        };
        call.of(self.kind.title())
    }

    /// Moves the lock here from a hold of this process that is given back. With `yield_beyond`, frees it instead if
    /// its channel has more subscribers than that.
    pub(crate) fn take_from<'a>(
        &'a self,
        old: &'a Self,
        lease: LeaseTime,
        yield_beyond: Option<u64>,
    ) -> Call<'a> {
        let call = match &self.kind {
            Kind::Fenced(fencing) => fenced::take_from(self, fencing, old, lease, yield_beyond),
            _ => lock::take_from(self, old, lease, yield_beyond),
        };
        call.of(self.kind.title())
    }

    /// Takes one level over from a donor; without a lease the TTL stays as it is. Without a donor it only finds out
    /// whether the share is reached already.
    pub(crate) fn adopt<'a>(
        &'a self,
        share: u32,
        lease: Option<LeaseTime>,
        donor: Option<&'a Donor>,
    ) -> Call<'a> {
        let call = match &self.kind {
            Kind::Plain(by) => plain::adopt(self, *by, lease),
            _ => lock::adopt(self, share, lease, donor),
        };
        call.of(self.kind.title())
    }

    /// Who records a level of this owner that could be taken over: nobody, as for a foreign client's, else another
    /// client.
    pub(crate) fn donor(&self, fields: &[(String, String)]) -> Result<Option<Donor>, Error> {
        lock::donor(self, fields)
    }

    pub(crate) fn extend(&self, lease: LeaseTime, exactly: bool) -> Call<'_> {
        let call = match &self.kind {
            Kind::Plain(by) => plain::extend(self, *by, lease, exactly),
            _ => lock::extend(self, lease, exactly),
        };
        call.of(self.kind.title())
    }

    /// Reads the token of this hold, if its kind has one.
    pub(crate) fn token(&self) -> Option<Call<'_>> {
        match &self.kind {
            Kind::Reentrant | Kind::Spin | Kind::Fair(_) | Kind::Plain(_) => None,
            Kind::Fenced(fencing) => Some(fenced::token(fencing)),
        }
    }
}

impl Shape {
    /// Renews many holds of this shape, each with its lease.
    pub(crate) fn renew<'a>(
        self,
        holds: impl Iterator<Item = (&'a HoldKey, LeaseTime)>,
    ) -> Call<'a> {
        match self {
            Self::Hash => lock::renew(holds),
            Self::Plain(by) => plain::renew(holds, by),
        }
    }

    /// Asks of many holds of this shape whether they still stand.
    pub(crate) fn check<'a>(self, holds: impl Iterator<Item = &'a HoldKey>) -> Call<'a> {
        match self {
            Self::Hash => lock::check(holds),
            Self::Plain(by) => plain::check(holds, by),
        }
    }
}

impl Kind {
    /// Frees a lock whoever holds it.
    pub(crate) fn force_release<'a>(&'a self, name: &'a LockName) -> Call<'a> {
        let call = match self {
            Self::Fair(line) => fair::force_release(name, line),
            Self::Plain(by) => plain::force_release(name, *by),
            _ => lock::force_release(name, self.publish()),
        };
        call.of(self.title())
    }

    /// What the server records of a lock.
    pub(crate) fn inspect<'a>(&self, name: &'a LockName) -> Call<'a> {
        let call = match self {
            Self::Plain(by) => plain::inspect(name, *by),
            _ => lock::inspect(name),
        };
        call.of(self.title())
    }

    /// Whether a field, or of a plain lock the value, is this owner's.
    pub(crate) fn is_of(&self, field: &str, client: &str, owner: &Owner) -> bool {
        let own = lock::field(client, owner);
        match self {
            Self::Plain(_) => plain::is_of(field, &own, owner),
            _ => field == own,
        }
    }

    /// Whether a field stands beside those that tell an owner.
    pub(crate) fn is_companion(&self, field: &str) -> bool {
        !matches!(self, Self::Plain(_)) && field.starts_with('|')
    }

    /// The command that tells waiters of a release.
    fn publish(&self) -> &'static str {
        match self {
            Self::Reentrant | Self::Fenced(_) | Self::Fair(_) => PUBLISH,
            Self::Spin | Self::Plain(_) => SILENT,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::ReleaseBy;
    use crate::protocol::hold_key::{Fencing, Line};
    use std::sync::Arc;
    use std::time::Duration;

    #[test]
    fn calls_have_the_arity_of_their_scripts() {
        let fencing = Fencing {
            key: "t".into(),
            ttl: None,
        };
        let name = LockName::new("", "k").unwrap();
        let kinds = [
            Kind::Reentrant,
            Kind::Spin,
            Kind::Fenced(Arc::new(fencing)),
            Kind::Fair(Arc::new(Line::new(&name))),
            Kind::Plain(ReleaseBy::Auto),
        ];
        for kind in kinds {
            let key = HoldKey::new(name.clone(), kind, "c", &Owner::unique(), 1);
            let lease = LeaseTime::new(Duration::from_secs(1)).unwrap();
            let calls = [
                key.acquire(1, lease, Take::Free),
                key.acquire(1, lease, Take::JoinOnly),
                key.acquire(1, lease, Take::Stand { priority: -1 }),
                key.reenter(2, lease),
                key.release(0),
                key.take_from(&key, lease, Some(1)),
                key.adopt(1, None, None),
                key.extend(lease, true),
            ];
            for call in calls.into_iter().chain(key.token()) {
                drop(Call::new(call.script, call.keys, call.args));
            }
        }
    }
}
