//! Permits of this process: taken from a semaphore, or perhaps taken, and owed back.
//!
//! # Invariant
//!
//! A loan stands in the book from before its permits are asked for until the server has them back, or until it is
//! known that there is nothing to give back. Whoever strikes a loan out of the book that is still owed sends the
//! request that gives it back; the mark of its permits makes a second one harmless.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::backend::Backend;
use super::reaper::Reaper;
use super::undo::{Owed, Undo};
use crate::clock::BootInstant;
use crate::error::Error;
use crate::protocol::counted::Returned;
use crate::protocol::counter::Mark;
use crate::protocol::script::{Call, Request};
use crate::protocol::semaphore::{GiveBack, PermitKey, TRIED};

/// The permits of one call.
#[derive(Debug)]
pub(crate) struct Loan {
    id: u64,
    pub(crate) key: PermitKey,
    /// How long one request for them may take.
    pub(crate) timeout: Duration,
    book: Arc<Book>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    granted: Option<BootInstant>,
    in_doubt: bool,
    /// How many extensions of the lease were begun, and of how many it is not known that no copy is on its way.
    extensions: u32,
    unsettled: u32,
    /// Told once, so that every try to give them back says the same.
    give_back: Option<GiveBack>,
}

impl Loan {
    pub(crate) fn new(key: PermitKey, timeout: Duration, book: &Arc<Book>) -> Arc<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Arc::new(Self {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            key,
            timeout,
            book: book.clone(),
            state: Mutex::default(),
        })
    }

    /// Writes the loan down, before its permits are asked for.
    pub(crate) fn undo(self: &Arc<Self>) -> Undo<Arc<Self>> {
        self.book.lock().insert(self.id, self.clone());
        Undo::arm(self.clone())
    }

    /// The permits were granted by a request sent at `sent`.
    pub(crate) fn granted(&self, sent: BootInstant) {
        self.lock().granted = Some(sent);
    }

    /// A request for the permits went unanswered, and may be carried out at any time.
    pub(crate) fn outcome_unknown(&self) {
        self.lock().in_doubt = true;
    }

    pub(crate) fn is_in_doubt(&self) -> bool {
        self.lock().in_doubt
    }

    /// Begins an extension: its number, and whether a copy of an earlier one may still be on its way.
    pub(crate) fn extending(&self) -> (u32, bool) {
        let mut state = self.lock();
        state.extensions += 1;
        state.unsettled += 1;
        (state.extensions, state.unsettled > 1)
    }

    /// An extension was sent once and answered.
    pub(crate) fn extended(&self) {
        self.lock().unsettled -= 1;
    }

    pub(crate) fn lost(&self) -> Error {
        let name = self.key.name.key();
        Error::lost(format!(
            "a permit of {name:?} was not taken any more; what was done under it since may have been beyond the limit"
        ))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Request for Loan {
    /// Gives the permits back, or has them never taken.
    fn call(&self) -> Call<'_> {
        let mut state = self.lock();
        let State {
            granted, in_doubt, ..
        } = *state;
        let how = *state.give_back.get_or_insert_with(|| {
            let age = granted.map(|granted| granted.until(BootInstant::now()));
            GiveBack::new(in_doubt || granted.is_none(), age)
        });
        drop(state);
        self.key.give_back(how)
    }
}

impl Owed for Arc<Loan> {
    /// Whether the permits were all still there.
    type Answer = bool;

    async fn run(&mut self) -> Result<bool, Error> {
        let call = self.call();
        let answer = self.book.backend.run(&call, self.timeout).await?;
        let all = match Returned::decode(&answer.reply, self.key.name.key())? {
            Returned::Done(live) if !self.key.ids().is_empty() => live >= i64::from(self.key.count),
            Returned::Done(_) => true,
            Returned::Absent => false,
        };
        // An earlier send went unanswered: it may have been this call that gave them back.
        Ok(all || answer.repeated)
    }

    fn post(&mut self) {
        if self.book.strike(self) {
            self.book.post(self.clone());
        }
    }

    fn end(&mut self) {
        self.book.strike(self);
    }
}

impl Undo<Arc<Loan>> {
    /// Leaves the permits taken.
    pub(crate) fn leave(self) {
        let in_doubt = {
            let state = self.lock();
            state.in_doubt || state.unsettled > 0
        };
        // With a lease they are remembered by their ids, unless somebody gives them back before a copy comes.
        if in_doubt || self.key.ids().is_empty() {
            let mark = Arc::new(Mark::of(self.key.mark(), in_doubt));
            let end = BootInstant::now().plus(TRIED);
            self.book.reaper.send(mark, self.timeout, end);
        }
        self.disarm();
    }
}

/// Every loan of a client, by its id.
pub(crate) struct Book {
    loans: Mutex<HashMap<u64, Arc<Loan>>>,
    backend: Arc<Backend>,
    reaper: Reaper,
}

impl Book {
    pub(super) fn new(backend: Arc<Backend>, reaper: Reaper) -> Arc<Self> {
        Arc::new(Self {
            loans: Mutex::default(),
            backend,
            reaper,
        })
    }

    /// Has everything given back in the background.
    pub(super) fn give_all_back(&self) {
        let owed = std::mem::take(&mut *self.lock());
        owed.into_values().for_each(|loan| self.post(loan));
    }

    /// How many loans are out.
    pub(super) fn len(&self) -> usize {
        self.lock().len()
    }

    fn post(&self, loan: Arc<Loan>) {
        let timeout = loan.timeout;
        self.reaper
            .send_now(loan, timeout, BootInstant::now().plus(TRIED));
    }

    /// False if it was struck out before.
    fn strike(&self, loan: &Loan) -> bool {
        self.lock().remove(&loan.id).is_some()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Arc<Loan>>> {
        self.loans.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Book {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Book").finish_non_exhaustive()
    }
}
