//! The ledger is the retry queue: requests owed to servers that do not answer. Each server has a line of its own, which
//! is served once the server answers.
//!
//! # Invariants
//!
//! 1. A server that does not answer gets one request at a time, after pauses. One that answers gets up to [`AT_ONCE`].
//! 2. At most one entry for each hold stands in line, since what is owed is worked out when it is sent.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::clock::BootInstant;

/// The most requests in flight to one server, so that the requests of callers come in between.
const AT_ONCE: usize = 64;
/// How much may be owed to a silent server before calls stop asking it for more.
const MOST_OWED: usize = 1 << 13;
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// A server, or `None` if it is unknown.
///
/// Requests whose server is unknown share one line, which is retried like that of a server.
pub(super) type Place = Option<u64>;

/// An entry of the retry queue.
///
/// Keeps a line short: see invariant 2.
pub(super) trait Owing {
    /// Returns the hold that it is owed for, if another entry may be owed for the same hold.
    fn hold(&self) -> Option<u64> {
        None
    }
}

/// The retry queue: the lines of all servers that have not answered.
///
/// Plain data, owned by the reaper's worker.
#[derive(Debug)]
pub(super) struct Ledger<T> {
    /// A line exists as long as an entry waits in it or is in flight.
    lines: HashMap<Place, Line<T>>,
}

/// What is owed to one server that has not answered.
#[derive(Debug)]
struct Line<T> {
    /// In the order of the tries. An entry that fails goes to the end.
    waiting: VecDeque<T>,
    /// The holds of the waiting entries.
    ///
    /// Entries in flight do not count.
    holds: HashSet<u64>,
    /// The number of requests in flight from this line.
    under_way: usize,
    /// Whether the last request was answered.
    ///
    /// Decides how many may be in flight.
    answers: bool,
    /// When the next request may be sent.
    due: BootInstant,
    /// The last pause. It doubles with each unanswered request.
    pause: Duration,
}

impl<T> Default for Ledger<T> {
    fn default() -> Self {
        Self {
            lines: HashMap::new(),
        }
    }
}

impl<T: Owing> Ledger<T> {
    /// Whether this server has a line.
    pub(super) fn has_line(&self, place: Place) -> bool {
        self.lines.contains_key(&place)
    }

    /// Adds an entry at the end of a line.
    pub(super) fn add(&mut self, place: Place, owed: T) {
        self.line(place).push_back(owed);
    }

    /// Puts back an entry that the server has not answered. `unsent` says that the request was never sent: the wait for
    /// a connection then counts as the pause.
    ///
    /// One failure marks the server as silent, whatever else is in flight.
    pub(super) fn failed(&mut self, place: Place, owed: T, unsent: bool) {
        let now = BootInstant::now();
        let line = self.line(place);
        line.answers = false;
        line.pause = match unsent {
            true => FIRST_PAUSE,
            false => (line.pause * 2).clamp(FIRST_PAUSE, LONGEST_PAUSE),
        };
        line.due = now.plus(line.pause);
        line.push_back(owed);
    }

    /// Notes that the server has answered an entry of its line.
    ///
    /// Any answer counts, even a refusal: the next entry is then sent at once.
    pub(super) fn answered(&mut self, place: Place) {
        if let Some(line) = self.lines.get_mut(&place) {
            line.answers = true;
            line.pause = Duration::ZERO;
            line.due = BootInstant::now();
        }
    }

    /// Notes that an entry of a line is no longer in flight.
    ///
    /// Called for each entry that [`next`](Self::next) has returned, after its outcome was noted.
    pub(super) fn came_back(&mut self, place: Place) {
        if let Some(line) = self.lines.get_mut(&place) {
            line.under_way -= 1;
            // A server without a line counts as one that answers.
            if line.under_way == 0 && line.waiting.is_empty() {
                self.lines.remove(&place);
            }
        }
    }

    /// Returns an entry that may be sent now. It counts as in flight from then on.
    ///
    /// The caller sends it and reports the outcome.
    pub(super) fn next(&mut self, now: BootInstant) -> Option<(Place, T)> {
        let ready = |line: &Line<T>| line.due_at().is_some_and(|due| due <= now);
        let (place, line) = self.lines.iter_mut().find(|(_, line)| ready(line))?;
        let owed = line.waiting.pop_front()?;
        if let Some(hold) = owed.hold() {
            // While this is in flight, another entry for the hold may stand in line.
            line.holds.remove(&hold);
        }
        line.under_way += 1;
        Some((*place, owed))
    }

    /// Returns when the next entry may be sent, unless one in flight comes back before.
    pub(super) fn due(&self) -> Option<BootInstant> {
        self.lines.values().filter_map(Line::due_at).min()
    }

    /// Returns the line of a server. Creates it if there is none.
    fn line(&mut self, place: Place) -> &mut Line<T> {
        self.lines.entry(place).or_insert_with(|| Line {
            waiting: VecDeque::new(),
            holds: HashSet::new(),
            under_way: 0,
            answers: false,
            due: BootInstant::now(),
            pause: Duration::ZERO,
        })
    }
}

/// The length of each line, for calls that are about to owe more.
#[derive(Debug, Default)]
pub(super) struct Backlog {
    /// The length of the longest line. Relaxed: nothing else depends on it.
    longest: AtomicUsize,
    /// Kept up to date while the longest line is too long.
    lines: Mutex<HashMap<Place, usize>>,
}

