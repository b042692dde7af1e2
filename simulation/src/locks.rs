//! Locks of any kind, and their guards, as the tasks of a simulation use them.

use std::pin::Pin;
use std::time::Duration;

use tokio::time::timeout;

use redlatch::leader::{Election, Term};
use redlatch::{
    Client, DistributedLock, Error, FencedGuard, LockGuard, LossReason, Member, MultiGuard,
    MultiLock, NamedLock, Owner, RedGuard, RedLock,
};

use crate::plan::{Ask, Kind, LONGEST_LEASE, Plan, Section, Shared};

/// Longer than any run lasts.
const TOKENS_LAST: Duration = Duration::from_secs(86_400);

type Boxed<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// A lock of any kind.
pub trait Lock: Send + Sync {
    fn ask(&self, ask: Ask) -> Boxed<'_, Result<Option<Guard>, Error>>;

    /// Runs a future under the lock, waiting for at most so many milliseconds, or without a limit if that is the most.
    /// Returns `false` if the lock stayed busy.
    fn run<'a>(&'a self, wait: u64, work: Boxed<'a, ()>) -> Boxed<'a, Result<bool, Error>>;

    /// The same for work that fails in the end. Returns `true` if that is what the caller is told.
    fn fail<'a>(&'a self, wait: u64, work: Boxed<'a, ()>) -> Boxed<'a, Result<bool, Error>> {
        self.run(wait, work)
    }
}

/// Why something that runs under a lock has no result.
pub enum Failure {
    /// The plan wants it so.
    Wanted,
    Met(Error),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Met(error)
    }
}

impl<L: DistributedLock> Lock for L
where
    Guard: From<L::Guard>,
{
    fn ask(&self, ask: Ask) -> Boxed<'_, Result<Option<Guard>, Error>> {
        match ask {
            Ask::Wait => Box::pin(async { Ok(Some(self.lock().await?.into())) }),
            Ask::Once => Box::pin(async { Ok(self.try_lock().await?.map(Guard::from)) }),
            Ask::For(wait) => Box::pin(async move {
                let wait = Duration::from_millis(wait);
                Ok(self.try_lock_for(wait).await?.map(Guard::from))
            }),
        }
    }

    fn run<'a>(&'a self, wait: u64, work: Boxed<'a, ()>) -> Boxed<'a, Result<bool, Error>> {
        if wait == u64::MAX {
            return Box::pin(async move {
                DistributedLock::run(self, work).await?;
                Ok(true)
            });
        }
        Box::pin(async move {
            let wait = Duration::from_millis(wait);
            let work = async {
                work.await;
                Ok::<_, Error>(())
            };
            Ok(self.try_run_for(wait, work).await?.is_some())
        })
    }

    fn fail<'a>(&'a self, wait: u64, work: Boxed<'a, ()>) -> Boxed<'a, Result<bool, Error>> {
        Box::pin(async move {
            let work = async {
                work.await;
                Err::<(), _>(Failure::Wanted)
            };
            let ran = self.try_run_for(Duration::from_millis(wait), work).await;
            match ran {
                Ok(_) => Ok(false),
                Err(Failure::Wanted) => Ok(true),
                Err(Failure::Met(error)) => Err(error),
            }
        })
    }
}

/// An election, as a lock that whoever leads holds.
struct Elected(Election);

impl Elected {
    /// Campaigns for so long.
    async fn campaign(&self, wait: u64) -> Result<Option<Term>, Error> {
        let campaign = timeout(Duration::from_millis(wait), self.0.campaign());
        campaign.await.ok().transpose()
    }
}

impl Lock for Elected {
    fn ask(&self, ask: Ask) -> Boxed<'_, Result<Option<Guard>, Error>> {
        let wait = match ask {
            Ask::Wait => return Box::pin(async { Ok(Some(self.0.campaign().await?.into())) }),
            Ask::Once => 5,
            Ask::For(wait) => wait,
        };
        Box::pin(async move { Ok(self.campaign(wait).await?.map(Guard::from)) })
    }

    fn run<'a>(&'a self, wait: u64, work: Boxed<'a, ()>) -> Boxed<'a, Result<bool, Error>> {
        Box::pin(async move {
            let Some(term) = self.campaign(wait).await? else {
                return Ok(false);
            };
            term.run_until_lost(work).await?;
            term.step_down().await?;
            Ok(true)
        })
    }
}

/// A lock with one name.
pub trait Named: Lock {
    /// Calls every method that changes nothing. Returns how many levels the owner has.
    fn look(&self) -> Boxed<'_, Result<u64, Error>>;

    fn force(&self) -> Boxed<'_, Result<bool, Error>>;

    fn adopt(&self) -> Boxed<'_, Result<Option<Guard>, Error>>;
}

impl<L: NamedLock> Named for L
where
    Guard: From<L::Guard>,
{
    fn look(&self) -> Boxed<'_, Result<u64, Error>> {
        Box::pin(async {
            self.is_locked().await?;
            self.is_held().await?;
            let levels = self.hold_count().await?;
            self.remaining_lease().await?;
            self.holder().await?;
            Ok(levels)
        })
    }

    fn force(&self) -> Boxed<'_, Result<bool, Error>> {
        Box::pin(self.force_unlock())
    }

    fn adopt(&self) -> Boxed<'_, Result<Option<Guard>, Error>> {
        Box::pin(async { Ok(NamedLock::adopt(self).await?.map(Guard::from)) })
    }
}

