//! The faults in RELIABILITY.md and the tests that have them: those below a comment `// fault: S1 S2`.
//!
//! A row of the page is a fault, and its first four cells are written by hand. The others follow from the tests and from
//! their last run (`scripts/reliability`); here they are compared.
#![allow(
    clippy::expect_used,
    reason = "a page that cannot be read ends the test"
)]

#[path = "support/files.rs"]
mod files;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::{env, fs};

use files::files;

const ROOT: &str = env!("CARGO_MANIFEST_DIR");
const NOT_RUN: &str = "not run yet";

/// A test that has faults.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Test {
    /// The arguments of `cargo test` for the program that it is in.
    program: String,
    /// Its file, below `tests`, or below the root.
    place: String,
    name: String,
}

type Tests = BTreeSet<Test>;

impl Test {
    fn new(path: &Path, name: String) -> Self {
        let below = path.strip_prefix(ROOT).expect("a path below the root");
        let below = below.with_extension("");
        let parts: Vec<&str> = below.iter().filter_map(|part| part.to_str()).collect();
        let (program, place) = match &parts[..] {
            ["tests", program, ..] => (format!("--test {program}"), parts[1..].join("/")),
            ["cli", "tests", program, ..] => (
                format!("-p redlatch-cli --test {program}"),
                format!("cli/{}", parts[2..].join("/")),
            ),
            _ => ("--lib".to_owned(), parts.join("/")),
        };
        Self {
            program,
            place,
            name,
        }
    }

    fn line(&self) -> String {
        format!("{}\t{}", self.program, self.name)
    }

    /// Returns what it has in place of a deployment, if anything.
    fn means(&self) -> &'static str {
        match &*self.place {
            "layers/main" => "source",
            place if place.starts_with("src/protocol") => "model",
            place if place.starts_with("src/") => "unit",
            _ => "real",
        }
    }
}

/// Returns the numbers behind each mark of a text, and the name of the test below it.
fn marks(text: &str) -> Vec<(Vec<u8>, String)> {
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let marks = lines.iter().enumerate().filter_map(|(at, line)| {
        let numbers = line.strip_prefix("// fault: ")?.split(' ').map(number);
        let numbers: Option<_> = numbers.collect();
        let name = lines[at + 1..].iter().take(6).find_map(|line| {
            let line = line.strip_prefix("async ").unwrap_or(line);
            line.strip_prefix("fn ")?.split(['(', '<']).next()
        });
        let name = name.unwrap_or_else(|| panic!("no test below {line}"));
        Some((numbers.expect("numbers like S1"), name.to_owned()))
    });
    marks.collect()
}

fn number(word: &str) -> Option<u8> {
    word.strip_prefix('S')?.parse().ok()
}

/// Returns the tests of each fault, by its number.
fn marked() -> BTreeMap<u8, Tests> {
    let mut marked: BTreeMap<u8, Tests> = BTreeMap::new();
    for folder in ["tests", "src", "cli/tests"] {
        let mut sources = files(&Path::new(ROOT).join(folder));
        sources.retain(|path| path.extension().is_some_and(|it| it == "rs"));
        for path in sources {
            for (numbers, name) in marks(&fs::read_to_string(&path).expect("a text")) {
                for number in numbers {
                    let tests = marked.entry(number).or_default();
                    tests.insert(Test::new(&path, name.clone()));
                }
            }
        }
    }
    marked
}

/// Returns the cells of a line of the page, and its number, if it is a fault.
fn cells(line: &str) -> Option<(u8, Vec<&str>)> {
    let cells = line.strip_prefix("| ")?.strip_suffix(" |")?;
    let cells: Vec<&str> = cells.split(" | ").collect();
    Some((number(cells[0])?, cells))
}

/// Writes the row of a fault. Its last result is that of `results`, by the lines of tests, or stays as it is, as long as the
/// tests do.
fn row(cells: &[&str], tests: &Tests, results: Option<&BTreeMap<&str, &str>>) -> String {
    let mut places: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for test in tests {
        let names = places.entry(&test.place).or_default();
        names.push(format!("`{}`", test.name));
    }
    let places = places.iter();
    let places = places.map(|(place, names)| format!("`{place}`: {}", names.join(", ")));
    let places = Vec::from_iter(places).join("; ");
    let means: BTreeSet<&str> = tests.iter().map(Test::means).collect();
    let result = match results {
        Some(results) => {
            let of = tests.iter().map(|it| results.get(&*it.line()).copied());
            let of: BTreeSet<&str> = of.map(|it| it.unwrap_or(NOT_RUN)).collect();
            Vec::from_iter(of).join(", ")
        }
        None if cells.get(4) == Some(&&*places) => cells[6].to_owned(),
        None => NOT_RUN.to_owned(),
    };
    format!(
        "| {} | {places} | {} | {result} |",
        cells[..4].join(" | "),
        Vec::from_iter(means).join(", "),
    )
}

/// With `REDLATCH_RELIABILITY=list`, prints the tests. With `write`, writes the rows, with the results that they have; with
/// the path of a file, with those in the file, where tab and result follow on the line of each test.
#[test]
fn each_fault_has_a_test_and_its_row_says_which() {
    let marked = marked();
    let wish = env::var("REDLATCH_RELIABILITY").unwrap_or_default();
    if wish == "list" {
        for test in BTreeSet::from_iter(marked.values().flatten()) {
            println!("@{}", test.line());
        }
        return;
    }
    let results = match &*wish {
        "" | "write" => None,
        path => Some(fs::read_to_string(path).expect("the results")),
    };
    let results = results.as_ref().map(|it| {
        let lines = it.lines().filter_map(|line| line.rsplit_once('\t'));
        lines.collect()
    });
    let path = Path::new(ROOT).join("RELIABILITY.md");
    let page = fs::read_to_string(&path).expect("the page");
    let faults: Vec<u8> = page.lines().filter_map(cells).map(|it| it.0).collect();
    let of_tests: Vec<u8> = marked.keys().copied().collect();
    assert_eq!(faults, of_tests, "faults with a row, and those with a test");
    let lines = page.lines().map(|line| match cells(line) {
        Some((number, cells)) => row(&cells, &marked[&number], results.as_ref()) + "\n",
        None => format!("{line}\n"),
    });
    let new = String::from_iter(lines);
    if wish.is_empty() {
        let cure = "REDLATCH_RELIABILITY=write cargo test --test reliability writes it";
        assert!(new == page, "the table is not that of the tests; {cure}");
    } else {
        fs::write(path, new).expect("it is written");
    }
}

#[test]
fn mark_is_read_with_the_test_below_it() {
    let some = "// fault: S1 S71\n#[tokio::test]\nasync fn some_test() {\n}\n";
    let other = "// fault: S2\nfn case<L: Lock>(place: Place) {}\n";
    assert_eq!(
        marks(&[some, other].concat()),
        [
            (vec![1, 71], "some_test".to_owned()),
            (vec![2], "case".to_owned())
        ]
    );
}
