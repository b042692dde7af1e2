//! The semaphore whose permits have a lease, and come back by themselves when it ends.

use std::sync::Arc;
use std::time::Duration;

use super::methods::methods;
use super::pool::{Leases, PermitUndo, Pool};
use crate::error::Error;
use crate::options::LeaseTime;
use crate::permit_id::PermitId;
use crate::protocol::answer::Extended;
use crate::session::ClientHandle;
use crate::session::backend::Answer;

/// A number of permits that all processes share, each with an id and a lease; wire-compatible with Redisson's
/// `RPermitExpirableSemaphore`.
///
/// Created by [`Client::expirable_semaphore`](crate::Client::expirable_semaphore). It is a
/// [`Semaphore`](crate::semaphore::Semaphore) whose permits come back when their [`lease`](Self::lease) ends, even if
/// their holder has crashed. Any client that knows the id of a permit can release it.
///
/// # When to use it, and when to use another
///
/// Use it to limit how many callers do something at the same time, for a duration that is known beforehand or that the
/// holder [extends](ExpirablePermit::extend). If permits that are lost in a crash can be restored by hand, a
/// [`Semaphore`](crate::semaphore::Semaphore) costs a little less. For one caller at a time, use a
/// [`ReentrantLock`](crate::ReentrantLock), which is renewed and reports its loss.
///
/// # Guarantee and limit
///
/// Same as [`Semaphore`](crate::semaphore::Semaphore), as long as each holder finishes within its lease. After that,
/// the permit may belong to another holder, and nothing stops the first one. Leases end by the server's clock. A permit
/// whose release is lost in a failover comes back at the end of its lease. Without a lease, a permit stays taken until
/// it is released, as in Redisson. After a crash or such a failover, it stays taken until a client that knows its id
/// [releases it](Self::release_permit).
///
/// # Examples
///
/// ```
/// # redlatch_testkit::doc(async |url| {
/// use std::time::Duration;
/// use redlatch::Client;
///
/// let client = Client::connect(url).await?;
/// let desks = client.expirable_semaphore("desks").lease(Duration::from_secs(60));
/// desks.try_set_permits(10).await?;
/// let permit = desks.acquire().await?;
/// let id = permit.id();
/// permit.forget();
/// // In another process, or in Java:
/// assert!(desks.release_permit(&id).await?);
/// # Ok::<(), redlatch::Error>(()) });
/// ```
#[doc(alias = "PermitExpirableSemaphore")]
#[derive(Clone)]
pub struct ExpirableSemaphore(pub(crate) Pool);

methods!(ExpirableSemaphore, ExpirablePermit, "expirable_semaphore");

impl ExpirableSemaphore {
    /// Sets the lease of the permits that this handle acquires, from 50 ms to 100 years. By default, permits have no
    /// lease and do not expire. Fractions of a millisecond are dropped. With a lease outside these limits, every method
    /// that acquires permits returns [`InvalidInput`](crate::ErrorKind::InvalidInput). With or without a lease, one
    /// call acquires at most 1,000 permits of an expirable semaphore.
    ///
    /// # Examples
    ///
    /// ```
    /// # redlatch_testkit::doc(async |url| {
    /// use std::time::Duration;
    ///
    /// # // However slow the machine is: each permit is handed out.
    /// # let client = redlatch::Client::builder().url(url).min_validity(Duration::ZERO);
    /// # let client = client.build().await?;
    /// let scans = client.expirable_semaphore("scans").lease(Duration::from_millis(200));
    /// scans.try_set_permits(1).await?;
    /// scans.acquire().await?.forget(); // as if this process had been killed
    /// let permit = scans.acquire().await?; // waits until the lease of the first permit has ended
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
    #[must_use = "this makes a new handle and leaves the old one as it is"]
    pub fn lease(mut self, lease: Duration) -> Self {
        self.0.leases = Leases::Of(Some(lease));
        self
    }

