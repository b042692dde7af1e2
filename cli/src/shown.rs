//! Foreign text on a terminal.

/// Returns a text, such as a name or an owner, in which everything is escaped that a terminal would act on or not show:
/// control characters, line ends, marks of direction, unusual spaces, what is assigned to nothing.
///
/// Escapes no backslash and no quote: a text that was escaped before stays as it is. `--json` has the exact text.
pub(crate) fn shown(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\\' | '\'' | '"' => shown.push(c),
            // Behind another character: at the beginning of a text, the marks of some scripts are escaped too.
            c => shown.extend(format!("x{c}").escape_debug().skip(1)),
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_terminal_acts_on_is_escaped_and_nothing_else() {
        for (text, expected) in [
            ("nightly-report:{7}/a b", "nightly-report:{7}/a b"),
            ("naïve größe 名前 हिन्दी 🦀", "naïve größe 名前 हिन्दी 🦀"),
            ("it's \"so\" C:\\x", "it's \"so\" C:\\x"),
            ("a\nb\tc\r", "a\\nb\\tc\\r"),
            ("\x1b[2J\x07\x7f\u{9b}", "\\u{1b}[2J\\u{7}\\u{7f}\\u{9b}"),
            ("\u{202e}gpj\u{2066}", "\\u{202e}gpj\\u{2066}"),
            ("a\u{200b}\u{feff}\u{2028}", "a\\u{200b}\\u{feff}\\u{2028}"),
            ("a\u{a0}b", "a\\u{a0}b"),
            ("\u{fffd}", "\u{fffd}"),
        ] {
            assert_eq!(shown(text), expected);
            assert_eq!(shown(&shown(text)), expected);
        }
    }
}
