//! Two processes take turns on one lock; then one is killed while it holds it.
//!
//! `scripts/demo`, or `cargo run --example two_processes`

use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};
use std::{env, fs};

use redlatch::Client;
use redlatch_testkit::Playground;

type Failure = Box<dyn std::error::Error + Send + Sync>;

const TURNS: u32 = 4;
const LEASE: Duration = Duration::from_secs(2);

fn main() -> Result<(), Failure> {
    match env::args().collect::<Vec<_>>().as_slice() {
        [_, role, name, url, counter] if role == "worker" => {
            worker(name, url, &Counter(counter.into()))
        }
        [_, role, url] if role == "sleeper" => sleeper(url),
        _ => narrate(),
    }
}

fn narrate() -> Result<(), Failure> {
    let server = Playground::open();
    println!();
    println!(
        "Two processes, A and B, each acquire the lock \"till\" {TURNS} times and hold it for 0.2 s."
    );
    println!(
        "While they hold it, they add 1 to a counter with a read, a pause and a write: any overlap would lose a count."
    );
    println!();
    let counter = Counter(env::temp_dir().join(format!("redlatch-demo-{}", std::process::id())));
    let started = Instant::now();
    let (lines, told) = mpsc::channel();
    let mut workers = Vec::new();
    for name in ["A", "B"] {
        let mut worker = start(&["worker", name, server.url(), &counter.0.to_string_lossy()])?;
        relay(&mut worker, &lines);
        workers.push(worker);
    }
    drop(lines);
    let mut turns = 0;
    for line in told {
        println!("{:6.3} s  {line}", started.elapsed().as_secs_f64());
        turns += u32::from(line.contains("counts"));
    }
    for mut worker in workers {
        worker.wait()?;
    }
    println!();
    println!(
        "{turns} turns, and the counter stands at {}.",
        counter.read()?
    );
    assert_eq!(counter.read()?, turns);
    fs::remove_file(&counter.0)?;

    println!();
    println!(
        "Now a third process acquires the lock, with a lease of {LEASE:?}, and is killed with kill -9."
    );
    let (lines, told) = mpsc::channel();
    let mut sleeper = start(&["sleeper", server.url()])?;
    relay(&mut sleeper, &lines);
    println!("  {}", told.recv()?);
    sleeper.kill()?;
    sleeper.wait()?;
    let killed = Instant::now();
    let runtime = tokio::runtime::Runtime::new()?;
    runtime.block_on(async {
        let client = Client::connect(server.url()).await?;
        let guard = client.lock("till").lock().await?;
        println!(
            "  the lock was free again {:.1?} after the kill, although nobody released it.",
            killed.elapsed()
        );
        guard.unlock().await?;
        client.close().await;
        Ok(())
    })
}

fn worker(name: &str, url: &str, counter: &Counter) -> Result<(), Failure> {
    tokio::runtime::Runtime::new()?.block_on(async {
        let client = Client::connect(url).await?;
        let lock = client.lock("till");
        for turn in 1..=TURNS {
            let asked = Instant::now();
            let guard = lock.lock().await?;
            let waited = asked.elapsed();
            say(&format!(
                "{name} has the lock, turn {turn}, after waiting {waited:.1?}"
            ))?;
            let before = counter.read()?;
            tokio::time::sleep(Duration::from_millis(200)).await;
            counter.write(before + 1)?;
            say(&format!("{name} counts {} and unlocks", before + 1))?;
            guard.unlock().await?;
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        client.close().await;
        Ok(())
    })
}

fn sleeper(url: &str) -> Result<(), Failure> {
    tokio::runtime::Runtime::new()?.block_on(async {
        let client = Client::builder()
            .url(url)
            .watchdog_lease(LEASE)
            .build()
            .await?;
        let guard = client.lock("till").lock().await?;
        say("it holds the lock, and its watchdog would renew the lease indefinitely")?;
        guard.lost().await;
        Ok(())
    })
}

fn start(args: &[&str]) -> Result<Child, Failure> {
    Ok(Command::new(env::current_exe()?)
        .args(args)
        .stdout(Stdio::piped())
        .spawn()?)
}

/// Forwards the output of a process, line by line.
fn relay(process: &mut Child, lines: &mpsc::Sender<String>) {
    let Some(output) = process.stdout.take() else {
        return;
    };
    let lines = lines.clone();
    std::thread::spawn(move || {
        for line in BufReader::new(output).lines().map_while(Result::ok) {
            if lines.send(line).is_err() {
                return;
            }
        }
    });
}

fn say(line: &str) -> Result<(), Failure> {
    let mut output = std::io::stdout();
    writeln!(output, "{line}")?;
    Ok(output.flush()?)
}

/// The number that the lock protects: in a file, read and written in two steps.
struct Counter(PathBuf);

impl Counter {
    fn read(&self) -> Result<u32, Failure> {
        match fs::read_to_string(&self.0) {
            Ok(text) => Ok(text.parse()?),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(0),
            Err(error) => Err(error.into()),
        }
    }

    fn write(&self, value: u32) -> Result<(), Failure> {
        Ok(fs::write(&self.0, value.to_string())?)
    }
}
