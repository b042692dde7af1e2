//! What can go wrong, and what the caller can do about it.

use std::borrow::Cow;
use std::error::Error as StdError;
use std::fmt::{self, Write};
use std::sync::Arc;

/// How many bytes of a foreign text an error shows.
const QUOTED: usize = 400;
/// How many names an error about many locks shows.
const NAMED: usize = 3;

/// What went wrong, as a class that a program can act on.
///
/// A busy lock is not among them: it is an answer, `Ok(None)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// A name, lease, owner or setting that cannot work. Found before anything was sent; mend the call.
    InvalidInput,
    /// The server refused (out of memory, read-only, not permitted, ..), or could not be reached within the limit, and
    /// then the request was never sent: nothing came of it. Look at the server, retry.
    Backend,
    /// The request was sent and no answer came, so its outcome is unknown; it is being undone in the background.
    /// Retry: nothing stays held beyond one lease.
    Timeout,
    /// The lock was held and no longer is, or too little of its lease was left to hand it out. Stop the work.
    LeaseLost,
    /// `unlock` on a handle whose owner holds nothing: a bug in the caller.
    NotHeld,
    /// The name is in use by something that cannot exclude this kind of lock, such as a string, a counter or a
    /// read-write lock; or of a semaphore or latch, by something that is no counter. Choose another name.
    WrongKind,
    /// A lock over several servers was granted by too few of them.
    Quorum,
    /// The server gave an answer that no script of this crate gives. Please report it.
    Protocol,
    /// Can never succeed as things stand, such as a hold count at its maximum. Mend the caller.
    Refused,
    /// The client was closed, or the runtime that it was connected on has ended.
    Closed,
}

/// The error of every fallible call in this crate.
///
/// Match on [`kind`](Self::kind); the text says what happened and what to do. What the server or the network said
/// is kept as the [`source`](std::error::Error::source).
#[derive(Clone, Debug, thiserror::Error)]
#[error("{message}")]
pub struct Error {
    kind: ErrorKind,
    message: Cow<'static, str>,
    outlook: Outlook,
    #[source]
    source: Option<Arc<dyn StdError + Send + Sync>>,
}

/// What a waiting call makes of an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outlook {
    Final,
    /// It may go away by itself: worth another try within the limit.
    Passing,
    /// As passing, and the request was never sent: nothing came of it, and nobody said no.
    Unsent,
    /// As passing, and what was asked for may have been done all the same.
    Unanswered,
}

/// In which words a server refused.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{0}")]
struct Refusal(String);

/// A foreign text, or as much of it as an error shows.
pub(crate) fn quote(text: fmt::Arguments<'_>) -> String {
    struct Quote(String);

    impl Write for Quote {
        /// Ends the formatting once there is enough.
        fn write_str(&mut self, text: &str) -> fmt::Result {
            let room = QUOTED - self.0.len();
            let mut lengths = (0..=room.min(text.len())).rev();
            let fits = lengths.find(|at| text.is_char_boundary(*at)).unwrap_or(0);
            self.0.push_str(&text[..fits]);
            if fits < text.len() {
                Err(fmt::Error)
            } else {
                Ok(())
            }
        }
    }

    let mut quote = Quote(String::new());
    if quote.write_fmt(text).is_err() {
        quote.0.push_str(" ..");
    }
    quote.0
}

