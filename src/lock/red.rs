//! A lock that a majority of independent servers grants.

use std::future::Future;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use super::member::{Member, Members};
use crate::clock::BootInstant;
use crate::error::{Error, ErrorKind};
use crate::hold::guard::LockGuard;
use crate::hold::lease::{Lease, run_until_lost};
use crate::hold::quorum_acquire::{Asked, QuorumAcquire, refuse_longer};
use crate::hold::quorum_hold::QuorumHold;
use crate::hold::request::AcquireRequest;
use crate::options::{Deadline, ReleaseBy};
use crate::owner::Owner;
use crate::protocol::hold_key::Kind;
use crate::protocol::quorum::{QuorumState, Response, majority};
use crate::session::ClientHandle;

/// One lock on several **independent** servers, held by whoever has a majority of them: it outlives the loss of the
/// others. The algorithm is [Redlock](https://redis.io/docs/latest/develop/clients/patterns/distributed-locks/), with
/// the rule for restarts that this page leaves to the operator; Redisson's `RedissonRedLock`.
///
/// Made by [`new`](Self::new) from one lock a server, usually of one name, each of a client of its own. Three or five
/// are usual: two of five may fail, one of three. Members are reentrant or plain; another kind is answered with
/// [`InvalidInput`](ErrorKind::InvalidInput), and so are two members on one server.
///
/// # When to use it, and when another
///
/// When a lock must stay available while a server is down, and must not be granted twice by a failover. If a store can
/// refuse what comes too late, a [`FencedLock`](crate::FencedLock) on one server, or on one with replicas, is simpler
/// and protects more: **this lock has no token**, since no order of tokens holds over several servers. If it is enough
/// that work is rarely done twice, a [`ReentrantLock`](crate::ReentrantLock) on one server will do.
///
/// # What it needs
///
/// - **Clocks that run alike.** A server whose clock jumps ahead during a lease gives its part away too early. 1 % and
///   2 ms are allowed for.
/// - **Holders that look.** A process that is paused does not see its lease end: check [`lost`](RedGuard::lost) or
///   [`is_lost`](RedGuard::is_lost) before each effect, and know that a pause can come after the check.
/// - **Servers that are independent**, and clients that all name the same ones.
///
/// Whether that may be relied upon is disputed: read Kleppmann,
/// [How to do distributed locking](https://martin.kleppmann.com/2016/02/08/how-to-do-distributed-locking.html), and
/// antirez, [Is Redlock safe?](http://antirez.com/news/101).
///
/// # Servers that forget
///
/// A server that lost what it granted would grant it a second time. So one that may have lost it **abstains**, until the
/// longest lease, [`max_lease`](crate::ClientBuilder::max_lease), has passed since then. Longer leases are
/// [`InvalidInput`](ErrorKind::InvalidInput). Each server answers for itself, in the script that takes the lock there;
/// what it knows of itself stands in a key, `redlatch_redlock_mark`: the run id of the process, the id of its
/// replication history, and since when it has forgotten nothing.
///
/// - **Started**: it abstains until `max_lease` and up to two seconds have passed since its start, whether anybody asked
///   or not. So a fleet that was started just now waits for that long, a restart of one server after another for what
///   is left of it, and a restart while nobody wants a lock costs nothing.
///   [`durable`](crate::ClientBuilder::durable) spares a server that loses nothing;
///   [`trust_fresh_servers`](crate::ClientBuilder::trust_fresh_servers) is for development.
/// - **Promoted**, or its replication history is another: it abstains from when it is first asked. So it does after a
///   failover, a failback, and when its first replica is attached or its backlog ends: attach replicas one server at a
///   time.
/// - **Flushed**, databases swapped, or its statistics reset (`FLUSHALL`, `FLUSHDB`, `SWAPDB`, `CONFIG RESETSTAT`), and
///   its epoch gone: from when it is first asked.
/// - **A replica never votes.**
///
/// [`lock`](Self::lock) waits for servers that abstain, without counting that as silence; errors say for how long they
/// will, and why. The user needs the command `INFO`: `+info`, or `+info|server +info|replication +info|commandstats`.
/// Without it the call is answered with [`Backend`](ErrorKind::Backend), which says so.
///
/// In a cluster, which is one member, each name has an epoch of its own beside it, which lasts for two longest leases from
/// each call on. A server of it that was promoted or flushed since its start abstains for each name that it has no epoch
/// of.
///
/// **Not promised**, so that two owners may hold the lock:
///
/// - an old primary that still answers beside the one that was promoted in its place. It grants while the new one
///   abstains, and then that one votes. Stop it, or set `min-replicas-to-write` and make `max_lease` longer by
///   `min-replicas-max-lag`;
/// - keys that were evicted or removed one by one, `SWAPDB` there and back or between databases that both serve a
///   RedLock, `DEBUG RELOAD NOSAVE`, a machine that goes back to a snapshot;
/// - a server's clock that is set ahead or back, before the first call too: uptime is counted by it;
/// - slots of a cluster that are assigned without their keys;
/// - `CONFIG RESETSTAT` after a flush on Redis 6.2, which does not tell it from other `CONFIG` calls;
/// - a `max_lease` longer than the server's `repl-backlog-ttl`, an hour by default; clients with different `max_lease`.
///
/// # Waiting
///
/// Waiters of one process stand in one line, whose first asks all servers at once. Reentrant members tell of their
/// release: the first in line listens on every server, and asks again when so many tell that a majority may be free,
/// when a lease ends, and each [`poll_cap`](crate::ClientBuilder::poll_cap), in case a message is lost. Plain members
/// tell nothing: it asks after pauses of up to 128 ms, or a sixteenth of what it has waited so far, but not above one
/// second. Chance makes all of this uneven: callers of several processes that each had some of the servers part that
/// way. There is no order between processes. Each server has one
/// [`command_timeout`](crate::ClientBuilder::command_timeout) to answer,
/// or a sixth of the lease if that is shorter; a majority that answers at once is not held up by others that hang. They
/// are asked on in the background, and join the guard when they grant their part.
///
/// # Lease and owner
///
/// Each member has the lease that it was given. What the guard promises is what a majority still promises, counted
/// from before the requests were sent. Renewal and [`extend`](RedGuard::extend) count a server only if the lock was
/// still ours there. The owner is one for all: the current task, or the one that [`owned_by`](Self::owned_by) or a
/// member names. Of reentrant members the owner takes the lock again.
///
/// # Examples
///
/// ```
/// # redlatch_testkit::doc(async |url| {
/// # let more = [redlatch_testkit::Server::start(), redlatch_testkit::Server::start()];
/// # let urls = [url.to_string(), more[0].url(), more[1].url()];
/// use std::time::Duration;
/// use redlatch::{Client, RedLock};
///
/// let mut members = Vec::new();
/// for url in urls {
///     // Only here, where the servers were started for the example.
///     let client = Client::builder().url(url).trust_fresh_servers(true).build().await?;
///     members.push(client.lock("report").lease(Duration::from_secs(10)));
/// }
/// let lock = RedLock::new(members);
/// let Some(guard) = lock.try_lock_for(Duration::from_secs(2)).await? else {
///     return Ok(()); // a majority is somebody else's
/// };
/// guard.run_until_lost(async { /* the work */ }).await?;
/// guard.unlock().await?;
/// # Ok::<(), redlatch::Error>(()) });
/// ```
#[derive(Clone, Debug)]
pub struct RedLock {
    members: Members,
    /// Set once the members' servers were seen to be so many.
    distinct: Arc<OnceLock<()>>,
}

