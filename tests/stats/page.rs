//! A client next to the page on which its metrics are shown.

use redlatch::stats::{KindStats, Stats};
use redlatch::{Client, ClientBuilder};

use crate::support::eventually;

/// What a client counts. With the feature `metrics` the same numbers must be on its page.
#[derive(Debug)]
pub struct Page {
    client: Client,
    #[cfg(feature = "metrics")]
    handle: metrics_exporter_prometheus::PrometheusHandle,
}

impl Page {
    /// Connects a client whose metrics are on a page of their own.
    ///
    /// The recorder is that of this thread, so the runtime of the test must have no other.
    #[cfg(feature = "metrics")]
    pub async fn open(builder: ClientBuilder) -> (Client, Self) {
        let recorder = metrics_exporter_prometheus::PrometheusBuilder::new().build_recorder();
        let installed = metrics::set_default_local_recorder(&recorder);
        let client = builder.build().await.expect("the server is up");
        drop(installed);
        let page = Self {
            client: client.clone(),
            handle: recorder.handle(),
        };
        (client, page)
    }

    #[cfg(not(feature = "metrics"))]
    pub async fn open(builder: ClientBuilder) -> (Client, Self) {
        let client = builder.build().await.expect("the server is up");
        let page = Self {
            client: client.clone(),
        };
        (client, page)
    }

    /// Returns the numbers of one kind, which are the same on the page.
    #[track_caller]
    pub fn of(&self, kind: &str) -> KindStats {
        let stats = self.stats();
        let (_, numbers) = stats.kinds().find(|(name, _)| *name == kind).unwrap();
        numbers
    }

    /// Returns all numbers, which are the same on the page.
    #[track_caller]
    pub fn stats(&self) -> Stats {
        let stats = self.client.stats();
        #[cfg(feature = "metrics")]
        self.agrees_with(&stats);
        stats
    }

    /// Waits until nothing is held and no call is under way.
    pub async fn eventually_at_rest(&self) {
        eventually("nothing is held and nobody waits", async || {
            let total = self.client.stats().total();
            (total.held, total.waiting) == (0, 0)
        })
        .await;
        self.stats();
    }
}

#[cfg(feature = "metrics")]
impl Page {
    pub async fn lock_and_unlock(&self, name: &str) {
        let guard = self.client.lock(name).lock().await.unwrap();
        guard.unlock().await.unwrap();
    }

    pub fn text(&self) -> String {
        self.handle.render()
    }

    /// Returns the value of a series, which is its name with its labels.
    #[track_caller]
    pub fn value(&self, series: &str) -> f64 {
        value(&self.text(), series)
    }

    #[track_caller]
    fn agrees_with(&self, stats: &Stats) {
        let text = self.text();
        let same = |series: String, number: u64| {
            assert_eq!(value(&text, &series), number as f64, "{series}");
        };
        for (kind, numbers) in stats.kinds() {
            let only = format!("{{kind=\"{kind}\"}}");
            same(format!("redlatch_held{only}"), numbers.held);
            same(format!("redlatch_waiting{only}"), numbers.waiting);
            same(
                format!("redlatch_handed_over_total{only}"),
                numbers.handed_over,
            );
            same(format!("redlatch_reentered_total{only}"), numbers.reentered);
            for (outcome, number) in [
                ("granted", numbers.granted),
                ("busy", numbers.busy),
                ("timed_out", numbers.timed_out),
                ("failed", numbers.failed),
                ("cancelled", numbers.cancelled),
            ] {
                let labels = format!("{{kind=\"{kind}\",outcome=\"{outcome}\"}}");
                same(format!("redlatch_acquisitions_total{labels}"), number);
            }
        }
        for (reason, number) in [
            ("gone", stats.lost.gone),
            ("expired", stats.lost.expired),
            ("displaced", stats.lost.displaced),
            ("forced", stats.lost.forced),
            ("closed", stats.lost.closed),
        ] {
            same(
                format!("redlatch_lost_total{{reason=\"{reason}\"}}"),
                number,
            );
        }
    }
}

/// Returns the value of a series on a page.
#[cfg(feature = "metrics")]
#[track_caller]
fn value(page: &str, series: &str) -> f64 {
    let mut lines = page.lines();
    let value = lines.find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
    value
        .unwrap_or_else(|| panic!("{series} is not on the page:\n{page}"))
        .parse()
        .unwrap()
}
