//! What can go wrong, and what the caller can do about it.

use std::borrow::Cow;
use std::error::Error as StdError;
use std::sync::Arc;

/// What went wrong, as a class that a program can act on.
///
/// A busy lock is not among them: it is an answer, `Ok(None)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// A name, lease, owner or setting that cannot work. Found before anything was sent; mend the call.
    InvalidInput,
    /// The server refused (out of memory, read-only, not permitted, ..) or could not be reached within the limit.
    /// Look at the server, retry later.
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
    /// As passing, and what was asked for may have been done all the same.
    Unanswered,
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

    /// Says which of several locks it is about.
    pub(crate) fn about(mut self, name: &str) -> Self {
        self.message = format!("{name:?} of the set: {}", self.message).into();
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
}
