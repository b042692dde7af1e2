//! Wrong use, and what is printed without a server.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use redlatch_testkit::Server;
use serde_json::{Value, json};

use crate::command::redlatch;

/// An address where nobody listens: wrong use is found before anything is sent.
const NOWHERE: &str = "redis://127.0.0.1:1";

#[test]
fn wrong_use_is_one_line_and_code_2() {
    let long = "x".repeat(2_000);
    for (url, args) in [
        (NOWHERE, &[][..]),
        (NOWHERE, &["frobnicate"]),
        (NOWHERE, &["--frobnicate"]),
        (NOWHERE, &["run"]),
        (NOWHERE, &["run", "n"]),
        (NOWHERE, &["run", "n", "true"]),
        (NOWHERE, &["run", "n", "--"]),
        (NOWHERE, &["run", "n", "--wait", "5", "--", "true"]),
        (NOWHERE, &["run", "n", "--wait", "-5s", "--", "true"]),
        (NOWHERE, &["run", "n", "--wait", "", "--", "true"]),
        (
            NOWHERE,
            &["run", "n", "--wait", "99999999999999d", "--", "true"],
        ),
        (NOWHERE, &["run", "n", "--lease", "renew", "--", "true"]),
        (NOWHERE, &["run", "n", "--lease", "1ms", "--", "true"]),
        (NOWHERE, &["run", "n", "--lease", "0", "--", "true"]),
        (
            NOWHERE,
            &["run", "n", "--lease", "renewed:1ms", "--", "true"],
        ),
        (
            NOWHERE,
            &["run", "n", "--lease", "renewed:99999d", "--", "true"],
        ),
        (NOWHERE, &["run", "n", "--kind", "red", "--", "true"]),
        (NOWHERE, &["run", "n", "--on-loss", "panic", "--", "true"]),
        (NOWHERE, &["run", "n", "--grace", "soon", "--", "true"]),
        (NOWHERE, &["run", "n", "--label", "two words", "--", "true"]),
        (NOWHERE, &["run", "n", "--", ""]),
        (NOWHERE, &["run", "", "--", "true"]),
        (NOWHERE, &["__warden"]),
        (NOWHERE, &["run", &long, "--", "true"]),
        (NOWHERE, &["inspect"]),
        (NOWHERE, &["inspect", ""]),
        (NOWHERE, &["watch", "n", "--interval", "0"]),
        (NOWHERE, &["watch", "n", "--interval", "x"]),
        (NOWHERE, &["unlock", "n"]),
        (NOWHERE, &["unlock", "n", "--force"]),
        (NOWHERE, &["completions", "klingon"]),
        (NOWHERE, &["doctor", "--timeout", "1ms"]),
        (NOWHERE, &["doctor", "--timeout", "2d"]),
        ("", &["ls"]),
        ("http://example.com", &["ls"]),
        ("redis://127.0.0.1?db=3", &["ls"]),
    ] {
        let ended = redlatch(url, args).output().unwrap();
        let (out, err) = [ended.stdout, ended.stderr]
            .map(|text| String::from_utf8(text).unwrap())
            .into();
        assert_eq!(
            (ended.status.code(), &*out),
            (Some(2), ""),
            "{args:?}: {err}"
        );
        assert_eq!(err.lines().count(), 1, "{args:?}: {err}");
        assert!(
            err.starts_with("redlatch: ") && !err.contains("__warden"),
            "{err}"
        );
        let ended = redlatch(url, &[&["--json"], args].concat())
            .output()
            .unwrap();
        let failure: Value = serde_json::from_slice(&ended.stderr).unwrap();
        assert_eq!(
            (&failure["event"], &failure["code"]),
            (&json!("failed"), &json!(2))
        );
    }
}

#[test]
fn wrong_use_says_what_to_do() {
    for (args, says) in [
        (&["run", "n", "true"][..], "put the command behind `--`"),
        (
            &["run", "n", "--wait", "-1s", "--", "true"],
            "\"-1s\" is not a span of time",
        ),
        (
            &["run", "n", "--lease", "-1s", "--", "true"],
            "\"-1s\" is not a span of time",
        ),
        (&["run", "n", "--", ""], "the command behind -- is empty"),
    ] {
        let ended = redlatch(NOWHERE, args).output().unwrap();
        let err = String::from_utf8(ended.stderr).unwrap();
        assert!(
            ended.status.code() == Some(2) && err.contains(says),
            "{err}"
        );
    }
}

/// Returns the long options that the help of a command names.
fn options_of(command: &str) -> Vec<String> {
    let help = redlatch("", &[command, "--help"]).output().unwrap();
    let help = String::from_utf8(help.stdout).unwrap();
    let options = help.lines().filter_map(|line| {
        let line = line.trim_start();
        let long = line
            .find("--")
            .filter(|at| line.starts_with('-') && *at <= 4)?;
        let end = line[long..]
            .find([' ', '='])
            .map_or(line.len(), |end| long + end);
        Some(line[long..end].to_owned())
    });
    options.collect()
}

