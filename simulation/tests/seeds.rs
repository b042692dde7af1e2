//! Runs of the simulation: nothing that is promised is broken in them, and each goes the same way again.

use std::process::Command;

/// Runs a seed. Returns what was printed, less the time that it took.
fn run(seed: u64) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_redlatch-simulation"));
    let output = command.args(["--run", &seed.to_string()]).output();
    let output = output.expect("the program runs");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("hash "), "seed {seed}: {said}{errors}");
    let lines = said.lines().filter(|line| !line.starts_with("cpu "));
    lines.map(|line| format!("{line}\n")).collect()
}

fn kept() -> impl Iterator<Item = u64> {
    let lines = include_str!("../seeds").lines();
    let lines = lines.filter(|line| !line.starts_with('#'));
    lines.map(|line| line.parse().expect("a seed"))
}

#[test]
fn kept_seeds_break_no_promise() {
    for seed in kept() {
        let said = run(seed);
        assert!(!said.contains("\nviolation "), "{said}");
    }
}

#[test]
fn same_seed_goes_the_same_way() {
    for seed in [2, 3, 7] {
        assert_eq!(run(seed), run(seed));
    }
    assert_ne!(run(2), run(3));
}
