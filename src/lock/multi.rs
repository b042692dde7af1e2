//! Several locks, taken as one.

use std::future::Future;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::join_all;
use futures_util::stream::FuturesUnordered;

use super::fenced::FencingToken;
use super::handle::Handle;
use super::member::{Member, Members};
use crate::error::Error;
use crate::hold::batch;
use crate::hold::group;
use crate::hold::guard::LockGuard;
use crate::hold::lease::{Lease, run_until_lost};
use crate::options::Deadline;
use crate::owner::Owner;

/// Several locks, taken as one: all of them or none. Redisson's `RedissonMultiLock`.
///
/// Made by [`new`](Self::new) from locks of any kinds and clients. It stores nothing of its own: every member is held
/// as the lock that it is, and excludes whoever takes it by itself, in Java too.
///
/// # When to use it, and when another
///
/// When one piece of work needs several resources that others lock one by one: both accounts of a transfer, a seat and
/// its row. If the same names are always taken together, one lock with a name for all of them is simpler. For one lock
/// that outlives the loss of a server, this is the wrong way round, since each member more can fail: every one of them
/// must be had.
///
/// # AcquireRequest
///
/// Every set asks for its members in the order of their keys, prefix included, whatever order they were given in; so
/// two sets with the same names in opposite orders do not deadlock. While it waits for one, it holds those before it,
/// for one second at most: then it gives them back, keeps its place in line, and begins with the one that was so long
/// in coming. Those before that one it then takes only if they are free; else it gives all back and begins with one
/// that was busy. See [`hold_and_wait`](Self::hold_and_wait). A task that nests locks by hand, in another order, can
/// still deadlock with a set, as with any lock.
///
/// Redisson's multi locks ask in the order given, and give all back when that takes too long, 1.5 seconds a lock.
/// Beside a set of these with the opposite order somebody has to give way, and it is they, after that time.
///
/// One name on several servers, or in several databases of one, has no order. Of these the set holds none while it
/// waits for another: if one is busy, all are given back and tried again after a short random pause. One lock named
/// twice is [`InvalidInput`](crate::ErrorKind::InvalidInput), also through two clients of one database; whether they
/// have one server is asked of the server once a connection, by `INFO`.
///
/// # Lease and owner
///
/// Each member has its own lease, as it was given it, and a set has none. A lease that is not renewed begins anew as
/// long as the set waits for others, so that all are good when the guard is handed out. The owner is one for all: the
/// current task, or the one that [`owned_by`](Self::owned_by) or a member names; two different ones are
/// [`InvalidInput`](crate::ErrorKind::InvalidInput). A member that this owner holds already is taken again, if its kind
/// is reentrant.
///
/// # Guarantee and limit
///
/// While the guard lives and is not [lost](MultiGuard::lost), every member is held, each with the guarantee and the
/// limit of its kind. What was taken is given back when another is busy until the limit, fails, or the call is
/// dropped. Others can see members taken and given back while a set waits.
///
/// # Examples
///
/// ```
/// # redlatch_testkit::doc(async |url| {
/// use std::time::Duration;
/// use redlatch::{Client, MultiLock};
///
/// let client = Client::connect(url).await?;
/// let transfer = MultiLock::new([client.lock("account:7"), client.lock("account:3")]);
/// let Some(both) = transfer.try_lock_for(Duration::from_secs(2)).await? else {
///     return Ok(()); // one of them was busy: neither is held
/// };
/// both.run_until_lost(async { /* move the money */ }).await?;
/// both.unlock().await?;
/// # Ok::<(), redlatch::Error>(()) });
/// ```
#[derive(Clone, Debug)]
pub struct MultiLock {
    members: Members,
    hold_and_wait: Duration,
}

/// A set that waits holds others up. Sections are mostly shorter than this, so that a set mostly keeps what it has.
const HOLD_AND_WAIT: Duration = Duration::from_secs(1);

