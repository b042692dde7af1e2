//! How long each call of a run took.

use std::time::Duration;

/// Every wait of a run, shortest first. Waits are not rounded into buckets: a run has at most a few hundred thousand.
#[derive(Debug, Default)]
pub(crate) struct Waits(Vec<Duration>);

impl Waits {
    pub(crate) fn new(mut waits: Vec<Duration>) -> Self {
        waits.sort_unstable();
        Self(waits)
    }

    pub(crate) fn all(&self) -> &[Duration] {
        &self.0
    }

    pub(crate) fn count(&self) -> usize {
        self.0.len()
    }

    /// Returns the wait that this share of all calls did not exceed, or zero if there were no calls.
    pub(crate) fn quantile(&self, share: f64) -> Duration {
        let rank = (share * self.0.len() as f64).ceil() as usize;
        self.0
            .get(rank.saturating_sub(1))
            .copied()
            .unwrap_or_default()
    }

    pub(crate) fn median(&self) -> Duration {
        self.quantile(0.5)
    }

    /// Returns p50, p99 and p99.9, as text for people.
    pub(crate) fn summary(&self) -> String {
        let [half, most, nearly_all] = [0.5, 0.99, 0.999].map(|share| self.quantile(share));
        format!("p50 {half:.1?}, p99 {most:.1?}, p99.9 {nearly_all:.1?}")
    }
}
