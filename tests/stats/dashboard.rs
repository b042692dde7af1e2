//! The names of the metrics: those on the page, those in the documentation and those in the dashboard.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use redlatch_testkit::Server;
use serde_json::Value;

use crate::page::Page;
use crate::support::builder;

fn file(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    fs::read_to_string(path).expect("a text")
}

/// Returns the names of metrics in a text, without what a page appends to the name of a histogram.
fn names(text: &str) -> BTreeSet<String> {
    let is_part = |c: char| c.is_ascii_lowercase() || c == '_';
    let words = text.split(|c: char| !is_part(c));
    words
        .filter(|word| word.starts_with("redlatch_"))
        .map(|word| {
            let ends = ["_bucket", "_count", "_sum"];
            let bare = ends.iter().find_map(|end| word.strip_suffix(end));
            bare.unwrap_or(word).to_owned()
        })
        .collect()
}

/// Returns all texts of a value, with the key that each stands under.
fn texts<'a>(key: &'a str, value: &'a Value, found: &mut Vec<(&'a str, &'a str)>) {
    match value {
        Value::String(text) => found.push((key, text)),
        Value::Array(all) => all.iter().for_each(|value| texts(key, value, found)),
        Value::Object(all) => all.iter().for_each(|(key, value)| texts(key, value, found)),
        _ => {}
    }
}

#[tokio::test]
async fn page_documentation_and_dashboard_have_the_same_metrics() {
    let server = Server::start();
    let (_client, page) = Page::open(builder(server.url())).await;
    page.lock_and_unlock("job").await;
    let text = page.text();
    let recorded = names(&text);
    let source = file("src/metrics.rs");
    let rows = source
        .lines()
        .filter(|line| line.starts_with("//! | `redlatch_"));
    let documented: BTreeSet<String> = rows.flat_map(names_of_row).collect();
    let helps = text.lines().filter_map(|line| line.strip_prefix("# HELP "));
    let described: BTreeSet<String> = helps.flat_map(names).collect();
    assert_eq!(documented, described);
    assert_eq!(recorded, documented, "recorded on the left");

    let dashboard: Value = serde_json::from_str(&file("dashboards/grafana.json")).unwrap();
    let mut found = Vec::new();
    texts("", &dashboard, &mut found);
    let queries: Vec<_> = found.iter().filter(|(key, _)| *key == "expr").collect();
    assert!(queries.len() >= 8);
    let shown: BTreeSet<String> = queries.iter().flat_map(|(_, query)| names(query)).collect();
    assert_eq!(shown, documented, "shown on the left");
    for (_, query) in &queries {
        assert_eq!(
            query.matches('(').count(),
            query.matches(')').count(),
            "{query}"
        );
        assert_eq!(
            query.matches('{').count(),
            query.matches('}').count(),
            "{query}"
        );
    }
}

/// Returns the name that a row of the table begins with.
fn names_of_row(row: &str) -> Option<String> {
    row.split('`').nth(1).map(str::to_owned)
}
