//! The part that both semaphores share: acquires permits, in order of arrival within this process, and counts them.
//!
//! A call that does not get its permits at once waits in the local queue, one for each name, and only the call at the
//! front asks the server. While a call waits there, no other call of this process asks past it, so that a call which
//! wants many permits is not starved by calls that want one.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tracing::{Instrument, debug, debug_span};

use crate::clock::BootInstant;
use crate::counter::{Counter, check};
use crate::error::{Error, ErrorKind};
use crate::name::{LockName, Users};
use crate::options::{Deadline, LeaseTime};
use crate::permit_id::PermitId;
use crate::protocol::counted::{Changed, CounterValue, Taken};
use crate::protocol::semaphore::{self, PermitKey};
use crate::protocol::waiter::Local;
use crate::session::backend::Answer;
use crate::session::hold::fresh_acquisition_id;
use crate::session::local_queue::Role;
use crate::session::permit_record::PermitRecord;
use crate::session::undo::Undo;
use crate::wait::{Asked, Waiting, Wanted};

/// The most permits of an expirable semaphore that one call may acquire.
const MOST_LEASED: u32 = 1_000;

/// A semaphore whose permits have no lease, or may have one.
#[derive(Clone, Debug)]
pub(crate) struct Pool {
    pub(crate) counter: Counter,
    pub(crate) leases: Leases,
}

/// When permits come back by themselves.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Leases {
    /// Never.
    None,
    /// When this lease ends. With `None`, permits have ids but do not expire.
    Of(Option<Duration>),
}

impl Pool {
    pub(crate) async fn try_set_permits(&self, permits: u32) -> Result<bool, Error> {
        let set = async {
            let name = self.counter.open()?;
            let permits = check("the number of permits", permits, 0)?;
            let set = self
                .counter
                .change(name, |name, mark| semaphore::set(name, mark, permits));
            Ok(Changed::decode(&set.await?, name.key())?.0)
        };
        self.counter.client.within(Box::pin(set)).await
    }

    pub(crate) async fn available_permits(&self) -> Result<i32, Error> {
        let available = async {
            let name = self.counter.open()?;
            let reply = match self.leases {
                Leases::None => self.counter.ask(&semaphore::read(name)).await?,
                Leases::Of(_) => {
                    let taken = semaphore::taken(name);
                    self.counter.ask(&semaphore::count(name, &taken)).await?
                }
            };
            Ok(CounterValue::decode(&reply, name.key())?.signed())
        };
        self.counter.client.within(Box::pin(available)).await
    }

    pub(crate) async fn add_permits(&self, permits: i64) -> Result<(), Error> {
        let add = async {
            let name = self.counter.open()?;
            let added = self
                .counter
                .change(name, |name, mark| semaphore::add(name, mark, permits));
            CounterValue::decode(&added.await?, name.key()).map(drop)
        };
        self.counter.client.within(Box::pin(add)).await
    }

    pub(crate) async fn drain_permits(&self) -> Result<u32, Error> {
        let drain = async {
            let name = self.counter.open()?;
            if let Leases::Of(_) = self.leases {
                // Permits whose lease has ended are free but may not be counted yet: this read counts them.
                let taken = semaphore::taken(name);
                self.counter.ask(&semaphore::count(name, &taken)).await?;
            }
            let drained = self.counter.change(name, semaphore::drain).await?;
            Ok(CounterValue::decode(&drained, name.key())?.unsigned())
        };
        self.counter.client.within(Box::pin(drain)).await
    }

    /// Releases the permit with this id, whichever client acquired it. Returns `false` if it is not taken, or if its
    /// lease has ended.
    pub(crate) async fn release_permit(&self, id: PermitId) -> Result<bool, Error> {
        let release = async {
            let name = self.counter.open()?;
            let client = &self.counter.client;
            let key = PermitKey::leased(name.clone(), vec![id], None);
            let record = PermitRecord::new(key, self.counter.timeout(), &client.permits);
            // Another call was granted this permit, perhaps in another process. Without this line the record would
            // count as in doubt, and its release would leave a `returned` mark on the server.
            record.granted(BootInstant::now());
            record.undo()?.run().await
        };
        self.counter.client.within(Box::pin(release)).await
    }

