//! A lock that many owners may read, or one may write.

use std::fmt;
use std::time::Duration;

use super::handle::Handle;
use super::methods::methods;
use crate::error::Error;
use crate::hold::guard::LockGuard;
use crate::options::Prefer;
use crate::owner::Owner;

/// A lock that many owners may hold together for reading, or one owner alone for writing; wire-compatible with
/// Redisson's `RReadWriteLock`.
///
/// Created by [`Client::read_write_lock`](crate::Client::read_write_lock). [`read`](Self::read) and
/// [`write`](Self::write) wait, `try_read` and `try_write` make a single attempt, and `try_read_for` and
/// `try_write_for` wait up to a limit. They return a [`LockGuard`]. [`reader`](Self::reader) and
/// [`writer`](Self::writer) are the two sides as separate locks, with all the methods and queries of a
/// [`ReentrantLock`](crate::ReentrantLock).
///
/// To read and write, call `read` and `write`, as with the `RwLock` of std or tokio. Take a side where one lock is
/// wanted: for a query, for a [`MultiLock`](crate::MultiLock), or for a function that takes a
/// [`DistributedLock`](crate::DistributedLock).
///
/// # When to use it, and when to use another
///
/// Use it where critical sections that only read are long or numerous. Readers do not wait for each other, neither in
/// one process nor across processes, and readers of one process that follow each other closely share one hold on the
/// server, without a request for each. The lock is not passed on in memory to writers. If sections are short, and every
/// fifth of them writes, a [`ReentrantLock`](crate::ReentrantLock) is faster.
///
/// # Guarantee and limit
///
/// No two owners write at the same time, and no owner reads while another one writes, with the limits of a
/// [`ReentrantLock`](crate::ReentrantLock). Both sides are reentrant, up to 1,000 levels per owner.
///
/// - **Downgrade**: an owner that writes may also read, and then release the write guard. From then on it only reads,
///   and waiting readers are let in.
/// - **No upgrade**: an owner that only reads cannot write before it has released its read guards. Two owners that
///   tried would wait for each other without end, so `write` returns [`Refused`](crate::ErrorKind::Refused) at once.
/// - **Order**: [`prefer`](Self::prefer) decides which side goes first when both wait, across processes. The default
///   is the order of arrival, under which neither side starves. A task that reads must not wait for another owner to
///   read the same lock: a writer may be waiting between them, and the three would then wait for each other without
///   end. The task's own nested calls never wait.
/// - **Readers of one process** that want the same lease hold the lock together, under the owner of the first of them.
///   The server counts them once, and lets a writer in when the last of them has released the lock. While others still
///   read, `unlock` relies on the server's last answer if that was asked for at most 10 ms ago; otherwise `unlock` asks
///   the server. `extend` only lengthens a lease that others share. A named owner does not share its hold.
/// - **Crash**: each process that reads has its own lease. A process that dies blocks writers until its lease ends,
///   whatever leases other readers have. A waiter that dies counts as waiting for one more second.
///
/// # Together with Java
///
/// Redisson's readers and writers take turns with these, but do not yield to waiters: a stream of Java's readers
/// starves the writers of this crate as well as its own. It does not starve the readers of this crate: a reader that
/// arrives behind a waiting writer yields to it for one second, and then joins Java's readers that hold the lock.
///
/// When a Java reader renews its lease, it cuts the lease of the whole lock down to its own. With a lease of more than
/// three seconds, each reader here therefore sends a request every second, which restores the lease of the lock. If a
/// Java client whose `lockWatchdogTimeout` is below three seconds crashes, the lock may end with that client's lease
/// before the next request; the guard here is then [lost](crate::Lease::lost).
///
/// # Examples
///
/// ```
/// # redlatch_testkit::doc(async |url| {
/// use redlatch::{Client, ErrorKind};
///
/// let client = Client::connect(url).await?;
/// let catalogue = client.read_write_lock("catalogue");
///
/// let writing = catalogue.write().await?;
/// let reading = catalogue.read().await?; // an owner that writes may also read
/// writing.unlock().await?; // from now on other owners may read, too
///
/// let refused = catalogue.write().await.unwrap_err();
/// assert_eq!(refused.kind(), ErrorKind::Refused);
/// reading.unlock().await?;
/// # Ok::<(), redlatch::Error>(()) });
/// ```
#[doc(alias = "RwLock")]
#[derive(Clone)]
pub struct ReadWriteLock {
    reader: ReadLock,
    writer: WriteLock,
}

