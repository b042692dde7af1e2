//! Checks that the links in the pages lead somewhere, and that what the pages show is compiled.
#![allow(
    clippy::expect_used,
    reason = "a page that cannot be read ends the test"
)]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

#[test]
fn links_in_pages_lead_to_files_and_headings_that_exist() {
    let pages = pages();
    let mut broken = Vec::new();
    let mut followed = 0;
    for (path, page) in &pages {
        for link in links(page).filter(|link| !link.contains("://")) {
            followed += 1;
            let (file, heading) = link.split_once('#').unwrap_or((link, ""));
            let target = match file {
                "" => path.clone(),
                file => path.parent().expect("a folder").join(file),
            };
            let target = target.canonicalize().unwrap_or(target);
            let found = match heading {
                "" => target.exists(),
                heading => pages
                    .get(&target)
                    .is_some_and(|page| headings(page).any(|found| found == heading)),
            };
            if !found {
                broken.push(format!("{}: {link}", path.display()));
            }
        }
    }
    assert_eq!(broken, Vec::<String>::new());
    assert!(followed > 20, "only {followed} links were found");
}

#[test]
fn rust_in_the_pages_is_compiled() {
    let library = fs::read_to_string(Path::new(ROOT).join("src/lib.rs")).expect("the library");
    let with_rust = pages()
        .into_iter()
        .filter(|(_, page)| page.contains("```rust"));
    let names: Vec<String> = with_rust
        .map(|(path, _)| {
            let below = path.strip_prefix(ROOT).expect("a path below the root");
            below.display().to_string()
        })
        .collect();
    let missing: Vec<&String> = names
        .iter()
        .filter(|name| !library.contains(&format!("include_str!(\"../{name}\")")))
        .collect();
    assert_eq!(missing, Vec::<&String>::new());
    assert!(names.len() > 3, "only {names:?} were found");
}

#[test]
fn search_finds_links_and_headings_but_not_in_code() {
    let page =
        "# A `b`, c's\n[x](y.md#z) `[no](link)`\n```sh\n# no heading\n[no](link)\n```\n## D-e\n";
    assert_eq!(links(page).collect::<Vec<_>>(), ["y.md#z"]);
    assert_eq!(headings(page).collect::<Vec<_>>(), ["a-b-cs", "d-e"]);
}

/// Returns every page of the repository by its path.
fn pages() -> BTreeMap<PathBuf, String> {
    let mut pages = BTreeMap::new();
    let mut folders = vec![Path::new(ROOT).canonicalize().expect("the root")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            let name = path.file_name().expect("a name").to_string_lossy();
            if name.starts_with('.') || ["target", "node_modules"].contains(&&*name) {
                continue;
            }
            if path.is_dir() {
                folders.push(path);
            } else if name.ends_with(".md") {
                let page = fs::read_to_string(&path).expect("a page");
                pages.insert(path, page);
            }
        }
    }
    pages
}

/// Returns the lines of a page that are not in a block of code.
fn prose(page: &str) -> impl Iterator<Item = &str> {
    let blocks = page.split("```").step_by(2);
    blocks.flat_map(str::lines)
}

/// Returns the targets of the links of a page.
fn links(page: &str) -> impl Iterator<Item = &str> {
    // Between an even and an odd backtick there is prose.
    let spans = prose(page).flat_map(|line| line.split('`').enumerate());
    let texts = spans.filter_map(|(at, text)| (at % 2 == 0).then_some(text));
    texts.flat_map(|text| {
        let starts = text.split("](").skip(1);
        starts.filter_map(|rest| rest.split_once(')').map(|(link, _)| link))
    })
}

/// Returns the anchors that GitHub and crates.io give to the headings of a page.
fn headings(page: &str) -> impl Iterator<Item = String> {
    let lines = prose(page).filter(|line| line.starts_with('#'));
    lines.map(|line| {
        let text = line.trim_start_matches('#').trim().to_lowercase();
        let kept = text
            .chars()
            .filter(|c| c.is_alphanumeric() || "-_ ".contains(*c));
        kept.map(|c| if c == ' ' { '-' } else { c }).collect()
    })
}
