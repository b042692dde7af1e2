//! The arguments of a command: numbers, and patterns of names.

use crate::reply::Refusal;

/// The words of a command.
pub(crate) type Args<'a> = &'a [Vec<u8>];

/// Reads a whole number, which is refused in any form but its shortest.
pub(crate) fn integer(word: &[u8]) -> Result<i64, Refusal> {
    let text = std::str::from_utf8(word).unwrap_or_default();
    let number = text.parse::<i64>().ok();
    let number = number.filter(|number| number.to_string() == text);
    number.ok_or_else(Refusal::no_integer)
}

/// Reads a number that need not be whole.
pub(crate) fn float(word: &[u8]) -> Option<f64> {
    let number: f64 = std::str::from_utf8(word).ok()?.parse().ok()?;
    (!number.is_nan()).then_some(number)
}

/// Whether a word is this one, in any case.
pub(crate) fn is(word: &[u8], expected: &str) -> bool {
    word.eq_ignore_ascii_case(expected.as_bytes())
}

/// Returns the word as text in upper case, to be compared.
pub(crate) fn upper(word: &[u8]) -> String {
    String::from_utf8_lossy(word).to_ascii_uppercase()
}

/// Returns the positions from `start` to `stop` in a list of this length, where negative ones count from its end.
pub(crate) fn span(start: i64, stop: i64, length: usize) -> std::ops::Range<usize> {
    let length = length as i64;
    let from_end = |at: i64| if at < 0 { at + length } else { at };
    let start = from_end(start).max(0);
    let stop = from_end(stop).min(length - 1);
    if start > stop {
        return 0..0;
    }
    start as usize..stop as usize + 1
}

/// Whether a name matches a pattern with `*`, `?`, `[..]` and `\`.
pub(crate) fn matches(pattern: &[u8], name: &[u8]) -> bool {
    let Some((first, rest)) = pattern.split_first() else {
        return name.is_empty();
    };
    match first {
        b'*' => (0..=name.len()).any(|skipped| matches(rest, &name[skipped..])),
        b'[' => match (
            rest.iter().position(|byte| *byte == b']'),
            name.split_first(),
        ) {
            (Some(end), Some((byte, others))) => {
                in_class(&rest[..end], *byte) && matches(&rest[end + 1..], others)
            }
            _ => false,
        },
        b'?' => !name.is_empty() && matches(rest, &name[1..]),
        b'\\' if !rest.is_empty() => {
            name.first() == rest.first() && matches(&rest[1..], &name[1..])
        }
        byte => name.first() == Some(byte) && matches(rest, &name[1..]),
    }
}

/// Whether a byte is in a class: single bytes, ranges, and `^` in front for all others.
fn in_class(class: &[u8], byte: u8) -> bool {
    let (class, is_in) = match class.strip_prefix(b"^") {
        Some(class) => (class, false),
        None => (class, true),
    };
    let mut at = 0;
    let mut found = false;
    while let Some(low) = class.get(at) {
        match class.get(at + 1..at + 3) {
            Some([b'-', high]) => {
                found |= (*low..=*high).contains(&byte);
                at += 3;
            }
            _ => {
                found |= *low == byte;
                at += 1;
            }
        }
    }
    found == is_in
}
