//! The compiler by itself, on the libraries that this program was linked with: cargo would build them once more.

use std::env::consts::{DLL_EXTENSION, DLL_PREFIX};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::LazyLock;
use std::{env, fs};

use serde_json::Value;

/// The folder in which it runs.
pub(crate) const HERE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/attribute");

/// The library as this program has it: the newest that is not newer than the program and takes what is right.
static LIBRARY: LazyLock<PathBuf> = LazyLock::new(|| {
    let forms = "#![allow(dead_code)]\nmod forms;\n";
    let mut libraries = newest_first("libredlatch-", "rlib").into_iter();
    let fits = libraries.find(|library| compile(library, forms).status.success());
    fits.expect("this program was linked with one")
});

/// An error, and the source that it points at.
pub(crate) struct Error {
    pub(crate) file: String,
    pub(crate) text: String,
}

/// Returns the errors in a program of these modules.
pub(crate) fn errors(modules: &str) -> Vec<Error> {
    let program = format!("#![allow(warnings)]\n{modules}");
    let said = String::from_utf8(compile(&LIBRARY, &program).stderr).unwrap();
    let messages = said.lines().map(|line| serde_json::from_str(line).unwrap());
    messages
        .filter_map(|message: Value| error(&message))
        .collect()
}

fn error(message: &Value) -> Option<Error> {
    let spans = message["spans"].as_array()?;
    let first = spans.iter().find(|span| span["is_primary"] == true)?;
    Some(Error {
        file: first["file_name"].as_str()?.to_owned(),
        text: portable(message["rendered"].as_str()?),
    })
}

/// Leaves out the lines of the library's own sources.
fn portable(rendered: &str) -> String {
    let portable = |line: &str| match line.split_once("--> src/") {
        Some((before, place)) => {
            let path = place.split(':').next().unwrap_or(place);
            format!("{before}--> src/{path}\n")
        }
        None => format!("{line}\n"),
    };
    rendered.trim_end().lines().map(portable).collect()
}

fn compile(library: &Path, modules: &str) -> Output {
    let async_trait = format!("{DLL_PREFIX}async_trait-");
    let async_trait = newest_first(&async_trait, DLL_EXTENSION).swap_remove(0);
    let mut child = rustc()
        .current_dir(HERE)
        .args("--edition 2024 --crate-name program --emit metadata --error-format json --diagnostic-width 140".split(' '))
        .args(["--out-dir", env!("CARGO_TARGET_TMPDIR")])
        .arg("-L")
        .arg(format!("dependency={}", folder().display()))
        .arg("--extern")
        .arg(format!("redlatch={}", library.display()))
        .arg("--extern")
        .arg(format!("async_trait={}", async_trait.display()))
        .arg("-")
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = child.stdin.take().unwrap();
    writeln!(input, "{modules}fn main() {{}}").unwrap();
    drop(input);
    child.wait_with_output().unwrap()
}

pub(crate) fn version() -> String {
    let output = rustc().arg("--version").output().unwrap();
    String::from_utf8(output.stdout).unwrap()
}

fn rustc() -> Command {
    Command::new(env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()))
}

/// Returns the folder of this program, in which cargo puts libraries too.
fn folder() -> PathBuf {
    env::current_exe().unwrap().parent().unwrap().to_owned()
}

/// Returns the libraries that are not newer than this program: several if they were built with several sets of features.
fn newest_first(prefix: &str, extension: &str) -> Vec<PathBuf> {
    let built = |path: &Path| fs::metadata(path).unwrap().modified().unwrap();
    let program = built(&env::current_exe().unwrap());
    let entries = fs::read_dir(folder()).unwrap();
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| {
        let name = path.file_name().unwrap().to_string_lossy();
        let named =
            name.starts_with(prefix) && path.extension().is_some_and(|end| end == extension);
        named && built(path) <= program
    });
    paths.sort_by_key(|path| std::cmp::Reverse(built(path)));
    paths
}
