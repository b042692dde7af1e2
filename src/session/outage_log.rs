//! Decides what to log about outages and lost locks, so that an operator reads a few lines, however many locks there
//! are.
//!
//! An outage of a server is logged when it begins and when it is over. Each line has the number of the locks concerned,
//! and the names of the first. The first lost lock is logged at once. The others are logged together: with the end of
//! their outage, or a second later if there is none.
//!
//! # Invariants
//!
//! 1. Whatever is counted here is logged later, unless the client closes first.
//! 2. An outage is over once the server has answered for [`SETTLED`]. By then, checks have found what it lost. A new
//!    silence within that time continues the outage.
//! 3. A server that fails again and again is logged less and less often. If an outage begins within [`LONGEST_SETTLED`]
//!    of the last one's end, the server has to answer for twice as long before it is over.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::clock::BootInstant;

/// How many names a line shows.
const SHOWN: usize = 3;
/// How long a server has to answer before its first outage is over. Losses are gathered for as long.
const SETTLED: Duration = Duration::from_secs(1);
/// The longest time that a server has to answer before an outage is over.
const LONGEST_SETTLED: Duration = Duration::from_secs(60);

/// The id of a server in this process, or `None` for losses without an outage.
type Place = Option<u64>;

/// The outages of one client's servers, and the losses that are not logged yet.
#[derive(Debug, Default)]
pub(super) struct OutageLog(Mutex<Outages>);

#[derive(Debug, Default)]
struct Outages {
    /// The outages whose end has not been logged.
    open: BTreeMap<Place, Outage>,
    /// The last finished outage of each server: when it ended, and how long the server had to answer before it counted
    /// as over.
    told: BTreeMap<u64, (BootInstant, Duration)>,
}

/// The number of locks, and the names of the first.
#[derive(Clone, Debug, Default)]
pub(super) struct Names {
    first: Vec<Arc<str>>,
    pub(super) count: usize,
}

/// One outage, or the losses of one second.
#[derive(Debug)]
pub(super) struct Outage {
    /// The address of the server. Empty for losses without an outage.
    pub(super) server: String,
    since: BootInstant,
    /// Since when the server answers again.
    answers_since: Option<BootInstant>,
    /// How long it has to answer before the outage is over.
    settles: Duration,
    /// How often the server stopped answering.
    pub(super) silences: u32,
    pub(super) lost: Names,
}

impl OutageLog {
    /// Notes that a server does not answer. Returns `false` if its outage is known.
    pub(super) fn begins(&self, server: u64, address: String, now: BootInstant) -> bool {
        let mut outages = self.lock();
        if let Some(known) = outages.open.get_mut(&Some(server)) {
            known.silences += u32::from(known.answers_since.take().is_some());
            return false;
        }
        let settles = match outages.told.get(&server) {
            Some((over, settled)) if over.until(now) < LONGEST_SETTLED => *settled * 2,
            _ => SETTLED,
        };
        let outage = Outage {
            settles: settles.min(LONGEST_SETTLED),
            ..Outage::new(address, now)
        };
        outages.open.insert(Some(server), outage);
        true
    }

    /// Notes that a server answers again.
    pub(super) fn answers(&self, server: u64, now: BootInstant) {
        if let Some(outage) = self.lock().open.get_mut(&Some(server)) {
            outage.answers_since.get_or_insert(now);
        }
    }

    /// Notes which servers have the locks now. An outage of any other server concerns nobody any more.
    pub(super) fn moved_to(&self, servers: &[u64], now: BootInstant) {
        let mut outages = self.lock();
        outages.told.retain(|server, _| servers.contains(server));
        for (place, outage) in &mut outages.open {
            if place.is_some_and(|server| !servers.contains(&server)) {
                outage.answers_since.get_or_insert(now);
            }
        }
    }

    /// Counts a lost lock. Returns whether to log it at once.
    pub(super) fn lost(&self, server: Place, name: &Arc<str>, now: BootInstant) -> bool {
        let open = &mut self.lock().open;
        let place = server.filter(|_| open.contains_key(&server));
        let outage = open.entry(place).or_insert_with(|| Outage {
            answers_since: Some(now),
            ..Outage::new(String::new(), now)
        });
        let is_first = outage.lost.count == 0;
        outage.lost.add(name);
        is_first
    }

    /// Takes out everything that is to be logged at `now`.
    pub(super) fn take_due(&self, now: BootInstant) -> Vec<Outage> {
        let Outages { open, told } = &mut *self.lock();
        let is_due = |outage: &Outage| outage.due().is_some_and(|due| due <= now);
        let due: Vec<Place> = open
            .iter()
            .filter(|(_, outage)| is_due(outage))
            .map(|(place, _)| *place)
            .collect();
        let taken = due.into_iter().filter_map(|place| {
            let outage = open.remove(&place)?;
            if let Some(server) = place {
                told.insert(server, (now, outage.settles));
            }
            Some(outage)
        });
        taken.collect()
    }

    /// Returns when something is next to be logged.
    pub(super) fn next_due(&self) -> Option<BootInstant> {
        self.lock().open.values().filter_map(Outage::due).min()
    }

    fn lock(&self) -> MutexGuard<'_, Outages> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Outage {
    fn new(server: String, since: BootInstant) -> Self {
        Self {
            server,
            since,
            answers_since: None,
            settles: SETTLED,
            silences: 1,
            lost: Names::default(),
        }
    }

    fn due(&self) -> Option<BootInstant> {
        self.answers_since.map(|since| since.plus(self.settles))
    }

    /// Whether a server was away. Otherwise, only locks were lost.
    pub(super) fn is_of_a_server(&self) -> bool {
        !self.server.is_empty()
    }

