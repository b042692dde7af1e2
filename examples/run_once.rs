//! Several processes are told to run one job, and only one of them runs it.
//!
//! `cargo run --example run_once`

use std::env;
use std::process::{Command, Stdio};
use std::time::Duration;

use redlatch::Client;
use redlatch_testkit::Playground;

type Failure = Box<dyn std::error::Error + Send + Sync>;

const PROCESSES: u32 = 5;
/// The name contains the day, so that each day's run has a lock of its own.
const JOB: &str = "job:invoices:2026-11-21";
/// Longer than the processes start apart, so that a late process finds the lock held, although the run may be over.
const TAKEN_FOR: Duration = Duration::from_secs(60);

fn main() -> Result<(), Failure> {
    match env::args().collect::<Vec<_>>().as_slice() {
        [_, role, url] if role == "worker" => worker(url),
        _ => start(),
    }
}

fn start() -> Result<(), Failure> {
    let server = Playground::open();
    let mut workers = Vec::new();
    for _ in 0..PROCESSES {
        let worker = Command::new(env::current_exe()?)
            .args(["worker", server.url()])
            .stdout(Stdio::piped())
            .spawn()?;
        workers.push(worker);
        std::thread::sleep(Duration::from_millis(50));
    }
    let mut runs = 0;
    for worker in workers {
        let process = worker.id();
        let output = worker.wait_with_output()?;
        let said = String::from_utf8(output.stdout)?;
        println!("process {process}: {}", said.trim());
        runs += u32::from(said.contains("ran"));
    }
    println!("{PROCESSES} processes, {runs} run");
    assert_eq!(runs, 1);
    Ok(())
}

#[tokio::main]
async fn worker(url: &str) -> Result<(), Failure> {
    let client = Client::connect(url).await?;
    match client.lock(JOB).lease(TAKEN_FOR).try_lock().await? {
        Some(guard) => {
            guard
                .run_until_lost(tokio::time::sleep(Duration::from_millis(20)))
                .await?;
            println!("ran the job");
            // Not unlocked: the lock stays held until its lease ends.
            drop(guard.detach());
        }
        None => println!("another process has the job"),
    }
    client.close().await;
    Ok(())
}
