//! The log that an operator sees: the events in the life of a lock, none of which contains a secret.
//!
//! A program of its own: a process has one subscriber.
#![allow(
    clippy::expect_used,
    clippy::unwrap_used,
    reason = "a test fails by panicking"
)]

mod support;

use std::io;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use redlatch::{Client, Owner};
use redlatch_testkit::Server;
use support::mixed::{KINDS, try_take};
use support::{builder, eventually};
use tokio::task::JoinSet;
use tracing_subscriber::fmt::MakeWriter;

const PASSWORD: &str = "s3cret";

/// All log output, as text.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }

    async fn tells(&self, words: &[&str]) {
        let shown = format!("the log has a line with {words:?}");
        eventually(&shown, async || {
            self.text()
                .lines()
                .any(|line| words.iter().all(|word| line.contains(word)))
        })
        .await;
    }
}

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl MakeWriter<'_> for Log {
    type Writer = Self;

    fn make_writer(&self) -> Self {
        self.clone()
    }
}

/// A single test, since a process has one subscriber.
#[tokio::test]
async fn the_life_of_a_lock_is_reported_and_no_password() {
    let log = Log::default();
    tracing_subscriber::fmt()
        .with_max_level(tracing::Level::TRACE)
        .with_ansi(false)
        .with_writer(log.clone())
        .init();
    let server = Server::builder().password(PASSWORD).start();
    let client = builder(server.url())
        .watchdog_lease(Duration::from_millis(900))
        .build()
        .await
        .unwrap();
    log.tells(&["DEBUG", "connected", client.id()]).await;

    let lock = client.lock("invoice");
    let guard = lock.lock().await.unwrap();
    log.tells(&["DEBUG", "acquire{lock=invoice owner=", "acquired waited="])
        .await;
    let other = lock.clone().owned_by(&Owner::named("req-7"));
    let waiter = tokio::spawn(async move { other.lock().await });
    log.tells(&["DEBUG", "subscribed", "channels=1"]).await;
    let mut admin = server.connection();
    admin.command(&["CLIENT", "KILL", "TYPE", "pubsub"]);
    log.tells(&["INFO", "resubscribing", "channels=1"]).await;

    guard.unlock().await.unwrap();
    let guard = waiter.await.unwrap().unwrap();
    log.tells(&["acquire{lock=invoice owner=req-7}", "acquired waited="])
        .await;
    admin.command(&["DEL", "invoice"]);
    guard.lost().await;
    log.tells(&[
        "WARN",
        "lost",
        "lock=invoice",
        "owner=req-7",
        "reason=",
        "the server no longer has this hold",
    ])
    .await;

    let guard = lock.lock().await.unwrap();
    server.kill();
    guard.lost().await;
    log.tells(&["WARN", "renewal failed", "holds=1", "\"invoice\""])
        .await;
    log.tells(&[
        "WARN",
        "lost",
        "its lease passed without a confirmed renewal",
    ])
    .await;

    assert!(Client::connect(server.url()).await.is_err());
    client.close().await;
    log.tells(&["DEBUG", "closed", client.id()]).await;

    refusal_to_publish_is_told_once_with_what_to_grant(&log).await;
    outage_is_told_in_few_lines(&log).await;
    assert!(!log.text().contains(PASSWORD));
}

async fn refusal_to_publish_is_told_once_with_what_to_grant(log: &Log) {
    let server = Server::start();
    let user = [
        "on",
        ">s3cret",
        "~*",
        "&*",
        "+@all",
        "-publish",
        "-spublish",
    ];
    let mut probe = server.connection();
    probe.command(&[&["ACL", "SETUSER", "app"], &user[..]].concat());
    let url = format!("redis://app:{PASSWORD}@127.0.0.1:{}", server.port());
    let client = builder(url).build().await.unwrap();
    for name in ["a", "b", "c"] {
        let guard = client.lock(name).lock().await.unwrap();
        guard.unlock().await.unwrap();
    }
    log.tells(&["WARN", "+publish", "&redisson_*", "poll_cap"])
        .await;
    let text = log.text();
    let told = text.lines().filter(|line| line.contains("+publish"));
    assert_eq!(told.count(), 1, "{text}");
    client.close().await;
}

/// Checks that many failed calls and many lost holds are logged at about one line per second.
async fn outage_is_told_in_few_lines(log: &Log) {
    let server = Server::start();
    let client = Client::builder()
        .url(server.url())
        .watchdog_lease(Duration::from_secs(2));
    let client = client.build().await.unwrap();
    let mut guards = Vec::new();
    for at in 0..200 {
        guards.push(client.lock(format!("held:{at}")).lock().await.unwrap());
    }
    let waiting = client.lock("held:0").owned_by(&Owner::unique());
    let waiting = tokio::spawn(async move { waiting.lock().await.map(drop) });
    for outage in ["killed", "hung"] {
        let (before, began) = (log.text().len(), Instant::now());
        match outage {
            "killed" => server.kill(),
            _ => server.freeze(),
        }
        let mut calls = JoinSet::new();
        while began.elapsed() < Duration::from_secs(4) {
            let (client, call) = (client.clone(), calls.len());
            calls.spawn(async move {
                let kind = KINDS[call % KINDS.len()];
                try_take(&client, kind, &format!("{kind}:{call}"))
                    .await
                    .map(drop)
            });
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        match outage {
            "killed" => server.restart(),
            _ => server.thaw(),
        }
        let failed = calls.join_all().await.into_iter().filter(Result::is_err);
        assert!(failed.count() > 100, "{outage}");
        eventually("it answers again", async || {
            client.lock("k").is_locked().await.is_ok()
        })
        .await;
        let text = log.text()[before..].to_owned();
        let told = |line: &&str| {
            ["INFO", "WARN", "ERROR"]
                .iter()
                .any(|level| line.contains(level))
        };
        let lines: Vec<_> = text.lines().filter(told).collect();
        let most = began.elapsed().as_secs() as usize + 3;
        assert!(lines.len() <= most, "{outage}, {}: {lines:#?}", lines.len());
    }
    waiting.abort();
    drop(guards);
    client.close().await;
}
