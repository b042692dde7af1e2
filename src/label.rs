//! The label of a client, which tells people which process it is, and the name of a client, which begins with it.
//!
//! The label stands in the name of the acquisition field. In Redisson's field it would change the owner, and a key
//! of its own would need a right and an end.

use std::fmt;
use std::process;

use uuid::Uuid;
use uuid::fmt::Hyphenated;

use crate::error::Error;
use crate::owner::{Number, Owner};

/// A label stands in every key and message that names its client.
const LONGEST: usize = 64;
/// The longest label with which the hash of a lock stays in its compact form on the server, in which no field has more
/// than 64 bytes: next to a bar, a slash and a UUID.
const LONGEST_BY_DEFAULT: usize = 26;

fn is_fit(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"@._-/".contains(&byte)
}

/// Refuses a label that a client cannot have.
pub(crate) fn check(label: &str) -> Result<(), Error> {
    match !label.is_empty() && label.len() <= LONGEST && label.bytes().all(is_fit) {
        true => Ok(()),
        false => Err(Error::invalid(format!(
            "a label has 1 to {LONGEST} characters, each a letter, a digit or one of @ . _ - /, not {label:?}"
        ))),
    }
}

/// Returns the label of a client for which none was chosen: `host/pid`.
pub(crate) fn of_process() -> String {
    of_host(
        &rustix::system::uname().nodename().to_string_lossy(),
        process::id(),
    )
}

/// A host's domain is left out, and of a long name the end is kept, where the pods of one service differ.
fn of_host(host: &str, process: u32) -> String {
    let process = process.to_string();
    let host = host.split('.').next().unwrap_or_default();
    let host = host.replace(|c: char| !c.is_ascii() || !is_fit(c as u8), "-");
    let room = LONGEST_BY_DEFAULT - 1 - process.len();
    let host = &host[host.len().saturating_sub(room)..];
    format!("{host}/{process}")
}

/// Returns the name of a client, by which other processes know it: its label and its id.
pub(crate) fn name_of_client(label: &str, id: Uuid) -> String {
    format!("{label}/{id}")
}

/// Splits the name of a client into its label, if it has one, and its id, a UUID. Returns `None` for any other text.
pub(crate) fn label_and_id(client: &str) -> Option<(Option<&str>, &str)> {
    let (label, id) = split(client);
    let is_id = id.len() == Hyphenated::LENGTH && Uuid::try_parse(id).is_ok();
    is_id.then_some((label, id))
}

/// Splits the name of a client, whatever its id looks like.
pub(crate) fn split(client: &str) -> (Option<&str>, &str) {
    match client.rsplit_once('/') {
        Some((label, id)) => (Some(label), id),
        None => (None, client),
    }
}

/// Splits off the client, with which the owner fields and values of this crate's clients begin. Returns its label, if it
/// stands there, and its id, or `None` for any other text.
pub(crate) fn client_of(field: &str) -> Option<(Option<&str>, &str)> {
    let (client, _) = field.split_once(':')?;
    label_and_id(client)
}

/// Splits an acquisition field into the label and the id of its client, and the name of the owner, if it has one. Returns
/// `None` for any other field.
pub(crate) fn acquirer_of(field: &str) -> Option<(Option<&str>, &str, Option<&str>)> {
    // Two bars begin the field for what was taken over.
    let field = field
        .strip_prefix('|')
        .filter(|field| !field.starts_with('|'))?;
    let (client, name) = match field.split_once(':') {
        Some((client, name)) => (client, Some(name)),
        None => (field, None),
    };
    let (label, id) = label_and_id(client)?;
    Some((label, id, name))
}

/// Returns the label of the client that holds a lock for this owner, from the acquisition fields of its hash.
pub(crate) fn of_holder<'a>(
    owner: &str,
    fields: impl IntoIterator<Item = &'a str>,
) -> Option<&'a str> {
    let of_field = |field: &'a str| {
        let (label, id, name) = acquirer_of(field)?;
        let is_of = match name {
            Some(name) => name == owner,
            None => owner.split(':').next() == Some(id),
        };
        label.filter(|_| is_of)
    };
    fields.into_iter().find_map(of_field)
}

/// Shows an owner as the server knows it: behind the label of its client, if that is known, and then as what it is, not
/// as a bare number.
pub(crate) fn show(label: Option<&str>, owner: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let Some(label) = label else {
        return f.write_str(owner);
    };
    write!(f, "{label} ")?;
    // The value of a plain lock has the acquisition id behind the number.
    let mut parts = owner.split(':');
    let number = match (parts.next().and_then(label_and_id), parts.next()) {
        (Some(_), Some(number)) => number.parse().ok(),
        _ => None,
    };
    match number {
        Some(number) => write!(f, "{}", Number(number)),
        None => f.write_str(owner),
    }
}

/// Shows an owner behind the label of its client.
pub(crate) fn shown<'a>(label: &'a str, owner: &'a Owner) -> impl fmt::Display + 'a {
    Shown(label, owner)
}

struct Shown<'a>(&'a str, &'a Owner);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(label, owner) = self;
        write!(f, "{label} {owner}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn label_of_a_process_is_short_and_can_be_a_label() {
        for (host, label) in [
            ("web-3", "web-3/812"),
            ("web-3.prod.example.com", "web-3/812"),
            ("a host:7", "a-host-7/812"),
            ("gr\u{f6}\u{df}e", "gr--e/812"),
            (
                "payments-api-7c9d8f6b5d-x2x4q",
                "ents-api-7c9d8f6b5d-x2x4q/812",
            ),
            ("", "/812"),
        ] {
            let label = &label[label.len().saturating_sub(LONGEST_BY_DEFAULT)..];
            assert_eq!(of_host(host, 812), label);
            assert!(check(label).is_ok(), "{label}");
        }
        assert!(of_host(&"x".repeat(80), u32::MAX).len() == LONGEST_BY_DEFAULT);
        assert!(of_process().len() <= LONGEST_BY_DEFAULT);
    }

    #[test]
    fn holders_are_known_by_the_client_or_by_the_name_of_the_owner() {
        let id = Uuid::nil().to_string();
        let other = Uuid::max();
        let fields = [
            format!("|web-4/1/{other}"),
            format!("|web-3/812/{id}"),
            format!("||web-5/7/{id}:req-7"),
            format!("|web-5/7/{id}:req-7"),
            "|token".to_owned(),
            format!("|{other}:bare"),
        ];
        let of = |owner: &str| of_holder(owner, fields.iter().map(|field| &**field));
        assert_eq!(of(&format!("{id}:17")), Some("web-3/812"));
        assert_eq!(of("req-7"), Some("web-5/7"));
        assert_eq!(of("bare"), None);
        assert_eq!(of("token"), None);
        assert_eq!(of(&format!("{}:1", Uuid::from_u128(7))), None);
    }
}
