//! The plain lock and redis-py's `Lock` take turns: the real `Lock`, in a Python process.

use std::path::Path;
use std::process::Stdio;

use crate::support::probe::{kind, millis, nothing_left, secs, soon};
use crate::support::{client, eventually};
use redlatch::config::ReleaseBy;
use redlatch::{ErrorKind, PlainLock};
use redlatch_testkit::{Server, skip};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

const NAME: &str = "job";
const VERSION: &str = "redis==5.2.1";
const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/target/redis-py");
const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/interop/redis_py.py");

/// A Python process with a lock.
struct Python {
    _process: Child,
    orders: ChildStdin,
    answers: Lines<BufReader<ChildStdout>>,
}

impl Python {
    /// Starts the process. Returns `None` if there is no Python, or no way to fetch redis-py.
    async fn start(server: &Server) -> Option<Self> {
        if !Path::new(FOLDER).join("redis").exists() {
            let fetched = Command::new("python3")
                .args([
                    "-m", "pip", "install", "--quiet", "--target", FOLDER, VERSION,
                ])
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .status()
                .await;
            if !fetched.is_ok_and(|status| status.success()) {
                let reason = format!("{VERSION} is missing, and python3 cannot fetch it by pip");
                skip("python", &reason);
                return None;
            }
        }
        let mut process = Command::new("python3")
            .args([SCRIPT, &server.port().to_string(), NAME])
            .env("PYTHONPATH", FOLDER)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .expect("Python runs");
        Some(Self {
            orders: process.stdin.take().expect("a pipe"),
            answers: BufReader::new(process.stdout.take().expect("a pipe")).lines(),
            _process: process,
        })
    }

    async fn order(&mut self, order: &str) {
        let line = format!("{order}\n");
        self.orders
            .write_all(line.as_bytes())
            .await
            .expect("it listens");
    }

    async fn answer(&mut self) -> String {
        let line = tokio::time::timeout(secs(30), self.answers.next_line());
        let line = line.await.expect("an answer in time");
        line.expect("a pipe").expect("it runs")
    }

    async fn does(&mut self, order: &str) -> String {
        self.order(order).await;
        self.answer().await
    }
}

async fn locks(server: &Server) -> (redlatch::Client, [PlainLock; 2]) {
    let client = client(server).await;
    let lock = client.plain_lock(NAME);
    let locks = [ReleaseBy::Script, ReleaseBy::Transaction].map(|by| lock.clone().release_by(by));
    (client, locks)
}

#[tokio::test]
async fn each_finds_the_others_lock_busy_and_gets_in_after_it() {
    let server = Server::start();
    let Some(mut python) = Python::start(&server).await else {
        return;
    };
    let (client, locks) = locks(&server).await;
    for lock in locks {
        assert_eq!(python.does("try").await, "held");
        assert!(lock.try_lock().await.unwrap().is_none());
        assert!(lock.try_lock_for(millis(50)).await.unwrap().is_none());
        assert_eq!(kind(lock.unlock().await), ErrorKind::NotHeld);
        let lease = lock.remaining_lease().await.unwrap().unwrap();
        assert!(lease > secs(20) && lease <= secs(30), "{lease:?}");
        assert_eq!(python.does("extend 60").await, "extended");
        let waiter = tokio::spawn({
            let lock = lock.clone();
            async move { lock.lock().await }
        });
        eventually("it waits", async || {
            format!("{client:?}").contains("waiting: 1,")
        })
        .await;
        assert_eq!(python.does("release").await, "released");

        let guard = soon(waiter).await.unwrap().unwrap();
        assert_eq!(python.does("try").await, "busy");
        guard.extend(secs(60)).await.unwrap();
        assert_ne!(python.does("release").await, "released");
        guard.verify().await.unwrap();
        python.order("wait").await;
        guard.unlock().await.unwrap();
        assert_eq!(python.answer().await, "held");

        // Its lock was released by force, so it must not delete the lock that is ours now.
        assert!(lock.force_unlock().await.unwrap());
        let guard = soon(lock.lock()).await.unwrap();
        assert_eq!(python.does("release").await, "LockNotOwnedError");
        guard.unlock().await.unwrap();
    }
    nothing_left(&server, [&client]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_never_meet_inside() {
    const SECTIONS: usize = 150;
    let server = Server::start();
    let Some(mut python) = Python::start(&server).await else {
        return;
    };
    let (client, locks) = locks(&server).await;
    python.order(&format!("count {SECTIONS}")).await;
    let mut probe = server.connection();
    for n in 0..SECTIONS {
        let guard = soon(locks[n % 2].lock()).await.unwrap();
        // Not atomic, as in the Python process.
        let sum = probe.command(&["GET", "sum"]);
        let sum = if sum.is_nil() {
            0
        } else {
            sum.text().parse::<usize>().unwrap()
        };
        probe.command(&["SET", "sum", &(sum + 1).to_string()]);
        guard.unlock().await.unwrap();
    }
    assert_eq!(python.answer().await, "counted");
    let sum = probe.command(&["GET", "sum"]).text();
    assert_eq!(sum, (2 * SECTIONS).to_string());
    probe.command(&["DEL", "sum"]);
    nothing_left(&server, [&client]).await;
}
