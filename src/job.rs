//! A job that runs on one of several processes, once in a period.
//!
//! The lock is renewed while the job runs, and at the end its lease is set to what is left of `within`. A lease as
//! long as `within` from the beginning would need no word at the end, but a process that dies during the job would
//! keep it from running elsewhere for all of that time.
//!
//! A task of the client sets that lease, so that a dropped future does not undo a job that has run. A renewal that
//! was on its way all the while may raise it again: a job may be kept for too long, never too briefly.

use std::convert::Infallible;
use std::fmt;
use std::ops::Deref;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::{sleep, timeout};
use tracing::{debug, warn};

use crate::clock::BootInstant;
use crate::error::{Error, ErrorKind};
use crate::hold::guard::LockGuard;
use crate::hold::lease::Lease;
use crate::lock::fenced::{FencedGuard, FencingToken};
use crate::lock::handle::Handle;
use crate::name::Users;
use crate::options::{LeaseTime, SHORTEST_LEASE};
use crate::outage::FailureStreak;
use crate::owner::Owner;
use crate::session::outgoing::Barrier;

/// A job that several processes start at about the same time, and that runs on one of them, like ShedLock's
/// `@SchedulerLock`.
///
/// Created by [`Client::job`](crate::Client::job). Each process calls [`execute`](Self::execute) when its timer goes
/// off. The first one runs the job; the others get `None`.
///
/// # When to use it, and when to use another
///
/// Use it for jobs that end: a nightly report, an hourly clean-up. For work that goes on for as long as there are
/// processes, use an [`Election`](crate::leader::Election). If a job must never run twice, record that it ran in the
/// store of its results, by a unique key for each period. A `Job` then only saves attempts.
///
/// # Guarantee and limit
///
/// A [`FencedLock`](crate::FencedLock) of the same name protects the job, with the guarantee and limit of that lock.
/// How long the lock is kept depends on how the job ends:
///
/// | the job | the lock |
/// |---|---|
/// | succeeds, within the period | is kept until `within` has passed since the job was begun, by the server's clock; then it is free by itself, whatever became of this process |
/// | takes longer than that | is renewed all the while, for at most [`max_hold`](crate::ClientBuilder::max_hold) if that is set, and released at the end |
/// | returns `Err`, panics, or is dropped | is released at once, so that another process may run the job |
/// | loses its lease | is free, or another owner holds it; the job is dropped, and `execute` returns [`LeaseLost`](crate::ErrorKind::LeaseLost) |
/// | dies with its process | is free within one [`watchdog_lease`](crate::ClientBuilder::watchdog_lease), 30 s by default |
///
/// So a fast job does not run again on a process whose clock is late by less than `within`: no two clocks are compared.
/// Choose `within` longer than the clocks of the processes differ, and shorter than the period, so that the lock is
/// free when the next run is due.
///
/// When its job ends, a process reports this to the server, which takes about a round trip. A process that dies before
/// the server has answered counts as one that died during the job: another process may run the job again after the
/// lease. If the server cannot be reached when the job ends, this process keeps reporting the end until `within` has
/// passed, in the background after one lease, and releases nothing. The job then runs twice only if another process
/// reaches the server first, after the lease has ended there. The same can happen if the server forgets the lock, as in
/// a restart without its data, or if this process is paused just before its job ends. A job that has ended counts as
/// one that succeeded, and a warning is logged.
///
/// # Examples
///
/// ```
/// # redlatch_testkit::doc(async |url| {
/// use std::time::Duration;
/// use redlatch::{Client, Error};
///
/// async fn send_report(run_number: u64) -> Result<u32, Error> {
///     println!("the report of run {run_number}"); // by which the store refuses a late write
///     Ok(12)
/// }
///
/// let client = Client::connect(url).await?;
/// let report = client.job("hourly-report", Duration::from_secs(45 * 60));
/// match report.execute(async |run| send_report(run.token().get()).await).await? {
///     Some(pages) => println!("{pages} pages were sent"),
///     None => println!("another process sends the report, or has sent it"),
/// }
/// # Ok::<(), redlatch::Error>(()) });
/// ```
#[doc(alias("RunOnce", "SchedulerLock"))]
#[derive(Clone)]
pub struct Job {
    handle: Handle,
    within: Duration,
}

impl fmt::Debug for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.handle.show("Job", f)
    }
}

impl Job {
    pub(crate) fn new(handle: Handle, within: Duration) -> Self {
        Self { handle, within }
    }

    /// Returns the name of the job, with the prefix of its client; see
    /// [`ReentrantLock::name`](crate::ReentrantLock::name).
    ///
    /// # Examples
    ///
    /// ```
    /// # redlatch_testkit::doc(async |url| {
    /// # let client = redlatch::Client::connect(url).await?;
    /// let report = client.job("hourly-report", std::time::Duration::from_secs(45 * 60));
    /// assert_eq!(report.name(), "hourly-report");
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
    #[must_use]
    pub fn name(&self) -> &str {
        self.handle.shown_name()
    }

