//! The handles to locks, semaphores, latches, elections and jobs that a client creates.

use std::sync::Arc;
use std::time::Duration;

use super::Client;
use crate::counter::Counter;
use crate::error::Error;
use crate::job::Job;
use crate::latch::Latch;
use crate::leader::election::Election;
use crate::lock::fair::FairLock;
use crate::lock::fenced::FencedLock;
use crate::lock::handle::{Handle, Target};
use crate::lock::plain::PlainLock;
use crate::lock::read_write::ReadWriteLock;
use crate::lock::reentrant::ReentrantLock;
use crate::lock::spin::SpinLock;
use crate::name::LockName;
use crate::options::{Prefer, ReleaseBy};
use crate::protocol::hold_key::{Fencing, Kind, ReadWrite, ServerQueue};
use crate::semaphore::counted::Semaphore;
use crate::semaphore::expirable::ExpirableSemaphore;
use crate::semaphore::pool::{Leases, Pool};

impl Client {
    /// Returns a handle to the reentrant lock with this name. Does no I/O.
    ///
    /// A name is any text of 1 to 1,024 bytes, including the prefix; with any other name, every method of the handle
    /// that talks to the server returns [`InvalidInput`](crate::ErrorKind::InvalidInput). Kinds that have keys next to
    /// the lock's own (fenced, fair, read-write and the expirable semaphore) also refuse a name that consists only of
    /// one pair of braces and its content: in Redisson's scheme, `{k}` would share those keys with `k`. The names `k`,
    /// `{k}:x` and `x:{k}` are accepted.
    ///
    /// # Examples
    ///
    /// ```
    /// # redlatch_testkit::doc(async |url| {
    /// # let client = redlatch::Client::connect(url).await?;
    /// use redlatch::Owner;
    ///
    /// let lock = client.lock("orders:42");
    /// let guard = lock.lock().await?;
    /// // Another handle to the same lock, for another owner:
    /// let other = client.lock("orders:42").owned_by(&Owner::unique());
    /// assert!(other.try_lock().await?.is_none());
    /// guard.unlock().await?;
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
    #[doc(alias("mutex", "reentrant_lock"))]
    #[must_use]
    pub fn lock(&self, name: impl AsRef<str>) -> ReentrantLock {
        ReentrantLock(self.handle(name.as_ref(), |_| Kind::Reentrant))
    }

    /// Returns a handle to the fenced lock with this name, which must not be one pair of braces; see
    /// [`lock`](Self::lock). Does no I/O.
    ///
    /// # Examples
    ///
    /// ```
    /// # redlatch_testkit::doc(async |url| {
    /// # let client = redlatch::Client::connect(url).await?;
    /// let lock = client.fenced_lock("orders:42");
    /// let guard = lock.lock().await?;
    /// let stale = guard.token();
    /// guard.unlock().await?;
    ///
    /// let guard = lock.lock().await?;
    /// assert!(guard.token() > stale); // a store that has seen this token refuses the stale one
    /// guard.unlock().await?;
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
    #[must_use]
    pub fn fenced_lock(&self, name: impl AsRef<str>) -> FencedLock {
        FencedLock(self.fenced(name.as_ref()))
    }

    /// Returns a handle to the fair lock with this name, which must not be one pair of braces; see
    /// [`lock`](Self::lock). Does no I/O.
    ///
    /// # Examples
    ///
    /// ```
    /// # redlatch_testkit::doc(async |url| {
    /// # let client = redlatch::Client::connect(url).await?;
    /// use std::time::Duration;
    ///
    /// let desk = client.fair_lock("ticket-desk");
    /// // The caller that came first is served first, in any process.
    /// if let Some(guard) = desk.try_lock_for(Duration::from_secs(2)).await? {
    ///     guard.unlock().await?;
    /// }
    /// assert!(!desk.is_locked().await?);
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
    #[must_use]
    pub fn fair_lock(&self, name: impl AsRef<str>) -> FairLock {
        let worth = self.client.settings.fair_wait_timeout;
        FairLock::new(self.handle(name.as_ref(), |name| {
            Kind::Fair(Arc::new(ServerQueue::new(name, worth)))
        }))
    }

