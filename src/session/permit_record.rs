//! Permits of this process: taken from a semaphore, or in doubt, and owed back.
//!
//! # Invariant
//!
//! A permit record stands in the registry from before its permits are asked for until the server has them back, or
//! until it is known that there is nothing to give back. The code that strikes a permit record out of the registry
//! while it is still owed sends the request that gives it back. The mark of its permits makes a second such request
//! harmless.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::backend::Backend;
use super::reaper::Reaper;
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

/// The permits of one call.
///
/// Made before the permits are asked for, and shared by the guard, the registry and the reaper.
#[derive(Debug)]
pub(crate) struct PermitRecord {
    /// Its key in the registry.
    id: u64,
    /// What identifies the permits on the server: the semaphore, how many, and the mark or ids of this call.
    pub(crate) key: PermitKey,
    /// How long one request for them may take.
    pub(crate) timeout: Duration,
    permits: Arc<PermitRegistry>,
    /// What the request that takes them is sent over.
    over: SentOver,
    state: Mutex<State>,
}

/// What is known of the permits of one call.
#[derive(Debug, Default)]
struct State {
    /// When the request was sent that took them. `None` if none is known to have done so.
    granted: Option<BootInstant>,
    /// Since when they count as held, if they do.
    held_since: Option<BootInstant>,
    /// A request that takes them went unanswered: a copy of it may come after they were returned, and must take
    /// nothing.
    in_doubt: bool,
    /// How many extensions of the lease were begun, and for how many of them a copy may still be on its way.
    extensions: u32,
    extensions_in_doubt: u32,
    /// Decided once, so that every try to give them back says the same.
    how: Option<GiveBack>,
}

impl PermitRecord {
    /// Makes the record of permits that are about to be asked for. It is not in the registry yet.
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

    /// Enters the permit record in the registry, before its permits are asked for.
    ///
    /// From now on they are owed back until the `Undo` is disarmed.
    pub(crate) fn undo(self: &Arc<Self>) -> Undo<Arc<Self>> {
        self.permits.lock().insert(self.id, self.clone());
        // All requests before this were answered, or their outcome is noted as unknown.
        self.over.clear();
        Undo::arm(self.clone())
    }