impl MultiLock {
    /// The set of these locks. No I/O; what cannot work is [`InvalidInput`](crate::ErrorKind::InvalidInput) to every
    /// verb.
    #[must_use]
    pub fn new<M: Into<Member>>(locks: impl IntoIterator<Item = M>) -> Self {
        Self {
            members: Members::new(locks),
            hold_and_wait: HOLD_AND_WAIT,
        }
    }

    /// Acts for this owner instead of the current task.
    #[must_use = "this makes a new handle and leaves the old one as it is"]
    pub fn owned_by(mut self, owner: &Owner) -> Self {
        self.members = self.members.owned_by(owner);
        self
    }

    /// Holds some of the locks for at most so long while it waits for another, and then gives them back until it has
    /// that one; one second by default.
    ///
    /// Each time that a call had to give back it holds what it has twice as long the next time. So it gets in at last
    /// also where several of its locks are nearly always held, by sections longer than this. With
    /// [`Duration::MAX`] it never gives back, and is the sooner whole for it; with [`Duration::ZERO`] it holds nothing
    /// while it waits, and may wait for as long as no moment comes at which all are free.
    #[must_use = "this makes a new handle and leaves the old one as it is"]
    pub fn hold_and_wait(mut self, at_most: Duration) -> Self {
        self.hold_and_wait = at_most;
        self
    }

    /// Takes all locks, for as long as it takes.
    ///
    /// # Errors
    ///
    /// As [`ReentrantLock::lock`](crate::ReentrantLock::lock), of the first member that fails; the text names it, and
    /// the others are given back. [`InvalidInput`](crate::ErrorKind::InvalidInput) also for a set without locks, for
    /// one lock named twice and for different owners; [`LeaseLost`](crate::ErrorKind::LeaseLost) also if a member was
    /// lost while the set waited for another.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, what it has taken is released in the background, as
    /// [`ReentrantLock::lock`](crate::ReentrantLock::lock) tells.
    pub async fn lock(&self) -> Result<MultiGuard, Error> {
        self.members
            .handles()
            .try_for_each(Handle::ensure_endless)?;
        let taken = self.acquire(|| Deadline::Never).await?;
        taken.ok_or_else(Error::endless)
    }

    /// Takes all locks, if each is free or this owner's. None if one is busy; then none is held.
    ///
    /// # Errors
    ///
    /// As [`lock`](Self::lock), but a server that does not answer is an error after one
    /// [`command_timeout`](crate::ClientBuilder::command_timeout).
    ///
    /// # Cancel safety
    ///
    /// As [`lock`](Self::lock).
    pub async fn try_lock(&self) -> Result<Option<MultiGuard>, Error> {
        self.acquire(|| Deadline::Once).await
    }

    /// Takes all locks, waiting at most so long for all of them together. None if one was busy until then; then none
    /// is held.
    ///
    /// [`Duration::ZERO`] is one attempt, [`Duration::MAX`] waits for ever. A request on its way at the end is waited
    /// for, so the call returns by its limit plus one [`command_timeout`](crate::ClientBuilder::command_timeout).
    ///
    /// # Errors
    ///
    /// As [`lock`](Self::lock), but a server that cannot be reached or does not answer is an error when the limit is
    /// reached.
    ///
    /// # Cancel safety
    ///
    /// As [`lock`](Self::lock).
    pub async fn try_lock_for(&self, wait: Duration) -> Result<Option<MultiGuard>, Error> {
        self.acquire(|| Deadline::within(wait)).await
    }

    async fn acquire(
        &self,
        deadline: impl FnOnce() -> Deadline + Send,
    ) -> Result<Option<MultiGuard>, Error> {
        // Before the first await: the owner is who polls first.
        let (owner, requests) = self.members.requests()?;
        let acquire = async {
            let guards = group::acquire(requests, deadline(), self.hold_and_wait).await?;
            Ok(guards.map(|guards| MultiGuard { guards, owner }))
        };
        self.members.client()?.within(Box::pin(acquire)).await
    }
}

