//! Locks of every kind behind one trait, for the test cases that they share.
#![allow(dead_code, reason = "each test file uses its own part")]

use std::future::Future;
use std::ops::Deref;
use std::time::Duration;

use redlatch::config::ReleaseBy;
use redlatch::{
    Client, DistributedGuard, DistributedLock, Error, FairLock, FencedGuard, FencedLock, Holder,
    Lease, LockGuard, NamedLock, Owner, PlainLock, ReadLock, ReentrantLock, SpinLock, WriteLock,
};
use redlatch_testkit::Server;

use super::support::sha;

/// A lock of one name and any kind.
pub trait Lock: NamedLock + DistributedLock<Guard: Guard> {
    /// Whether an owner that holds the lock may acquire it again.
    const REENTRANT: bool;
    /// Whether the client may run scripts.
    const SCRIPTS: bool = true;
    /// The fields and values of a hash that is not a lock of this kind.
    const FOREIGN: &[&str] = &["mode", "read", "c:1", "1"];

    /// Returns a text that the request which acquires the lock contains. `release` returns that of the request which
    /// releases all levels.
    fn acquire() -> String;
    fn release() -> String;
    /// Starts the server on which the lock is tested.
    fn server() -> Server {
        Server::start()
    }

    fn of(client: &Client, name: &str) -> Self;
}

pub trait Guard: DistributedGuard + Deref<Target = Lease> + std::fmt::Debug {
    fn reenter(&self) -> impl Future<Output = Result<Self, Error>> + Send
    where
        Self: Sized;
    fn detach(self) -> Owner;
}

macro_rules! guard {
    ($guard:ty) => {
        impl Guard for $guard {
            async fn reenter(&self) -> Result<Self, Error> {
                self.reenter().await
            }
            fn detach(self) -> Owner {
                self.detach()
            }
        }
    };
}

guard!(LockGuard);
guard!(FencedGuard);

macro_rules! lock {
    (@make $client:ident, $name:ident, $make:ident) => {
        $client.$make($name)
    };
    (@make $client:ident, $name:ident, $make:ident.$side:ident) => {
        $client.$make($name).$side()
    };
    (
        $lock:ty, $($make:ident).+, $acquire:literal, $release:literal, $reentrant:literal
        $(, $foreign:expr)?
    ) => {
        impl Lock for $lock {
            const REENTRANT: bool = $reentrant;
            $(const FOREIGN: &[&str] = $foreign;)?

            fn acquire() -> String {
                sha($acquire)
            }
            fn release() -> String {
                sha($release)
            }

            fn of(client: &Client, name: &str) -> Self {
                lock!(@make client, name, $($make).+)
            }
        }
    };
}

lock!(
    WriteLock,
    read_write_lock.writer,
    "write_acquire",
    "rw_release",
    true,
    &["c:1", "1"]
);
lock!(
    ReadLock,
    read_write_lock.reader,
    "read_acquire",
    "rw_release",
    true,
    &["c:1", "1"]
);
lock!(ReentrantLock, lock, "lock_acquire", "lock_release", true);
lock!(FairLock, fair_lock, "fair_acquire", "fair_release", true);
lock!(
    FencedLock,
    fenced_lock,
    "fenced_acquire",
    "lock_release",
    true
);
lock!(SpinLock, spin_lock, "lock_acquire", "lock_release", true);
lock!(
    PlainLock,
    plain_lock,
    "plain_acquire",
    "plain_release",
    false
);

/// A plain lock on a server where no user may run a script. If it is `TOLD`, it does not have to find that out.
#[derive(Clone)]
pub struct Scriptless<const TOLD: bool = false>(PlainLock);

/// A plain lock that would use no scripts on any server.
pub type Told = Scriptless<true>;

impl<const TOLD: bool> DistributedLock for Scriptless<TOLD> {
    type Guard = LockGuard;

    async fn lock(&self) -> Result<LockGuard, Error> {
        self.0.lock().await
    }
    async fn try_lock(&self) -> Result<Option<LockGuard>, Error> {
        self.0.try_lock().await
    }
    async fn try_lock_for(&self, wait: Duration) -> Result<Option<LockGuard>, Error> {
        self.0.try_lock_for(wait).await
    }
}

impl<const TOLD: bool> NamedLock for Scriptless<TOLD> {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn lease(self, lease: Duration) -> Self {
        Self(self.0.lease(lease))
    }
    fn owned_by(self, owner: &Owner) -> Self {
        Self(self.0.owned_by(owner))
    }
    async fn unlock(&self) -> Result<(), Error> {
        self.0.unlock().await
    }
    async fn adopt(&self) -> Result<Option<LockGuard>, Error> {
        self.0.adopt().await
    }
    async fn is_locked(&self) -> Result<bool, Error> {
        self.0.is_locked().await
    }
    async fn is_held(&self) -> Result<bool, Error> {
        self.0.is_held().await
    }
    async fn hold_count(&self) -> Result<u64, Error> {
        self.0.hold_count().await
    }
    async fn remaining_lease(&self) -> Result<Option<Duration>, Error> {
        self.0.remaining_lease().await
    }
    async fn holder(&self) -> Result<Option<Holder>, Error> {
        self.0.holder().await
    }
    async fn force_unlock(&self) -> Result<bool, Error> {
        self.0.force_unlock().await
    }
}

impl<const TOLD: bool> Lock for Scriptless<TOLD> {
    const REENTRANT: bool = false;
    const SCRIPTS: bool = false;

    fn acquire() -> String {
        "NX\r\n".to_owned()
    }
    fn release() -> String {
        "EXEC\r\n".to_owned()
    }
    fn server() -> Server {
        let server = Server::start();
        let mut admin = server.connection();
        let done = admin.command(&["ACL", "SETUSER", "default", "-@scripting"]);
        assert_eq!(done, redlatch_testkit::Reply::Status("OK".to_owned()));
        server
    }

    fn of(client: &Client, name: &str) -> Self {
        let lock = client.plain_lock(name);
        Self(match TOLD {
            true => lock.release_by(ReleaseBy::Transaction),
            false => lock,
        })
    }
}
