//! Starts `redlatch`, and waits for what it does.

use std::fmt::Debug;
use std::fs;
use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Output, Stdio};
use std::sync::Once;
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use redlatch_testkit::Server;
use tempfile::{TempDir, tempdir_in};
use tokio::runtime::Builder;
use tokio::signal::unix::{SignalKind, signal};

pub(crate) const KINDS: [&str; 7] = [
    "reentrant",
    "fair",
    "fenced",
    "spin",
    "plain",
    "read",
    "write",
];

/// A loaded machine may take this long for anything.
const LIMIT: Duration = Duration::from_secs(60);

/// Has the processes that this one starts get signals that this one was started to ignore, as in the background of a
/// script: `redlatch` would ignore them too.
fn take_signals() {
    static DONE: Once = Once::new();
    DONE.call_once(|| {
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
        let ignored = line.map_or(0, |set| u64::from_str_radix(set.trim(), 16).expect("a set"));
        let runtime = Builder::new_current_thread().enable_io().build();
        let runtime = runtime.expect("a runtime");
        let _entered = runtime.enter();
        for number in [
            SignalKind::hangup(),
            SignalKind::interrupt(),
            SignalKind::quit(),
        ] {
            // A handler is not passed on, other than the wish to ignore.
            if ignored & (1 << (number.as_raw_value() - 1)) != 0 {
                drop(signal(number).expect("a handler"));
            }
        }
    });
}

/// Returns the command with these arguments, for the server at `url`.
pub(crate) fn redlatch(url: &str, args: &[&str]) -> Command {
    take_signals();
    let mut command = Command::new(env!("CARGO_BIN_EXE_redlatch"));
    command
        .args(args)
        .env("REDIS_URL", url)
        .stdin(Stdio::null());
    command
}

/// Runs it to its end.
pub(crate) fn outcome(server: &Server, args: &[&str]) -> Outcome {
    redlatch(&server.url(), args).output().expect("run").into()
}

/// How a process has ended, with the code by which a shell tells of it.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Outcome {
    /// Returns what `redlatch` itself says; a shell says of a child that it was terminated.
    pub(crate) fn notes(&self) -> Vec<&str> {
        let lines = self.err.lines();
        lines
            .filter(|line| line.starts_with("redlatch: "))
            .collect()
    }
}

impl From<Output> for Outcome {
    fn from(output: Output) -> Self {
        let status = output.status;
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("UTF-8");
        Self {
            code: status
                .code()
                .unwrap_or_else(|| 128 + status.signal().expect("a signal")),
            out: text(output.stdout),
            err: text(output.stderr),
        }
    }
}

/// A `redlatch` that runs. Dropped, it is killed, and its warden ends its command.
#[derive(Debug)]
pub(crate) struct Running(Option<Child>);

impl Running {
    pub(crate) fn start(server: &Server, args: &[&str]) -> Self {
        Self::of(redlatch(&server.url(), args))
    }

    /// Runs a command that holds a lock of this kind, and waits until it does.
    pub(crate) fn holding(url: &str, kind: &str, name: &str) -> Self {
        let run = ["run", "--kind", kind, name, "--"];
        let command = ["sh", "-c", "echo held; exec sleep 100"];
        let mut holder = Self::of(redlatch(url, &[&run[..], &command].concat()));
        assert_eq!(holder.line(), "held");
        holder
    }

    pub(crate) fn of(mut command: Command) -> Self {
        let child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn();
        Self(Some(child.expect("start")))
    }

    pub(crate) fn pid(&self) -> i32 {
        self.0.as_ref().expect("runs").id() as i32
    }

    pub(crate) fn signal(&self, signal: &str) {
        send(signal, self.pid());
    }

    pub(crate) fn has_ended(&mut self) -> bool {
        let child = self.0.as_mut().expect("runs");
        child.try_wait().expect("wait").is_some()
    }

    /// Returns its input, if that is a pipe.
    pub(crate) fn stdin(&mut self) -> Option<ChildStdin> {
        self.0.as_mut()?.stdin.take()
    }

    /// Returns its output.
    pub(crate) fn stdout(&mut self) -> Option<ChildStdout> {
        self.0.as_mut()?.stdout.take()
    }

    /// Waits for the end.
    #[track_caller]
    pub(crate) fn end(mut self) -> Outcome {
        eventually("it ends", || self.has_ended());
        let child = self.0.take().expect("runs");
        let status = child.wait_with_output().expect("its output");
        status.into()
    }

    /// Reads lines of its output until one contains a text.
    #[track_caller]
    pub(crate) fn line_with(&mut self, text: &str) -> String {
        loop {
            let line = self.line();
            assert!(!line.is_empty(), "no line with {text:?}");
            if line.contains(text) {
                return line;
            }
        }
    }

