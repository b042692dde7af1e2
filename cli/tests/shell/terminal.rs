//! `redlatch` on a terminal, which tmux provides.
//!
//! Commands that are stopped by Ctrl-Z pause in a subshell that becomes `sleep`. A plain `sleep` is started by vfork in
//! dash, which waits for its exec and cannot be stopped meanwhile, whatever is around it.

use std::fs;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use redlatch_testkit::{Server, skip};
use tempfile::{TempDir, tempdir};

use crate::command::{KINDS, Running, eventually, number_in, runs};

/// A terminal with a shell in it, in a tmux server of its own.
struct Terminal {
    dir: TempDir,
}

impl Terminal {
    /// Returns `None` if there is no tmux: the test is skipped.
    fn open(server: &Server) -> Option<Self> {
        let found = Command::new("tmux")
            .arg("-V")
            .stdout(Stdio::null())
            .status();
        if !found.is_ok_and(|status| status.success()) {
            skip("tmux", "tmux is missing");
            return None;
        }
        let terminal = Self {
            dir: tempdir().unwrap(),
        };
        terminal.tmux(&[
            "-f",
            "/dev/null",
            "new-session",
            "-d",
            "-x",
            "150",
            "-y",
            "40",
            "bash --norc --noprofile",
        ]);
        let bin = env!("CARGO_BIN_EXE_redlatch");
        terminal.types(&format!(
            "export REDIS_URL={} R={bin}; PS1='$ '; clear",
            server.url()
        ));
        eventually("a prompt", || terminal.shows().trim() == "$");
        Some(terminal)
    }

    fn tmux(&self, args: &[&str]) -> String {
        let output = Command::new("tmux")
            .arg("-S")
            .arg(self.dir.path().join("tmux"))
            .args(args)
            .env("LC_ALL", "C.UTF-8")
            .output()
            .unwrap();
        String::from_utf8(output.stdout).unwrap()
    }

    fn types(&self, line: &str) {
        self.tmux(&["send-keys", "-l", line]);
        self.press("Enter");
    }

    /// Leaves nothing but the prompt, so that nothing is taken for what comes later.
    #[track_caller]
    fn clear(&self) {
        self.types("clear");
        eventually("a prompt", || self.shows().trim() == "$");
    }

    fn press(&self, key: &str) {
        self.tmux(&["send-keys", key]);
    }

    fn shows(&self) -> String {
        self.tmux(&["capture-pane", "-p"])
    }

    /// Presses Ctrl-C once a command runs under the lock.
    #[track_caller]
    fn interrupt(&self, server: &Server) {
        eventually("held", || server.connection().exists("t"));
        sleep(Duration::from_millis(300));
        self.press("C-c");
    }

    #[track_caller]
    fn shows_no(&self, text: &str) {
        let seen = self.shows();
        assert!(!seen.contains(text), "{text:?} is in:\n{seen}");
    }

    #[track_caller]
    fn will_show(&self, text: &str) {
        let mut seen = String::new();
        let found = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            eventually(text, || {
                seen = self.shows();
                seen.contains(text)
            });
        }));
        assert!(found.is_ok(), "{text:?} is not in:\n{seen}");
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        self.tmux(&["kill-server"]);
    }
}

#[test]
fn wait_is_shown_and_goes_away() {
    let server = Server::start();
    let Some(terminal) = Terminal::open(&server) else {
        return;
    };
    let holder = Running::holding(&server.url(), "reentrant", "t");
    terminal.types("$R run --wait 60s t -- echo it is ours");
    terminal.will_show("s of 1m: held by");
    holder.signal("TERM");
    terminal.will_show("\nit is ours");
    terminal.shows_no("waiting");
}

#[test]
fn ctrl_c_ends_the_wait_and_the_command() {
    let server = Server::start();
    let Some(terminal) = Terminal::open(&server) else {
        return;
    };
    // A shell ends the whole line if a command ends by Ctrl-C.
    terminal.types("$R run t -- sleep 100; echo and more");
    terminal.interrupt(&server);
    terminal.types("echo code $?");
    terminal.will_show("code 130");
    terminal.shows_no("\nand more");
    assert!(!server.connection().exists("t"));

    // The command decides what Ctrl-C means.
    terminal.clear();
    terminal.types(
        "$R run t -- sh -c 'trap \"echo asked\" INT; sleep 2; echo still here'; echo code $?",
    );
    terminal.interrupt(&server);
    terminal.will_show("asked");
    terminal.will_show("code 0");

    let _holder = Running::holding(&server.url(), "reentrant", "t");
    terminal.clear();
    terminal.types("$R run t -- true; echo and more");
    terminal.will_show("held by");
    terminal.press("C-c");
    terminal.types("echo code $?");
    terminal.will_show("code 130");
    terminal.shows_no("\nand more");
}

