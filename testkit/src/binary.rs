use std::env;
use std::path::{Path, PathBuf};

/// Where `scripts/server` puts the server that it fetches.
const FETCHED: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../target/servers/valkey-server"
);

const MISSING: &str = "no redis-server or valkey-server found: \
    install one (`apt-get install redis-server`, `brew install redis`), \
    run `scripts/server` of the redlatch repository, \
    or set REDLATCH_SERVER to the path of a server";

/// Returns the path of the server program to run, or a text that says what to install.
pub(crate) fn locate() -> Result<PathBuf, String> {
    if let Some(chosen) = env::var_os("REDLATCH_SERVER") {
        return Ok(chosen.into());
    }
    let path = env::var_os("PATH").unwrap_or_default();
    ["redis-server", "valkey-server"]
        .iter()
        .flat_map(|name| env::split_paths(&path).map(move |dir| dir.join(name)))
        .chain([PathBuf::from(FETCHED)])
        .find(|candidate| Path::is_file(candidate))
        .ok_or_else(|| MISSING.to_owned())
}
