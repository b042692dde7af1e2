//! What is judged of sets while they wait: of what they have, and for how long.

use redlatch::{Error, ErrorKind};

use super::{Call, Judge};
use crate::machine::now;

/// How much longer a set may keep what it has than it has waited before.
const KEEPS: u64 = 1_500;

/// How long two sets may each have one of two locks, if neither waits for the other.
const CROSSED: u64 = 700;

/// How long a set may have a part while nobody polls it.
const LEFT: u64 = 3_000;

impl Call {
    pub(super) fn is_of_set(&self) -> bool {
        self.names.len() > 1
    }

    /// Whether it may have a part of what it waits for. What nobody polls for long begins again when it is polled.
    fn may_have_part(&self) -> bool {
        let is_left = now() < self.back && self.back - self.absent + LEFT < now();
        self.is_of_set() && !is_left
    }
}

impl Judge {
    /// Returns since when a server has a name for whoever has it now, unless it was passed on unseen. Returns `None` if
    /// no server has it.
    pub(super) fn unchanged(&self, name: usize) -> Option<u64> {
        let known = &self.names[name];
        let stands = known.kept.iter();
        let stands = stands.filter(|kept| kept.ends.is_some_and(|ends| ends > now()));
        let since = stands.map(|kept| kept.since).min()?;
        Some(since.max(known.parted))
    }

    /// Whether a set that goes on may have a name. One that began later than whoever has it now does not.
    pub(super) fn may_be_part(&self, name: usize) -> bool {
        let late = self.plan().command_timeout;
        let haunted = self.names[name].haunted;
        let since = self.unchanged(name);
        let since = since.map_or(u64::MAX, |since| since.max(haunted) + late);
        let mut sets = self.calls.values().filter(|call| call.may_have_part());
        sets.any(|call| call.names.contains(&name) && call.began <= since)
    }

    /// Judges the error of a set: what it has while it waits, it keeps.
    pub(super) fn check_set(&mut self, call: &Call, error: &Error) {
        let plan = self.plan();
        // What is renewed is lost after some time, and whoever shares an owner may cut its lease.
        let has_a_lease = call.what.contains("by Unique lease Some");
        let is_meant = call.is_of_set() && call.what.starts_with("lock ") && has_a_lease;
        let is_calm = plan.weather == "calm" && plan.spread == 0 && !self.is_unpolled;
        let is_forced = |name: &usize| self.names[*name].forced.is_some();
        if is_meant
            && is_calm
            && call.began > self.begun + 1_000
            && error.kind() == ErrorKind::LeaseLost
            && !call.names.iter().any(is_forced)
        {
            self.violation(format!("a set lost what it had: {}: {error}", call.what));
        }
    }

    /// Judges what sets have of two locks: no two have one each, and none keeps one for long.
    pub(super) fn halves(&mut self, round_trip: u64) {
        let names = &self.plan().names;
        let sets: Vec<_> = (0..names.len())
            .filter(|at| names[*at].is_of_set())
            .collect();
        let [first, second] = sets[..] else {
            return;
        };
        if self.is_unpolled {
            return;
        }
        let (one, other) = (self.half(first), self.half(second));
        if let (Some(one), Some(other)) = (one, other)
            && one.max(other) + 8 * round_trip + CROSSED < now()
        {
            self.names[first].is_wrong = true;
            return self.violation("two sets have one lock each, and want the other".to_owned());
        }
        for (name, since) in [(first, one), (second, other)] {
            if let Some(since) = since
                && self.is_kept(name, since, 4 * round_trip)
            {
                let shown = self.plan().names[name].name.clone();
                self.names[name].is_wrong = true;
                self.violation(format!("a set that waits keeps {shown} since {since}"));
            }
        }
    }

    /// Returns since when a server has a name of which no holder is known: then it is part of a set.
    fn half(&self, name: usize) -> Option<u64> {
        let known = &self.names[name];
        let is_had = self.holds.values().any(|hold| hold.name == name);
        let may_be_left = !known.left.is_empty() || known.forced.is_some() || known.is_wrong;
        self.unchanged(name).filter(|_| !is_had && !may_be_left)
    }

    /// Whether a set has had this part for too long: for longer than it waited before, by more than a second.
    fn is_kept(&self, name: usize, since: u64, patience: u64) -> bool {
        // Several tasks of a process may pass it on to each other.
        let mut processes = self.plan().processes.iter();
        let is_alone = processes.all(|process| process.tasks.len() < 2);
        let sets = self.calls.values().filter(|call| call.is_of_set());
        let sets = sets.filter(|call| call.names.contains(&name));
        // The oldest may have it for longest.
        let oldest = sets.map(|call| call.began).min();
        let may_keep = |began| since.saturating_sub(began) + KEEPS + patience;
        is_alone && oldest.is_some_and(|began| since + may_keep(began) < now())
    }
}
