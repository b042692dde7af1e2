//! Runs the library as it is on simulated links, clocks, servers and processes, all from one number, and judges what
//! happened. See `scripts/simulate`.
//!
//! Each run is a process of its own: what a process has only once, such as counters, is the same in each of them.

mod chance;
mod fleet;
mod judge;
mod locks;
mod machine;
mod network;
mod plan;
mod program;
mod server;
mod world;

use std::process::ExitCode;

const USAGE: &str = "usage: simulation SECONDS | --seed N | --twice COUNT | --run N";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let number = |text: &str| text.parse::<u64>().ok();
    match args[..] {
        ["--run", seed] if let Some(seed) = number(seed) => run(seed, false),
        ["--seed", seed] if let Some(seed) = number(seed) => run(seed, true),
        ["--twice", count] if let Some(count) = number(count) => fleet::twice(count),
        [seconds] if let Some(seconds) = number(seconds) => fleet::explore(seconds),
        _ => {
            eprintln!("{USAGE}");
            ExitCode::from(2)
        }
    }
}

/// Runs one seed in this process, and prints what came of it.
fn run(seed: u64, tells: bool) -> ExitCode {
    chance::repeat(seed);
    let plan = plan::Plan::of(seed);
    if tells {
        println!("{plan:#?}");
    }
    let outcome = world::live(plan, tells);
    print!("{}", fleet::Report::of(seed, &outcome));
    match outcome.figures.violations.is_empty() {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}
