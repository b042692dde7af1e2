//! A future that runs under a lock.

use std::sync::{Mutex, PoisonError};

use crate::judge::{Parted, judge};

/// What such a future has from its beginning until it ends, or is dropped since the lock is lost.
pub struct Body<'a> {
    hold: u64,
    parted: Option<&'a Mutex<Vec<Parted>>>,
}

impl<'a> Body<'a> {
    pub fn new(hold: u64, parted: Option<&'a Mutex<Vec<Parted>>>) -> Self {
        Self { hold, parted }
    }
}

impl Drop for Body<'_> {
    fn drop(&mut self) {
        let parted = judge(|judge| judge.parted(self.hold));
        if let Some(all) = self.parted {
            let mut all = all.lock().unwrap_or_else(PoisonError::into_inner);
            all.extend(parted);
        }
    }
}