    /// Reads one line of its output.
    #[track_caller]
    pub(crate) fn line(&mut self) -> String {
        let child = self.0.as_mut().expect("runs");
        let mut out = child.stdout.take().expect("its output");
        let (sender, receiver) = channel();
        // In a thread, so that a line that does not come fails the test.
        thread::spawn(move || {
            let mut line = Vec::new();
            let mut byte = [0];
            while out.read(&mut byte).is_ok_and(|read| read == 1) && byte != *b"\n" {
                line.push(byte[0]);
            }
            sender.send((line, out)).ok();
        });
        let (line, out) = receiver.recv_timeout(LIMIT).expect("a line");
        child.stdout = Some(out);
        String::from_utf8(line).expect("UTF-8")
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            child.kill().ok();
            child.wait().ok();
        }
    }
}

/// Runs `redlatch` with these arguments, which ask for the lock `l`, and puts a script in the place of its program before
/// it has the lock: that is its warden then, and writes its process id into a file `pid` of the folder.
pub(crate) fn with_warden(server: &Server, script: &str, args: &[&str]) -> (Running, TempDir) {
    let own = Path::new(env!("CARGO_BIN_EXE_redlatch"));
    let dir = tempdir_in(own.parent().expect("its folder")).expect("a folder");
    // No copy: a file that a child of another test has open for writing cannot be run. For the same reason, a shell
    // writes the script.
    let program = dir.path().join("redlatch");
    fs::hard_link(own, &program).expect("a link");
    let holder = Running::holding(&server.url(), "reentrant", "l");
    take_signals();
    let mut command = Command::new(&program);
    command
        .args(args)
        .env("REDIS_URL", server.url())
        .stdin(Stdio::null());
    let run = Running::of(command);
    let pid = dir.path().join("pid");
    let script = format!("echo $$ >{0}.new; mv {0}.new {0}; {script}", pid.display());
    let replace = "rm redlatch; printf '#!/bin/sh\n%s\n' \"$0\" >new; chmod +x new; mv new \"$1\"";
    let replaced = Command::new("sh")
        // As the system calls a program whose file was removed.
        .args(["-c", replace, &script, "redlatch (deleted)"])
        .current_dir(&dir)
        .status();
    assert!(replaced.expect("sh").success());
    holder.signal("TERM");
    holder.end();
    (run, dir)
}

/// Sends a signal to a process.
pub(crate) fn send(signal: &str, pid: i32) {
    let sent = Command::new("kill")
        .args(["-s", signal, "--"])
        .arg(pid.to_string())
        .status();
    assert!(sent.expect("kill").success());
}

/// Whether a process runs: not one that has ended and that nobody has waited for.
pub(crate) fn runs(pid: i32) -> bool {
    !matches!(&*state_of(pid), "" | "Z" | "X")
}

/// Returns the letter for the state of a process, or an empty text if there is none.
pub(crate) fn state_of(pid: i32) -> String {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rsplit_once(") ").map(|(_, rest)| &rest[..1]);
    state.unwrap_or_default().to_owned()
}

/// Returns the children of a process that run with this word on their command line.
pub(crate) fn children_of(parent: i32, word: &str) -> Vec<i32> {
    let processes = fs::read_dir("/proc").expect("processes").flatten();
    let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let is_one = |pid: &i32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let rest = stat.rsplit_once(") ").map_or("", |(_, rest)| rest);
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        rest.split(' ').nth(1) == Some(&*parent.to_string())
            && line
                .split(|byte| *byte == 0)
                .any(|it| it == word.as_bytes())
    };
    pids.filter(is_one).collect()
}

/// Returns the process group of a process: the id of the warden, if it runs under a lock.
pub(crate) fn group_of(pid: i32) -> i32 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).expect("a process");
    let rest = stat.rsplit_once(") ").expect("its name").1;
    rest.split(' ')
        .nth(2)
        .expect("its group")
        .parse()
        .expect("a number")
}

/// Waits for the number that a script writes into a file.
#[track_caller]
pub(crate) fn number_in(file: &Path) -> i32 {
    let read = || fs::read_to_string(file).ok()?.trim().parse().ok();
    eventually("a number is written", || read().is_some());
    read().expect("a number")
}

/// Waits until a condition holds.
#[track_caller]
pub(crate) fn eventually(what: impl Debug, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + LIMIT;
    while !holds() {
        assert!(Instant::now() < end, "not within {LIMIT:?}: {what:?}");
        thread::sleep(Duration::from_millis(5));
    }
}
