//! The tally is the set of counters of a client. The rest of the client reports events to it, by the methods here or to
//! the counters themselves.
//!
//! The feature `metrics` also records them as metrics. Without it, that code is compiled out.

use std::collections::HashMap;
use std::iter;

use super::backend::Meter;
use super::hold::Hold;
use crate::clock::BootInstant;
use crate::error::Error;
use crate::loss::LossReason;
use crate::metrics::Labels;
use crate::options::{Deadline, Settings};
use crate::protocol::hold_key::Kind;
use crate::stats::{
    ConnectionNumbers, Count, Counted, KindNumbers, LossNumbers, MESSAGES, RenewalNumbers, Stats,
    TrafficNumbers,
};

/// The counters of one client.
#[derive(Debug)]
pub(crate) struct Tally {
    /// The counters that are not recorded by name.
    all: Group,
    /// The counters of the names that the settings list.
    named: HashMap<Box<str>, Group>,
    pub(super) renewals: RenewalNumbers,
    traffic: TrafficNumbers,
    messages: Count,
    connections: ConnectionNumbers,
}

/// The counters that may have the name of a lock as a label.
#[derive(Debug)]
struct Group {
    /// By the number of the kind.
    kinds: [KindNumbers; Counted::ALL.len()],
    lost: LossNumbers,
}

/// A running call. If it is dropped before it has [ended](Self::ended), it counts as cancelled.
#[derive(Debug)]
#[must_use = "it counts as cancelled when it is dropped"]
pub(crate) struct OpenCall<'a> {
    kind: &'a KindNumbers,
    /// `None` without metrics, where nobody reads it.
    begun: Option<BootInstant>,
    outcome: &'a Count,
}

impl Tally {
    /// Creates the counters, with the metrics recorder that is installed now.
    pub(crate) fn new(settings: &Settings) -> Self {
        let client = Labels::of_client(settings.label.as_deref());
        let named = settings.metrics_by_name.iter();
        Self {
            all: Group::new(&client),
            named: named
                .map(|name| (name.clone(), Group::new(&client.with("name", name))))
                .collect(),
            renewals: RenewalNumbers::new(&client),
            traffic: TrafficNumbers::new(&client),
            messages: Count::new(&client, MESSAGES),
            connections: ConnectionNumbers::new(&client),
        }
    }

