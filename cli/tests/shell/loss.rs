//! What becomes of the command if the lock is lost, or `redlatch` is.

use std::path::PathBuf;
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use redlatch_testkit::Server;
use serde_json::{Value, json};
use tempfile::{TempDir, tempdir};

use crate::command::{
    Running, children_of, eventually, group_of, number_in, outcome, redlatch, runs, send, state_of,
    with_warden,
};

/// A command that writes its process id into a file.
pub(crate) struct Script {
    _dir: TempDir,
    pid: PathBuf,
    first: &'static str,
}

impl Script {
    pub(crate) fn new() -> Self {
        Self::after("true")
    }

    /// What sets a trap writes its process id only afterwards: whoever knows the id may signal it at once.
    pub(crate) fn after(first: &'static str) -> Self {
        let dir = tempdir().unwrap();
        let pid = dir.path().join("pid");
        Self {
            _dir: dir,
            pid,
            first,
        }
    }

    /// Returns this script, which writes its process id first.
    pub(crate) fn of(&self, script: &str) -> String {
        let (first, pid) = (self.first, self.pid.display());
        format!("{first}; echo $$ >{pid}.new; mv {pid}.new {pid}; {script}")
    }

    /// Returns the arguments that run this script under a lock, after these options.
    fn args(&self, options: &[&str], script: &str) -> Vec<String> {
        let script = self.of(script);
        let own = ["--", "sh", "-c", &script];
        [&["run", "l"], options, &own]
            .concat()
            .iter()
            .map(|word| (*word).to_owned())
            .collect()
    }

    fn start(&self, server: &Server, options: &[&str], script: &str) -> Running {
        let args = self.args(options, script);
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        Running::start(server, &args)
    }

    pub(crate) fn pid(&self) -> i32 {
        number_in(&self.pid)
    }
}

#[test]
fn command_is_ended_when_the_lock_is_gone() {
    let server = Server::start();
    for (on_loss, says) in [("term", "tidied up"), ("kill", "")] {
        let script = Script::after("trap 'echo tidied up; exit 0' TERM");
        let options = ["--lease", "renewed:600ms", "--on-loss", on_loss];
        let run = script.start(&server, &options, "while :; do sleep 0.05; done");
        let pid = script.pid();
        assert!(runs(pid));
        server.connection().command(&["DEL", "l"]);
        let ended = run.end();
        assert_eq!((ended.code, ended.out.trim()), (76, says), "{ended:?}");
        assert_eq!(ended.notes().len(), 1, "{}", ended.err);
        assert!(!runs(pid));
    }
}

#[test]
fn command_that_does_not_heed_term_is_killed_after_the_grace() {
    let server = Server::start();
    let script = Script::after("trap '' TERM");
    let options = ["--lease", "renewed:600ms", "--grace", "700ms"];
    let run = script.start(&server, &options, "while :; do sleep 0.05; done");
    let pid = script.pid();
    server.connection().command(&["DEL", "l"]);
    let deleted = Instant::now();
    let ended = run.end();
    assert_eq!(ended.code, 76);
    assert!(deleted.elapsed() >= Duration::from_millis(700) && !runs(pid));
}

#[test]
fn children_of_the_command_end_with_it() {
    let server = Server::start();
    let script = Script::new();
    // The shell ends at TERM, its child knows no TERM.
    let nested = format!(
        "sh -c 'trap \"\" TERM; echo $$ >{0}.child; while :; do sleep 0.05; done' & wait",
        script.pid.display()
    );
    let run = script.start(&server, &["--lease", "renewed:600ms"], &nested);
    let child = number_in(&script.pid.with_extension("child"));
    server.connection().command(&["DEL", "l"]);
    assert_eq!(run.end().code, 76);
    eventually("the child is killed", || !runs(child));
}

#[test]
fn command_goes_on_without_the_lock_if_asked_to() {
    let server = Server::start();
    let script = Script::new();
    let run = script.start(
        &server,
        &["--lease", "renewed:300ms", "--on-loss", "ignore"],
        "sleep 1.5; echo done; exit 5",
    );
    script.pid();
    server.connection().command(&["DEL", "l"]);
    let ended = run.end();
    assert_eq!((ended.code, &*ended.out), (5, "done\n"));
    assert!(
        ended.err.contains("was lost") && ended.err.lines().count() == 1,
        "{}",
        ended.err
    );
}

#[test]
fn lost_connection_alone_loses_nothing_until_the_deadline() {
    let server = Server::start();
    let script = Script::new();
    let mut run = script.start(&server, &["--lease", "renewed:3s"], "sleep 100");
    let pid = script.pid();
    server.kill();
    let killed = Instant::now();
    // At least two thirds of the lease are left at any time.
    while killed.elapsed() < Duration::from_millis(1_500) {
        assert!(runs(pid) && !run.has_ended());
        sleep(Duration::from_millis(20));
    }
    let ended = run.end();
    assert_eq!(ended.code, 76, "{ended:?}");
    assert!(!runs(pid));
}

