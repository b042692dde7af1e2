//! Weaves patches into a copy of the sources: `redlatch-mutants TREE PATCH..`. Built once, the copy does what the
//! sources do, or what one patch makes of them, as the environment of the process says:
//!
//! - `REDLATCH_MUTANT=NAME` for a patch of functions;
//! - `REDLATCH_LUA=TREE/woven/NAME/lua` for a patch of scripts, whose text is read there.

mod bodies;
mod weave;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::{env, fs, io};

use weave::{Variant, weave};

/// Goes into each crate that is patched.
const CHOICE: &str = include_str!("choice.rs");
/// How a script's text is known to the library, and what it becomes.
const TEXT: (&str, &str) = (
    "        self.source\n",
    "        crate::mutant::text(self.name, self.source)\n",
);
/// What may be patched.
const WOVEN: [&str; 4] = ["src/", "memory/src/", "cli/src/", "lua/"];
const SCRIPTS: &str = "src/protocol/script.rs";

fn main() -> ExitCode {
    let mut args = env::args_os().skip(1).map(PathBuf::from);
    let Some(tree) = args.next() else {
        eprintln!("usage: redlatch-mutants TREE PATCH..");
        return ExitCode::from(2);
    };
    match weave_all(&tree, &args.collect::<Vec<_>>()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn weave_all(tree: &Path, patches: &[PathBuf]) -> io::Result<()> {
    let mut variants: BTreeMap<String, Vec<Variant>> = BTreeMap::new();
    let mut wrong = Vec::new();
    for patch in patches {
        let mutant = patch.file_stem().and_then(|stem| stem.to_str());
        let mutant = mutant.ok_or(io::ErrorKind::InvalidInput)?;
        let folder = tree.join("woven").join(mutant);
        let files = patched(tree, patch, &folder)?;
        if files.is_empty() {
            wrong.push(format!("{mutant} does not apply"));
        }
        let lasting = |file: &&String| !WOVEN.iter().any(|folder| file.starts_with(folder));
        if let Some(file) = files.iter().find(lasting) {
            wrong.push(format!("{mutant} changes {file}, where nothing is chosen"));
        }
        for file in files.into_iter().filter(|file| file.ends_with(".rs")) {
            let source = fs::read_to_string(folder.join(&file))?;
            variants
                .entry(file)
                .or_default()
                .push(Variant { mutant, source });
        }
    }
    for (file, variants) in variants {
        let path = tree.join(&file);
        match weave(&fs::read_to_string(&path)?, &variants) {
            Ok(woven) => fs::write(path, woven)?,
            Err(mutants) => wrong.push(format!(
                "{mutants}: more than bodies of functions in {file}"
            )),
        }
    }
    if !wrong.is_empty() {
        return Err(io::Error::other(wrong.join("\n")));
    }
    let scripts = fs::read_to_string(tree.join(SCRIPTS))?;
    assert!(scripts.contains(TEXT.0), "{SCRIPTS} has no {}", TEXT.0);
    fs::write(tree.join(SCRIPTS), scripts.replace(TEXT.0, TEXT.1))?;
    for root in ["src/lib.rs", "memory/src/lib.rs", "cli/src/main.rs"] {
        let root = tree.join(root);
        let source = fs::read_to_string(&root)?;
        fs::write(&root, source + "\nmod mutant;\n")?;
        fs::write(root.with_file_name("mutant.rs"), CHOICE)?;
    }
    Ok(())
}

/// Puts the patched files, and all scripts if one is patched, into a folder. Returns the files, none if the patch does
/// not apply.
fn patched(tree: &Path, patch: &Path, folder: &Path) -> io::Result<Vec<String>> {
    let text = fs::read_to_string(patch)?;
    let files = text.lines().filter_map(|line| line.strip_prefix("+++ b/"));
    let files: Vec<String> = files.map(|file| file.trim_end().to_owned()).collect();
    for file in &files {
        copy(tree, folder, Path::new(file))?;
    }
    if files.iter().any(|file| file.ends_with(".lua")) {
        for entry in fs::read_dir(tree.join("lua"))? {
            copy(tree, folder, &Path::new("lua").join(entry?.file_name()))?;
        }
    }
    let status = Command::new("patch")
        .args(["-s", "-f", "-p1", "--no-backup-if-mismatch", "-d"])
        .arg(folder)
        .stdin(fs::File::open(patch)?)
        .stdout(Stdio::null())
        .status()?;
    Ok(if status.success() { files } else { Vec::new() })
}

fn copy(tree: &Path, folder: &Path, file: &Path) -> io::Result<()> {
    let to = folder.join(file);
    fs::create_dir_all(to.parent().unwrap_or(folder))?;
    fs::copy(tree.join(file), to).map(drop)
}
