//! The attribute `locked`, and the items that its generated code uses.

/// Runs an async function under a lock, which is acquired before the body and released after it. Requires the feature
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
/// The generated code does what you would write by hand: `lock.lock().await?`, then the body in
/// [`run_until_lost`](crate::Lease::run_until_lost), then [`unlock`](crate::LockGuard::unlock).
///
/// # When to use it, and when to use another
///
/// Use the attribute where the lock should cover the whole function. If only a part of the function needs the lock, if
/// it takes several locks, or if a lock outlives the call, use the handles: [`Client::lock`](crate::Client::lock) and
/// its siblings.
///
/// # Arguments
///
/// | | |
/// |---|---|
/// | `client = EXPR` | the [`Client`](crate::Client), or anything that refers to one: `client`, `self.client`, a `static` |
/// | `name = "order:{id}"` | a format string over the arguments, checked at compile time; or an expression that returns the name, such as `format!("order:{}", order.id)` |
/// | `kind = fair` | the kind of lock, `reentrant` by default: `fair`, `fenced`, `spin`, `plain`, or one side of a read-write lock, `read` or `write` |
/// | `lease = "10s"` | a fixed lease, which is never renewed; without it, the lease is renewed as long as the body runs |
/// | `wait = "2s"` | the longest time to wait, `"0s"` for a single attempt; requires `busy`. Without it, the call waits without a limit |
/// | `busy = EXPR` | the value that the function returns if it does not get the lock within its limit; the body then never runs |
/// | `owner = EXPR` | an [`Owner`](crate::Owner) or a reference to one, for example one named after a request; the current task by default |
/// | `attempts = 5` | for `kind = spin`: gives up after the lock was found busy this many times; also requires `busy` |
/// | `guard = held` | binds a reference to the guard to `held` in the body: for [`FencedGuard::token`](crate::FencedGuard::token), [`extend`](crate::Lease::extend), [`verify`](crate::Lease::verify) |
///
/// A time is a string literal with a whole number of `ms`, `s`, `m` or `h`. Expressions see the function's arguments,
/// and may use `?`. `client`, `name` and `owner` are evaluated before the lock is acquired, `busy` only when it is
/// needed.
///
/// The function is an `async fn` with a body: a free function or a method, also in a trait or its `impl`, with
/// generics, lifetimes, patterns and other attributes. Its future is [`Send`] if its body is.
///
/// # With `async_trait`
///
/// The attribute works on the methods of a trait or an `impl` below `#[async_trait]`. `async_trait` turns each async
/// function into one that returns a `Pin<Box<dyn Future<..>>>`, and this attribute then works on that function. You
/// write nothing differently: `self` is `self`, also in the arguments. Below `#[async_trait(?Send)]` the future need
/// not be `Send`.
///
/// ```
/// # redlatch_testkit::doc(async |url| {
/// use async_trait::async_trait;
/// use redlatch::{Client, Error, locked};
///
/// #[async_trait]
/// trait Carrier: Send + Sync {
///     async fn ship(&self, order: u64) -> Result<String, Error>;
/// }
///
/// struct Post {
///     client: Client,
/// }
///
/// #[async_trait]
/// impl Carrier for Post {
///     #[locked(client = self.client, name = "order:{order}")]
///     async fn ship(&self, order: u64) -> Result<String, Error> {
///         Ok(format!("{order} is in the post"))
///     }
/// }
///
/// let carrier: Box<dyn Carrier> = Box::new(Post { client: Client::connect(url).await? });
/// assert_eq!(carrier.ship(42).await?, "42 is in the post");
/// # Ok::<(), redlatch::Error>(()) });
/// ```
///
/// The same holds for a function that you write in this form, if its body is `Box::pin(async move { .. })` and nothing
/// else. The lock is acquired when the future is polled, and not when it is made.
///
/// # Nesting
///
/// A locked function that calls another one with the same name for the lock acquires it again, as nested calls in one
/// task do, except with `kind = plain`. Annotations that work through a proxy, such as those of lock4j and others for
/// Spring, are bypassed when a method calls another method of its own object. Here the code is in the function itself,
/// so the lock is acquired wherever the call comes from.
///
/// # Concurrent calls in one task
///
/// The owner is the current task, so calls of the function in branches of one `join!` or `for_each_concurrent` nest
/// instead of excluding each other. Where that matters, set `owner = Owner::unique()`, which rules out nesting, or give
/// each branch a [`scope`](crate::Owner::scope). See [`pitfalls`](crate::pitfalls).
///
/// # Errors
///
/// The function must return a [`Result`] whose error type can be converted from an [`Error`](crate::Error) by [`From`].
/// It returns such an error if the lock could not be acquired, as described for `lock` or `try_lock_for` of the lock's
/// kind, and also:
///
/// - [`LeaseLost`](crate::ErrorKind::LeaseLost) if the lock was lost. If this happens while the body runs, the body is
///   dropped at an await. If only the release detects it, the body has already run to its end and returned `Ok`; that
///   value is replaced, since the work may have overlapped with another owner's.
/// - [`Timeout`](crate::ErrorKind::Timeout) or [`Backend`](crate::ErrorKind::Backend) if the body returned `Ok` and the
///   release was then not answered or was refused. The release is tried again in the background.
///
/// If the body returns `Err`, the function returns that error unchanged, whatever the result of the release.
///
/// # Cancel safety
///
/// Until the body begins, same as for `lock`. If the future is dropped later, the body is dropped, and then the lock is
/// released in the background. A panic in the body has the same effect.
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
///     /// Waits for at most two seconds if another owner works on the account.
///     #[locked(client = self.client, name = "account:{id}", wait = "2s", busy = Err(Failure::InUse(id)))]
///     async fn close(&self, id: u64) -> Result<(), Failure> {
///         self.settle(id).await // acquires the same lock again
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

/// Not part of the public interface.
pub mod private {
    use crate::error::Error;

    /// Returns `None`, as an `Option<T>` from which the surrounding block infers its type.
    pub fn never<T>() -> Option<T> {
        None
    }

    /// The return type of a locked function.
    #[diagnostic::on_unimplemented(
        message = "a locked function returns a `Result`, not `{Self}`",
        label = "this cannot report that the lock was not acquired or was lost",
        note = "its error type must implement `From<redlatch::Error>`"
    )]
    pub trait Outcome: Sized {
        /// Converts an error of the lock into the function's result, in place of the body's own.
        fn failed(error: Error) -> Self;

        /// Combines the body's result with the answer to the release. An `Err` of the body takes precedence.
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
