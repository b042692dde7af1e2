//! The permits of this process: taken from a semaphore or in doubt, and owed back.
//!
//! # Invariant
//!
//! A permit record stands in the registry from before its permits are requested until the server has them back, or
//! until nothing is left to give back. Code that removes a record that is still owed sends the request that gives it
//! back. The request mark makes a second such request harmless. A client that closes waits for that code, and enters no
//! record any more.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::sleep;

use super::backend::Backend;
use super::place::UNPOLLED;
use super::reaper::Reaper;
use super::releaser::Releaser;
use super::sync::Spawner;
use super::tally::Tally;
use super::undo::{Owed, Undo};
use crate::clock::BootInstant;
use crate::error::Error;
use crate::loss::LossReason;
use crate::protocol::counted::Returned;
use crate::protocol::counter::RequestMark;
use crate::protocol::script::{Call, Request};
use crate::protocol::semaphore::{GiveBack, PermitKey, TRIED};
use crate::protocol::sent_over::SentOver;

/// How long a call may take to notice that the time of its request is over. Longer than an executor is usually busy
/// with other tasks.
const NOTICED_WITHIN: Duration = Duration::from_millis(500);

/// The permits of one call.
///
/// Made before the permits are requested, and shared by the guard, the registry and the reaper.
#[derive(Debug)]
pub(crate) struct PermitRecord {
    /// Its key in the registry.
    id: u64,
    /// Identifies the permits on the server: the semaphore, their number, and the mark or ids of this call.
    pub(crate) key: PermitKey,
    /// How long one request for them may take.
    pub(crate) timeout: Duration,
    permits: Arc<PermitRegistry>,
    /// The connection that the request for them is sent over.
    over: SentOver,
    state: Mutex<PermitState>,
}

/// The state of the permits of one call.
#[derive(Debug, Default)]
struct PermitState {
    /// By then, the last request for them has ended here, if anybody polls the call.
    ends: Option<BootInstant>,
    /// Whether others went ahead of the call, since nobody polled it.
    was_passed: bool,
    /// When the request that took them was sent. `None` if none is known to have taken them.
    granted: Option<BootInstant>,
    /// Since when they count as held, if they do.
    held_since: Option<BootInstant>,
    /// Whether a request for them went unanswered. A copy of it may arrive after they were returned, and must take
    /// nothing.
    in_doubt: bool,
    /// The number of lease extensions begun, and of those of which a copy may still be in flight.
    extensions: u32,
    extensions_in_doubt: u32,
    /// Decided once, so that every try to give them back sends the same request.
    how: Option<GiveBack>,
}