/// The side of a [`ReadWriteLock`] that many owners hold together. Returned by [`ReadWriteLock::reader`].
///
/// [`holder`](Self::holder) returns one of the holders, [`remaining_lease`](Self::remaining_lease) returns how long the
/// last of them remains, and [`force_unlock`](Self::force_unlock) ends all their holds.
#[derive(Clone)]
pub struct ReadLock(Handle);

/// The side of a [`ReadWriteLock`] that one owner holds alone. Returned by [`ReadWriteLock::writer`].
///
/// Acquiring it returns [`Refused`](crate::ErrorKind::Refused) if the owner only reads.
#[derive(Clone)]
pub struct WriteLock(Handle);

methods!(ReadLock, LockGuard, "read_write_lock", ".reader()");
methods!(WriteLock, LockGuard, "read_write_lock", ".writer()");

impl fmt::Debug for ReadWriteLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.writer.0.show("ReadWriteLock", f)
    }
}

impl ReadWriteLock {
    pub(crate) fn new(reader: Handle, writer: Handle) -> Self {
        Self {
            reader: ReadLock(reader),
            writer: WriteLock(writer),
        }
    }

    /// Returns the name of the lock, which both sides have; see [`ReentrantLock::name`](crate::ReentrantLock::name).
    ///
    /// # Examples
    ///
    /// ```
    /// # redlatch_testkit::doc(async |url| {
    /// # let client = redlatch::Client::connect(url).await?;
    /// let catalogue = client.read_write_lock("catalogue");
    /// assert_eq!(catalogue.name(), "catalogue");
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
    #[must_use]
    pub fn name(&self) -> &str {
        self.writer.name()
    }

    /// Sets a fixed lease for both sides, from 50 ms to 100 years, which is not renewed; see
    /// [`ReentrantLock::lease`](crate::ReentrantLock::lease).
    ///
    /// # Examples
    ///
    /// ```
    /// # redlatch_testkit::doc(async |url| {
    /// # let client = redlatch::Client::connect(url).await?;
    /// use std::time::Duration;
    ///
    /// let prices = client.read_write_lock("prices").lease(Duration::from_secs(5));
    /// let writing = prices.write().await?; // a writer that hangs stops the readers for five seconds at most
    /// assert!(writing.remaining() <= Duration::from_secs(5));
    /// writing.unlock().await?;
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
    #[must_use = "this makes a new handle and leaves the old one as it is"]
    pub fn lease(self, lease: Duration) -> Self {
        Self {
            reader: self.reader.lease(lease),
            writer: self.writer.lease(lease),
        }
    }

    /// Makes the calls on both sides act for `owner` instead of the current task.
    ///
    /// # Examples
    ///
    /// ```
    /// # redlatch_testkit::doc(async |url| {
    /// # let client = redlatch::Client::connect(url).await?;
    /// use redlatch::Owner;
    ///
    /// let prices = client.read_write_lock("prices");
    /// let import = prices.clone().owned_by(&Owner::named("import-7"));
    /// let writing = import.write().await?;
    /// assert!(prices.try_read().await?.is_none()); // this task is another owner
    /// let reading = import.try_read().await?.expect("an owner that writes may also read");
    /// # reading.unlock().await?;
    /// # writing.unlock().await?;
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
    #[must_use = "this makes a new handle and leaves the old one as it is"]
    pub fn owned_by(self, owner: &Owner) -> Self {
        Self {
            reader: self.reader.owned_by(owner),
            writer: self.writer.owned_by(owner),
        }
    }

    /// Sets who goes first when readers and writers wait, by default in order of arrival.
    ///
    /// If the handles of one lock have different preferences, in one process or several, each call goes by its own: a
    /// reader by whether it lets waiting writers go first, a writer by whether it keeps new readers out. Readers with
    /// different preferences do not share a hold. Within one process, the calls of each side wait in order: if one of
    /// them lets the other side go first, those behind it wait too.
    ///
    /// # Examples
    ///
    /// ```
    /// # redlatch_testkit::doc(async |url| {
    /// # let client = redlatch::Client::connect(url).await?;
    /// use std::time::Duration;
    /// use redlatch::config::Prefer;
    /// use redlatch::Owner;
    ///
    /// let prices = client.read_write_lock("prices").prefer(Prefer::Readers);
    /// let [reader, writer] = [(); 2].map(|()| prices.clone().owned_by(&Owner::unique()));
    /// let reading = prices.read().await?;
    /// let wait = Duration::from_millis(50);
    /// let (written, read) = tokio::join!(writer.try_write_for(wait), reader.try_read());
    /// assert!(written?.is_none());
    /// assert!(read?.is_some()); // although a writer waits
    /// reading.unlock().await?;
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
    #[must_use = "this makes a new handle and leaves the old one as it is"]
    pub fn prefer(mut self, prefer: Prefer) -> Self {
        self.reader.0.prefer(prefer);
        self.writer.0.prefer(prefer);
        self
    }

