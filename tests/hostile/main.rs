//! Whatever is read as a URL, as parts of a configuration, or as a name: nothing panics, and no error repeats a password.
//!
//! The inputs are the lines of `urls`, `parts` and `names` next to this file, changed at random: once, or for as many
//! seconds as `REDLATCH_SOAK` says, a minute at most. `session/backend/resp.rs` does the same with replies.
#![cfg(all(feature = "serde", feature = "memory"))]
#![allow(
    clippy::expect_used,
    clippy::unwrap_used,
    reason = "a test fails by panicking"
)]

#[path = "../support/soak.rs"]
mod soak;

use std::time::Instant;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};
use proptest::test_runner::{Config as Cases, TestRunner};
use redlatch::{Client, Config, ErrorKind, MemoryServer};

const SECRET: &str = "5ecret";

/// Checks what is true of all lines of a text, in whole and changed.
fn always(corpus: &'static str, holds: impl Fn(&str) -> Result<(), TestCaseError>) {
    corpus.lines().for_each(|line| holds(line).expect(line));
    let span = soak::a_minute_at_most();
    let lines: Vec<&str> = corpus.lines().collect();
    // Takes out what is behind a place, and puts a part of a line, or any text, there.
    let part = prop_oneof![
        (select(lines.clone()), any::<Index>()).prop_map(|(line, from)| {
            line.chars()
                .skip(from.index(line.chars().count()))
                .collect()
        }),
        "[-{}\\[\\]:/?&=%@,#\"0-9a-z\\\\ ]{0,8}",
        "\\PC{0,4}",
        any::<char>().prop_map(String::from),
    ];
    let change = (any::<Index>(), 0usize..4, part);
    let input = (select(lines), vec(change, 1..4)).prop_map(|(line, changes)| {
        let mut text: Vec<char> = line.chars().collect();
        for (at, out, part) in changes {
            let at = at.index(text.len() + 1);
            let end = text.len().min(at + out);
            text.splice(at..end, part.chars());
        }
        String::from_iter(text)
    });
    let (started, mut inputs) = (Instant::now(), 0);
    while inputs == 0 || started.elapsed() < span {
        let mut cases = Cases::with_cases(1_000);
        cases.failure_persistence = None;
        let checked = TestRunner::new(cases).run(&input, |text| holds(&text));
        checked.unwrap();
        inputs += 1_000;
    }
    println!("{inputs} inputs");
}

fn keeps_the_secret(error: &impl ToString, input: &str) -> Result<(), TestCaseError> {
    let error = error.to_string();
    // Where the input is not a URL any more, nothing says which part of it is a password.
    prop_assert!(!error.contains(SECRET), "{input}: {error}");
    Ok(())
}

#[test]
fn no_url_panics_and_no_error_repeats_its_password() {
    always(include_str!("urls"), |url| match url.parse::<Config>() {
        Ok(config) => {
            let written = serde_json::to_value(&config).expect("it can be written");
            let read: Config = serde_json::from_value(written).expect("and read");
            prop_assert_eq!(read, config);
            Ok(())
        }
        Err(error) => keeps_the_secret(&error, url),
    });
}

#[test]
fn no_part_of_a_configuration_panics_and_no_error_repeats_its_password() {
    always(include_str!("parts"), |text| {
        let read = serde_json::from_str::<Config>(text);
        // Elsewhere in the text it may be a name of a user, a server or a field, which are no secrets.
        let is_password =
            text.contains("\"password\": \"5ecret\"") || text.starts_with("\"redis://u:5ecret@");
        if !is_password || text.matches(SECRET).count() > 1 {
            return Ok(());
        }
        match read {
            Ok(config) => prop_assert!(!format!("{config:?}").contains(SECRET), "{text}"),
            Err(error) => keeps_the_secret(&error, text)?,
        }
        Ok(())
    });
}

#[test]
fn no_name_panics_and_each_is_refused_or_a_lock() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let server = MemoryServer::new();
    let client = Client::builder().config(server.config()).build();
    let client = runtime.block_on(client).expect("it is in memory");
    always(include_str!("names"), |name| {
        let taken = runtime.block_on(client.lock(name).try_lock());
        match taken {
            Ok(guard) => {
                let guard = guard.expect("nobody else has it");
                runtime.block_on(guard.unlock()).expect("it is held");
            }
            Err(error) => prop_assert_eq!(error.kind(), ErrorKind::InvalidInput),
        }
        Ok(())
    });
}
