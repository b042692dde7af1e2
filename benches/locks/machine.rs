//! The machine, the server and the commit that are measured, and the day.

use std::fs;
use std::process::Command;
use std::thread::available_parallelism;

use redlatch_testkit::Server;

/// The machine, the server, the commit and the day, each as text for people.
#[derive(Debug)]
pub(crate) struct Machine {
    pub(crate) processor: String,
    pub(crate) cores: usize,
    pub(crate) kernel: String,
    pub(crate) server: String,
    pub(crate) commit: String,
    pub(crate) date: String,
}

impl Machine {
    pub(crate) fn here() -> Self {
        Self {
            processor: line_of("/proc/cpuinfo", "model name")
                .unwrap_or_else(|| std::env::consts::ARCH.to_owned()),
            cores: available_parallelism().map_or(1, usize::from),
            kernel: said_by("uname", &["-sr"]),
            server: server(),
            commit: commit(),
            date: said_by("date", &["-u", "+%Y-%m-%d"]),
        }
    }
}

impl std::fmt::Display for Machine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            processor,
            cores,
            kernel,
            server,
            ..
        } = self;
        write!(f, "{processor}, {cores} cores, {kernel}, {server}")
    }
}

fn line_of(file: &str, field: &str) -> Option<String> {
    let text = fs::read_to_string(file).ok()?;
    let line = text.lines().find(|line| line.starts_with(field))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

fn server() -> String {
    let info = Server::start().connection().command(&["INFO", "server"]);
    let info = info.text();
    let field = |name: &str| {
        info.lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
            .map(str::trim)
    };
    match field("valkey_version") {
        Some(version) => format!("Valkey {version}"),
        None => format!(
            "Redis {}",
            field("redis_version").unwrap_or("of an unknown version")
        ),
    }
}

fn commit() -> String {
    let commit = said_by("git", &["rev-parse", "--short=12", "HEAD"]);
    let changes = ["status", "--porcelain", "--untracked-files=no"];
    if said_by("git", &changes).is_empty() {
        commit
    } else {
        format!("{commit}, changed")
    }
}

/// Returns the output of a command, or "unknown" if it cannot be run or fails.
fn said_by(command: &str, args: &[&str]) -> String {
    let output = Command::new(command)
        .args(args)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output();
    match output {
        Ok(output) if output.status.success() => {
            String::from_utf8_lossy(&output.stdout).trim().to_owned()
        }
        _ => "unknown".to_owned(),
    }
}
