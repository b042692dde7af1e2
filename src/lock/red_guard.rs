//! The guard of a lock that a majority of independent servers granted.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use crate::error::{Error, ErrorKind};
use crate::hold::guard::LockGuard;
use crate::hold::lease::{Lease, run_until_lost, shown_remaining};
use crate::hold::quorum_acquire::OpenRequests;
use crate::hold::quorum_hold::QuorumHold;
use crate::loss::LossReason;
use crate::options::LeaseTime;
use crate::owner::Owner;
use crate::protocol::quorum::{QuorumState, Response, majority};
use crate::session::ClientHandle;

/// A hold of a [`RedLock`](crate::RedLock) on a majority of its servers, which lasts until the guard is unlocked or
/// dropped.
///
/// Dropping the guard releases the lock on all of them in the background.
#[must_use = "the lock is released as soon as the guard is dropped"]
#[clippy::has_significant_drop]
pub struct RedGuard {
    quorum_hold: QuorumHold,
    longest: LeaseTime,
    /// The client of one of the members.
    client: Arc<ClientHandle>,
    name: Arc<str>,
    owner: Owner,
}

impl fmt::Debug for RedGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedGuard")
            .field("name", &self.name())
            .field("owner", &format_args!("{}", self.owner()))
            .field("remaining", &shown_remaining(self.remaining()))
            .finish()
    }
}

impl RedGuard {
    pub(super) fn new(
        quorum_hold: QuorumHold,
        longest: LeaseTime,
        client: Arc<ClientHandle>,
        name: Arc<str>,
        owner: Owner,
    ) -> Self {
        Self {
            quorum_hold,
            longest,
            client,
            name,
            owner,
        }
    }

    /// Returns the name of the lock on its first server, with the prefix of its client; see
    /// [`ReentrantLock::name`](crate::ReentrantLock::name).
    ///
    /// # Examples
    ///
    /// ```
    /// # use redlatch_testkit::Server;
    /// # redlatch_testkit::doc(async |url| {
    /// use redlatch::RedLock;
    ///
    /// # let more = [Server::start(), Server::start()];
    /// # let mut clients = Vec::new();
    /// # for url in [url.to_string(), more[0].url(), more[1].url()] {
    /// #     clients.push(redlatch::Client::builder().url(url).trust_fresh_servers(true).build().await?);
    /// # }
    /// let guard = RedLock::new(clients.iter().map(|client| client.lock("nightly-report"))).lock().await?;
    /// assert_eq!(guard.name(), "nightly-report");
    /// # guard.unlock().await?;
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Releases the lock on every server, and reports whether it was still held on a majority. Returns once a majority
    /// has confirmed the release; the requests to the other servers continue in the background.
    ///
    /// # Errors
    ///
    /// [`LeaseLost`](ErrorKind::LeaseLost) if the lock was no longer held on a majority; [`Quorum`](ErrorKind::Quorum)
    /// if too few servers answered to decide. The release is tried again in the background, and the lock is free at the
    /// latest when its lease has passed.
    ///
    /// # Cancel safety
    ///
    /// Once the future has been polled, the release continues in the background if the future is dropped.
    ///
    /// # Examples
    ///
    /// ```
    /// # use redlatch_testkit::Server;
    /// # redlatch_testkit::doc(async |url| {
    /// use redlatch::RedLock;
    ///
    /// # let more = [Server::start(), Server::start()];
    /// # let (mut clients, mut elsewhere) = (Vec::new(), Vec::new());
    /// # for url in [url.to_string(), more[0].url(), more[1].url()] {
    /// #     for fleet in [&mut clients, &mut elsewhere] {
    /// #         fleet.push(redlatch::Client::builder().url(&url).trust_fresh_servers(true).build().await?);
    /// #     }
    /// # }
    /// let here = RedLock::new(clients.iter().map(|client| client.lock("orders:42")));
    /// let there = RedLock::new(elsewhere.iter().map(|client| client.lock("orders:42")));
    /// let guard = here.lock().await?;
    /// // An error would say that another owner may have held the lock in the meantime.
    /// guard.unlock().await?;
    /// assert!(there.try_lock().await?.is_some());
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
    pub async fn unlock(self) -> Result<(), Error> {
        let unlock = async {
            if let Some(reason) = self.quorum_hold.loss() {
                return Err(self.lost_for(reason));
            }
            let guards = self.quorum_hold.leave();
            let asks = guards.into_iter().map(LockGuard::unlock);
            let late = self.ask(asks, "released").await?;
            // Dropping a release in flight would send it again.
            late.go_on(&self.client);
            Ok(())
        };
        self.client.within(Box::pin(unlock)).await
    }

