//! An election: candidates, the one that leads, and those that watch.

use std::convert::Infallible;
use std::fmt;
use std::future::pending;
use std::time::Duration;

use tokio::time::sleep;
use tracing::{Level, debug, enabled, info};

use super::term::{Announcement, Leader, Term};
use super::watch::LeaderWatch;
use crate::error::Error;
use crate::lock::fenced::FencedGuard;
use crate::lock::handle::Handle;
use crate::outage::FailureStreak;
use crate::protocol::leader::LeaderNews;

/// After what time a candidate that does not lead looks who does.
const FOLLOWS_AFTER: Duration = Duration::from_millis(100);

/// An election, by which one of several processes leads, like etcd's `Election` and Curator's `LeaderSelector`.
///
/// Created by [`Client::leader`](crate::Client::leader). Each process that can lead calls [`lead`](Self::lead) with the
/// work of the leader, or [`campaign`](Self::campaign) for a [`Term`] that it manages itself. Any process can ask who
/// leads ([`current`](Self::current)), and wait for a change ([`watch`](Self::watch)).
///
/// # When to use it, and when to use another
///
/// Use it for work that never ends and that one process at a time does: a scheduler, a consumer of a stream, a
/// reconciling loop. For a job that ends, and that all processes start by a timer, use [`Job`](crate::job::Job). For a
/// critical section that every process enters in turn, use a [`ReentrantLock`](crate::ReentrantLock). If the leader
/// must survive the loss of any one server, use a [`RedLock`](crate::RedLock) in a loop of your own.
///
/// # Guarantee and limit
///
/// A term is a hold of a [`FencedLock`](crate::FencedLock) of the same name, with the guarantee and limit of that lock.
/// So there is one leader at a time, as long as the server keeps the lock's key. A leader whose process dies is
/// replaced within one [`watchdog_lease`](crate::ClientBuilder::watchdog_lease), 30 s by default;
/// [`Client::watchdog_lease`](crate::Client::watchdog_lease) sets another one for an election. A leader that steps down
/// is replaced at once, by the candidate of another process that has waited longest. A leader that cannot reach the
/// server is told that it is deposed before another one can lead.
///
/// A process that was paused, and has not yet noticed that it was deposed, may still write. Only a store that checks
/// the [token](Term::token) of each write can refuse that.
///
/// An outage does not end a campaign: it goes on, with pauses, until the servers are back. Each campaign is a candidate
/// of its own, so two campaigns in one process exclude each other as well.
///
/// # Examples
///
/// ```
/// # redlatch_testkit::doc(async |url| {
/// # async fn next_task() -> Option<u32> { None }
/// # async fn start(task: u32, token: u64) {}
/// use std::time::Duration;
/// use redlatch::Client;
///
/// let client = Client::connect(url).await?;
/// let scheduler = client
///     .watchdog_lease(Duration::from_secs(5)) // a crashed leader is replaced within five seconds
///     .leader("scheduler");
/// scheduler
///     .lead(async |term| {
///         while let Some(task) = next_task().await {
///             start(task, term.token().get()).await; // the store refuses a token below the highest that it has seen
///         }
///     })
///     .await?;
/// # Ok::<(), redlatch::Error>(()) });
/// ```
#[doc(alias("LeaderElection", "LeaderSelector"))]
#[derive(Clone)]
pub struct Election {
    handle: Handle,
    identity: Option<String>,
}

impl fmt::Debug for Election {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.handle.show("Election", f)
    }
}

impl Election {
    pub(crate) fn new(handle: Handle) -> Self {
        Self {
            handle,
            identity: None,
        }
    }

    /// Returns the name of the election, with the prefix of its client; see
    /// [`ReentrantLock::name`](crate::ReentrantLock::name).
    ///
    /// # Examples
    ///
    /// ```
    /// # redlatch_testkit::doc(async |url| {
    /// # let client = redlatch::Client::connect(url).await?;
    /// let election = client.leader("scheduler");
    /// assert_eq!(election.name(), "scheduler");
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
    #[must_use]
    pub fn name(&self) -> &str {
        self.handle.shown_name()
    }

