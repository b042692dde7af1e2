//! A test that cannot run is seen, and fails where it must run.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use redlatch_testkit::skip;

#[test]
#[ignore = "a process of its own, started by the tests below"]
fn soup_is_eaten() {
    skip("spoon", "there is no spoon");
}

fn eat_soup(required: &str, list: &Path) -> Output {
    Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "soup_is_eaten", "--test-threads=2"])
        .env("REDLATCH_REQUIRE", required)
        .env("REDLATCH_SKIPPED", list)
        .output()
        .unwrap()
}

#[test]
fn skipped_test_says_so_past_the_harness_and_is_listed() {
    let dir = tempfile::tempdir().unwrap();
    let list = dir.path().join("skipped");
    for times in 1..3 {
        let output = eat_soup("fork,knife", &list);
        assert!(output.status.success());
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(said.contains("skipped: spoon: there is no spoon"), "{said}");
        let line = "spoon: there is no spoon: soup_is_eaten\n";
        assert_eq!(fs::read_to_string(&list).unwrap(), line.repeat(times));
    }
}

#[test]
fn test_fails_for_want_of_what_is_required() {
    let dir = tempfile::tempdir().unwrap();
    let list = dir.path().join("skipped");
    for required in ["spoon", "fork,spoon"] {
        assert!(!eat_soup(required, &list).status.success());
    }
    assert!(!list.exists());
}