impl Backlog {
    /// Updates the lengths. Costs little as long as no line is too long.
    pub(super) fn note<T>(&self, ledger: &Ledger<T>) {
        let lines = ledger.lines.iter();
        let lines = lines.map(|(place, line)| (*place, line.waiting.len()));
        let longest = lines.clone().map(|(_, owed)| owed).max().unwrap_or(0);
        if longest >= MOST_OWED {
            *self.lines() = lines.collect();
        }
        self.longest.store(longest, Ordering::Relaxed);
    }

    /// Returns how much is owed to a server, if that is too much. Calls `place` only if any line is too long.
    pub(super) fn too_much(&self, place: impl FnOnce() -> Place) -> Option<usize> {
        if self.longest.load(Ordering::Relaxed) < MOST_OWED {
            return None;
        }
        let place = place();
        let owed = self.lines().get(&place).copied();
        owed.filter(|owed| *owed >= MOST_OWED)
    }

    fn lines(&self) -> MutexGuard<'_, HashMap<Place, usize>> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: Owing> Line<T> {
    /// Adds an entry at the end, unless one for the same hold stands here, which serves both.
    fn push_back(&mut self, owed: T) {
        if owed.hold().is_none_or(|hold| self.holds.insert(hold)) {
            self.waiting.push_back(owed);
        }
    }

    /// Returns when the next entry is due, or `None` if the line is empty or enough is in flight.
    fn due_at(&self) -> Option<BootInstant> {
        let most = if self.answers { AT_ONCE } else { 1 };
        let room = self.under_way < most && !self.waiting.is_empty();
        room.then_some(self.due)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq)]
    struct Owed(u64);

    impl Owing for Owed {
        fn hold(&self) -> Option<u64> {
            (self.0 < 100).then_some(self.0)
        }
    }

    const HERE: Place = Some(1);

    fn in_queue(ledger: &Ledger<Owed>) -> usize {
        ledger.lines.values().map(|line| line.waiting.len()).sum()
    }

    /// Returns every entry that may be sent at this instant.
    fn asked_for(ledger: &mut Ledger<Owed>, now: BootInstant) -> Vec<u64> {
        std::iter::from_fn(|| ledger.next(now))
            .map(|(_, owed)| owed.0)
            .collect()
    }

    #[test]
    fn silent_server_is_asked_for_one_thing_and_one_that_answers_for_many() {
        let mut ledger = Ledger::default();
        let long_after = BootInstant::now().plus(Duration::from_secs(60));
        ledger.failed(HERE, Owed(0), false);
        for hold in 100..300 {
            ledger.add(HERE, Owed(hold));
        }
        let none: Vec<u64> = Vec::new();
        assert_eq!(
            asked_for(&mut ledger, BootInstant::now()),
            none,
            "after a pause"
        );
        assert_eq!(asked_for(&mut ledger, long_after), [0]);
        assert_eq!(asked_for(&mut ledger, long_after), none);
        ledger.answered(HERE);
        ledger.came_back(HERE);
        let mut served = 0;
        while ledger.has_line(HERE) {
            let asked = asked_for(&mut ledger, BootInstant::now());
            assert!((1..=AT_ONCE).contains(&asked.len()), "{asked:?}");
            served += asked.len();
            for _ in asked {
                ledger.came_back(HERE);
            }
        }
        assert_eq!((served, in_queue(&ledger), ledger.due()), (200, 0, None));
    }

    #[test]
    fn pauses_grow_while_a_server_is_asked_and_does_not_answer() {
        let mut ledger = Ledger::default();
        let mut under_way = false;
        let mut pause = |unsent| {
            let before = BootInstant::now();
            ledger.failed(HERE, Owed(0), unsent);
            if std::mem::replace(&mut under_way, true) {
                ledger.came_back(HERE);
            }
            let due = ledger.due().expect("owed");
            assert_eq!(ledger.next(due), Some((HERE, Owed(0))));
            before.until(due).as_millis()
        };
        assert!((50..200).contains(&pause(false)));
        assert!((100..300).contains(&pause(false)));
        for _ in 0..5 {
            pause(false);
        }
        assert!((1_000..1_300).contains(&pause(false)));
        assert!((50..200).contains(&pause(true)), "its wait was the pause");
    }

    #[test]
    fn what_is_owed_for_one_hold_stands_in_line_once() {
        let mut ledger = Ledger::default();
        for _ in 0..5 {
            ledger.add(HERE, Owed(7));
            ledger.add(HERE, Owed(100));
        }
        assert_eq!(in_queue(&ledger), 6);
        let (_, first) = ledger.next(BootInstant::now()).expect("owed");
        assert_eq!(first, Owed(7));
        ledger.add(HERE, first);
        ledger.add(HERE, Owed(7));
        assert_eq!(in_queue(&ledger), 6, "it may stand in line anew");
    }

    #[test]
    fn too_much_is_owed_to_one_server_and_nothing_to_others() {
        let (ledger, backlog) = (&mut Ledger::default(), Backlog::default());
        let too_much = |place| backlog.too_much(|| place);
        for owed in 0..MOST_OWED {
            assert_eq!(too_much(HERE), None, "{owed}");
            ledger.add(HERE, Owed(100));
            backlog.note(ledger);
        }
        ledger.add(Some(2), Owed(100));
        backlog.note(ledger);
        assert_eq!(too_much(HERE), Some(MOST_OWED));
        assert_eq!([Some(2), Some(3), None].map(too_much), [None; 3]);
        ledger.next(BootInstant::now());
        ledger.next(BootInstant::now());
        backlog.note(ledger);
        assert_eq!(too_much(HERE), None);
    }
}
