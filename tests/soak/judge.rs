//! What is right, seen from inside the sections.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use redlatch::{Error, ErrorKind};
use tokio::time::sleep;

use super::{LEASE, SLACK};

/// The least remaining lease with which a write is begun. Nothing here pauses a task for that long.
const TIME_TO_WRITE: Duration = Duration::from_millis(500);

/// What a lock protects, and who is in its section.
#[derive(Default)]
struct Cell {
    /// The section, and until when its holder believes to be alone.
    inside: Option<(u64, Instant)>,
    entered: u64,
    /// The highest token that the store has seen.
    highest: u64,
    value: u64,
    written: u64,
}

pub(super) struct Judge {
    /// A failover may lose holds. Two holders are counted apart then.
    loses: bool,
    cells: Vec<Mutex<Cell>>,
    /// When the last fault was over; `None` during one.
    calm: Mutex<Option<Instant>>,
    errors: Mutex<BTreeMap<String, u32>>,
    violations: Mutex<Vec<String>>,
    longest: Mutex<Duration>,
    lost: AtomicU64,
    permitted: AtomicU64,
}

/// A stay in a section. It reads the value when it begins, and writes one more when it ends: a second holder in between
/// makes a number get lost.
pub(super) struct Section<'a> {
    judge: &'a Judge,
    at: usize,
    id: u64,
    token: Option<u64>,
    read: u64,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Judge {
    pub(super) fn new(loses: bool, locks: usize) -> Self {
        Self {
            loses,
            cells: (0..locks).map(|_| Mutex::default()).collect(),
            calm: Mutex::new(Some(Instant::now())),
            errors: Mutex::default(),
            violations: Mutex::default(),
            longest: Mutex::default(),
            lost: AtomicU64::new(0),
            permitted: AtomicU64::new(0),
        }
    }

    /// Returns the token that the next hold has to exceed.
    pub(super) fn begin(&self, at: usize) -> u64 {
        lock(&self.cells[at]).highest
    }

    pub(super) fn took(&self, took: Duration, at_most: Duration) {
        let mut longest = lock(&self.longest);
        *longest = took.max(*longest);
        if took > at_most {
            self.violates(format!("a call took {took:?}"));
        }
    }

    pub(super) fn error(&self, error: &Error) {
        if error.kind() == ErrorKind::LeaseLost {
            self.lost.fetch_add(1, Relaxed);
        }
        let kind = format!("{:?}", error.kind());
        *lock(&self.errors).entry(kind).or_default() += 1;
    }

    pub(super) fn enter(
        &self,
        at: usize,
        floor: u64,
        token: Option<u64>,
        left: Duration,
    ) -> Section<'_> {
        let now = Instant::now();
        let mut cell = lock(&self.cells[at]);
        if let Some((_, until)) = cell.inside.filter(|(_, until)| *until > now) {
            self.overlaps(format!("two holders of lock {at} for {:?}", until - now));
        }
        if token.is_some_and(|token| token <= floor) {
            self.violates(format!("token {token:?} after {floor}"));
        }
        cell.entered += 1;
        cell.inside = Some((cell.entered, now + left));
        cell.highest = cell.highest.max(token.unwrap_or_default());
        Section {
            judge: self,
            at,
            id: cell.entered,
            token,
            read: cell.value,
        }
    }

    pub(super) fn is_broken(&self, is_broken: bool) {
        *lock(&self.calm) = (!is_broken).then(Instant::now);
    }

    /// Waits until each lock has been granted again.
    pub(super) async fn progresses(&self, fault: &str, end: Instant) {
        let before: Vec<u64> = self.cells.iter().map(|cell| lock(cell).entered).collect();
        let limit = Instant::now() + 2 * LEASE + SLACK * 2;
        for (cell, before) in self.cells.iter().zip(before) {
            while lock(cell).entered == before && Instant::now() < end {
                if Instant::now() > limit {
                    return self.violates(format!("no grant after: {fault}"));
                }
                sleep(Duration::from_millis(5)).await;
            }
        }
    }

    fn overlaps(&self, text: String) {
        let is_permitted = self.loses && lock(&self.calm).is_none_or(|it| it.elapsed() < 2 * LEASE);
        match is_permitted {
            true => drop(self.permitted.fetch_add(1, Relaxed)),
            false => self.violates(text),
        }
    }

    fn violates(&self, text: String) {
        lock(&self.violations).push(text);
    }

    /// Describes the run: grants, leases lost, errors, the longest call, overlaps that are permitted, violations.
    pub(super) fn line(&self) -> String {
        let grants: u64 = self.cells.iter().map(|cell| lock(cell).entered).sum();
        let longest = *lock(&self.longest);
        format!(
            "{grants} | {} | {:?} | {longest:.1?} | {} | {}",
            self.lost.load(Relaxed),
            lock(&self.errors),
            self.permitted.load(Relaxed),
            lock(&self.violations).len(),
        )
    }

    /// Fails if anything was wrong.
    pub(super) fn rules(&self) {
        for (at, cell) in self.cells.iter().enumerate() {
            let cell = lock(cell);
            if cell.value != cell.written {
                let [value, written] = [cell.value, cell.written];
                self.violates(format!(
                    "lock {at}: {written} writes, of which {value} stay"
                ));
            }
        }
        let violations = lock(&self.violations);
        let some = &violations[..violations.len().min(20)];
        assert!(
            some.is_empty(),
            "{} violations: {some:#?}",
            violations.len()
        );
    }
}

impl Section<'_> {
    /// Notes how much of the lease is left by now.
    pub(super) fn stays(&self, left: Duration) {
        let mut cell = lock(&self.judge.cells[self.at]);
        if let Some((id, until)) = cell.inside.as_mut()
            && *id == self.id
        {
            *until = Instant::now() + left;
        }
    }

    /// Writes, unless too little of the lease is left, and ends the section. The hold is given back after this.
    pub(super) fn leave(self, left: Duration) {
        let mut cell = lock(&self.judge.cells[self.at]);
        // The store refuses a token lower than the highest that it has seen.
        let is_late = self.token.is_some_and(|token| token < cell.highest);
        if left >= TIME_TO_WRITE && is_late {
            let text = format!("lock {}: a write was refused in its lease", self.at);
            self.judge.overlaps(text);
        } else if left >= TIME_TO_WRITE {
            cell.value = self.read + 1;
            cell.written += 1;
        }
        if cell.inside.is_some_and(|(id, _)| id == self.id) {
            cell.inside = None;
        }
    }
}
