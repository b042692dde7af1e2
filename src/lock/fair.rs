//! A lock that is granted in order of arrival.

use super::handle::Handle;
use super::methods::methods;
use crate::hold::guard::LockGuard;

/// A lock that is granted in order of arrival across all processes; wire-compatible with Redisson's `RFairLock`.
///
/// Created by [`Client::fair_lock`](crate::Client::fair_lock). It is a [`ReentrantLock`](crate::ReentrantLock) whose
/// waiters form one queue on the server: the lock goes to the waiter that asked the server first. Waiters of Java's
/// Redisson are in the same queue.
///
/// # The queue
///
/// A call that waits, by [`lock`](Self::lock) or [`try_lock_for`](Self::try_lock_for), has a place from the time its
/// first request reaches the server. A release hands the lock to the first waiter in the queue: in the same round trip
/// if that waiter is in the releasing process, otherwise a message goes to it alone. [`try_lock`](Self::try_lock) never
/// queues and never overtakes: it finds the lock busy while anybody waits. An owner that holds the lock acquires it
/// again without queueing. The calls of one owner in one process share one place, and a named owner has one place
/// across all processes.
///
/// The process keeps the places of all its waiters by one request per second. It gives a place up at once when the call
/// ends or its future is dropped; the other waiters keep their places. A process that crashes or cannot reach the
/// server loses its places after three seconds, and so delays the others by no more than about four seconds. If it was
/// alive after all, its waiters queue again, at the end, and a warning is logged. The same happens to a waiter whose
/// place Redisson removed. If a waiting future is not polled, it is passed over one second after its turn has come,
/// together with all other unpolled futures of its process. If another call of its owner waits, it is passed over at
/// once. It queues again when it is polled. If the server's clock is set back, waiters keep their places, and a waiter
/// that has crashed loses its place three seconds after the step.
///
/// # Priority
///
/// With [`priority`](Self::priority), a call waits ahead of all calls with a lower priority, and behind all with the
/// same or a higher one. **Calls with a lower priority can starve**: as long as calls with a higher one keep coming,
/// they are not granted the lock at all. Their priority does not rise with time.
///
/// # Together with Java
///
/// Redisson has no priorities: its entries count as 0 and queue at the end. Its waiters give no sign of life, so a
/// crashed one is recognized only by its timeout. That is the holder's remaining lease when the waiter came, plus its
/// wait time (`fairLockWaitTimeout`, five minutes, or the wait time of its `tryLock`), and as much again for each
/// waiter before it that crashed too. While a waiter of this crate is in the queue, such a waiter delays it by at most
/// one [`fair_wait_timeout`](crate::ClientBuilder::fair_wait_timeout), counted from when it is first and the lock is
/// free. If a process of this crate crashes and only Redisson's clients are left in the queue, each of its places
/// delays them by the same setting, so set it to Redisson's value. This crate goes by the server's clock, Redisson by
/// the clients' clocks: keep them synchronized.
///
/// A live waiter of Redisson's can also lose its place to this timeout, with or without waiters of this crate, if it
/// waits behind holders for longer than that. It queues again, at the end.
///
/// # Guarantee and limit
///
/// Same as [`ReentrantLock`](crate::ReentrantLock). The order holds as long as the server keeps its keys: after a
/// failover or an eviction, the waiters queue again, in the order in which they ask next. A reentrant, spin or fenced
/// lock of the same name excludes this one, and this one excludes it. But a holder of such a lock wakes nobody in this
/// queue, which then moves on within about a second.
///
/// # When to use another
///
/// The order has a price: every waiter has a place on the server, every process that waits sends a request each second,
/// and between processes each grant waits for the process that is next, even if that process is slow or far away. If
/// being overtaken does no harm, a [`ReentrantLock`](crate::ReentrantLock) grants more in the same time.
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
#[derive(Clone)]
pub struct FairLock(Handle);

impl FairLock {
    pub(crate) fn new(handle: Handle) -> Self {
        Self(handle).priority(0)
    }

    /// Sets the priority of the calls on this handle: they wait ahead of all calls with a lower priority. The default
    /// is 0, which Java's waiters have too.
    ///
    /// Among calls of equal priority, the order of arrival decides. Calls with a lower priority
    /// [can starve](Self#priority).
    ///
    /// # Examples
    ///
    /// ```
    /// # redlatch_testkit::doc(async |url| {
    /// # let client = redlatch::Client::connect(url).await?;
    /// # let other = redlatch::Client::connect(url).await?;
    /// let customers = client.fair_lock("database").priority(1);
    /// let reports = other.fair_lock("database"); // priority 0: waits behind all waiting customers
    /// let guard = customers.lock().await?;
    /// let (report, unlocked) = tokio::join!(reports.lock(), guard.unlock());
    /// report?.unlock().await?;
    /// unlocked?;
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
    #[must_use = "this makes a new handle and leaves the old one as it is"]
    pub fn priority(mut self, priority: i32) -> Self {
        self.0.queued(priority);
        self
    }
}

methods!(FairLock, LockGuard, "fair_lock");