impl PermitRecord {
    /// Makes the record of permits that are about to be requested. It is not in the registry yet.
    pub(crate) fn new(
        key: PermitKey,
        timeout: Duration,
        permits: &Arc<PermitRegistry>,
    ) -> Arc<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Arc::new(Self {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            key,
            timeout,
            permits: permits.clone(),
            over: SentOver::default(),
            state: Mutex::default(),
        })
    }

    /// Enters the permit record in the registry, before its permits are requested. Fails if the client has closed.
    ///
    /// From now on they are owed back until the `Undo` is disarmed.
    pub(crate) fn undo(self: &Arc<Self>) -> Result<Undo<Arc<Self>>, Error> {
        let mut records = self.permits.lock();
        let open = records.as_mut().ok_or_else(Error::closed)?;
        // Before others see it: all earlier requests were answered, or their outcome is noted as unknown.
        self.over.clear();
        self.lock().ends = None;
        open.insert(self.id, self.clone());
        drop(records);
        let permits = &self.permits;
        if !permits.is_watched.swap(true, Ordering::Relaxed) {
            drop(permits.runtime.spawn(permits.clone().watch()));
        }
        Ok(Undo::arm(self.clone()))
    }

    /// Returns the call that takes the permits, which is sent now.
    pub(crate) fn acquire(&self) -> Call<'_> {
        self.lock().ends = Some(BootInstant::now().plus(self.timeout + NOTICED_WITHIN));
        self.key.acquire().over(&self.over)
    }

    /// Notes that the permits were granted by a request sent at `sent`.
    pub(crate) fn granted(&self, sent: BootInstant) {
        self.lock().granted = Some(sent);
    }

    /// Notes that a call of this client was granted the permits, by a request sent at `sent`. They count as held until
    /// they are removed from the registry. Returns `false` if they were given back in the meantime: others went ahead
    /// of the call, or the client has closed.
    pub(crate) fn taken(&self, sent: BootInstant) -> bool {
        self.granted(sent);
        let Self { key, permits, .. } = self;
        let records = permits.lock();
        let is_ours = records
            .as_ref()
            .is_some_and(|open| open.contains_key(&self.id));
        self.lock().held_since = is_ours.then_some(sent);
        // Metrics are recorded outside the mutex, since a recorder may run any code.
        drop(records);
        if is_ours {
            let (kind, name) = (key.counted(), key.name.key());
            permits.tally.permits_taken(kind, name, key.count);
        }
        is_ours
    }

    /// Whether others went ahead of the call, and the permits were given back. The call needs another record.
    pub(crate) fn was_passed(&self) -> bool {
        self.lock().was_passed
    }

    /// Notes that the permits are no longer held, if they were.
    fn ended(&self) {
        let since = self.lock().held_since.take();
        if let Some(since) = since {
            let Self { key, permits, .. } = self;
            let (kind, name) = (key.counted(), key.name.key());
            permits
                .tally
                .permits_returned(kind, name, key.count, || since);
        }
    }

    /// Notes that a request for the permits went unanswered, and so may run at any time.
    ///
    /// Is never cleared: a later answer says nothing about a copy of the earlier request.
    pub(crate) fn outcome_unknown(&self) {
        self.lock().in_doubt = true;
    }

    /// Whether a request for the permits may still run.
    pub(crate) fn is_in_doubt(&self) -> bool {
        self.lock().in_doubt
    }

    /// Begins an extension. Returns its number, and whether a copy of an earlier request that sets a lease may still be
    /// in flight.
    pub(crate) fn extending(&self) -> (u32, bool) {
        let mut state = self.lock();
        state.extensions += 1;
        state.extensions_in_doubt += 1;
        let in_doubt = state.in_doubt || state.extensions_in_doubt > 1;
        (state.extensions, in_doubt)
    }

    /// Notes that an extension was sent once and answered.
    ///
    /// Not called for an extension without an answer, or with several sends, since a copy of it may arrive at any time.
    pub(crate) fn extended(&self) {
        self.lock().extensions_in_doubt -= 1;
    }

    /// Returns the error of permits that were gone by the time they were returned.
    pub(crate) fn lost(&self) -> Error {
        let name = self.key.name.key();
        Error::lost(LossReason::Gone).saying(format!(
            "a permit of {name:?} was no longer held; work done under it since then may have exceeded the limit"
        ))
    }

    /// Decides how the permits are given back, unless that was decided before.
    fn decide(&self) -> GiveBack {
        let mut state = self.lock();
        let PermitState {
            granted, in_doubt, ..
        } = *state;
        *state.how.get_or_insert_with(|| {
            let age = granted.map(|granted| granted.until(BootInstant::now()));
            GiveBack::new(in_doubt || granted.is_none(), age)
        })
    }

    fn lock(&self) -> MutexGuard<'_, PermitState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Request for PermitRecord {
    /// Returns the call that gives the permits back, or that ensures that they are never taken.
    ///
    /// The call is the same each time, so a server that has carried it out recognizes a copy by its mark.
    fn call(&self) -> Call<'_> {
        self.key.give_back(self.decide())
    }

    /// Returns the call for permits in doubt that is posted behind the request for them. It leaves nothing that has to
    /// expire. Returns `None` if the permits are not in doubt, or once a different call was decided on.
    ///
    /// If it goes unanswered, [`call`](Self::call) follows. Whichever of the two runs first gives the permits back,
    /// since both need the mark that taking them left.
    fn call_behind(&self) -> Option<Call<'_>> {
        let state = self.lock();
        let is_open = state.granted.is_none() && !state.in_doubt && state.how.is_none();
        let how = GiveBack::new(false, None);
        is_open.then(|| self.key.give_back(how).over(&self.over))
    }
}

impl Owed for Arc<PermitRecord> {
    /// Whether all permits were still there.
    type Answer = bool;

    async fn run(&mut self) -> Result<bool, Error> {
        let call = self.call();
        let answer = self.permits.backend.give_back(&call, self.timeout).await?;
        let all = match Returned::decode(&answer.reply, self.key.name.key())? {
            // Permits with a lease may have run out one by one.
            Returned::Done(live) if !self.key.ids().is_empty() => live >= i64::from(self.key.count),
            Returned::Done(_) => true,
            Returned::Absent => false,
        };
        // An earlier send of this call went unanswered, and may have given them back.
        Ok(all || answer.repeated)
    }

    /// Writes the request at once if a connection takes it.
    fn post(&mut self) {
        // A client that closes waits for this, while neither the registry nor the reaper has the record.
        let _owing = self.permits.reaper.owing();
        // Otherwise `return_all` or `pass_over` has sent it already.
        if self.permits.strike(self) {
            self.permits.post(self.clone());
        }
    }