    /// Returns how long the outage lasted, from the first silence until the server answered for good.
    pub(super) fn lasted(&self) -> Duration {
        self.since.until(self.answers_since.unwrap_or(self.since))
    }
}

impl Names {
    fn add(&mut self, name: &Arc<str>) {
        if self.first.len() < SHOWN {
            self.first.push(name.clone());
        }
        self.count += 1;
    }
}

impl<'a> FromIterator<&'a Arc<str>> for Names {
    fn from_iter<I: IntoIterator<Item = &'a Arc<str>>>(names: I) -> Self {
        let mut all = Self::default();
        names.into_iter().for_each(|name| all.add(name));
        all
    }
}

impl fmt::Display for Names {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, name) in self.first.iter().enumerate() {
            let comma = if at == 0 { "" } else { ", " };
            write!(f, "{comma}{name:?}")?;
        }
        match self.count - self.first.len() {
            0 => Ok(()),
            more => write!(f, " and {more} more"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> BootInstant {
        BootInstant::from_millis(millis)
    }

    fn name(n: usize) -> Arc<str> {
        format!("k{n}").into()
    }

    #[test]
    fn names_are_the_first_ones_and_a_count() {
        for (count, shown) in [
            (0, ""),
            (1, "\"k0\""),
            (3, "\"k0\", \"k1\", \"k2\""),
            (1_000, "\"k0\", \"k1\", \"k2\" and 997 more"),
        ] {
            let names: Vec<_> = (0..count).map(name).collect();
            assert_eq!(Names::from_iter(&names).to_string(), shown);
        }
    }

    #[test]
    fn outage_is_told_twice_with_all_that_was_lost_meanwhile() {
        let log = OutageLog::default();
        assert!(log.begins(7, "a:1".into(), at(1_000)));
        assert!(!log.begins(7, "a:1".into(), at(1_500)), "it is known");
        let told: Vec<_> = (0..5)
            .map(|n| log.lost(Some(7), &name(n), at(2_000)))
            .collect();
        assert_eq!(told, [true, false, false, false, false]);
        assert!(log.take_due(at(60_000)).is_empty(), "it goes on");
        log.answers(7, at(31_000));
        assert!(!log.lost(Some(7), &name(5), at(31_500)), "found by a check");
        assert_eq!(log.next_due(), Some(at(32_000)));
        assert!(log.take_due(at(31_999)).is_empty());
        let told = log.take_due(at(32_000));
        assert_eq!(told.len(), 1);
        assert!(told[0].is_of_a_server());
        assert_eq!(told[0].lasted(), Duration::from_secs(30));
        assert_eq!(told[0].lost.count, 6);
        assert_eq!(log.next_due(), None);
    }

    #[test]
    fn outage_that_comes_back_at_once_is_the_same_one() {
        let log = OutageLog::default();
        assert!(log.begins(7, "a:1".into(), at(1_000)));
        log.answers(7, at(2_000));
        assert!(!log.begins(7, "a:1".into(), at(2_900)));
        assert!(log.take_due(at(60_000)).is_empty());
        log.answers(7, at(61_000));
        let told = log.take_due(at(62_000));
        assert_eq!(told.len(), 1);
        assert_eq!(told[0].silences, 2);
        assert!(log.begins(7, "a:1".into(), at(62_001)), "a new one");
    }

    #[test]
    fn server_that_fails_every_three_seconds_makes_a_few_lines() {
        let log = OutageLog::default();
        let mut lines = 0;
        for round in 0..1_000 {
            let now = 3_000 * round;
            lines += usize::from(log.begins(7, "a:1".into(), at(now)));
            log.answers(7, at(now + 100));
            lines += log.take_due(at(now + 2_999)).len();
        }
        assert_eq!(lines, 5, "two outages to the end, and one that goes on");
        let told = log.take_due(at(3_100_000));
        assert_eq!((told.len(), told[0].silences), (1, 998));
    }

    #[test]
    fn server_is_trusted_again_after_a_minute_without_an_outage() {
        let log = OutageLog::default();
        for (begun, over) in [(0, 1_100), (61_200, 62_300), (70_000, 72_100)] {
            assert!(log.begins(7, "a:1".into(), at(begun)));
            log.answers(7, at(begun + 100));
            assert!(log.take_due(at(over - 1)).is_empty(), "{begun}");
            assert_eq!(log.take_due(at(over)).len(), 1, "{begun}");
        }
    }

    #[test]
    fn server_never_has_to_answer_for_longer_than_a_minute() {
        let log = OutageLog::default();
        let mut now = 0;
        for _ in 0..20 {
            assert!(log.begins(7, "a:1".into(), at(now)));
            log.answers(7, at(now));
            now += 60_000;
            assert_eq!(log.take_due(at(now)).len(), 1);
        }
    }

    #[test]
    fn losses_without_an_outage_are_told_at_once_and_together() {
        let log = OutageLog::default();
        assert!(log.begins(7, "a:1".into(), at(0)));
        assert!(log.lost(Some(8), &name(0), at(1_000)), "another server");
        assert!(!log.lost(None, &name(1), at(1_100)));
        let told = log.take_due(at(2_000));
        assert_eq!((told.len(), told[0].lost.count), (1, 2));
        assert!(!told[0].is_of_a_server());
        assert!(log.lost(Some(8), &name(2), at(2_001)), "a second later");
    }

    #[test]
    fn outage_of_a_server_that_lost_its_slots_is_over() {
        let log = OutageLog::default();
        assert!(log.begins(7, "a:1".into(), at(0)));
        log.moved_to(&[7, 8], at(1_000));
        assert_eq!(log.next_due(), None);
        log.moved_to(&[8], at(2_000));
        assert_eq!(log.take_due(at(3_000)).len(), 1);
    }
}
