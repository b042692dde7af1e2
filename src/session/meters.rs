//! The handles by which what a client does is recorded through the facade of the crate `metrics`.
//!
//! They are registered once, when the client is made, so that to record is an atomic operation and no search by name.
//! [`crate::metrics`] says what each of them means.

use std::collections::HashMap;
use std::time::Duration;

use ::metrics::{Counter, Gauge, Histogram, Label, counter, gauge, histogram};

use super::tally::{Ending, Renewal};
use crate::clock::BootInstant;
use crate::loss::LossReason;
use crate::metrics::describe;
use crate::options::Settings;
use crate::stats::Counted;

/// The handles of one client, with the recorder that was installed when it was made.
#[derive(Debug)]
pub(super) struct Meters {
    /// What is not recorded by name.
    all: Named,
    /// By the names that were chosen.
    named: HashMap<Box<str>, Named>,
    handed_over: [Counter; KINDS],
    reentered: [Counter; KINDS],
    renewals: [Counter; Renewal::ALL.len()],
    renewal_lag: Histogram,
    connected: Gauge,
    reconnects: Counter,
    requests: Counter,
    request_seconds: Histogram,
    bytes_sent: Counter,
    bytes_received: Counter,
    messages: Counter,
}

/// When a call began.
#[derive(Clone, Copy, Debug)]
pub(super) struct Begun(BootInstant);

const KINDS: usize = Counted::ALL.len();

/// The handles that may have the name of a lock as a label.
#[derive(Debug)]
struct Named {
    /// By the number of the kind.
    kinds: [Kind; KINDS],
    /// By the number of the reason.
    lost: [Counter; LossReason::OF_HOLDS.len()],
}

#[derive(Debug)]
struct Kind {
    /// By the number of the ending.
    acquisitions: [Counter; Ending::ALL.len()],
    wait: Histogram,
    hold: Histogram,
    waiting: Gauge,
    held: Gauge,
}

/// The labels that all metrics of a client have, and more of them step by step.
#[derive(Clone)]
struct Labels(Vec<Label>);

impl Labels {
    fn with(&self, key: &'static str, value: impl Into<::metrics::SharedString>) -> Self {
        let label = Label::new(key, value);
        Self(self.0.iter().cloned().chain([label]).collect())
    }

    fn counter(&self, name: &'static str) -> Counter {
        counter!(name, self.0.clone())
    }

    fn gauge(&self, name: &'static str) -> Gauge {
        gauge!(name, self.0.clone())
    }

    fn histogram(&self, name: &'static str) -> Histogram {
        histogram!(name, self.0.clone())
    }
}

impl Meters {
    pub(super) fn new(settings: &Settings) -> Self {
        describe();
        let label = settings.label.iter().cloned();
        let client = Labels(label.map(|label| Label::new("client", label)).collect());
        let of_kind =
            |name| Counted::ALL.map(|kind| client.with("kind", kind.name()).counter(name));
        let renewals = |renewal: Renewal| client.with("outcome", renewal.name());
        Self {
            all: Named::new(&client),
            named: settings
                .metrics_by_name
                .iter()
                .map(|name| {
                    (
                        name.clone(),
                        Named::new(&client.with("name", name.to_string())),
                    )
                })
                .collect(),
            handed_over: of_kind("redlatch_handed_over_total"),
            reentered: of_kind("redlatch_reentered_total"),
            renewals: Renewal::ALL.map(|it| renewals(it).counter("redlatch_renewals_total")),
            renewal_lag: client.histogram("redlatch_renewal_lag_seconds"),
            connected: client.gauge("redlatch_connected"),
            reconnects: client.counter("redlatch_reconnects_total"),
            requests: client.counter("redlatch_requests_total"),
            request_seconds: client.histogram("redlatch_request_seconds"),
            bytes_sent: client.counter("redlatch_sent_bytes_total"),
            bytes_received: client.counter("redlatch_received_bytes_total"),
            messages: client.counter("redlatch_messages_total"),
        }
    }

    pub(super) fn call_begins(&self, kind: Counted, name: &str) -> Begun {
        self.of(kind, name).waiting.increment(1);
        Begun(BootInstant::now())
    }

