//! A lock that many may read, or one may write.

use std::time::Duration;

use super::handle::Handle;
use super::verbs::verbs;
use crate::error::Error;
use crate::hold::guard::LockGuard;
use crate::owner::Owner;

/// A lock that many owners read together, or one writes alone: on the wire Redisson's `RReadWriteLock`.
///
/// Made by [`Client::read_write_lock`](crate::Client::read_write_lock). [`read`](Self::read) and [`write`](Self::write)
/// wait, `try_read` and `try_write` try once, `try_read_for` and `try_write_for` wait at most so long; what they give
/// is a [`LockGuard`]. [`reader`](Self::reader) and [`writer`](Self::writer) are the two sides as locks of their own,
/// with all the verbs and queries of a [`ReentrantLock`](crate::ReentrantLock).
///
/// # When to use it, and when another
///
/// Where sections that only look are long or many: readers do not wait for each other, neither in one process nor
/// across processes, and readers of one process that follow each other closely share one hold on the server, without a
/// request for each. Writers of one process are not handed the lock in memory: with short sections and every fifth one a
/// write, a [`ReentrantLock`](crate::ReentrantLock) is faster.
///
/// # Guarantee and limit
///
/// No two owners write at the same time, and nobody reads while somebody else writes, with the limits that
/// [`ReentrantLock`](crate::ReentrantLock) names. Both sides are reentrant, 1,000 levels an owner.
///
/// - **Downgrade**: who writes may also read, then give the write guard back; from then on it reads, and readers that
///   wait are let in.
/// - **No upgrade**: who reads cannot write before it has given back what it reads. Two that tried would wait for each
///   other for ever, so `write` answers [`Refused`](crate::ErrorKind::Refused) at once.
/// - **AcquireRequest**: [`Prefer`](crate::Prefer) decides who goes first when both wait, across processes. The default is
///   arrival, under which neither side starves. A task that reads must not wait for another owner that wants to read
///   the same lock: a writer may stand between them. Its own nested calls never wait.
/// - **Readers of one process** that want the same lease hold the lock together, under the owner of the first of them: the
///   server counts them once, and lets a writer in when the last has given back. While others read on, `unlock` says
///   whether the lock was held by what the server said at most 10 ms before (or twice the time that it takes to ask, if
///   that is longer); after that it asks. `extend` only lengthens what others have too. Owners with a name hold it by
///   themselves.
/// - **Crash**: each process that reads has a lease of its own. One that dies blocks writers until its lease ends, whatever
///   leases other readers have; a waiter that dies is heeded for a second.
///
/// # Beside Java
///
/// Redisson's readers and writers take turns with these, but heed nobody who waits: a stream of Java's readers starves
/// our writers as well as its own. It does not starve our readers: one that came behind a writer that waits heeds it
/// for a second, and then joins those of Java's that hold the lock. When a reader of Java renews its lease, it cuts
/// that of the whole lock down to it; for leases of more than three seconds, each reader here therefore sends a request
/// each second, which restores the lock's. A Java client whose `lockWatchdogTimeout` is below three seconds, and which
/// crashes, may take the lock with it before that; the guard here is [lost](crate::Lease::lost) then.
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
/// let reading = catalogue.read().await?; // who writes may read
/// writing.unlock().await?; // and from now on others may, too
///
/// let refused = catalogue.write().await.unwrap_err();
/// assert_eq!(refused.kind(), ErrorKind::Refused);
/// reading.unlock().await?;
/// # Ok::<(), redlatch::Error>(()) });
/// ```
#[derive(Clone, Debug)]
pub struct ReadWriteLock {
    reader: ReadLock,
    writer: WriteLock,
}

/// The side of a [`ReadWriteLock`] that many owners hold together. From [`ReadWriteLock::reader`].
///
/// [`holder`](Self::holder) tells of one of them, [`remaining_lease`](Self::remaining_lease) how long the last of them
/// lasts, [`force_unlock`](Self::force_unlock) ends them all.
#[derive(Clone, Debug)]
pub struct ReadLock(Handle);

/// The side of a [`ReadWriteLock`] that one owner holds alone. From [`ReadWriteLock::writer`].
///
/// Its verbs answer [`Refused`](crate::ErrorKind::Refused) to an owner that reads.
#[derive(Clone, Debug)]
pub struct WriteLock(Handle);

