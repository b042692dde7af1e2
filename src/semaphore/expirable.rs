//! A shared number of permits that come back by themselves.

use std::sync::Arc;
use std::time::Duration;

use super::pool::{Leases, Pool};
use super::verbs::verbs;
use crate::error::Error;
use crate::options::LeaseTime;
use crate::permit_id::PermitId;
use crate::protocol::answer::Extended;
use crate::session::ClientHandle;
use crate::session::permit_record::PermitRecord;
use crate::session::undo::Undo;

/// A number of permits that all processes share, each with an id and a lease: on the wire Redisson's
/// `RPermitExpirableSemaphore`.
///
/// Made by [`Client::expirable_semaphore`](crate::Client::expirable_semaphore). It is a
/// [`Semaphore`](crate::Semaphore) whose permits come back when their [`lease`](Self::lease) ends, also if their holder
/// has crashed, and can be given back by whoever knows their id.
///
/// # When to use it, and when another
///
/// To let at most so many do something at once, for a time that can be told beforehand, or that the holder
/// [extends](ExpirablePermit::extend). If a permit lost in a crash does no harm, a [`Semaphore`](crate::Semaphore)
/// costs a little less. For one at a time take a [`ReentrantLock`](crate::ReentrantLock), which is renewed and tells of
/// loss.
///
/// # Guarantee and limit
///
/// As [`Semaphore`](crate::Semaphore), for as long as each holder is done within its lease: after that the permit may
/// be somebody else's, and nothing stops the first holder. Leases end by the server's clock. A permit whose return is
/// lost by a failover comes back at the end of its lease. Without a lease a permit stays taken until it is given back, as
/// in Redisson; a crash or such a failover leaves it so, until somebody who knows its id
/// [gives it back](Self::release_permit).
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
/// // elsewhere, in Java too
/// assert!(desks.release_permit(&id).await?);
/// # Ok::<(), redlatch::Error>(()) });
/// ```
#[derive(Clone, Debug)]
pub struct ExpirableSemaphore(pub(crate) Pool);

verbs!(ExpirableSemaphore, ExpirablePermit);

impl ExpirableSemaphore {
    /// Takes permits for so long, from 50 ms to 100 years; without end by default. Fractions of a millisecond
    /// are dropped. Another lease is answered with [`InvalidInput`](crate::ErrorKind::InvalidInput) by every verb that
    /// takes permits. At most 1,000 are taken at once.
    #[must_use = "this makes a new handle and leaves the old one as it is"]
    pub fn lease(mut self, lease: Duration) -> Self {
        self.0.leases = Leases::Of(Some(lease));
        self
    }

    /// Gives the permit with this id back, whoever took it. False if it is not taken, or if its lease has ended.
    ///
    /// # Errors
    ///
    /// As [`try_set_permits`](Self::try_set_permits).
    ///
    /// # Cancel safety
    ///
    /// Once polled, it goes on in the background if the future is dropped.
    pub async fn release_permit(&self, id: &PermitId) -> Result<bool, Error> {
        self.0.release_permit(*id).await
    }

    fn permit(&self, undo: Undo<Arc<PermitRecord>>) -> ExpirablePermit {
        ExpirablePermit {
            undo,
            client: self.0.counter.client.clone(),
        }
    }
}

/// Permits of an [`ExpirableSemaphore`], until they are given back or their lease ends.
///
/// [`release`](Self::release) says whether they were still taken; dropped, they are given back, from
/// any thread, with or without a runtime.
#[must_use = "the permits are given back as soon as this is dropped"]
#[clippy::has_significant_drop]
#[derive(Debug)]
pub struct ExpirablePermit {
    undo: Undo<Arc<PermitRecord>>,
    client: Arc<ClientHandle>,
}

impl ExpirablePermit {
    /// The id of the permit, of several the first one's.
    #[must_use]
    pub fn id(&self) -> PermitId {
        // As many as were asked for: one at least.
        self.ids().first().copied().unwrap_or_default()
    }

    /// The ids of all permits that were taken by this one call.
    #[must_use]
    pub fn ids(&self) -> &[PermitId] {
        self.undo.key.ids()
    }

    /// How many permits these are.
    #[must_use]
    pub fn permits(&self) -> u32 {
        self.undo.key.count
    }

    /// Gives the permits a new lease from now on, all or none; they may be without one. It may be shorter too. Of several
    /// calls the last one counts, whichever comes to the server last.
    ///
    /// # Errors
    ///
    /// [`InvalidInput`](crate::ErrorKind::InvalidInput) for a lease below 50 ms or above 100 years;
    /// [`LeaseLost`](crate::ErrorKind::LeaseLost) if one of them is not taken any more, or its lease has ended;
    /// [`Timeout`](crate::ErrorKind::Timeout) and [`Backend`](crate::ErrorKind::Backend) if the server did not answer
    /// or refused.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the server may or may not have set the new lease.
    pub async fn extend(&self, lease: Duration) -> Result<(), Error> {
        let record = &self.undo;
        let extend = async {
            let lease = LeaseTime::new(lease)?;
            self.client.ensure_open()?;
            let (number, in_doubt) = record.extending();
            let Some(call) = record.key.extend(lease, number, in_doubt) else {
                return Ok(());
            };
            let answer = self.client.run(&call, record.timeout).await?;
            if !answer.repeated {
                record.extended();
            }
            match Extended::decode(&answer.reply)? {
                Extended::Set => Ok(()),
                Extended::Absent => Err(record.lost()),
                Extended::Longer { .. } => Err(answer.reply.unexpected()),
            }
        };
        self.client.within(Box::pin(extend)).await
    }

    /// Gives the permits back, and wakes whoever waits for them.
    ///
    /// # Errors
    ///
    /// [`LeaseLost`](crate::ErrorKind::LeaseLost) if the lease of one of them had ended, or it was given back by
    /// another; the others are given back. [`Timeout`](crate::ErrorKind::Timeout) and
    /// [`Backend`](crate::ErrorKind::Backend) if the server did not answer or refused; it is tried again in the
    /// background. [`Closed`](crate::ErrorKind::Closed) if the client was closed, which gave them back.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the permits are given back in the background.
    pub async fn release(self) -> Result<(), Error> {
        let Self { undo, client } = self;
        client.give_permits_back(undo).await
    }

    /// Leaves the permits taken until their lease ends, or until somebody who knows their ids
    /// [gives them back](ExpirableSemaphore::release_permit).
    pub fn forget(self) {
        self.undo.leave();
    }
}
