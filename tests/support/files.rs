//! The files of the repository, for tests that read them.
#![allow(unreachable_pub, reason = "programs of one file use it too")]

use std::fs;
use std::path::{Path, PathBuf};

/// Returns every file in a folder and in the folders below it.
pub fn files(root: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            match path.is_dir() {
                true => folders.push(path),
                false => files.push(path),
            }
        }
    }
    files
}
