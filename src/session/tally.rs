//! Counts what a client does and has. The rest of the client tells what happened, by one method for each event.
//!
//! An event costs a few relaxed atomic additions, and takes no mutex: nothing is decided by these numbers, so no order
//! between them is promised. With the feature `metrics`, the [`Meters`] record the same events; without it they are
//! empty, and nothing is left of them.

use std::array;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::hold::Hold;
use super::meters::{Begun, Meters};
use crate::clock::BootInstant;
use crate::error::Error;
use crate::loss::LossReason;
use crate::options::{Deadline, Settings};
use crate::protocol::hold_key::Kind;
use crate::stats::{
    ConnectionStats, Counted, KindStats, LossStats, RenewalStats, Stats, TrafficStats,
};

/// The counts of one client.
#[derive(Debug)]
pub(crate) struct Tally {
    /// By the number of the kind.
    kinds: [KindTally; Counted::ALL.len()],
    /// By the number of the reason.
    lost: [Count; LossReason::OF_HOLDS.len()],
    renewal_requests: Count,
    /// By the number of the outcome, one for each hold.
    renewals: [Count; Renewal::ALL.len()],
    /// In nanoseconds.
    worst_lag: AtomicU64,
    connections: Level,
    reconnects: Count,
    requests: Count,
    bytes_sent: Count,
    bytes_received: Count,
    messages: Count,
    meters: Meters,
}

/// How a call ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    Granted,
    Busy,
    TimedOut,
    Failed,
    Cancelled,
}

/// What came of the renewal of one hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Renewal {
    Renewed,
    Gone,
    Failed,
}

#[derive(Debug, Default)]
struct KindTally {
    held: Level,
    waiting: Level,
    /// By the number of the ending.
    ended: [Count; Ending::ALL.len()],
    handed_over: Count,
    reentered: Count,
}

/// A count that only grows.
#[derive(Debug, Default)]
struct Count(AtomicU64);

/// How many there are now.
#[derive(Debug, Default)]
struct Level(AtomicU64);

/// A call that is under way. If it is dropped before it has [ended](Self::ended), it counts as cancelled.
#[derive(Debug)]
#[must_use = "it counts as cancelled when it is dropped"]
pub(crate) struct OpenCall<'a> {
    tally: &'a Tally,
    kind: Counted,
    name: &'a str,
    begun: Begun,
    ending: Ending,
}

/// A connection for commands that is open, until this is dropped.
#[derive(Debug)]
#[must_use = "the connection counts as closed when this is dropped"]
pub(super) struct OpenConnection<'a>(&'a Tally);

impl Tally {
    /// With the recorder for metrics that is installed now.
    pub(crate) fn new(settings: &Settings) -> Self {
        Self {
            kinds: array::from_fn(|_| KindTally::default()),
            lost: Default::default(),
            renewal_requests: Count::default(),
            renewals: Default::default(),
            worst_lag: AtomicU64::new(0),
            connections: Level::default(),
            reconnects: Count::default(),
            requests: Count::default(),
            bytes_sent: Count::default(),
            bytes_received: Count::default(),
            messages: Count::default(),
            meters: Meters::new(settings),
        }
    }

    /// A call begins that asks for this name.
    pub(crate) fn call<'a>(&'a self, kind: Counted, name: &'a str) -> OpenCall<'a> {
        self.of(kind).waiting.raise(1);
        OpenCall {
            tally: self,
            kind,
            name,
            begun: self.meters.call_begins(kind, name),
            ending: Ending::Cancelled,
        }
    }

    /// A call of an owner that had the lock was granted it again.
    pub(crate) fn reentered(&self, kind: Counted) {
        self.of(kind).reentered.add(1);
        self.meters.reentered(kind);
    }

    /// A call was granted a lock in memory.
    pub(crate) fn handed_over(&self, kind: Counted) {
        self.of(kind).handed_over.add(1);
        self.meters.handed_over(kind);
    }

    /// A hold stands from now on.
    pub(crate) fn hold_begins(&self, hold: &Hold) {
        let key = hold.key();
        self.permits_taken(Counted::from(&key.kind), key.name.key(), 1);
    }

    /// A hold was given back or lost, for whatever reason.
    pub(crate) fn hold_ended(&self, hold: &Hold) {
        let key = hold.key();
        let since = || hold.lock().since;
        self.permits_returned(Counted::from(&key.kind), key.name.key(), 1, since);
    }

    pub(crate) fn permits_taken(&self, kind: Counted, name: &str, permits: u32) {
        self.of(kind).held.raise(permits.into());
        self.meters.taken(kind, name, permits);
    }

    /// Permits that were taken at `since` are no longer held. Only meters ask for that instant.
    pub(crate) fn permits_returned(
        &self,
        kind: Counted,
        name: &str,
        permits: u32,
        since: impl FnOnce() -> BootInstant,
    ) {
        self.of(kind).held.lower(permits.into());
        self.meters.returned(kind, name, permits, since);
    }

    /// A hold was lost that somebody relied on.
    pub(crate) fn lost(&self, hold: &Hold, loss: LossReason) {
        if let Some(lost) = self.lost.get(loss as usize) {
            lost.add(1);
        }
        self.meters.lost(hold.key().name.key(), loss);
    }

    /// A renewal is about to be sent, for a hold that was due for it at `due`.
    pub(crate) fn renewal_is_due(&self, due: BootInstant, now: BootInstant) {
        let lag = due.until(now);
        let nanos = u64::try_from(lag.as_nanos()).unwrap_or(u64::MAX);
        self.worst_lag.fetch_max(nanos, Ordering::Relaxed);
        self.meters.renewal_is_due(lag);
    }

