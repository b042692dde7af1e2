//! The latch: a shared count, and calls that wait until it is zero.

use std::fmt;
use std::time::Duration;

use tracing::{Instrument, debug, debug_span};

use crate::counter::{Counter, check};
use crate::error::Error;
use crate::name::LockName;
use crate::options::Deadline;
use crate::protocol::answer::Ttl;
use crate::protocol::counted::{Changed, CounterValue};
use crate::protocol::latch;
use crate::protocol::waiter::Local;
use crate::stats::Counted;
use crate::wait::{Asked, Waiting, Wanted};

/// A count that all processes share, with calls that wait until it is zero; wire-compatible with Redisson's
/// `RCountDownLatch`.
///
/// Created by [`Client::latch`](crate::Client::latch). One client sets the count. Each client that has finished a part
/// counts down, and the clients that need all parts wait. At zero, the latch's key is removed: a latch without a key is
/// open, and its count can be set again.
///
/// # When to use it, and when to use another
///
/// Use it to continue when a known number of things has happened elsewhere. For one caller at a time, use a
/// [`ReentrantLock`](crate::ReentrantLock); for a limited number of callers at a time, a
/// [`Semaphore`](crate::semaphore::Semaphore). Within one process, a `JoinSet` or tokio's `Barrier` needs no server.
///
/// # Guarantee and limit
///
/// Each call counts once, even if this client had to send it several times. All waiters are woken by the message of the
/// last countdown, or find out by themselves within one [`poll_cap`](crate::ClientBuilder::poll_cap). A latch has no
/// owner and does not expire: nobody counts down for a process that has crashed, so wait with a limit. A latch whose
/// key the server loses, for example in a flush, is open. A failover to a lagging replica may lose a countdown that the
/// old primary had confirmed. The latch then stays closed until a client counts down once more or
/// [deletes](Self::delete) it. A waiter that is woken late may find that the count has been set again in the meantime,
/// and then continues to wait.
///
/// If the reply to a call was lost, a key by which the server recognizes a repeated call remains next to the latch for
/// two minutes. Java ignores it.
///
/// There is one difference from Redisson: [`delete`](Self::delete) wakes the waiters of both sides, whereas Redisson's
/// own delete leaves Redisson's waiters waiting.
///
/// # Examples
///
/// ```
/// # redlatch_testkit::doc(async |url| {
/// use redlatch::Client;
///
/// let client = Client::connect(url).await?;
/// let imported = client.latch("imported");
/// assert!(imported.try_set_count(2).await?);
/// for part in ["a", "b"] {
///     let imported = imported.clone();
///     tokio::spawn(async move {
///         println!("{part} is in");
///         imported.count_down().await
///     });
/// }
/// imported.wait().await?;
/// assert_eq!(imported.count().await?, 0);
/// # Ok::<(), redlatch::Error>(()) });
/// ```
#[doc(alias("CountDownLatch", "Barrier"))]
#[derive(Clone)]
pub struct Latch(pub(crate) Counter);

impl fmt::Debug for Latch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.show("Latch", f)
    }
}

impl Latch {
    /// Returns the name of the latch, with the prefix of its client; see
    /// [`ReentrantLock::name`](crate::ReentrantLock::name).
    ///
    /// # Examples
    ///
    /// ```
    /// # redlatch_testkit::doc(async |url| {
    /// # let client = redlatch::Client::connect(url).await?;
    /// let parts = client.latch("import:42:parts");
    /// assert_eq!(parts.name(), "import:42:parts");
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
    #[must_use]
    pub fn name(&self) -> &str {
        self.0.shown_name()
    }

    /// Sets the count, from 1 to 2³¹ − 1, if the latch is open. Returns `false` and changes nothing if the latch is
    /// closed.
    ///
    /// # Errors
    ///
    /// - [`InvalidInput`](crate::ErrorKind::InvalidInput): the name or the count cannot work; nothing was sent.
    /// - [`WrongKind`](crate::ErrorKind::WrongKind): the name is in use by something else.
    /// - [`Timeout`](crate::ErrorKind::Timeout), [`Backend`](crate::ErrorKind::Backend): the server did not answer
    ///   or refused.
    /// - [`Closed`](crate::ErrorKind::Closed): the client was closed.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the count may or may not have been set.
    ///
    /// # Examples
    ///
    /// ```
    /// # redlatch_testkit::doc(async |url| {
    /// # let client = redlatch::Client::connect(url).await?;
    /// let shards = client.latch("reindex:shards");
    /// assert!(shards.try_set_count(3).await?);
    /// // A second coordinator finds the count of the first one, and leaves it alone.
    /// assert!(!shards.try_set_count(5).await?);
    /// assert_eq!(shards.count().await?, 3);
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
    pub async fn try_set_count(&self, count: u32) -> Result<bool, Error> {
        let set = async {
            let name = self.0.open()?;
            let count = check("the count of a latch", count, 1)?;
            let set = self
                .0
                .change(name, |name, mark| latch::set(name, mark, count));
            Ok(Changed::decode(&set.await?, name.key())?.0)
        };
        self.0.client.within(Box::pin(set)).await
    }

    /// Returns the count: 0 if the latch is open, as it is when its count was never set.
    ///
    /// As with every query, the answer describes a state that may have changed by the time the answer arrives.
    ///
    /// # Errors
    ///
    /// Same as [`try_set_count`](Self::try_set_count).
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
    /// let tables = client.latch("backup:tables");
    /// assert_eq!(tables.count().await?, 0); // never set
    /// tables.try_set_count(4).await?;
    /// tables.count_down().await?;
    /// println!("{} of 4 tables are saved", 4 - tables.count().await?);
    /// # assert_eq!(tables.count().await?, 3);
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
    pub async fn count(&self) -> Result<u32, Error> {
        let count = async { Ok(self.read(self.0.open()?).await?.unsigned()) };
        self.0.client.within(Box::pin(count)).await
    }