    /// Runs the job, unless another process runs it, or ran it `within` the time of this handle. Returns `Some` with
    /// what the job returned if it ran here, and `None` if another process runs it or ran it.
    ///
    /// The call makes one attempt, and does not wait for the other process. It passes an [`Execution`] to the job. The
    /// job's error can be any type that an [`Error`] converts into, such as `Box<dyn std::error::Error>` or
    /// `anyhow::Error`.
    ///
    /// Do not close the client before the call has returned: that counts as if the process had died.
    ///
    /// # Errors
    ///
    /// The error that the job returned, or one of these:
    ///
    /// - [`InvalidInput`](crate::ErrorKind::InvalidInput): the name cannot work, or `within` is below 50 ms or above
    ///   100 years; nothing was sent.
    /// - [`Backend`](crate::ErrorKind::Backend), [`Timeout`](crate::ErrorKind::Timeout): the server could not be
    ///   reached, did not answer or refused, also the release of an earlier run here, and the job was not begun. Once
    ///   the job has succeeded, these are no errors.
    /// - [`LeaseLost`](crate::ErrorKind::LeaseLost): the lease was lost while the job ran, or before it could begin.
    ///   The job was dropped, and may be half done.
    /// - [`WrongKind`](crate::ErrorKind::WrongKind): the name is in use by something else.
    /// - [`Refused`](crate::ErrorKind::Refused): the lock has run out of tokens.
    /// - [`Closed`](crate::ErrorKind::Closed): the client was closed.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped while the job runs, the job is dropped and the lock is released in the background, so
    /// that another process may run the job. Once the job has succeeded, the lock is kept in the background.
    ///
    /// # Examples
    ///
    /// ```
    /// # redlatch_testkit::doc(async |url| {
    /// # let client = redlatch::Client::connect(url).await?;
    /// use std::time::Duration;
    ///
    /// type Failure = Box<dyn std::error::Error + Send + Sync>;
    ///
    /// let job = client.job("import", Duration::from_secs(60));
    /// let failed = job.execute(async |_| Err::<(), Failure>("the file is not there yet".into())).await;
    /// assert!(failed.is_err());
    ///
    /// // So another process, or this one, may try again.
    /// let imported = job.execute(async |_| Ok::<_, Failure>(7)).await.unwrap();
    /// assert_eq!(imported, Some(7));
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
    #[doc(alias = "run")]
    pub async fn execute<T, E: From<Error>>(
        &self,
        job: impl AsyncFnOnce(&Execution) -> Result<T, E>,
    ) -> Result<Option<T>, E> {
        let Some(run) = self.begin().await? else {
            return Ok(None);
        };
        match run.run_until_lost(job(&run)).await {
            Ok(Ok(value)) => {
                self.succeeded(run).await;
                Ok(Some(value))
            }
            Ok(Err(failure)) => {
                if let Err(error) = run.guard.unlock().await {
                    debug!(%error, "the release after a failed job was not confirmed");
                }
                Err(failure)
            }
            Err(lost) => Err(lost.into()),
        }
    }

    async fn begin(&self) -> Result<Option<Execution>, Error> {
        LeaseTime::of_setting("within", self.within)?;
        let guard = taken(&self.handle).await?;
        Ok(guard.map(|guard| {
            let FencedGuard { guard, token } = guard.into();
            // Counted from after the grant, so that the lock is kept for no less.
            let end = BootInstant::now().plus(self.within);
            Execution { guard, token, end }
        }))
    }

    /// Has the lock kept until the end of the period. Returns when that is done, or after one lease.
    async fn succeeded(&self, run: Execution) {
        // Nothing is ever sent: the sender is dropped once the caller need not wait any longer.
        let (done, told) = oneshot::channel::<Infallible>();
        let (handle, end) = (self.handle.clone(), run.end);
        // Ahead of the task, since the runtime may end before it begins.
        let lease = run.leave();
        // In a task of its own, so that whoever drops the future of a job that has run does not have it run again.
        self.handle.client.spawn(async move {
            match lease {
                Ok(lease) => keep(lease, end, &handle).await,
                Err(guard) => {
                    if let Err(error) = guard.unlock().await {
                        debug!(%error, "the release after a long job was not confirmed");
                    }
                }
            }
            drop(done);
        });
        // By a timer of the caller: the runtime of that task may be at rest.
        let told = async { timeout(self.handle.watchdog_lease, told).await };
        if self.handle.client.timed(told).await.is_err() {
            warn!("a job has run, but the server does not answer: it is told in the background");
        }
    }
}

