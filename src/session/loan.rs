//! Permits of this process: taken from a semaphore, or perhaps taken, and owed back.
//!
//! # Invariant
//!
//! A loan stands in the book from before its permits are asked for until the server has them back, or until it is
//! known that there is nothing to give back. Whoever strikes a loan out of the book that is still owed sends the
//! request that gives it back; the mark of its permits makes a second one harmless.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::backend::Backend;
use super::reaper::{Errand, Reaper};
use crate::clock::Moment;
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
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    granted: Option<Moment>,
    in_doubt: bool,
    /// How many extensions of the lease were begun, and of how many it is not known that no copy is on its way.
    extensions: u32,
    unsettled: u32,
    /// Told once, so that every try to give them back says the same.
    give_back: Option<GiveBack>,
}

impl Loan {
    pub(crate) fn new(key: PermitKey, timeout: Duration) -> Arc<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Arc::new(Self {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            key,
            timeout,
            state: Mutex::default(),
        })
    }

    /// The permits were granted by a request sent at `sent`.
    pub(crate) fn granted(&self, sent: Moment) {
        self.lock().granted = Some(sent);
    }

    /// A request for the permits went unanswered, and may be carried out at any time.
    pub(crate) fn doubt(&self) {
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
            let age = granted.map(|granted| granted.until(Moment::now()));
            GiveBack::new(in_doubt || granted.is_none(), age)
        });
        drop(state);
        self.key.give_back(how)
    }
}

/// Every loan of a client, by its id.
#[derive(Debug, Default)]
pub(crate) struct Book(Mutex<HashMap<u64, Arc<Loan>>>);

impl Book {
    /// Writes a loan down, from before its permits are asked for.
    pub(crate) fn borrow(self: &Arc<Self>, loan: &Arc<Loan>, reaper: &Reaper) -> Borrowed {
        self.lock().insert(loan.id, loan.clone());
        Borrowed {
            loan: loan.clone(),
            book: self.clone(),
            reaper: reaper.clone(),
        }
    }

    /// Has everything given back in the background.
    pub(crate) fn give_all_back(&self, reaper: &Reaper) {
        let owed = std::mem::take(&mut *self.lock());
        for loan in owed.into_values() {
            owe(loan, reaper);
        }
    }

    /// How many loans are out.
    pub(crate) fn len(&self) -> usize {
        self.lock().len()
    }

    /// False if it was struck out before.
    fn strike(&self, loan: &Loan) -> bool {
        self.lock().remove(&loan.id).is_some()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Arc<Loan>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What is owed to a semaphore; dropped, it is given back in the background.
#[derive(Debug)]
#[must_use = "dropping it has the permits given back"]
pub(crate) struct Borrowed {
    pub(crate) loan: Arc<Loan>,
    book: Arc<Book>,
    reaper: Reaper,
}

impl Borrowed {
    /// There is nothing to give back, or somebody else does.
    pub(crate) fn disarm(self) {
        self.book.strike(&self.loan);
    }

    /// Leaves the permits taken.
    pub(crate) fn leave(self) {
        let Loan { key, timeout, .. } = &*self.loan;
        let in_doubt = {
            let state = self.loan.lock();
            state.in_doubt || state.unsettled > 0
        };
        // With a lease they are remembered by their ids, unless somebody gives them back before a copy comes.
        if in_doubt || key.ids().is_empty() {
            let errand = Errand {
                request: Arc::new(Mark::of(key.mark(), in_doubt)),
                timeout: *timeout,
            };
            self.reaper.send(errand, Moment::now().plus(TRIED));
        }
        self.disarm();
    }

    /// Gives the permits back now. Whether they were all still there. What cannot be told stays owed, and goes to the
    /// reaper.
    pub(crate) async fn give_back(self, backend: &Backend) -> Result<bool, Error> {
        let call = self.loan.call();
        let answer = backend.run(&call, self.loan.timeout).await?;
        let returned = Returned::decode(&answer.reply, self.loan.key.name.key())?;
        self.book.strike(&self.loan);
        let all = match returned {
            Returned::Done(live) if !self.loan.key.ids().is_empty() => {
                live >= i64::from(self.loan.key.count)
            }
            Returned::Done(_) => true,
            Returned::Absent => false,
        };
        // An earlier send went unanswered: it may have been this call that gave them back.
        Ok(all || answer.repeated)
    }
}

impl Drop for Borrowed {
    fn drop(&mut self) {
        if self.book.strike(&self.loan) {
            owe(self.loan.clone(), &self.reaper);
        }
    }
}

fn owe(loan: Arc<Loan>, reaper: &Reaper) {
    let errand = Errand {
        timeout: loan.timeout,
        request: loan,
    };
    reaper.send_now(errand, Moment::now().plus(TRIED));
}