    /// Releases the permit with this id, whichever client acquired it. Returns `false` if the permit is not taken, or
    /// if its lease has ended; but `true` if the connection broke and the request was sent again, since the first
    /// request may have released it.
    ///
    /// # Errors
    ///
    /// Same as [`try_set_permits`](Self::try_set_permits).
    ///
    /// # Cancel safety
    ///
    /// Once the future has been polled, the release continues in the background if the future is dropped.
    ///
    /// # Examples
    ///
    /// ```
    /// # redlatch_testkit::doc(async |url| {
    /// # let client = redlatch::Client::connect(url).await?;
    /// use redlatch::semaphore::PermitId;
    ///
    /// # let rooms = client.expirable_semaphore("rooms");
    /// # rooms.try_set_permits(1).await?;
    /// let permit = rooms.acquire().await?;
    /// let ticket = permit.id().to_string(); // sent along with a job
    /// permit.forget();
    ///
    /// // In the process that finishes the job:
    /// let id: PermitId = ticket.parse()?;
    /// assert!(rooms.release_permit(&id).await?);
    /// assert!(!rooms.release_permit(&id).await?); // a permit is released only once
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
    pub async fn release_permit(&self, id: &PermitId) -> Result<bool, Error> {
        self.0.release_permit(*id).await
    }
}

/// Permits of an [`ExpirableSemaphore`], held until they are released or their lease ends.
///
/// [`release`](Self::release) reports whether the permits were still taken. Dropping this value also releases them,
/// from any thread, with or without a runtime.
#[must_use = "the permits are given back as soon as this is dropped"]
#[clippy::has_significant_drop]
pub struct ExpirablePermit {
    undo: PermitUndo,
    client: Arc<ClientHandle>,
}

impl ExpirablePermit {
    /// Returns the id of the permit, or of the first one if this value holds several.
    ///
    /// # Examples
    ///
    /// ```
    /// # redlatch_testkit::doc(async |url| {
    /// # let client = redlatch::Client::connect(url).await?;
    /// # let licenses = client.expirable_semaphore("licenses");
    /// # licenses.try_set_permits(3).await?;
    /// let permit = licenses.acquire().await?;
    /// // An operator who reads this can release the permit if this process hangs.
    /// println!("this process uses the license {}", permit.id());
    /// assert_eq!(permit.ids(), [permit.id()]);
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
    #[must_use]
    pub fn id(&self) -> PermitId {
        // There is one id for each permit that was asked for, and `Pool::take` refuses to ask for none.
        self.ids().first().copied().unwrap_or_default()
    }

    /// Returns the ids of all permits that this value holds.
    ///
    /// # Examples
    ///
    /// ```
    /// # redlatch_testkit::doc(async |url| {
    /// # let client = redlatch::Client::connect(url).await?;
    /// # let slots = client.expirable_semaphore("slots");
    /// # slots.try_set_permits(3).await?;
    /// let permits = slots.acquire_many(3).await?;
    /// let ids = permits.ids().to_vec();
    /// permits.forget();
    /// for id in &ids[..2] {
    ///     slots.release_permit(id).await?; // one by one, as the parts of the job end
    /// }
    /// assert_eq!(slots.available_permits().await?, 2);
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
    #[must_use]
    pub fn ids(&self) -> &[PermitId] {
        self.undo.key.ids()
    }