    /// Resolves when the lease can no longer be trusted on a majority of the servers: enough of them have said that the
    /// hold is gone, or have not confirmed a renewal in time. Returns the reason that these have in common, or
    /// [`NoMajority`](LossReason::NoMajority). Loss is final; see [`Lease::lost`].
    ///
    /// # Cancel safety
    ///
    /// This method is cancel safe: dropping the future loses nothing.
    ///
    /// # Examples
    ///
    /// ```
    /// # use redlatch_testkit::Server;
    /// # redlatch_testkit::doc(async |url| {
    /// # async fn write_report() { std::future::pending().await }
    /// use redlatch::RedLock;
    ///
    /// # let more = [Server::start(), Server::start()];
    /// # let mut clients = Vec::new();
    /// # for url in [url.to_string(), more[0].url(), more[1].url()] {
    /// #     clients.push(redlatch::Client::builder().url(url).trust_fresh_servers(true).build().await?);
    /// # }
    /// let guard = RedLock::new(clients.iter().map(|client| client.lock("nightly-report"))).lock().await?;
    /// // Meanwhile, an operator frees the lock on every server.
    /// for client in &clients {
    ///     client.lock("nightly-report").force_unlock().await?;
    /// }
    /// let written = tokio::select! {
    ///     () = write_report() => true,
    ///     _ = guard.lost() => false,
    /// };
    /// assert!(!written);
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
    pub async fn lost(&self) -> LossReason {
        self.quorum_hold.lost().await
    }

