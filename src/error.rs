//! The error of this crate, and its kinds.

use std::borrow::Cow;
use std::error::Error as StdError;
use std::fmt::{self, Write};
use std::sync::Arc;
use std::time::Duration;

use crate::loss::LossReason;

/// The longest foreign text that an error shows, in bytes.
const QUOTED: usize = 400;
/// The largest number of names that an error about several locks shows.
const NAMED: usize = 3;

/// The kind of an [`Error`], by which a program decides what to do.
///
/// A busy lock is not an error but an answer, `Ok(None)`, except for `run_for`, which returns [`Busy`](Self::Busy).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// A name, lease, owner or setting that cannot work. It was detected before anything was sent; fix the call.
    InvalidInput,
    /// The server refused the request (out of memory, read-only, not permitted, ..), or it could not be reached within
    /// the limit. In the latter case, the request was never sent and had no effect. Check the server and retry.
    Backend,
    /// The request was sent but not answered, so its outcome is unknown. An acquisition is being undone in the
    /// background, and a release is sent again. Retry: no lock stays held for longer than one lease. A change of the
    /// number of permits or of a latch is not undone: read the number before you retry.
    Timeout,
    /// The lock was held and no longer is, or it was granted so late that too little of its lease was left. Stop the
    /// work. [`Error::loss_reason`] says why.
    LeaseLost,
    /// `unlock` was called on a handle whose owner holds nothing. Fix the caller.
    NotHeld,
    /// The lock was still busy when the wait of a [`run_for`](crate::ReentrantLock::run_for) ended. No other call
    /// returns this. Try again later.
    Busy,
    /// The name is in use by something that cannot exclude this kind of lock, such as a string, a counter or a
    /// read-write lock. For a semaphore or a latch, the name is in use by something that is not a counter. If the
    /// server tells what it is, the text says so. Choose another name.
    WrongKind,
    /// Too few servers of a [`RedLock`](crate::RedLock) voted, or carried out the request. The error says how many did.
    /// Retry or give up.
    Quorum,
    /// The server returned an answer that no script of this crate gives. Please report it.
    Protocol,
    /// The call can never succeed as things stand, for example because a hold count is at its maximum. Fix the caller.
    Refused,
    /// The client was closed, or the runtime on which it was connected has ended. Connect a new client.
    Closed,
}

/// The error of every fallible call in this crate.
///
/// Match on [`kind`](Self::kind). The text describes what happened and what to do. The message of the server or of the
/// network is available as the [`source`](std::error::Error::source). `Debug` shows the kind, the text and what the
/// sources add to it, in one line. This is what `unwrap` prints, or a `main` that returns the error.
#[derive(Clone)]
pub struct Error {
    kind: ErrorKind,
    message: Cow<'static, str>,
    outlook: Outlook,
    loss: Option<LossReason>,
    /// The key that is in use for something else, of an error of the kind `WrongKind`.
    misused: Option<Arc<str>>,
    source: Option<Arc<dyn StdError + Send + Sync>>,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.kind, self.message)?;
        let mut source = self.source();
        while let Some(cause) = source {
            let text = quote(format_args!("{cause}"));
            // As a rule, the message has the words of the server in it.
            if !self.message.contains(&text) {
                write!(f, "; caused by: {text}")?;
            }
            source = cause.source();
        }
        Ok(())
    }
}

impl StdError for Error {
    /// The cause itself and not its `Arc`, so that it can be downcast.
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        Some(self.source.as_deref()?)
    }
}

/// How a waiting call treats an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outlook {
    Final,
    /// The error may go away by itself: worth another attempt within the limit.
    Passing,
    /// As `Passing`; in addition, the request was never sent: it had no effect, and no server refused it.
    Unsent,
    /// As `Passing`; in addition, the request may have been carried out.
    Unanswered,
}

/// The words with which a server refused a request.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{0}")]
struct ServerWords(String);

/// Returns the beginning of a text: whole characters, of no more than this many bytes.
pub(crate) fn cut(text: &str, longest: usize) -> &str {
    let mut lengths = (0..=longest.min(text.len())).rev();
    let fits = lengths.find(|at| text.is_char_boundary(*at));
    &text[..fits.unwrap_or(0)]
}