    /// Counts a call for this name as begun.
    pub(crate) fn call<'a>(&'a self, kind: Counted, name: &str) -> OpenCall<'a> {
        let kind = self.of(kind, name);
        kind.waiting.raise(1);
        OpenCall {
            kind,
            begun: cfg!(feature = "metrics").then(BootInstant::now),
            outcome: &kind.cancelled,
        }
    }

    /// Counts a re-entry.
    pub(crate) fn reentered(&self, kind: Counted, name: &str) {
        self.of(kind, name).reentered.add(1);
    }

    /// Counts a lock that was granted in memory.
    pub(crate) fn handed_over(&self, kind: Counted, name: &str) {
        self.of(kind, name).handed_over.add(1);
    }

    /// Counts a hold that begins.
    pub(crate) fn hold_begins(&self, hold: &Hold) {
        let key = hold.key();
        self.permits_taken(Counted::from(&key.kind), key.name.key(), 1);
    }

    /// Counts the end of a hold, given back or lost.
    pub(crate) fn hold_ended(&self, hold: &Hold) {
        let key = hold.key();
        let since = || hold.lock().since;
        self.permits_returned(Counted::from(&key.kind), key.name.key(), 1, since);
    }

    pub(crate) fn permits_taken(&self, kind: Counted, name: &str, permits: u32) {
        self.of(kind, name).held.raise(permits);
    }

    /// Counts permits as returned that were taken at `since`.
    pub(crate) fn permits_returned(
        &self,
        kind: Counted,
        name: &str,
        permits: u32,
        since: impl FnOnce() -> BootInstant,
    ) {
        let kind = self.of(kind, name);
        kind.held.lower(permits);
        if cfg!(feature = "metrics") {
            kind.hold.record(since().until(BootInstant::now()));
        }
    }

    /// Counts the loss of a hold that somebody relied on.
    pub(crate) fn lost(&self, hold: &Hold, loss: LossReason) {
        let lost = &self.group(hold.key().name.key()).lost;
        let lost = match loss {
            LossReason::Gone => &lost.gone,
            LossReason::Expired => &lost.expired,
            LossReason::Displaced => &lost.displaced,
            LossReason::Forced => &lost.forced,
            LossReason::Closed => &lost.closed,
            // These are losses of guards and of sets only.
            LossReason::Unlocked | LossReason::NoMajority => return,
        };
        lost.add(1);
    }

    pub(crate) fn stats(&self) -> Stats {
        let groups = || self.named.values().chain([&self.all]);
        let kind = |kind| groups().map(move |group| &group.kinds[kind as usize]);
        Stats {
            lost: LossNumbers::sum(groups().map(|group| &group.lost)),
            renewals: RenewalNumbers::sum(iter::once(&self.renewals)),
            connections: ConnectionNumbers::sum(iter::once(&self.connections)),
            traffic: TrafficNumbers::sum(iter::once(&self.traffic)),
            messages: self.messages.get(),
            ..Stats::of_kinds(|counted| KindNumbers::sum(kind(counted)))
        }
    }

    fn of(&self, kind: Counted, name: &str) -> &KindNumbers {
        &self.group(name).kinds[kind as usize]
    }

    fn group(&self, name: &str) -> &Group {
        self.named.get(name).unwrap_or(&self.all)
    }
}

impl Group {
    fn new(labels: &Labels) -> Self {
        Self {
            kinds: Counted::ALL.map(|kind| KindNumbers::new(&labels.with("kind", kind.name()))),
            lost: LossNumbers::new(labels),
        }
    }
}

impl OpenCall<'_> {
    /// Counts the result of the call. Its `deadline` decides whether a refusal counts as busy or as a time-out.
    pub(crate) fn ended<T>(mut self, deadline: Deadline, output: &Result<Option<T>, Error>) {
        let numbers = self.kind;
        self.outcome = match output {
            Ok(Some(_)) => &numbers.granted,
            Ok(None) if deadline == Deadline::Once => &numbers.busy,
            Ok(None) => &numbers.timed_out,
            Err(_) => &numbers.failed,
        };
        if let (Ok(Some(_)), Some(begun)) = (output, self.begun) {
            self.kind.wait.record(begun.until(BootInstant::now()));
        }
    }
}

impl Drop for OpenCall<'_> {
    fn drop(&mut self) {
        self.kind.waiting.lower(1);
        self.outcome.add(1);
    }
}

impl Meter for Tally {
    fn connected(&self, again: bool) {
        self.connections.open.raise(1);
        self.connections.reconnects.add(again.into());
    }

    fn disconnected(&self) {
        self.connections.open.lower(1);
    }

    fn requested(&self, bytes: usize) {
        self.traffic.requests.add(1);
        self.traffic.bytes_sent.add(bytes as u64);
    }

    fn received(&self, bytes: usize) {
        self.traffic.bytes_received.add(bytes as u64);
    }

    fn replied(&self, since: BootInstant) {
        if cfg!(feature = "metrics") {
            self.traffic.request.record(since.until(BootInstant::now()));
        }
    }

    fn messaged(&self) {
        self.messages.add(1);
    }
}

impl From<&Kind> for Counted {
    fn from(kind: &Kind) -> Self {
        match kind {
            Kind::Reentrant => Self::Reentrant,
            Kind::Spin => Self::Spin,
            Kind::Fenced(_) => Self::Fenced,
            Kind::Fair(_) => Self::Fair,
            Kind::Plain(_) => Self::Plain,
            Kind::Read(_) => Self::Read,
            Kind::Write(_) => Self::Write,
        }
    }
}