    /// Returns the shared side as a lock of its own, with queries such as `is_locked` and methods such as `adopt`.
    ///
    /// # Examples
    ///
    /// ```
    /// # redlatch_testkit::doc(async |url| {
    /// # let client = redlatch::Client::connect(url).await?;
    /// let prices = client.read_write_lock("prices");
    /// let reading = prices.read().await?;
    /// // The queries are methods of the sides.
    /// assert!(prices.reader().is_locked().await?);
    /// assert!(!prices.writer().is_locked().await?);
    /// reading.unlock().await?;
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
    #[must_use]
    pub fn reader(&self) -> ReadLock {
        self.reader.clone()
    }

    /// Returns the exclusive side as a lock of its own, with queries such as `is_locked` and methods such as `adopt`.
    ///
    /// # Examples
    ///
    /// ```
    /// # redlatch_testkit::doc(async |url| {
    /// # let client = redlatch::Client::connect(url).await?;
    /// use redlatch::MultiLock;
    ///
    /// let (old, new) = (client.read_write_lock("prices:2025"), client.read_write_lock("prices:2026"));
    /// // A function that takes any lock can be given a side.
    /// let both = MultiLock::new([old.writer(), new.writer()]);
    /// let writing = both.lock().await?;
    /// assert!(new.writer().is_held().await?);
    /// writing.unlock().await?;
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
    #[must_use]
    pub fn writer(&self) -> WriteLock {
        self.writer.clone()
    }

    /// Acquires the lock for reading, together with other readers, waiting until it is available.
    ///
    /// An owner that already reads or writes acquires it at once.
    ///
    /// # Errors
    ///
    /// Same as [`ReentrantLock::lock`](crate::ReentrantLock::lock).
    ///
    /// # Cancel safety
    ///
    /// Same as [`ReentrantLock::lock`](crate::ReentrantLock::lock).
    ///
    /// # Examples
    ///
    /// ```
    /// # redlatch_testkit::doc(async |url| {
    /// # let client = redlatch::Client::connect(url).await?;
    /// # let other = redlatch::Client::connect(url).await?;
    /// let here = client.read_write_lock("prices").read().await?;
    /// // Another process reads at the same time.
    /// let there = other.read_write_lock("prices").read().await?;
    /// assert!(!here.is_lost() && !there.is_lost());
    /// # here.unlock().await?;
    /// # there.unlock().await?;
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
    pub async fn read(&self) -> Result<LockGuard, Error> {
        self.reader.lock().await
    }

    /// Attempts to acquire the lock for reading without waiting. Returns `None` if another owner writes, or if a
    /// waiting writer goes first.
    ///
    /// # Errors
    ///
    /// Same as [`ReentrantLock::try_lock`](crate::ReentrantLock::try_lock).
    ///
    /// # Cancel safety
    ///
    /// Same as [`ReentrantLock::lock`](crate::ReentrantLock::lock).
    ///
    /// # Examples
    ///
    /// ```
    /// # redlatch_testkit::doc(async |url| {
    /// # let client = redlatch::Client::connect(url).await?;
    /// # let other = redlatch::Client::connect(url).await?;
    /// let writing = other.read_write_lock("prices").write().await?; // in another process
    ///
    /// let prices = client.read_write_lock("prices");
    /// let answer = match prices.try_read().await? {
    ///     Some(_reading) => "the prices of today",
    ///     None => "the prices of yesterday", // instead of waiting
    /// };
    /// assert_eq!(answer, "the prices of yesterday");
    /// # writing.unlock().await?;
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
    pub async fn try_read(&self) -> Result<Option<LockGuard>, Error> {
        self.reader.try_lock().await
    }

