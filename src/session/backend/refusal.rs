//! What the words mean in which a server refuses.

/// The word that a server's error begins with. Before Redis 7 an error inside a script is wrapped in another.
pub(super) fn code(text: &str) -> &str {
    let inner = if text.starts_with("ERR Error running script") {
        let last = text.rsplit("@user_script:").next().unwrap_or(text);
        last.trim_start_matches(|c: char| c.is_ascii_digit() || ": -".contains(c))
    } else {
        text
    };
    inner.split(' ').next().unwrap_or(inner)
}

/// What a server says to a user that may run no scripts, or if it has none.
pub(super) fn forbids_scripts(text: &str) -> bool {
    match code(text) {
        "NOPERM" => text.contains("run the 'eval"),
        _ => text.starts_with("ERR unknown command"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_code_of_an_error_is_found_in_every_version_of_the_server() {
        for (text, expected) in [
            (
                "OOM command not allowed when used memory > 'maxmemory'. script: abc, on @user_script:7.",
                "OOM",
            ),
            (
                "WRONGTYPE Operation against a key holding the wrong kind of value",
                "WRONGTYPE",
            ),
            (
                "ERR Error running script (call to f_1): @user_script:21: @user_script: 21: -OOM command not allowed",
                "OOM",
            ),
            (
                "ERR Error running script (call to f_1): @user_script:21: WRONGTYPE Operation against a key",
                "WRONGTYPE",
            ),
            ("ERR unknown command", "ERR"),
            ("", ""),
        ] {
            assert_eq!(code(text), expected, "{text}");
        }
    }
}