    fn end(&mut self) {
        self.permits.strike(self);
    }
}

impl Undo<Arc<PermitRecord>> {
    /// Leaves the permits taken.
    ///
    /// For permits that are forgotten on purpose. Their request mark on the server is removed in the background.
    pub(crate) fn leave(self) {
        let in_doubt = {
            let state = self.lock();
            state.in_doubt || state.extensions_in_doubt > 0
        };
        // Permits with a lease have ids on the server, which recognize a copy of the request unless they are given back
        // before it.
        if in_doubt || self.key.ids().is_empty() {
            let mark = Arc::new(RequestMark::of(self.key.mark(), in_doubt));
            let end = BootInstant::now().plus(TRIED);
            self.permits.reaper.send(mark, self.timeout, end);
        }
        self.disarm();
    }
}

/// Every permit record of a client, by its id.
pub(crate) struct PermitRegistry {
    /// Whoever removes a record, and nobody else, has to send what it owes. `None` once the client has closed.
    records: Mutex<Option<HashMap<u64, Arc<PermitRecord>>>>,
    /// Whether a task looks for calls that nobody polls.
    is_watched: AtomicBool,
    backend: Arc<Backend>,
    reaper: Reaper,
    tally: Arc<Tally>,
    runtime: Spawner,
}

impl PermitRegistry {
    pub(super) fn new(releaser: &Releaser) -> Arc<Self> {
        Arc::new(Self {
            records: Mutex::new(Some(HashMap::new())),
            is_watched: AtomicBool::new(false),
            backend: releaser.backend.clone(),
            reaper: releaser.reaper.clone(),
            tally: releaser.tally.clone(),
            runtime: releaser.runtime.clone(),
        })
    }

    /// Gives back each second what calls may have that nobody polls, until no call asks.
    async fn watch(self: Arc<Self>) {
        loop {
            sleep(UNPOLLED).await;
            if self.pass_over() {
                continue;
            }
            self.is_watched.store(false, Ordering::Relaxed);
            // A call that has come since has found the mark or is found here.
            if !self.pass_over() || self.is_watched.swap(true, Ordering::Relaxed) {
                return;
            }
        }
    }

    /// Gives everything back in the background.
    ///
    /// Called once, when the client closes.
    pub(super) fn return_all(&self) {
        let owed = self.lock().take().unwrap_or_default();
        for record in owed.into_values() {
            record.ended();
            // The call for them may still be running, and may send its request again behind this.
            record.decide();
            self.post(record);
        }
    }

    /// Gives back what the server may have granted to calls that nobody polls: the time of their requests is over. Such
    /// a call begins again when it is polled. Returns whether any other call asks.
    fn pass_over(&self) -> bool {
        // As in the `post` of a record.
        let _owing = self.reaper.owing();
        let now = BootInstant::now();
        let (mut unpolled, mut asks) = (Vec::new(), false);
        let mut records = self.lock();
        if let Some(open) = &mut *records {
            open.retain(|_, record| {
                let mut state = record.lock();
                let is_asking = state.held_since.is_none();
                state.was_passed = is_asking && state.ends.is_some_and(|ends| now >= ends);
                match state.was_passed {
                    true => unpolled.push(record.clone()),
                    false => asks |= is_asking,
                }
                !state.was_passed
            });
        }
        drop(records);
        for record in unpolled {
            // A thread that was stopped may send its request again behind this.
            record.decide();
            self.post(record);
        }
        asks
    }

    /// Returns how many permit records there are.
    pub(super) fn len(&self) -> usize {
        self.lock().as_ref().map_or(0, HashMap::len)
    }

    /// Sends the request that returns permits, at once if a connection takes it, and repeats it for at most [`TRIED`].
    fn post(&self, record: Arc<PermitRecord>) {
        let timeout = record.timeout;
        self.reaper
            .send_now(record, timeout, BootInstant::now().plus(TRIED));
    }

    /// Removes a permit record. Returns `false` if it was removed before.
    fn strike(&self, record: &PermitRecord) -> bool {
        let mut records = self.lock();
        let struck = records.as_mut().and_then(|open| open.remove(&record.id));
        drop(records);
        if struck.is_some() {
            record.ended();
        }
        struck.is_some()
    }

    fn lock(&self) -> MutexGuard<'_, Option<HashMap<u64, Arc<PermitRecord>>>> {
        self.records.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for PermitRegistry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PermitRegistry").finish_non_exhaustive()
    }
}