impl RedLock {
    /// The lock of these members, one a server. No I/O; what cannot work is answered by the verbs.
    #[must_use]
    pub fn new<M: Into<Member>>(locks: impl IntoIterator<Item = M>) -> Self {
        Self {
            members: Members::new(locks),
            distinct: Arc::default(),
        }
    }

    /// Acts for this owner in place of the current task.
    #[must_use = "this makes a new lock and leaves the old one as it is"]
    pub fn owned_by(mut self, owner: &Owner) -> Self {
        self.members = self.members.owned_by(owner);
        self
    }

    /// Takes the lock, waiting for as long as it takes.
    ///
    /// # Errors
    ///
    /// [`Quorum`](ErrorKind::Quorum) if for one watchdog lease no majority of the servers voted, nor would have with
    /// those that [abstain](Self#servers-that-forget); it says how many granted it, had it busy, were silent or abstain,
    /// for how long and why. [`InvalidInput`](ErrorKind::InvalidInput) for members, leases or
    /// owners that cannot work; [`LeaseLost`](ErrorKind::LeaseLost) if the majority came so late that too little of
    /// the lease was left; what a majority of the servers answers alike, such as
    /// [`WrongKind`](ErrorKind::WrongKind) or a refusal for good, as of one lock; [`Closed`](ErrorKind::Closed).
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, what servers granted or may have granted is released in the background.
    pub async fn lock(&self) -> Result<RedGuard, Error> {
        for handle in self.members.handles() {
            handle.ensure_endless()?;
        }
        let taken = self.acquire(|| Deadline::Never).await?;
        taken.ok_or_else(Error::endless)
    }

