//! What an operator sees: the events of a lock's life, and no secret in any of them.
#![allow(
    clippy::expect_used,
    clippy::unwrap_used,
    reason = "a test fails by panicking"
)]

mod support;

use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use redlatch::{Client, Owner};
use redlatch_testkit::Server;
use support::{builder, eventually};
use tracing_subscriber::fmt::MakeWriter;

const PASSWORD: &str = "s3cret";

/// Everything that was reported, as text.
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

/// One test, since the subscriber is the process's.
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
