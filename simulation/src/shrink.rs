//! Shrinks a run that breaks a promise: leaves out faults, processes, tasks and steps, as long as it still breaks that.

use std::process::ExitCode;

use crate::fleet::run;
use crate::plan::{Cut, Plan};

/// The most smaller runs to try.
const TRIES: u32 = 600;

struct Search {
    seed: u64,
    /// The violation, without its numbers.
    broken: String,
    cuts: Vec<Cut>,
    tries: u32,
}

/// Shrinks the run of a seed, and prints how to repeat what is left of it.
pub fn shrink(seed: u64) -> ExitCode {
    let broken = match run(seed, &[]) {
        Ok(report) => report.violations().first().map(|what| kind(what)),
        Err(error) => Some(error.to_string()),
    };
    let Some(broken) = broken else {
        println!("seed {seed} breaks no promise");
        return ExitCode::FAILURE;
    };
    let mut search = Search {
        seed,
        broken,
        cuts: Vec::new(),
        tries: 0,
    };
    search.search(&Plan::of(seed));
    let cuts: Vec<_> = search.cuts.iter().map(Cut::to_string).collect();
    let left = Plan::of(seed).without(&search.cuts);
    let steps = left.processes.iter().flat_map(|process| &process.tasks);
    let (steps, faults) = (steps.map(Vec::len).sum::<usize>(), left.events.len());
    println!(
        "{steps} steps and {faults} faults are left after {} runs:",
        search.tries
    );
    println!("scripts/simulate --seed {seed} {}", cuts.join(" "));
    ExitCode::SUCCESS
}

impl Search {
    /// Leaves a part out for good if the run still breaks the promise without it.
    fn tries(&mut self, cut: Cut) -> bool {
        if self.tries >= TRIES {
            return false;
        }
        self.tries += 1;
        self.cuts.push(cut);
        let report = run(self.seed, &self.cuts);
        let is_broken = report.is_ok_and(|report| {
            let mut all = report.violations().iter();
            all.any(|what| kind(what) == self.broken)
        });
        if !is_broken {
            self.cuts.pop();
        }
        is_broken
    }

    fn search(&mut self, plan: &Plan) {
        for event in 0..plan.events.len() {
            self.tries(Cut::Event(event));
        }
        for (number, process) in plan.processes.iter().enumerate() {
            if self.tries(Cut::Process(number)) {
                continue;
            }
            for (task, steps) in process.tasks.iter().enumerate() {
                if !self.tries(Cut::Steps(number, task, 0, steps.len())) {
                    self.halve(number, task, 0, steps.len());
                }
            }
        }
    }

    /// Leaves out as many steps of a task as possible, by halves.
    fn halve(&mut self, process: usize, task: usize, from: usize, to: usize) {
        if to - from < 2 {
            return;
        }
        let middle = from.midpoint(to);
        for (from, to) in [(middle, to), (from, middle)] {
            if !self.tries(Cut::Steps(process, task, from, to)) {
                self.halve(process, task, from, to);
            }
        }
    }
}

/// Returns a violation without the parts that differ between runs.
fn kind(what: &str) -> String {
    let words = what.split_whitespace();
    let words = words.filter(|word| !word.contains(|letter: char| letter.is_ascii_digit()));
    words.take(6).collect::<Vec<_>>().join(" ")
}
