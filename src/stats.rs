//! What a client has done and has, in numbers.

use std::time::Duration;

/// What a client has done since it was connected, and what it has now. A snapshot, returned by
/// [`Client::stats`](crate::Client::stats).
///
/// All clones of a client are counted together, scoped ones too. Counts begin at zero when the client is connected and
/// never go down; to measure a span of time, subtract an earlier snapshot. What is called *now* is the state when the
/// snapshot was taken: it returns to zero once nothing is held and nobody waits, also when the client was closed. The
/// numbers of one snapshot are read one after the other, while calls go on, so they may differ by calls that were on
/// their way.
///
/// To count costs a few atomic additions for each call, and no request. Another way to the same numbers, with
/// histograms, is the feature `metrics`.
///
/// # Examples
///
/// ```
/// # redlatch_testkit::doc(async |url| {
/// # let client = redlatch::Client::connect(url).await?;
/// let guard = client.lock("orders:42").lock().await?;
/// let again = guard.reenter().await?;
/// let stats = client.stats();
/// assert_eq!(stats.reentrant.held, 1); // one owner, two levels
/// assert_eq!(stats.reentrant.granted, 2);
/// assert_eq!(stats.reentrant.reentered, 1);
/// assert_eq!(stats.lost.total(), 0);
///
/// again.unlock().await?;
/// guard.unlock().await?;
/// for (kind, numbers) in client.stats().kinds() {
///     println!("{kind}: {} granted, {} held, {} waiting", numbers.granted, numbers.held, numbers.waiting);
/// }
/// # Ok::<(), redlatch::Error>(()) });
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Stats {
    /// Of each [`ReentrantLock`](crate::ReentrantLock).
    pub reentrant: KindStats,
    /// Of each [`SpinLock`](crate::SpinLock).
    pub spin: KindStats,
    /// Of each [`FencedLock`](crate::FencedLock). Elections and jobs that run once are held by such locks, and count
    /// here.
    pub fenced: KindStats,
    /// Of each [`FairLock`](crate::FairLock).
    pub fair: KindStats,
    /// Of each [`PlainLock`](crate::PlainLock).
    pub plain: KindStats,
    /// Of each [`ReadLock`](crate::ReadLock).
    pub read: KindStats,
    /// Of each [`WriteLock`](crate::WriteLock).
    pub write: KindStats,
    /// The calls of each [`RedLock`](crate::RedLock), with the client of its first member. What it holds counts as
    /// held with the kind and the client of each member.
    pub red: KindStats,
    /// Of each [`Semaphore`](crate::Semaphore): calls are counted, and permits are held.
    pub semaphore: KindStats,
    /// Of each [`ExpirableSemaphore`](crate::ExpirableSemaphore): calls are counted, and permits are held.
    pub expirable_semaphore: KindStats,
    /// The waits for each [`Latch`](crate::Latch): granted once it is open. Nothing is held.
    pub latch: KindStats,
    /// The holds that were lost.
    pub lost: LossStats,
    /// What the watchdog did.
    pub renewals: RenewalStats,
    /// The connections for commands.
    pub connections: ConnectionStats,
    /// What went over these connections.
    pub traffic: TrafficStats,
    /// How many messages of releases have arrived, on the connections for messages.
    pub messages: u64,
}

/// The numbers of one kind of lock, semaphore or latch.
///
/// A call is counted from its first poll until it ends, once, however often it asks the server: as `waiting` until then,
/// and by its outcome after that. The members of a [`MultiLock`](crate::MultiLock) are counted as one call each, by
/// their own kinds; all of them end as the call for the set does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct KindStats {
    /// How many are held now: owners that hold a lock, however many levels each of them has, or permits. What was left
    /// to its owner by [`detach`](crate::LockGuard::detach) counts until its lease ends. A permit with a lease counts until it is
    /// given back or dropped, also if its lease has ended.
    pub held: u64,
    /// How many calls are under way now, those included whose first request was sent and not answered.
    pub waiting: u64,
    /// Calls that were granted what they asked for.
    pub granted: u64,
    /// Calls among `granted` that were served in memory: another owner of this process passed the lock on, or had it
    /// for reading too.
    pub handed_over: u64,
    /// Calls among `granted` by an owner that held the lock already.
    pub reentered: u64,
    /// Calls that made a single attempt, `try_lock` for example, and found it busy.
    pub busy: u64,
    /// Calls that waited up to their limit in vain: `try_lock_for`, or a spin lock after its last attempt.
    pub timed_out: u64,
    /// Calls that returned an error.
    pub failed: u64,
    /// Calls whose future was dropped before it was ready.
    pub cancelled: u64,
}

/// The holds that were lost while somebody relied on them, by the reason. Each is counted once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct LossStats {
    /// The server no longer had them: their keys expired, or were deleted.
    pub gone: u64,
    /// No renewal was confirmed before their leases ended, or they had fixed leases, and those ended.
    pub expired: u64,
    /// The lock was granted to another owner of this process meanwhile.
    pub displaced: u64,
    /// A call released the lock by force, in this process or in another one that told it.
    pub forced: u64,
    /// The client was closed, or its runtime ended.
    pub closed: u64,
}

