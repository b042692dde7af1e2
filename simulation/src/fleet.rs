//! Runs many seeds, each in a process of its own, on all processors.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io;
use std::process::{Command, ExitCode};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

use crate::plan::{Cut, corner_of};
use crate::world::Outcome;

/// The results of one run or many.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Report {
    seed: u64,
    hash: u64,
    runs: u64,
    calls: u64,
    grants: u64,
    /// Milliseconds that were simulated.
    simulated: u64,
    /// Milliseconds of processor time.
    cpu: u64,
    permitted: u64,
    /// Calls by the arrangement of servers.
    topologies: BTreeMap<String, u64>,
    faults: BTreeMap<String, u64>,
    violations: Vec<String>,
}

impl Report {
    pub fn of(seed: u64, outcome: &Outcome) -> Self {
        let cpu = clock_gettime(ClockId::ProcessCPUTime);
        let figures = &outcome.figures;
        let faults = figures.faults.iter();
        Self {
            seed,
            hash: outcome.hash,
            runs: 1,
            calls: figures.calls,
            grants: figures.grants,
            simulated: outcome.simulated,
            cpu: cpu.tv_sec as u64 * 1_000 + cpu.tv_nsec as u64 / 1_000_000,
            permitted: figures.permitted,
            topologies: [(format!("{:?}", outcome.topology), figures.calls)].into(),
            faults: faults
                .map(|(kind, count)| ((*kind).to_owned(), *count))
                .collect(),
            violations: figures.violations.clone(),
        }
    }

    /// Parses the output of another process.
    fn read(text: &str) -> Self {
        let mut report = Self::default();
        for line in text.lines() {
            let Some((name, value)) = line.split_once(' ') else {
                continue;
            };
            let number = value.parse().unwrap_or_default();
            match name {
                "seed" => report.seed = number,
                "hash" => report.hash = number,
                "runs" => report.runs = number,
                "calls" => report.calls = number,
                "grants" => report.grants = number,
                "simulated" => report.simulated = number,
                "cpu" => report.cpu = number,
                "permitted" => report.permitted = number,
                "violation" => report.violations.push(value.to_owned()),
                kind => {
                    if let Some(kind) = kind.strip_prefix("fault:") {
                        report.faults.insert(kind.to_owned(), number);
                    } else if let Some(topology) = kind.strip_prefix("topology:") {
                        report.topologies.insert(topology.to_owned(), number);
                    }
                }
            }
        }
        report
    }

    pub fn violations(&self) -> &[String] {
        &self.violations
    }

    fn add(&mut self, other: &Self) {
        self.runs += other.runs;
        self.calls += other.calls;
        self.grants += other.grants;
        self.simulated += other.simulated;
        self.cpu += other.cpu;
        self.permitted += other.permitted;
        sum(&mut self.topologies, &other.topologies);
        sum(&mut self.faults, &other.faults);
        let seed = other.seed;
        let told = other
            .violations
            .iter()
            .map(|what| format!("seed {seed}: {what}"));
        self.violations.extend(told);
    }
}

fn sum(into: &mut BTreeMap<String, u64>, other: &BTreeMap<String, u64>) {
    for (kind, count) in other {
        *into.entry(kind.clone()).or_default() += count;
    }
}

fn listed(counts: &BTreeMap<String, u64>) -> String {
    let counts = counts.iter().map(|(kind, count)| format!("{kind} {count}"));
    counts.collect::<Vec<_>>().join(", ")
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, value) in [
            ("seed", self.seed),
            ("hash", self.hash),
            ("runs", self.runs),
            ("calls", self.calls),
            ("grants", self.grants),
            ("simulated", self.simulated),
            ("cpu", self.cpu),
            ("permitted", self.permitted),
        ] {
            writeln!(f, "{name} {value}")?;
        }
        for (topology, calls) in &self.topologies {
            writeln!(f, "topology:{topology} {calls}")?;
        }
        for (kind, count) in &self.faults {
            writeln!(f, "fault:{kind} {count}")?;
        }
        for what in &self.violations {
            writeln!(f, "violation {}", what.replace('\n', " "))?;
        }
        Ok(())
    }
}

/// Runs a seed in a process of its own, without some of its plan.
pub fn run(seed: u64, cuts: &[Cut]) -> io::Result<Report> {
    let program = std::env::current_exe()?;
    let output = Command::new(program)
        .args(["--run", &seed.to_string()])
        .args(cuts.iter().map(Cut::to_string))
        .output()?;
    let mut report = Report::read(&String::from_utf8_lossy(&output.stdout));
    report.seed = seed;
    if report.runs == 0 {
        let said = String::from_utf8_lossy(&output.stderr);
        let lines: Vec<_> = said.lines().take(3).collect();
        report
            .violations
            .push(format!("{}: {}", output.status, lines.join(" ")));
    }
    Ok(report)
}

