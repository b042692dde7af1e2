//! What it costs that a recorder counts each call.

use std::future::poll_fn;
use std::pin::pin;
use std::time::Duration;

use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusRecorder};
use redlatch::Client;
use redlatch::metrics::BUCKETS;
use redlatch_testkit::Server;
use tokio::time::interval;

use crate::Failure;
use crate::effort::Effort;
use crate::report::{Chapter, Target};
use crate::uncontended::{alternate, line};

/// Of the same length as the other name.
const RECORDED: &str = "bench:recorded";
const SILENT: &str = "bench:silent!!";
/// How often the recorder clears away what it has added up, as it does where it serves a page.
const UPKEEP: Duration = Duration::from_secs(5);

pub(crate) async fn run(effort: &Effort) -> Result<Chapter, Failure> {
    let server = Server::start();
    // Connected without a recorder, it records nothing; the other one goes on with the recorder that it finds.
    let silent = Client::connect(server.url()).await?;
    let recorder = PrometheusBuilder::new()
        .set_buckets_for_metric(Matcher::Suffix("_seconds".to_owned()), BUCKETS)?
        .build_recorder();
    let recorded = connect(&server.url(), &recorder).await?;
    let page = recorder.handle();
    let upkeep = tokio::spawn(async move {
        let mut due = interval(UPKEEP);
        loop {
            due.tick().await;
            page.run_upkeep();
        }
    });
    let both = alternate(recorded.lock(RECORDED), silent.lock(SILENT), effort.calls).await?;
    upkeep.abort();
    if !recorder
        .handle()
        .render()
        .contains("redlatch_wait_seconds_count")
    {
        return Err("nothing was recorded".into());
    }
    recorded.close().await;
    silent.close().await;
    Ok(Chapter {
        title: "Metrics: with a recorder, and without",
        how: "One task acquires and releases a lock that nobody else wants, by a client whose metrics go to the \
              recorder of metrics-exporter-prometheus, with buckets. Its call pairs alternate with those of a client \
              that was connected without a recorder; the ratio is that of the medians.",
        lines: vec![line(
            "lock and unlock",
            "metrics_overhead_ratio",
            &both,
            Target::AtMost(1.03),
        )],
        curves: Vec::new(),
        comparison: None,
    })
}

/// Connects a client that goes on with this recorder, which is installed for it alone.
async fn connect(url: &str, recorder: &PrometheusRecorder) -> Result<Client, Failure> {
    let mut connecting = pin!(Client::connect(url));
    let connected = poll_fn(|context| {
        ::metrics::with_local_recorder(recorder, || connecting.as_mut().poll(context))
    });
    Ok(connected.await?)
}
