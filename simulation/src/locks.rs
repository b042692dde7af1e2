//! Locks of any kind, and their guards, as the tasks of a simulation use them.

use std::time::Duration;

use redlatch::{
    Client, DistributedLock, Error, FairLock, FencedGuard, FencedLock, LockGuard, LossReason,
    Member, MultiGuard, MultiLock, NamedLock, Owner, PlainLock, ReadLock, RedGuard, RedLock,
    ReentrantLock, SpinLock, WriteLock,
};

use crate::plan::{Ask, Kind, LONGEST_LEASE, Plan, Section};

pub enum Lock {
    Reentrant(ReentrantLock),
    Fair(FairLock),
    Fenced(FencedLock),
    Plain(PlainLock),
    Spin(SpinLock),
    Read(ReadLock),
    Write(WriteLock),
    Multi(MultiLock),
    Red(RedLock),
}

macro_rules! each {
    ($lock:expr, $it:ident => $done:expr, else $else:expr) => {
        match $lock {
            Lock::Reentrant($it) => $done,
            Lock::Fair($it) => $done,
            Lock::Fenced($it) => $done,
            Lock::Plain($it) => $done,
            Lock::Spin($it) => $done,
            Lock::Read($it) => $done,
            Lock::Write($it) => $done,
            Lock::Multi($it) => $else($it),
            Lock::Red($it) => $else($it),
        }
    };
}

impl Lock {
    /// Returns the lock that a section asks for.
    pub fn of(plan: &Plan, clients: &[Client], section: &Section, owner: &Owner) -> Self {
        if section.names.len() > 1 {
            let members = section.names.iter().map(|at| {
                match Self::named(plan, clients, *at, section, owner) {
                    Self::Fenced(lock) => Member::from(lock),
                    Self::Fair(lock) => Member::from(lock),
                    Self::Reentrant(lock) => Member::from(lock),
                    _ => unreachable!("sets are of these kinds"),
                }
            });
            return Self::Multi(MultiLock::new(members).owned_by(owner));
        }
        Self::named(plan, clients, section.names[0], section, owner)
    }

    fn named(plan: &Plan, clients: &[Client], at: usize, section: &Section, owner: &Owner) -> Self {
        let shared = &plan.names[at];
        let (client, name) = (&clients[shared.server], &shared.name);
        let lease = section.lease.map(Duration::from_millis);
        fn with<L: NamedLock>(lock: L, lease: Option<Duration>, owner: &Owner) -> L {
            let lock = lock.owned_by(owner);
            match lease {
                Some(lease) => lock.lease(lease),
                None => lock,
            }
        }
        match (shared.kind, section.reads) {
            (Kind::Fair, _) => Self::Fair(with(client.fair_lock(name), lease, owner)),
            (Kind::Fenced, _) => Self::Fenced(with(client.fenced_lock(name), lease, owner)),
            (Kind::Plain, _) => Self::Plain(with(client.plain_lock(name), lease, owner)),
            (Kind::Spin, _) => Self::Spin(with(client.spin_lock(name), lease, owner)),
            (Kind::ReadWrite, true) => {
                Self::Read(with(client.read_write_lock(name).reader(), lease, owner))
            }
            (Kind::ReadWrite, false) => {
                Self::Write(with(client.read_write_lock(name).writer(), lease, owner))
            }
            (Kind::Red, _) => {
                let of = |client: &Client| with(client.lock(name), lease, owner);
                let longest = Duration::from_millis(LONGEST_LEASE);
                let lock = RedLock::new(clients.iter().map(of)).max_lease(longest);
                Self::Red(lock.owned_by(owner))
            }
            _ => Self::Reentrant(with(client.lock(name), lease, owner)),
        }
    }

    pub async fn ask(&self, ask: Ask) -> Result<Option<Guard>, Error> {
        async fn of<L: DistributedLock>(lock: &L, ask: Ask) -> Result<Option<Guard>, Error>
        where
            Guard: From<L::Guard>,
        {
            Ok(match ask {
                Ask::Wait => Some(lock.lock().await?.into()),
                Ask::Once => lock.try_lock().await?.map(Guard::from),
                Ask::For(wait) => {
                    let wait = Duration::from_millis(wait);
                    lock.try_lock_for(wait).await?.map(Guard::from)
                }
            })
        }
        match self {
            Self::Multi(lock) => of(lock, ask).await,
            Self::Red(lock) => of(lock, ask).await,
            named => each!(named, lock => of(lock, ask).await, else |_| Ok(None)),
        }
    }

    pub async fn run(
        &self,
        wait: u64,
        work: impl Future<Output = ()> + Send,
    ) -> Result<bool, Error> {
        let wait = Duration::from_millis(wait);
        let work = async {
            work.await;
            Ok::<_, Error>(())
        };
        let ran = match self {
            Self::Multi(lock) => lock.try_run_for(wait, work).await?,
            Self::Red(lock) => lock.try_run_for(wait, work).await?,
            named => each!(named, lock => lock.try_run_for(wait, work).await?, else |_| None),
        };
        Ok(ran.is_some())
    }

    /// Asks all that can be asked without changing anything.
    pub async fn look(&self) -> Result<(), Error> {
        async fn of(lock: &impl NamedLock) -> Result<(), Error> {
            lock.is_locked().await?;
            lock.is_held().await?;
            lock.hold_count().await?;
            lock.remaining_lease().await?;
            lock.holder().await.map(drop)
        }
        each!(self, lock => of(lock).await, else |_| Ok(()))
    }

    pub async fn force(&self) -> Result<bool, Error> {
        each!(self, lock => lock.force_unlock().await, else |_| Ok(false))
    }

    pub async fn adopt(&self) -> Result<Option<Guard>, Error> {
        each!(self, lock => Ok(lock.adopt().await?.map(Guard::from)), else |_| Ok(None))
    }
}

pub enum Guard {
    Lock(LockGuard),
    Fenced(FencedGuard),
    Multi(MultiGuard),
    Red(RedGuard),
}

macro_rules! any {
    ($guard:expr, $it:ident => $done:expr) => {
        match $guard {
            Guard::Lock($it) => $done,
            Guard::Fenced($it) => $done,
            Guard::Multi($it) => $done,
            Guard::Red($it) => $done,
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

from!(LockGuard => Lock, FencedGuard => Fenced, MultiGuard => Multi, RedGuard => Red);

impl Guard {
    pub async fn unlock(self) -> Result<(), Error> {
        any!(self, guard => guard.unlock().await)
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