    /// Acquires `permits` permits, all or none. Returns `None` if they were not free before the deadline.
    pub(crate) fn acquire(
        &self,
        permits: u32,
        wait: Duration,
    ) -> impl Future<Output = Result<Option<PermitUndo>, Error>> + Send {
        let acquire = async move {
            let name = self.counter.open()?;
            let span = debug_span!("acquire", semaphore = %name.key(), permits);
            let mut take = self.take(name, permits)?;
            let (kind, deadline) = (take.record.key.counted(), Deadline::within(wait));
            let call = self.counter.client.tally.call(kind, name.key());
            let taken = self.in_order(name, &mut take, deadline).instrument(span);
            let taken = match (taken.await, take.least) {
                // The drop of the `Undo` in `taken` releases the permits.
                (Ok(Some((_, left))), Some(least)) if left < least => Err(too_late(name, least)),
                (taken, _) => taken.map(|taken| taken.map(|(undo, _)| undo)),
            };
            call.ended(deadline, &taken);
            taken
        };
        self.counter.client.within(Box::pin(acquire))
    }

    /// Asks the server at once if no call of this process waits for the semaphore. Otherwise, or if it does not get
    /// the permits, joins the local queue behind the calls that came before. A single attempt joins no queue.
    async fn in_order<'a>(
        &'a self,
        name: &LockName,
        take: &mut PermitCall<'a>,
        deadline: Deadline,
    ) -> Result<Option<Permits>, Error> {
        let client = &self.counter.client;
        let mut wait = self.counter.wait(deadline);
        let once = wait.is_single_attempt();
        let line = client.local_locks.enter(name.local_key(Users::Permits));
        while line.in_queue() == 0 {
            match take.run().await {
                Ok(Asked::Ready(taken)) => return Ok(Some(taken)),
                Ok(Asked::Yielded) => continue,
                Err(error) if once || !error.is_passing() => return Err(error),
                Ok(_) | Err(_) => break,
            }
        }
        if once {
            return Ok(None);
        }
        let place = line.stand(Role::InQueue, None, &client.releaser.runtime);
        if place.now().is_none() && take.record.is_in_doubt() {
            // It may have taken what the call ahead of it waits for, and asks nothing until that has gone.
            *take = self.take(name, take.record.key.count)?;
        }
        let turn = pin!(place.comes());
        if client.in_queue(Some(name), &wait, turn).await?.is_none() {
            return Ok(None);
        }
        let mut waiting = self.counter.waiting(name, &mut wait).at(&place);
        // Those behind this call are told of with it.
        let taken = client.tell_if_unset(name, waiting.until(take)).await?;
        debug!(granted = taken.is_some(), waited = ?wait.waited(BootInstant::now()), "waited");
        Ok(taken)
    }

    fn take<'a>(&'a self, name: &LockName, permits: u32) -> Result<PermitCall<'a>, Error> {
        let settings = &self.counter.client.settings;
        let permits = check("the number of permits", permits, 1)?;
        let (key, lease) = match self.leases {
            Leases::None => {
                let key = PermitKey::new(name.clone(), permits, fresh_acquisition_id());
                (key, None)
            }
            Leases::Of(_) if permits > MOST_LEASED => {
                return Err(Error::invalid(format!(
                    "at most {MOST_LEASED} permits with a lease can be acquired at once, not {permits}"
                )));
            }
            Leases::Of(lease) => {
                let lease = lease.map(LeaseTime::new).transpose()?;
                let ids = (0..permits).map(|_| PermitId::fresh()).collect();
                (PermitKey::leased(name.clone(), ids, lease), lease)
            }
        };
        let least = lease
            .map(|lease| settings.min_validity(lease))
            .transpose()?;
        let most = self.counter.timeout();
        let timeout = lease.map_or(most, |lease| settings.timeout(lease).min(most));
        Ok(PermitCall {
            pool: self,
            record: PermitRecord::new(key, timeout, &self.counter.client.permits),
            lease,
            least,
            undo: None,
        })
    }
}

