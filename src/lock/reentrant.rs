//! A lock that its owner may take again.

use std::sync::Arc;
use std::time::Duration;

use crate::error::{Error, ErrorKind};
use crate::hold::guard::LockGuard;
use crate::hold::order::Order;
use crate::name::LockName;
use crate::options::{LeaseTime, Limit, Term};
use crate::owner::Owner;
use crate::protocol::lock::{self, ForceReleased, Inspected};
use crate::session::Anchor;
use crate::session::baton::Owed;
use crate::session::hold::Loss;

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
/// Within one process waiters are served in the order in which they came; between processes there is no order.
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
/// [`owned_by`](Self::owned_by) with [`Owner::unique`] keeps them apart. So is needed for nesting on an executor other
/// than tokio's.
///
/// # When to use another
///
/// For one process, [`tokio::sync::Mutex`]. If the protected resource is itself a database, its own constraint or
/// row lock is simpler and stricter.
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
pub struct ReentrantLock {
    anchor: Arc<Anchor>,
    /// Checked when a verb is called, so that making a handle cannot fail.
    name: Result<LockName, Error>,
    watchdog_lease: Duration,
    fixed_lease: Option<Duration>,
    owner: Option<Owner>,
}

impl ReentrantLock {
    pub(crate) fn new(
        anchor: Arc<Anchor>,
        name: Result<LockName, Error>,
        watchdog_lease: Duration,
    ) -> Self {
        Self {
            anchor,
            name,
            watchdog_lease,
            fixed_lease: None,
            owner: None,
        }
    }

    /// Holds the lock for so long, from 50 ms to 100 years, and does not renew it. Fractions of a millisecond are
    /// dropped. Another lease is answered with [`InvalidInput`](crate::ErrorKind::InvalidInput) by every verb.
    #[must_use = "this makes a new handle and leaves the old one as it is"]
    pub fn lease(mut self, lease: Duration) -> Self {
        self.fixed_lease = Some(lease);
        self
    }

    /// Acts for this owner instead of the current task.
    #[must_use = "this makes a new handle and leaves the old one as it is"]
    pub fn owned_by(mut self, owner: &Owner) -> Self {
        self.owner = Some(owner.clone());
        self
    }

    /// Takes the lock, for as long as it takes.
    ///
    /// Waits behind the other waiters of this process, and is woken by the unlock of whoever holds the lock. An
    /// owner that holds the lock already takes it again at once.
    ///
    /// # Errors
    ///
    /// - [`InvalidInput`](crate::ErrorKind::InvalidInput): name, lease or owner cannot work; nothing was sent.
    /// - [`Backend`](crate::ErrorKind::Backend): the server refused; or it could not be reached for one watchdog lease.
    /// - [`Timeout`](crate::ErrorKind::Timeout): it answered nothing for one watchdog lease.
    /// - [`LeaseLost`](crate::ErrorKind::LeaseLost): the grant came so late that less than
    ///   [`min_validity`](crate::ClientBuilder::min_validity) was left of its lease; it was given back.
    /// - [`WrongKind`](crate::ErrorKind::WrongKind): the name is in use by something else.
    /// - [`Refused`](crate::ErrorKind::Refused): the owner holds it 2³¹ − 1 times.
    /// - [`Closed`](crate::ErrorKind::Closed): the client was closed, before or meanwhile.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the place in line is given up. A request that is on its way may still take the
    /// lock; it is released in the background then, and until that arrives, one lease at the most, others see the
    /// lock as held.
    pub async fn lock(&self) -> Result<LockGuard, Error> {
        match self.acquire(|| Limit::Never).await? {
            Some(guard) => Ok(guard),
            None => Err(Error::new(
                ErrorKind::Timeout,
                "a wait without limit came to its limit",
            )),
        }
    }

    /// Takes the lock if it is free or this owner's: one attempt, which stands in no line.
    ///
    /// None if somebody else holds it.
    ///
    /// # Errors
    ///
    /// As [`lock`](Self::lock), but a server that does not answer is an error after one
    /// [`command_timeout`](crate::ClientBuilder::command_timeout).
    ///
    /// # Cancel safety
    ///
    /// As [`lock`](Self::lock).
    pub async fn try_lock(&self) -> Result<Option<LockGuard>, Error> {
        self.acquire(|| Limit::Once).await
    }

