//! The attribute `locked`, and what the code that it makes leans on.

/// Runs an async function under a lock: it is taken before the body and given back after it. With the feature
/// `macros`.
///
/// ```
/// # redlatch_testkit::doc(async |url| {
/// use redlatch::{Client, Error, locked};
///
/// #[locked(client = client, name = "order:{id}")]
/// async fn ship(client: &Client, id: u64) -> Result<String, Error> {
///     Ok(format!("{id} is on its way"))
/// }
///
/// let client = Client::connect(url).await?;
/// assert_eq!(ship(&client, 42).await?, "42 is on its way");
/// # Ok::<(), redlatch::Error>(()) });
/// ```
///
/// This does what one would write by hand, `lock.lock().await?`, then the body in
/// [`run_until_lost`](crate::Lease::run_until_lost), then [`unlock`](crate::LockGuard::unlock), and forgets none of it.
///
/// # When to use it, and when another
///
/// Where the lock and the function have the same extent. If only a part of a function needs the lock, or several
/// locks are taken, or a lock outlives the call, use the handles: [`Client::lock`](crate::Client::lock) and its
/// siblings.
///
/// # Arguments
///
/// | | |
/// |---|---|
/// | `client = EXPR` | the [`Client`](crate::Client), or what refers to one: `client`, `self.client`, a `static` |
/// | `name = "order:{id}"` | a format string over the arguments, checked when compiled; or an expression that gives the name, such as `format!("order:{}", order.id)` |
/// | `kind = fair` | `reentrant` by default; `fair`, `fenced`, `spin`, `plain`, or a side of a read-write lock, `read` or `write` |
/// | `lease = "10s"` | a fixed lease, which is never renewed; without it the lease is renewed for as long as the body runs |
/// | `wait = "2s"` | how long to wait at most, `"0s"` for one attempt, and needs `busy`; without it as long as it takes |
/// | `busy = EXPR` | what the function returns if it does not get the lock in that time; the body never runs then |
/// | `owner = EXPR` | an [`Owner`](crate::Owner) or a reference to one, a request id, say; the current task by default |
/// | `attempts = 5` | for `kind = spin`: gives up when the lock was found busy so often; needs `busy`, too |
/// | `guard = held` | the guard is `held` in the body, a reference: for [`FencedGuard::token`](crate::FencedGuard::token), [`extend`](crate::Lease::extend), [`verify`](crate::Lease::verify) |
///
/// A time is text, a whole number of `ms`, `s`, `m` or `h`. Expressions see the function's arguments; `client`, `name`
/// and `owner` are evaluated before the lock is taken, `busy` only when it is needed. They may use `?`.
///
/// The function is an `async fn` with a body: free or a method, in a trait's `impl` too, with generics, lifetimes,
/// patterns and other attributes. It is [`Send`] if its body is. Where an attribute of a whole `impl`, such as
/// `async_trait`, makes ordinary functions of the async ones first, lock an inherent method and call that.
///
/// # Nesting
///
/// A locked function that calls another on the same name takes the lock once more, as nested calls in one task do,
/// except for `kind = plain`. Annotations that work through a proxy, such as those of lock4j and others for Spring,
/// are passed over when a method calls another of its own object. Here the code is in the function itself, so who
/// calls it makes no difference.
///
/// # Errors
///
/// The function returns a [`Result`] whose error can be made from an [`Error`](crate::Error) by [`From`]. That is
/// returned if the lock could not be had, as of `lock` or `try_lock_for` on the kind's page, and
///
/// - [`LeaseLost`](crate::ErrorKind::LeaseLost) if the lock was lost. While the body runs, it is dropped where it
///   stands. If it is found out only by the release, the body has run to its end and returned `Ok`; that is replaced,
///   since its work may have overlapped with somebody else's.
/// - [`Timeout`](crate::ErrorKind::Timeout) or [`Backend`](crate::ErrorKind::Backend) too, if the release was not
///   answered or refused after the body had returned `Ok`. It is tried again in the background.
///
/// An `Err` of the body's own is returned as it is, however the release ends.
///
/// # Cancel safety
///
/// As of `lock` until the body begins. A future that is dropped later drops the body, then releases the lock in the
/// background; so does a panic.
///
/// # Examples
///
/// ```
/// # redlatch_testkit::doc(async |url| {
/// use redlatch::{Client, locked};
///
/// #[derive(Debug)]
/// enum Failure {
///     InUse(u64),
///     Lock(redlatch::Error),
/// }
///
/// impl From<redlatch::Error> for Failure {
///     fn from(error: redlatch::Error) -> Self {
///         Self::Lock(error)
///     }
/// }
///
/// struct Accounts {
///     client: Client,
/// }
///
/// impl Accounts {
///     /// Waits two seconds at most for whoever else works on the account.
///     #[locked(client = self.client, name = "account:{id}", wait = "2s", busy = Err(Failure::InUse(id)))]
///     async fn close(&self, id: u64) -> Result<(), Failure> {
///         self.settle(id).await // takes the same lock once more
///     }
///
///     #[locked(client = self.client, name = "account:{id}", lease = "30s")]
///     async fn settle(&self, id: u64) -> Result<(), Failure> {
///         Ok(())
///     }
/// }
///
/// let accounts = Accounts { client: Client::connect(url).await? };
/// accounts.close(7).await?;
/// # Ok::<(), Failure>(()) });
/// ```
pub use redlatch_macros::locked;

/// No part of the interface.
pub mod private {
    use crate::error::Error;

    /// A value that never is, of a type that a block is to learn from it.
    pub fn never<T>() -> Option<T> {
        None
    }

    /// What a locked function returns.
    #[diagnostic::on_unimplemented(
        message = "a locked function returns a `Result`, not `{Self}`",
        label = "neither a lock that cannot be had nor one that was lost could be told by this",
        note = "its error type must implement `From<redlatch::Error>`"
    )]
    pub trait Outcome: Sized {
        /// What it returns instead of its own outcome.
        fn failed(error: Error) -> Self;

        /// What it returns after its own outcome and this answer to the release.
        fn released(self, answer: Result<(), Error>) -> Self;
    }

    impl<T, E: From<Error>> Outcome for Result<T, E> {
        fn failed(error: Error) -> Self {
            Err(error.into())
        }

        fn released(self, answer: Result<(), Error>) -> Self {
            let value = self?;
            answer?;
            Ok(value)
        }
    }
}
