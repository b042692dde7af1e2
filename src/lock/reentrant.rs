//! A lock that its owner may acquire again.

use super::handle::Handle;
use super::methods::methods;
use crate::hold::guard::LockGuard;

/// A distributed mutex that its owner may acquire again; wire-compatible with Redisson's `RLock`.
///
/// Created by [`Client::lock`](crate::Client::lock). A handle is cheap to create and to clone, and creating it does no
/// I/O. All handles of one name are one lock, in all processes and in Java's Redisson on the same server.
///
/// # Guarantee and limit
///
/// As long as the server does not lose the lock's key, no two owners hold the lock at the same time: a hold lasts from
/// the time its guard is handed out until the guard is unlocked, dropped or [lost](crate::Lease::lost). If a holder
/// crashes, the lock is free within one lease.
///
/// A lease cannot stop a holder that was paused. Check [`is_lost`](crate::Lease::is_lost) or watch
/// [`lost`](crate::Lease::lost), and have the protected resource reject late writes. After a failover to a replica that
/// did not have the key yet, a restart without data, an eviction or a `DEL` by hand, two owners may hold the lock until
/// the first one learns of it: at its next renewal, at the end of a fixed lease or, after a reconnect, at once.
///
/// # Who is next
///
/// Within one process, waiters are served in the order in which they came, and pass the lock on to each other in
/// memory. Processes that wait take turns. Their turn order is stored on the server, with one place for each process. A
/// release notifies only the first two processes in it, so its cost does not depend on how many processes wait. The
/// lock is then reserved for the first process for at most 300 ms, and is busy for all others, including
/// [`try_lock`](Self::try_lock). A process that has died gets no turn; a process that hangs loses its turn after these
/// 300 ms. [`local_handoff_limit`](crate::ClientBuilder::local_handoff_limit) limits how often a process hands the lock
/// to itself while others wait.
///
/// Redisson's clients have no place in the turn order. While any of them waits, a release reserves the lock for them
/// for 5 ms first. Their threads can acquire it one after the other without yielding to this crate: next to 16 tasks
/// here, 8 such threads got 55 % of the grants, and waited no longer than they do by themselves. Redisson's
/// `forceUnlock` notifies no process by name. If it releases a lock that a process of this crate holds, waiters in that
/// process find out when the hold is renewed, and waiters in other processes within one
/// [`poll_cap`](crate::ClientBuilder::poll_cap).
///
/// # Lease
///
/// Unless the handle has a lease of its own, the lock is held for the client's
/// [`watchdog_lease`](crate::ClientBuilder::watchdog_lease), 30 seconds by default, and renewed after every third of
/// it, as long as the guard lives. With [`lease`](Self::lease), the lock is held for that time and never renewed. The
/// holds of one owner share one key on the server: re-entry may extend the remaining lease, but never shortens it.
///
/// # Owner
///
/// The owner is the current tokio task or, outside a task, the current thread. It is determined when a call is first
/// polled. Nested calls in one task therefore re-enter: each adds one level to the hold, and the lock is free once
/// every level has been released. **The branches of one `join!` or `select!` are one task and re-enter too**; use
/// [`owned_by`](Self::owned_by) with [`Owner::unique`](crate::Owner::unique) to keep them apart. To nest locks on an
/// executor other than tokio's, set an owner explicitly, too.
///
/// # When to use another
///
/// If the protected resource can refuse late writes, use a [`FencedLock`](crate::FencedLock); where messages do not get
/// through, a [`SpinLock`](crate::SpinLock); within one process, [`tokio::sync::Mutex`]. If the protected resource is
/// itself a database, its own constraint or row lock is simpler and stricter.
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
#[doc(alias("Mutex", "RLock"))]
#[derive(Clone)]
pub struct ReentrantLock(pub(crate) Handle);

methods!(ReentrantLock, LockGuard, "lock");
