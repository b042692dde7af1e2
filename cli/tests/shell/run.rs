//! `redlatch run`, as long as nothing goes wrong.

use std::fs;
use std::thread::sleep;
use std::time::{Duration, Instant};

use redlatch_testkit::{Sentinel, Server};
use tempfile::tempdir;

use crate::command::{KINDS, Outcome, Running, eventually, outcome, redlatch, runs};

#[test]
fn command_has_the_lock_and_its_names_and_the_lock_is_released() {
    let server = Server::start();
    let show = "echo $REDLATCH_LOCK/$REDLATCH_OWNER/${REDLATCH_TOKEN-none}; read x; exit 3";
    let mut run = Running::of({
        let mut command = redlatch(
            &server.url(),
            &["run", "--prefix", "p:", "a", "--", "sh", "-c", show],
        );
        command.stdin(std::process::Stdio::piped());
        command
    });
    let line = run.line();
    let fields = server.connection().hgetall("p:a");
    let [name, owner, token]: [&str; 3] = line.split('/').collect::<Vec<_>>().try_into().unwrap();
    assert_eq!((name, token), ("a", "none"));
    assert!(fields.contains_key(owner), "{owner} {fields:?}");
    drop(run.stdin());
    let Outcome { code, err, .. } = run.end();
    assert_eq!((code, &*err), (3, ""));
    assert_eq!(server.connection().keys(), Vec::<String>::new());
}

#[test]
fn label_is_shown_with_the_owner() {
    let server = Server::start();
    for kind in KINDS {
        let show = "echo $REDLATCH_OWNER; read x; true";
        let args = ["run", "--label", "job@host", "--kind", kind, kind, "--"];
        let mut command = redlatch(&server.url(), &[&args[..], &["sh", "-c", show]].concat());
        command.stdin(std::process::Stdio::piped());
        let mut run = Running::of(command);
        let owner = run.line();
        let found = outcome(&server, &["inspect", kind]);
        let shown = "held by   job@host unique 0";
        assert!(found.out.contains(shown), "{found:?}");
        let found = outcome(&server, &["--json", "inspect", kind]);
        assert!(found.out.contains(&owner), "{owner} {found:?}");
        drop(run.stdin());
        assert_eq!(run.end().code, 0);
    }
    let ended = outcome(&server, &["run", "--label", "two words", "l", "--", "true"]);
    assert_eq!(ended.code, 2, "{ended:?}");
}

#[test]
fn each_kind_runs_and_leaves_nothing_but_the_last_token() {
    let server = Server::start();
    for kind in KINDS {
        let show = "echo ${REDLATCH_TOKEN-none}";
        let args = ["run", "--kind", kind, kind, "--", "sh", "-c", show];
        let ended = outcome(&server, &args);
        assert_eq!(ended.code, 0, "{kind} {ended:?}");
        let token = ended.out.trim();
        assert_eq!(token.parse::<u64>().is_ok(), kind == "fenced", "{token}");
    }
    let left = server.connection().keys();
    assert_eq!(left, ["redisson_lock_token:{fenced}"]);
}

#[test]
fn busy_lock_is_an_exit_code_of_its_own() {
    let server = Server::start();
    for kind in KINDS {
        // A reader excludes a writer, and the other way round.
        let other = match kind {
            "read" => "write",
            kind => kind,
        };
        let mut holder = Running::start(
            &server,
            &[
                "run",
                "--kind",
                other,
                kind,
                "--",
                "sh",
                "-c",
                "echo held; sleep 100",
            ],
        );
        assert_eq!(holder.line(), "held");
        let once = [
            "run", "--kind", kind, "--wait", "0", kind, "--", "echo", "in",
        ];
        let ended = outcome(&server, &once);
        assert_eq!((ended.code, &*ended.out), (75, ""), "{kind}");
        assert_eq!(ended.err.lines().count(), 1, "{}", ended.err);
        let waits = [
            "run", "--kind", kind, "--wait", "600ms", kind, "--", "echo", "in",
        ];
        let ended = outcome(&server, &waits);
        assert_eq!((ended.code, &*ended.out), (75, ""), "{kind}");
        let lines: Vec<_> = ended.err.lines().collect();
        assert!(
            lines[0].contains("waiting for") && lines.len() == 2,
            "{lines:?}"
        );
    }
}

#[test]
fn quiet_wait_is_told_only_if_something_goes_wrong() {
    let server = Server::start();
    let holder = Running::holding(&server.url(), "reentrant", "q");
    let waits = ["run", "-q", "--wait", "1s", "q", "--", "true"];
    let ended = outcome(&server, &waits);
    assert_eq!(ended.code, 75, "{ended:?}");
    assert_eq!(ended.err, "redlatch: q is still held after 1.0s\n");

    let run = Running::start(&server, &["run", "--quiet", "q", "--", "echo", "in"]);
    eventually("it waits", || !server.connection().channels().is_empty());
    sleep(Duration::from_millis(600));
    holder.signal("TERM");
    holder.end();
    let ended = run.end();
    assert_eq!((ended.code, &*ended.out, &*ended.err), (0, "in\n", ""));

    // Nobody knows for how long the wait goes on.
    let mut connection = server.connection();
    connection.command(&["HSET", "q", "a", "b"]);
    connection.command(&["PEXPIRE", "q", "60000"]);
    let ended = outcome(&server, &waits);
    assert!(ended.notes()[0].contains("something else"), "{ended:?}");
}

