//! The identity of permits, and the calls of semaphores. A semaphore is a string with the number of free permits. An
//! expirable one also has a sorted set of the taken permits.

use std::time::Duration;

use crate::name::LockName;
use crate::options::LeaseTime;
use crate::permit_id::PermitId;
use crate::protocol::counter::{self, KEPT, RequestMark};
use crate::protocol::script::{self, Arg, Call};
use crate::stats::Counted;

const TITLE: &str = "a semaphore";

/// How long the server remembers that permits without a lease were taken. The return of permits that were taken longer
/// ago is remembered for the same time.
const REMEMBERED: Duration = Duration::from_secs(24 * 60 * 60);

/// How long the client tries to return permits.
pub(crate) const TRIED: Duration = Duration::from_secs(60 * 60);

pub(crate) fn set<'a>(name: &'a LockName, mark: &'a RequestMark, permits: u32) -> Call<'a> {
    counter::set(name, mark, permits, permits.into(), Arg::Publish).of(TITLE)
}

pub(crate) fn read(name: &LockName) -> Call<'_> {
    counter::read(name).of(TITLE)
}

/// Makes a call that adds permits, or removes some.
pub(crate) fn add<'a>(name: &'a LockName, mark: &'a RequestMark, permits: i64) -> Call<'a> {
    let args = vec![Arg::Number(permits), Arg::Publish, KEPT];
    counter::about(&script::SEMAPHORE_ADD, name, mark, args).of(TITLE)
}

pub(crate) fn drain<'a>(name: &'a LockName, mark: &'a RequestMark) -> Call<'a> {
    let keys = vec![&**name.key(), mark.key()];
    Call::new(&script::SEMAPHORE_DRAIN, keys, vec![KEPT]).of(TITLE)
}

/// The identity of the permits of one call.
#[derive(Debug)]
pub(crate) struct PermitKey {
    pub(crate) name: LockName,
    pub(crate) count: u32,
    mark: Box<str>,
    leased: Option<Leased>,
}

#[derive(Debug)]
struct Leased {
    /// The key of the sorted set of permits that are taken.
    key: Box<str>,
    ids: Vec<PermitId>,
    /// The ids, one after the other.
    hex: Box<str>,
    lease: Option<LeaseTime>,
}

/// What is known of permits that are returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GiveBack {
    /// Whether a copy of the call that took them may still be in flight.
    pub(crate) in_doubt: bool,
    /// Whether they were taken so long ago that the server may have forgotten.
    pub(crate) lapsed: bool,
}

impl GiveBack {
    pub(crate) fn new(in_doubt: bool, age: Option<Duration>) -> Self {
        Self {
            in_doubt,
            lapsed: age.is_some_and(|age| age + TRIED > REMEMBERED),
        }
    }
}

impl PermitKey {
    pub(crate) fn counted(&self) -> Counted {
        match self.leased {
            None => Counted::Semaphore,
            Some(_) => Counted::ExpirableSemaphore,
        }
    }

    /// Makes the identity of permits that stay taken until they are returned.
    pub(crate) fn new(name: LockName, count: u32, number: u64) -> Self {
        Self {
            mark: mark(&name, format_args!("{number:016x}")),
            name,
            count,
            leased: None,
        }
    }

    /// Makes the identity of permits that come back when their lease ends.
    pub(crate) fn leased(name: LockName, ids: Vec<PermitId>, lease: Option<LeaseTime>) -> Self {
        let hex: String = ids.iter().map(PermitId::to_string).collect();
        let first = hex.get(..32).unwrap_or_default();
        Self {
            mark: mark(&name, format_args!("{first}")),
            count: ids.len().try_into().unwrap_or(u32::MAX),
            leased: Some(Leased {
                key: taken(&name),
                ids,
                hex: hex.into(),
                lease,
            }),
            name,
        }
    }

    /// Returns the key of their mark, which no other permits have.
    pub(crate) fn mark(&self) -> &str {
        &self.mark
    }

    /// Returns the ids of permits with a lease.
    pub(crate) fn ids(&self) -> &[PermitId] {
        self.leased.as_ref().map_or(&[], |leased| &leased.ids)
    }

