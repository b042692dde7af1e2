//! The owner of a lock.

use std::borrow::Cow;
use std::cell::Cell;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::{Error, cut};
use crate::scope::{self, Scoped};

/// Threads and unique owners count from these numbers, tasks from 1: the ranges never meet, and all numbers fit in
/// Java's `long`.
const THREADS: u64 = 1 << 61;
const UNIQUE: u64 = 1 << 62;
/// The longest text that an owner without a name is shown with, in bytes.
const LONGEST_LABEL: usize = 64;

/// The owner of a lock, which may acquire that lock again if its kind is reentrant.
///
/// By default, the owner of a lock is the current tokio task, or outside a task the current thread: nested calls in one
/// task re-enter. [`Owner::scope`] sets the owner of a future instead, and
/// [`ClientBuilder::owners`](crate::ClientBuilder::owners) the default. On the server, such an owner is the field
/// `<client id>:<number>`, in the form that Redisson writes. A lock that is passed on between tasks stays under the
/// field of the owner that acquired it from the server.
///
/// People are shown `task 17`, `thread 3` or `unique 5`, in logs and by the command `redlatch` behind the
/// [label](crate::ClientBuilder::label) of the client, as in `web-3/812 task 17`.
///
/// The branches of one `join!`, `select!`, `buffer_unordered` or `for_each_concurrent` run in **one** task and
/// therefore share its owner: they re-enter instead of excluding each other. [`run`](crate::ReentrantLock::run) locks
/// under an owner of its own, and so does a future in a [`scope`](Owner::scope) of [`Owner::unique`]; see
/// [`pitfalls`](crate::pitfalls). This crate cannot see the tasks of executors other than tokio; there, too, nesting
/// needs an explicit owner.
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
    /// A number, and what people call it.
    Labelled(Arc<(u64, Box<str>)>),
    Named(Arc<str>),
}

impl Owner {
    /// Returns the current owner: that of the innermost [`scope`](Self::scope), or outside of all scopes that of the
    /// current tokio task, or outside a task that of the current thread.
    ///
    /// tokio may give the id of a finished task to a new one. The new task does not get a hold that the finished one
    /// has left behind, since a hold is recognized by its acquisition id.
    ///
    /// # Examples
    ///
    /// ```
    /// # redlatch_testkit::doc(async |url| {
    /// # let client = redlatch::Client::connect(url).await?;
    /// use redlatch::Owner;
    ///
    /// let lock = client.lock("orders:42");
    /// let guard = lock.lock().await?;
    /// // A task that works for this one, and may therefore re-enter its locks:
    /// let helper = lock.clone().owned_by(&Owner::current());
    /// let reentered = tokio::spawn(async move { helper.try_lock().await }).await.unwrap()?;
    /// assert!(reentered.is_some());
    /// # drop(reentered);
    /// guard.unlock().await?;
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
    #[must_use]
    pub fn current() -> Self {
        scope::current().unwrap_or_else(|| {
            let number = task_number().unwrap_or_else(thread_number);
            Self(Repr::Numbered(number))
        })
    }

    /// Makes the calls of a future act for this owner, on every lock whose handle has no owner of its own.
    ///
    /// The client's [`Owners`] do not matter in a scope. Futures that the future awaits are in the scope too, and tasks
    /// that it spawns are not. To pass the owner on to a task, such as a child that works for a holder, give that task
    /// a scope with [`Owner::current`]. A task with another owner waits for what its parent holds. If the parent waits
    /// for the task, they deadlock, and the client logs a warning after one lease, which
    /// [`pitfalls`](crate::pitfalls#a-child-that-waits-for-its-parent) describes.
    ///
    /// # Cancel safety
    ///
    /// Same as for `future`.
    ///
    /// # Examples
    ///
    /// Branches of one task that exclude each other:
    ///
    /// ```
    /// # redlatch_testkit::doc(async |url| {
    /// # let client = redlatch::Client::connect(url).await?;
    /// use redlatch::Owner;
    ///
    /// let stock = client.lock("stock:7");
    /// let branch = || Owner::unique().scope(stock.try_lock());
    /// let (left, right) = tokio::join!(branch(), branch());
    /// assert_ne!(left?.is_some(), right?.is_some());
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
    ///
    /// A child task that works for its parent:
    ///
    /// ```
    /// # redlatch_testkit::doc(async |url| {
    /// # let client = redlatch::Client::connect(url).await?;
    /// use redlatch::Owner;
    ///
    /// let lock = client.lock("orders:42");
    /// let guard = lock.lock().await?;
    /// let child = Owner::current().scope(async move { lock.is_held().await });
    /// assert!(tokio::spawn(child).await.unwrap()?);
    /// guard.unlock().await?;
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
    pub fn scope<F: Future>(self, future: F) -> Scoped<F> {
        scope::pass_on(self, future)
    }

    /// Returns an owner that differs from all others in this process, now and later.
    ///
    /// # Examples
    ///
    /// ```
    /// # redlatch_testkit::doc(async |url| {
    /// # let client = redlatch::Client::connect(url).await?;
    /// use redlatch::Owner;
    ///
    /// // Branches of one task: without owners of their own, both would hold the lock.
    /// let [left, right] = [(); 2].map(|()| client.lock("stock:7").owned_by(&Owner::unique()));
    /// let (left, right) = tokio::join!(left.try_lock(), right.try_lock());
    /// assert_ne!(left?.is_some(), right?.is_some());
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
    #[must_use]
    pub fn unique() -> Self {
        Self(Repr::Numbered(unique_number()))
    }