impl Error {
    /// The class of this error.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    pub(crate) fn new(kind: ErrorKind, message: impl Into<Cow<'static, str>>) -> Self {
        Self {
            kind,
            message: message.into(),
            outlook: Outlook::Final,
            source: None,
        }
    }

    pub(crate) fn invalid(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(ErrorKind::InvalidInput, message)
    }

    pub(crate) fn closed() -> Self {
        Self::new(
            ErrorKind::Closed,
            "the client is closed, or the runtime that it was connected on has ended",
        )
        .unanswered()
    }

    pub(crate) fn lost(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(ErrorKind::LeaseLost, message)
    }

    /// Of a wait without limit that ended busy all the same.
    pub(crate) fn endless() -> Self {
        Self::new(ErrorKind::Timeout, "a wait without limit came to its limit")
    }

    pub(crate) fn wrong_kind(name: &str) -> Self {
        let message = format!(
            "{name:?} is in use by something that is not of this kind; choose another name"
        );
        Self::new(ErrorKind::WrongKind, message)
    }

    /// The server has refused, in these words.
    pub(crate) fn refused(message: impl Into<Cow<'static, str>>, words: &str) -> Self {
        Self::new(ErrorKind::Backend, message).said(words)
    }

    /// Keeps the words of the server that it comes from.
    pub(crate) fn said(self, words: &str) -> Self {
        self.caused_by(Refusal(words.to_owned()))
    }

    /// Says which lock it is about, unless it does so itself.
    pub(crate) fn about(self, name: &str) -> Self {
        match self.message.contains(&format!("{name:?}")) {
            true => self,
            false => self.about_all(1, std::iter::once(name)),
        }
    }

    /// Says which locks it is about: the first of them, and how many more.
    pub(crate) fn about_all<'a>(
        mut self,
        count: usize,
        names: impl Iterator<Item = &'a str>,
    ) -> Self {
        let named: Vec<_> = names.take(NAMED).map(|name| format!("{name:?}")).collect();
        let more = match count.saturating_sub(named.len()) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        self.message = format!("{}{more}: {}", named.join(", "), self.message).into();
        self
    }

    pub(crate) fn caused_by(mut self, source: impl StdError + Send + Sync + 'static) -> Self {
        self.source = Some(Arc::new(source));
        self
    }

    /// Marks an error that may go away by itself, so that a waiting call tries again within its limit.
    pub(crate) fn passing(mut self) -> Self {
        self.outlook = Outlook::Passing;
        self
    }

    /// Marks an error of a request that was never sent.
    pub(crate) fn unsent(mut self) -> Self {
        self.outlook = Outlook::Unsent;
        self
    }

    /// Marks an error that leaves open whether the request was carried out.
    pub(crate) fn unanswered(mut self) -> Self {
        self.outlook = Outlook::Unanswered;
        self
    }

    /// Whether it is the server's or the network's doing, and not the call's.
    pub(crate) fn is_about_the_server(&self) -> bool {
        matches!(self.kind, ErrorKind::Backend | ErrorKind::Timeout)
    }

    pub(crate) fn is_passing(&self) -> bool {
        self.outlook != Outlook::Final
    }

    pub(crate) fn is_unanswered(&self) -> bool {
        self.outlook == Outlook::Unanswered
    }

    pub(crate) fn is_unsent(&self) -> bool {
        self.outlook == Outlook::Unsent
    }

    /// Whether somebody has said no, and not just nothing.
    pub(crate) fn is_refusal(&self) -> bool {
        matches!(self.outlook, Outlook::Final | Outlook::Passing)
    }

    /// Whether there was nobody to connect to, which cost no server anything.
    pub(crate) fn is_of_nobody_there(&self) -> bool {
        use std::io::ErrorKind;

        let source = self
            .source
            .as_deref()
            .map(|source| source as &(dyn StdError + 'static));
        let error = source.and_then(|source| source.downcast_ref::<std::io::Error>());
        error.is_some_and(|error| {
            matches!(
                error.kind(),
                ErrorKind::ConnectionRefused
                    | ErrorKind::NotFound
                    | ErrorKind::HostUnreachable
                    | ErrorKind::NetworkUnreachable
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_show_a_foreign_text_up_to_a_bound() {
        assert_eq!(quote(format_args!("{:?}", ["a", "b"])), r#"["a", "b"]"#);
        let most = "x".repeat(QUOTED);
        assert_eq!(quote(format_args!("{most}")), most);
        for (text, shown) in [
            ("x".repeat(QUOTED + 1), QUOTED),
            // Three bytes each: the last one would be cut.
            ("\u{20ac}".repeat(QUOTED), QUOTED / 3 * 3),
        ] {
            let quoted = quote(format_args!("{text}"));
            assert_eq!(quoted, format!("{} ..", &text[..shown]));
        }
        let many = vec![0; 10_000_000];
        assert!(quote(format_args!("{many:?}")).len() < 2 * QUOTED);
    }

    #[test]
    fn errors_name_their_lock_once_and_of_many_the_first() {
        let error = || Error::new(ErrorKind::Backend, "the server refused");
        let named = error().about("a").about("a");
        assert_eq!(named.to_string(), "\"a\": the server refused");
        let names = ["a", "b", "c", "d", "e"];
        for (count, shown) in [
            (3, "\"a\", \"b\", \"c\": the server refused"),
            (5, "\"a\", \"b\", \"c\" and 2 more: the server refused"),
        ] {
            let error = error().about_all(count, names.into_iter().take(count));
            assert_eq!(error.to_string(), shown);
        }
    }
}
