//! The requirements for running Redisson: a JDK, Maven to fetch Redisson, and the compiled program from
//! `tests/interop/java/`.

use std::env;
use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

const PROJECT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/interop/java");
const OLDEST_JDK: u32 = 17;
/// How long Maven may take to fetch some twenty megabytes, or to give up without a network.
const FETCH_LIMIT: Duration = Duration::from_secs(180);

/// The environment variable that selects another version of Redisson than the one in `pom.xml`.
const VERSION: &str = "REDLATCH_REDISSON";

/// Returns the version of Redisson that was asked for, or `None` for the one in `pom.xml`.
fn asked_for() -> Option<String> {
    env::var(VERSION).ok().filter(|version| !version.is_empty())
}

/// Returns the class path of the program, or an error that says what is missing to run it.
///
/// # Panics
/// If the program cannot be compiled.
pub(crate) fn class_path() -> Result<String, String> {
    let version = run("javac", &["-version"])?;
    let version = String::from_utf8_lossy(&version.stdout);
    let version = version.trim().trim_start_matches("javac ");
    let major = version
        .split(['.', '-'])
        .next()
        .and_then(|n| n.parse().ok());
    if major.is_none_or(|major: u32| major < OLDEST_JDK) {
        return Err(format!(
            "JDK {OLDEST_JDK} or later is missing, this is {version}"
        ));
    }
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("interop");
    // Several programs may run at the same time, each with its own version of Redisson.
    let dir = match asked_for() {
        Some(version) => dir.join(version),
        None => dir,
    };
    let classes = dir.join("classes");
    fs::create_dir_all(&classes).expect("a folder for the classes");
    let fetched = fetch(&dir.join("classpath"))?;
    compile(&classes, &fetched);
    Ok(format!("{}:{fetched}", classes.display()))
}

/// Returns the class path of the program's dependencies, which are fetched unless they are there already.
fn fetch(list: &Path) -> Result<String, String> {
    let known = fs::read_to_string(list).unwrap_or_default();
    let is_there = |path| Path::new(path).exists();
    if is_newer(list, &Path::new(PROJECT).join("pom.xml")) && known.split(':').all(is_there) {
        return Ok(known);
    }
    let output = format!("-Dmdep.outputFile={}", list.display());
    let redisson = asked_for().map(|version| format!("-Dredisson.version={version}"));
    let mut goal = vec![
        "-q",
        "-B",
        "-f",
        PROJECT,
        "dependency:build-classpath",
        &output,
    ];
    goal.extend(redisson.as_deref());
    let offline = run("mvn", &[&["-o"], &goal[..]].concat())?;
    if !offline.status.success() {
        let online = run("mvn", &goal)?;
        if !online.status.success() {
            let log = String::from_utf8_lossy(&online.stdout).into_owned();
            let first = log.lines().next().unwrap_or("no reason given");
            return Err(format!("Maven cannot fetch Redisson: {first}"));
        }
    }
    Ok(fs::read_to_string(list).expect("Maven wrote the class path"))
}

fn compile(classes: &Path, class_path: &str) {
    let source = Path::new(PROJECT).join("src/main/java/redlatch/interop/Peer.java");
    if is_newer(&classes.join("redlatch/interop/Peer.class"), &source) {
        return;
    }
    let compiled = Command::new("javac")
        .args(["-Xlint:all", "-Werror", "--release"])
        .arg(OLDEST_JDK.to_string())
        .arg("-d")
        .arg(classes)
        .args(["-cp", class_path])
        .arg(source)
        .output()
        .expect("javac was there just now");
    let log = String::from_utf8_lossy(&compiled.stderr);
    assert!(compiled.status.success(), "{log}");
}

fn is_newer(made: &Path, source: &Path) -> bool {
    let changed = |path: &Path| fs::metadata(path).and_then(|file| file.modified());
    matches!((changed(made), changed(source)), (Ok(made), Ok(source)) if made > source)
}

/// Runs a program to its end. Returns an error if the program is missing, cannot be run, or does not end in time.
fn run(program: &str, args: &[&str]) -> Result<Output, String> {
    let child = Command::new(program)
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut child = match child {
        Ok(child) => child,
        Err(error) if error.kind() == ErrorKind::NotFound => {
            return Err(format!("{program} is missing"));
        }
        Err(error) => return Err(format!("{program} cannot be run: {error}")),
    };
    let end = Instant::now() + FETCH_LIMIT;
    while child.try_wait().is_ok_and(|status| status.is_none()) {
        if Instant::now() > end {
            child.kill().ok();
            child.wait().ok();
            return Err(format!("{program} does not end"));
        }
        sleep(Duration::from_millis(10));
    }
    child
        .wait_with_output()
        .map_err(|error| format!("{program}: {error}"))
}