#[test]
fn server_that_comes_back_in_time_costs_nothing() {
    let server = Server::builder().persistent().start();
    let script = Script::new();
    let run = script.start(&server, &["--lease", "renewed:20s"], "sleep 2; echo done");
    script.pid();
    server.restart();
    let ended = run.end();
    assert_eq!((ended.code, &*ended.out), (0, "done\n"), "{ended:?}");
}

#[test]
fn fixed_lease_ends_the_command_at_its_end() {
    let server = Server::start();
    let script = Script::new();
    let started = Instant::now();
    let run = script.start(
        &server,
        &["--lease", "800ms", "--on-loss", "kill"],
        "sleep 100",
    );
    let pid = script.pid();
    let ended = run.end();
    assert_eq!(ended.code, 76);
    assert!(started.elapsed() >= Duration::from_millis(700) && !runs(pid));
}

#[test]
fn lock_that_is_lost_before_the_command_is_started_is_no_loss_of_the_command() {
    let server = Server::start();
    let args = ["run", "--lease", "500ms", "l", "--", "echo", "begun"];
    // It says that the command may start once the lease is over.
    let (run, _dir) = with_warden(&server, "sleep 1; printf '!'; read x", &args);
    let ended = run.end();
    assert_eq!((ended.code, &*ended.out), (69, ""), "{ended:?}");
}

#[test]
fn renewal_that_is_confirmed_shortly_before_the_deadline_keeps_the_command() {
    let server = Server::start();
    let options = ["--timeout", "1d", "run", "--lease", "renewed:10s", "l"];
    let script = "echo begun; sleep 12; echo done";
    for _ in 0..5 {
        let args = [&options[..], &["--", "sh", "-c", script]].concat();
        let mut run = Running::start(&server, &args);
        assert_eq!(run.line(), "begun");
        server.freeze();
        // The lease lasts for 9.9 s. By then, the warden has been told of that nine times, the last time before this.
        sleep(Duration::from_millis(9_300));
        server.thaw();
        let ended = run.end();
        if ended.code != 76 {
            assert_eq!((ended.code, &*ended.out), (0, "done\n"), "{ended:?}");
            return;
        }
        // This machine was too slow: the lock is lost, and `redlatch` says so.
        assert_eq!(ended.notes().len(), 1, "{ended:?}");
    }
    panic!("the lock was lost each time");
}

#[test]
fn loss_that_is_found_at_the_end_is_told() {
    let server = Server::start();
    let script = Script::new();
    let run = script.start(&server, &[], "sleep 1");
    script.pid();
    server.connection().command(&["DEL", "l"]);
    assert_eq!(run.end().code, 76);
}

#[test]
fn command_is_ended_if_redlatch_is_stopped_past_the_lease() {
    let server = Server::start();
    for on_loss in ["term", "kill"] {
        let script = Script::after("trap '' TERM");
        let options = [
            "--lease",
            "renewed:1s",
            "--grace",
            "300ms",
            "--on-loss",
            on_loss,
        ];
        let run = script.start(&server, &options, "while :; do sleep 0.05; done");
        let pid = script.pid();
        run.signal("STOP");
        eventually("the warden ends the command", || !runs(pid));
        run.signal("CONT");
        assert_eq!(run.end().code, 76);
    }
}

/// Kills `redlatch`, and waits until its warden has ended the command and itself. Leaves the lock free.
#[track_caller]
fn warden_ends(script: &Script, run: Running, server: &Server) {
    let pid = script.pid();
    let warden = group_of(pid);
    run.signal("KILL");
    eventually("the warden ends the command", || !runs(pid));
    eventually("and itself", || !runs(warden));
    drop(run);
    server.connection().command(&["DEL", "l"]);
}

#[test]
fn command_is_ended_if_redlatch_is_killed() {
    let server = Server::start();
    for (on_loss, trap) in [
        ("term", "true"),
        ("kill", "trap '' TERM"),
        ("term", "trap '' TERM"),
    ] {
        let script = Script::after(trap);
        let options = ["--grace", "300ms", "--on-loss", on_loss];
        let run = script.start(&server, &options, "while :; do sleep 0.05; done");
        warden_ends(&script, run, &server);
    }
}

#[test]
fn warden_waits_for_nobody_who_reads_its_note() {
    let server = Server::start();
    for on_loss in ["term", "kill"] {
        let script = Script::new();
        let mut run = script.start(
            &server,
            &["--on-loss", on_loss],
            "exec 3>&2
            dd if=/dev/zero of=/proc/self/fd/3 oflag=nonblock bs=64k 2>/dev/null
            echo the pipe is full; exec sleep 100",
        );
        assert_eq!(run.line(), "the pipe is full");
        warden_ends(&script, run, &server);
    }
}

