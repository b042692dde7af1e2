//! Spans of time as users write and read them.

use std::time::Duration;

/// The units, the longest first, with their milliseconds.
const UNITS: [(&str, u64); 5] = [
    ("d", 86_400_000),
    ("h", 3_600_000),
    ("m", 60_000),
    ("s", 1_000),
    ("ms", 1),
];

/// Reads a span such as `10s`, `1m30s` or `250ms`; `0` needs no unit.
pub(crate) fn parse(text: &str) -> Result<Duration, String> {
    let wrong = || format!("{text:?} is not a span of time such as 10s, 250ms, 1m30s or 2h");
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    let mut rest = text;
    let mut millis = 0_u64;
    while !rest.is_empty() {
        let digits = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let (number, behind) = rest.split_at(digits);
        let letters = behind.len() - behind.trim_start_matches(|c: char| c.is_alphabetic()).len();
        let (unit, next) = behind.split_at(letters);
        let (_, of_unit) = UNITS
            .iter()
            .find(|(name, _)| *name == unit)
            .ok_or_else(wrong)?;
        let number: u64 = number.parse().map_err(|_| wrong())?;
        let part = number.checked_mul(*of_unit);
        let sum = part.and_then(|part| millis.checked_add(part));
        millis = sum.ok_or_else(|| format!("{text:?} is too long"))?;
        rest = next;
    }
    match text.is_empty() {
        true => Err(wrong()),
        false => Ok(Duration::from_millis(millis)),
    }
}

/// Writes a span with one or two units, as exactly as a reader needs it.
pub(crate) fn show(span: Duration) -> String {
    let millis = span.as_millis() as u64;
    if millis < 1_000 {
        return format!("{millis}ms");
    }
    if millis < 60_000 {
        return format!("{}.{}s", millis / 1_000, millis % 1_000 / 100);
    }
    let units = UNITS.windows(2).find(|pair| millis >= pair[0].1);
    match units {
        Some([(long, of_long), (short, of_short)]) => {
            let rest = millis % of_long / of_short;
            match rest {
                0 => format!("{}{long}", millis / of_long),
                rest => format!("{}{long}{rest}{short}", millis / of_long),
            }
        }
        _ => format!("{millis}ms"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_read_and_nonsense_is_refused() {
        for (text, millis) in [
            ("0", 0),
            ("0s", 0),
            ("250ms", 250),
            ("10s", 10_000),
            ("1m30s", 90_000),
            ("2h", 7_200_000),
            ("1d", 86_400_000),
        ] {
            assert_eq!(parse(text), Ok(Duration::from_millis(millis)), "{text}");
        }
        for text in [
            "",
            "1",
            "s",
            "-1s",
            "1.5s",
            "1 s",
            "1x",
            "10s5",
            "99999999999999999999s",
            "18446744073709551615d",
            "١s",
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn spans_are_written_shortly() {
        for (millis, text) in [
            (0, "0ms"),
            (999, "999ms"),
            (12_340, "12.3s"),
            (60_000, "1m"),
            (90_000, "1m30s"),
            (7_260_000, "2h1m"),
            (90_000_000, "1d1h"),
        ] {
            assert_eq!(show(Duration::from_millis(millis)), text);
        }
    }
}
