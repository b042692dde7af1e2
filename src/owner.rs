//! Who holds a lock.

use std::borrow::Cow;
use std::cell::Cell;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::Error;

/// Threads and made-up owners count from here, tasks from 1: the three never meet, and all fit Java's `long`.
const THREADS: u64 = 1 << 61;
const UNIQUE: u64 = 1 << 62;

/// Who holds a lock, and may take it again.
///
/// If a lock is not told otherwise, its owner is the current tokio task, or outside a task the current thread:
/// nested calls in one task re-enter. On the server such an owner is the field `<client id>:<number>`, the form
/// that Redisson writes; what was passed on between tasks stays under the one that took it.
///
/// The branches of one `join!`, `select!` or `FuturesUnordered` run in **one** task and so share its owner: they
/// re-enter instead of excluding each other. Give each branch an owner of its own, with
/// [`Owner::unique`] and [`owned_by`](crate::ReentrantLock::owned_by). Executors other than tokio have no tasks
/// that this crate could see; there, too, nesting needs an explicit owner.
///
/// # Examples
///
/// ```
/// use redlatch::Owner;
///
/// assert_eq!(Owner::current(), Owner::current());
/// assert_ne!(Owner::unique(), Owner::unique());
/// assert_eq!(Owner::named("req-7").to_string(), "req-7");
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Owner(Repr);

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Repr {
    Numbered(u64),
    Named(Arc<str>),
}

impl Owner {
    /// The current tokio task, or outside a task the current thread.
    ///
    /// tokio may give the number of a finished task to a new one; what a finished task still held is told apart
    /// by its acquisition id and is never taken over.
    #[must_use]
    pub fn current() -> Self {
        let number = task_number().unwrap_or_else(thread_number);
        Self(Repr::Numbered(number))
    }

    /// An owner that nobody else is, now or later, in this process.
    #[must_use]
    pub fn unique() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(UNIQUE);
        Self(Repr::Numbered(NEXT.fetch_add(1, Ordering::Relaxed)))
    }

    /// An owner known by name, the same from every client and process: a request id, say.
    ///
    /// Its field on the server is the name alone. Whoever knows the name can re-enter, [`adopt`] and [`unlock`],
    /// so choose one that others do not use. The empty name, `mode`, a name that ends in `:write` and one that
    /// begins with `|` mean something else in the hash of a lock; calls under them answer
    /// [`InvalidInput`](crate::ErrorKind::InvalidInput).
    ///
    /// [`adopt`]: crate::ReentrantLock::adopt
    /// [`unlock`]: crate::ReentrantLock::unlock
    #[must_use]
    pub fn named(name: impl AsRef<str>) -> Self {
        Self(Repr::Named(name.as_ref().into()))
    }

    pub(crate) fn check(&self) -> Result<(), Error> {
        let Repr::Named(name) = &self.0 else {
            return Ok(());
        };
        let fault = if name.is_empty() {
            "is empty"
        } else if &**name == "mode" {
            "is what the hash of a read-write lock keeps its mode under"
        } else if name.ends_with(":write") {
            "ends in \":write\", as the writer's field of a read-write lock does"
        } else if name.starts_with('|') {
            "begins with \"|\", as this crate's acquisition fields do"
        } else {
            return Ok(());
        };
        Err(Error::invalid(format!(
            "the owner name {name:?} {fault}; choose another"
        )))
    }

    pub(crate) fn is_named(&self) -> bool {
        matches!(self.0, Repr::Named(_))
    }

    /// This owner without the client it belongs to.
    pub(crate) fn own_part(&self) -> Cow<'_, str> {
        match &self.0 {
            Repr::Numbered(number) => number.to_string().into(),
            Repr::Named(name) => Cow::Borrowed(name),
        }
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.own_part())
    }
}

/// tokio shows a task's number only as text.
fn task_number() -> Option<u64> {
    tokio::task::try_id()?.to_string().parse().ok()
}

fn thread_number() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(THREADS);
    thread_local! {
        static NUMBER: Cell<u64> = const { Cell::new(0) };
    }
    NUMBER.with(|number| {
        if number.get() == 0 {
            number.set(NEXT.fetch_add(1, Ordering::Relaxed));
        }
        number.get()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_and_made_up_owners_differ() {
        let here = Owner::current();
        let there = std::thread::spawn(Owner::current).join().unwrap();
        assert_ne!(here, there);
        assert_ne!(here, Owner::unique());
    }

    #[test]
    fn names_with_a_meaning_of_their_own_are_refused() {
        for name in ["", "mode", "x:write", "|x"] {
            assert!(Owner::named(name).check().is_err(), "{name:?}");
        }
        assert!(Owner::named("req-7").check().is_ok());
    }
}