/// What the watchdog did to renew leases.
///
/// One request renews up to 100 holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct RenewalStats {
    /// How many requests were sent.
    pub requests: u64,
    /// How many holds they renewed.
    pub renewed: u64,
    /// How many holds they found gone.
    pub gone: u64,
    /// How many holds were not renewed since the request for them failed or was not answered in time. Each is tried
    /// again before its lease ends.
    pub failed: u64,
    /// The longest that a renewal was sent later than it was due. If this comes near a third of a lease, the runtime
    /// is too busy to keep its locks.
    pub worst_lag: Duration,
}

/// The connections for commands: one to each server that is in use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct ConnectionStats {
    /// How many are open now.
    pub open: u64,
    /// How often one was made again after it broke.
    pub reconnects: u64,
}

/// What went over the connections for commands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct TrafficStats {
    /// Requests that were given to a connection. A request that is repeated counts each time.
    pub requests: u64,
    /// The bytes of these requests, before any encryption.
    pub bytes_sent: u64,
    /// The bytes of all replies, after any decryption.
    pub bytes_received: u64,
}

impl Stats {
    /// Returns the numbers of each kind with its name, which is the value of the label `kind` in the feature `metrics`.
    ///
    /// # Examples
    ///
    /// ```
    /// # redlatch_testkit::doc(async |url| {
    /// # let client = redlatch::Client::connect(url).await?;
    /// client.fair_lock("printer").lock().await?.unlock().await?;
    /// let stats = client.stats();
    /// let (kind, _) = stats.kinds().find(|(_, numbers)| numbers.granted > 0).unwrap();
    /// assert_eq!(kind, "fair");
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
    pub fn kinds(&self) -> impl Iterator<Item = (&'static str, KindStats)> {
        Counted::ALL
            .map(|kind| (kind.name(), *self.of(kind)))
            .into_iter()
    }

    /// Returns the sums over all kinds.
    ///
    /// # Examples
    ///
    /// ```
    /// # redlatch_testkit::doc(async |url| {
    /// # let client = redlatch::Client::connect(url).await?;
    /// let lock = client.lock("orders:42").lock().await?;
    /// let permit = client.fair_lock("printer").lock().await?;
    /// assert_eq!(client.stats().total().held, 2);
    /// # drop((lock, permit));
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
    #[must_use]
    pub fn total(&self) -> KindStats {
        self.kinds()
            .fold(KindStats::default(), |sum, (_, kind)| KindStats {
                held: sum.held + kind.held,
                waiting: sum.waiting + kind.waiting,
                granted: sum.granted + kind.granted,
                handed_over: sum.handed_over + kind.handed_over,
                reentered: sum.reentered + kind.reentered,
                busy: sum.busy + kind.busy,
                timed_out: sum.timed_out + kind.timed_out,
                failed: sum.failed + kind.failed,
                cancelled: sum.cancelled + kind.cancelled,
            })
    }

    fn of(&self, kind: Counted) -> &KindStats {
        match kind {
            Counted::Reentrant => &self.reentrant,
            Counted::Spin => &self.spin,
            Counted::Fenced => &self.fenced,
            Counted::Fair => &self.fair,
            Counted::Plain => &self.plain,
            Counted::Read => &self.read,
            Counted::Write => &self.write,
            Counted::Red => &self.red,
            Counted::Semaphore => &self.semaphore,
            Counted::ExpirableSemaphore => &self.expirable_semaphore,
            Counted::Latch => &self.latch,
        }
    }
}

impl LossStats {
    /// Returns how many holds were lost for any reason.
    ///
    /// # Examples
    ///
    /// ```
    /// # redlatch_testkit::doc(async |url| {
    /// # let client = redlatch::Client::connect(url).await?;
    /// let lock = client.lock("orders:42");
    /// let guard = lock.lock().await?;
    /// lock.force_unlock().await?;
    /// assert!(guard.is_lost());
    /// assert_eq!(client.stats().lost.total(), 1);
    /// assert_eq!(client.stats().lost.forced, 1);
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
    #[must_use]
    pub fn total(&self) -> u64 {
        self.gone + self.expired + self.displaced + self.forced + self.closed
    }
}

/// The kinds that are counted apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Counted {
    Reentrant,
    Spin,
    Fenced,
    Fair,
    Plain,
    Read,
    Write,
    Red,
    Semaphore,
    ExpirableSemaphore,
    Latch,
}

impl Counted {
    /// In the order of their numbers.
    pub(crate) const ALL: [Self; 11] = [
        Self::Reentrant,
        Self::Spin,
        Self::Fenced,
        Self::Fair,
        Self::Plain,
        Self::Read,
        Self::Write,
        Self::Red,
        Self::Semaphore,
        Self::ExpirableSemaphore,
        Self::Latch,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Reentrant => "reentrant",
            Self::Spin => "spin",
            Self::Fenced => "fenced",
            Self::Fair => "fair",
            Self::Plain => "plain",
            Self::Read => "read",
            Self::Write => "write",
            Self::Red => "red",
            Self::Semaphore => "semaphore",
            Self::ExpirableSemaphore => "expirable_semaphore",
            Self::Latch => "latch",
        }
    }
}
