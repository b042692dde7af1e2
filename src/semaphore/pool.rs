//! What both semaphores do: permits that are taken, in order of arrival here, and counted.

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
use crate::protocol::counted::{Count, Set, Taken};
use crate::protocol::semaphore::{self, PermitKey};
use crate::protocol::waiter::Local;
use crate::session::hold::fresh_acquisition_id;
use crate::session::local_queue::Role;
use crate::session::permit_record::PermitRecord;
use crate::session::undo::Undo;
use crate::wait::{Asked, Waiting, Wanted};

/// So many permits with a lease fit into one call.
const MOST_LEASED: u32 = 1_000;

/// A semaphore, with or without leases.
#[derive(Clone, Debug)]
pub(crate) struct Pool {
    pub(crate) counter: Counter,
    pub(crate) leases: Leases,
}

/// Whether permits come back by themselves.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Leases {
    /// Never.
    None,
    /// After so long, if a lease is given.
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
            Ok(Set::decode(&set.await?, name.key())? == Set::Done)
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
            Ok(Count::decode(&reply, name.key())?.signed())
        };
        self.counter.client.within(Box::pin(available)).await
    }

    pub(crate) async fn add_permits(&self, permits: i64) -> Result<(), Error> {
        let add = async {
            let name = self.counter.open()?;
            let added = self
                .counter
                .change(name, |name, mark| semaphore::add(name, mark, permits));
            Count::decode(&added.await?, name.key()).map(drop)
        };
        self.counter.client.within(Box::pin(add)).await
    }

    pub(crate) async fn drain_permits(&self) -> Result<u32, Error> {
        let drain = async {
            let name = self.counter.open()?;
            if let Leases::Of(_) = self.leases {
                // Permits whose lease has ended are free, and perhaps not counted yet.
                let taken = semaphore::taken(name);
                self.counter.ask(&semaphore::count(name, &taken)).await?;
            }
            let drained = self.counter.change(name, semaphore::drain).await?;
            Ok(Count::decode(&drained, name.key())?.unsigned())
        };
        self.counter.client.within(Box::pin(drain)).await
    }

    /// Gives back a permit with a lease, whoever took it. False if it is not taken.
    pub(crate) async fn release_permit(&self, id: PermitId) -> Result<bool, Error> {
        let release = async {
            let name = self.counter.open()?;
            let client = &self.counter.client;
            let key = PermitKey::leased(name.clone(), vec![id], None);
            let record = PermitRecord::new(key, self.counter.timeout(), &client.permits);
            // To whomever.
            record.granted(BootInstant::now());
            record.undo().run().await
        };
        self.counter.client.within(Box::pin(release)).await
    }

    /// Takes permits. None if so many were not free until the limit.
    pub(crate) async fn acquire(
        &self,
        permits: u32,
        deadline: impl FnOnce() -> Deadline + Send,
    ) -> Result<Option<Undo<Arc<PermitRecord>>>, Error> {
        let acquire = async {
            let name = self.counter.open()?;
            let span = debug_span!("acquire", semaphore = %name.key(), permits);
            let mut take = self.take(name, permits)?;
            let taken = self.in_order(name, &mut take, deadline());
            let taken = taken.instrument(span).await?;
            match (taken, take.least) {
                (Some((_, left)), Some(least)) if left < least => Err(too_late(name, least)),
                (taken, _) => Ok(taken.map(|(undo, _)| undo)),
            }
        };
        self.counter.client.within(Box::pin(acquire)).await
    }

    /// Asks at once if nobody waits here, else when those that came before have their permits.
    async fn in_order(
        &self,
        name: &LockName,
        take: &mut Take<'_>,
        deadline: Deadline,
    ) -> Result<Option<Permits>, Error> {
        let client = &self.counter.client;
        let mut wait = self.counter.wait(deadline);
        let once = wait.is_single_attempt();
        let line = client.local_locks.enter(name.local_key(Users::Permits));
        if line.in_queue() == 0 {
            match take.run().await {
                Ok(Asked::Ready(taken)) => return Ok(Some(taken)),
                Err(error) if once || !error.is_passing() => return Err(error),
                Ok(_) | Err(_) => {}
            }
        }
        if once {
            return Ok(None);
        }
        let place = line.stand(Role::InQueue, None, &client.releaser.runtime);
        let turn = pin!(place.comes());
        if client.in_queue(name, &wait, turn).await?.is_none() {
            return Ok(None);
        }
        let mut waiting = self.counter.waiting(name, &mut wait).at(&place);
        let taken = waiting.until(take).await?;
        debug!(granted = taken.is_some(), waited = ?wait.waited(BootInstant::now()), "waited");
        Ok(taken)
    }

    fn take<'a>(&'a self, name: &LockName, permits: u32) -> Result<Take<'a>, Error> {
        let settings = &self.counter.client.settings;
        let permits = check("the number of permits", permits, 1)?;
        let (key, lease) = match self.leases {
            Leases::None => {
                let key = PermitKey::new(name.clone(), permits, fresh_acquisition_id());
                (key, None)
            }
            Leases::Of(_) if permits > MOST_LEASED => {
                return Err(Error::invalid(format!(
                    "{MOST_LEASED} permits with a lease can be taken at once, not {permits}"
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
        let timeout = lease.map_or(settings.command_timeout, |lease| settings.timeout(lease));
        Ok(Take {
            counter: &self.counter,
            record: PermitRecord::new(key, timeout, &self.counter.client.permits),
            lease,
            least,
            undo: None,
        })
    }
}

/// Are so many permits free?
struct Take<'a> {
    counter: &'a Counter,
    record: Arc<PermitRecord>,
    lease: Option<LeaseTime>,
    /// What must be left of the lease when the permits are handed out.
    least: Option<Duration>,
    /// There from before the first request until an answer shows that nothing was taken.
    undo: Option<Undo<Arc<PermitRecord>>>,
}

/// What was taken, with what can be trusted of the lease.
type Permits = (Undo<Arc<PermitRecord>>, Duration);

impl Take<'_> {
    /// Asks the server once.
    async fn run(&mut self) -> Result<Asked<Permits>, Error> {
        let client = &self.counter.client;
        let record = self.record.clone();
        client.reaper.ensure_credit(&record.key.name)?;
        self.undo.get_or_insert_with(|| record.undo());
        let answer = match client.run(&record.key.acquire(), record.timeout).await {
            Ok(answer) => answer,
            Err(error) => {
                if error.is_unanswered() {
                    record.outcome_unknown();
                }
                self.nothing_taken();
                return Err(error);
            }
        };
        if answer.repeated {
            record.outcome_unknown();
        }
        match Taken::decode(&answer.reply, record.key.name.key()) {
            Ok(Taken::Granted) => {
                record.granted(answer.sent);
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
            // The client was closed meanwhile, and gave them back.
            Ok(Taken::Returned) => Err(Error::closed()),
            Err(error) => {
                if error.kind() == ErrorKind::WrongKind {
                    self.nothing_taken();
                }
                Err(error)
            }
        }
    }

    /// The server has answered that nothing was taken.
    fn nothing_taken(&mut self) {
        if !self.record.is_in_doubt()
            && let Some(undo) = self.undo.take()
        {
            undo.disarm();
        }
    }
}

impl Local for Take<'_> {}

impl Wanted for Take<'_> {
    type Output = Permits;

    async fn ask(&mut self, _: &mut Waiting<'_>) -> Result<Asked<Permits>, Error> {
        Ok(self.run().await.unwrap_or_else(Asked::Failed))
    }
}

fn too_late(name: &LockName, least: Duration) -> Error {
    let name = name.key();
    Error::lost(format!(
        "a permit of {name:?} was granted with less than {least:?} of its lease left, and was given back"
    ))
}