    /// A request to renew holds was sent.
    pub(crate) fn renewal_sent(&self) {
        self.renewal_requests.add(1);
    }

    /// This came of the renewal of so many holds.
    pub(crate) fn renewals(&self, renewal: Renewal, holds: usize) {
        self.renewals[renewal as usize].add(holds as u64);
        self.meters.renewals(renewal, holds as u64);
    }

    /// A connection for commands was made, `again` if another one broke before.
    pub(super) fn connected(&self, again: bool) -> OpenConnection<'_> {
        self.connections.raise(1);
        self.reconnects.add(again.into());
        self.meters.connected(again);
        OpenConnection(self)
    }

    /// A request of this size was given to a connection.
    pub(super) fn requested(&self, bytes: usize) {
        self.requests.add(1);
        self.bytes_sent.add(bytes as u64);
        self.meters.requested(bytes as u64);
    }

    /// Bytes of replies have arrived.
    pub(super) fn received(&self, bytes: usize) {
        self.bytes_received.add(bytes as u64);
        self.meters.received(bytes as u64);
    }

    /// The reply has arrived to a request that was given to the connection at `since`.
    pub(super) fn replied(&self, since: BootInstant) {
        self.meters.replied(since);
    }

    /// A message has arrived.
    pub(super) fn message(&self) {
        self.messages.add(1);
        self.meters.message();
    }

    pub(crate) fn stats(&self) -> Stats {
        let kind = |kind| self.of(kind).stats();
        let lost = |loss: LossReason| self.lost[loss as usize].get();
        let renewals = |renewal: Renewal| self.renewals[renewal as usize].get();
        Stats {
            reentrant: kind(Counted::Reentrant),
            spin: kind(Counted::Spin),
            fenced: kind(Counted::Fenced),
            fair: kind(Counted::Fair),
            plain: kind(Counted::Plain),
            read: kind(Counted::Read),
            write: kind(Counted::Write),
            red: kind(Counted::Red),
            semaphore: kind(Counted::Semaphore),
            expirable_semaphore: kind(Counted::ExpirableSemaphore),
            latch: kind(Counted::Latch),
            lost: LossStats {
                gone: lost(LossReason::Gone),
                expired: lost(LossReason::Expired),
                displaced: lost(LossReason::Displaced),
                forced: lost(LossReason::Forced),
                closed: lost(LossReason::Closed),
            },
            renewals: RenewalStats {
                requests: self.renewal_requests.get(),
                renewed: renewals(Renewal::Renewed),
                gone: renewals(Renewal::Gone),
                failed: renewals(Renewal::Failed),
                worst_lag: Duration::from_nanos(self.worst_lag.load(Ordering::Relaxed)),
            },
            connections: ConnectionStats {
                open: self.connections.get(),
                reconnects: self.reconnects.get(),
            },
            traffic: TrafficStats {
                requests: self.requests.get(),
                bytes_sent: self.bytes_sent.get(),
                bytes_received: self.bytes_received.get(),
            },
            messages: self.messages.get(),
        }
    }

    fn of(&self, kind: Counted) -> &KindTally {
        &self.kinds[kind as usize]
    }
}

impl KindTally {
    fn stats(&self) -> KindStats {
        let ended = |ending: Ending| self.ended[ending as usize].get();
        KindStats {
            held: self.held.get(),
            waiting: self.waiting.get(),
            granted: ended(Ending::Granted),
            handed_over: self.handed_over.get(),
            reentered: self.reentered.get(),
            busy: ended(Ending::Busy),
            timed_out: ended(Ending::TimedOut),
            failed: ended(Ending::Failed),
            cancelled: ended(Ending::Cancelled),
        }
    }
}

impl OpenCall<'_> {
    /// The call returns this. A refusal is by its `deadline` busy, or too late.
    pub(crate) fn ended<T>(mut self, deadline: Deadline, output: &Result<Option<T>, Error>) {
        self.ending = match output {
            Ok(Some(_)) => Ending::Granted,
            Ok(None) if deadline == Deadline::Once => Ending::Busy,
            Ok(None) => Ending::TimedOut,
            Err(_) => Ending::Failed,
        };
    }
}

impl Drop for OpenCall<'_> {
    fn drop(&mut self) {
        let Self {
            tally,
            kind,
            name,
            begun,
            ending,
        } = *self;
        tally.of(kind).waiting.lower(1);
        tally.of(kind).ended[ending as usize].add(1);
        tally.meters.call_ended(kind, name, begun, ending);
    }
}

impl Drop for OpenConnection<'_> {
    fn drop(&mut self) {
        self.0.connections.lower(1);
        self.0.meters.disconnected();
    }
}

impl Ending {
    /// In the order of their numbers.
    pub(super) const ALL: [Self; 5] = [
        Self::Granted,
        Self::Busy,
        Self::TimedOut,
        Self::Failed,
        Self::Cancelled,
    ];
}

impl Renewal {
    /// In the order of their numbers.
    pub(super) const ALL: [Self; 3] = [Self::Renewed, Self::Gone, Self::Failed];
}

impl Count {
    fn add(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl Level {
    fn raise(&self, by: u64) {
        self.0.fetch_add(by, Ordering::Relaxed);
    }

    fn lower(&self, by: u64) {
        self.0.fetch_sub(by, Ordering::Relaxed);
    }

    /// A hold that is lost right when it is granted may be counted as ended first: the sum is below zero until the
    /// other thread has counted too.
    fn get(&self) -> u64 {
        let level = self.0.load(Ordering::Relaxed);
        u64::try_from(level.cast_signed()).unwrap_or(0)
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