    /// Returns an owner that differs from all others, as [`unique`](Self::unique) does. People are shown this text with
    /// it, as in `unique 5 (request 7)`. At most 64 bytes of the text are kept.
    ///
    /// Two owners with the same text are still two owners, and exclude each other. On the server, the owner is only a
    /// number. Logs show the text that belongs to it. For an owner that other processes know by its text, use
    /// [`named`](Self::named).
    ///
    /// # Examples
    ///
    /// ```
    /// use redlatch::Owner;
    ///
    /// let owner = Owner::labelled("request 7");
    /// assert!(owner.to_string().ends_with("(request 7)"));
    /// assert_ne!(owner, Owner::labelled("request 7"));
    /// ```
    #[must_use]
    pub fn labelled(text: impl AsRef<str>) -> Self {
        let label = cut(text.as_ref(), LONGEST_LABEL).into();
        Self(Repr::Labelled(Arc::new((unique_number(), label))))
    }

    /// Returns an owner with a name, for example a request id. It is the same owner in every client and process.
    ///
    /// Its field on the server is the name alone. Any process that knows the name can re-enter, [`adopt`] and
    /// [`unlock`] what this owner holds, so choose a name that nobody else uses. The empty name, `mode`, a name that
    /// ends in `:write`, and a name that begins with `|` have another meaning in the hash of a lock; calls with such an
    /// owner return [`InvalidInput`](crate::ErrorKind::InvalidInput).
    ///
    /// [`adopt`]: crate::ReentrantLock::adopt
    /// [`unlock`]: crate::ReentrantLock::unlock
    ///
    /// # Examples
    ///
    /// ```
    /// # redlatch_testkit::doc(async |url| {
    /// # let client = redlatch::Client::connect(url).await?;
    /// # let other = redlatch::Client::connect(url).await?;
    /// use redlatch::Owner;
    ///
    /// let frontend = client.lock("orders:42").owned_by(&Owner::named("request-7"));
    /// let left = frontend.lock().await?.detach(); // a worker continues the request
    /// assert_eq!(left, Owner::named("request-7"));
    ///
    /// // In the process of the worker:
    /// let worker = other.lock("orders:42").owned_by(&Owner::named("request-7"));
    /// let guard = worker.adopt().await?.expect("held by this request");
    /// guard.unlock().await?;
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
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
            "is the field in which a read-write lock stores its mode"
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

    /// Returns the part that identifies this owner within its client.
    pub(crate) fn own_part(&self) -> Cow<'_, str> {
        match &self.0 {
            Repr::Numbered(number) => number.to_string().into(),
            Repr::Labelled(labelled) => labelled.0.to_string().into(),
            Repr::Named(name) => Cow::Borrowed(name),
        }
    }
}

/// Who owns a lock if neither the handle nor a scope names an owner. Set by
/// [`ClientBuilder::owners`](crate::ClientBuilder::owners).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Owners {
    /// The current task, or outside a task the current thread: nested calls in one task acquire a lock again.
    #[default]
    Task,
    /// Each call is an owner of its own, as with tokio's `Mutex`: branches of one task exclude each other, and a nested
    /// call waits for the outer one without end, unless that is a [`run`](crate::ReentrantLock::run). A later call is
    /// never the owner of a hold: `is_held`, `hold_count`, `unlock` and `adopt` of a handle find nothing, so use the
    /// guard. In a [`scope`](Owner::scope), calls act for the owner of the scope.
    Call,
}

impl Owners {
    /// Returns the owner of a call that is in no scope, on a handle without an owner.
    pub(crate) fn of_call(self) -> Owner {
        match self {
            Self::Task => Owner::current(),
            Self::Call => Owner::unique(),
        }
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Repr::Numbered(number) => Number(*number).fmt(f),
            Repr::Labelled(labelled) => write!(f, "{} ({})", Number(labelled.0), labelled.1),
            Repr::Named(name) => f.write_str(name),
        }
    }
}

/// The number of an owner without a name, as people read it.
pub(crate) struct Number(pub(crate) u64);

impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            number @ UNIQUE.. => write!(f, "unique {}", number - UNIQUE),
            number @ THREADS.. => write!(f, "thread {}", number - THREADS),
            number => write!(f, "task {number}"),
        }
    }
}

fn unique_number() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(UNIQUE);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// Returns the number of the current task. tokio exposes it only as text.
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
    fn owners_are_shown_as_what_they_are() {
        let shown = |number| Owner(Repr::Numbered(number)).to_string();
        assert_eq!(shown(17), "task 17");
        assert_eq!(shown(THREADS + 3), "thread 3");
        assert_eq!(shown(UNIQUE + 5), "unique 5");
        assert_eq!(Owner::named("req-7").to_string(), "req-7");
        let long = Owner::labelled("ä".repeat(40)).to_string();
        assert!(long.ends_with(&format!("({})", "ä".repeat(32))), "{long}");
        let labelled = Owner::labelled("req-7");
        assert!(!labelled.is_named() && labelled.own_part().parse::<u64>().is_ok());
    }

    #[test]
    fn names_with_a_meaning_of_their_own_are_refused() {
        for name in ["", "mode", "x:write", "|x"] {
            assert!(Owner::named(name).check().is_err(), "{name:?}");
        }
        assert!(Owner::named("req-7").check().is_ok());
    }
}