    pub(super) fn call_ended(&self, kind: Counted, name: &str, begun: Begun, ending: Ending) {
        let kind = self.of(kind, name);
        kind.waiting.decrement(1);
        kind.acquisitions[ending as usize].increment(1);
        if ending == Ending::Granted {
            kind.wait.record(begun.0.until(BootInstant::now()));
        }
    }

    pub(super) fn reentered(&self, kind: Counted) {
        self.reentered[kind as usize].increment(1);
    }

    pub(super) fn handed_over(&self, kind: Counted) {
        self.handed_over[kind as usize].increment(1);
    }

    pub(super) fn taken(&self, kind: Counted, name: &str, permits: u32) {
        self.of(kind, name).held.increment(permits);
    }

    pub(super) fn returned(
        &self,
        kind: Counted,
        name: &str,
        permits: u32,
        since: impl FnOnce() -> BootInstant,
    ) {
        let kind = self.of(kind, name);
        kind.held.decrement(permits);
        kind.hold.record(since().until(BootInstant::now()));
    }

    pub(super) fn lost(&self, name: &str, loss: LossReason) {
        if let Some(lost) = self.named(name).lost.get(loss as usize) {
            lost.increment(1);
        }
    }

    pub(super) fn renewal_is_due(&self, lag: Duration) {
        self.renewal_lag.record(lag);
    }

    pub(super) fn renewals(&self, renewal: Renewal, holds: u64) {
        self.renewals[renewal as usize].increment(holds);
    }

    pub(super) fn connected(&self, again: bool) {
        self.connected.increment(1);
        self.reconnects.increment(again.into());
    }

    pub(super) fn disconnected(&self) {
        self.connected.decrement(1);
    }

    pub(super) fn requested(&self, bytes: u64) {
        self.requests.increment(1);
        self.bytes_sent.increment(bytes);
    }

    pub(super) fn received(&self, bytes: u64) {
        self.bytes_received.increment(bytes);
    }

    pub(super) fn replied(&self, since: BootInstant) {
        self.request_seconds.record(since.until(BootInstant::now()));
    }

    pub(super) fn message(&self) {
        self.messages.increment(1);
    }

    fn of(&self, kind: Counted, name: &str) -> &Kind {
        &self.named(name).kinds[kind as usize]
    }

    fn named(&self, name: &str) -> &Named {
        self.named.get(name).unwrap_or(&self.all)
    }
}

impl Named {
    fn new(labels: &Labels) -> Self {
        let lost = |loss: LossReason| labels.with("reason", reason(loss));
        Self {
            kinds: Counted::ALL.map(|kind| Kind::new(&labels.with("kind", kind.name()))),
            lost: LossReason::OF_HOLDS.map(|loss| lost(loss).counter("redlatch_lost_total")),
        }
    }
}

impl Kind {
    fn new(labels: &Labels) -> Self {
        let acquisitions = |ending: Ending| labels.with("outcome", ending.name());
        Self {
            acquisitions: Ending::ALL
                .map(|ending| acquisitions(ending).counter("redlatch_acquisitions_total")),
            wait: labels.histogram("redlatch_wait_seconds"),
            hold: labels.histogram("redlatch_hold_seconds"),
            waiting: labels.gauge("redlatch_waiting"),
            held: labels.gauge("redlatch_held"),
        }
    }
}

impl Ending {
    fn name(self) -> &'static str {
        match self {
            Self::Granted => "granted",
            Self::Busy => "busy",
            Self::TimedOut => "timed_out",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
        }
    }
}

impl Renewal {
    fn name(self) -> &'static str {
        match self {
            Self::Renewed => "renewed",
            Self::Gone => "gone",
            Self::Failed => "failed",
        }
    }
}

/// The value of the label `reason`.
fn reason(loss: LossReason) -> &'static str {
    match loss {
        LossReason::Gone => "gone",
        LossReason::Expired => "expired",
        LossReason::Displaced => "displaced",
        LossReason::Forced => "forced",
        LossReason::Closed => "closed",
        LossReason::Unlocked => "unlocked",
        LossReason::NoMajority => "no_majority",
    }
}
