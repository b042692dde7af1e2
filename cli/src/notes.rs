//! What `redlatch` says on stderr, as lines of text or of JSON.

use std::io::{IsTerminal, Write, stderr};

use serde_json::{Map, Value, json};

use crate::exit::Failure;
use crate::shown::shown;

/// Writes notes to stderr. That nobody reads them stops nothing.
#[derive(Clone, Debug)]
pub(crate) struct Notes {
    json: bool,
}

impl Notes {
    pub(crate) fn new(json: bool) -> Self {
        Self { json }
    }

    pub(crate) fn are_json(&self) -> bool {
        self.json
    }

    /// Whether notes may be replaced by later ones, which only a terminal shows well.
    pub(crate) fn are_live(&self) -> bool {
        !self.json && stderr().is_terminal()
    }

    /// Writes one line. In JSON it has the event, and these fields of an object.
    pub(crate) fn note(&self, event: &str, text: &str, fields: Value) {
        let mut out = stderr().lock();
        if self.json {
            let mut object = Map::new();
            object.insert("event".to_owned(), json!(event));
            if let Value::Object(fields) = fields {
                object.extend(fields);
            }
            object.insert("text".to_owned(), json!(text));
            writeln!(out, "{}", Value::Object(object)).ok();
        } else {
            writeln!(out, "redlatch: {}", shown(text)).ok();
        }
    }

    /// Writes a line that the next one replaces.
    pub(crate) fn live(&self, text: &str) {
        let mut out = stderr().lock();
        // Cut off at the edge of the terminal: only one line can be replaced.
        write!(out, "\r\x1b[K\x1b[?7lredlatch: {}\x1b[?7h", shown(text)).ok();
        out.flush().ok();
    }

    /// Removes the line that [`live`](Self::live) wrote.
    pub(crate) fn clear(&self) {
        write!(stderr().lock(), "\r\x1b[K").ok();
    }

    pub(crate) fn failed(&self, failure: &Failure) {
        self.note("failed", &failure.text, json!({ "code": failure.code }));
    }
}
