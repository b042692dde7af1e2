use std::ffi::OsStr;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::binary;

const READY_LIMIT: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(5);

/// A child process with a log file, killed on drop.
#[derive(Debug)]
pub(crate) struct Process {
    child: Child,
    watchdog: Child,
    log: PathBuf,
}

impl Process {
    /// Runs the server program in `dir`, with its output in a log file there.
    pub(crate) fn spawn(
        dir: &Path,
        args: impl IntoIterator<Item = impl AsRef<OsStr>>,
    ) -> Result<Self, String> {
        let program = binary::locate()?;
        let log = dir.join("log");
        let output = File::create(&log).map_err(|error| format!("{}: {error}", log.display()))?;
        let errors = output.try_clone().map_err(|error| error.to_string())?;
        let child = Command::new(&program)
            .args(args)
            .current_dir(dir)
            .stdin(Stdio::null())
            .stdout(output)
            .stderr(errors)
            .spawn()
            .map_err(|error| format!("cannot run {}: {error}", program.display()))?;
        let watchdog = watchdog(&child).map_err(|error| format!("cannot run sh: {error}"))?;
        Ok(Self {
            child,
            watchdog,
            log,
        })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn log(&self) -> String {
        fs::read(&self.log)
            .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
            .unwrap_or_default()
    }

    /// Polls until `ready` returns `true`. Returns an error with the log if the process exits or is not ready in time.
    pub(crate) fn wait_until(
        &mut self,
        mut ready: impl FnMut(&Self) -> bool,
    ) -> Result<(), String> {
        let deadline = Instant::now() + READY_LIMIT;
        loop {
            let exited = self.has_exited();
            if !exited && ready(self) {
                return Ok(());
            }
            if exited {
                return Err(format!("the server exited, its log:\n{}", self.log()));
            }
            if Instant::now() > deadline {
                return Err(format!("the server is not ready, its log:\n{}", self.log()));
            }
            thread::sleep(POLL);
        }
    }

    pub(crate) fn signal(&mut self, signal: Signal) {
        assert!(!self.has_exited(), "the server is not running");
        kill_process(Pid::from_child(&self.child), signal).expect("signal the server");
    }

    pub(crate) fn kill(&mut self) {
        // The watchdog ends first: it must not outlive the process id that it kills.
        let _ = self.watchdog.kill();
        let _ = self.watchdog.wait();
        if !self.has_exited() {
            let _ = kill_process(Pid::from_child(&self.child), Signal::CONT);
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    fn has_exited(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Starts a shell that kills `child` once the shell's standard input closes. That also happens when this process aborts
/// or keeps its servers in statics.
fn watchdog(child: &Child) -> std::io::Result<Child> {
    Command::new("sh")
        .args(["-c", "read -r _; kill -9 \"$1\"", "watchdog"])
        .arg(child.id().to_string())
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
}