verbs!(ReadLock, LockGuard);
verbs!(WriteLock, LockGuard);

impl ReadWriteLock {
    pub(crate) fn new(reader: Handle, writer: Handle) -> Self {
        Self {
            reader: ReadLock(reader),
            writer: WriteLock(writer),
        }
    }

    /// Holds either side for so long, from 50 ms to 100 years, and does not renew it; see
    /// [`ReentrantLock::lease`](crate::ReentrantLock::lease).
    #[must_use = "this makes a new handle and leaves the old one as it is"]
    pub fn lease(self, lease: Duration) -> Self {
        Self {
            reader: self.reader.lease(lease),
            writer: self.writer.lease(lease),
        }
    }

    /// Acts for this owner instead of the current task, on both sides.
    #[must_use = "this makes a new handle and leaves the old one as it is"]
    pub fn owned_by(self, owner: &Owner) -> Self {
        Self {
            reader: self.reader.owned_by(owner),
            writer: self.writer.owned_by(owner),
        }
    }

    /// The shared side as a lock of its own.
    #[must_use]
    pub fn reader(&self) -> ReadLock {
        self.reader.clone()
    }

    /// The exclusive side as a lock of its own.
    #[must_use]
    pub fn writer(&self) -> WriteLock {
        self.writer.clone()
    }

    /// Reads beside other readers, after as long as it takes. Who reads or writes already is let in at once.
    ///
    /// # Errors
    ///
    /// As [`ReentrantLock::lock`](crate::ReentrantLock::lock).
    ///
    /// # Cancel safety
    ///
    /// As [`ReentrantLock::lock`](crate::ReentrantLock::lock).
    pub async fn read(&self) -> Result<LockGuard, Error> {
        self.reader.lock().await
    }

    /// Reads, if no writer is in the way now. None if one is.
    ///
    /// # Errors
    ///
    /// As [`ReentrantLock::try_lock`](crate::ReentrantLock::try_lock).
    ///
    /// # Cancel safety
    ///
    /// As [`ReentrantLock::lock`](crate::ReentrantLock::lock).
    pub async fn try_read(&self) -> Result<Option<LockGuard>, Error> {
        self.reader.try_lock().await
    }

    /// Reads, waiting at most so long. None if a writer was in the way until then.
    ///
    /// # Errors
    ///
    /// As [`ReentrantLock::try_lock_for`](crate::ReentrantLock::try_lock_for).
    ///
    /// # Cancel safety
    ///
    /// As [`ReentrantLock::lock`](crate::ReentrantLock::lock).
    pub async fn try_read_for(&self, wait: Duration) -> Result<Option<LockGuard>, Error> {
        self.reader.try_lock_for(wait).await
    }

    /// Writes alone, after as long as it takes. Who writes already is let in at once.
    ///
    /// # Errors
    ///
    /// [`Refused`](crate::ErrorKind::Refused) at once if this owner reads; else as
    /// [`ReentrantLock::lock`](crate::ReentrantLock::lock).
    ///
    /// # Cancel safety
    ///
    /// As [`ReentrantLock::lock`](crate::ReentrantLock::lock).
    pub async fn write(&self) -> Result<LockGuard, Error> {
        self.writer.lock().await
    }

    /// Writes, if nobody else reads or writes now. None if somebody does.
    ///
    /// # Errors
    ///
    /// [`Refused`](crate::ErrorKind::Refused) if this owner reads; else as
    /// [`ReentrantLock::try_lock`](crate::ReentrantLock::try_lock).
    ///
    /// # Cancel safety
    ///
    /// As [`ReentrantLock::lock`](crate::ReentrantLock::lock).
    pub async fn try_write(&self) -> Result<Option<LockGuard>, Error> {
        self.writer.try_lock().await
    }

    /// Writes, waiting at most so long. None if somebody else read or wrote until then.
    ///
    /// # Errors
    ///
    /// [`Refused`](crate::ErrorKind::Refused) at once if this owner reads; else as
    /// [`ReentrantLock::try_lock_for`](crate::ReentrantLock::try_lock_for).
    ///
    /// # Cancel safety
    ///
    /// As [`ReentrantLock::lock`](crate::ReentrantLock::lock).
    pub async fn try_write_for(&self, wait: Duration) -> Result<Option<LockGuard>, Error> {
        self.writer.try_lock_for(wait).await
    }
}
