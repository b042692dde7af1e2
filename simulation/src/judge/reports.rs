//! What is judged of that which a process reports, by events and by numbers.

use std::collections::BTreeMap;

use redlatch::stats::Stats;

use super::{JUDGE, Judge};
use crate::machine::{now, running};
use crate::plan::{Shared, Topology};

/// When each process last said each thing that is said at most once in a time, of each server.
pub(super) type Said = BTreeMap<(usize, &'static str, String), u64>;

/// What is said at most once in so many milliseconds.
const PACED: [(&str, u64); 3] = [
    ("reconnected", 1_000),
    ("renewal failed", 5_000),
    ("messages may not arrive", 5_000),
];

/// Notes what a process reports, unless the judge itself has it drop something.
pub fn report(message: &str, fields: &str) {
    JUDGE.with(|judge| {
        if let Ok(mut judge) = judge.try_borrow_mut() {
            judge.reported(message, fields);
        }
    });
}

impl Judge {
    fn reported(&mut self, message: &str, fields: &str) {
        let process = running();
        // A client has only one of them.
        let has_one = self.plan().topology == Topology::Single;
        let mut wrong = None;
        if let Some((paced, apart)) = PACED.iter().find(|(paced, _)| *paced == message) {
            let server = fields.split(' ').find(|field| field.starts_with("server="));
            let said = (process, *paced, server.unwrap_or_default().to_owned());
            let last = self.said.insert(said, now());
            if last.is_some_and(|last| now() < last + apart) && (has_one || server.is_some()) {
                wrong = Some("again so soon");
            }
        }
        if message == "lost" && fields.contains("Closed") {
            wrong = Some("by a client that closes");
        }
        if let Some(wrong) = wrong {
            self.violation(format!("p{process} reports {wrong}: {message}{fields}"));
        }
    }

    /// Judges the numbers of a client of a process once nothing is under way, and after its end.
    pub fn counts(&mut self, process: usize, stats: &Stats, is_closed: bool) {
        let lost = stats.lost;
        let lost = lost.gone + lost.expired + lost.displaced + lost.forced;
        let may = self.lost.get(&process).copied().unwrap_or(0) + self.forgotten;
        // A set may lose locks that it has while it waits for others.
        let has_sets = self.plan().names.iter().any(Shared::is_of_set);
        if self.plan().weather == "calm" && !has_sets && !is_closed && lost > may {
            self.violation(format!(
                "p{process} counts {lost} lost holds, of {may} that may be"
            ));
        }
        for (kind, numbers) in stats.kinds() {
            if numbers.waiting > 0 {
                self.violation(format!(
                    "p{process} counts {} {kind} calls that wait",
                    numbers.waiting
                ));
            }
            if is_closed && numbers.held > 0 {
                self.violation(format!(
                    "p{process} counts {} {kind} holds after its end",
                    numbers.held
                ));
            }
        }
    }
}