    /// Returns `true` if the lease can no longer be trusted on a majority of the servers; see [`Lease::is_lost`].
    ///
    /// # Examples
    ///
    /// ```
    /// # use redlatch_testkit::Server;
    /// # redlatch_testkit::doc(async |url| {
    /// use redlatch::RedLock;
    ///
    /// # let more = [Server::start(), Server::start()];
    /// # let mut clients = Vec::new();
    /// # for url in [url.to_string(), more[0].url(), more[1].url()] {
    /// #     clients.push(redlatch::Client::builder().url(url).trust_fresh_servers(true).build().await?);
    /// # }
    /// let guard = RedLock::new(clients.iter().map(|client| client.lock("invoice-run"))).lock().await?;
    /// let mut sent = 0;
    /// // Checked before each effect, without asking the servers.
    /// while sent < 3 && !guard.is_lost() {
    ///     sent += 1;
    /// }
    /// assert_eq!(sent, 3);
    /// guard.unlock().await?;
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.quorum_hold.is_lost()
    }

    /// Returns how long the lease can still be trusted on a majority if the servers confirm nothing more. Zero once the
    /// lock is lost.
    ///
    /// # Examples
    ///
    /// ```
    /// # use redlatch_testkit::Server;
    /// # redlatch_testkit::doc(async |url| {
    /// use std::time::Duration;
    /// use redlatch::RedLock;
    ///
    /// # let more = [Server::start(), Server::start()];
    /// # let mut clients = Vec::new();
    /// # for url in [url.to_string(), more[0].url(), more[1].url()] {
    /// #     clients.push(redlatch::Client::builder().url(url).trust_fresh_servers(true).build().await?);
    /// # }
    /// let lease = Duration::from_secs(20);
    /// let lock = RedLock::new(clients.iter().map(|client| client.lock("upload").lease(lease)));
    /// let guard = lock.lock().await?;
    /// // Enough for a request that takes five seconds at most.
    /// assert!(guard.remaining() > Duration::from_secs(5));
    /// assert!(guard.remaining() <= lease);
    /// guard.unlock().await?;
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.quorum_hold.remaining()
    }

    /// Returns the owner that holds the lock.
    ///
    /// # Examples
    ///
    /// ```
    /// # use redlatch_testkit::Server;
    /// # redlatch_testkit::doc(async |url| {
    /// use redlatch::{Owner, RedLock};
    ///
    /// # let more = [Server::start(), Server::start()];
    /// # let mut clients = Vec::new();
    /// # for url in [url.to_string(), more[0].url(), more[1].url()] {
    /// #     clients.push(redlatch::Client::builder().url(url).trust_fresh_servers(true).build().await?);
    /// # }
    /// let lock = RedLock::new(clients.iter().map(|client| client.lock("nightly-report")));
    /// let guard = lock.owned_by(&Owner::named("scheduler-2")).lock().await?;
    /// let line = format!("{} writes the report", guard.owner());
    /// assert_eq!(line, "scheduler-2 writes the report");
    /// guard.unlock().await?;
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
    #[must_use]
    pub fn owner(&self) -> &Owner {
        &self.owner
    }

    /// Gives the lock a new lease, counted from now, on every server where it is still held; see [`Lease::extend`]. The
    /// lock is not acquired again on any server.
    ///
    /// # Errors
    ///
    /// [`InvalidInput`](ErrorKind::InvalidInput) for a lease below 50 ms or above
    /// [`max_lease`](crate::RedLock::max_lease); [`LeaseLost`](ErrorKind::LeaseLost) if the lock is no longer
    /// held on a majority; [`Quorum`](ErrorKind::Quorum) if too few servers answered, in which case some may have set
    /// the new lease.
    ///
    /// # Cancel safety
    ///
    /// Same as [`Lease::extend`], on each server.
    ///
    /// # Examples
    ///
    /// ```
    /// # use redlatch_testkit::Server;
    /// # redlatch_testkit::doc(async |url| {
    /// use std::time::Duration;
    /// use redlatch::{ErrorKind, RedLock};
    ///
    /// # let more = [Server::start(), Server::start()];
    /// # let mut clients = Vec::new();
    /// # for url in [url.to_string(), more[0].url(), more[1].url()] {
    /// #     clients.push(redlatch::Client::builder().url(url).trust_fresh_servers(true).build().await?);
    /// # }
    /// let lease = Duration::from_secs(10);
    /// let lock = RedLock::new(clients.iter().map(|client| client.lock("upload").lease(lease)));
    /// let guard = lock.lock().await?;
    /// guard.extend(Duration::from_secs(40)).await?;
    /// assert!(guard.remaining() > Duration::from_secs(30));
    ///
    /// // The servers would not abstain for that long after a restart: `max_lease` is one minute.
    /// let error = guard.extend(Duration::from_secs(90)).await.unwrap_err();
    /// assert_eq!(error.kind(), ErrorKind::InvalidInput);
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
    pub async fn extend(&self, lease: Duration) -> Result<(), Error> {
        let extend = async {
            let leases = self.standing()?;
            refuse_longer(lease, self.longest)?;
            let ask = |held: Lease| async move { held.extend(lease).await };
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
    /// [`LeaseLost`](ErrorKind::LeaseLost) if no majority has it; [`Quorum`](ErrorKind::Quorum) if too few servers
    /// answered.
    ///
    /// # Cancel safety
    ///
    /// This method is cancel safe: it changes nothing on the servers.
    ///
    /// # Examples
    ///
    /// ```
    /// # use redlatch_testkit::Server;
    /// # redlatch_testkit::doc(async |url| {
    /// use redlatch::{ErrorKind, RedLock};
    ///
    /// # let more = [Server::start(), Server::start()];
    /// # let (mut clients, mut elsewhere) = (Vec::new(), Vec::new());
    /// # for url in [url.to_string(), more[0].url(), more[1].url()] {
    /// #     for fleet in [&mut clients, &mut elsewhere] {
    /// #         fleet.push(redlatch::Client::builder().url(&url).trust_fresh_servers(true).build().await?);
    /// #     }
    /// # }
    /// let guard = RedLock::new(clients.iter().map(|client| client.lock("nightly-report"))).lock().await?;
    /// guard.verify().await?;
    /// // Another process frees the lock.
    /// for client in &elsewhere {
    ///     client.lock("nightly-report").force_unlock().await?;
    /// }
    /// assert_eq!(guard.verify().await.unwrap_err().kind(), ErrorKind::LeaseLost);
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
    pub async fn verify(&self) -> Result<(), Error> {
        let verify = async {
            let ask = |held: Lease| async move { held.verify().await };
            self.ask(self.standing()?.into_iter().map(ask), "confirmed")
                .await?;
            Ok(())
        };
        self.client.within(Box::pin(verify)).await
    }

    /// Runs a future as long as the lease can be trusted on a majority; see [`Lease::run_until_lost`].
    ///
    /// # Errors
    ///
    /// [`LeaseLost`](ErrorKind::LeaseLost) if the majority was lost before the future completed. The future is then
    /// dropped, and its work may be half done.
    ///
    /// # Cancel safety
    ///
    /// Dropping this future drops the one inside. The lock stays held.
    ///
    /// # Examples
    ///
    /// ```
    /// # use redlatch_testkit::Server;
    /// # redlatch_testkit::doc(async |url| {
    /// # async fn write_report() -> u32 { 12 }
    /// use redlatch::RedLock;
    ///
    /// # let more = [Server::start(), Server::start()];
    /// # let mut clients = Vec::new();
    /// # for url in [url.to_string(), more[0].url(), more[1].url()] {
    /// #     clients.push(redlatch::Client::builder().url(url).trust_fresh_servers(true).build().await?);
    /// # }
    /// let guard = RedLock::new(clients.iter().map(|client| client.lock("nightly-report"))).lock().await?;
    /// // Stops in the middle if the majority is lost.
    /// let pages = guard.run_until_lost(write_report()).await?;
    /// assert_eq!(pages, 12);
    /// guard.unlock().await?;
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
    pub async fn run_until_lost<F: Future>(&self, future: F) -> Result<F::Output, Error> {
        let loss = || self.quorum_hold.loss();
        run_until_lost(future, self.lost(), loss, |reason| self.lost_for(reason)).await
    }

    fn standing(&self) -> Result<Vec<Lease>, Error> {
        match self.quorum_hold.loss() {
            Some(reason) => Err(self.lost_for(reason)),
            None => Ok(self.quorum_hold.leases()),
        }
    }

    /// Asks every server that has a part of the lock, and succeeds once a majority of all servers has done what was
    /// asked. Returns the requests that have no answer so far.
    async fn ask<F>(
        &self,
        asks: impl Iterator<Item = F>,
        done: &str,
    ) -> Result<OpenRequests<Result<(), Error>>, Error>
    where
        F: Future<Output = Result<(), Error>> + Send + 'static,
    {
        let servers = self.quorum_hold.servers();
        let mut asked = OpenRequests::new(&self.client, servers, asks);
        let vote = |answer: &Result<(), Error>| match answer {
            Ok(()) => Response::Yes,
            Err(error) if error.kind() == ErrorKind::LeaseLost => Response::No,
            Err(_) => Response::Missing,
        };
        if asked.decide(vote).await == QuorumState::Won {
            return Ok(asked);
        }
        let yes = asked.answers().filter(|answer| answer.is_ok()).count();
        let errors = asked.answers().filter_map(|answer| answer.as_ref().err());
        let (lost, failed): (Vec<_>, Vec<_>) =
            errors.partition(|error| error.kind() == ErrorKind::LeaseLost);
        if yes + failed.len() + asked.awaited() < majority(servers) {
            let losses = lost.iter().filter_map(|error| error.loss_reason());
            return Err(self.lost_for(LossReason::of_majority(losses)));
        }
        let name = &self.name;
        let error = Error::new(
            ErrorKind::Quorum,
            format!(
                "{name:?} was {done} on {yes} of {servers} servers, which is too few; the others failed or did not answer"
            ),
        );
        Err(match failed.first() {
            Some(source) => error.caused_by(Error::clone(source)),
            None => error,
        })
    }

    pub(super) fn lost_for(&self, reason: LossReason) -> Error {
        let name = &self.name;
        Error::lost(reason).saying(format!(
            "{name:?} was lost on a majority of its servers: {reason}; stop the work that it protected"
        ))
    }
}

/// Refuses a lease that would outlast the time for which a server abstains that may have forgotten it.
pub(super) fn refuse_longer(lease: Duration, longest: LeaseTime) -> Result<(), Error> {
    let longest = longest.get();
    if lease > longest {
        return Err(Error::invalid(format!(
            "a lease of {lease:?} is longer than max_lease, which is {longest:?}"
        )));
    }
    Ok(())
}
