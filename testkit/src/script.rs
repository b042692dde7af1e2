use std::sync::LazyLock;
use std::{env, fs};

/// The name of each script in the table, and its source put together from its files.
static LISTED: LazyLock<Vec<(String, String)>> = LazyLock::new(listed);

/// Returns the source of a script as it is sent, by its name in `src/protocol/script.rs` in lower case: its file in
/// `lua/`, preceded by the files that are listed before it.
///
/// # Panics
/// Panics if there is no script of that name.
pub fn script(name: &str) -> &'static str {
    let entry = LISTED.iter().find(|(listed, _)| listed == name);
    let (_, source) = entry.unwrap_or_else(|| panic!("{name} is no script"));
    source
}

/// Returns the names of all scripts.
pub fn script_names() -> impl Iterator<Item = &'static str> {
    LISTED.iter().map(|(name, _)| &**name)
}

/// Returns the sources of all scripts.
pub fn scripts() -> impl Iterator<Item = &'static str> {
    LISTED.iter().map(|(_, source)| &**source)
}

fn listed() -> Vec<(String, String)> {
    let top = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
    // A mutant has scripts of its own, see `scripts/mutants`.
    let lua = env::var("REDLATCH_LUA").unwrap_or_else(|_| format!("{top}/lua"));
    let read = |path: &str| fs::read_to_string(path).expect("a checkout");
    read(&format!("{top}/src/protocol/script.rs"))
        .lines()
        .filter_map(|line| line.split_once(" Arity::")?.0.split_once(" = "))
        .map(|(id, files)| {
            let files = files.split('"').skip(1).step_by(2);
            let source = files
                .map(|file| read(&format!("{lua}/{file}.lua")))
                .collect();
            (id.trim().to_lowercase(), source)
        })
        .collect()
}