    /// Asks all servers once. None if others have some of a majority.
    ///
    /// Two callers that come at the same time may each get some of the servers, and both None.
    ///
    /// # Errors
    ///
    /// As [`lock`](Self::lock), but [`Quorum`](ErrorKind::Quorum) at once, also while servers abstain.
    ///
    /// # Cancel safety
    ///
    /// As [`lock`](Self::lock).
    pub async fn try_lock(&self) -> Result<Option<RedGuard>, Error> {
        self.acquire(|| Deadline::Once).await
    }

    /// Takes the lock, waiting at most so long. None if it was busy until then.
    ///
    /// Requests on their way at the end are waited for, so the call returns by its limit plus one
    /// [`command_timeout`](crate::ClientBuilder::command_timeout).
    ///
    /// # Errors
    ///
    /// As [`lock`](Self::lock), but [`Quorum`](ErrorKind::Quorum) when the limit is reached.
    ///
    /// # Cancel safety
    ///
    /// As [`lock`](Self::lock).
    pub async fn try_lock_for(&self, wait: Duration) -> Result<Option<RedGuard>, Error> {
        self.acquire(|| Deadline::within(wait)).await
    }

    async fn acquire(
        &self,
        deadline: impl FnOnce() -> Deadline + Send,
    ) -> Result<Option<RedGuard>, Error> {
        // Before the first await: the owner is who polls first.
        let (owner, requests) = self.members.requests()?;
        let client = self.members.client()?;
        for request in &requests {
            fits(request)?;
        }
        let acquire = async {
            let quorum_acquire = QuorumAcquire::new(requests);
            if self.distinct.get().is_none() && quorum_acquire.ensure_distinct().await? {
                self.distinct.set(()).ok();
            }
            let quorum_hold = quorum_acquire.acquire(deadline()).await?;
            Ok(quorum_hold.map(|quorum_hold| RedGuard {
                quorum_hold,
                client: client.clone(),
                name: quorum_acquire.name().clone(),
                owner,
            }))
        };
        client.within(Box::pin(acquire)).await
    }
}

/// Refuses a member that cannot be one of several.
fn fits(request: &AcquireRequest) -> Result<(), Error> {
    let title = request.kind.title();
    match request.kind {
        Kind::Reentrant | Kind::Plain(ReleaseBy::Auto | ReleaseBy::Script) => {}
        Kind::Plain(ReleaseBy::Transaction) => {
            return Err(Error::invalid(
                "a member of a RedLock is taken by script; this plain lock goes by transaction only",
            ));
        }
        _ => {
            return Err(Error::invalid(format!(
                "the members of a RedLock are reentrant or plain; {title} cannot be one"
            )));
        }
    }
    refuse_longer(request, request.lease_mode.lease().get())
}

/// A majority of the servers of a [`RedLock`], until the guard is unlocked or dropped.
///
/// Dropping the guard releases all of them in the background.
#[must_use = "the lock is released as soon as the guard is dropped"]
#[clippy::has_significant_drop]
#[derive(Debug)]
pub struct RedGuard {
    quorum_hold: QuorumHold,
    /// Of one of the members.
    client: Arc<ClientHandle>,
    name: Arc<str>,
    owner: Owner,
}

impl RedGuard {
    /// Gives the lock back on every server, and says whether a majority was still held. Returns when a majority has
    /// confirmed it; the others are told in the background.
    ///
    /// # Errors
    ///
    /// [`LeaseLost`](ErrorKind::LeaseLost) if no majority was held any more; [`Quorum`](ErrorKind::Quorum) if too few
    /// servers answered to tell. The release is tried again in the background, and the lock is free when its lease has
    /// passed.
    ///
    /// # Cancel safety
    ///
    /// Once polled, the release goes on in the background if the future is dropped.
    pub async fn unlock(self) -> Result<(), Error> {
        let unlock = async {
            if self.is_lost() {
                return Err(self.lost_error());
            }
            let guards = self.quorum_hold.leave();
            let ask =
                |guard: LockGuard| async { guard.unlock().await.map(|()| BootInstant::NEVER) };
            let late = self.ask(guards.into_iter().map(ask), "released").await?;
            // To drop a release that is on its way would have it sent again.
            late.go_on(&self.client);
            Ok(())
        };
        self.client.within(Box::pin(unlock)).await
    }

    /// Resolves when no majority can be trusted any more: enough servers have said that the hold is gone, or have not
    /// confirmed a renewal in time. Loss is final; see [`Lease::lost`].
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost by dropping the future.
    pub async fn lost(&self) {
        self.quorum_hold.lost().await;
    }

