//! Signals to `redlatch run`.

use redlatch_testkit::{Server, skip};

use crate::command::{Outcome, Running, eventually, number_in, redlatch, state_of, with_warden};

#[test]
fn signals_are_passed_on_to_the_command() {
    let server = Server::start();
    for (at, signal) in ["INT", "TERM", "HUP", "QUIT", "USR1", "USR2"]
        .into_iter()
        .enumerate()
    {
        let code = 40 + at as i32;
        let script =
            format!("trap 'exit {code}' {signal}; echo ready; while :; do sleep 0.05; done");
        let mut run = Running::start(&server, &["run", "s", "--", "sh", "-c", &script]);
        assert_eq!(run.line(), "ready");
        run.signal(signal);
        let ended = run.end();
        assert_eq!((ended.code, ended.notes().len()), (code, 0), "{signal}");
        assert!(!server.connection().exists("s"));
    }
}

#[test]
fn command_that_ends_by_a_signal_adds_128() {
    let server = Server::start();
    let mut run = Running::start(
        &server,
        &["run", "s", "--", "sh", "-c", "echo ready; exec sleep 100"],
    );
    assert_eq!(run.line(), "ready");
    run.signal("TERM");
    assert_eq!(run.end().code, 143);
}

#[test]
fn usr1_reaches_the_command_alone() {
    let server = Server::start();
    // A child that does not know USR1 would end.
    let script =
        "trap 'echo got it' USR1; sleep 1 & echo ready; wait; wait $! && echo child is well";
    let mut run = Running::start(&server, &["run", "s", "--", "sh", "-c", script]);
    assert_eq!(run.line(), "ready");
    run.signal("USR1");
    assert_eq!(run.end().out, "got it\nchild is well\n");
}

#[test]
fn wait_that_a_signal_ends_leaves_no_place() {
    let server = Server::start();
    for (kind, signal, code) in [
        ("reentrant", "INT", 130),
        ("fair", "TERM", 143),
        ("write", "HUP", 129),
    ] {
        let args = [
            "run",
            "--kind",
            kind,
            kind,
            "--",
            "sh",
            "-c",
            "echo held; sleep 100",
        ];
        let mut holder = Running::start(&server, &args);
        assert_eq!(holder.line(), "held");
        // A fair lock remembers a waiter's client for a moment.
        let keys = || {
            let mut keys = server.connection().keys();
            keys.retain(|key| !key.starts_with("redlatch_lock_sign"));
            keys
        };
        let before = keys();
        let run = Running::start(&server, &args);
        eventually("it waits", || !server.connection().channels().is_empty());
        run.signal(signal);
        let ended = run.end();
        assert_eq!((ended.code, &*ended.out), (code, ""), "{ended:?}");
        eventually("its place is gone", || keys() == before);
    }
}

#[test]
fn signal_that_comes_while_the_warden_starts_ends_redlatch_before_there_is_a_command() {
    let server = Server::start();
    // It never says that the command may start.
    let args = ["run", "l", "--", "echo", "begun"];
    let (run, dir) = with_warden(&server, "read x", &args);
    number_in(&dir.path().join("pid"));
    run.signal("INT");
    let ended = run.end();
    assert_eq!((ended.code, &*ended.out), (130, ""), "{ended:?}");
    eventually("free", || !server.connection().exists("l"));
}

#[test]
fn ignored_signals_stay_ignored() {
    let server = Server::start();
    // As `nohup` does it.
    let mut run = Running::of({
        let run = redlatch(&server.url(), &[]);
        let script = format!(
            "trap '' HUP; exec {} run s -- sh -c 'echo ready; sleep 1; echo done'",
            run.get_program().display()
        );
        let mut shell = std::process::Command::new("sh");
        shell.args(["-c", &script]).env("REDIS_URL", server.url());
        shell
    });
    assert_eq!(run.line(), "ready");
    run.signal("HUP");
    let ended = run.end();
    assert_eq!((ended.code, &*ended.out), (0, "done\n"));
}