/// Formats a foreign text, cut off at the length that an error shows.
pub(crate) fn quote(text: fmt::Arguments<'_>) -> String {
    struct Quote(String);

    impl Write for Quote {
        /// Stops the formatting at the limit, so that a huge text is not formatted in full.
        fn write_str(&mut self, text: &str) -> fmt::Result {
            let room = QUOTED - self.0.len();
            let fits = cut(text, room);
            self.0.push_str(fits);
            if fits.len() < text.len() {
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
    /// Returns the kind of this error.
    ///
    /// # Examples
    ///
    /// ```
    /// # redlatch_testkit::doc(async |url| {
    /// # let client = redlatch::Client::connect(url).await?;
    /// use redlatch::ErrorKind;
    ///
    /// let lock = client.lock("orders:42");
    /// let guard = lock.lock().await?;
    /// lock.force_unlock().await?; // by an operator, say
    ///
    /// let outcome = match guard.unlock().await {
    ///     Ok(()) => "committed",
    ///     Err(error) if error.kind() == ErrorKind::LeaseLost => "rolled back",
    ///     Err(error) => return Err(error),
    /// };
    /// assert_eq!(outcome, "rolled back");
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// Returns why the lock was lost, if the kind is [`LeaseLost`](ErrorKind::LeaseLost). Returns `None` for every
    /// other kind, and if the lock was granted so late that it was released at once.
    ///
    /// # Examples
    ///
    /// ```
    /// # redlatch_testkit::doc(async |url| {
    /// # let client = redlatch::Client::connect(url).await?;
    /// # let elsewhere = redlatch::Client::connect(url).await?;
    /// use redlatch::LossReason;
    ///
    /// let guard = client.lock("orders:42").lock().await?;
    /// elsewhere.lock("orders:42").force_unlock().await?; // an operator, on another machine
    /// let error = guard.unlock().await.unwrap_err();
    /// assert_eq!(error.loss_reason(), Some(LossReason::Gone));
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
    #[must_use]
    pub fn loss_reason(&self) -> Option<LossReason> {
        self.loss
    }

    /// Creates an error of this kind with this text, for a lock that replaces a real one in a test; see
    /// [`DistributedLock`](crate::DistributedLock).
    ///
    /// For a lock that was lost, [`lost`](Self::lost) also says why.
    ///
    /// # Examples
    ///
    /// ```
    /// use redlatch::{Error, ErrorKind};
    ///
    /// let broken = Error::new(ErrorKind::Backend, "there is no server in this test");
    /// assert_eq!(broken.kind(), ErrorKind::Backend);
    /// assert_eq!(broken.to_string(), "there is no server in this test");
    /// ```
    #[must_use]
    pub fn new(kind: ErrorKind, message: impl Into<Cow<'static, str>>) -> Self {
        Self {
            kind,
            message: message.into(),
            outlook: Outlook::Final,
            loss: None,
            misused: None,
            source: None,
        }
    }

    pub(crate) fn invalid(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(ErrorKind::InvalidInput, message)
    }

    pub(crate) fn closed() -> Self {
        Self::new(
            ErrorKind::Closed,
            "the client is closed, or the runtime on which it was connected has ended; connect another client",
        )
        .unanswered()
    }

    /// Creates the error of a lock that was held and was lost for this reason. The guards of this crate return such an
    /// error, with the name of the lock in its text; a guard that replaces one in a test can return this one.
    ///
    /// # Examples
    ///
    /// ```
    /// use redlatch::{Error, ErrorKind, LossReason};
    ///
    /// let error = Error::lost(LossReason::Forced);
    /// assert_eq!(error.kind(), ErrorKind::LeaseLost);
    /// assert_eq!(error.loss_reason(), Some(LossReason::Forced));
    /// ```
    #[must_use]
    pub fn lost(reason: LossReason) -> Self {
        let message = format!("the lock was lost: {reason}; stop the work that it protected");
        Self {
            loss: Some(reason),
            ..Self::new(ErrorKind::LeaseLost, message)
        }
    }

    /// Returns the error of a call for which busy is an error.
    pub(crate) fn busy(waited: Duration) -> Self {
        let message = format!("busy for {waited:?}: another owner has it; try again later");
        Self::new(ErrorKind::Busy, message)
    }

    /// Returns the error of a lock that was granted so late that it was given back.
    pub(crate) fn too_late(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(ErrorKind::LeaseLost, message)
    }

    /// Returns the error for a wait without a limit that nevertheless ended busy.
    pub(crate) fn endless() -> Self {
        Self::new(ErrorKind::Timeout, "a wait without a limit timed out")
    }

    /// Returns the error of a call that cannot use this key. On its way to the caller, it is told
    /// [what is there](Self::finding).
    pub(crate) fn wrong_kind(key: &str) -> Self {
        Self {
            misused: Some(key.into()),
            ..Self::new(ErrorKind::WrongKind, misuse(key, ""))
        }
    }

    /// Returns the key that is in use for something else.
    pub(crate) fn misused(&self) -> Option<&Arc<str>> {
        self.misused.as_ref()
    }

    /// Returns the error of a call that cannot use this key, where there is `what`.
    pub(crate) fn finding(self, key: &str, what: &str) -> Self {
        Self {
            message: misuse(key, &format!(", {what}")).into(),
            ..self
        }
    }

    /// Returns the error for a request that the server refused with these words.
    pub(crate) fn refused(message: impl Into<Cow<'static, str>>, words: &str) -> Self {
        Self::new(ErrorKind::Backend, message).said(words)
    }

    /// Replaces the text.
    pub(crate) fn saying(mut self, message: impl Into<Cow<'static, str>>) -> Self {
        self.message = message.into();
        self
    }

    /// Keeps the words of the server as the source of the error.
    pub(crate) fn said(self, words: &str) -> Self {
        self.caused_by(ServerWords(words.to_owned()))
    }

    /// Prefixes the message with the name of the lock, unless the message already contains it.
    pub(crate) fn about(self, name: &str) -> Self {
        match self.message.contains(&format!("{name:?}")) {
            true => self,
            false => self.about_all(1, std::iter::once(name)),
        }
    }

    /// Prefixes the message with the names of the first locks, and with the number of the others.
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

    /// Marks an error of a request that may or may not have been carried out.
    pub(crate) fn unanswered(mut self) -> Self {
        self.outlook = Outlook::Unanswered;
        self
    }

    /// Returns whether the error was caused by the server or the network, and not by the call.
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

    /// Returns whether the request was refused, and not just unsent or unanswered.
    pub(crate) fn is_refusal(&self) -> bool {
        matches!(self.outlook, Outlook::Final | Outlook::Passing)
    }

    /// Returns whether there was no server to connect to. Such an attempt costs no server anything.
    pub(crate) fn is_of_nobody_there(&self) -> bool {
        use std::io::ErrorKind;

        let error = self
            .source()
            .and_then(|source| source.downcast_ref::<std::io::Error>());
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

fn misuse(key: &str, what: &str) -> String {
    format!("{key:?} is in use for something else{what}; choose another name")
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
            // Three bytes each: the last character would be cut.
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
