//! `redlatch ls`, `inspect`, `watch` and `unlock`.

use redlatch_testkit::{Cluster, Sentinels, Server};
use serde_json::{Value, json};

use crate::command::{KINDS, Outcome, Running, eventually, outcome, redlatch, runs};

const JAVA: &str = "8743c9c0-0795-4907-87fd-6c719a6b4586:49";

fn seen(server: &Server, args: &[&str]) -> Value {
    let args = [&["--json"], args].concat();
    let Outcome { code, out, err } = outcome(server, &args);
    assert_eq!(err, "", "{args:?}");
    let value: Value = serde_json::from_str(&out).unwrap();
    // `inspect` of nothing, or of what nobody holds.
    let is_free = value["holders"] == json!([]) && value["count"].is_null();
    assert_eq!(code, i32::from(value.is_null() || is_free), "{args:?}");
    value
}

#[test]
fn each_kind_is_shown_with_its_holder_lease_and_waiter() {
    let server = Server::start();
    for (kind, shown, side) in [
        ("reentrant", "reentrant", None),
        ("fair", "fair", None),
        ("fenced", "fenced", None),
        ("spin", "reentrant", None),
        ("plain", "plain", None),
        ("read", "read-write", Some("read")),
        ("write", "read-write", Some("write")),
    ] {
        assert_eq!(seen(&server, &["inspect", kind]), Value::Null);
        let _holder = Running::holding(&server.url(), kind, kind);
        let waits = if kind == "read" { "write" } else { kind };
        let _waiter = Running::start(&server, &["run", "--kind", waits, kind, "--", "true"]);
        let is_told = !matches!(kind, "spin" | "plain");
        let mut found = Value::Null;
        eventually("its waiter is seen", || {
            found = seen(&server, &["inspect", kind]);
            let waiters = found["waiters"].as_array().unwrap().len();
            waiters == 1 || found["is_wanted"] == true || !is_told
        });
        assert_eq!(found["kind"], shown, "{found}");
        let [held] = &found["holders"].as_array().unwrap()[..] else {
            panic!("{found}");
        };
        assert_eq!(
            (&held["hold_count"], &held["side"]),
            (&json!(1), &json!(side))
        );
        for lease in [&held["lease_left"], &found["lease_left"]] {
            assert!((20.0..=30.0).contains(&lease.as_f64().unwrap()), "{found}");
        }
        assert_eq!(found["token"].is_u64(), kind == "fenced");
        // People are shown which process it is, and programs which owner.
        let label = held["label"].as_str().unwrap();
        let (_, process) = label.rsplit_once('/').unwrap();
        assert!(process.parse::<u32>().is_ok(), "{label}");
        let shown = format!("{label} unique 0");
        let text = outcome(&server, &["inspect", kind]).out;
        assert!(text.contains(&format!("held by   {shown}")), "{text}");
        let listed = outcome(&server, &["ls", kind]).out;
        assert!(listed.contains(&shown), "{listed}");
        for waits in text
            .lines()
            .filter_map(|line| line.strip_prefix("waits     "))
        {
            let (label, _) = label.rsplit_once('/').unwrap();
            let is_known = waits.contains(&format!("{label}/"));
            assert!(is_known || found["is_wanted"] == true, "{text}");
        }
    }
}

#[test]
fn locks_of_redisson_are_shown_and_listed() {
    let server = Server::start();
    let mut connection = server.connection();
    let mut hash = |name: &str, fields: &[&str]| {
        connection.command(&[&["HSET", name], fields].concat());
        connection.command(&["PEXPIRE", name, "60000"]);
    };
    hash("lock", &[JAVA, "2"]);
    hash(
        "rw",
        &["mode", "write", &format!("{JAVA}:write"), "1", JAVA, "3"],
    );
    hash("named", &["req-7", "1"]);
    let found = seen(&server, &["inspect", "lock"]);
    assert_eq!(found["holders"][0]["owner"], JAVA);
    assert_eq!(found["holders"][0]["hold_count"], 2);
    let found = seen(&server, &["inspect", "rw"]);
    let sides: Vec<_> = found["holders"]
        .as_array()
        .unwrap()
        .iter()
        .map(|held| &held["side"])
        .collect();
    assert_eq!(sides, ["write", "read"]);
    assert_eq!(
        seen(&server, &["inspect", "named"])["holders"][0]["owner"],
        "req-7"
    );
    connection.command(&["RPUSH", "redisson_lock_queue:{fair}", JAVA]);
    let found = seen(&server, &["inspect", "fair"]);
    assert_eq!(
        (&found["kind"], &found["waiters"]),
        (&json!("fair"), &json!([JAVA]))
    );
    let listed = seen(&server, &["ls"]);
    let names: Vec<_> = listed
        .as_array()
        .unwrap()
        .iter()
        .map(|lock| &lock["name"])
        .collect();
    assert_eq!(names, ["lock", "rw"]);
}

