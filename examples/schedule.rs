//! Three processes with a timer each start a job at about the same time. It runs on one of them, also after one was
//! killed in the middle of it.
//!
//! `cargo run --example schedule`

use std::env;
use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use redlatch::{Client, Error};
use redlatch_testkit::Playground;
use tokio::time::sleep;

type Failure = Box<dyn std::error::Error + Send + Sync>;

const JOB: &str = "example:report";
const PERIOD: Duration = Duration::from_secs(3);
/// Longer than the timers are apart, and shorter than the period.
const WITHIN: Duration = Duration::from_secs(2);
/// How long the job of a process that was killed waits for another one.
const LEASE: Duration = Duration::from_secs(1);
/// How far the timers are apart.
const APART: Duration = Duration::from_millis(150);

fn main() -> Result<(), Failure> {
    match env::args().collect::<Vec<_>>().as_slice() {
        [_, role, took, url] if role == "worker" => {
            tokio::runtime::Runtime::new()?.block_on(worker(took.parse()?, url))
        }
        _ => narrate(),
    }
}

fn narrate() -> Result<(), Failure> {
    let server = Playground::open();
    println!("three processes start a job of 20 ms, {APART:?} apart:");
    assert_eq!(round(server.url(), 20)?, 1);

    println!("in the next period again:");
    std::thread::sleep(PERIOD);
    assert_eq!(round(server.url(), 20)?, 1);

    println!("in the next one, the first process is killed in the middle of the job:");
    std::thread::sleep(PERIOD);
    let (mut victim, mut lines) = start(server.url(), 60_000)?;
    println!("  process {}: {}", victim.id(), line(&mut lines)?);
    victim.kill()?;
    victim.wait()?;
    let at_once = round(server.url(), 20)?;
    println!("and when its lease has ended:");
    std::thread::sleep(LEASE);
    assert_eq!(at_once + round(server.url(), 20)?, 1);
    Ok(())
}

/// Has three processes start the job, and returns how many of them ran it.
fn round(url: &str, took: u64) -> Result<u32, Failure> {
    let mut workers = Vec::new();
    for _ in 0..3 {
        workers.push(start(url, took)?);
        std::thread::sleep(APART);
    }
    let mut runs = 0;
    for (mut worker, mut lines) in workers {
        let mut said = line(&mut lines)?;
        if said == "begins" {
            said = line(&mut lines)?;
        }
        println!("  process {}: {said}", worker.id());
        runs += u32::from(said.starts_with("ran"));
        worker.wait()?;
    }
    Ok(runs)
}

async fn worker(took: u64, url: &str) -> Result<(), Failure> {
    let client = Client::builder()
        .url(url)
        .watchdog_lease(LEASE)
        .build()
        .await?;
    let report = client.job(JOB, WITHIN);
    let ran = report.execute(async |run| {
        println!("begins");
        sleep(Duration::from_millis(took)).await;
        // The store that the report goes to can refuse the token of a run that was paused.
        Ok::<_, Error>(run.token())
    });
    match ran.await? {
        Some(token) => println!("ran it, with the token {token}"),
        None => println!("another process has it"),
    }
    client.close().await;
    Ok(())
}

fn start(url: &str, took: u64) -> Result<(Child, BufReader<ChildStdout>), Failure> {
    let mut worker = Command::new(env::current_exe()?)
        .args(["worker", &took.to_string(), url])
        .stdout(Stdio::piped())
        .spawn()?;
    let output = worker.stdout.take().expect("a pipe");
    Ok((worker, BufReader::new(output)))
}

fn line(lines: &mut BufReader<ChildStdout>) -> Result<String, Failure> {
    let mut line = String::new();
    lines.read_line(&mut line)?;
    Ok(line.trim_end().to_owned())
}
