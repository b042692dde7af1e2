#![allow(dead_code, missing_docs, reason = "each crate has its own use of it")]

use std::sync::LazyLock;
use std::{env, fs};

/// Returns whether this is the mutant that was chosen.
pub(crate) fn is(name: &str) -> bool {
    static CHOSEN: LazyLock<String> =
        LazyLock::new(|| env::var("REDLATCH_MUTANT").unwrap_or_default());
    *CHOSEN == name
}

/// Returns the text of a script from the folder that was chosen, if one was. Its name is that of its files.
pub(crate) fn text(name: &str, text: &'static str) -> &'static str {
    let Ok(folder) = env::var("REDLATCH_LUA") else {
        return text;
    };
    let read = |file: &str| fs::read_to_string(format!("{folder}/{file}.lua"));
    let files: Result<String, _> = name.split(' ').map(read).collect();
    files.unwrap_or_else(|error| panic!("{name}: {error}")).leak()
}
