//! Builds the errors of failed attempts to connect: why there is no connection, and what may be wrong.
//!
//! An error names the place, what happened, and what to look at, as far as the kind of failure tells. It never contains
//! a password: of a server's own words, it shows only those that are listed here.

use std::io;

use tokio::time::error::Elapsed;

use super::identity::Identity;
#[cfg(feature = "tls")]
use super::tls;
use crate::error::{Error, ErrorKind};

#[cfg(feature = "tls")]
const WITHOUT_TLS: &str = "does it use TLS? Without TLS, the URL begins with redis://";
const WITH_TLS: &str = "does it accept only TLS? With TLS, the URL begins with rediss://";

/// The words with which servers refuse a client, up to where they differ, and what to do about it. The first entry that
/// fits counts.
const REFUSALS: &[(&str, Option<&str>)] = &[
    (
        "NOAUTH",
        Some("it needs a password; set one with Config::password, or redis://user:password@host"),
    ),
    ("WRONGPASS", Some(WRONG_LOGIN)),
    ("ERR invalid password", Some(WRONG_LOGIN)),
    (
        "DENIED",
        Some("it accepts only clients on its own machine until it has a password"),
    ),
    (
        "ERR max number of clients",
        Some(
            "it accepts no more clients; see its `maxclients` setting, and CLIENT LIST for those that are connected",
        ),
    ),
    (
        "ERR AUTH <password> called without any password configured",
        Some(NO_PASSWORD),
    ),
    (
        "ERR Client sent AUTH, but no password is set",
        Some(NO_PASSWORD),
    ),
    (
        "ERR DB index is out of range",
        Some("it has fewer databases; see its `databases` setting"),
    ),
    (
        "ERR unknown command",
        Some("is it a Redis or Valkey server?"),
    ),
    ("LOADING", Some("it is still loading its data")),
    ("BUSY", Some("it is busy with a script")),
    ("NOPERM", Some("this user may not log in in this way")),
    ("ERR", None),
];
const WRONG_LOGIN: &str = "the user or the password is wrong, or the user is disabled";
const OUTDATED: &str = "it does not accept what Config::credentials returned: the password has expired or was replaced, or \
                        the user is disabled";
const NO_PASSWORD: &str = "a password was given, but it has none";

/// The step of connecting that failed or was not answered. The advice depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ContactStep {
    /// To ask the application for the login.
    Identify,
    /// To reach the address.
    Connect,
    /// To set up TLS.
    #[cfg(feature = "tls")]
    Secure,
    /// To log in, and whatever else is asked before the first call.
    Talk,
}

/// Builds the error of a server that could not be reached, or that broke off the connection.
///
/// `step` is how far it came; `is_secure` says whether TLS was asked for.
pub(super) fn failed(place: &str, step: ContactStep, is_secure: bool, error: io::Error) -> Error {
    #[cfg(feature = "tls")]
    let known = tls::advice(&error);
    #[cfg(not(feature = "tls"))]
    let known = None;
    // What rustls says is more exact than the kind of an I/O error, so it comes first.
    let advice = known.or_else(|| match (error.kind(), step) {
        (io::ErrorKind::ConnectionRefused, ContactStep::Connect) => {
            Some("nothing listens there; is the server running, and is this its address?")
        }
        (io::ErrorKind::NotFound, ContactStep::Connect) => {
            Some("is the server running, and is this its `unixsocket`?")
        }
        // Whoever sends a certificate does use TLS.
        #[cfg(feature = "tls")]
        (_, ContactStep::Secure) if tls::fault(&error).is_none() => Some(WITHOUT_TLS),
        (
            // A server that speaks only TLS hangs up on plain commands.
            io::ErrorKind::UnexpectedEof
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::BrokenPipe,
            ContactStep::Talk,
        ) if !is_secure => Some(WITH_TLS),
        _ => None,
    });
    let what = match step {
        ContactStep::Identify => format!("its credentials could not be obtained: {error}"),
        _ => error.to_string(),
    };
    error_of(place, &what, advice).caused_by(error)
}

/// Builds the error of a step that took too long.
pub(super) fn late(place: &str, step: ContactStep, late: Elapsed) -> Error {
    let (what, advice) = match step {
        ContactStep::Identify => (
            "its credentials were not there in time; see Config::credentials, and Config::connect_timeout",
            None,
        ),
        ContactStep::Connect => (
            "no answer; is this its address, or does a firewall block it?",
            None,
        ),
        #[cfg(feature = "tls")]
        ContactStep::Secure => (
            "it accepted the connection but did not answer",
            Some(WITHOUT_TLS),
        ),
        ContactStep::Talk => ("it accepted the connection but did not answer", None),
    };
    error_of(place, what, advice).caused_by(late)
}

/// Builds the error of a server that refused to let this client in.
///
/// Servers repeat what they were sent, in part or in other letters, and that may be a password. So the error shows
/// nothing of what this one `said` but the beginning that matches one of the [`REFUSALS`].
pub(super) fn refused(place: &str, said: &str) -> Error {
    let known = REFUSALS.iter().find(|(words, _)| said.starts_with(words));
    let (words, advice) = known.unwrap_or(&("it refused", None));
    error_of(place, words, *advice).said(words)
}

/// Builds the error of a server that refused a login.
///
/// A login that the application supplied may be out of date, which is another fault than a wrong setting.
pub(super) fn refused_login(place: &str, said: &str, identity: &Identity) -> Error {
    let words = ["WRONGPASS", "ERR invalid password"];
    match words.into_iter().find(|words| said.starts_with(words)) {
        Some(words) if identity.is_asked => error_of(place, words, Some(OUTDATED)).said(words),
        _ => refused(place, said),
    }
}

/// Builds the error of a server that no locks can be taken from, as `what` says.
pub(super) fn unfit(place: &str, what: &str) -> Error {
    error_of(place, what, None)
}

/// Builds the error: the place, what happened, and the advice, if there is one.
fn error_of(place: &str, what: &str, advice: Option<&str>) -> Error {
    let text = match advice {
        Some(advice) => format!("cannot connect to {place}: {what}: {advice}"),
        None => format!("cannot connect to {place}: {what}"),
    };
    Error::new(ErrorKind::Backend, text)
}
