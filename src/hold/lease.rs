//! The lease of a hold: its owner, its deadline, and the signal of its loss.

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::time::sleep;

use super::request::AcquireRequest;
use crate::clock::BootInstant;
use crate::error::Error;
use crate::loss::LossReason;
use crate::options::LeaseTime;
use crate::owner::Owner;
use crate::protocol::script::Cut;
use crate::session::hold::Hold;

/// The lease of a held lock: tells how long the hold can be trusted, and when it is lost.
///
/// A lease is a **local promise**: by the clock of this process, it ends a little before the server can give the lock
/// to another owner. The clock keeps counting while the machine is suspended. Unless the lease is fixed, a watchdog
/// renews it at every third of its length; it still ends if no renewal is confirmed in time.
///
/// Every guard derefs to its lease.
pub struct Lease {
    pub(crate) request: AcquireRequest,
    pub(crate) hold: Arc<Hold>,
}

impl Lease {
    pub(crate) fn new(request: AcquireRequest, hold: Arc<Hold>) -> Self {
        Self { request, hold }
    }

    /// Returns the name of the lock, with the prefix of its client.
    ///
    /// # Examples
    ///
    /// ```
    /// # redlatch_testkit::doc(async |url| {
    /// # let client = redlatch::Client::connect(url).await?;
    /// let guard = client.lock("orders:42").lock().await?;
    /// println!("{} is held for {:?}", guard.name(), guard.remaining());
    /// # assert_eq!(guard.name(), "orders:42");
    /// guard.unlock().await?;
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
    #[must_use]
    pub fn name(&self) -> &str {
        self.request.name.key()
    }

    /// Resolves when the lease can no longer be trusted: at once when the server says that the hold is gone, and at
    /// its deadline when no renewal was confirmed. Returns why. Loss is final; stop the work that the lock protects.
    ///
    /// If another call of this owner unlocks the level that the guard stands for, this resolves too, with
    /// [`Unlocked`](LossReason::Unlocked).
    ///
    /// # Cancel safety
    ///
    /// This method is cancel safe: dropping the future loses nothing.
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
    ///     reason = guard.lost() => eprintln!("stopped, another owner may hold the lock: {reason}"),
    /// }
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
    pub async fn lost(&self) -> LossReason {
        let client = &self.request.client;
        // On the heap, so that it adds nothing to the futures that run under a lock.
        let run_out = Box::pin(client.timed(self.run_out()));
        tokio::select! {
            biased;
            reason = self.hold.ended() => return reason,
            // The watchdog is late if the runtime of the client is busy.
            () = run_out => {}
        }
        drop(client.watchdog.lose(&self.hold, LossReason::Expired));
        self.loss().unwrap_or(LossReason::Expired)
    }

    /// Waits until the lease has passed, however often it is renewed before that.
    async fn run_out(&self) {
        while !self.is_lost() {
            sleep(self.remaining()).await;
        }
    }

    /// Returns `true` if the lease can no longer be trusted. This compares clocks without asking the server, so the
    /// answer is right even immediately after a pause of the process; [`verify`](Self::verify) asks the server.
    ///
    /// # Examples
    ///
    /// ```
    /// # redlatch_testkit::doc(async |url| {
    /// # let client = redlatch::Client::connect(url).await?;
    /// # async fn ship(order: u64) {}
    /// let guard = client.lock("orders").lock().await?;
    /// for order in [40, 41, 42] {
    ///     if guard.is_lost() {
    ///         return Ok(()); // another process may be shipping the rest
    ///     }
    ///     ship(order).await;
    /// }
    /// guard.unlock().await?;
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
    #[must_use]
    pub fn is_lost(&self) -> bool {
        !self.hold.is_live()
    }

