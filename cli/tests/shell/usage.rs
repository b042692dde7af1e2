//! Wrong use, and what is printed without a server.

use redlatch_testkit::Server;

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
        (NOWHERE, &["run", "", "--", "true"]),
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
    }
}

#[test]
fn failures_are_json_if_asked_for() {
    let ended = redlatch(NOWHERE, &["--json", "ls"]).output().unwrap();
    assert_eq!(ended.status.code(), Some(69));
    let failure: serde_json::Value = serde_json::from_slice(&ended.stderr).unwrap();
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
    }
    let man = redlatch("", &["man"]).output().unwrap();
    let man = String::from_utf8(man.stdout).unwrap();
    assert!(
        man.contains("on\\-loss") && !man.contains("__warden"),
        "{man}"
    );
}