    /// Takes the lock, waiting at most so long. None if it was busy until then.
    ///
    /// [`Duration::ZERO`] is one attempt, [`Duration::MAX`] waits for ever. A request on its way at the end is
    /// waited for, so the call returns by its limit plus one
    /// [`command_timeout`](crate::ClientBuilder::command_timeout).
    ///
    /// # Errors
    ///
    /// As [`lock`](Self::lock), but a server that cannot be reached or does not answer is an error when the limit
    /// is reached.
    ///
    /// # Cancel safety
    ///
    /// As [`lock`](Self::lock).
    pub async fn try_lock_for(&self, wait: Duration) -> Result<Option<LockGuard>, Error> {
        self.acquire(|| Limit::within(wait)).await
    }

    /// Gives back one level that this owner holds, without its guard; a named owner's, wherever it was taken.
    ///
    /// A guard whose level was given back this way is lost.
    ///
    /// # Errors
    ///
    /// [`NotHeld`](crate::ErrorKind::NotHeld) if this owner holds nothing; else as
    /// [`LockGuard::unlock`](crate::LockGuard::unlock).
    ///
    /// # Cancel safety
    ///
    /// Once polled, the release goes on in the background if the future is dropped. For a level that another
    /// process holds it may not have begun then.
    pub async fn unlock(&self) -> Result<(), Error> {
        let unlock = async { self.order()?.unlock().await };
        self.anchor.within(Box::pin(unlock)).await
    }

    /// A guard for one level that this owner holds already: one that was [detached](LockGuard::detach), or of a
    /// named owner one that another process, or a Java client, holds. None if the owner holds nothing.
    ///
    /// What another process held is this process's from now on, and a guard there is lost. If this process has a
    /// guard for every level of the owner, the new one stands beside them: the levels are given back by whichever
    /// guards go first, and those that are left are lost.
    ///
    /// # Errors
    ///
    /// As [`try_lock`](Self::try_lock).
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, a level that was taken over is released in the background.
    pub async fn adopt(&self) -> Result<Option<LockGuard>, Error> {
        let adopt = async { self.order()?.adopt().await };
        self.anchor.within(Box::pin(adopt)).await
    }

    /// Whether anybody holds the lock.
    ///
    /// Like every query, this tells of a moment that has passed when the answer arrives: good for people and
    /// metrics, never a reason to go ahead.
    ///
    /// # Errors
    ///
    /// [`WrongKind`](crate::ErrorKind::WrongKind) if the name is in use by something else;
    /// [`Timeout`](crate::ErrorKind::Timeout) and [`Backend`](crate::ErrorKind::Backend) if the server did not answer
    /// or refused.
    ///
    /// # Cancel safety
    ///
    /// Nothing is changed on the server, whenever the future is dropped.
    pub async fn is_locked(&self) -> Result<bool, Error> {
        Ok(self.inspect().await?.is_some())
    }

    /// Whether this owner holds the lock, by the server's record.
    ///
    /// # Errors
    ///
    /// As [`is_locked`](Self::is_locked).
    ///
    /// # Cancel safety
    ///
    /// Nothing is changed on the server, whenever the future is dropped.
    pub async fn is_held(&self) -> Result<bool, Error> {
        Ok(self.hold_count().await? > 0)
    }

    /// How many levels this owner holds, in all processes together; 0 if it does not hold the lock.
    ///
    /// # Errors
    ///
    /// As [`is_locked`](Self::is_locked).
    ///
    /// # Cancel safety
    ///
    /// Nothing is changed on the server, whenever the future is dropped.
    pub async fn hold_count(&self) -> Result<u64, Error> {
        let count = async {
            // Before the first await: the owner is who polls first.
            let field = lock::field(&self.anchor.client_id, &self.owner()?);
            let record = self.ask().await?;
            match record
                .and_then(|record| record.fields.into_iter().find(|(name, _)| *name == field))
            {
                Some((_, count)) => self.count(&count),
                None => Ok(0),
            }
        };
        self.anchor.within(Box::pin(count)).await
    }

    /// How long the lock lasts if its holder, whoever that is, does not renew it. None if it is free, or held
    /// without end by something else than this crate.
    ///
    /// # Errors
    ///
    /// As [`is_locked`](Self::is_locked).
    ///
    /// # Cancel safety
    ///
    /// Nothing is changed on the server, whenever the future is dropped.
    pub async fn remaining_lease(&self) -> Result<Option<Duration>, Error> {
        Ok(self.inspect().await?.and_then(|record| record.left))
    }