    /// Whether no majority can be trusted any more; see [`Lease::is_lost`].
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.quorum_hold.is_lost()
    }

    /// How long a majority can still be trusted if nothing more is heard from the servers. Zero once it is lost.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.quorum_hold.remaining()
    }

    /// Who holds the lock.
    #[must_use]
    pub fn owner(&self) -> &Owner {
        &self.owner
    }

    /// Gives the lock a new lease from now on, on every server where it is still held; see [`Lease::extend`]. It is
    /// taken anew on none.
    ///
    /// # Errors
    ///
    /// [`InvalidInput`](ErrorKind::InvalidInput) for a lease below 50 ms or above
    /// [`max_lease`](crate::ClientBuilder::max_lease); [`LeaseLost`](ErrorKind::LeaseLost) if no majority is held any
    /// more; [`Quorum`](ErrorKind::Quorum) if too few servers answered, some of which may have set the new lease.
    ///
    /// # Cancel safety
    ///
    /// As [`Lease::extend`], on each server.
    pub async fn extend(&self, lease: Duration) -> Result<(), Error> {
        let extend = async {
            let leases = self.standing()?;
            for held in &leases {
                refuse_longer(&held.request, lease)?;
            }
            let ask = |held: Lease| async move {
                held.extend(lease).await?;
                Ok(held.trusted_until())
            };
            let late = self.ask(leases.into_iter().map(ask), "extended").await?;
            late.go_on(&self.client);
            Ok(())
        };
        self.client.within(Box::pin(extend)).await
    }

    /// Asks the servers whether a majority of them still has this very hold; see [`Lease::verify`].
    ///
    /// # Errors
    ///
    /// [`LeaseLost`](ErrorKind::LeaseLost) if it does not; [`Quorum`](ErrorKind::Quorum) if too few answered.
    ///
    /// # Cancel safety
    ///
    /// Nothing is changed on the servers, whenever the future is dropped.
    pub async fn verify(&self) -> Result<(), Error> {
        let verify = async {
            let ask = |held: Lease| async move {
                held.verify().await?;
                Ok(held.trusted_until())
            };
            self.ask(self.standing()?.into_iter().map(ask), "confirmed")
                .await?;
            Ok(())
        };
        self.client.within(Box::pin(verify)).await
    }

    /// Runs a future for as long as a majority can be trusted; see [`Lease::run_until_lost`].
    ///
    /// # Errors
    ///
    /// [`LeaseLost`](ErrorKind::LeaseLost) if it was lost before the future was done. The future is dropped then; its
    /// work may be half done.
    ///
    /// # Cancel safety
    ///
    /// Dropping this future drops the one inside. The lock stays held.
    pub async fn run_until_lost<F: Future>(&self, future: F) -> Result<F::Output, Error> {
        run_until_lost(future, self.lost(), || self.is_lost(), || self.lost_error()).await
    }

    fn standing(&self) -> Result<Vec<Lease>, Error> {
        match self.is_lost() {
            true => Err(self.lost_error()),
            false => Ok(self.quorum_hold.leases()),
        }
    }

    /// Asks all servers that have something of the lock, and wants a majority of all to do it. Gives back the
    /// questions that are not answered so far.
    async fn ask<F>(
        &self,
        asks: impl Iterator<Item = F>,
        done: &str,
    ) -> Result<Asked<Result<BootInstant, Error>>, Error>
    where
        F: Future<Output = Result<BootInstant, Error>> + Send + 'static,
    {
        let servers = self.quorum_hold.servers();
        let mut asked = Asked::new(&self.client, servers, asks);
        let vote = |answer: &Result<BootInstant, Error>| match answer {
            Ok(until) => Response::Yes(*until),
            Err(error) if error.kind() == ErrorKind::LeaseLost => Response::No,
            Err(_) => Response::Missing,
        };
        if let QuorumState::Won(_) = asked.decide(vote).await {
            return Ok(asked);
        }
        let yes = asked.answers().filter(|answer| answer.is_ok()).count();
        let errors = asked.answers().filter_map(|answer| answer.as_ref().err());
        let failed: Vec<_> = errors
            .filter(|error| error.kind() != ErrorKind::LeaseLost)
            .collect();
        if yes + failed.len() + asked.awaited() < majority(servers) {
            return Err(self.lost_error());
        }
        let name = &self.name;
        let error = Error::new(
            ErrorKind::Quorum,
            format!(
                "{name:?} was {done} on {yes} of {servers} servers, which are too few; the others failed or did not answer"
            ),
        );
        Err(match failed.first() {
            Some(source) => error.caused_by(Error::clone(source)),
            None => error,
        })
    }

    fn lost_error(&self) -> Error {
        let name = &self.name;
        Error::lost(format!(
            "{name:?} was lost on a majority of its servers; stop the work that it protected"
        ))
    }
}
