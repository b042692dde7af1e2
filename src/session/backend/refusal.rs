//! Interprets the words in which a server refuses.
//!
//! The words differ from one version to the next; all that is needed to recognize them is here.

use crate::error::Error;
use crate::protocol::reply::Reply;

/// Returns the word that a server's error begins with. Before Redis 7 an error inside a script is wrapped in another
/// one.
pub(super) fn code(text: &str) -> &str {
    let inner = if text.starts_with("ERR Error running script") {
        // The inner error stands after the last position in the script, with or without a dash.
        let last = text.rsplit("@user_script:").next().unwrap_or(text);
        last.trim_start_matches(|c: char| c.is_ascii_digit() || ": -".contains(c))
    } else {
        text
    };
    inner.split(' ').next().unwrap_or(inner)
}

/// Whether a refusal says that this user may run no scripts, or that the server has none.
pub(super) fn forbids_scripts(text: &str) -> bool {
    match code(text) {
        "NOPERM" => text.contains("run the 'eval"),
        _ => text.starts_with("ERR unknown command"),
    }
}

/// Returns the answer to a question, or `None` if the server does not know the question. Returns `Err` if the user may
/// not ask, or if the server cannot answer now: in both cases nothing is known.
pub(super) fn understood(
    said: Result<Reply, String>,
    untold: impl FnOnce() -> String,
) -> Result<Option<Reply>, Error> {
    let text = match said {
        Ok(reply) => return Ok(Some(reply)),
        Err(text) => text,
    };
    let error = |text: &str| Error::refused(format!("{}: {text}", untold()), text);
    match code(&text) {
        "ERR" => Ok(None),
        "LOADING" | "BUSY" => Err(error(&text).passing()),
        _ => Err(error(&text)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_server_that_does_not_know_the_question_says_no() {
        let answer = |text: &str| understood(Err(text.to_owned()), || "untold".to_owned());
        for text in [
            "ERR This instance has cluster support disabled",
            "ERR Unknown subcommand or wrong number of arguments for 'SHARDNUMSUB'. Try PUBSUB HELP.",
        ] {
            assert_eq!(answer(text).unwrap(), None, "{text}");
        }
        for (text, passes) in [
            ("BUSY Redis is busy running a script.", true),
            ("LOADING Redis is loading the dataset in memory", true),
            (
                "NOPERM this user has no permissions to run the 'pubsub|shardnumsub' command",
                false,
            ),
        ] {
            let error = answer(text).unwrap_err();
            assert_eq!(error.to_string(), format!("untold: {text}"));
            assert_eq!(error.is_passing(), passes, "{text}");
        }
        let said = understood(Ok(Reply::Nil), || unreachable!());
        assert_eq!(said.unwrap(), Some(Reply::Nil));
    }

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
