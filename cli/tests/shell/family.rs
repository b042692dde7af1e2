//! Commands that leave the process group that they were started in, and descendants of a command that do.

use redlatch_testkit::Server;

use crate::command::{Running, eventually, runs, send};
use crate::loss::Script;

const OPTIONS: [&str; 4] = ["--lease", "renewed:1s", "--grace", "300ms"];
/// Ends some day, should a test fail.
const STUBBORN: &str = "for i in $(seq 2000); do sleep 0.05; done";

/// Runs a command under the lock, and waits until the script in it has begun.
fn start(server: &Server, script: &Script, command: &[&str]) -> (Running, i32) {
    let args = [&["run"], &OPTIONS[..], &["l", "--"], command].concat();
    let run = Running::start(server, &args);
    let pid = script.pid();
    (run, pid)
}

/// Takes the lock away in one of three ways, and waits until a process has ended.
#[track_caller]
fn ends_with_the_lock(server: &Server, how: &str, run: Running, pid: i32) {
    match how {
        "gone" => {
            server.connection().command(&["DEL", "l"]);
            assert_eq!(run.end().code, 76);
            eventually("it ends", || !runs(pid));
        }
        "killed" => {
            run.signal("KILL");
            eventually("the warden ends it", || !runs(pid));
            drop(run);
            server.connection().command(&["DEL", "l"]);
        }
        _ => {
            run.signal("STOP");
            eventually("the warden ends it", || !runs(pid));
            run.signal("CONT");
            assert_eq!(run.end().code, 76);
        }
    }
}

#[test]
fn command_that_leaves_its_group_does_not_outlive_the_lock() {
    let server = Server::start();
    for wrapper in [&["timeout", "1000"][..], &["setsid"]] {
        for how in ["gone", "killed", "stopped"] {
            let script = Script::after("trap '' TERM");
            let stubborn = script.of(STUBBORN);
            let command = [wrapper, &["sh", "-c", &stubborn]].concat();
            let (run, pid) = start(&server, &script, &command);
            ends_with_the_lock(&server, how, run, pid);
        }
    }
}

#[test]
fn descendant_in_a_session_of_its_own_does_not_outlive_the_lock() {
    let server = Server::start();
    for how in ["gone", "killed", "stopped"] {
        let script = Script::after("trap '' TERM");
        let stubborn = script.of(STUBBORN).replace('$', "\\$");
        // The shell ends at TERM, so that the KILL finds its child without a parent.
        let nested = format!("setsid sh -c \"{stubborn}\" & wait");
        let (run, pid) = start(&server, &script, &["sh", "-c", &nested]);
        ends_with_the_lock(&server, how, run, pid);
    }
}

#[test]
fn what_has_left_the_family_goes_on() {
    let server = Server::start();
    let script = Script::new();
    let sleep = script.of("exec sleep 100").replace('$', "\\$");
    // Its parent has ended: nothing says whose child it was.
    let daemon = format!("(setsid sh -c \"{sleep}\" >/dev/null 2>&1 &); echo left; exec sleep 100");
    let (mut run, pid) = start(&server, &script, &["sh", "-c", &daemon]);
    assert_eq!(run.line(), "left");
    server.connection().command(&["DEL", "l"]);
    assert_eq!(run.end().code, 76);
    assert!(runs(pid));
    send("KILL", pid);
}

#[test]
fn signals_reach_a_command_that_has_left_its_group() {
    let server = Server::start();
    for signal in ["INT", "TERM", "HUP", "QUIT"] {
        for wrapper in [&["timeout", "1000"][..], &["setsid"]] {
            let script = Script::new();
            let endless = script.of("while :; do sleep 0.05; done");
            let trap = format!("trap 'echo got it; exit' {signal}; {endless}");
            let command = [wrapper, &["sh", "-c", &trap]].concat();
            let (run, _) = start(&server, &script, &command);
            run.signal(signal);
            // `timeout` tells its command once more, which may end it within the trap.
            let ended = run.end();
            assert!(ended.out.starts_with("got it"), "{signal} {ended:?}");
            assert!(!server.connection().exists("l"));
        }
    }
}
