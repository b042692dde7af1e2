//! A hold while it lasts: its owner, its deadline, the news that it is lost.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use super::request::AcquireRequest;
use crate::clock::BootInstant;
use crate::error::Error;
use crate::options::LeaseTime;
use crate::owner::Owner;
use crate::protocol::script::Cut;
use crate::session::hold::{Hold, Loss};

/// The lease of a lock that is held: how long it can be trusted, and the news when it cannot.
///
/// A lease is a **local promise**: it ends, by the clock of this process, a little before the server can give the
/// lock to somebody else. The clock keeps counting while the machine is suspended. A lease without a fixed time is
/// renewed by a watchdog at every third of it, and ends all the same if no renewal is confirmed in time.
///
/// Every guard derefs to its lease.
#[derive(Debug)]
pub struct Lease {
    pub(crate) request: AcquireRequest,
    pub(crate) hold: Arc<Hold>,
}

impl Lease {
    pub(crate) fn new(request: AcquireRequest, hold: Arc<Hold>) -> Self {
        Self { request, hold }
    }

    /// Resolves when the lease can no longer be trusted: at once when the server says that the hold is gone, and
    /// at its deadline when no renewal was confirmed. Loss is final; stop the work that the lock protects.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost by dropping the future.
    ///
    /// # Examples
    ///
    /// ```
    /// # redlatch_testkit::doc(async |url| {
    /// # let client = redlatch::Client::connect(url).await?;
    /// # async fn work() {}
    /// let guard = client.lock("report").lock().await?;
    /// tokio::select! {
    ///     () = work() => guard.unlock().await?,
    ///     () = guard.lost() => eprintln!("stopped: somebody else may hold the lock"),
    /// }
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
    pub async fn lost(&self) {
        self.hold.ended().await;
    }

    /// Whether the lease can no longer be trusted. Compares clocks, so it is right at once after a pause of the
    /// process, and asks nobody; [`verify`](Self::verify) asks the server.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        !self.hold.is_live()
    }

    /// How long the lease can still be trusted if nothing more is heard from the server. Zero once it is lost.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.hold.remaining()
    }

    /// The last moment at which the lease can be trusted if nothing more is heard from the server.
    pub(crate) fn trusted_until(&self) -> BootInstant {
        self.hold.lock().schedule.deadline()
    }

    /// Who holds the lock.
    #[must_use]
    pub fn owner(&self) -> &Owner {
        &self.request.owner
    }

    /// Gives the hold a new lease from now on.
    ///
    /// If this guard alone holds the lock, for a fixed lease, the new lease may be shorter than what is left, unless the
    /// lock was passed on to it within this process just now. Else
    /// what is left is only ever raised, so that no other guard of this owner loses its lease, and renewal goes on.
    ///
    /// # Errors
    ///
    /// [`InvalidInput`](crate::ErrorKind::InvalidInput) for a lease below 50 ms or above 100 years;
    /// [`LeaseLost`](crate::ErrorKind::LeaseLost) if the hold is gone; [`Timeout`](crate::ErrorKind::Timeout) and
    /// [`Backend`](crate::ErrorKind::Backend) if the server did not answer or refused.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the server may or may not have set the new lease. What this process trusts is the
    /// shorter of the two, and nothing that is asked for later is undone by the request.
    pub async fn extend(&self, lease: Duration) -> Result<(), Error> {
        let lease = LeaseTime::new(lease)?;
        let client = &self.request.client;
        let extend = async {
            client.ensure_open()?;
            let _turn = client.unless_closed(self.hold.record.turn.lock()).await?;
            if self.is_lost() {
                return Err(self.lost_error());
            }
            if !self.request.finish_cut(&self.hold).await? {
                return Err(self.gone());
            }
            // Nobody else's lease, as long as this has the turn; and nothing on its way that would undo a cut.
            let alone = !self.request.lease_mode.is_renewed()
                && self.hold.has_one_guard()
                && !self.hold.record.was_joined()
                && !self.hold.record.is_being_confirmed();
            let cut = if alone { Cut::Ask } else { Cut::Never };
            self.hold.lock().schedule.asks_for(lease);
            let set = self.request.set_lease(&self.hold, lease, cut).await;
            if !set.map_err(|error| self.request.blame(error))? {
                return Err(self.gone());
            }
            client.watchdog.watch(&self.hold);
            Ok(())
        };
        client.within(Box::pin(extend)).await
    }

    /// Asks the server whether this very hold still stands.
    ///
    /// A yes is true for the moment in which the server gave it. Only a token that the protected resource checks
    /// can stop a late write of a process that was paused after it asked.
    ///
    /// # Errors
    ///
    /// [`LeaseLost`](crate::ErrorKind::LeaseLost) if it does not; [`Timeout`](crate::ErrorKind::Timeout) and
    /// [`Backend`](crate::ErrorKind::Backend) if the server did not answer or refused.
    ///
    /// # Cancel safety
    ///
    /// Nothing is changed on the server, whenever the future is dropped.
    pub async fn verify(&self) -> Result<(), Error> {
        let client = &self.request.client;
        let verify = async {
            client.ensure_open()?;
            if self.is_lost() {
                return Err(self.lost_error());
            }
            let key = self.hold.key();
            let call = key.kind.shape().check(std::iter::once(key));
            let answer = client.run(&call, self.hold.timeout).await?;
            let standing = answer.reply.standing(1);
            if standing.map_err(|error| call.blame(error))? == [true] {
                Ok(())
            } else {
                Err(self.gone())
            }
        };
        client.within(Box::pin(verify)).await
    }

    /// Runs a future for as long as the lease can be trusted.
    ///
    /// The lease is looked at before each poll, and its loss wakes the future's task.
    ///
    /// # Errors
    ///
    /// [`LeaseLost`](crate::ErrorKind::LeaseLost) if the lease was lost before the future was done. The future is
    /// dropped then; its work may be half done.
    ///
    /// # Cancel safety
    ///
    /// Dropping this future drops the one inside. The lock stays held.
    ///
    /// # Examples
    ///
    /// ```
    /// # redlatch_testkit::doc(async |url| {
    /// # let client = redlatch::Client::connect(url).await?;
    /// let guard = client.lock("sum").lock().await?;
    /// let sum = guard.run_until_lost(async { 1 + 1 }).await?;
    /// assert_eq!(sum, 2);
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
    pub async fn run_until_lost<F: Future>(&self, future: F) -> Result<F::Output, Error> {
        let (is_lost, error) = (|| self.is_lost(), || self.lost_error());
        run_until_lost(future, self.lost(), is_lost, error).await
    }

    pub(crate) fn lost_error(&self) -> Error {
        Error::lost(format!(
            "the lease of {:?} was lost; stop the work that it protected",
            self.request.name.key()
        ))
    }

    /// The server says that the hold is not there.
    fn gone(&self) -> Error {
        drop(self.request.client.watchdog.lose(&self.hold, Loss::Gone));
        self.lost_error()
    }
}

/// Runs a future until what it is protected by is lost. The loss is looked for before each poll, and wakes the task.
pub(crate) async fn run_until_lost<F: Future>(
    future: F,
    lost: impl Future<Output = ()>,
    is_lost: impl Fn() -> bool,
    error: impl Fn() -> Error,
) -> Result<F::Output, Error> {
    let (mut future, mut lost) = (pin!(future), pin!(lost));
    poll_fn(|context| {
        if lost.as_mut().poll(context).is_ready() || is_lost() {
            return Poll::Ready(Err(error()));
        }
        future.as_mut().poll(context).map(Ok)
    })
    .await
}