    /// Returns a handle to the read-write lock with this name, which must not be one pair of braces; see
    /// [`lock`](Self::lock). Does no I/O.
    ///
    /// # Examples
    ///
    /// ```
    /// # redlatch_testkit::doc(async |url| {
    /// # let client = redlatch::Client::connect(url).await?;
    /// use redlatch::Owner;
    ///
    /// let prices = client.read_write_lock("prices");
    /// let [reader, writer] = [(); 2].map(|()| prices.clone().owned_by(&Owner::unique()));
    ///
    /// let reading = prices.read().await?;
    /// assert!(reader.try_read().await?.is_some()); // readers do not exclude each other
    /// assert!(writer.try_write().await?.is_none());
    /// reading.unlock().await?;
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
    #[doc(alias("rw_lock", "rwlock"))]
    #[must_use]
    pub fn read_write_lock(&self, name: impl AsRef<str>) -> ReadWriteLock {
        let target = self.name(name.as_ref(), LockName::read_write);
        let sides = target.map(|name| {
            let sides = ReadWrite::new(&name, Prefer::default());
            (Arc::new(sides), name)
        });
        let side = |kind: fn(Arc<ReadWrite>) -> Kind| {
            let target = sides
                .clone()
                .and_then(|(sides, name)| Target::new(name, kind(sides)));
            Handle::new(self.client.clone(), target, self.watchdog_lease)
        };
        ReadWriteLock::new(side(Kind::Read), side(Kind::Write))
    }

    /// Returns a handle to the spin lock with this name. Does no I/O.
    ///
    /// # Examples
    ///
    /// ```
    /// # redlatch_testkit::doc(async |url| {
    /// # let client = redlatch::Client::connect(url).await?;
    /// # let other = redlatch::Client::connect(url).await?;
    /// // Through a proxy that does not pass messages on:
    /// let guard = client.spin_lock("cache-refresh").lock().await?;
    /// // A client that needs no proxy can use the reentrant lock of the same name, which has messages:
    /// assert!(other.lock("cache-refresh").try_lock().await?.is_none());
    /// guard.unlock().await?;
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
    #[must_use]
    pub fn spin_lock(&self, name: impl AsRef<str>) -> SpinLock {
        SpinLock::new(self.handle(name.as_ref(), |_| Kind::Spin))
    }

    /// Returns a handle to the plain lock with this name. Does no I/O.
    ///
    /// # Examples
    ///
    /// ```
    /// # redlatch_testkit::doc(async |url| {
    /// # let client = redlatch::Client::connect(url).await?;
    /// use redlatch::Owner;
    ///
    /// // The key that redis-py's Lock("stock-import") sets, here with a value that others can read.
    /// let lock = client.plain_lock("stock-import").owned_by(&Owner::named("importer-7"));
    /// let guard = lock.lock().await?;
    /// let holder = lock.holder().await?.unwrap();
    /// assert_eq!(holder.owner(), "importer-7");
    /// guard.unlock().await?;
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
    #[must_use]
    pub fn plain_lock(&self, name: impl AsRef<str>) -> PlainLock {
        PlainLock::new(self.handle(name.as_ref(), |_| Kind::Plain(ReleaseBy::Auto)))
    }

    /// Returns a handle to the semaphore with this name. Does no I/O.
    ///
    /// # Examples
    ///
    /// ```
    /// # redlatch_testkit::doc(async |url| {
    /// # let client = redlatch::Client::connect(url).await?;
    /// let calls = client.semaphore("payment-api");
    /// calls.try_set_permits(2).await?;
    /// let (first, second) = (calls.acquire().await?, calls.acquire().await?);
    /// assert!(calls.try_acquire().await?.is_none()); // two calls at a time, in all processes together
    /// first.release().await?;
    /// second.release().await?;
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
    #[must_use]
    pub fn semaphore(&self, name: impl AsRef<str>) -> Semaphore {
        Semaphore(self.pool(name.as_ref(), Leases::None))
    }

    /// Returns a handle to the semaphore with this name whose permits have a lease. The name must not be one pair of
    /// braces; see [`lock`](Self::lock). Does no I/O.
    ///
    /// # Examples
    ///
    /// ```
    /// # redlatch_testkit::doc(async |url| {
    /// # let client = redlatch::Client::connect(url).await?;
    /// use std::time::Duration;
    ///
    /// let gpus = client.expirable_semaphore("gpus").lease(Duration::from_secs(30));
    /// gpus.try_set_permits(2).await?;
    /// let gpu = gpus.acquire().await?; // comes back by itself if this process crashes
    /// gpu.extend(Duration::from_secs(90)).await?; // the job takes longer than expected
    /// gpu.release().await?;
    /// assert_eq!(gpus.available_permits().await?, 2);
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
    #[doc(alias = "permit_expirable_semaphore")]
    #[must_use]
    pub fn expirable_semaphore(&self, name: impl AsRef<str>) -> ExpirableSemaphore {
        ExpirableSemaphore(self.pool(name.as_ref(), Leases::Of(None)))
    }

