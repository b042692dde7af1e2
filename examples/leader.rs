//! Three processes, of which one leads. The leader is killed, and the next one steps down.
//!
//! `cargo run --example leader`

use std::env;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use redlatch::leader::LeaderWatch;
use redlatch::{Client, Error};
use redlatch_testkit::Playground;
use tokio::io::AsyncReadExt;

type Failure = Box<dyn std::error::Error + Send + Sync>;

const ELECTION: &str = "example:scheduler";
/// How long the others wait for a leader that was killed.
const LEASE: Duration = Duration::from_secs(2);

#[tokio::main]
async fn main() -> Result<(), Failure> {
    match env::args().collect::<Vec<_>>().as_slice() {
        [_, role, name, url] if role == "candidate" => candidate(name, url).await,
        _ => narrate().await,
    }
}

async fn narrate() -> Result<(), Failure> {
    let server = Playground::open();
    let client = Client::connect(server.url()).await?;
    let mut candidates = Vec::new();
    for name in ["a", "b", "c"] {
        candidates.push((name, Candidate::start(name, server.url())?));
    }
    let mut watch = client.leader(ELECTION).watch();

    let leader = next(&mut watch).await?;
    println!("{leader} leads");
    let mut first = take(&mut candidates, &leader);
    first.0.kill()?; // kill -9
    let killed = Instant::now();

    let leader = next(&mut watch).await?;
    let took = killed.elapsed();
    println!("it was killed; {took:.1?} later {leader} leads");
    assert!(took < LEASE + Duration::from_secs(1));
    let mut second = take(&mut candidates, &leader);
    drop(second.0.stdin.take()); // which tells it to go
    let told = Instant::now();

    let leader = next(&mut watch).await?;
    println!(
        "it stepped down; {:.1?} later {leader} leads",
        told.elapsed()
    );
    assert!(second.0.wait()?.success());
    drop(take(&mut candidates, &leader));
    client.close().await;
    Ok(())
}

/// Waits for the next leader, and returns what it is called.
async fn next(watch: &mut LeaderWatch) -> Result<String, Error> {
    loop {
        // In between, nobody may lead for a moment.
        if let Some(leader) = watch.changed().await? {
            return Ok(leader.identity().to_owned());
        }
    }
}

async fn candidate(name: &str, url: &str) -> Result<(), Failure> {
    let client = Client::builder()
        .url(url)
        .watchdog_lease(LEASE)
        .build()
        .await?;
    let election = client.leader(ELECTION).identity(name);
    let leading = election.lead(async |term| {
        for round in 1.. {
            // A store that checks the token refuses a leader that does not know yet that it was deposed.
            println!("  {name}: round {round} of the term {}", term.token());
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
    });
    let mut input = tokio::io::stdin();
    let mut until_closed = Vec::new();
    tokio::select! {
        led = leading => led?,
        _ = input.read_to_end(&mut until_closed) => {} // drops the body, and steps down
    }
    client.close().await;
    // tokio's standard input is read by a thread that would not end by itself.
    std::process::exit(0)
}

/// Takes the candidate of this name out.
fn take(candidates: &mut Vec<(&str, Candidate)>, leader: &str) -> Candidate {
    let at = candidates.iter().position(|(name, _)| *name == leader);
    candidates.remove(at.expect("one of the three leads")).1
}

/// A process that can lead, killed on drop.
struct Candidate(Child);

impl Candidate {
    fn start(name: &str, url: &str) -> Result<Self, Failure> {
        let child = Command::new(env::current_exe()?)
            .args(["candidate", name, url])
            .stdin(Stdio::piped())
            .spawn()?;
        Ok(Self(child))
    }
}

impl Drop for Candidate {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}
