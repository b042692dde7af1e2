//! What the programs of other locks need: a compiler, and the libraries, which are fetched the first time.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

/// A file that says which version of a library is used, and the text before the number.
pub(super) struct Pinned {
    file: &'static str,
    before: &'static str,
}

pub(super) const REDISSON: Pinned = Pinned {
    file: include_str!("../../peers/redisson/pom.xml"),
    before: "<artifactId>redisson</artifactId>",
};
pub(super) const REDSYNC: Pinned = Pinned {
    file: include_str!("../../peers/redsync/go.mod"),
    before: "github.com/go-redsync/redsync/v4 ",
};
pub(super) const RSLOCK: Pinned = Pinned {
    file: include_str!("../../peers/rslock/Cargo.lock"),
    before: "name = \"rslock\"",
};

impl Pinned {
    pub(super) fn version(&self) -> String {
        let after = self
            .file
            .split_once(self.before)
            .map_or("", |(_, after)| after);
        let version = after.trim_start_matches(|c: char| !c.is_ascii_digit());
        version
            .chars()
            .take_while(|c| c.is_ascii_digit() || *c == '.')
            .collect()
    }
}

/// Compiles the program that uses Redisson. Returns the command that runs it, or what is missing.
pub(super) fn redisson() -> Result<Command, String> {
    let (source, built) = folders("redisson")?;
    let list = built.join("classpath");
    let list_to = format!("-Dmdep.outputFile={}", list.display());
    let fetch = |offline: &[&str]| {
        let mut maven = Command::new("mvn");
        maven
            .args(offline)
            .args(["-q", "-B", "dependency:build-classpath"]);
        finished(maven.arg(&list_to).current_dir(&source))
    };
    fetch(&["-o"]).or_else(|_| fetch(&[]))?;
    let fetched = fs::read_to_string(&list).map_err(|error| error.to_string())?;
    let mut javac = Command::new("javac");
    javac.args(["--release", "17", "-cp", fetched.trim(), "-d"]);
    finished(javac.arg(&built).arg(source.join("Contestant.java")))?;
    let mut java = Command::new("java");
    let class_path = format!("{}:{}", built.display(), fetched.trim());
    java.args(["-cp", &class_path, "Contestant"]);
    Ok(java)
}

/// Compiles the program that uses redsync. Returns the command that runs it, or what is missing.
pub(super) fn redsync() -> Result<Command, String> {
    let (source, built) = folders("redsync")?;
    let program = built.join("contestant");
    let mut go = Command::new("go");
    go.args(["build", "-buildvcs=false", "-o"]);
    finished(go.arg(&program).arg(".").current_dir(source))?;
    Ok(Command::new(program))
}

/// Compiles the program that uses rslock. Returns the command that runs it, or what is missing.
pub(super) fn rslock() -> Result<Command, String> {
    let (source, built) = folders("rslock")?;
    let mut cargo = Command::new("cargo");
    cargo.args(["build", "--quiet", "--release", "--locked", "--target-dir"]);
    finished(cargo.arg(&built).current_dir(source))?;
    Ok(Command::new(built.join("release/contestant")))
}

/// Returns where the program's source is, and a folder for what is built from it.
fn folders(name: &str) -> Result<(PathBuf, PathBuf), String> {
    let program = env::current_exe().map_err(|error| error.to_string())?;
    let built = program.with_file_name("peers").join(name);
    fs::create_dir_all(&built).map_err(|error| error.to_string())?;
    Ok((Path::new(ROOT).join("benches/peers").join(name), built))
}

fn finished(command: &mut Command) -> Result<(), String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("{name}: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    Err(format!(
        "{name}: {}",
        said.lines().next().unwrap_or("failed")
    ))
}