/// One level of every lock of a [`MultiLock`], until the guard is unlocked or dropped.
///
/// [`unlock`](Self::unlock) says whether all were still held; dropping the guard releases them in the background.
#[must_use = "the locks are released as soon as the guard is dropped"]
#[clippy::has_significant_drop]
#[derive(Debug)]
pub struct MultiGuard {
    /// As the locks were given.
    guards: Vec<LockGuard>,
    owner: Owner,
}

impl MultiGuard {
    /// Gives all locks back, and says whether all were still held. Each is given back, whatever becomes of the others.
    ///
    /// # Errors
    ///
    /// As [`LockGuard::unlock`], of the first of them that fails.
    ///
    /// # Cancel safety
    ///
    /// As [`LockGuard::unlock`].
    pub async fn unlock(self) -> Result<(), Error> {
        match self
            .guards
            .first()
            .map(|guard| guard.request.client.clone())
        {
            Some(client) => client.within(Box::pin(batch::release(self.guards))).await,
            None => Ok(()),
        }
    }

    /// Resolves when the first of the leases can no longer be trusted; see [`Lease::lost`].
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost by dropping the future.
    pub async fn lost(&self) {
        let mut losses: FuturesUnordered<_> = self.leases().map(Lease::lost).collect();
        losses.next().await;
    }

    /// Whether one of the leases can no longer be trusted; see [`Lease::is_lost`].
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.leases().any(Lease::is_lost)
    }

    /// How long all leases can still be trusted if nothing more is heard from the servers. Zero once one is lost.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.leases()
            .map(Lease::remaining)
            .min()
            .unwrap_or_default()
    }

    /// Who holds the locks.
    #[must_use]
    pub fn owner(&self) -> &Owner {
        &self.owner
    }

    /// Gives each member a new lease from now on; see [`Lease::extend`].
    ///
    /// # Errors
    ///
    /// As [`Lease::extend`], of the first member that fails. The others may have the new lease.
    ///
    /// # Cancel safety
    ///
    /// As [`Lease::extend`].
    pub async fn extend(&self, lease: Duration) -> Result<(), Error> {
        let extended = join_all(self.leases().map(|member| member.extend(lease))).await;
        extended.into_iter().collect()
    }

    /// Asks the servers whether each of the holds still stands; see [`Lease::verify`].
    ///
    /// # Errors
    ///
    /// As [`Lease::verify`], of the first member that fails.
    ///
    /// # Cancel safety
    ///
    /// Nothing is changed on the servers, whenever the future is dropped.
    pub async fn verify(&self) -> Result<(), Error> {
        let verified = join_all(self.leases().map(Lease::verify)).await;
        verified.into_iter().collect()
    }

    /// Runs a future for as long as every lease can be trusted; see [`Lease::run_until_lost`].
    ///
    /// # Errors
    ///
    /// [`LeaseLost`](crate::ErrorKind::LeaseLost) if one of the leases was lost before the future was done. The future
    /// is dropped then; its work may be half done.
    ///
    /// # Cancel safety
    ///
    /// Dropping this future drops the one inside. The locks stay held.
    pub async fn run_until_lost<F: Future>(&self, future: F) -> Result<F::Output, Error> {
        run_until_lost(future, self.lost(), || self.is_lost(), || self.lost_error()).await
    }

    /// The lease of each lock, in the order in which the locks were given.
    pub fn leases(&self) -> impl Iterator<Item = &Lease> {
        self.guards.iter().map(|guard| &**guard)
    }

    /// The tokens of the locks, in the order in which they were given; None for one that is not fenced.
    pub fn tokens(&self) -> impl Iterator<Item = Option<FencingToken>> {
        self.leases().map(FencingToken::of)
    }

    fn lost_error(&self) -> Error {
        let lost = self.leases().find(|member| member.is_lost());
        let lost = lost.or_else(|| self.leases().next());
        lost.map_or_else(Error::closed, Lease::lost_error)
    }
}
