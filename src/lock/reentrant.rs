//! A lock that its owner may take again.

use super::handle::Handle;
use super::verbs::verbs;
use crate::hold::guard::LockGuard;

/// A lock that its owner may take again: the distributed cousin of a reentrant mutex, and on the wire Redisson's
/// `RLock`.
///
/// Made by [`Client::lock`](crate::Client::lock); a handle is cheap to make and to clone, and does no I/O. All
/// handles of one name, in all processes and in Java's Redisson on the same server, are one lock.
///
/// # Guarantee and limit
///
/// As long as the server does not lose the lock's key, no two owners hold the lock at the same time: from the moment
/// a guard is handed out until it is unlocked, dropped or [lost](crate::Lease::lost). A holder that crashes frees
/// the lock within one lease. What no lease can do is stop a holder that was paused and does not look: check
/// [`is_lost`](crate::Lease::is_lost) or [`lost`](crate::Lease::lost), and have the protected resource reject what
/// comes too late. After a failover to a replica that had not got the key yet, after a restart without data, an
/// eviction or a `DEL` by hand, two owners may hold the lock until the first one learns of it, at its next renewal
/// or, after a reconnect, at once.
///
/// # Who is next
///
/// Within one process waiters are served in the order in which they came, and pass the lock on among themselves in memory.
/// Processes that wait take turns: they stand in line on the server, one place a process, and a release tells the first of them
/// and nobody else, so that a release costs the same however many wait. While the lock is left to the first in line,
/// for 300 ms at most, others find it busy, [`try_lock`](Self::try_lock) too. A process that has died has no turn; one that
/// hangs loses it after that time. How long a process passes the lock on to itself while others wait is
/// [`local_handoff_limit`](crate::ClientBuilder::local_handoff_limit).
///
/// Redisson's clients have no place in line. While any of them waits, a process that gives the lock back leaves it to them for
/// 5 ms first. Threads of theirs that take it one after the other need not heed us: beside 16 tasks here, 8 of them got 55 % of
/// the sections, and waited no longer than by themselves. A `forceUnlock` of theirs tells nobody by name: a waiter here whose
/// own process had the lock finds it out at its next [`poll_cap`](crate::ClientBuilder::poll_cap), or when the hold is
/// renewed.
///
/// # Lease
///
/// Without a lease of its own the lock is held for the client's
/// [`watchdog_lease`](crate::ClientBuilder::watchdog_lease), 30 seconds, and renewed at every third of it for as
/// long as the guard lives. With [`lease`](Self::lease) it is held for that long and never renewed. The holds of one
/// owner share one key on the server: re-entry raises what is left of its lease, and never lowers it.
///
/// # Owner
///
/// The owner is the current tokio task, or outside a task the current thread, fixed when a call is first polled. So
/// nested calls in one task re-enter. **The branches of one `join!` or `select!` are one task and re-enter too**;
/// [`owned_by`](Self::owned_by) with [`Owner::unique`](crate::Owner::unique) keeps them apart. So is needed for
/// nesting on an executor other than tokio's.
///
/// # When to use another
///
/// If the protected resource can refuse what comes too late, [`FencedLock`](crate::FencedLock); where messages do
/// not get through, [`SpinLock`](crate::SpinLock). For one process, [`tokio::sync::Mutex`]. If the protected
/// resource is itself a database, its own constraint or row lock is simpler and stricter.
///
/// # Examples
///
/// ```
/// # redlatch_testkit::doc(async |url| {
/// use std::time::Duration;
/// use redlatch::Client;
///
/// let client = Client::connect(url).await?;
/// let lock = client.lock("invoice:42");
///
/// let Some(outer) = lock.try_lock_for(Duration::from_secs(2)).await? else {
///     return Ok(()); // busy is an answer, not an error
/// };
/// let inner = lock.lock().await?; // the same task: re-enters
/// assert_eq!(lock.hold_count().await?, 2);
/// inner.unlock().await?;
/// outer.unlock().await?;
/// # Ok::<(), redlatch::Error>(()) });
/// ```
#[derive(Clone, Debug)]
pub struct ReentrantLock(pub(crate) Handle);

verbs!(ReentrantLock, LockGuard);