#[test]
fn warden_says_why_the_command_ends() {
    let server = Server::start();
    for on_loss in ["term", "kill"] {
        let script = Script::new();
        let run = script.start(&server, &["--json", "--on-loss", on_loss], "exec sleep 100");
        script.pid();
        run.signal("KILL");
        let ended = run.end();
        let note: Value = serde_json::from_str(&ended.err).unwrap();
        assert_eq!(
            (&note["event"], &note["name"]),
            (&json!("killed"), &json!("l"))
        );
        assert!(note["text"].as_str().unwrap().contains("held l"), "{note}");
        server.connection().command(&["DEL", "l"]);
    }
}

#[test]
fn warden_does_not_wait_for_a_command_that_has_ended() {
    let server = Server::start();
    let script = Script::new();
    let run = script.start(&server, &["--grace", "1d"], "exec sleep 100");
    let warden = group_of(script.pid());
    run.signal("KILL");
    eventually("the warden is gone", || !runs(warden));
}

#[test]
fn warden_that_is_killed_is_replaced_and_the_next_one_ends_the_command() {
    let server = Server::start();
    let script = Script::after("trap '' TERM");
    let options = ["--lease", "renewed:2s", "--grace", "100ms"];
    let run = script.start(&server, &options, "while :; do sleep 0.05; done");
    let pid = script.pid();
    let mut wardens = vec![group_of(pid)];
    for _ in 0..2 {
        let warden = wardens[wardens.len() - 1];
        assert_eq!(children_of(run.pid(), "__warden"), [warden]);
        send("KILL", warden);
        let others = || children_of(run.pid(), "__warden");
        eventually("another one", || {
            others().iter().any(|it| !wardens.contains(it))
        });
        wardens.extend(others());
        assert!(runs(pid) && server.connection().exists("l"));
    }
    let warden = wardens[wardens.len() - 1];
    assert_eq!(
        group_of(warden),
        wardens[0],
        "it is in the group of the command"
    );
    run.signal("KILL");
    eventually("the warden ends the command", || !runs(pid));
    eventually("and itself", || !runs(warden));
    let notes = run.end();
    assert!(notes.err.contains("another one is started"), "{notes:?}");
}

#[test]
fn warden_that_replaces_another_heeds_no_signal_from_its_first_moment_on() {
    let server = Server::start();
    let script = Script::after("trap '' TERM");
    let run = script.start(
        &server,
        &["--lease", "renewed:300ms"],
        "while :; do sleep 0.05; done",
    );
    let first = group_of(script.pid());
    let group = Pid::from_raw(first);
    send("KILL", first);
    let mut next = None;
    eventually("another one watches", || {
        for _ in 0..1_000 {
            killpg(group, Signal::SIGTERM).unwrap();
        }
        let wardens = children_of(run.pid(), "__warden");
        next = wardens.into_iter().find(|it| *it != first);
        next.is_some_and(|next| state_of(next) == "S")
    });
    killpg(group, Signal::SIGTERM).unwrap();
    assert!(next.is_some_and(runs));
    send("KILL", script.pid());
    let ended = run.end();
    assert_eq!(ended.notes().len(), 1, "{ended:?}");
}

#[test]
fn warden_that_is_not_needed_is_gone() {
    let server = Server::start();
    let script = Script::new();
    let run = script.start(&server, &[], "sleep 1");
    let warden = group_of(script.pid());
    assert!(runs(warden));
    assert_eq!(run.end().code, 0);
    eventually("the warden is gone", || !runs(warden));
}

#[test]
fn command_that_is_stopped_is_ended_too() {
    let server = Server::start();
    let script = Script::after("trap 'echo tidied up; exit 0' TERM");
    let run = script.start(
        &server,
        &["--lease", "renewed:600ms"],
        "while :; do sleep 0.05; done",
    );
    let pid = script.pid();
    send("STOP", pid);
    server.connection().command(&["DEL", "l"]);
    let ended = run.end();
    assert_eq!((ended.code, &*ended.out), (76, "tidied up\n"), "{ended:?}");
}

#[test]
fn server_that_is_away_at_the_end_changes_no_exit_code() {
    let server = Server::start();
    let script = Script::new();
    let run = script.start(&server, &["--lease", "renewed:20s"], "sleep 1; exit 4");
    script.pid();
    server.kill();
    let ended = run.end();
    assert_eq!(ended.code, 4, "{ended:?}");
    assert!(ended.err.contains("may stay held"), "{}", ended.err);
}