    /// Sets a new lease, counted from now, for all permits of this value or for none of them. The permits may have had
    /// no lease before, and the new lease may be shorter than the old one. Of several calls, the last one takes effect,
    /// regardless of which request reaches the server last.
    ///
    /// # Errors
    ///
    /// [`InvalidInput`](crate::ErrorKind::InvalidInput) for a lease below 50 ms or above 100 years;
    /// [`LeaseLost`](crate::ErrorKind::LeaseLost) if one of the permits is no longer taken, or its lease has ended;
    /// [`Timeout`](crate::ErrorKind::Timeout) or [`Backend`](crate::ErrorKind::Backend) if the server did not answer or
    /// refused.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the server may or may not have set the new lease.
    ///
    /// # Examples
    ///
    /// ```
    /// # redlatch_testkit::doc(async |url| {
    /// # let client = redlatch::Client::connect(url).await?;
    /// # async fn import(part: u32) {}
    /// use std::time::Duration;
    ///
    /// # let imports = client.expirable_semaphore("imports").lease(Duration::from_secs(60));
    /// # imports.try_set_permits(2).await?;
    /// let permit = imports.acquire().await?;
    /// for part in 1..=3 {
    ///     permit.extend(Duration::from_secs(60)).await?; // an error if the lease has ended: stop the import
    ///     import(part).await;
    /// }
    /// permit.release().await?;
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
    pub async fn extend(&self, lease: Duration) -> Result<(), Error> {
        let record = &self.undo;
        let extend = async {
            let lease = LeaseTime::new(lease)?;
            self.client.ensure_open()?;
            let (number, in_doubt) = record.extending();
            let Some(call) = record.key.extend(lease, number, in_doubt) else {
                return Ok(());
            };
            let answered = self.client.run(&call, record.timeout).await;
            // If the call was sent more than once, a copy may still be on its way. The extension then stays unsettled,
            // and the next one has the server remember its number, so that the late copy changes nothing.
            if !Answer::may_run(&answered) {
                record.extended();
            }
            let answer = answered?;
            match Extended::decode(&answer.reply)? {
                Extended::Set => Ok(()),
                Extended::Absent => Err(record.lost()),
                Extended::Longer { .. } => Err(answer.reply.unexpected()),
            }
        };
        self.client.within(Box::pin(extend)).await
    }

    /// Releases the permits, and wakes the waiters.
    ///
    /// # Errors
    ///
    /// [`LeaseLost`](crate::ErrorKind::LeaseLost) if the lease of one of the permits had ended, or if it was
    /// released elsewhere; the others are released. If the connection broke and the request was sent again, the call
    /// returns `Ok` even so: the first request may have released the permits. [`Timeout`](crate::ErrorKind::Timeout) or
    /// [`Backend`](crate::ErrorKind::Backend) if the server did not answer or refused; the release is retried in the
    /// background. [`Closed`](crate::ErrorKind::Closed) if the client was closed, which released the permits.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the permits are released in the background.
    ///
    /// # Examples
    ///
    /// ```
    /// # redlatch_testkit::doc(async |url| {
    /// # let client = redlatch::Client::connect(url).await?;
    /// use redlatch::ErrorKind;
    ///
    /// # let desks = client.expirable_semaphore("desks");
    /// # desks.try_set_permits(10).await?;
    /// let permit = desks.acquire().await?;
    /// desks.release_permit(&permit.id()).await?; // an operator was impatient
    /// let error = permit.release().await.unwrap_err();
    /// assert_eq!(error.kind(), ErrorKind::LeaseLost); // another holder may have the desk by now
    /// assert_eq!(desks.available_permits().await?, 10); // and is not released twice
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
    pub async fn release(self) -> Result<(), Error> {
        let Self { undo, client } = self;
        client.return_permits(undo).await
    }

    /// Consumes this value and leaves the permits taken until their lease ends, or until a client that knows their ids
    /// [releases them](ExpirableSemaphore::release_permit).
    ///
    /// # Examples
    ///
    /// ```
    /// # redlatch_testkit::doc(async |url| {
    /// # let client = redlatch::Client::connect(url).await?;
    /// use std::time::Duration;
    ///
    /// // A rate limit of two requests in ten seconds: each permit comes back by itself when its lease ends.
    /// let requests = client.expirable_semaphore("api:requests").lease(Duration::from_secs(10));
    /// requests.try_set_permits(2).await?;
    /// for _ in 0..2 {
    ///     requests.acquire().await?.forget();
    /// }
    /// assert!(requests.try_acquire().await?.is_none());
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
    pub fn forget(self) {
        self.undo.leave();
    }
}
