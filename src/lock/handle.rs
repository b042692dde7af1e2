//! Implements the methods of every lock that has one name: its name, its kind and the terms of its calls.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tracing::{Span, info};

use super::holder::Holder;
use crate::backoff::Backoff;
use crate::clock::BootInstant;
use crate::error::Error;
use crate::hold::guard::LockGuard;
use crate::hold::request::{AcquireRequest, Terms};
use crate::loss::LossReason;
use crate::name::LockName;
use crate::options::{Deadline, LeaseMode, LeaseTime, Prefer, ReleaseBy};
use crate::owner::{Owner, Owners};
use crate::protocol::answer::{ForceReleased, Inspected};
use crate::protocol::hold_key::Kind;
use crate::protocol::wait::WakeSource;
use crate::scope;
use crate::session::ClientHandle;
use crate::session::hold::Hold;

/// Names a lock and its kind.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    pub(crate) name: LockName,
    pub(crate) kind: Kind,
}

impl Target {
    /// Returns `Err` if another lock would use the same keys next to its own.
    pub(crate) fn new(name: LockName, kind: Kind) -> Result<Self, Error> {
        if kind.has_keys_beside() {
            name.ensure_own_keys()?;
        }
        Ok(Self { name, kind })
    }
}

/// A lock of one name and one kind, with the terms that its methods use.
#[derive(Clone, Debug)]
pub(crate) struct Handle {
    pub(crate) client: Arc<ClientHandle>,
    /// An error shows when a method is called, so that making a handle cannot fail.
    target: Result<Target, Error>,
    wake_source: WakeSource,
    /// How many times the lock may be found busy before a call gives up; `None` for no limit.
    pub(crate) attempts: Option<u32>,
    pub(crate) watchdog_lease: Duration,
    fixed_lease: Option<Duration>,
    pub(super) owner: Option<Owner>,
}

impl Handle {
    pub(crate) fn new(
        client: Arc<ClientHandle>,
        target: Result<Target, Error>,
        watchdog_lease: Duration,
    ) -> Self {
        let poll_cap = client.settings.poll_cap;
        Self {
            client,
            target,
            wake_source: WakeSource::Messages { poll_cap },
            attempts: None,
            watchdog_lease,
            fixed_lease: None,
            owner: None,
        }
    }

    pub(crate) fn lease(mut self, lease: Duration) -> Self {
        self.fixed_lease = Some(lease);
        self
    }

    pub(crate) fn owned_by(mut self, owner: &Owner) -> Self {
        self.owner = Some(owner.clone());
        self
    }

    pub(crate) async fn lock(&self) -> Result<LockGuard, Error> {
        self.ensure_endless()?;
        let taken = self.acquire(Duration::MAX).await?;
        taken.ok_or_else(Error::endless)
    }

    /// Returns `Err` for a wait without a limit on a handle that gives up after some attempts.
    pub(super) fn ensure_endless(&self) -> Result<(), Error> {
        match self.attempts {
            None => Ok(()),
            Some(_) => Err(Error::invalid(
                "lock() waits without a limit; with max_attempts, use try_lock_for",
            )),
        }
    }

    pub(crate) async fn try_lock(&self) -> Result<Option<LockGuard>, Error> {
        self.acquire(Duration::ZERO).await
    }

    pub(crate) async fn try_lock_for(&self, wait: Duration) -> Result<Option<LockGuard>, Error> {
        self.acquire(wait).await
    }

    pub(crate) fn unlock(&self) -> impl Future<Output = Result<(), Error>> + Send {
        let unlock = async { self.request()?.unlock().await };
        self.client.within(Box::pin(unlock))
    }

    pub(crate) fn adopt(&self) -> impl Future<Output = Result<Option<LockGuard>, Error>> + Send {
        let adopt = async {
            let adopted = self.request()?.adopt().await?;
            if let Some(guard) = &adopted {
                let (lock, owner, label) = (guard.name(), guard.owner(), self.client.label());
                let token = guard.hold.token();
                info!(target: "redlatch", %lock, %owner, label, token, "adopted");
            }
            Ok(adopted)
        };
        self.client.within(Box::pin(adopt))
    }