#[test]
fn what_is_no_lock_is_not_listed() {
    let server = Server::start();
    let mut connection = server.connection();
    for command in [
        &["SET", "text", "hello"][..],
        &["SET", "number", "7"],
        &["SETEX", "session", "60", "hello"],
        &[
            "SETEX",
            "redis-py",
            "60",
            "9f8e7d6c5b4a39281706f5e4d3c2b1a0",
        ],
        &["HSET", "user", "name", "anna", "age", "7"],
        &["HSET", "mode", "mode", "dark"],
        &["RPUSH", "list", "x"],
        &["SADD", "set", "x"],
        &["ZADD", "sorted", "1", "x"],
        &["XADD", "stream", "*", "a", "b"],
    ] {
        connection.command(command);
    }
    for name in connection.keys() {
        connection.command(&["PEXPIRE", &name, "60000"]);
    }
    assert_eq!(seen(&server, &["ls"]), json!([]));
    assert_eq!(outcome(&server, &["ls"]).out, "");
    connection.command(&["PERSIST", "number"]);
    let count = seen(&server, &["inspect", "number"]);
    assert_eq!(
        (&count["kind"], &count["count"]),
        (&json!("counter"), &json!(7))
    );
    assert_eq!(seen(&server, &["inspect", "redis-py"])["kind"], "plain");
    for name in ["user", "mode", "list", "set", "sorted", "stream"] {
        let ended = outcome(&server, &["inspect", name]);
        assert_eq!(ended.code, 69, "{name}: {ended:?}");
        assert!(ended.err.contains("something else"), "{ended:?}");
        assert_eq!(
            outcome(&server, &["unlock", name, "--force", "--yes"]).code,
            69
        );
    }
    assert_eq!(
        outcome(&server, &["unlock", "number", "--force", "--yes"]).code,
        2
    );
}

#[test]
fn what_has_no_lease_is_neither_shown_nor_released() {
    let server = Server::start();
    let mut connection = server.connection();
    connection.command(&["SET", "app:config", "hunter2"]);
    connection.command(&["HSET", "app:visits", "hunter2", "7"]);
    for name in ["app:config", "app:visits"] {
        for args in [
            &["inspect", name][..],
            &["--json", "inspect", name],
            &["unlock", "--force", "--yes", name],
        ] {
            let ended = outcome(&server, args);
            assert_eq!((ended.code, &*ended.out), (69, ""), "{ended:?}");
            assert!(ended.err.contains("something else"), "{ended:?}");
            assert!(!ended.err.contains("hunter2"), "{ended:?}");
        }
        assert!(connection.exists(name));
    }
    let run = ["run", "--kind", "plain", "--wait", "600ms", "app:config"];
    for format in [&["--", "true"][..], &["--json", "--", "true"]] {
        let ended = outcome(&server, &[&run[..], format].concat());
        assert_eq!(ended.code, 75, "{ended:?}");
        assert!(ended.err.contains("something else"), "{ended:?}");
        assert!(!ended.err.contains("hunter2"), "{ended:?}");
    }
    // As redis-py's lock is by default.
    connection.command(&["SET", "report", "f4a1c2d03b4e11ef9c1a0242ac120002"]);
    let ended = outcome(&server, &["unlock", "--force", "--yes", "report"]);
    assert_eq!(ended.code, 0, "{ended:?}");
}