    /// Sets the identity by which others see this candidate, for example a host name. By default, it is the
    /// [id](crate::Client::id) of the client; people are shown the client's [label](crate::Client::label) instead.
    ///
    /// Two candidates with the same identity are still two candidates. An identity must be valid as the name of an
    /// [`Owner`](crate::Owner::named); with any other, [`campaign`](Self::campaign) and [`lead`](Self::lead) return
    /// [`InvalidInput`](crate::ErrorKind::InvalidInput).
    ///
    /// # Examples
    ///
    /// ```
    /// # redlatch_testkit::doc(async |url| {
    /// # let client = redlatch::Client::connect(url).await?;
    /// let election = client.leader("scheduler").identity("web-7");
    /// let term = election.campaign().await?;
    /// assert_eq!(term.leader().identity(), "web-7");
    /// # term.step_down().await?;
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
    #[must_use = "this makes a new handle and leaves the old one as it is"]
    pub fn identity(mut self, identity: impl AsRef<str>) -> Self {
        self.identity = Some(identity.as_ref().to_owned());
        self
    }

    /// Waits until this process leads, and returns its term.
    ///
    /// The call waits for as long as another candidate leads, and through outages of any length: it tries again after
    /// pauses of up to a second, with jitter, and logs a warning at the first of them. It does the same if a server
    /// refuses, for example because memory or a right is missing.
    ///
    /// # Errors
    ///
    /// Only those that another attempt would not fix:
    ///
    /// - [`InvalidInput`](crate::ErrorKind::InvalidInput): the name, the identity or a setting cannot work; nothing was
    ///   sent.
    /// - [`WrongKind`](crate::ErrorKind::WrongKind): the name is in use by something else.
    /// - [`Refused`](crate::ErrorKind::Refused): the lock has run out of tokens.
    /// - [`Protocol`](crate::ErrorKind::Protocol): the server gave an answer that no script of this crate gives.
    /// - [`Closed`](crate::ErrorKind::Closed): the client was closed before or during the call.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the candidate withdraws. A request that is already on its way may still make it the
    /// leader; it then steps down in the background.
    ///
    /// # Examples
    ///
    /// ```
    /// # redlatch_testkit::doc(async |url| {
    /// # let client = redlatch::Client::connect(url).await?;
    /// # async fn lead() {}
    /// # async fn clean_up() {}
    /// let term = client.leader("scheduler").campaign().await?;
    /// tokio::select! {
    ///     () = lead() => term.step_down().await?,
    ///     _ = term.lost() => clean_up().await, // deposed: another process may lead by now
    /// }
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
    pub async fn campaign(&self) -> Result<Term, Error> {
        let client = &self.handle.client;
        let campaign = async {
            let identity = self.identity.as_deref().unwrap_or(&client.client_id);
            let candidate = Leader::candidate(identity)?;
            let name = self.handle.name()?;
            let handle = self.handle.clone().owned_by(&candidate);
            let mut outage = FailureStreak::default();
            loop {
                let granted = tokio::select! {
                    biased;
                    granted = handle.lock() => granted,
                    never = self.follow() => match never {},
                };
                match granted {
                    Ok(guard) => {
                        let guard = FencedGuard::from(guard);
                        let (lock, label, token) = (name.key(), client.label(), guard.token());
                        info!(target: "redlatch", %lock, label, token = token.get(), "leads");
                        let end = Announcement::new(client.clone(), LeaderNews::new(name.clone()));
                        return Ok(Term::begin(guard, end));
                    }
                    Err(error) => outage.endure(client, name.key(), error).await?,
                }
            }
        };
        client.within(Box::pin(campaign)).await
    }

    /// Tells who leads, while this candidate waits. Begins after a moment, since the first candidate waits for nobody.
    async fn follow(&self) -> Infallible {
        sleep(FOLLOWS_AFTER).await;
        // To look costs requests, which are for people who read the log.
        if !enabled!(target: "redlatch", Level::INFO) {
            return pending().await;
        }
        let mut watch = self.watch();
        // That nobody knows who leads, as in an outage, the campaign tells by itself.
        while let Ok(leader) = watch.changed().await {
            if let Some(leader) = leader {
                let (lock, label) = (self.name(), self.handle.client.label());
                info!(target: "redlatch", %lock, label, %leader, "follows");
            }
        }
        pending().await
    }