    pub(crate) async fn is_locked(&self) -> Result<bool, Error> {
        Ok(self.inspect("").await?.is_some())
    }

    pub(crate) async fn is_held(&self) -> Result<bool, Error> {
        Ok(self.hold_count().await? > 0)
    }

    pub(crate) fn hold_count(&self) -> impl Future<Output = Result<u64, Error>> + Send {
        let count = async {
            // Determined before the first await, since the owner is the task that polls first.
            let owner = self.owner()?;
            let (client, Target { name, kind }) = (&self.client.client_name, self.target()?);
            let record = self.ask("", self.client.settings.command_timeout).await?;
            let holders = record.map_or_else(Vec::new, |record| record.holders);
            let local = self.client.local_locks.find(kind.local_key(name));
            let hold = local.and_then(|local| local.live(&owner));
            let is_of_several = kind.is_passed_on() && !owner.is_named();
            let own = holders.into_iter().find(|(holder, _)| match &hold {
                _ if !is_of_several => kind.is_of(holder, client, &owner),
                // The server has a record that was passed on or is shared under the owner that acquired the lock.
                Some(hold) => *holder == *hold.key().field(),
                None => false,
            });
            match (own, hold) {
                (Some(_), Some(hold)) if is_of_several => Ok(hold.levels().into()),
                (Some((_, count)), _) => self.count(&count),
                (None, _) => Ok(0),
            }
        };
        self.client.within(Box::pin(count))
    }

    pub(crate) async fn remaining_lease(&self) -> Result<Option<Duration>, Error> {
        Ok(self.inspect("").await?.and_then(|record| record.left))
    }

    pub(crate) async fn holder(&self) -> Result<Option<Holder>, Error> {
        let Some(mut record) = self.inspect("").await? else {
            return Ok(None);
        };
        let Some((owner, count)) = record.holders.first().cloned() else {
            return Err(Error::wrong_kind(self.name()?.key()));
        };
        let kind = &self.target()?.kind;
        if kind.sides().is_some() {
            // Only the keys of its levels tell which client it is.
            let levels = self.inspect(&kind.field_of(&owner)).await?;
            record.levels = levels.map_or_else(Vec::new, |record| record.levels);
        }
        let label = kind.label_of(&owner, &record.fields, &record.levels);
        let holder = Holder::new(&*owner, self.count(&count)?, record.left);
        Ok(Some(match label {
            Some(label) => holder.labelled(label),
            None => holder,
        }))
    }