    /// Counts down by one. At zero, the latch opens and all waiters are woken. Does nothing if the latch is open.
    ///
    /// # Errors
    ///
    /// Same as [`try_set_count`](Self::try_set_count). After a [`Timeout`](crate::ErrorKind::Timeout), the call may
    /// have been counted.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the call may or may not have been counted. It is counted at most once.
    ///
    /// # Examples
    ///
    /// ```
    /// # redlatch_testkit::doc(async |url| {
    /// # let client = redlatch::Client::connect(url).await?;
    /// # async fn resize(image: u32) {}
    /// let images = client.latch("album:7:images");
    /// images.try_set_count(2).await?;
    /// for image in 1..=2 {
    ///     resize(image).await;
    ///     images.count_down().await?;
    /// }
    /// images.count_down().await?; // open already: does nothing
    /// assert_eq!(images.count().await?, 0);
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
    pub async fn count_down(&self) -> Result<(), Error> {
        let count_down = async {
            let name = self.0.open()?;
            let counted = self.0.change(name, latch::count_down).await?;
            CounterValue::decode(&counted, name.key()).map(drop)
        };
        self.0.client.within(Box::pin(count_down)).await
    }

    /// Waits until the latch is open, without a limit. A latch whose count was never set is open.
    ///
    /// # Errors
    ///
    /// Same as [`count`](Self::count), except that a server that does not answer is an error only after one
    /// [`watchdog_lease`](crate::ClientBuilder::watchdog_lease).
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
    /// let migrated = client.latch("migrated");
    /// migrated.try_set_count(1).await?;
    /// let migration = async {
    ///     println!("one process migrates, and all others wait");
    ///     migrated.count_down().await
    /// };
    /// tokio::try_join!(migrated.wait(), migration)?;
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
    pub async fn wait(&self) -> Result<(), Error> {
        self.open_within(Duration::MAX).await.map(drop)
    }

    /// Waits until the latch is open, for at most `wait`. Returns `false` if it is still closed when the wait ends.
    ///
    /// [`Duration::ZERO`] checks once; [`Duration::MAX`] waits without a limit. If a request is on its way when the
    /// limit is reached, the call waits for its answer, so it returns within `wait` plus one
    /// [`command_timeout`](crate::ClientBuilder::command_timeout).
    ///
    /// # Errors
    ///
    /// Same as [`count`](Self::count), except that a server that does not answer is an error only when the limit is
    /// reached.
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
    /// use std::time::Duration;
    ///
    /// let ready = client.latch("deploy:ready");
    /// ready.try_set_count(2).await?;
    /// ready.count_down().await?; // the second process has crashed before it could
    /// if !ready.wait_for(Duration::from_millis(50)).await? {
    ///     assert_eq!(ready.count().await?, 1); // continue without it, or roll back
    /// }
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
    pub async fn wait_for(&self, wait: Duration) -> Result<bool, Error> {
        self.open_within(wait).await
    }

    /// Removes the latch, which opens it and wakes all waiters. Returns `false` if the latch was open.
    ///
    /// # Errors
    ///
    /// Same as [`try_set_count`](Self::try_set_count).
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the latch may or may not have been removed.
    ///
    /// # Examples
    ///
    /// ```
    /// # redlatch_testkit::doc(async |url| {
    /// # let client = redlatch::Client::connect(url).await?;
    /// let parts = client.latch("import:42:parts");
    /// parts.try_set_count(3).await?;
    /// // The import is cancelled: nobody has to wait for its parts any more.
    /// let ((), deleted) = tokio::try_join!(parts.wait(), parts.delete())?;
    /// assert!(deleted);
    /// assert!(!parts.delete().await?);
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
    pub async fn delete(&self) -> Result<bool, Error> {
        let delete = async {
            let name = self.0.open()?;
            let deleted = self.0.change(name, latch::delete).await?;
            Ok(Changed::decode(&deleted, name.key())?.0)
        };
        self.0.client.within(Box::pin(delete)).await
    }

    fn open_within(&self, wait: Duration) -> impl Future<Output = Result<bool, Error>> + Send {
        let waiting = async move {
            let name = self.0.open()?;
            let deadline = Deadline::within(wait);
            let call = self.0.client.tally.call(Counted::Latch, name.key());
            let mut wait = self.0.wait(deadline);
            let mut look = LatchCheck { latch: self, name };
            let span = debug_span!("wait", latch = %name.key());
            let mut waiting = self.0.waiting(name, &mut wait);
            let open = waiting.until(&mut look).instrument(span);
            let open = open.await;
            call.ended(deadline, &open);
            let open = open?.is_some();
            debug!(latch = %name.key(), open, "waited");
            Ok(open)
        };
        self.0.client.within(Box::pin(waiting))
    }

    async fn read(&self, name: &LockName) -> Result<CounterValue, Error> {
        let reply = self.0.ask(&latch::read(name)).await?;
        CounterValue::decode(&reply, name.key())
    }
}

/// The question of a waiting call: whether the latch is open.
struct LatchCheck<'a> {
    latch: &'a Latch,
    name: &'a LockName,
}

impl Local for LatchCheck<'_> {}

impl Wanted for LatchCheck<'_> {
    type Output = ();

    async fn ask(&mut self, _: &mut Waiting<'_>) -> Result<Asked<()>, Error> {
        Ok(match self.latch.read(self.name).await {
            Ok(CounterValue(..=0)) => Asked::Ready(()),
            Ok(CounterValue(_)) => Asked::Busy(Ttl::Never.into()),
            Err(error) => Asked::Failed(error),
        })
    }
}