    /// Returns the call that takes the permits.
    pub(crate) fn acquire(&self) -> Call<'_> {
        self.key.acquire().over(&self.over)
    }

    /// Notes that the permits were granted by a request sent at `sent`.
    pub(crate) fn granted(&self, sent: BootInstant) {
        self.lock().granted = Some(sent);
    }

    /// Notes that a call of this client was granted the permits, by a request sent at `sent`: they count as held until
    /// they are struck out of the registry.
    pub(crate) fn taken(&self, sent: BootInstant) {
        self.granted(sent);
        let records = self.permits.lock();
        // Unless the client was closed meanwhile, which has given them back.
        if records.contains_key(&self.id) {
            self.lock().held_since = Some(sent);
            let Self { key, permits, .. } = self;
            permits
                .tally
                .permits_taken(key.counted(), key.name.key(), key.count);
        }
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

    /// Notes that a request for the permits went unanswered, and may be carried out at any time.
    ///
    /// Cannot be taken back: a later answer says nothing about a copy of the earlier request.
    pub(crate) fn outcome_unknown(&self) {
        self.lock().in_doubt = true;
    }

    /// Whether a request for the permits may still be carried out.
    pub(crate) fn is_in_doubt(&self) -> bool {
        self.lock().in_doubt
    }

    /// Begins an extension. Returns its number, and whether a copy of an earlier one may still be on its way.
    pub(crate) fn extending(&self) -> (u32, bool) {
        let mut state = self.lock();
        state.extensions += 1;
        state.extensions_in_doubt += 1;
        (state.extensions, state.extensions_in_doubt > 1)
    }

    /// Notes that an extension was sent once and answered.
    ///
    /// Not called for an extension without an answer, or with several sends: a copy of that may come at any time.
    pub(crate) fn extended(&self) {
        self.lock().extensions_in_doubt -= 1;
    }

    /// Returns the error of permits that were no longer taken when they were returned.
    pub(crate) fn lost(&self) -> Error {
        let name = self.key.name.key();
        Error::lost(LossReason::Gone).saying(format!(
            "a permit of {name:?} was no longer held; work done under it since then may have exceeded the limit"
        ))
    }

    /// Decides how the permits are given back, unless that was decided before.
    fn decide(&self) -> GiveBack {
        let mut state = self.lock();
        let State {
            granted, in_doubt, ..
        } = *state;
        *state.how.get_or_insert_with(|| {
            let age = granted.map(|granted| granted.until(BootInstant::now()));
            GiveBack::new(in_doubt || granted.is_none(), age)
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Request for PermitRecord {
    /// Returns the call that gives the permits back, or makes sure that they are never taken.
    ///
    /// Says the same each time: a server that has carried it out recognizes the copy by its mark.
    fn call(&self) -> Call<'_> {
        self.key.give_back(self.decide())
    }

    /// Returns the call for permits of which nobody knows whether they were taken, posted behind the request for them:
    /// it leaves nothing that has to expire. Returns `None` if that is known, or once another call was decided on.
    ///
    /// If it has no answer, [`call`](Self::call) follows. Whichever of the two is carried out first gives the permits
    /// back: both need the mark that taking them has left.
    fn call_behind(&self) -> Option<Call<'_>> {
        let state = self.lock();
        let is_open = state.granted.is_none() && !state.in_doubt && state.how.is_none();
        let how = GiveBack::new(false, None);
        is_open.then(|| self.key.give_back(how).over(&self.over))
    }
}

impl Owed for Arc<PermitRecord> {
    /// Whether all the permits were still there.
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

    /// Written at once where a connection takes it.
    fn post(&mut self) {
        // Otherwise `return_all` has sent it already.
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
    /// For permits that are forgotten on purpose: what stands next to the number for their sake is removed in the
    /// background.
    pub(crate) fn leave(self) {
        let in_doubt = {
            let state = self.lock();
            state.in_doubt || state.extensions_in_doubt > 0
        };
        // Permits with a lease are remembered by their ids, unless they are given back before a copy of the request
        // comes.
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
    /// Only the one that removes a record here sends what it owes, and must.
    records: Mutex<HashMap<u64, Arc<PermitRecord>>>,
    backend: Arc<Backend>,
    reaper: Reaper,
    tally: Arc<Tally>,
}

impl PermitRegistry {
    pub(super) fn new(backend: Arc<Backend>, reaper: Reaper, tally: Arc<Tally>) -> Arc<Self> {
        Arc::new(Self {
            records: Mutex::default(),
            backend,
            reaper,
            tally,
        })
    }

    /// Has everything given back in the background.
    ///
    /// Called once, when the client closes.
    pub(super) fn return_all(&self) {
        let owed = std::mem::take(&mut *self.lock());
        for record in owed.into_values() {
            record.ended();
            // The call that asks for them may still be under way, and send its request again behind this.
            record.decide();
            self.post(record);
        }
    }

    /// Returns how many permit records there are.
    pub(super) fn len(&self) -> usize {
        self.lock().len()
    }

    /// Sends the request that returns permits, now if a connection takes it, and repeats it for [`TRIED`] at most.
    fn post(&self, record: Arc<PermitRecord>) {
        let timeout = record.timeout;
        self.reaper
            .send_now(record, timeout, BootInstant::now().plus(TRIED));
    }

    /// Strikes a permit record out. Returns `false` if it was struck out before.
    fn strike(&self, record: &PermitRecord) -> bool {
        let struck = self.lock().remove(&record.id).is_some();
        if struck {
            record.ended();
        }
        struck
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Arc<PermitRecord>>> {
        self.records.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for PermitRegistry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PermitRegistry").finish_non_exhaustive()
    }
}
