//! A lock that is granted in order of arrival.

use super::handle::Handle;
use super::verbs::verbs;
use crate::hold::guard::LockGuard;

/// A lock that is granted in order of arrival, over all processes: on the wire Redisson's `RFairLock`.
///
/// Made by [`Client::fair_lock`](crate::Client::fair_lock). It is a [`ReentrantLock`](crate::ReentrantLock) whose
/// waiters stand in one queue on the server: the lock goes to whoever asked the server first. Waiters in Java's
/// Redisson stand in the same queue.
///
/// # The queue
///
/// Whoever waits, by [`lock`](Self::lock) or [`try_lock_for`](Self::try_lock_for), has a place from the moment in which
/// the server has seen the first request. A release hands the lock to the first in the queue: in the same round trip
/// if that waits in this process, else by a message to it alone. [`try_lock`](Self::try_lock) never queues, and never
/// overtakes: it is busy while anybody waits. An owner that holds the lock takes it again without queueing. The calls
/// of one owner in one process have one place between them, and a named owner has one in all processes.
///
/// Its process keeps the place, by one request a second for all that wait there, and gives it up at once when the
/// call ends or its future is dropped; the others keep theirs. One that crashes, or cannot reach the server, loses
/// its place after three seconds, and so costs the others no more than about four; if it was alive after all it
/// queues again, at the end, and a warning tells of it. So does a place that Redisson took away. A future that waits
/// and is not polled is passed over a second after its turn has come, and queues again when it is. If the server's
/// clock is set back, those that wait keep their places, and one that crashed loses its own three seconds after the
/// step.
///
/// # Priority
///
/// [`priority`](Self::priority) lets a call wait ahead of all with a lower one, and behind all with the same or a
/// higher one. **The lower ones can starve**: as long as higher ones keep coming, they are not granted at all. Nothing
/// raises them with time.
///
/// # Beside Java
///
/// Redisson knows no priority: its entries count as 0 and queue at the end. Its waiters give no sign of life, so one that
/// crashed is known by its time alone: what was left of the holder's lease when it came, and its wait
/// (`fairLockWaitTimeout`, five minutes, or what its `tryLock` was given), for each that crashed before it too. While
/// one of ours waits it costs [`fair_wait_timeout`](crate::ClientBuilder::fair_wait_timeout) at the most from the moment
/// in which it is first and the lock is free. If Redisson's clients are left alone with places of a process of ours that
/// crashed, each costs them that same setting: so give it what Redisson has. The server's clock decides here, the
/// clients' clocks there: keep them together.
///
/// A waiter of Redisson's that lives can lose its place to its time as well, among Java's alone or beside ours: if it
/// waits behind holders for longer than that. It queues again, at the end.
///
/// # Guarantee and limit
///
/// As [`ReentrantLock`](crate::ReentrantLock). The order holds as long as the server keeps its keys: after a failover
/// or an eviction, those who wait queue anew, in the order in which they ask next. A reentrant, spin or fenced lock of
/// the same name excludes this one, and it them; but such a holder wakes nobody in this queue, which then moves on
/// within about a second.
///
/// # When to use another
///
/// AcquireRequest has a price: every waiter has a place on the server, every process that waits sends a request each second, and
/// between processes each grant waits for the one that is next, be it slow or far away. If nobody is hurt by being
/// overtaken, the [`ReentrantLock`](crate::ReentrantLock) serves more.
///
/// # Examples
///
/// ```
/// # redlatch_testkit::doc(async |url| {
/// use redlatch::Client;
///
/// let client = Client::connect(url).await?;
/// let printer = client.fair_lock("printer");
/// let guard = printer.lock().await?;
///
/// let ticket = tokio::spawn({
///     let printer = printer.clone();
///     async move { printer.lock().await?.unlock().await }
/// });
/// let urgent = tokio::spawn({
///     let printer = printer.clone().priority(10); // goes first if both wait
///     async move { printer.lock().await?.unlock().await }
/// });
/// guard.unlock().await?;
/// ticket.await.unwrap()?;
/// urgent.await.unwrap()?;
/// # Ok::<(), redlatch::Error>(()) });
/// ```
#[derive(Clone, Debug)]
pub struct FairLock(Handle);

impl FairLock {
    pub(crate) fn new(handle: Handle) -> Self {
        Self(handle).priority(0)
    }

    /// Waits ahead of all calls with a lower priority; 0 by default, and for Java's. Arrival decides between
    /// equals. The lower ones [can starve](Self#priority).
    #[must_use = "this makes a new handle and leaves the old one as it is"]
    pub fn priority(mut self, priority: i32) -> Self {
        self.0.local_locks(priority);
        self
    }
}

verbs!(FairLock, LockGuard);