    /// Returns a handle to the count-down latch with this name. Does no I/O.
    ///
    /// # Examples
    ///
    /// ```
    /// # redlatch_testkit::doc(async |url| {
    /// # let client = redlatch::Client::connect(url).await?;
    /// use std::time::Duration;
    ///
    /// let migrated = client.latch("schema-migrated");
    /// migrated.try_set_count(1).await?;
    /// assert!(!migrated.wait_for(Duration::ZERO).await?); // the services wait for this
    /// migrated.count_down().await?; // the migration is done
    /// migrated.wait().await?;
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
    #[doc(alias("count_down_latch", "barrier"))]
    #[must_use]
    pub fn latch(&self, name: impl AsRef<str>) -> Latch {
        let name = self.name(name.as_ref(), LockName::latch);
        Latch(Counter::new(self.client.clone(), name))
    }

    /// Returns a handle to the election with this name, by which one of several processes leads the others. The name
    /// must not be one pair of braces; see [`lock`](Self::lock). Does no I/O.
    ///
    /// # Examples
    ///
    /// ```
    /// # redlatch_testkit::doc(async |url| {
    /// # let client = redlatch::Client::connect(url).await?;
    /// # async fn schedule() {}
    /// let election = client.leader("scheduler");
    /// // Runs while this process leads; begins again whenever it leads again.
    /// election.lead(async |_term| schedule().await).await?;
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
    #[doc(alias = "election")]
    #[must_use]
    pub fn leader(&self, name: impl AsRef<str>) -> Election {
        Election::new(self.fenced(name.as_ref()))
    }

    /// Returns a handle to the job with this name, which runs on one of several processes, and not again `within` this
    /// time of its start. The name must not be one pair of braces; see [`lock`](Self::lock). Does no I/O.
    ///
    /// # Examples
    ///
    /// ```
    /// # redlatch_testkit::doc(async |url| {
    /// # let client = redlatch::Client::connect(url).await?;
    /// use std::time::Duration;
    /// use redlatch::Error;
    ///
    /// // Started by a timer in each process, once a day, at about the same time.
    /// let nightly = client.job("nightly", Duration::from_secs(12 * 60 * 60));
    /// let pages = nightly.execute(async |_| Ok::<_, Error>(12)).await?;
    /// assert_eq!(pages, Some(12)); // this process ran it
    /// assert_eq!(nightly.execute(async |_| Ok::<_, Error>(12)).await?, None); // it has run
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
    #[doc(alias("run_once", "cron", "scheduled"))]
    #[must_use]
    pub fn job(&self, name: impl AsRef<str>, within: Duration) -> Job {
        Job::new(self.fenced(name.as_ref()), within)
    }

    fn pool(&self, name: &str, leases: Leases) -> Pool {
        let name = self.name(name, LockName::semaphore).and_then(|name| {
            if let Leases::Of(_) = leases {
                name.ensure_own_keys()?;
            }
            Ok(name)
        });
        Pool {
            counter: Counter::new(self.client.clone(), name),
            leases,
        }
    }

    fn fenced(&self, name: &str) -> Handle {
        self.handle(name, |name| {
            Kind::Fenced(Arc::new(Fencing {
                key: name.beside("redisson_lock_token").into(),
                ttl: None,
            }))
        })
    }

    fn handle(&self, name: &str, kind: impl FnOnce(&LockName) -> Kind) -> Handle {
        let target = self.name(name, LockName::new).and_then(|name| {
            let kind = kind(&name);
            Target::new(name, kind)
        });
        Handle::new(self.client.clone(), target, self.watchdog_lease)
    }

    fn name(
        &self,
        name: &str,
        make: fn(&str, &str) -> Result<LockName, Error>,
    ) -> Result<LockName, Error> {
        let name = make(self.prefix.as_ref().map_err(Clone::clone)?, name)?;
        self.client.ensure_placed(&name)?;
        Ok(name)
    }
}