#[test]
fn code_of_the_command_is_passed_on_and_a_signal_adds_128() {
    let server = Server::start();
    let code = |command: &[&str]| {
        let args = [&["run", "c", "--"], command].concat();
        outcome(&server, &args).code
    };
    assert_eq!(code(&["true"]), 0);
    assert_eq!(code(&["sh", "-c", "exit 255"]), 255);
    assert_eq!(code(&["sh", "-c", "kill -KILL $$"]), 137);
    assert_eq!(code(&["sh", "-c", "kill -SEGV $$"]), 139);
    assert_eq!(code(&["/nonexistent/command"]), 127);
    assert_eq!(code(&["/etc/passwd"]), 126);
    assert_eq!(server.connection().keys(), Vec::<String>::new());
}

#[test]
fn processes_never_run_at_the_same_time() {
    let server = Server::start();
    let dir = tempdir().unwrap();
    let file = dir.path().join("inside");
    // Creating a directory fails if it exists.
    let section = format!("mkdir {0} && sleep 0.05 && rmdir {0}", file.display());
    for kind in ["reentrant", "fair", "write"] {
        let crowd: Vec<_> = (0..6)
            .map(|_| {
                let args = ["run", "--kind", kind, kind, "--", "sh", "-c", &section];
                Running::start(&server, &args)
            })
            .collect();
        for run in crowd {
            let ended = run.end();
            assert_eq!(ended.code, 0, "{ended:?}");
        }
    }
}

#[test]
fn readers_run_together() {
    let server = Server::start();
    let args = [
        "run",
        "--kind",
        "read",
        "r",
        "--",
        "sh",
        "-c",
        "echo in; sleep 100",
    ];
    let mut readers = [(); 2].map(|()| Running::start(&server, &args));
    assert!(readers.iter_mut().all(|reader| reader.line() == "in"));
}

#[test]
fn what_the_command_leaves_behind_goes_on_without_the_lock() {
    let server = Server::start();
    let dir = tempdir().unwrap();
    let file = dir.path().join("pid");
    let script = format!("sleep 100 >/dev/null 2>&1 & echo $! >{}", file.display());
    let ended = outcome(&server, &["run", "b", "--", "sh", "-c", &script]);
    assert_eq!(ended.code, 0);
    let pid: i32 = fs::read_to_string(file).unwrap().trim().parse().unwrap();
    assert!(runs(pid) && !server.connection().exists("b"));
    crate::command::send("KILL", pid);
}

#[test]
fn lock_is_renewed_while_the_command_runs() {
    let server = Server::start();
    let args = ["run", "--lease", "renewed:500ms", "l", "--", "sleep", "2"];
    let run = Running::start(&server, &args);
    eventually("held", || server.connection().exists("l"));
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_millis(1_500) {
        assert!(server.connection().exists("l"));
        sleep(Duration::from_millis(20));
    }
    let ended = run.end();
    assert_eq!(ended.code, 0, "{ended:?}");
}

#[test]
fn wait_goes_on_for_what_passes_by_itself_alone() {
    let dir = tempdir().unwrap();
    let file = dir.path().join("file");
    fs::write(&file, "").unwrap();
    let unix = |path: &str| format!("redis+unix://{path}");
    let missing = unix(dir.path().join("none").to_str().unwrap());
    let server = Server::start();
    let secured = Server::builder().tls().start();
    let roots = dir.path().join("ca.pem");
    fs::write(&roots, secured.ca_pem()).unwrap();
    let (roots, plain) = (roots.display(), server.port());
    let full = Server::builder().arg("maxclients", 1).start();
    let _only = full.connection();
    let demoted = Server::start();
    let sentinel = Sentinel::start(&demoted, "main");
    demoted
        .connection()
        .command(&["REPLICAOF", "127.0.0.1", &server.port().to_string()]);
    let stopped = Server::start();
    stopped.kill();
    let frozen = Server::start();
    frozen.freeze();
    for (url, passes) in [
        (stopped.url(), true),
        (frozen.url(), true),
        (missing, true),
        (full.url(), true),
        (sentinel.url(), true),
        (format!("redis://{}.invalid", "x".repeat(64)), false),
        (
            format!("rediss://127.0.0.1:{plain}?tls_roots={roots}"),
            false,
        ),
        (format!("redis://127.0.0.1:{}", secured.port()), false),
        (unix(&format!("/{}", "x".repeat(200))), false),
        (unix(file.to_str().unwrap()), false),
        (unix(&format!("{}/sock", file.display())), false),
    ] {
        let (wait, notes) = if passes { ("1500ms", 2) } else { ("1d", 1) };
        let args = [
            "--timeout",
            "500ms",
            "run",
            "--wait",
            wait,
            "l",
            "--",
            "true",
        ];
        let ended = Running::of(redlatch(&url, &args)).end();
        assert_eq!(
            (ended.code, ended.notes().len()),
            (69, notes),
            "{url} {ended:?}"
        );
    }
    frozen.thaw();
}
