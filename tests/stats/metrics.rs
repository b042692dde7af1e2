//! What is on the page of a recorder, and what is not.

use redlatch::Client;
use redlatch_testkit::Server;

use crate::page::Page;
use crate::support::{builder, start};

#[tokio::test]
async fn times_are_recorded_of_what_was_granted_and_held() {
    let server = Server::start();
    let (client, page) = Page::open(builder(server.url())).await;
    page.lock_and_unlock("job").await;
    assert_eq!(
        page.value("redlatch_wait_seconds_count{kind=\"reentrant\"}"),
        1.0
    );
    assert_eq!(
        page.value("redlatch_hold_seconds_count{kind=\"reentrant\"}"),
        1.0
    );
    let held = page.value("redlatch_hold_seconds_sum{kind=\"reentrant\"}");
    assert!(held > 0.0 && held < 10.0, "in seconds: {held}");
    let requests = page.value("redlatch_requests_total");
    assert_eq!(requests, client.stats().traffic.requests as f64);
    assert_eq!(page.value("redlatch_request_seconds_count"), requests);
    assert_eq!(page.value("redlatch_connected"), 1.0);
    client.close().await;
    assert_eq!(page.value("redlatch_connected"), 0.0);
}

#[tokio::test]
async fn names_of_locks_are_on_the_page_only_if_they_were_chosen() {
    let server = Server::start();
    let (client, page) = Page::open(builder(server.url()).name_prefix("secret:")).await;
    let lock = client.lock("nightly");
    let guard = lock.lock().await.unwrap();
    assert!(lock.force_unlock().await.unwrap());
    drop(guard);
    client.semaphore("seats").try_acquire().await.unwrap();
    let text = page.text();
    assert!(text.contains("redlatch_lost_total{reason=\"forced\"} 1"));
    for word in ["secret", "nightly", "seats", "name=", "client="] {
        assert!(!text.contains(word), "{word}:\n{text}");
    }

    let settings = builder(server.url())
        .metrics_by_name(["nightly"])
        .label("orders@host-7");
    let (client, page) = Page::open(settings).await;
    let lock = client.lock("nightly");
    let guard = lock.lock().await.unwrap();
    let other = client.lock("orders:42").lock().await.unwrap();
    let held = |labels: &str| page.value(&format!("redlatch_held{{{labels}}}"));
    let (named, rest) = (
        "client=\"orders@host-7\",name=\"nightly\",kind=\"reentrant\"",
        "client=\"orders@host-7\",kind=\"reentrant\"",
    );
    assert_eq!((held(named), held(rest)), (1.0, 1.0));
    assert!(lock.force_unlock().await.unwrap());
    let lost = "client=\"orders@host-7\",name=\"nightly\",reason=\"forced\"";
    assert_eq!(page.value(&format!("redlatch_lost_total{{{lost}}}")), 1.0);
    drop((guard, other));
    assert_eq!((held(named), held(rest)), (0.0, 0.0));
    let text = page.text();
    assert!(!text.contains("orders:42"));
    for line in text
        .lines()
        .filter(|line| !line.starts_with('#') && !line.is_empty())
    {
        assert!(line.contains("client=\"orders@host-7\""), "{line}");
    }
}

#[tokio::test]
async fn client_without_a_recorder_counts_all_the_same() {
    let (_server, client): (_, Client) = start().await;
    let guard = client.lock("job").lock().await.unwrap();
    // A recorder that comes later is not used.
    let recorder = metrics_exporter_prometheus::PrometheusBuilder::new().build_recorder();
    let installed = metrics::set_default_local_recorder(&recorder);
    guard.unlock().await.unwrap();
    drop(installed);
    let stats = client.stats();
    assert_eq!((stats.reentrant.granted, stats.reentrant.held), (1, 0));
    assert!(!recorder.handle().render().contains("redlatch_held"));
}