#[test]
fn command_reads_from_the_terminal() {
    let server = Server::start();
    let Some(terminal) = Terminal::open(&server) else {
        return;
    };
    terminal.types("$R run t -- sh -c 'read x; echo got $x'; echo code $?");
    eventually("held", || server.connection().exists("t"));
    terminal.types("hello");
    terminal.will_show("got hello");
    terminal.will_show("code 0");
    // In a pipeline the terminal belongs to all of it, until the command asks for it.
    terminal.clear();
    terminal.types("$R run t -- sh -c 'read x; echo got $x' | cat; echo code $?");
    eventually("held", || server.connection().exists("t"));
    terminal.types("again");
    terminal.will_show("got again");
    terminal.will_show("code 0");
    terminal.types("echo the shell has its terminal back");
    terminal.will_show("\nthe shell has its terminal back");
}

#[test]
fn ctrl_z_stops_both_and_fg_continues_both() {
    let server = Server::start();
    let Some(terminal) = Terminal::open(&server) else {
        return;
    };
    terminal.types("$R run t -- sh -c '(echo begun; exec sleep 1); echo finished'; echo code $?");
    terminal.will_show("\nbegun");
    terminal.press("C-z");
    terminal.will_show("Stopped");
    assert!(server.connection().exists("t"));
    terminal.types("clear; fg; echo code $?");
    terminal.will_show("\nfinished");
    terminal.will_show("code 0");
}

#[test]
fn fg_after_the_lease_ends_the_command() {
    let server = Server::start();
    let Some(terminal) = Terminal::open(&server) else {
        return;
    };
    let pid = terminal.dir.path().join("pid");
    terminal.types(&format!(
        "$R run t --lease renewed:1s --grace 1s -- sh -c 'echo $$ >{}; (echo begun; exec sleep 100); echo fini\"\"shed'",
        pid.display()
    ));
    terminal.will_show("\nbegun");
    let pid = number_in(&pid);
    terminal.press("C-z");
    terminal.will_show("Stopped");
    eventually("the warden ends the command", || !runs(pid));
    terminal.types("clear; fg; echo code $?");
    terminal.will_show("code 76");
    terminal.shows_no("finished");
}

#[test]
fn forced_unlock_asks_on_a_terminal() {
    let server = Server::start();
    let Some(terminal) = Terminal::open(&server) else {
        return;
    };
    let _holder = Running::holding(&server.url(), "reentrant", "t");
    terminal.types("$R unlock --force t; echo code $?");
    terminal.will_show("Release it? [y/N]");
    terminal.types("n");
    terminal.will_show("code 1");
    assert!(server.connection().exists("t"));
    terminal.clear();
    terminal.types("$R unlock --force t; echo code $?");
    terminal.will_show("Release it? [y/N]");
    terminal.types("y");
    terminal.will_show("code 0");
    assert!(!server.connection().exists("t"));
}

#[test]
fn forced_unlock_takes_the_lock_from_nobody_else_than_it_asked_about() {
    let server = Server::start();
    let Some(terminal) = Terminal::open(&server) else {
        return;
    };
    for kind in KINDS {
        let held = Running::holding(&server.url(), kind, kind);
        terminal.clear();
        terminal.types(&format!("$R unlock --force {kind}; echo {kind} code $?"));
        terminal.will_show("Release it? [y/N]");
        held.signal("TERM");
        held.end();
        let mut next = Running::holding(&server.url(), kind, kind);
        terminal.types("y");
        terminal.will_show(&format!("{kind} code 1"));
        assert!(
            terminal.shows().contains("changed hands"),
            "{}",
            terminal.shows()
        );
        assert!(
            server.connection().exists(kind) && !next.has_ended(),
            "{kind}"
        );

        terminal.clear();
        terminal.types(&format!("$R unlock --force {kind}; echo {kind} code $?"));
        terminal.will_show("Release it? [y/N]");
        next.signal("TERM");
        next.end();
        terminal.types("y");
        terminal.will_show(&format!("{kind} code 1"));
        assert!(
            terminal.shows().contains("became free"),
            "{}",
            terminal.shows()
        );
    }
}

#[test]
fn ctrl_c_ends_a_script_around_it_as_it_would_without() {
    let server = Server::start();
    let Some(terminal) = Terminal::open(&server) else {
        return;
    };
    for shell in ["sh", "bash"] {
        terminal.clear();
        terminal.types(&format!(
            "{shell} -c '$R run t -- sleep 100; echo af\"\"ter'"
        ));
        terminal.interrupt(&server);
        terminal.types("echo code $?");
        terminal.will_show("code 130");
        terminal.shows_no("after");
        assert!(!server.connection().exists("t"));
    }
    // A command that heeds it, and ends as it likes, ends nothing else.
    terminal.clear();
    terminal.types("bash -c '$R run t -- sh -c \"trap : INT; sleep 100; exit 3\"; echo af\"\"ter'");
    terminal.interrupt(&server);
    terminal.will_show("after");

    // During the wait, too.
    let _holder = Running::holding(&server.url(), "reentrant", "t");
    terminal.clear();
    terminal.types("bash -c '$R run t -- true; echo af\"\"ter'");
    terminal.will_show("held by");
    terminal.press("C-c");
    terminal.types("echo code $?");
    terminal.will_show("code 130");
    terminal.shows_no("after");
}

