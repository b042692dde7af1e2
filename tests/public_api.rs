//! Compares the public API with the list in `tests/public-api.txt`, so that no change of it goes unseen.
//!
//! After a change: `REDLATCH_API=write cargo test --test public_api`, then read the difference.
#![allow(
    clippy::expect_used,
    reason = "a page that cannot be made ends the test"
)]

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use redlatch_testkit::skip;

/// The compiler whose rustdoc writes the format that `public-api` reads.
const COMPILER: &str = "rustc 1.95";

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

/// What cargo runs for the tests in the documentation of each crate: instead, it writes that of the library as JSON.
///
/// So the libraries are used that the tests were built with; cargo would check them all once more for documentation
/// alone. With unstable options allowed for cargo as a whole, it would build them again.
const RUSTDOC: &str = r#"#!/bin/sh
case " $* " in *" --crate-name redlatch "*) ;; *) exit 0 ;; esac
for word; do
    shift
    [ "$word" = --test ] || set -- "$@" "$word"
done
RUSTC_BOOTSTRAP=1 exec rustdoc "$@" -D warnings -Z unstable-options --output-format json --out-dir target/doc
"#;

fn rustdoc() -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("rustdoc");
    fs::write(&path, RUSTDOC).expect("a file");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("its mode");
    path
}

/// Returns the path of the crate's documentation as JSON.
fn documented() -> PathBuf {
    let mut cargo = Command::new(env!("CARGO"));
    // What cargo has set for this test. Build scripts depend on some of it, and cargo would build their crates and all
    // that needs them again, under the feet of tests that use these libraries.
    for (name, _) in env::vars_os() {
        let text = name.to_string_lossy();
        if ["CARGO_PKG_", "CARGO_MANIFEST_"]
            .iter()
            .any(|of_this| text.starts_with(of_this))
        {
            cargo.env_remove(&name);
        }
    }
    let features = env::var("REDLATCH_FEATURES").unwrap_or_else(|_| "--all-features".to_owned());
    let ended = cargo
        .current_dir(ROOT)
        .env("RUSTDOC", rustdoc())
        .args("test --quiet --locked --workspace --doc --target-dir target".split(' '))
        .arg(features)
        .output()
        .expect("cargo");
    assert!(
        ended.status.success(),
        "{}",
        String::from_utf8_lossy(&ended.stderr)
    );
    Path::new(ROOT).join("target/doc/redlatch.json")
}

#[test]
fn public_api_is_as_listed() {
    let version = Command::new("rustc").arg("--version").output();
    let version = String::from_utf8(version.expect("rustc").stdout).expect("a text");
    if !version.starts_with(COMPILER) {
        return skip("api", &format!("the list is written with {COMPILER}"));
    }
    let api = public_api::Builder::from_rustdoc_json(documented())
        .omit_blanket_impls(true)
        .omit_auto_trait_impls(true)
        .build()
        .expect("the format of this compiler");
    let api = format!("{api}");
    let list = Path::new(ROOT).join("tests/public-api.txt");
    if env::var_os("REDLATCH_API").is_some() {
        return fs::write(list, api).expect("a file");
    }
    let listed = fs::read_to_string(list).expect("the list");
    let only = |one: &str, other: &str, sign: &str| -> Vec<String> {
        one.lines()
            .filter(|line| other.lines().all(|also| also != *line))
            .map(|line| format!("{sign} {line}"))
            .collect()
    };
    let mut changes = only(&listed, &api, "-");
    changes.extend(only(&api, &listed, "+"));
    assert!(
        changes.is_empty(),
        "the public API has changed:\n{}",
        changes.join("\n")
    );
}