#[test]
fn ending_by_a_signal_is_seen_by_whoever_waits() {
    let server = Server::start();
    let ended = |mut run: Running| {
        let code = run.line();
        run.end();
        code
    };
    // bash tells an exit code from a signal only by what it does with traps; Python says which it was.
    let tell = "import subprocess, sys; print(subprocess.run(sys.argv[1:]).returncode, flush=True)";
    let run = |command: &[&str]| {
        let mut python = std::process::Command::new("python3");
        python
            .args(["-c", tell, env!("CARGO_BIN_EXE_redlatch"), "run", "s", "--"])
            .args(command)
            .env("REDIS_URL", server.url());
        Running::of(python)
    };
    for (script, code) in [
        ("kill -INT $$", "-2"),
        ("kill -TERM $$", "-15"),
        ("kill -HUP $$", "-1"),
        ("kill -QUIT $$", "131"),
        ("kill -KILL $$", "137"),
        ("kill -34 $$", "162"),
        ("kill -64 $$", "192"),
        ("exit 130", "130"),
    ] {
        assert_eq!(ended(run(&["sh", "-c", script])), code, "{script}");
    }
}

/// Returns how a script ends under a `redlatch` that is the first process of a container. Returns `None` if there can be
/// no container.
fn contained(server: &Server, script: &str) -> Option<Outcome> {
    let container = || {
        let mut unshare = std::process::Command::new("unshare");
        unshare.args(["--map-root-user", "--pid", "--fork", "--mount-proc"]);
        unshare
    };
    let probe = container().arg("true").output();
    if !probe.is_ok_and(|ended| ended.status.success()) {
        skip("unshare", "unshare is missing, or may not be used");
        return None;
    }
    let mut command = container();
    command
        .args([env!("CARGO_BIN_EXE_redlatch"), "run", "s", "--"])
        .args(["sh", "-c", script])
        .env("REDIS_URL", server.url());
    Some(Running::of(command).end())
}

#[test]
fn first_process_of_a_container_ends_with_a_code() {
    let server = Server::start();
    for (signal, code) in [("INT", 130), ("TERM", 143), ("HUP", 129)] {
        let Some(ended) = contained(&server, &format!("kill -{signal} $$")) else {
            return;
        };
        assert_eq!((ended.code, &*ended.err), (code, ""), "{signal}");
    }
}

#[test]
fn first_process_of_a_container_waits_for_the_orphans() {
    let server = Server::start();
    // Their parent has ended before they do.
    let script = "orphans=$(for n in 1 2 3; do sh -c 'sleep 0.1 >/dev/null & echo $!'; done)
        for n in $(seq 200); do
            left=
            for orphan in $orphans; do [ -e /proc/$orphan ] && left=$orphan; done
            [ -z \"$left\" ] && exit 7
            sleep 0.05
        done";
    if let Some(ended) = contained(&server, script) {
        assert_eq!((ended.code, &*ended.err), (7, ""));
    }
}

#[test]
fn each_of_several_signals_reaches_the_command() {
    let server = Server::start();
    for signal in ["INT", "TERM"] {
        let script = format!(
            "n=0; trap 'n=$((n+1)); echo got $n; [ $n = 3 ] && exit 9' {signal}
            echo ready; while :; do sleep 0.05; done"
        );
        let mut run = Running::start(&server, &["run", "s", "--", "sh", "-c", &script]);
        assert_eq!(run.line(), "ready");
        for n in 1..=3 {
            run.signal(signal);
            assert_eq!(run.line(), format!("got {n}"));
        }
        assert_eq!(run.end().code, 9);
    }
}

#[test]
fn signal_ends_a_release_that_takes_long() {
    let server = Server::start();
    let options = ["run", "--timeout", "1d", "s", "--"];
    let script = ["sh", "-c", "echo ready; read x; exit 5"];
    let mut command = redlatch(&server.url(), &[&options[..], &script].concat());
    command.stdin(std::process::Stdio::piped());
    let mut run = Running::of(command);
    assert_eq!(run.line(), "ready");
    server.freeze();
    drop(run.stdin());
    // The first may come before the command has ended, and the next one ends the release.
    eventually("it ends", || {
        run.signal("TERM");
        std::thread::sleep(std::time::Duration::from_millis(50));
        run.has_ended()
    });
    server.thaw();
}

#[test]
fn command_that_was_stopped_through_redlatch_is_continued_through_it() {
    let server = Server::start();
    // It starts nothing while it is stopped: a shell whose child is stopped on its way into `exec` does not show as
    // stopped.
    let script = "trap 'echo continued' CONT; sleep 60 & echo $$; while :; do wait; done";
    let mut command = std::process::Command::new("setsid");
    let run = redlatch(&server.url(), &[]);
    command
        .arg(run.get_program())
        .args(["run", "s", "--", "sh", "-c", script])
        .env("REDIS_URL", server.url());
    let mut run = Running::of(command);
    let pid: i32 = run.line().parse().unwrap();
    run.signal("TSTP");
    eventually("stopped", || state_of(pid) == "T");
    run.signal("CONT");
    assert_eq!(run.line(), "continued");
}
