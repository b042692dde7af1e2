//! How long calls took, all of them.

use std::time::Duration;

/// Every wait of a run, shortest first. Nothing is rounded into buckets: a run has a few hundred thousand at most.
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

    /// The wait that this share of all calls did not exceed; zero if there were none.
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

    /// p50, p99 and p99.9, for people.
    pub(crate) fn summary(&self) -> String {
        let [half, most, nearly_all] = [0.5, 0.99, 0.999].map(|share| self.quantile(share));
        format!("p50 {half:.1?}, p99 {most:.1?}, p99.9 {nearly_all:.1?}")
    }
}
