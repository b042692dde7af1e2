//! What is judged of that which a process reports, by events and by numbers.

use std::collections::BTreeMap;

use redlatch::stats::Stats;

use super::{JUDGE, Judge};
use crate::machine::{now, running};
use crate::plan::{Fault, Shared, Topology};
use crate::world::is_over;

/// When each process last said each thing that is said at most once in a time, of each server.
pub(super) type Said = BTreeMap<(usize, &'static str, String), u64>;

/// What a process says of its only server.
#[derive(Default)]
pub(super) struct Outage {
    /// Since when it has told of one.
    since: Option<u64>,
    ended: Option<u64>,
    /// How long the server has to answer before it is over.
    settles: u64,
    /// When it told of its last losses.
    lost: [u64; 3],
}

/// How long the server has to answer before its first outage is over, at most, and until an outage counts as the first.
const SETTLED: u64 = 1_000;
const LONGEST_SETTLED: u64 = 60_000;

/// How long a client may take to notice that its server is away, or back.
const UNNOTICED: u64 = 3_500;
const NOTICED: u64 = 6_000;

/// What is said at most once in so many milliseconds.
const PACED: [(&str, u64); 3] = [
    ("reconnected", 1_000),
    ("renewal failed", 5_000),
    ("messages may not arrive", 5_000),
];

/// What is noted, of each lock.
const NOTED: [&str; 2] = ["deposed", "follows"];

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
        let mut wrong = match has_one {
            true => self.said_of_outage(process, message),
            false => None,
        };
        if let Some(noted) = NOTED.iter().find(|noted| **noted == message) {
            let lock = fields.split(' ').find(|field| field.starts_with("lock="));
            let said = (process, *noted, lock.unwrap_or_default().to_owned());
            self.said.insert(said, now());
        }
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

    /// Judges what a process says of an outage of its only server, or of what it has lost.
    fn said_of_outage(&mut self, process: usize, message: &str) -> Option<&'static str> {
        let away = self.away.filter(|_| self.only_stops());
        let outage = self.outages.entry(process).or_default();
        match message {
            "outage" if outage.since.replace(now()).is_some() => Some("what it has told"),
            "outage" => {
                let ended = outage.ended;
                let is_again = ended.is_some_and(|ended| now() < ended + LONGEST_SETTLED);
                let twice = (2 * outage.settles).min(LONGEST_SETTLED);
                outage.settles = if is_again { twice } else { SETTLED };
                None
            }
            "outage is over" => {
                (outage.since, outage.ended) = (None, Some(now()));
                // The client has noticed that it was away, so it counts from when it was back.
                let (from, back) = away?;
                let is_long = from + 2_000 <= back;
                (is_long && now() + 20 < back + outage.settles).then_some("too soon")
            }
            "lost" => {
                // One with each of two outages, and one without.
                let [first, second, third] = outage.lost;
                outage.lost = [second, third, now()];
                (first > 0 && now() < first + 950).then_some("one by one")
            }
            _ => None,
        }
    }

    /// Whether nothing else happens than that one server is away for a while.
    fn only_stops(&self) -> bool {
        let plan = self.plan();
        let mut events = plan.events.iter();
        plan.weather == "servers"
            && plan.topology == Topology::Single
            && events.all(|event| matches!(event.fault, Fault::Stop(..)))
    }

    /// Notes that a client of a process has connected, unless it does so when it is asked.
    pub fn connected(&mut self, process: usize) {
        self.connected.insert(process, now());
    }

    /// Notes that a client of a process has not connected. It tells nothing more.
    pub fn unconnected(&mut self, process: usize) {
        self.outages.remove(&process);
    }

    /// The only server is away from now on.
    pub fn is_away(&mut self) {
        self.stopped = Some(now());
    }

    /// The only server is back.
    pub fn is_back(&mut self) {
        let Some(from) = self.stopped.take() else {
            return;
        };
        self.away = Some((from, now()));
        if !self.only_stops() || from + UNNOTICED > now() {
            return;
        }
        let is_told = |process: &usize| {
            let outage = self.outages.get(process);
            outage.is_some_and(|outage| outage.since.is_some())
        };
        let connected = self.connected.iter().filter(|(_, since)| **since < from);
        let processes = connected.map(|(process, _)| *process);
        let untold: Vec<_> = processes.filter(|process| !is_told(process)).collect();
        for process in untold {
            self.violation(format!(
                "p{process} does not tell that its server has been away since {from}"
            ));
        }
    }

    /// Judges outages of which no end is told.
    pub(super) fn endless_outages(&mut self) {
        // Clients that close tell nothing more.
        if !self.only_stops() || self.stopped.is_some() || is_over() {
            return;
        }
        let over = self.disturbed.unwrap_or(0);
        let mut endless = Vec::new();
        for (process, outage) in &mut self.outages {
            if let Some(since) = outage.since
                && over.max(since) + outage.settles + NOTICED < now()
            {
                outage.since = None;
                endless.push((*process, since));
            }
        }
        for (process, since) in endless {
            self.violation(format!(
                "p{process} tells no end of the outage since {since}"
            ));
        }
    }

    /// Whether a process has said something that is noted of a lock since then.
    pub(super) fn has_said(
        &self,
        process: usize,
        what: &'static str,
        name: usize,
        since: u64,
    ) -> bool {
        let lock = format!("lock={}", self.plan().names[name].name);
        let said = self.said.get(&(process, what, lock));
        said.is_some_and(|at| *at >= since)
    }

    /// Judges the numbers of a client of a process once nothing is under way, and after its end.
    pub fn counts(&mut self, process: usize, stats: &Stats, is_closed: bool) {
        let lost = stats.lost;
        let lost = lost.gone + lost.expired + lost.displaced + lost.forced;
        let may = self.lost.get(&process).copied().unwrap_or(0) + self.forgotten;
        // A set may lose locks that it has while it waits for others.
        let has_sets = self.plan().names.iter().any(Shared::is_of_set);
        // So may a call that nobody polls.
        let is_known = !has_sets && !self.is_unpolled;
        if self.plan().weather == "calm" && is_known && !is_closed && lost > may {
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