/// Runs seeds as long as `next` gives some, and passes each report to `done`.
fn run_all(next: impl Fn() -> Option<u64> + Sync, done: impl Fn(u64, Report) + Sync) {
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let cores = std::env::var("REDLATCH_WORKERS")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(cores);
    thread::scope(|scope| {
        for _ in 0..cores {
            scope.spawn(|| {
                while let Some(seed) = next() {
                    match run(seed, &[]) {
                        Ok(report) => done(seed, report),
                        Err(error) => eprintln!("seed {seed}: {error}"),
                    }
                }
            });
        }
    });
}

/// Runs fresh seeds for `seconds` seconds.
pub fn explore(seconds: u64) -> ExitCode {
    let first = match std::env::var("REDLATCH_SEED")
        .ok()
        .and_then(|text| text.parse().ok())
    {
        Some(first) => first,
        None => fastrand::u64(1..1 << 40),
    };
    println!("seeds from {first} on");
    let (started, span) = (Instant::now(), Duration::from_secs(seconds));
    let seeds = AtomicU64::new(first);
    let total = Mutex::new(Report::default());
    let next = || (started.elapsed() < span).then(|| seeds.fetch_add(1, Ordering::Relaxed));
    run_all(next, |seed, report| {
        for what in &report.violations {
            println!("seed {seed}: {what}");
        }
        let mut total = total.lock().unwrap_or_else(PoisonError::into_inner);
        total.add(&report);
    });
    let total = total.into_inner().unwrap_or_else(PoisonError::into_inner);
    let Report {
        runs,
        calls,
        grants,
        cpu,
        simulated,
        permitted,
        ..
    } = total;
    let per_second = calls * 1_000 / cpu.max(1);
    println!(
        "{runs} runs, {calls} calls ({per_second} a second of one core), {grants} grants, {permitted} overlaps that lost data and clocks permit"
    );
    println!(
        "{:.1} hours simulated, {:.1} s of processors",
        simulated as f64 / 3.6e6,
        cpu as f64 / 1e3
    );
    println!("calls: {}", listed(&total.topologies));
    println!("faults: {}", listed(&total.faults));
    println!("{} violations", total.violations.len());
    match total.violations.is_empty() {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}

/// Runs the first `count` seeds twice, and compares the results.
pub fn twice(count: u64) -> ExitCode {
    let seeds = AtomicU64::new(0);
    let differ = AtomicU64::new(0);
    let next = || {
        let seed = seeds.fetch_add(1, Ordering::Relaxed);
        (seed < count).then_some(seed)
    };
    run_all(next, |seed, report| {
        if !run(seed, &[]).is_ok_and(|again| again.hash == report.hash) {
            println!("seed {seed} is not the same twice");
            differ.fetch_add(1, Ordering::Relaxed);
        }
    });
    let differ = differ.into_inner();
    println!("{count} seeds ran twice, {differ} differ");
    match differ {
        0 => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    }
}

/// Runs seeds one after the other until one breaks a promise, for at most `seconds` seconds of processor time. Those
/// with a corner have two thirds of it, and each corner comes as often as any.
pub fn find(seconds: u64) -> ExitCode {
    let with = |corner| (0..).filter(move |seed| corner_of(*seed) == corner);
    let corners: BTreeSet<_> = (0..10_000).filter_map(corner_of).collect();
    let mut corners: Vec<_> = corners.into_iter().map(|one| with(Some(one))).collect();
    let in_turn = (0..corners.len()).cycle();
    let mut in_corners = in_turn.filter_map(|turn| corners[turn].next());
    let mut others = with(None);
    // The processor time of those with a corner, and of all.
    let (mut of_corners, mut cpu) = (0, 0);
    loop {
        let is_in_corner = of_corners * 3 <= cpu * 2;
        let seed = match is_in_corner {
            true => in_corners.next(),
            false => others.next(),
        };
        let Some(seed) = seed else {
            break;
        };
        let report = run(seed, &[]).unwrap_or_default();
        // A run that did not finish does not report its time.
        let took = report.cpu.max(10);
        cpu += took;
        of_corners += if is_in_corner { took } else { 0 };
        if let Some(what) = report.violations.first() {
            println!("{:.1} s\tseed {seed}\t{what}", cpu as f64 / 1e3);
            return ExitCode::FAILURE;
        }
        if cpu > seconds * 1_000 {
            break;
        }
    }
    println!("nothing in {seconds} s");
    ExitCode::SUCCESS
}
