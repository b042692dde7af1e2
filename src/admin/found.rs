//! What an inspection finds: the kind of a lock, its holders and its waiters.

use std::fmt;
use std::time::Duration;

use crate::label::{self, label_and_id};
use crate::protocol::reply::Reply;

/// What is under a name, as far as its keys tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FoundKind {
    /// A reentrant lock or a spin lock, which look alike, or a fair lock that nobody waits for.
    Reentrant,
    /// A fair lock.
    Fair,
    /// A fenced lock, at least at some time: it has a token.
    Fenced,
    /// A read-write lock.
    ReadWrite,
    /// A plain lock.
    Plain,
    /// A semaphore or a latch, which look alike.
    Counter,
    /// A semaphore whose permits have a lease.
    ExpirableSemaphore,
}

/// One holder of a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FoundHolder {
    /// The owner as the server knows it: `<client id>:<number>`, or the name of a named owner; the value of a plain
    /// lock, of which no more than about 2048 bytes are read.
    pub owner: String,
    /// The [label](crate::ClientBuilder::label) of the client, or `None` if the holder is not of this crate, and for a
    /// plain lock of a named owner.
    pub label: Option<String>,
    /// On which side of a read-write lock; `None` for other kinds.
    pub side: Option<FoundSide>,
    /// The number of levels.
    pub hold_count: u64,
    /// How long this holder remains if it does not renew, where that is recorded for each holder. Otherwise the lease
    /// of the lock.
    pub remaining_lease: Option<Duration>,
}

/// Shows the holder to people, as in `web-3/812 task 17`.
impl fmt::Display for FoundHolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        label::show(self.label.as_deref(), &self.owner, f)
    }
}

/// One waiter for a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FoundWaiter {
    /// The owner that waits for a fair lock, as the server knows it; for any other lock the id of the client
    /// ([`Client::id`](crate::Client::id)).
    pub id: String,
    /// The [label](crate::ClientBuilder::label) of the client, or `None` if the waiter is not of this crate.
    pub label: Option<String>,
}

/// Shows the waiter to people, as in `web-3/812 task 17`, or `web-3/812` for a client.
impl fmt::Display for FoundWaiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.label {
            Some(label) if label_and_id(&self.id).is_some() => f.write_str(label),
            label => label::show(label.as_deref(), &self.id, f),
        }
    }
}

/// A side of a read-write lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum FoundSide {
    /// Alone.
    Write,
    /// Shared with other readers.
    Read,
}

impl FoundWaiter {
    pub(super) fn owner(id: String) -> Self {
        Self { id, label: None }
    }

    pub(super) fn client(name: &str) -> Self {
        let (label, id) = label::split(name);
        Self {
            id: id.to_owned(),
            label: label.map(str::to_owned),
        }
    }

    /// Notes the label of the client, from the place of the waiter: it ends with the client's acquisition field.
    pub(super) fn tell(&mut self, place: &Reply) {
        let Reply::Text(lines) = place else {
            return;
        };
        let field = lines
            .lines()
            .next()
            .and_then(|line| line.rsplit(' ').next());
        let client = field.map(|field| field.trim_start_matches('|').trim_end_matches(':'));
        self.label = client.and_then(|client| label::split(client).0.map(str::to_owned));
    }
}