#[test]
fn ctrl_c_ends_a_loop_of_the_shell() {
    let server = Server::start();
    let Some(terminal) = Terminal::open(&server) else {
        return;
    };
    terminal.types("for i in 1 2 3; do $R run t -- sleep 100; done; echo lo\"\"op");
    terminal.interrupt(&server);
    eventually("free", || !server.connection().exists("t"));
    terminal.types("echo pro\"\"mpt");
    terminal.will_show("prompt");
    assert!(!server.connection().exists("t"), "{}", terminal.shows());
}

#[test]
fn ctrl_z_stops_a_script_around_it() {
    let server = Server::start();
    let Some(terminal) = Terminal::open(&server) else {
        return;
    };
    for shell in ["sh", "bash"] {
        terminal.clear();
        let script = "(echo begun; exec sleep 1); echo fini\\\"\\\"shed";
        terminal.types(&format!(
            "{shell} -c '$R run t -- sh -c \"{script}\"; echo af\"\"ter'; echo code $?"
        ));
        terminal.will_show("\nbegun");
        terminal.press("C-z");
        terminal.will_show("Stopped");
        assert!(server.connection().exists("t"));
        terminal.types("clear; fg");
        terminal.will_show("\nfinished");
        terminal.will_show("\nafter");
    }
}

#[test]
fn ctrl_z_stops_nothing_where_no_shell_could_continue_it() {
    let server = Server::start();
    let Some(terminal) = Terminal::open(&server) else {
        return;
    };
    terminal.tmux(&["set", "-g", "remain-on-exit", "on"]);
    let url = format!("REDIS_URL={}", server.url());
    let script = "echo begun; for i in 1 2 3 4; do sleep 0.5; done; echo finished";
    let run = format!(
        "{} run t -- sh -c '{script}'",
        env!("CARGO_BIN_EXE_redlatch")
    );
    // The first program of a session with this terminal, as in a container, or a child of it.
    for first in [format!("exec {run}"), format!("{run}; true")] {
        terminal.tmux(&["respawn-pane", "-k", "-e", &url, &first]);
        terminal.will_show("begun");
        terminal.press("C-z");
        terminal.will_show("finished");
    }
}

#[test]
fn command_that_waits_for_a_terminal_which_nobody_can_give_to_it_is_hung_up() {
    let server = Server::start();
    let Some(terminal) = Terminal::open(&server) else {
        return;
    };
    let go = terminal.dir.path().join("go");
    let reads = format!(
        "while [ ! -e {} ]; do sleep 0.05; done; read x </dev/tty",
        go.display()
    );
    // The shell that started it has ended, and the other one has taken the terminal back.
    terminal.types(&format!("sh -c '$R run t -- sh -c \"{reads}\" &'"));
    eventually("held", || server.connection().exists("t"));
    terminal.types("echo the shell has its ter\"\"minal back");
    terminal.will_show("the shell has its terminal back");
    fs::write(go, "").unwrap();
    eventually("free", || !server.connection().exists("t"));
}

#[test]
fn terminal_goes_with_a_command_that_leaves_its_group() {
    let server = Server::start();
    let Some(terminal) = Terminal::open(&server) else {
        return;
    };
    terminal.types("$R run t -- timeout 1000 sh -c 'read x; (echo got $x; exec sleep 100)'");
    eventually("held", || server.connection().exists("t"));
    terminal.types("hello");
    terminal.will_show("got hello");
    terminal.press("C-z");
    terminal.will_show("Stopped");
    terminal.types("clear; fg");
    terminal.will_show("timeout 1000");
    terminal.interrupt(&server);
    terminal.types("echo code $?");
    terminal.will_show("code 130");
    assert!(!server.connection().exists("t"));
}

#[test]
fn shell_that_loses_the_lock_ends_with_its_jobs_and_leaves_the_terminal() {
    let server = Server::start();
    let Some(terminal) = Terminal::open(&server) else {
        return;
    };
    let pid = terminal.dir.path().join("pid");
    let shell = "bash --norc --noprofile -i";
    let options = "--lease renewed:1s --grace 300ms";
    // A shell that is killed leaves its modes to the terminal.
    terminal.types(&format!(
        "sh -c '$R run {options} t -- {shell}; echo code $?; stty sane; read x; echo got $x'"
    ));
    eventually("held", || server.connection().exists("t"));
    terminal.types(&format!(
        "sh -c 'echo $$ >{}; exec sleep 100'",
        pid.display()
    ));
    let pid = number_in(&pid);
    server.connection().command(&["DEL", "t"]);
    terminal.will_show("code 76");
    assert!(!runs(pid));
    terminal.types("hello");
    terminal.will_show("got hello");
}
