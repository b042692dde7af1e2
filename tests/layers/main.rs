//! Checks that the modules under `src/` name only what lies below them, that foreign crates are used only in the
//! sources that are listed for them, and that words that were replaced do not come back.
#![allow(
    clippy::expect_used,
    reason = "a source that cannot be read ends the test"
)]

#[path = "../support/files.rs"]
mod files;
mod table;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use files::files;
use table::may_name;

/// Names that may occur only in the sources listed next to them, each the beginning of a path.
const DOORS: &[(&str, &[&str])] = &[
    (
        "fred",
        &["builder.rs", "builder/clients.rs", "config/", "lib.rs"],
    ),
    ("crc16", &["session/backend/slots.rs"]),
    ("redlatch_memory", &["clock.rs", "memory.rs"]),
    (
        "rustls",
        &[
            "config/",
            "session/backend/secured.rs",
            "session/backend/tls.rs",
        ],
    ),
    ("percent_encoding", &["config/url.rs"]),
    ("serde", &["config/", "stats.rs"]),
    ("rustix", &["clock.rs", "label.rs"]),
    // Leases are counted on a clock that keeps running while the machine is suspended.
    // Next to a server in memory, it is tokio's, which `redlatch_memory` asks.
    ("Instant", &[]),
    ("SystemTime", &[]),
    (
        "BootInstant::now",
        &[
            "admin/",
            "clock.rs",
            "options.rs",
            "pace.rs",
            "session/",
            "hold/",
            "lock/",
            "client.rs",
            "counter.rs",
            "leader/",
            "job.rs",
            "semaphore/",
            "wait.rs",
        ],
    ),
    (
        "tokio",
        &[
            "admin/",
            "config/connect.rs",
            "memory.rs",
            "owner.rs",
            "scope.rs",
            "session/",
            "hold/",
            "wait.rs",
            "leader/",
            "lock/",
            "outage.rs",
            "job.rs",
            "client.rs",
        ],
    ),
    ("dashmap", &["session/local_lock.rs"]),
    (
        "futures_util",
        &["admin/", "config/", "hold/", "lock/", "session/"],
    ),
    (
        "tracing",
        &[
            "session/",
            "hold/",
            "lock/",
            "latch.rs",
            "leader/",
            "outage.rs",
            "job.rs",
            "semaphore/",
            "client.rs",
            "lib.rs",
        ],
    ),
];

/// Words that meant something other than in the literature, or several things. ARCHITECTURE.md has those in use.
const RETIRED: [&str; 20] = [
    "hold number",
    "companion",
    "anchor",
    "alarm",
    "book",
    "convoy",
    "debt",
    "defeat",
    "donor",
    "duty",
    "errand",
    "forgive",
    "franchise",
    "heed",
    "heeds",
    "loan",
    "loans",
    "verdict",
    "vigil",
    "streaks",
];

#[test]
fn modules_name_only_what_lies_below_them() {
    let sources = sources();
    let modules: Vec<&str> = sources
        .keys()
        .map(|path| module(path).leak() as &str)
        .collect();
    let mut named = 0;
    let mut upward = Vec::new();
    for (path, code) in &sources {
        let from = module(path);
        for target in targets(&from, code, &modules) {
            named += 1;
            if !may_name(&from, &target) {
                upward.push(format!("{from} names {target}"));
            }
        }
    }
    assert_eq!(upward, Vec::<String>::new());
    assert!(
        named > 50,
        "only {named} paths were found: the search is broken"
    );
}

// fault: S38
#[test]
fn foreign_crates_and_the_clock_stay_behind_their_doors() {
    let mut breaches = Vec::new();
    for (path, code) in &sources() {
        for (word, doors) in DOORS {
            if !doors.iter().any(|door| path.starts_with(door)) && names(code, word) {
                breaches.push(format!("src/{path} names {word}"));
            }
        }
    }
    assert_eq!(breaches, Vec::<String>::new());
}

#[test]
fn retired_words_do_not_come_back() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let pages = ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"].map(|page| root.join(page));
    let mut found = Vec::new();
    let mut read = 0;
    for path in files(&root.join("src"))
        .into_iter()
        .chain(files(&root.join("memory/src")))
        .chain(files(&root.join("lua")))
        .chain(files(&root.join("docs")))
        .chain(pages)
    {
        let text = fs::read_to_string(&path).expect("a text");
        read += 1;
        for (at, line) in text.lines().enumerate() {
            let line = line.to_lowercase();
            for word in RETIRED.iter().filter(|word| names(&line, word)) {
                found.push(format!("{}:{}: {word}", path.display(), at + 1));
            }
        }
    }
    assert_eq!(found, Vec::<String>::new());
    assert!(read > 150, "only {read} files were found");
}