    /// Who holds the lock, how often, and for how long. None if it is free.
    ///
    /// # Errors
    ///
    /// As [`is_locked`](Self::is_locked).
    ///
    /// # Cancel safety
    ///
    /// Nothing is changed on the server, whenever the future is dropped.
    pub async fn holder(&self) -> Result<Option<Holder>, Error> {
        let Some(record) = self.inspect().await? else {
            return Ok(None);
        };
        match record
            .fields
            .into_iter()
            .find(|(field, _)| !field.starts_with('|'))
        {
            Some((owner, count)) => Ok(Some(Holder {
                hold_count: self.count(&count)?,
                owner,
                remaining_lease: record.left,
            })),
            None => Err(Error::wrong_kind(self.name()?.key())),
        }
    }

    /// Frees the lock **whoever holds it**, and wakes a waiter. False if it was free.
    ///
    /// For operators: a holder that is alive goes on with its work until it learns of the loss, at its next renewal
    /// at the latest, and overlaps with the next one until then. Guards in this process are lost at once.
    ///
    /// # Errors
    ///
    /// As [`is_locked`](Self::is_locked).
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the lock may or may not have been freed; holds of this process are released in the
    /// background.
    pub async fn force_unlock(&self) -> Result<bool, Error> {
        let force = async {
            self.anchor.ensure_open()?;
            let name = self.name()?;
            let queue = self.anchor.queues.enter(name.key());
            let owed: Vec<_> = queue
                .holds()
                .iter()
                .filter_map(|hold| self.anchor.watchdog.lose(hold, Loss::Forced))
                .collect();
            let answer = self
                .anchor
                .run(
                    &lock::force_release(name),
                    self.anchor.settings.command_timeout,
                )
                .await?;
            let released = match ForceReleased::decode(&answer.reply)? {
                ForceReleased::Released => true,
                // An earlier send went unanswered: it may have been this call that freed the lock.
                ForceReleased::Free => answer.repeated,
                ForceReleased::WrongKind => return Err(Error::wrong_kind(name.key())),
            };
            for debt in owed {
                debt.forgive();
            }
            Ok(released)
        };
        self.anchor.within(Box::pin(force)).await
    }

    async fn acquire(
        &self,
        limit: impl FnOnce() -> Limit + Send,
    ) -> Result<Option<LockGuard>, Error> {
        let acquire = async { self.order()?.acquire(limit()).await };
        self.anchor.within(Box::pin(acquire)).await
    }

    /// What the server records of the lock. None if it is free.
    async fn inspect(&self) -> Result<Option<Record>, Error> {
        self.anchor.within(Box::pin(self.ask())).await
    }

    async fn ask(&self) -> Result<Option<Record>, Error> {
        self.anchor.ensure_open()?;
        let name = self.name()?;
        let answer = self
            .anchor
            .run(&lock::inspect(name), self.anchor.settings.command_timeout)
            .await?;
        match Inspected::decode(&answer.reply)? {
            Inspected::Held { ttl, fields } => Ok(Some(Record {
                left: ttl.left(),
                fields,
            })),
            Inspected::Free => Ok(None),
            Inspected::WrongKind => Err(Error::wrong_kind(name.key())),
        }
    }

    fn count(&self, text: &str) -> Result<u64, Error> {
        text.parse()
            .or_else(|_| Err(Error::wrong_kind(self.name()?.key())))
    }

    fn order(&self) -> Result<Order, Error> {
        let term = match self.fixed_lease {
            Some(lease) => Term::Fixed(LeaseTime::new(lease)?),
            None => Term::Renewed(LeaseTime::new(self.watchdog_lease)?),
        };
        Ok(Order {
            name: self.name()?.clone(),
            owner: self.owner()?,
            min_validity: self.anchor.settings.min_validity(term.lease())?,
            term,
            anchor: self.anchor.clone(),
        })
    }

    fn name(&self) -> Result<&LockName, Error> {
        self.name.as_ref().map_err(Clone::clone)
    }

    fn owner(&self) -> Result<Owner, Error> {
        let owner = self.owner.clone().unwrap_or_else(Owner::current);
        owner.check()?;
        Ok(owner)
    }
}

/// What the server records of a lock.
struct Record {
    left: Option<Duration>,
    fields: Vec<(String, String)>,
}

/// Who holds a lock, by the server's record at one moment. From [`ReentrantLock::holder`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    owner: String,
    hold_count: u64,
    remaining_lease: Option<Duration>,
}

impl Holder {
    /// The owner as the server knows it: `<client id>:<number>`, or the name of a named owner.
    #[must_use]
    pub fn owner(&self) -> &str {
        &self.owner
    }

    /// How many levels the owner holds.
    #[must_use]
    pub fn hold_count(&self) -> u64 {
        self.hold_count
    }

    /// How long the lock lasts if it is not renewed. None if it has no end.
    #[must_use]
    pub fn remaining_lease(&self) -> Option<Duration> {
        self.remaining_lease
    }
}