/// Returns the lock that a section asks for.
pub fn lock(plan: &Plan, clients: &[Client], section: &Section, owner: &Owner) -> Box<dyn Lock> {
    let at = section.names[0];
    if section.names.len() > 1 {
        let members = section.names.iter().map(|at| {
            let shared = &plan.names[*at];
            let (client, name) = (&clients[shared.client], &shared.name);
            match shared.kind {
                Kind::Fenced => Member::from(with(client.fenced_lock(name), section, owner)),
                Kind::Fair => Member::from(with(client.fair_lock(name), section, owner)),
                _ => Member::from(with(client.lock(name), section, owner)),
            }
        });
        return Box::new(MultiLock::new(members).owned_by(owner));
    }
    if plan.names[at].kind == Kind::Red {
        let members = clients
            .iter()
            .map(|client| with(client.lock(&plan.names[at].name), section, owner));
        let longest = Duration::from_millis(LONGEST_LEASE);
        return Box::new(RedLock::new(members).max_lease(longest).owned_by(owner));
    }
    if plan.names[at].kind == Kind::Leader {
        return Box::new(Elected(election(plan, clients, at)));
    }
    named(plan, clients, section, owner)
}

pub fn election(plan: &Plan, clients: &[Client], at: usize) -> Election {
    let shared = &plan.names[at];
    clients[shared.client].leader(&shared.name)
}

/// Returns the lock with the name that a section asks for.
pub fn named(plan: &Plan, clients: &[Client], section: &Section, owner: &Owner) -> Box<dyn Named> {
    let shared = &plan.names[section.names[0]];
    let (client, name) = (&clients[shared.client], &shared.name);
    match (shared.kind, section.reads) {
        (Kind::Fair, _) => Box::new(with(client.fair_lock(name), section, owner)),
        // An owner may take it again by a handle with other settings.
        (Kind::Fenced, _) if section.levels > 1 => {
            let lock = client.fenced_lock(name).token_ttl(TOKENS_LAST);
            Box::new(with(lock, section, owner))
        }
        (Kind::Fenced, _) => Box::new(with(client.fenced_lock(name), section, owner)),
        (Kind::Plain, _) => Box::new(with(client.plain_lock(name), section, owner)),
        (Kind::Spin, _) => Box::new(with(client.spin_lock(name), section, owner)),
        (Kind::ReadWrite, true) => {
            Box::new(with(client.read_write_lock(name).reader(), section, owner))
        }
        (Kind::ReadWrite, false) => {
            Box::new(with(client.read_write_lock(name).writer(), section, owner))
        }
        _ => Box::new(with(client.lock(name), section, owner)),
    }
}

/// Returns the lock with a name, for whoever acts.
pub fn unowned(client: &Client, shared: &Shared, reads: bool) -> Box<dyn Named> {
    let name = &shared.name;
    match (shared.kind, reads) {
        (Kind::Fair, _) => Box::new(client.fair_lock(name)),
        (Kind::Fenced, _) => Box::new(client.fenced_lock(name)),
        (Kind::ReadWrite, true) => Box::new(client.read_write_lock(name).reader()),
        (Kind::ReadWrite, false) => Box::new(client.read_write_lock(name).writer()),
        _ => Box::new(client.lock(name)),
    }
}

fn with<L: NamedLock>(lock: L, section: &Section, owner: &Owner) -> L {
    let lock = lock.owned_by(owner);
    match section.lease {
        Some(lease) => lock.lease(Duration::from_millis(lease)),
        None => lock,
    }
}

pub enum Guard {
    Lock(LockGuard),
    Fenced(FencedGuard),
    Multi(MultiGuard),
    Red(RedGuard),
    Term(Term),
}

macro_rules! any {
    ($guard:expr, $it:ident => $done:expr) => {
        match $guard {
            Guard::Lock($it) => $done,
            Guard::Fenced($it) => $done,
            Guard::Multi($it) => $done,
            Guard::Red($it) => $done,
            Guard::Term($it) => $done,
        }
    };
}

macro_rules! from {
    ($($guard:ident => $variant:ident),+) => {$(
        impl From<$guard> for Guard {
            fn from(guard: $guard) -> Self {
                Self::$variant(guard)
            }
        }
    )+};
}

from!(LockGuard => Lock, FencedGuard => Fenced, MultiGuard => Multi, RedGuard => Red, Term => Term);

impl Guard {
    pub async fn unlock(self) -> Result<(), Error> {
        match self {
            Self::Lock(guard) => guard.unlock().await,
            Self::Fenced(guard) => guard.unlock().await,
            Self::Multi(guard) => guard.unlock().await,
            Self::Red(guard) => guard.unlock().await,
            Self::Term(term) => term.step_down().await,
        }
    }

    pub async fn lost(&self) -> LossReason {
        any!(self, guard => guard.lost().await)
    }

    pub fn is_lost(&self) -> bool {
        any!(self, guard => guard.is_lost())
    }

    /// Returns how long the lock is still held, in milliseconds.
    pub fn remaining(&self) -> u64 {
        any!(self, guard => guard.remaining().as_millis() as u64)
    }

    pub async fn extend(&self, lease: u64) -> Result<(), Error> {
        any!(self, guard => guard.extend(Duration::from_millis(lease)).await)
    }

    pub async fn verify(&self) -> Result<(), Error> {
        any!(self, guard => guard.verify().await)
    }

    pub fn token(&self) -> Option<u64> {
        match self {
            Self::Fenced(guard) => Some(guard.token().get()),
            Self::Term(term) => Some(term.token().get()),
            _ => None,
        }
    }

    /// Leaves the level to its owner, if that is possible.
    pub fn detach(self) -> Result<Owner, Self> {
        match self {
            Self::Lock(guard) => Ok(guard.detach()),
            Self::Fenced(guard) => Ok(guard.detach()),
            other => Err(other),
        }
    }
}