#[test]
fn index_of_the_tests_names_tests_that_exist() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    let index = fs::read_to_string(folder.join("README.md")).expect("the index");
    let mut missing = Vec::new();
    let mut named = 0;
    for row in index.lines().filter(|line| line.starts_with('|')) {
        let mut program = String::new();
        for word in row.split('`').skip(1).step_by(2) {
            if let Ok(text) = fs::read_to_string(folder.join(word).with_extension("rs")) {
                program = text;
            } else if word.contains('/') && !word.starts_with("src/") && !word.ends_with('/') {
                missing.push(word.to_owned());
            } else if program.contains("fn ") && word.matches('_').count() > 2 {
                named += 1;
                if !["(", "<"]
                    .iter()
                    .any(|next| program.contains(&format!("fn {word}{next}")))
                {
                    missing.push(word.to_owned());
                }
            }
        }
    }
    assert_eq!(missing, Vec::<String>::new());
    assert!(named > 20, "only {named} names were found");
}

#[test]
fn search_finds_paths_but_not_in_comments_and_test_modules() {
    let modules = ["hold::guard", "session", "session::hold", "session::hub"];
    let code = code(
        "use super::hold::{Hold, Loss}; // super::queue\n\
         /// See crate::hold::guard.\n\
         fn f() -> crate::session::ClientHandle {}\n\
         #[cfg(test)]\nmod tests {\n use crate::hold::guard::LockGuard;\n}\n",
    );
    assert_eq!(
        targets("session::hub", &code, &modules),
        ["session", "session::hold"]
    );
    assert!(names("use fred::clients;", "fred"));
    assert!(!names("let alfred = freddy;", "fred"));

    assert!(may_name("session::local_lock", "session::hold"));
    assert!(!may_name("session::hold", "session::local_lock"));
    assert!(!may_name("protocol::lock", "session"));
    assert!(!may_name("lock::fair", "lock::reentrant"));
    assert!(may_name("lock::fair", "hold::acquire"));
}

/// Returns the modules that the code of a module names by `crate::` and `super::` paths.
fn targets(from: &str, code: &str, modules: &[&str]) -> Vec<String> {
    let parent = from.rsplit_once("::").map_or("", |(parent, _)| parent);
    let mut found = Vec::new();
    for (start, base) in [("crate::", ""), ("super::", parent)] {
        for (at, _) in code.match_indices(start) {
            let rest = &code[at + start.len()..];
            let path: String = rest
                .chars()
                .take_while(|c| c.is_alphanumeric() || "_:".contains(*c))
                .collect();
            assert!(!path.is_empty(), "{from}: give each `use {start}` one path");
            let path = if base.is_empty() {
                path
            } else {
                format!("{base}::{path}")
            };
            let matches = modules.iter().filter(|module| {
                let rest = path.strip_prefix(**module);
                rest.is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
            });
            // A path that names no module is an item of the crate's root.
            let target = matches.max_by_key(|module| module.len()).unwrap_or(&"lib");
            found.push((*target).to_owned());
        }
    }
    found.sort();
    found
}

/// Returns whether a word occurs in the code as a whole word.
fn names(code: &str, word: &str) -> bool {
    let part = |c: char| c.is_alphanumeric() || c == '_';
    code.match_indices(word).any(|(at, _)| {
        let (before, after) = (&code[..at], &code[at + word.len()..]);
        let goes_on = word.starts_with(part) && before.ends_with(part)
            || word.ends_with(part) && after.starts_with(part);
        !goes_on
    })
}

/// Returns the module whose source has this path.
fn module(path: &str) -> String {
    let stem = path.strip_suffix(".rs").expect("a Rust source");
    stem.strip_suffix("/mod").unwrap_or(stem).replace('/', "::")
}

/// Returns every source by its path under `src/`, without comments and tests.
fn sources() -> BTreeMap<String, String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let is_source = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "rs");
    let sources = files(&root).into_iter().filter(is_source);
    sources
        .map(|path| {
            let text = fs::read_to_string(&path).expect("a source");
            let below = path.strip_prefix(&root).expect("a path under src");
            let below = below.to_str().expect("a name in UTF-8").replace('\\', "/");
            (below, code(&text))
        })
        .collect()
}

/// Returns the code of a source without its comments and without the test module at its end.
fn code(text: &str) -> String {
    let text = text.split("#[cfg(test)]\nmod tests").next().unwrap_or(text);
    let lines = text
        .lines()
        .map(|line| line.split("//").next().unwrap_or(line));
    lines.collect::<Vec<_>>().join("\n")
}