/// One run of a job, which lasts until the job ends. Lent to the job by [`Job::execute`].
///
/// A run derefs to its [`Lease`], which is renewed.
#[clippy::has_significant_drop]
pub struct Execution {
    guard: LockGuard,
    token: FencingToken,
    /// Until when the lock is kept once the job has succeeded.
    end: BootInstant,
}

impl fmt::Debug for Execution {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = self.guard.show("Execution", f);
        shown.field("token", &self.token.get()).finish()
    }
}

impl Execution {
    /// Returns the fencing token of this run, which is higher than those of all earlier runs of the job.
    ///
    /// A store that remembers the highest token and refuses lower ones is safe from a run that was paused for longer
    /// than its lease, and continues after another run.
    ///
    /// # Examples
    ///
    /// ```
    /// # redlatch_testkit::doc(async |url| {
    /// # let client = redlatch::Client::connect(url).await?;
    /// use std::time::Duration;
    /// use redlatch::Error;
    ///
    /// let job = client.job("import", Duration::from_secs(60));
    /// let token = job.execute(async |run| Ok::<_, Error>(run.token())).await?.expect("nobody else runs it");
    /// println!("UPDATE imports SET token = {token} WHERE token <= {token}");
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
    #[must_use]
    pub fn token(&self) -> FencingToken {
        self.token
    }

    /// Leaves the lock to its owner, so that nothing releases it when the lease that this process knows of has passed:
    /// the server may have been told, though it has not answered. Returns the guard if the job took longer than the
    /// period: the next one is due.
    fn leave(self) -> Result<Lease, LockGuard> {
        match BootInstant::now() < self.end {
            true => Ok(self.guard.leave()),
            false => Err(self.guard),
        }
    }
}

/// Has the lock of a job kept until the end of the period, however long it takes until the server says so.
async fn keep(lease: Lease, end: BootInstant, handle: &Handle) {
    let left = || BootInstant::now().until(end);
    let key = lease.hold.key().name.key().clone();
    // If the hold has ended already, its release is on its way, and would remove what is set now. The lock is then
    // acquired again.
    let mut lease = Some(lease).filter(|lease| !lease.hold.lock().has_ended());
    // The release of that hold may not have been noted yet.
    let mut may_be_ours = lease.is_none();
    let mut outage = FailureStreak::default();
    // Also when the period has passed meanwhile: the lease may last longer.
    loop {
        let told = match &lease {
            // The last renewal was in the period, so nothing of its lease is left on the server.
            Some(_) if BootInstant::now() >= end.plus(handle.watchdog_lease) => return,
            Some(lease) => lease.outlast(left().max(SHORTEST_LEASE)).await,
            None if left().is_zero() => return,
            // The lock was lost in an outage. If it is still free, nobody else has run the job.
            None => match taken(handle).await {
                Ok(Some(guard)) => {
                    lease = Some(guard.leave());
                    continue;
                }
                Ok(None) if std::mem::take(&mut may_be_ours) => {
                    sleep(SHORTEST_LEASE).await;
                    continue;
                }
                Ok(None) => {
                    warn!(job = %key, "a job has run, and its lock was lost: another process may have run it too");
                    return;
                }
                Err(error) => Err(error),
            },
        };
        match told {
            Ok(true) => {
                debug!(job = %key, left = ?left(), "has run");
                return;
            }
            Ok(false) => lease = None,
            Err(error) => {
                if let Err(error) = outage.endure(&handle.client, &key, error).await {
                    warn!(job = %key, %error, "a job has run, and may run again");
                    return;
                }
            }
        }
    }
}

/// Attempts to acquire the lock of a job. Returns `None` if another process has it, or a run of this one that goes on.
async fn taken(handle: &Handle) -> Result<Option<LockGuard>, Error> {
    // An owner of its own, so that a job that starts itself finds it running.
    let owner = Owner::unique();
    let (client, name) = (&handle.client, handle.name()?);
    let local = client.local_locks.enter(name.local_key(Users::Owners));
    // Until this process has given back what it owes, the lock may look busy because of that.
    let settled = async {
        let turn = local.turn(&owner, Barrier::Answered);
        let turn = timeout(client.settings.command_timeout, turn);
        let is_late = client.unless_closed(turn).await?.is_err();
        // A release that was written, and that nobody polls for its answer, is not waited for.
        if is_late && local.turn_at_once(&owner, Barrier::Sent).is_none() {
            let text = "an earlier run of this process is not released yet";
            let error = Error::new(ErrorKind::Timeout, text).unsent();
            return Err(error.about(name.key()));
        }
        Ok(())
    };
    client.within(Box::pin(settled)).await?;
    handle.clone().owned_by(&owner).try_lock().await
}

impl Deref for Execution {
    type Target = Lease;

    fn deref(&self) -> &Lease {
        &self.guard
    }
}