    /// Returns how long the lease can still be trusted if the server confirms nothing more. Zero once it is lost.
    ///
    /// # Examples
    ///
    /// ```
    /// # redlatch_testkit::doc(async |url| {
    /// # let client = redlatch::Client::connect(url).await?;
    /// # async fn upload() {}
    /// use std::time::Duration;
    ///
    /// let lock = client.lock("backup").lease(Duration::from_secs(60));
    /// let guard = lock.lock().await?;
    /// assert!(guard.remaining() < Duration::from_secs(60)); // ends a little earlier than on the server
    /// if guard.remaining() > Duration::from_secs(20) {
    ///     upload().await; // takes up to 20 seconds
    /// }
    /// guard.unlock().await?;
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.hold.remaining()
    }

    /// Returns the owner that holds the lock.
    ///
    /// # Examples
    ///
    /// ```
    /// # redlatch_testkit::doc(async |url| {
    /// # let client = redlatch::Client::connect(url).await?;
    /// let guard = client.lock("orders:42").lock().await?;
    /// // A task that acts for the holder re-enters instead of waiting.
    /// let lock = client.lock("orders:42").owned_by(guard.owner());
    /// let task = tokio::spawn(async move { lock.try_lock().await });
    /// assert!(task.await.unwrap()?.is_some());
    /// # guard.unlock().await?;
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
    #[must_use]
    pub fn owner(&self) -> &Owner {
        &self.request.owner
    }

    /// Gives the hold a new lease, counted from now.
    ///
    /// The remaining lease can become shorter only if it is fixed and no other guard shares the hold, and not just
    /// after the lock was passed on to this guard within the process. So no other guard loses its lease. A lease that
    /// is renewed stays renewed.
    ///
    /// # Errors
    ///
    /// [`InvalidInput`](crate::ErrorKind::InvalidInput) for a lease below 50 ms or above 100 years;
    /// [`LeaseLost`](crate::ErrorKind::LeaseLost) if the hold is gone; [`Timeout`](crate::ErrorKind::Timeout) and
    /// [`Backend`](crate::ErrorKind::Backend) if the server did not answer or refused.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the server may or may not have set the new lease. This process trusts the shorter of
    /// the old and the new one. A request that arrives late does not undo a later one.
    ///
    /// # Examples
    ///
    /// ```
    /// # redlatch_testkit::doc(async |url| {
    /// # let client = redlatch::Client::connect(url).await?;
    /// use std::time::Duration;
    ///
    /// let lock = client.lock("nightly-report").lease(Duration::from_secs(10));
    /// let guard = lock.lock().await?;
    /// // There is more to report than usual.
    /// guard.extend(Duration::from_secs(60)).await?;
    /// assert!(guard.remaining() > Duration::from_secs(50));
    /// guard.unlock().await?;
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
    pub async fn extend(&self, lease: Duration) -> Result<(), Error> {
        let lease = LeaseTime::new(lease)?;
        self.request.client.within(self.extended(lease)).await
    }

    fn extended(&self, lease: LeaseTime) -> BoxFuture<'_, Result<(), Error>> {
        let this = Self::new(self.request.clone(), self.hold.clone());
        Box::pin(async move {
            let client = &self.request.client;
            client.ensure_open()?;
            client
                .in_task(&self.hold, async move { this.extend_in_turn(lease).await })
                .await
        })
    }

    async fn extend_in_turn(&self, lease: LeaseTime) -> Result<(), Error> {
        let (_turn, began) = self.request.turn(&self.hold).await?;
        if self.is_lost() {
            return Err(self.lost_error());
        }
        let alone = !self.request.lease_mode.is_renewed() && self.hold.has_one_guard();
        match self.set(lease, alone, began).await? {
            true => self.went_on(),
            false => Err(self.gone()),
        }
    }

    /// Fails if the hold was lost while the server was asked, which releases it whatever the answer says.
    fn went_on(&self) -> Result<(), Error> {
        match self.loss() {
            None | Some(LossReason::Unlocked) => Ok(()),
            Some(reason) => Err(self.lost_for(reason)),
        }
    }

    /// Sets how long a level that was left to its owner lasts from now on, even if its lease can no longer be trusted.
    /// Returns `false` if the server no longer has it.
    pub(crate) async fn outlast(&self, lease: Duration) -> Result<bool, Error> {
        let lease = LeaseTime::new(lease)?;
        let client = &self.request.client;
        client.ensure_open()?;
        let (_turn, began) = self.request.turn(&self.hold).await?;
        self.set(lease, self.hold.has_one_left(), began).await
    }

    /// Raises the lease, or also cuts it if the level is `alone`. Returns `false` if the server no longer has the hold.
    /// The caller has the record's turn.
    async fn set(&self, lease: LeaseTime, alone: bool, began: BootInstant) -> Result<bool, Error> {
        let request = &self.request;
        if !request.finish_cut(&self.hold, began).await? {
            return Ok(false);
        }
        // As long as the caller has the turn, nobody else uses the lease, and no request in flight can undo a cut.
        let record = &self.hold.record;
        let alone = alone && !record.was_joined() && !record.is_being_confirmed();
        let cut = if alone { Cut::Ask } else { Cut::Never };
        // Noted before the request is sent: even without an answer, the server may keep the hold for this long.
        self.hold.lock().schedule.asks_for(lease);
        let set = request.set_lease(&self.hold, lease, cut, began).await;
        let stands = set.map_err(|error| request.blame(error))?;
        // The lease now ends at another time, so the next check is due at another.
        request.client.watchdog.watch(&self.hold);
        Ok(stands)
    }

    /// Asks the server whether this very hold still exists.
    ///
    /// `Ok` describes only the instant at which the server answered. If the process is paused after that, only a
    /// fencing token that the protected resource checks can stop its late write.
    ///
    /// # Errors
    ///
    /// [`LeaseLost`](crate::ErrorKind::LeaseLost) if the hold is gone; [`Timeout`](crate::ErrorKind::Timeout) and
    /// [`Backend`](crate::ErrorKind::Backend) if the server did not answer or refused.
    ///
    /// # Cancel safety
    ///
    /// This method is cancel safe: it changes nothing on the server.
    ///
    /// # Examples
    ///
    /// ```
    /// # redlatch_testkit::doc(async |url| {
    /// # let client = redlatch::Client::connect(url).await?;
    /// # let other = redlatch::Client::connect(url).await?;
    /// use redlatch::ErrorKind;
    ///
    /// let guard = client.lock("orders:42").lock().await?;
    /// guard.verify().await?; // before a step that is hard to undo
    ///
    /// other.lock("orders:42").force_unlock().await?;
    /// let error = guard.verify().await.unwrap_err();
    /// assert_eq!(error.kind(), ErrorKind::LeaseLost);
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
    pub async fn verify(&self) -> Result<(), Error> {
        self.request.client.within(self.verified()).await
    }

    fn verified(&self) -> BoxFuture<'_, Result<(), Error>> {
        Box::pin(async {
            let client = &self.request.client;
            client.ensure_open()?;
            if self.is_lost() {
                return Err(self.lost_error());
            }
            let key = self.hold.key();
            let call = key.kind.shape().check(std::iter::once(key));
            let answer = client.run(&call, self.hold.timeout).await?;
            let standing = answer.reply.standing(1);
            match standing.map_err(|error| call.blame(error))? == [true] {
                true => self.went_on(),
                false => Err(self.gone()),
            }
        })
    }

    /// Runs a future as long as the lease can be trusted.
    ///
    /// The lease is checked before each poll of the future, and its loss wakes the task, so the future stops even while
    /// it waits.
    ///
    /// # Errors
    ///
    /// [`LeaseLost`](crate::ErrorKind::LeaseLost) if the lease was lost before the future completed. The future is then
    /// dropped, and its work may be half done.
    ///
    /// # Cancel safety
    ///
    /// Dropping this future drops the inner one. The lock stays held.
    ///
    /// # Examples
    ///
    /// ```
    /// # redlatch_testkit::doc(async |url| {
    /// # let client = redlatch::Client::connect(url).await?;
    /// # async fn write_report() -> u32 { 12 }
    /// let guard = client.lock("nightly-report").lock().await?;
    /// let pages = guard.run_until_lost(write_report()).await?; // stops if another process may write it
    /// assert_eq!(pages, 12);
    /// guard.unlock().await?;
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
    pub async fn run_until_lost<F: Future>(&self, future: F) -> Result<F::Output, Error> {
        let error = |reason| self.lost_for(reason);
        run_until_lost(future, self.lost(), || self.loss(), error).await
    }

    /// Returns why the lease can no longer be trusted, or `None` if it can.
    pub(crate) fn loss(&self) -> Option<LossReason> {
        self.hold.loss()
    }

    /// Returns the error for a lease that was found lost.
    pub(crate) fn lost_error(&self) -> Error {
        // An answer that was late may have moved the deadline since.
        self.lost_for(self.loss().unwrap_or(LossReason::Expired))
    }

    pub(crate) fn lost_for(&self, reason: LossReason) -> Error {
        let name = self.request.name.key();
        Error::lost(reason).saying(format!(
            "the lease of {name:?} was lost: {reason}; stop the work that it protected"
        ))
    }

    /// Ends the hold, since the server says that it is not there. Returns the error for the caller.
    fn gone(&self) -> Error {
        drop(
            self.request
                .client
                .watchdog
                .lose(&self.hold, LossReason::Gone),
        );
        self.lost_error()
    }
}

