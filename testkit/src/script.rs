use std::fs;

/// Returns the source of a script as it is sent, by its name in `src/protocol/script.rs` in lower case: its file in
/// `lua/`, preceded by the files that are listed before it.
///
/// # Panics
/// Panics if there is no script of that name.
pub fn script(name: &str) -> String {
    let listed = listed();
    let entry = listed.iter().find(|(listed, _)| listed == name);
    let (_, source) = entry.unwrap_or_else(|| panic!("{name} is no script"));
    source.clone()
}

/// Returns the names of all scripts.
pub fn script_names() -> Vec<String> {
    listed().into_iter().map(|(name, _)| name).collect()
}

/// Returns the sources of all scripts.
pub fn scripts() -> Vec<String> {
    listed().into_iter().map(|(_, source)| source).collect()
}

/// Returns the name of each script in the table, and its source put together from its files.
fn listed() -> Vec<(String, String)> {
    let top = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
    let read = |path: &str| fs::read_to_string(format!("{top}/{path}")).expect("a checkout");
    read("src/protocol/script.rs")
        .lines()
        .filter_map(|line| line.split_once(" Arity::")?.0.split_once(" = "))
        .map(|(id, files)| {
            let files = files.split('"').skip(1).step_by(2);
            let source = files.map(|file| read(&format!("lua/{file}.lua"))).collect();
            (id.trim().to_lowercase(), source)
        })
        .collect()
}
