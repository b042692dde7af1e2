//! The cost of taking turns: each shape next to its floor, in the same run, and this crate next to other locks.
//!
//! `scripts/bench` runs all shapes. By hand:
//! `cargo bench --features metrics --bench locks -- [--quick] [--json FILE] [--report] [SHAPE..]`.
//! A figure that misses its target is shown as such, and does not fail the run.

mod alternation;
mod carrier;
mod clock;
mod crowd;
mod detour;
mod effort;
mod fair;
mod floor;
mod machine;
mod markdown;
mod memory;
mod metrics;
mod names;
mod outage;
mod peers;
mod pipe;
mod plot;
mod processes;
mod read_write;
mod red;
mod renewal;
mod report;
mod road;
mod section;
mod server_time;
mod sizing;
mod stats;
mod tasks;
mod uncontended;
mod waiters;
mod waits;
mod wakeup;
mod worker;

use std::process::ExitCode;
use std::time::{Duration, Instant};
use std::{env, fs};

use tokio::runtime::Runtime;
use tokio::time::timeout;

use crate::effort::Effort;
use crate::machine::Machine;
use crate::report::Chapter;

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// The longest that a shape may take, whatever happens.
const SHAPE_LIMIT: Duration = Duration::from_secs(300);
/// How long the tasks that a shape leaves behind may take to end.
const SHUTDOWN: Duration = Duration::from_secs(1);

const SHAPES: [&str; 23] = [
    "peers",
    "uncontended",
    "kinds",
    "reentry",
    "multi",
    "metrics",
    "names",
    "tasks",
    "tasks_1ms",
    "fair",
    "waiters",
    "read_write",
    "read_write_1ms",
    "processes",
    "herds",
    "wakeup",
    "server_time",
    "renewal",
    "renewal_100k",
    "redlock",
    "redlock_1ms",
    "outage",
    "sizing",
];

fn main() -> ExitCode {
    let args: Vec<String> = env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let ended = match args.as_slice() {
        [worker::ROLE, rest @ ..] => work(rest).map(|()| true),
        _ => Plan::read(&args).and_then(|plan| plan.carry_out()),
    };
    match ended {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("locks: {error}");
            ExitCode::FAILURE
        }
    }
}

/// What one run should do.
struct Plan<'a> {
    effort: Effort,
    shapes: Vec<&'a str>,
    json: Option<&'a str>,
    report: bool,
}

impl<'a> Plan<'a> {
    fn read(args: &[&'a str]) -> Result<Self, Failure> {
        let mut plan = Self {
            effort: effort::FULL,
            shapes: Vec::new(),
            json: None,
            report: false,
        };
        let mut args = args.iter().copied();
        while let Some(arg) = args.next() {
            match arg {
                // From cargo.
                "--bench" => {}
                "--quick" => plan.effort = effort::QUICK,
                "--trial" => plan.effort = effort::TRIAL,
                "--json" => plan.json = Some(args.next().ok_or("--json wants a file")?),
                "--report" => plan.report = true,
                shape if SHAPES.contains(&shape) => plan.shapes.push(shape),
                other => return Err(format!("{other:?} is none of the shapes {SHAPES:?}").into()),
            }
        }
        if plan.shapes.is_empty() {
            plan.shapes.extend(SHAPES);
        }
        Ok(plan)
    }

    /// Runs the shapes. Returns `false` if one of them could not be measured; the others are reported anyway.
    fn carry_out(&self) -> Result<bool, Failure> {
        if cfg!(debug_assertions) {
            println!("locks: built without optimisation, nothing is measured; take scripts/bench");
            return Ok(true);
        }
        let machine = Machine::here();
        let mut chapters = Vec::new();
        for shape in &self.shapes {
            let started = Instant::now();
            let measured = measure(shape, &self.effort);
            let took = started.elapsed();
            match measured {
                Ok(chapter) => {
                    eprintln!("locks: {shape}, in {took:.1?}");
                    chapters.push(chapter);
                }
                Err(error) => eprintln!("locks: {shape} failed after {took:.1?}: {error}"),
            }
        }
        println!("\n{}", report::table(&chapters, &machine));
        if let Some(file) = self.json {
            fs::write(file, report::json(&chapters, &machine))?;
        }
        if self.report {
            markdown::write(&chapters, &machine)?;
        }
        Ok(chapters.len() == self.shapes.len())
    }
}

fn measure(shape: &str, effort: &Effort) -> Result<Chapter, Failure> {
    let runtime = Runtime::new()?;
    let chapter = async {
        match shape {
            "peers" => peers::run(effort).await,
            "uncontended" => uncontended::run(effort).await,
            "kinds" => uncontended::kinds(effort).await,
            "reentry" => uncontended::reentry(effort).await,
            "multi" => uncontended::multi(effort).await,
            "metrics" => metrics::run(effort).await,
            "names" => names::run(effort).await,
            "tasks" => tasks::loopback(effort).await,
            "tasks_1ms" => tasks::one_millisecond(effort).await,
            "fair" => fair::run(effort).await,
            "waiters" => waiters::run(effort).await,
            "read_write" => read_write::run(effort).await,
            "read_write_1ms" => read_write::one_millisecond(effort).await,
            "processes" => processes::run(effort).await,
            "herds" => processes::herds(effort).await,
            "wakeup" => wakeup::run(effort).await,
            "server_time" => server_time::run(effort).await,
            "renewal" => renewal::run(effort).await,
            "renewal_100k" => renewal::hundred_thousand(effort).await,
            "redlock" => red::loopback(effort).await,
            "redlock_1ms" => red::one_millisecond(effort).await,
            "outage" => outage::run(effort).await,
            "sizing" => sizing::run(effort).await,
            _ => Err("no such shape".into()),
        }
    };
    let measured = runtime.block_on(async { timeout(SHAPE_LIMIT, chapter).await });
    runtime.shutdown_timeout(SHUTDOWN);
    measured?
}

/// Does the work of this process as a worker of another.
fn work(args: &[&str]) -> Result<(), Failure> {
    let args: Vec<String> = args.iter().map(|&arg| arg.to_owned()).collect();
    let work = async move {
        match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
            [processes::ROLE, url, tasks, nanos] => {
                let work = Duration::from_nanos(nanos.parse()?);
                processes::work(url, tasks.parse()?, work).await
            }
            [peers::ROLE, whose, url] => peers::work(whose, url).await,
            [detour::ROLE, ref ports @ ..] => detour::work(ports).await,
            [wakeup::ROLE, url] => wakeup::work(url).await,
            [outage::ROLE, url] => outage::work(url).await,
            [waiters::ROLE, url, kind] => waiters::work(url, kind).await,
            [sizing::ROLE, url, lease] => sizing::work(url, lease).await,
            _ => Err("no such role".into()),
        }
    };
    let runtime = Runtime::new()?;
    // In a task, as in an application: the thread of `block_on` is woken by another thread each time.
    let ended = runtime.block_on(async { tokio::spawn(work).await });
    runtime.shutdown_timeout(SHUTDOWN);
    ended?
}