    pub(crate) fn acquire(&self) -> Call<'_> {
        let count = Arg::Number(self.count.into());
        let Some(leased) = &self.leased else {
            let keys = vec![&**self.name.key(), &self.mark];
            let args = vec![count, millis(REMEMBERED)];
            return Call::new(&script::SEMAPHORE_ACQUIRE, keys, args).of(TITLE);
        };
        let lease = leased.lease.map_or(Arg::Number(0), Arg::from);
        let args = vec![count, Arg::Text(&leased.hex), lease, Arg::Publish];
        self.about(leased, &script::PERMIT_ACQUIRE, args)
    }

    pub(crate) fn give_back(&self, how: GiveBack) -> Call<'_> {
        let Some(leased) = &self.leased else {
            let (kept, marked) = match how {
                GiveBack { lapsed: true, .. } => (millis(REMEMBERED), "lapsed"),
                GiveBack { in_doubt: true, .. } => (KEPT, "marked"),
                _ => (Arg::Number(0), "marked"),
            };
            let count = Arg::Number(self.count.into());
            let args = vec![count, Arg::Publish, kept, Arg::Text(marked)];
            let keys = vec![&**self.name.key(), self.name.channel(), &self.mark];
            return Call::new(&script::SEMAPHORE_RETURN, keys, args).of(TITLE);
        };
        let kept = if how.in_doubt { KEPT } else { Arg::Number(0) };
        let args = vec![Arg::Text(&leased.hex), Arg::Publish, kept];
        self.about(leased, &script::PERMIT_RETURN, args)
    }

    /// Makes a call that sets a new lease. `number` is the number of this extension; `in_doubt` if a copy of an earlier
    /// extension may still be on its way. Returns `None` for permits without leases.
    pub(crate) fn extend(&self, lease: LeaseTime, number: u32, in_doubt: bool) -> Option<Call<'_>> {
        let leased = self.leased.as_ref()?;
        let kept = if in_doubt { KEPT } else { Arg::Number(0) };
        let number = Arg::Number(number.into());
        let args = vec![Arg::Text(&leased.hex), lease.into(), number, kept];
        Some(Call::new(&script::PERMIT_EXTEND, vec![&leased.key, &self.mark], args).of(TITLE))
    }

    fn about<'a>(
        &'a self,
        leased: &'a Leased,
        script: &'static script::Script,
        args: Vec<Arg<'a>>,
    ) -> Call<'a> {
        let name = &self.name;
        let keys = vec![&**name.key(), name.channel(), &leased.key, &self.mark];
        Call::new(script, keys, args).of(TITLE)
    }
}

/// Makes a call that counts the free permits, after those whose lease has ended came back.
pub(crate) fn count<'a>(name: &'a LockName, taken: &'a str) -> Call<'a> {
    let keys = vec![&**name.key(), name.channel(), taken];
    Call::new(&script::PERMIT_COUNT, keys, vec![Arg::Publish]).of(TITLE)
}

/// Returns the key of the sorted set of permits that are taken from an expirable semaphore.
pub(crate) fn taken(name: &LockName) -> Box<str> {
    format!("{}:timeout", name.stem()).into()
}

fn mark(name: &LockName, number: std::fmt::Arguments<'_>) -> Box<str> {
    format!("{}:{number}", name.beside("redlatch_permit")).into()
}

fn millis(time: Duration) -> Arg<'static> {
    Arg::Number(i64::try_from(time.as_millis()).unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permits_have_a_key_of_their_own_beside_the_semaphore() {
        let name = |text| LockName::semaphore("", text).unwrap();
        let key = PermitKey::new(name("s"), 2, 10);
        assert_eq!(key.mark(), "redlatch_permit:{s}:000000000000000a");
        let ids = vec![PermitId::fresh(), PermitId::fresh()];
        let key = PermitKey::leased(name("{t}:e"), ids.clone(), None);
        assert_eq!(key.mark(), format!("redlatch_permit:{{t}}:e:{}", ids[0]));
        assert_eq!((key.ids(), key.count), (&ids[..], 2));
        assert_eq!(&*taken(&name("e")), "{e}:timeout");
        assert_eq!(&*taken(&name("{t}:e")), "{t}:e:timeout");
    }

    #[test]
    fn what_was_taken_long_ago_is_not_relied_on_to_be_remembered() {
        let lapsed = |age: Option<Duration>| GiveBack::new(false, age).lapsed;
        assert!(!lapsed(None) && !lapsed(Some(Duration::ZERO)));
        assert!(!lapsed(Some(REMEMBERED - TRIED)) && lapsed(Some(REMEMBERED)));
    }
}