    /// Attempts to acquire the lock for reading, waiting for at most `wait`. Returns `None` if writers kept the lock
    /// busy until then.
    ///
    /// # Errors
    ///
    /// Same as [`ReentrantLock::try_lock_for`](crate::ReentrantLock::try_lock_for).
    ///
    /// # Cancel safety
    ///
    /// Same as [`ReentrantLock::lock`](crate::ReentrantLock::lock).
    ///
    /// # Examples
    ///
    /// ```
    /// # redlatch_testkit::doc(async |url| {
    /// # let client = redlatch::Client::connect(url).await?;
    /// # let other = redlatch::Client::connect(url).await?;
    /// use std::time::Duration;
    ///
    /// let prices = client.read_write_lock("prices");
    /// let writing = other.read_write_lock("prices").write().await?; // in another process
    /// let (reading, written) =
    ///     tokio::join!(prices.try_read_for(Duration::from_secs(5)), writing.unlock());
    /// assert!(reading?.is_some()); // the writer was done within five seconds
    /// written?;
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
    pub async fn try_read_for(&self, wait: Duration) -> Result<Option<LockGuard>, Error> {
        self.reader.try_lock_for(wait).await
    }

    /// Acquires the lock for writing, waiting until it is available.
    ///
    /// An owner that already writes acquires it again at once.
    ///
    /// # Errors
    ///
    /// [`Refused`](crate::ErrorKind::Refused) at once if this owner reads and does not write; otherwise same as
    /// [`ReentrantLock::lock`](crate::ReentrantLock::lock).
    ///
    /// # Cancel safety
    ///
    /// Same as [`ReentrantLock::lock`](crate::ReentrantLock::lock).
    ///
    /// # Examples
    ///
    /// ```
    /// # redlatch_testkit::doc(async |url| {
    /// # let client = redlatch::Client::connect(url).await?;
    /// # let other = redlatch::Client::connect(url).await?;
    /// let writing = client.read_write_lock("prices").write().await?;
    /// // Nobody reads the prices while only half of them are new.
    /// assert!(other.read_write_lock("prices").try_read().await?.is_none());
    /// writing.unlock().await?;
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
    pub async fn write(&self) -> Result<LockGuard, Error> {
        self.writer.lock().await
    }

    /// Attempts to acquire the lock for writing without waiting. Returns `None` if another owner reads or writes, or if
    /// a waiter goes first.
    ///
    /// # Errors
    ///
    /// [`Refused`](crate::ErrorKind::Refused) if this owner reads and does not write; otherwise same as
    /// [`ReentrantLock::try_lock`](crate::ReentrantLock::try_lock).
    ///
    /// # Cancel safety
    ///
    /// Same as [`ReentrantLock::lock`](crate::ReentrantLock::lock).
    ///
    /// # Examples
    ///
    /// ```
    /// # redlatch_testkit::doc(async |url| {
    /// # let client = redlatch::Client::connect(url).await?;
    /// # let other = redlatch::Client::connect(url).await?;
    /// let reading = other.read_write_lock("cache").read().await?; // in another process
    ///
    /// let cache = client.read_write_lock("cache");
    /// assert!(cache.try_write().await?.is_none()); // the clean-up can wait
    /// reading.unlock().await?;
    /// let writing = cache.try_write().await?.expect("nobody reads any longer");
    /// writing.unlock().await?;
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
    pub async fn try_write(&self) -> Result<Option<LockGuard>, Error> {
        self.writer.try_lock().await
    }

    /// Attempts to acquire the lock for writing, waiting for at most `wait`. Returns `None` if other owners kept the
    /// lock busy until then.
    ///
    /// # Errors
    ///
    /// [`Refused`](crate::ErrorKind::Refused) at once if this owner reads and does not write; otherwise same as
    /// [`ReentrantLock::try_lock_for`](crate::ReentrantLock::try_lock_for).
    ///
    /// # Cancel safety
    ///
    /// Same as [`ReentrantLock::lock`](crate::ReentrantLock::lock).
    ///
    /// # Examples
    ///
    /// ```
    /// # redlatch_testkit::doc(async |url| {
    /// # let client = redlatch::Client::connect(url).await?;
    /// use std::time::Duration;
    /// use redlatch::ErrorKind;
    ///
    /// let prices = client.read_write_lock("prices");
    /// let reading = prices.read().await?;
    /// // This owner would wait for itself: an error, without a wait.
    /// let error = prices.try_write_for(Duration::from_secs(5)).await.unwrap_err();
    /// assert_eq!(error.kind(), ErrorKind::Refused);
    /// reading.unlock().await?;
    /// assert!(prices.try_write_for(Duration::from_secs(5)).await?.is_some());
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
    pub async fn try_write_for(&self, wait: Duration) -> Result<Option<LockGuard>, Error> {
        self.writer.try_lock_for(wait).await
    }
}
