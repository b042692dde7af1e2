//! What is owed to servers that do not answer. Each server has a line, which is served when the server answers.
//!
//! # Invariants
//!
//! 1. A server that has not answered is asked for one thing at a time, after pauses; one that answers is asked for up
//!    to [`AT_ONCE`].
//! 2. At most one entry for each hold stands in line: what is owed is worked out when it is sent.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::clock::BootInstant;

/// How much is asked of one server at once, so that the requests of callers come in between.
const AT_ONCE: usize = 64;
/// How much may be owed to a server that does not answer before nothing more is asked of it.
const MOST_OWED: usize = 1 << 13;
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// A server, if it is known.
///
/// What has no known server stands in a line of its own, and is tried as if that were one.
pub(super) type Place = Option<u64>;

/// Something that is owed.
///
/// Used to keep a line short: see invariant 2.
pub(super) trait Owing {
    /// Returns the hold that it is owed for, if something else may be owed for the same hold.
    fn hold(&self) -> Option<u64> {
        None
    }
}

/// The lines of all servers that have not answered.
///
/// Plain data, owned by the reaper's worker.
#[derive(Debug)]
pub(super) struct Ledger<T> {
    /// A line is here as long as something waits in it or is under way from it.
    lines: HashMap<Place, Line<T>>,
}

/// What is owed to one server that has not answered.
#[derive(Debug)]
struct Line<T> {
    /// In the order in which it is tried. What fails goes to the end.
    waiting: VecDeque<T>,
    /// The holds that the entries in line are owed for.
    ///
    /// Not of those under way.
    holds: HashSet<u64>,
    /// How many requests from this line have no answer yet.
    under_way: usize,
    /// The last request was answered.
    ///
    /// Decides how many may be under way.
    answers: bool,
    /// When the next request may be sent.
    due: BootInstant,
    /// The last pause. It doubles with each request that is not answered.
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
    /// Whether this server has a line to stand in.
    pub(super) fn has_line(&self, place: Place) -> bool {
        self.lines.contains_key(&place)
    }

    /// Puts something at the end of a line.
    pub(super) fn add(&mut self, place: Place, owed: T) {
        self.line(place).push_back(owed);
    }

    /// Puts something back that the server has not answered. `unsent` if the server was never asked; then the time
    /// spent waiting to send was the pause.
    ///
    /// One failure makes the server one that does not answer, whatever else is under way.
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

    /// Notes that the server has answered a request for something from its line.
    ///
    /// Any answer counts, a refusal too: what is next in line is asked for at once.
    pub(super) fn answered(&mut self, place: Place) {
        if let Some(line) = self.lines.get_mut(&place) {
            line.answers = true;
            line.pause = Duration::ZERO;
            line.due = BootInstant::now();
        }
    }

    /// Notes that something from a line is no longer under way.
    ///
    /// Called for each thing that [`next`](Self::next) has returned, after what came of it was noted.
    pub(super) fn came_back(&mut self, place: Place) {
        if let Some(line) = self.lines.get_mut(&place) {
            line.under_way -= 1;
            // Without a line, the server counts as one that answers.
            if line.under_way == 0 && line.waiting.is_empty() {
                self.lines.remove(&place);
            }
        }
    }

    /// Returns what is to be asked for now, which is under way from then on.
    ///
    /// The caller tries it, and tells what came of it.
    pub(super) fn next(&mut self, now: BootInstant) -> Option<(Place, T)> {
        let ready = |line: &Line<T>| line.due_at().is_some_and(|due| due <= now);
        let (place, line) = self.lines.iter_mut().find(|(_, line)| ready(line))?;
        let owed = line.waiting.pop_front()?;
        if let Some(hold) = owed.hold() {
            // What comes to be owed while this is under way may stand in line again.
            line.holds.remove(&hold);
        }
        line.under_way += 1;
        Some((*place, owed))
    }

    /// Returns when there is something to ask for, if nothing comes back before.
    pub(super) fn due(&self) -> Option<BootInstant> {
        self.lines.values().filter_map(Line::due_at).min()
    }

    /// Returns the line of a server, which is made if there is none.
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

/// How much stands in each line, for the calls that are about to owe more.
#[derive(Debug, Default)]
pub(super) struct Backlog {
    /// The length of the longest line. Relaxed: nothing else depends on it.
    longest: AtomicUsize,
    /// Kept up to date while the longest line is too long.
    lines: Mutex<HashMap<Place, usize>>,
}

impl Backlog {
    /// Takes note of the lines as they are now. Costs little as long as none is too long.
    pub(super) fn note<T>(&self, ledger: &Ledger<T>) {
        let lines = ledger.lines.iter();
        let lines = lines.map(|(place, line)| (*place, line.waiting.len()));
        let longest = lines.clone().map(|(_, owed)| owed).max().unwrap_or(0);
        if longest >= MOST_OWED {
            *self.lines() = lines.collect();
        }
        self.longest.store(longest, Ordering::Relaxed);
    }

    /// Returns how much is owed to a server, if that is too much. `place` is worked out only if any server is owed too
    /// much.
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
    /// Puts something at the end, unless something for the same hold stands here: that will do for both.
    fn push_back(&mut self, owed: T) {
        if owed.hold().is_none_or(|hold| self.holds.insert(hold)) {
            self.waiting.push_back(owed);
        }
    }

    /// Returns when the next entry is due. `None` if there is nothing to ask for, or enough is under way.
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

    /// Returns everything that may be asked for at this instant.
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
