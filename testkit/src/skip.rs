use std::env;
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::thread;

/// Reports that the test of this thread cannot run because a `component` is missing, and why.
///
/// The report bypasses the test harness, which captures what a passing test prints and counts the test as passed. One
/// line goes to stderr, and one to the file that `REDLATCH_SKIPPED` names, which `scripts/test` lists at its end.
///
/// # Panics
/// Panics if the component is one of those that `REDLATCH_REQUIRE` names, separated by commas.
pub fn skip(component: &str, reason: &str) {
    let required = env::var("REDLATCH_REQUIRE").unwrap_or_default();
    assert!(
        required.split(',').all(|name| name != component),
        "{reason}, and REDLATCH_REQUIRE is {required}"
    );
    let test = thread::current();
    let test = test.name().unwrap_or("a test");
    let line = format!("{component}: {reason}: {test}\n");
    // Whole lines, since other tests write too.
    io::stderr()
        .write_all(format!("skipped: {line}").as_bytes())
        .ok();
    if let Some(list) = env::var_os("REDLATCH_SKIPPED") {
        OpenOptions::new()
            .append(true)
            .create(true)
            .open(list)
            .and_then(|mut list| list.write_all(line.as_bytes()))
            .expect("REDLATCH_SKIPPED names a file to write to");
    }
}