/// One call that acquires permits, over all its requests.
struct PermitCall<'a> {
    pool: &'a Pool,
    record: Arc<PermitRecord>,
    lease: Option<LeaseTime>,
    /// How much of the lease must be left when the permits are handed out.
    least: Option<Duration>,
    /// `Some` from before the first request until an answer shows that nothing was taken, or the permits are handed
    /// out.
    undo: Option<PermitUndo>,
}

/// The permits that were acquired, and how much of their lease is left: counted from when the request was sent, less
/// the margin. [`Duration::MAX`] without a lease.
type Permits = (PermitUndo, Duration);

/// Permits that are given back unless this is disarmed.
pub(super) type PermitUndo = Undo<Arc<PermitRecord>>;

impl PermitCall<'_> {
    /// Asks the server once.
    async fn run(&mut self) -> Result<Asked<Permits>, Error> {
        if self.record.was_passed() {
            let PermitKey { name, count, .. } = &self.record.key;
            *self = self.pool.take(name, *count)?;
        }
        let client = &self.pool.counter.client;
        let record = self.record.clone();
        // Each request may leave something to undo. None is sent while too much is owed to a server that does not
        // answer.
        client.reaper.ensure_credit(&record.key.name)?;
        if self.undo.is_none() {
            self.undo = Some(record.undo()?);
        }
        let answer = client.run(&record.acquire(), record.timeout).await;
        // A request without an answer may still be carried out. So may a copy that was sent before the answer, whatever
        // that says.
        if Answer::may_run(&answer) {
            record.outcome_unknown();
        }
        let answer = answer.inspect_err(|_| self.nothing_taken())?;
        match Taken::decode(&answer.reply, record.key.name.key()) {
            Ok(Taken::Granted) if record.taken(answer.sent) => {
                let left = self.lease.map_or(Duration::MAX, |lease| {
                    let end = answer.sent.plus(lease.get() - lease.margin());
                    BootInstant::now().until(end)
                });
                let undo = self.undo.take();
                Ok(Asked::Ready((undo.ok_or_else(Error::closed)?, left)))
            }
            Ok(Taken::Busy(ttl)) => {
                self.nothing_taken();
                Ok(Asked::Busy(ttl.into()))
            }
            // Nobody polled this call, so that others went ahead of it.
            Ok(Taken::Granted | Taken::Returned) if record.was_passed() => Ok(Asked::Yielded),
            // The client was closed in the meantime, which released the permits.
            Ok(Taken::Granted | Taken::Returned) => Err(Error::closed()),
            Err(error) => {
                if error.kind() == ErrorKind::WrongKind {
                    self.nothing_taken();
                }
                Err(error)
            }
        }
    }

    /// Disarms the `Undo` after an answer that nothing was taken, unless an earlier request is in doubt.
    fn nothing_taken(&mut self) {
        if !self.record.is_in_doubt()
            && let Some(undo) = self.undo.take()
        {
            undo.disarm();
        }
    }
}

impl Local for PermitCall<'_> {}

impl Wanted for PermitCall<'_> {
    type Output = Permits;

    async fn ask(&mut self, _: &mut Waiting<'_>) -> Result<Asked<Permits>, Error> {
        Ok(self.run().await.unwrap_or_else(Asked::Failed))
    }
}

fn too_late(name: &LockName, least: Duration) -> Error {
    let name = name.key();
    Error::too_late(format!(
        "a permit of {name:?} was granted with less than {least:?} of its lease left, and was released"
    ))
}
