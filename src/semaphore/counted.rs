//! A shared number of permits.

use std::sync::Arc;

use super::pool::Pool;
use super::verbs::verbs;
use crate::counter::check;
use crate::error::Error;
use crate::session::ClientHandle;
use crate::session::permit_record::PermitRecord;
use crate::session::undo::Undo;

/// A number of permits that all processes share: on the wire Redisson's `RSemaphore`.
///
/// Made by [`Client::semaphore`](crate::Client::semaphore). Somebody [sets](Self::try_set_permits) the number; at most
/// so many permits are out at any time.
///
/// # When to use it, and when another
///
/// To let at most so many do something at once, where a permit that is lost in a crash can be put right by hand
/// ([`release`](Self::release)): nobody gives back for a process that was killed. Where that will not do, take an
/// [`ExpirableSemaphore`](crate::ExpirableSemaphore), whose permits have a lease. For one at a time take a
/// [`ReentrantLock`](crate::ReentrantLock), which is renewed and tells of loss.
///
/// # Guarantee and limit
///
/// Never more permits are out than there are, and each is given back once, however often the network made us ask. A
/// call that is dropped, cut off or answered late leaves none taken, as long as the server comes back within an hour.
/// Within one process permits are granted in order of arrival, and one that waits for many is not starved by those
/// that want one; between processes there is no order. Whoever waits is woken by a message, or asks again within a
/// [`poll_cap`](crate::ClientBuilder::poll_cap).
///
/// A failover to a replica that lags may lose what was answered. A permit whose taking it loses may be granted twice. One
/// whose return it loses stays taken, though nobody has it: the semaphore is smaller for good, by a permit each. Nothing
/// tells of it but [`available_permits`](Self::available_permits) in a moment when none is out; what is missing there is
/// put back with [`add_permits`](Self::add_permits). The permits of an
/// [`ExpirableSemaphore`](crate::ExpirableSemaphore) come back by themselves, at the end of their lease.
///
/// Beside the semaphore each permit that is out has a small key, `redlatch_permit:{name}:..`, which goes with it, or
/// when it is [forgotten](SemaphorePermit::forget), or after a day. Java ignores it.
///
/// # Examples
///
/// ```
/// # redlatch_testkit::doc(async |url| {
/// use redlatch::Client;
///
/// let client = Client::connect(url).await?;
/// let uploads = client.semaphore("uploads");
/// uploads.try_set_permits(3).await?;
/// let permit = uploads.acquire().await?;
/// assert_eq!(uploads.available_permits().await?, 2);
/// permit.release().await?;
/// # Ok::<(), redlatch::Error>(()) });
/// ```
#[derive(Clone, Debug)]
pub struct Semaphore(pub(crate) Pool);

verbs!(Semaphore, SemaphorePermit);

impl Semaphore {
    /// Gives so many permits to the semaphore that nobody here has a [`SemaphorePermit`] for: forgotten ones, or those
    /// of a process that has crashed. Sets their number if it was never set.
    ///
    /// # Errors
    ///
    /// As [`add_permits`](Self::add_permits); [`InvalidInput`](crate::ErrorKind::InvalidInput) for none.
    ///
    /// # Cancel safety
    ///
    /// As [`add_permits`](Self::add_permits).
    pub async fn release(&self, permits: u32) -> Result<(), Error> {
        let permits = check("the number of permits", permits, 1)?;
        self.0.add_permits(permits.into()).await
    }

    fn permit(&self, undo: Undo<Arc<PermitRecord>>) -> SemaphorePermit {
        SemaphorePermit {
            undo,
            client: self.0.counter.client.clone(),
        }
    }
}

/// Permits of a [`Semaphore`], until they are given back.
///
/// [`release`](Self::release) says whether it was done; dropped, they are given back, from any thread, with or without a
/// runtime, as a dropped [`LockGuard`](crate::LockGuard) gives back its lock. `let _ = semaphore.acquire().await?` gives back at once.
#[must_use = "the permits are given back as soon as this is dropped"]
#[clippy::has_significant_drop]
#[derive(Debug)]
pub struct SemaphorePermit {
    undo: Undo<Arc<PermitRecord>>,
    client: Arc<ClientHandle>,
}

impl SemaphorePermit {
    /// How many permits these are.
    #[must_use]
    pub fn permits(&self) -> u32 {
        self.undo.key.count
    }

    /// Gives the permits back, and wakes whoever waits for them.
    ///
    /// # Errors
    ///
    /// [`LeaseLost`](crate::ErrorKind::LeaseLost) if the server knows nothing of them any more, after a flush, say:
    /// nothing is changed then. [`Timeout`](crate::ErrorKind::Timeout) and [`Backend`](crate::ErrorKind::Backend) if it
    /// did not answer or refused; it is tried again in the background. [`Closed`](crate::ErrorKind::Closed) if the
    /// client was closed, which gave them back.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the permits are given back in the background.
    pub async fn release(self) -> Result<(), Error> {
        let Self { undo, client } = self;
        client.give_permits_back(undo).await
    }

    /// Leaves the permits taken. Whoever knows of it can give them back with [`Semaphore::release`], in whatever
    /// process.
    pub fn forget(self) {
        self.undo.leave();
    }
}