#[test]
fn server_that_is_away_at_the_start_is_told() {
    let server = Server::start();
    server.kill();
    for (wait, notes) in [("0", 1), ("1s", 2)] {
        let ended = outcome(&server, &["run", "--wait", wait, "l", "--", "true"]);
        assert_eq!((ended.code, ended.notes().len()), (69, notes), "{ended:?}");
    }
}

#[test]
fn wait_without_a_limit_goes_on_until_the_server_is_there() {
    let server = Server::start();
    server.kill();
    let args = ["run", "--lease", "renewed:300ms", "l", "--", "echo", "in"];
    let mut run = Running::start(&server, &args);
    // Longer than any patience of the library's.
    sleep(Duration::from_secs(2));
    assert!(!run.has_ended(), "{:?}", run.end());
    server.restart();
    let ended = run.end();
    assert_eq!((ended.code, &*ended.out), (0, "in\n"), "{ended:?}");
    assert!(ended.notes()[0].contains("nothing listens"), "{ended:?}");
    // What refuses, or cannot work, is not waited for.
    let secret = Server::builder().password("s3cret").start();
    let wrong = secret.url().replace("s3cret", "other");
    let unread = "rediss://127.0.0.1:1?tls_roots=/nowhere.pem".to_owned();
    for (url, code) in [(wrong, 69), (unread, 2)] {
        let run = Running::of(redlatch(&url, &["run", "l", "--", "true"]));
        assert_eq!(run.end().code, code);
    }
}

#[test]
fn wait_without_a_limit_goes_on_through_an_outage() {
    let server = Server::start();
    let script = Script::new();
    let _holder = script.start(&server, &[], "sleep 100");
    script.pid();
    let args = ["run", "--lease", "renewed:300ms", "l", "--", "echo", "in"];
    let mut run = Running::start(&server, &args);
    eventually("it waits", || !server.connection().channels().is_empty());
    server.kill();
    // Many times its lease, which is how long the library waits for a server by itself.
    sleep(Duration::from_secs(5));
    assert!(!run.has_ended(), "{:?}", run.end());
    server.restart();
    let ended = run.end();
    assert_eq!((ended.code, &*ended.out), (0, "in\n"), "{ended:?}");
}

#[test]
fn server_that_goes_away_during_the_wait_is_told() {
    let server = Server::start();
    let script = Script::new();
    let _holder = script.start(&server, &[], "sleep 100");
    script.pid();
    let run = Running::start(&server, &["run", "--wait", "1s", "l", "--", "true"]);
    eventually("it waits", || !server.connection().channels().is_empty());
    server.kill();
    assert_eq!(run.end().code, 69);
}

#[test]
fn name_that_is_something_else_is_no_lock() {
    let server = Server::start();
    server.connection().command(&["SET", "l", "text"]);
    let ended = outcome(&server, &["run", "l", "--", "true"]);
    assert_eq!(ended.code, 69, "{ended:?}");
    let _holder = Running::holding(&server.url(), "reentrant", "m");
    let ended = outcome(&server, &["run", "--kind", "read", "m", "--", "true"]);
    assert_eq!(ended.code, 69, "{ended:?}");
}

#[test]
fn wait_says_that_the_name_is_something_else() {
    let server = Server::start();
    let mut connection = server.connection();
    connection.command(&["HSET", "l", "a", "b"]);
    // What has no lease is refused at once; this goes by itself.
    connection.command(&["PEXPIRE", "l", "60000"]);
    let ended = outcome(&server, &["run", "--wait", "600ms", "l", "--", "true"]);
    assert_eq!(ended.code, 75, "{ended:?}");
    assert!(ended.notes()[0].contains("something else"), "{ended:?}");
}

#[test]
fn warden_that_was_stopped_with_the_command_reads_all_before_it_acts() {
    let server = Server::start();
    let script = Script::new();
    let run = script.start(
        &server,
        &["--lease", "renewed:600ms"],
        "while :; do sleep 0.05; done",
    );
    let pid = script.pid();
    let group = group_of(pid);
    for _ in 0..3 {
        send("STOP", -group);
        // Several leases, all of which are renewed.
        sleep(Duration::from_secs(2));
        assert!(server.connection().exists("l"));
        send("CONT", -group);
        sleep(Duration::from_millis(200));
        assert!(runs(pid) && runs(group));
    }
    drop(run);
}

#[test]
fn warden_that_was_stopped_looks_at_the_time_once_it_goes_on() {
    let server = Server::start();
    let script = Script::new();
    let options = ["--lease", "renewed:600ms", "--grace", "300ms"];
    let run = script.start(&server, &options, "sleep 100");
    let pid = script.pid();
    let group = group_of(pid);
    send("STOP", -group);
    run.signal("STOP");
    eventually("the lease ends", || !server.connection().exists("l"));
    send("CONT", -group);
    eventually("the command is ended", || !runs(pid));
    run.signal("CONT");
    assert_eq!(run.end().code, 76);
}
