//! What counts one number, and shows it as a metric if the feature `metrics` is on.
//!
//! An event costs two relaxed atomic additions, and takes no mutex: nothing is decided by these numbers, so no order
//! between them is promised.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::metrics::{Counter, Gauge, Histogram, Labels, Metric};

/// A count that only grows.
#[derive(Debug)]
pub(crate) struct Count(AtomicU64, Counter);

impl Count {
    pub(crate) fn new(labels: &Labels, metric: Metric) -> Self {
        Self(AtomicU64::new(0), labels.counter(metric))
    }

    pub(super) fn unshown() -> Self {
        Self(AtomicU64::new(0), Counter::noop())
    }

    pub(crate) fn add(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
        self.1.increment(count);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// How many there are now.
#[derive(Debug)]
pub(crate) struct Level(AtomicU64, Gauge);

impl Level {
    pub(super) fn new(labels: &Labels, metric: Metric) -> Self {
        Self(AtomicU64::new(0), labels.gauge(metric))
    }

    pub(crate) fn raise(&self, by: u32) {
        self.0.fetch_add(by.into(), Ordering::Relaxed);
        self.1.increment(by);
    }

    pub(crate) fn lower(&self, by: u32) {
        self.0.fetch_sub(by.into(), Ordering::Relaxed);
        self.1.decrement(by);
    }

    /// A hold that is lost right when it is granted may be counted as ended first: the sum is below zero until the
    /// other thread has counted too.
    pub(super) fn get(&self) -> u64 {
        let level = self.0.load(Ordering::Relaxed);
        u64::try_from(level.cast_signed()).unwrap_or(0)
    }
}

/// The longest of some times, of which the metric shows all.
#[derive(Debug)]
pub(crate) struct Longest {
    nanos: AtomicU64,
    all: Histogram,
}

impl Longest {
    pub(super) fn new(labels: &Labels, metric: Metric) -> Self {
        Self {
            nanos: AtomicU64::new(0),
            all: labels.histogram(metric),
        }
    }

    pub(crate) fn note(&self, time: Duration) {
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.nanos.fetch_max(nanos, Ordering::Relaxed);
        self.all.record(time);
    }

    pub(super) fn get(&self) -> Duration {
        Duration::from_nanos(self.nanos.load(Ordering::Relaxed))
    }
}
