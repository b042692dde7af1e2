//! Where the compiler points if the attribute is used wrong, and what is said.
//!
//! After a change of its messages, or of the compiler's: `REDLATCH_UI=write cargo test --all-features --test attribute`,
//! then read the difference.

use std::path::{Path, PathBuf};
use std::{env, fs};

use redlatch_testkit::skip;

use crate::compiler::{self, HERE};

#[test]
fn wrong_use_is_an_error_that_points_at_the_argument() {
    compare("ui");
}

#[test]
fn wrong_types_are_errors_of_the_compiler_that_point_at_the_argument() {
    match compiler::version().starts_with("rustc 1.95") {
        true => compare("types"),
        false => skip("ui", "the messages are those of rustc 1.95"),
    }
}

/// Compiles the sources in a folder as the modules of one program, and compares what is said of each with the text that
/// lies next to it.
fn compare(folder: &str) {
    let entries = fs::read_dir(Path::new(HERE).join(folder)).unwrap();
    let mut sources: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    sources.retain(|path| path.extension().is_some_and(|extension| extension == "rs"));
    sources.sort();
    assert!(!sources.is_empty(), "{folder} has no sources");
    let program: String = sources.iter().map(|path| module(path)).collect();
    let errors = compiler::errors(&program);
    let mut different = Vec::new();
    for path in sources {
        let below = path.strip_prefix(HERE).unwrap().to_str().unwrap();
        let ours = errors.iter().filter(|error| error.file == below);
        let said: Vec<&str> = ours.map(|error| &*error.text).collect();
        let said = said.join("\n");
        let listed = path.with_extension("stderr");
        if env::var_os("REDLATCH_UI").is_some() {
            fs::write(&listed, &said).unwrap();
        } else if said.is_empty() || fs::read_to_string(&listed).unwrap_or_default() != said {
            different.push(format!("{below}:\n{said}"));
        }
    }
    assert!(different.is_empty(), "{}", different.join("\n\n"));
}

fn module(source: &Path) -> String {
    let name = source.file_stem().unwrap().to_str().unwrap();
    let below = source.strip_prefix(HERE).unwrap().display();
    format!("#[path = \"{below}\"] mod {name};\n")
}