    /// Campaigns, runs `body` while this process leads, and steps down when `body` returns. Returns the value that
    /// `body` returned.
    ///
    /// If the term is lost first, the future of `body` is dropped, at an await, and the call campaigns again. So `body`
    /// may be called any number of times, and may be dropped at any of its awaits. If it has to clean up after a lost
    /// term, use [`campaign`](Self::campaign). If `body` panics, this process steps down, and the panic continues.
    ///
    /// To give the future to `tokio::spawn`, make the closure `async move |term| ..`.
    ///
    /// # Errors
    ///
    /// Same as [`campaign`](Self::campaign). A lost term is not an error. Nor is it an error if the server does not
    /// confirm the release at the end: the release is retried in the background until the lease has passed.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, so is that of `body`, and this process steps down in the background.
    ///
    /// # Examples
    ///
    /// ```
    /// # redlatch_testkit::doc(async |url| {
    /// # let client = redlatch::Client::connect(url).await?;
    /// # async fn reconcile() {}
    /// use std::time::Duration;
    ///
    /// let election = client.leader("reconciler");
    /// let leading = tokio::spawn(async move {
    ///     election
    ///         .lead(async move |term| {
    ///             for round in 0..3 {
    ///                 println!("round {round} of the term {}", term.token());
    ///                 reconcile().await;
    ///                 tokio::time::sleep(Duration::from_millis(5)).await;
    ///             }
    ///         })
    ///         .await
    /// });
    /// leading.await.unwrap()?;
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
    #[doc(alias = "run")]
    pub async fn lead<T>(&self, mut body: impl AsyncFnMut(&Term) -> T) -> Result<T, Error> {
        loop {
            let term = self.campaign().await?;
            match term.run_until_lost(body(&term)).await {
                Ok(output) => {
                    if let Err(error) = term.step_down().await {
                        debug!(%error, "the end of a term was not confirmed");
                    }
                    return Ok(output);
                }
                Err(error) => debug!(%error, "deposed; campaigns again"),
            }
        }
    }

    /// Returns who leads, or `None` if nobody does.
    ///
    /// As with every query, the answer describes a state that may have changed by the time the answer arrives. A leader
    /// whose process died is returned until its lease has ended.
    ///
    /// # Errors
    ///
    /// [`WrongKind`](crate::ErrorKind::WrongKind) if the name is in use by something else;
    /// [`InvalidInput`](crate::ErrorKind::InvalidInput) if the name cannot work; [`Timeout`](crate::ErrorKind::Timeout)
    /// and [`Backend`](crate::ErrorKind::Backend) if the server did not answer or refused the request;
    /// [`Closed`](crate::ErrorKind::Closed) if the client is closed.
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
    /// let election = client.leader("scheduler");
    /// match election.current().await? {
    ///     Some(leader) if leader.identity() == client.id() => println!("we lead"),
    ///     Some(leader) => println!("{leader} leads"),
    ///     None => println!("nobody leads"),
    /// }
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
    pub async fn current(&self) -> Result<Option<Leader>, Error> {
        let holder = self.handle.holder().await?;
        Ok(holder.as_ref().map(Leader::of))
    }

    /// Returns a watch, which waits for changes of the leader. Does no I/O.
    ///
    /// # Examples
    ///
    /// ```
    /// # redlatch_testkit::doc(async |url| {
    /// # let client = redlatch::Client::connect(url).await?;
    /// let mut watch = client.leader("scheduler").watch();
    /// let watching = async move {
    ///     loop {
    ///         match watch.changed().await? {
    ///             Some(leader) => println!("{leader} leads"),
    ///             None => println!("nobody leads"),
    ///         }
    ///     }
    ///     # #[allow(unreachable_code)] Ok::<(), redlatch::Error>(())
    /// };
    /// let watcher = tokio::spawn(watching);
    /// # tokio::task::yield_now().await;
    /// watcher.abort();
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
    #[must_use]
    pub fn watch(&self) -> LeaderWatch {
        LeaderWatch::new(self.handle.clone())
    }
}
