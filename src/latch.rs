//! Waits until a shared count has come to zero.

use std::time::Duration;

use tracing::{Instrument, debug, debug_span};

use crate::counter::{Counter, check};
use crate::error::Error;
use crate::name::LockName;
use crate::options::Deadline;
use crate::protocol::answer::Ttl;
use crate::protocol::counted::{Count, Deleted, Set};
use crate::protocol::latch;
use crate::protocol::waiter::Local;
use crate::wait::{Asked, Waiting, Wanted};

/// A count that many processes wait for to come to zero: on the wire Redisson's `RCountDownLatch`.
///
/// Made by [`Client::latch`](crate::Client::latch). Somebody sets the count; whoever has done a part counts down;
/// whoever needs all parts waits. At zero the latch is gone, which is to be open, and its count can be set again.
///
/// # When to use it, and when another
///
/// To go on when a known number of things has happened elsewhere. For one at a time, a
/// [`ReentrantLock`](crate::ReentrantLock); for at most so many at a time, a [`Semaphore`](crate::Semaphore). Within
/// one process, a `JoinSet` or tokio's `Barrier` does without a server.
///
/// # Guarantee and limit
///
/// Each call counts once, however often the network made us send it. All that wait are woken by the message of the
/// last count down, or find out by themselves within a [`poll_cap`](crate::ClientBuilder::poll_cap). A latch has no
/// owner and no end: nobody counts down for a process that has crashed, so wait with a limit. One whose key the server
/// loses, by a flush, say, is open. A failover to a replica that lags may lose a count down that was answered, and then
/// the latch stays closed until somebody counts down once more, or [deletes](Self::delete) it. Who is woken late may
/// find that the count was set again meanwhile, and waits on.
///
/// With Redisson in one difference: [`delete`](Self::delete) opens the latch for waiters of both sides, where
/// Redisson's own leaves them waiting.
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
#[derive(Clone, Debug)]
pub struct Latch(pub(crate) Counter);

impl Latch {
    /// Sets the count, from 1 to 2³¹ − 1, if the latch is open; false if it has a count.
    ///
    /// # Errors
    ///
    /// - [`InvalidInput`](crate::ErrorKind::InvalidInput): name or count cannot work; nothing was sent.
    /// - [`WrongKind`](crate::ErrorKind::WrongKind): the name is in use by something else.
    /// - [`Timeout`](crate::ErrorKind::Timeout), [`Backend`](crate::ErrorKind::Backend): the server did not answer
    ///   or refused.
    /// - [`Closed`](crate::ErrorKind::Closed): the client was closed.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the count may or may not have been set.
    pub async fn try_set_count(&self, count: u32) -> Result<bool, Error> {
        let set = async {
            let name = self.0.open()?;
            let count = check("the count of a latch", count, 1)?;
            let set = self
                .0
                .change(name, |name, mark| latch::set(name, mark, count));
            Ok(Set::decode(&set.await?, name.key())? == Set::Done)
        };
        self.0.client.within(Box::pin(set)).await
    }

    /// The count: 0 if the latch is open, or was never set.
    ///
    /// Like every query, this tells of a moment that has passed when the answer arrives.
    ///
    /// # Errors
    ///
    /// As [`count_down`](Self::count_down).
    ///
    /// # Cancel safety
    ///
    /// Nothing is changed on the server, whenever the future is dropped.
    pub async fn count(&self) -> Result<u32, Error> {
        let count = async { Ok(self.read(self.0.open()?).await?.unsigned()) };
        self.0.client.within(Box::pin(count)).await
    }

    /// Counts down by one; at zero the latch opens, and all that wait are woken. Nothing happens if it is open.
    ///
    /// # Errors
    ///
    /// As [`try_set_count`](Self::try_set_count). After a [`Timeout`](crate::ErrorKind::Timeout) it may have been
    /// counted.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, it may or may not have been counted. It is counted once at the most.
    pub async fn count_down(&self) -> Result<(), Error> {
        let count_down = async {
            let name = self.0.open()?;
            let counted = self.0.change(name, latch::count_down).await?;
            Count::decode(&counted, name.key()).map(drop)
        };
        self.0.client.within(Box::pin(count_down)).await
    }

    /// Waits until the latch is open, for as long as it takes. One that was never set is.
    ///
    /// # Errors
    ///
    /// As [`count_down`](Self::count_down); but a server that does not answer is an error only after one
    /// [`watchdog_lease`](crate::ClientBuilder::watchdog_lease) of silence.
    ///
    /// # Cancel safety
    ///
    /// Nothing is changed on the server, whenever the future is dropped.
    pub async fn wait(&self) -> Result<(), Error> {
        self.open_within(|| Deadline::Never).await.map(drop)
    }

    /// Waits until the latch is open, at most so long. False if it was not until then.
    ///
    /// [`Duration::ZERO`] looks once, [`Duration::MAX`] waits for ever. A request on its way at the end is waited
    /// for, so the call returns by its limit plus one
    /// [`command_timeout`](crate::ClientBuilder::command_timeout).
    ///
    /// # Errors
    ///
    /// As [`count_down`](Self::count_down); but a server that does not answer is an error only when the limit is
    /// reached.
    ///
    /// # Cancel safety
    ///
    /// Nothing is changed on the server, whenever the future is dropped.
    pub async fn wait_for(&self, wait: Duration) -> Result<bool, Error> {
        self.open_within(|| Deadline::within(wait)).await
    }

    /// Removes the latch, which opens it: all that wait are woken. False if it was open.
    ///
    /// # Errors
    ///
    /// As [`count_down`](Self::count_down).
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the latch may or may not have been removed.
    pub async fn delete(&self) -> Result<bool, Error> {
        let delete = async {
            let name = self.0.open()?;
            let deleted = self.0.change(name, latch::delete).await?;
            Ok(Deleted::decode(&deleted, name.key())? == Deleted::Done)
        };
        self.0.client.within(Box::pin(delete)).await
    }

    async fn open_within(&self, deadline: impl FnOnce() -> Deadline + Send) -> Result<bool, Error> {
        let waiting = async {
            let name = self.0.open()?;
            let mut wait = self.0.wait(deadline());
            let mut look = Look { latch: self, name };
            let span = debug_span!("wait", latch = %name.key());
            let mut waiting = self.0.waiting(name, &mut wait);
            let open = waiting.until(&mut look).instrument(span);
            let open = open.await?.is_some();
            debug!(latch = %name.key(), open, "waited");
            Ok(open)
        };
        self.0.client.within(Box::pin(waiting)).await
    }

    async fn read(&self, name: &LockName) -> Result<Count, Error> {
        let reply = self.0.ask(&latch::read(name)).await?;
        Count::decode(&reply, name.key())
    }
}

/// Is the latch open?
struct Look<'a> {
    latch: &'a Latch,
    name: &'a LockName,
}

impl Local for Look<'_> {}

impl Wanted for Look<'_> {
    type Output = ();

    async fn ask(&mut self, _: &mut Waiting<'_>) -> Result<Asked<()>, Error> {
        Ok(match self.latch.read(self.name).await {
            Ok(Count(..=0)) => Asked::Ready(()),
            Ok(Count(_)) => Asked::Busy(Ttl::Never.into()),
            Err(error) => Asked::Failed(error),
        })
    }
}