    /// Releases the lock if its holders are those with these owner fields, or whoever holds it if there are none.
    pub(crate) fn force_unlock<'a>(
        &'a self,
        holders: &'a [String],
    ) -> impl Future<Output = Result<bool, Error>> + Send {
        let force = async move {
            self.client.ensure_open()?;
            let Target { name, kind } = self.target()?;
            let local = self.client.local_locks.enter(kind.local_key(name));
            // Ended before the request is sent, so that no guard here is trusted once the lock may be free. Their
            // releases stay owed until the server has answered.
            let (handoff, holds) = local.stop_passing();
            drop(handoff);
            let is_meant = |hold: &&Arc<Hold>| {
                let key = hold.key();
                holders.is_empty()
                    || holders
                        .iter()
                        .any(|it| [key.field(), key.value()].contains(&it.as_str()))
            };
            let owed: Vec<_> = holds
                .iter()
                .filter(is_meant)
                .filter_map(|hold| self.client.watchdog.lose(hold, LossReason::Forced))
                .collect();
            let call = kind.force_release(name, holders);
            let timeout = self.client.settings.command_timeout;
            let end = BootInstant::now().plus(timeout);
            let left = || BootInstant::now().until(end);
            let released = match self.client.run(&call, timeout).await {
                Ok(answer) => match ForceReleased::decode(&answer.reply)? {
                    ForceReleased::Released => true,
                    // An earlier, unanswered send of this call may have freed the lock.
                    ForceReleased::Free => answer.repeated,
                    // Nothing was released, so what the guards here had is still owed.
                    ForceReleased::Others => return Ok(false),
                    ForceReleased::WrongKind => return Err(Error::wrong_kind(name.key())),
                },
                // It was not sent again, since the lock may have another owner by now.
                Err(error) if error.is_unanswered() && !left().is_zero() => {
                    match self.ask("", left()).await {
                        Ok(None) => true,
                        _ => return Err(error),
                    }
                }
                Err(error) => return Err(error),
            };
            for undo in owed {
                undo.disarm();
            }
            if released {
                let (lock, label) = (name.key(), self.client.label());
                info!(target: "redlatch", %lock, label, "released by force");
            }
            Ok(released)
        };
        self.client.within(Box::pin(force))
    }

    fn acquire(
        &self,
        wait: Duration,
    ) -> impl Future<Output = Result<Option<LockGuard>, Error>> + Send {
        let acquire = async move { self.request()?.acquire(Deadline::within(wait)).await };
        self.client.within(Box::pin(acquire))
    }

    /// Returns the server's record of the lock, with the levels under this field of a read-write lock, or `None` if it
    /// is free.
    fn inspect<'a>(
        &'a self,
        field: &'a str,
    ) -> impl Future<Output = Result<Option<ServerRecord>, Error>> + Send {
        let timeout = self.client.settings.command_timeout;
        self.client.within(Box::pin(self.ask(field, timeout)))
    }

    async fn ask(&self, field: &str, timeout: Duration) -> Result<Option<ServerRecord>, Error> {
        self.client.ensure_open()?;
        let Target { name, kind } = self.target()?;
        let call = kind.inspect(name, field);
        let answer = self.client.run(&call, timeout).await?;
        match Inspected::decode(&answer.reply)? {
            Inspected::Held {
                ttl,
                fields,
                levels,
            } => {
                let holders: Vec<_> = fields
                    .iter()
                    .filter_map(|(field, count)| {
                        Some((kind.owner_of(field)?.to_owned(), count.clone()))
                    })
                    .collect();
                // It may be that only the other side of the read-write lock is held.
                let held = kind.sides().is_none() || !holders.is_empty();
                Ok(held.then(|| ServerRecord {
                    left: ttl.left(),
                    holders,
                    fields,
                    levels,
                }))
            }
            Inspected::Free => Ok(None),
            Inspected::WrongKind => Err(Error::wrong_kind(name.key())),
        }
    }

    fn count(&self, text: &str) -> Result<u64, Error> {
        text.parse()
            .or_else(|_| Err(Error::wrong_kind(self.name()?.key())))
    }

    /// Makes calls wait in the server queue, ahead of those with a lower priority.
    pub(crate) fn queued(&mut self, priority: i32) {
        self.wake_source = WakeSource::ServerQueue { priority };
    }

    /// Makes calls ask again after pauses of this `backoff`, instead of listening for messages.
    pub(crate) fn pauses(&mut self, backoff: Backoff) {
        self.wake_source = WakeSource::pauses(backoff, Duration::MAX);
    }

    /// Makes calls ask again after pauses of this `backoff`, none longer than the poll cap.
    pub(crate) fn polls(&mut self, backoff: Backoff) {
        self.wake_source = WakeSource::pauses(backoff, self.client.settings.poll_cap);
    }

    /// Makes this a lock of another kind with the same name.
    pub(crate) fn of_kind(&mut self, kind: Kind) {
        if let Ok(target) = &mut self.target {
            target.kind = kind;
        }
    }

    /// Sets how long the last token of a fenced lock is remembered.
    pub(super) fn token_ttl(&mut self, ttl: Duration) {
        if let Ok(Target {
            kind: Kind::Fenced(fencing),
            ..
        }) = &mut self.target
        {
            Arc::make_mut(fencing).ttl = Some(ttl);
        }
    }

    /// Sets which side of a read-write lock goes first.
    pub(super) fn prefer(&mut self, prefer: Prefer) {
        if let Ok(Target {
            kind: Kind::Read(sides) | Kind::Write(sides),
            ..
        }) = &mut self.target
        {
            Arc::make_mut(sides).prefer = prefer;
        }
    }

    fn request(&self) -> Result<AcquireRequest, Error> {
        self.request_for(self.owner()?)
    }

    /// Builds the request of a call for this owner, whatever the owner of the handle.
    pub(super) fn request_for(&self, owner: Owner) -> Result<AcquireRequest, Error> {
        owner.check()?;
        if let WakeSource::Pauses(pauses) = &self.wake_source {
            pauses.backoff.check()?;
        }
        if self.attempts == Some(0) {
            return Err(Error::invalid("a call makes at least one attempt"));
        }
        let lease_mode = match self.fixed_lease {
            Some(lease) => LeaseMode::Fixed(LeaseTime::new(lease)?),
            None => LeaseMode::Renewed(LeaseTime::new(self.watchdog_lease)?),
        };
        let kind = &self.target()?.kind;
        if let Kind::Fenced(fencing) = kind {
            fencing.check(lease_mode.lease())?;
        }
        if matches!(kind, Kind::Plain(ReleaseBy::Transaction))
            && self.client.settings.min_replicas.is_some()
        {
            return Err(Error::invalid(
                "min_replicas needs scripts, and this plain lock uses none",
            ));
        }
        Ok(AcquireRequest::new(Terms {
            name: self.name()?.clone(),
            kind: kind.clone(),
            wake_source: self.wake_source.clone(),
            attempts: self.attempts,
            owner,
            caller: self.client.settings.trace_holds.then(Span::current),
            min_validity: self.client.settings.min_validity(lease_mode.lease())?,
            lease_mode,
            client: self.client.clone(),
        }))
    }

    pub(crate) fn name(&self) -> Result<&LockName, Error> {
        Ok(&self.target()?.name)
    }

    /// Returns the name for people. Empty if the name is invalid.
    pub(crate) fn shown_name(&self) -> &str {
        self.name().map_or("", |name| name.key())
    }

    /// Writes a handle of this type in one line: its name, and its settings.
    pub(crate) fn show(&self, title: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct(title);
        shown.field("name", &self.shown_name());
        if let Some(owner) = &self.owner {
            shown.field("owner", &format_args!("{owner}"));
        }
        if let Some(lease) = &self.fixed_lease {
            shown.field("lease", lease);
        }
        shown.finish()
    }

    fn target(&self) -> Result<&Target, Error> {
        self.target.as_ref().map_err(Clone::clone)
    }

    fn owner(&self) -> Result<Owner, Error> {
        let owner = self.owner.clone();
        let owner = owner.unwrap_or_else(|| scope::acting(self.owners(), |it| self.is_held_by(it)));
        owner.check()?;
        Ok(owner)
    }

    pub(super) fn owners(&self) -> Owners {
        self.client.settings.owners
    }

    /// Returns whether this process holds the lock, or its other side, for this owner. Asks no server.
    pub(super) fn is_held_by(&self, owner: &Owner) -> bool {
        let local = self.target.as_ref().ok().and_then(|target| {
            let key = target.kind.local_key(&target.name);
            self.client.local_locks.find(key)
        });
        local.is_some_and(|local| local.live(owner).is_some() || local.has_other_side(owner))
    }
}

/// The server's record of a lock.
struct ServerRecord {
    left: Option<Duration>,
    /// The owners, each with the number of levels that it holds.
    holders: Vec<(String, String)>,
    /// Everything in the hash.
    fields: Vec<(String, String)>,
    /// For a read-write lock, the values of the keys of one owner's levels.
    levels: Vec<String>,
}