#[test]
fn every_option_refuses_a_value_that_makes_no_sense() {
    let long = "x".repeat(1_024);
    let mut seen = BTreeSet::new();
    for (command, rest) in [
        ("run", &["n", "--", "true"][..]),
        ("ls", &[]),
        ("inspect", &["n"]),
        ("watch", &["n"]),
        ("unlock", &["n", "--force", "--yes"]),
        ("doctor", &[]),
        ("completions", &["bash"]),
        ("man", &[]),
    ] {
        for option in options_of(command) {
            let bad = match &*option {
                "--url" => "http://127.0.0.1",
                "--prefix" => &long,
                "--timeout" | "--wait" | "--lease" | "--grace" | "--interval" => "5 minutes",
                "--kind" => "red",
                "--on-loss" => "panic",
                "--label" => "two words",
                // They take no value.
                "--json" | "--force" | "--yes" | "--read-only" | "--quiet" | "--help" => "please",
                other => panic!("{other} is new: which value makes no sense?"),
            };
            let needs_server = !matches!(command, "completions" | "man");
            if option == "--url" && !needs_server {
                continue;
            }
            let option_with_value = format!("{option}={bad}");
            let args = [&[command, &option_with_value], rest].concat();
            let ended = redlatch(NOWHERE, &args).output().unwrap();
            let err = String::from_utf8(ended.stderr).unwrap();
            assert_eq!(ended.status.code(), Some(2), "{args:?}: {err}");
            assert!(
                ended.stdout.is_empty() && err.lines().count() == 1,
                "{args:?}: {err}"
            );
            assert!(err.starts_with("redlatch: "), "{args:?}: {err}");
            seen.insert(option);
        }
    }
    assert_eq!(seen.len(), 16, "{seen:?}");
}

#[test]
fn text_that_is_no_utf_8_is_wrong_use() {
    for args in [
        &["inspect"][..],
        &["ls"],
        &["ls", "--prefix"],
        &["watch", "n", "--interval"],
    ] {
        let mut command = redlatch(NOWHERE, args);
        let ended = command
            .arg(OsStr::from_bytes(b"a\xff\n\x1b[31m"))
            .output()
            .unwrap();
        let err = String::from_utf8_lossy(&ended.stderr);
        assert_eq!(ended.status.code(), Some(2), "{err}");
        assert!(err.lines().count() == 1 && !err.contains('\x1b'), "{err}");
    }
    let mut command = redlatch(NOWHERE, &["ls"]);
    let ended = command
        .env("REDIS_URL", OsStr::from_bytes(b"redis://\xff"))
        .output()
        .unwrap();
    let err = String::from_utf8_lossy(&ended.stderr);
    assert!(
        ended.status.code() == Some(2) && err.contains("REDIS_URL"),
        "{err}"
    );
}

#[test]
fn exit_codes_are_in_the_readme_as_in_the_manual() {
    let help = redlatch("", &["--help"]).output().unwrap();
    let help = String::from_utf8(help.stdout).unwrap();
    let (_, codes) = help.split_once("Exit codes:\n").unwrap();
    let codes = codes.lines().take_while(|line| !line.is_empty());
    let codes: Vec<_> = codes
        .filter(|line| !line.starts_with("   "))
        .map(|line| line.split_whitespace().next().unwrap())
        .collect();
    assert_eq!(codes.len(), 11, "{codes:?}");
    let readme = include_str!("../../README.md");
    for code in codes {
        assert!(readme.contains(&format!("\n| {code} | ")), "{code}");
    }
}

#[test]
fn failures_are_json_if_asked_for() {
    let ended = redlatch(NOWHERE, &["--json", "ls"]).output().unwrap();
    assert_eq!(ended.status.code(), Some(69));
    let failure: Value = serde_json::from_slice(&ended.stderr).unwrap();
    assert_eq!(
        (&failure["event"], &failure["code"]),
        (&"failed".into(), &69.into())
    );
}

#[test]
fn password_is_not_shown() {
    let server = Server::builder().password("hunter2").start();
    let wrong = server.url().replace("hunter2", "hunter3");
    for url in [wrong, "redis://:hunter3@127.0.0.1:1".to_owned()] {
        let ended = redlatch(&url, &["ls"]).output().unwrap();
        let err = String::from_utf8(ended.stderr).unwrap();
        assert_eq!(ended.status.code(), Some(69));
        assert!(!err.contains("hunter"), "{err}");
    }
    let help = redlatch(&server.url(), &["--help"]).output().unwrap();
    assert!(!String::from_utf8(help.stdout).unwrap().contains("hunter"));
}

#[test]
fn help_manual_and_completions_need_no_server() {
    for args in [
        &["--help"][..],
        &["-h"],
        &["--version"],
        &["run", "--help"],
        &["help", "doctor"],
        &["man"],
        &["completions", "bash"],
        &["completions", "zsh"],
        &["completions", "fish"],
    ] {
        let ended = redlatch("", args).output().unwrap();
        assert_eq!(ended.status.code(), Some(0), "{args:?}");
        let out = String::from_utf8(ended.stdout).unwrap();
        assert!(!out.is_empty() && ended.stderr.is_empty(), "{args:?}");
        assert!(!out.contains("warden"), "{args:?}");
    }
    let man = redlatch("", &["man"]).output().unwrap();
    let man = String::from_utf8(man.stdout).unwrap();
    assert!(man.contains("on\\-loss"), "{man}");
}