#[test]
fn prefix_and_pattern_select_what_is_listed() {
    let server = Server::start();
    let _holders =
        ["a*:1", "a*:2", "ab:1"].map(|name| Running::holding(&server.url(), "reentrant", name));
    let names = |args: &[&str]| {
        let listed = seen(&server, args);
        let names = listed.as_array().unwrap().iter();
        names
            .map(|lock| lock["name"].as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(names(&["ls"]), ["a*:1", "a*:2", "ab:1"]);
    assert_eq!(names(&["ls", "*:1"]), ["a*:1", "ab:1"]);
    assert_eq!(names(&["ls", "--prefix", "a*:"]), ["1", "2"]);
    assert_eq!(names(&["ls", "nothing"]), Vec::<String>::new());
    let table = outcome(&server, &["ls", "a\\*:1"]).out;
    assert_eq!(table.lines().count(), 2, "{table}");
}

#[test]
fn free_lock_is_an_exit_code_of_its_own_whatever_it_leaves_behind() {
    let server = Server::start();
    for kind in KINDS {
        let code = || outcome(&server, &["inspect", kind]).code;
        assert_eq!(code(), 1, "{kind}: never held");
        let held = Running::holding(&server.url(), kind, kind);
        assert_eq!(code(), 0, "{kind}: held");
        held.signal("TERM");
        held.end();
        assert_eq!(code(), 1, "{kind}: held once");
    }
    let mut connection = server.connection();
    connection.command(&["RPUSH", "redisson_lock_queue:{awaited}", JAVA]);
    connection.command(&["SET", "count", "3"]);
    let awaited = outcome(&server, &["inspect", "awaited"]);
    assert_eq!(awaited.code, 1);
    assert!(
        awaited.out.contains("nobody") && awaited.out.contains(JAVA),
        "{awaited:?}"
    );
    // A semaphore has no holders.
    assert_eq!(outcome(&server, &["inspect", "count"]).code, 0);
}

#[test]
fn odd_names_are_shown_escaped_and_are_exact_in_json() {
    let server = Server::start();
    let odd = "a\x1b[31m\nb\u{202e}gpj\u{200b}\u{9b}";
    let shown = "a\\u{1b}[31m\\nb\\u{202e}gpj\\u{200b}\\u{9b}";
    let _held = Running::holding(&server.url(), "reentrant", odd);
    let owner = "8743c9c0-0795-4907-87fd-6c719a6b4586:\u{1b}]0;x\u{7}";
    server.connection().command(&["HSET", odd, owner, "1"]);

    assert_eq!(seen(&server, &["inspect", odd])["name"], odd);
    let listed = seen(&server, &["ls"]);
    assert_eq!(listed[0]["name"], odd);
    let owners: Vec<_> = listed[0]["holders"].as_array().unwrap().iter().collect();
    assert!(
        owners.iter().any(|holder| holder["owner"] == owner),
        "{owners:?}"
    );

    let mut watch = Running::start(&server, &["watch", odd]);
    let line = watch.line();
    watch.signal("KILL");
    let mut texts = vec![line];
    for args in [
        &["ls"][..],
        &["inspect", odd],
        &["run", "--wait", "0", odd, "--", "true"],
        &["run", "--wait", "400ms", odd, "--", "true"],
        &["run", "--kind", "plain", "--wait", "0", odd, "--", "true"],
        &["unlock", "--force", "--yes", odd],
        &["unlock", "--force", "--yes", odd],
    ] {
        let ended = outcome(&server, args);
        texts.push(ended.out + &ended.err);
    }
    for text in texts {
        assert!(text.contains(shown), "{text}");
        let is_raw = |c: char| (c.is_control() && c != '\n') || "\u{202e}\u{200b}".contains(c);
        assert!(!text.contains(is_raw), "{text:?}");
    }
}

#[test]
fn text_of_others_does_not_reach_the_terminal_as_it_is() {
    let server = Server::start();
    let mut connection = server.connection();
    connection.command(&["SETEX", "evil\x1b[2J", "60", "\x1b]0;owned\x07"]);
    let out = outcome(&server, &["inspect", "evil\x1b[2J"]).out;
    assert!(
        out.contains("owned") && !out.contains('\x1b') && !out.contains('\x07'),
        "{out:?}"
    );
}

#[test]
fn hash_that_is_huge_is_not_read() {
    let server = Server::start();
    let fill = "for i = 1, 20000 do redis.call('HSET', KEYS[1], i, string.rep('x', 1000)) end";
    let mut connection = server.connection();
    connection.command(&["EVAL", fill, "1", "huge"]);
    connection.command(&["HSET", "wide", "x", &"x".repeat(9 << 20)]);
    connection.command(&["EXPIRE", "huge", "60"]);
    connection.command(&["EXPIRE", "wide", "60"]);
    assert_eq!(seen(&server, &["ls"]), json!([]));
    for name in ["huge", "wide"] {
        let ended = outcome(&server, &["inspect", name]);
        assert!(ended.err.contains("something else"), "{ended:?}");
    }
}

#[test]
fn every_server_of_a_cluster_is_looked_at() {
    let cluster = Cluster::start();
    let names = ["a", "b", "c", "d", "e", "f"];
    let owners: std::collections::BTreeSet<_> = names
        .iter()
        .map(|name| cluster.owner(name).0.port())
        .collect();
    assert!(owners.len() > 1);
    let _holders = names.map(|name| Running::holding(&cluster.url(), "reentrant", name));
    let run =
        |args: &[&str]| -> Outcome { redlatch(&cluster.url(), args).output().unwrap().into() };
    let listed: Value = serde_json::from_str(&run(&["ls", "--json"]).out).unwrap();
    let found: Vec<_> = listed
        .as_array()
        .unwrap()
        .iter()
        .map(|lock| &lock["name"])
        .collect();
    assert_eq!(found, names);
    for name in names {
        assert_eq!(run(&["inspect", name]).code, 0);
    }
    assert_eq!(run(&["unlock", "--force", "--yes", "c"]).code, 0);
    assert_eq!(run(&["inspect", "c"]).code, 1);
    let doctor = run(&["doctor"]);
    assert_eq!(doctor.code, 0, "{doctor:?}");
    let servers = doctor.out.lines().filter(|line| line.contains("  server "));
    assert_eq!(servers.count(), 3, "{}", doctor.out);
}

#[test]
fn primary_that_sentinels_name_is_looked_at() {
    let sentinels = Sentinels::start();
    let _holder = Running::holding(&sentinels.url(), "reentrant", "a");
    let run =
        |args: &[&str]| -> Outcome { redlatch(&sentinels.url(), args).output().unwrap().into() };
    assert!(run(&["ls"]).out.contains("reentrant"));
    let doctor = run(&["doctor"]);
    assert_eq!(doctor.code, 0, "{doctor:?}");
    assert!(doctor.out.contains("replicas"), "{}", doctor.out);
}

#[test]
fn watch_prints_a_line_at_each_change() {
    let server = Server::start();
    let mut watch = Running::start(&server, &["watch", "w", "--interval", "50ms"]);
    assert!(watch.line().ends_with("w free"));
    let held = Running::holding(&server.url(), "reentrant", "w");
    assert!(watch.line().contains("w held by"));
    let waiter = Running::start(&server, &["run", "w", "--", "sleep", "0.3"]);
    assert!(watch.line().contains("waiting: 1"));
    held.signal("TERM");
    held.end();
    // It may be seen free in between.
    watch.line_with("w held by");
    waiter.end();
    watch.line_with("w free");
    server.kill();
    assert!(watch.line_with("127.0.0.1").contains("Z  "));
    server.restart();
    watch.line_with("w free");
}

#[test]
fn watch_ends_when_its_reader_goes() {
    let server = Server::start();
    let mut watch = Running::start(&server, &["watch", "w", "--interval", "1d"]);
    assert!(watch.line().ends_with("w free"));
    drop(watch.stdout());
    assert_eq!(watch.end().code, 0);
}

#[test]
fn watch_names_a_semaphore_in_each_line() {
    let server = Server::start();
    server.connection().command(&["SET", "permits", "3"]);
    let mut watch = Running::start(&server, &["watch", "permits"]);
    assert!(watch.line().contains("Z  permits 3 free permits"));
    let mut watch = Running::start(&server, &["watch", "permits", "--json"]);
    let line: Value = serde_json::from_str(&watch.line()).unwrap();
    assert_eq!(line["name"], "permits", "{line}");
}

#[test]
fn watch_hears_of_a_release_without_looking() {
    let server = Server::start();
    let held = Running::holding(&server.url(), "write", "w");
    let mut watch = Running::start(&server, &["watch", "w", "--interval", "1d", "--json"]);
    let line: Value = serde_json::from_str(&watch.line()).unwrap();
    assert_eq!(line["lock"]["kind"], "read-write");
    held.signal("TERM");
    let line: Value = serde_json::from_str(&watch.line()).unwrap();
    assert_eq!(line["lock"], Value::Null);
}

#[test]
fn forced_unlock_ends_the_hold_and_its_command() {
    let server = Server::start();
    for kind in KINDS {
        let force =
            |args: &[&str]| outcome(&server, &[&["unlock", "--force", kind], args].concat());
        assert_eq!(force(&["--yes"]).code, 1, "free");
        let args = [
            "run",
            "--kind",
            kind,
            "--lease",
            "renewed:600ms",
            kind,
            "--",
            "sh",
            "-c",
            "echo $$; exec sleep 100",
        ];
        let mut held = Running::start(&server, &args);
        let pid: i32 = held.line().parse().unwrap();
        let refused = force(&[]);
        assert_eq!(refused.code, 2);
        assert!(refused.err.contains("--yes") && runs(pid), "{refused:?}");
        let ended = force(&["--yes"]);
        assert_eq!(ended.code, 0, "{kind}: {ended:?}");
        assert!(ended.out.contains("is released"), "{ended:?}");
        assert_eq!(held.end().code, 76);
        assert!(!runs(pid) && !server.connection().exists(kind));
    }
}

#[test]
fn reader_that_goes_away_is_no_failure() {
    let server = Server::start();
    let _held = Running::holding(&server.url(), "reentrant", "a");
    for args in ["ls", "inspect a", "man", "completions bash", "doctor"] {
        let script = format!("{} {args} 2>&1 | head -1", env!("CARGO_BIN_EXE_redlatch"));
        let shell = std::process::Command::new("sh")
            .args(["-c", &script])
            .env("REDIS_URL", server.url())
            .output()
            .unwrap();
        let out = String::from_utf8(shell.stdout).unwrap();
        assert!(!out.contains("panicked"), "{args}: {out}");
    }
}