impl Lease {
    /// Begins the one-line debug output of a value with this lease.
    pub(crate) fn show<'a, 'b>(
        &self,
        title: &str,
        f: &'a mut fmt::Formatter<'b>,
    ) -> fmt::DebugStruct<'a, 'b> {
        let mut shown = f.debug_struct(title);
        shown
            .field("name", &self.name())
            .field("owner", &format_args!("{}", self.owner()))
            .field("remaining", &shown_remaining(self.remaining()));
        shown
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.show("Lease", f).finish()
    }
}

/// Rounds the remaining time of a lease for people: to a tenth of a second, or to a millisecond if it is short.
pub(crate) fn shown_remaining(remaining: Duration) -> Duration {
    let millis = remaining.as_millis() as u64;
    Duration::from_millis(match millis {
        0..1_000 => millis,
        _ => millis - millis % 100,
    })
}

/// Runs a future until what protects it is lost. The loss is checked before each poll, and wakes the task. Shared by
/// the leases of single locks, of sets and of locks over several servers, which pass different `lost` and `loss`.
pub(crate) async fn run_until_lost<F: Future>(
    future: F,
    lost: impl Future<Output = LossReason>,
    loss: impl Fn() -> Option<LossReason>,
    error: impl Fn(LossReason) -> Error,
) -> Result<F::Output, Error> {
    let (mut future, mut lost) = (pin!(future), pin!(lost));
    poll_fn(|context| {
        // The signal may be late after a pause of the process; comparing clocks is right at once.
        let told = match lost.as_mut().poll(context) {
            Poll::Ready(reason) => Some(reason),
            Poll::Pending => loss(),
        };
        if let Some(reason) = told {
            return Poll::Ready(Err(error(reason)));
        }
        future.as_mut().poll(context).map(Ok)
    })
    .await
}
