//! Runs the unchanged library on simulated links, clocks, servers and processes, all derived from one number, and
//! judges what happened. See `scripts/simulate`.
//!
//! Each run is a separate process, so that global state such as counters starts the same.

mod care;
mod chance;
mod cluster;
mod fleet;
mod front;
mod judge;
mod locks;
mod machine;
mod network;
mod plan;
mod program;
mod reports;
mod sentinels;
mod server;
mod shrink;
mod world;

use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// How much processor time one run may take: many times more than any needs.
const LIMIT: Duration = Duration::from_secs(60);

const USAGE: &str =
    "usage: simulation SECONDS | --seed N [CUT..] | --twice COUNT | --shrink N | --find SECONDS";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let number = |text: &str| text.parse::<u64>().ok();
    match args[..] {
        ["--run", seed, ref cuts @ ..] if let Some(seed) = number(seed) => run(seed, cuts, false),
        ["--seed", seed, ref cuts @ ..] if let Some(seed) = number(seed) => run(seed, cuts, true),
        ["--twice", count] if let Some(count) = number(count) => fleet::twice(count),
        ["--shrink", seed] if let Some(seed) = number(seed) => shrink::shrink(seed),
        ["--find", seconds] if let Some(seconds) = number(seconds) => fleet::find(seconds),
        [seconds] if let Some(seconds) = number(seconds) => fleet::explore(seconds),
        _ => {
            eprintln!("{USAGE}");
            ExitCode::from(2)
        }
    }
}

/// Runs one seed in this process, and prints the result.
fn run(seed: u64, cuts: &[&str], tells: bool) -> ExitCode {
    // A run that does not finish is a violation too.
    thread::spawn(|| {
        while clock_gettime(ClockId::ProcessCPUTime).tv_sec < LIMIT.as_secs() as i64 {
            thread::sleep(Duration::from_millis(500));
        }
        println!("runs 1\nviolation no end after {LIMIT:?}");
        std::process::exit(1);
    });
    chance::repeat(seed);
    let cuts: Vec<_> = cuts.iter().filter_map(|cut| plan::Cut::read(cut)).collect();
    let plan = plan::Plan::of(seed).without(&cuts);
    if tells {
        println!("{}", plan.described());
    }
    tracing::subscriber::set_global_default(reports::Reports).expect("no other");
    let outcome = world::live(plan, tells);
    print!("{}", fleet::Report::of(seed, &outcome));
    match outcome.figures.violations.is_empty() {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}
