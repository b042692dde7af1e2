//! What a client records through the facade of the crate [`metrics`](https://docs.rs/metrics), with the feature
//! `metrics`.
//!
//! Install a recorder, for example that of `metrics-exporter-prometheus`, **before** a client connects: a client
//! registers everything below once, with the recorder that is installed when
//! [`Client::connect`](crate::Client::connect) or [`ClientBuilder::build`](crate::ClientBuilder::build) is called, and
//! keeps using that recorder. A client that connects without a recorder never records anything.
//! [`Client::stats`](crate::Client::stats) has most of the numbers without any recorder.
//!
//! | name | kind | labels | what it is |
//! |---|---|---|---|
//! | `redlatch_acquisitions_total` | counter | `kind`, `outcome` | calls to acquire that have ended: `granted`; `busy`, a single attempt in vain; `timed_out`, in vain up to a limit; `failed`; `cancelled`, a future that was dropped |
//! | `redlatch_handed_over_total` | counter | `kind` | granted calls that were served in memory, from another owner of this process |
//! | `redlatch_reentered_total` | counter | `kind` | granted calls of owners that held the lock already |
//! | `redlatch_wait_seconds` | histogram | `kind` | how long granted calls took, from the first poll to the guard |
//! | `redlatch_hold_seconds` | histogram | `kind` | how long locks and permits were held, from the request on, until they were given back or lost |
//! | `redlatch_waiting` | gauge | `kind` | calls to acquire that are under way |
//! | `redlatch_held` | gauge | `kind` | owners that hold a lock, and permits that are held |
//! | `redlatch_lost_total` | counter | `reason` | holds that were lost: `gone`, `expired`, `displaced`, `forced`, `closed`; see [`LossStats`](crate::stats::LossStats) |
//! | `redlatch_renewals_total` | counter | `outcome` | holds that were `renewed`, were found `gone`, or whose request `failed` and is sent again |
//! | `redlatch_renewal_lag_seconds` | histogram | | how much later than it was due a renewal was sent |
//! | `redlatch_connected` | gauge | | open connections for commands, one to each server in use |
//! | `redlatch_reconnects_total` | counter | | connections that were made again |
//! | `redlatch_requests_total` | counter | | requests that were given to a connection |
//! | `redlatch_request_seconds` | histogram | | how long each of them took until its reply was read |
//! | `redlatch_sent_bytes_total` | counter | | bytes of requests |
//! | `redlatch_received_bytes_total` | counter | | bytes of replies |
//! | `redlatch_messages_total` | counter | | messages of releases |
//!
//! Times are in seconds. [`BUCKETS`] suits all of the histograms. The values of `kind` are those of
//! [`Stats::kinds`](crate::stats::Stats::kinds), and [`KindStats`](crate::stats::KindStats) says what is counted
//! exactly. Gauges return to zero when what they count has ended, and a moment after the client was closed. All series
//! exist from the start, at zero; those of clients with the same labels are added up.
//!
//! # Labels
//!
//! The **name of a lock is no label**, since names often contain an id, and each of them would be a series of its own.
//! For the few locks whose names are fixed, [`ClientBuilder::metrics_by_name`](crate::ClientBuilder::metrics_by_name)
//! adds the label `name` to the metrics with a `kind` and to `redlatch_lost_total`. If the client has a
//! [label](crate::ClientBuilder::label), all of its metrics have the label `client` with that text.
//!
//! # Cost
//!
//! With the recorder of `metrics-exporter-prometheus`, an uncontended lock and unlock takes about half a microsecond
//! more, less than a hundredth of the two round trips; without a recorder, a hundred instructions more. Without the
//! feature, nothing is left of it. `benches/figures.md` has the figures.
//!
//! # Dashboard
//!
//! `dashboards/grafana.json` in the repository shows all of this in Grafana, from Prometheus.
//!
//! # Examples
//!
//! ```
//! # redlatch_testkit::doc(async |url| {
//! use metrics_exporter_prometheus::{Matcher, PrometheusBuilder};
//! use redlatch::{Client, metrics::BUCKETS};
//!
//! let seconds = Matcher::Suffix("_seconds".to_owned());
//! let page = PrometheusBuilder::new()
//!     .set_buckets_for_metric(seconds, BUCKETS).unwrap()
//!     .install_recorder().unwrap();
//! let client = Client::connect(url).await?; // after the recorder
//! client.lock("orders:42").lock().await?.unlock().await?;
//!
//! let text = page.render(); // what Prometheus fetches
//! assert!(text.contains(r#"redlatch_acquisitions_total{kind="reentrant",outcome="granted"} 1"#));
//! # Ok::<(), redlatch::Error>(()) });
//! ```

use ::metrics::{
    Label, counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram,
};

pub(crate) use ::metrics::{Counter, Gauge, Histogram, Unit};

/// Boundaries for the histograms, in seconds, from 100 µs to 5 minutes: for exporters that count values in buckets.
pub const BUCKETS: &[f64] = &[
    0.0001, 0.000_25, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5,
    5.0, 10.0, 30.0, 60.0, 300.0,
];

/// The name of a metric, its unit, and what the recorder is told of it.
pub(crate) type Metric = (&'static str, Unit, &'static str);

/// The labels that all metrics of a client have, and more of them step by step.
///
/// What they register is a handle, so that to record is an atomic operation and no search by name.
#[derive(Debug)]
pub(crate) struct Labels(Vec<Label>);

impl Labels {
    pub(crate) fn of_client(label: Option<&str>) -> Self {
        let label = label.map(|label| Label::new("client", label.to_owned()));
        Self(label.into_iter().collect())
    }

    pub(crate) fn with(&self, key: &'static str, value: &str) -> Self {
        let label = Label::new(key, value.to_owned());
        Self(self.0.iter().cloned().chain([label]).collect())
    }

    pub(crate) fn counter(&self, (name, unit, text): Metric) -> Counter {
        describe_counter!(name, unit, text);
        counter!(name, self.0.clone())
    }

    pub(crate) fn gauge(&self, (name, unit, text): Metric) -> Gauge {
        describe_gauge!(name, unit, text);
        gauge!(name, self.0.clone())
    }

    pub(crate) fn histogram(&self, (name, unit, text): Metric) -> Histogram {
        describe_histogram!(name, unit, text);
        histogram!(name, self.0.clone())
    }
}
