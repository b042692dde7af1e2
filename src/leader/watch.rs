//! Watches who leads.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::term::Leader;
use crate::clock::BootInstant;
use crate::error::Error;
use crate::lock::handle::Handle;
use crate::options::Deadline;
use crate::outage::FailureStreak;
use crate::protocol::answer::Ttl;
use crate::protocol::leader::channel;
use crate::protocol::policy::COUNTER;
use crate::protocol::wait::{Wait, WakeSource};
use crate::protocol::waiter::Local;
use crate::wait::{Asked, Waiting, Wanted};

/// Watches who leads. Created by [`Election::watch`](crate::leader::Election::watch).
///
/// A watch reports the present leader, and not every change: of several changes between two calls, it returns the last
/// one. It learns from messages when a term begins or ends. If a message is lost, if a leader dies, or if the lock is
/// released by force, the watch finds out by asking the server, when the leader's lease ends or after a
/// [`poll_cap`](crate::ClientBuilder::poll_cap), 5 s by default.
///
/// # Examples
///
/// ```
/// # redlatch_testkit::doc(async |url| {
/// # let client = redlatch::Client::connect(url).await?;
/// # let other = redlatch::Client::connect(url).await?;
/// let mut watch = other.leader("scheduler").watch();
/// assert_eq!(watch.changed().await?, None); // nobody leads
///
/// let term = client.leader("scheduler").campaign().await?;
/// let leader = watch.changed().await?.expect("there is a leader");
/// assert_eq!(leader.identity(), client.id());
/// # term.step_down().await?;
/// # Ok::<(), redlatch::Error>(()) });
/// ```
pub struct LeaderWatch {
    handle: Handle,
    /// What was returned last; `None` before the first call.
    seen: Option<Option<Leader>>,
}

impl fmt::Debug for LeaderWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.handle.show("LeaderWatch", f)
    }
}

impl LeaderWatch {
    pub(super) fn new(handle: Handle) -> Self {
        Self { handle, seen: None }
    }

    /// Returns the name of the election, with the prefix of its client; see
    /// [`ReentrantLock::name`](crate::ReentrantLock::name).
    ///
    /// # Examples
    ///
    /// ```
    /// # redlatch_testkit::doc(async |url| {
    /// # let client = redlatch::Client::connect(url).await?;
    /// let watch = client.leader("scheduler").watch();
    /// assert_eq!(watch.name(), "scheduler");
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
    #[must_use]
    pub fn name(&self) -> &str {
        self.handle.shown_name()
    }

    /// Waits until the leader differs from the one that the previous call returned. Returns the new leader, or `None`
    /// if nobody leads. The first call returns as soon as the server has answered.
    ///
    /// While the servers cannot be reached, nobody knows who leads, and the call goes on waiting. To learn of an
    /// outage, call [`Election::current`](crate::leader::Election::current).
    ///
    /// # Errors
    ///
    /// Same as [`Election::campaign`](crate::leader::Election::campaign).
    ///
    /// # Cancel safety
    ///
    /// This method is cancel safe: a change that was not returned is returned by the next call.
    ///
    /// # Examples
    ///
    /// ```
    /// # redlatch_testkit::doc(async |url| {
    /// # let client = redlatch::Client::connect(url).await?;
    /// let election = client.leader("scheduler");
    /// let term = election.campaign().await?;
    /// let mut watch = election.watch();
    /// assert_eq!(watch.changed().await?, Some(term.leader()));
    ///
    /// let (stepped_down, leader) = tokio::join!(term.step_down(), watch.changed());
    /// stepped_down?;
    /// assert_eq!(leader?, None);
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
    pub async fn changed(&mut self) -> Result<Option<Leader>, Error> {
        let client = &self.handle.client;
        let leader = client.within(Box::pin(self.other_leader())).await?;
        self.seen = Some(leader.clone());
        Ok(leader)
    }

    async fn other_leader(&self) -> Result<Option<Leader>, Error> {
        let (client, name) = (&self.handle.client, self.handle.name()?);
        client.ensure_open()?;
        let mut look = self;
        let mut outage = FailureStreak::default();
        loop {
            let poll_cap = client.settings.poll_cap;
            let source = WakeSource::Messages { poll_cap };
            let mut wait = Wait::new(BootInstant::now(), Deadline::Never, Duration::MAX, source);
            let mut waiting = Waiting::new(client, name, &mut wait, COUNTER);
            match waiting.until(&mut look).await {
                Ok(Some(leader)) => return Ok(leader),
                // A wait without a limit does not end busy.
                Ok(None) => return Err(Error::endless()),
                Err(error) => outage.endure(client, name.key(), error).await?,
            }
        }
    }
}

impl Local for &LeaderWatch {}

/// The question of a waiting call: whether there is another leader.
impl Wanted for &LeaderWatch {
    type Output = Option<Leader>;

    async fn ask(&mut self, _: &mut Waiting<'_>) -> Result<Asked<Option<Leader>>, Error> {
        let holder = match self.handle.holder().await {
            Ok(holder) => holder,
            Err(error) => return Ok(Asked::Failed(error)),
        };
        let leader = holder.as_ref().map(Leader::of);
        if self.seen.as_ref() != Some(&leader) {
            return Ok(Asked::Ready(leader));
        }
        // The leader may have died: then there is another one when its lease has ended.
        let lease = holder.and_then(|holder| holder.remaining_lease());
        Ok(Asked::Busy(lease.map_or(Ttl::Never, Ttl::Ends).into()))
    }

    fn channel(&self) -> Option<Arc<str>> {
        self.handle.name().ok().map(channel)
    }
}
