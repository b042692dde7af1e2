//! The methods that run a future under a lock of any kind, with their documentation.

/// Implements the methods for a lock type. `$made` is the code that makes such a lock from a `client`, for the
/// examples, and the last argument has an error name the lock.
macro_rules! runs {
    ($lock:ty, $made:expr, |$this:ident, $error:ident| $named:expr) => {
        impl $lock {
            /// Runs a future under the lock, for an owner of its own, until it ends or the lock is lost. Waits until
            /// the lock is available.
            ///
            /// With [`lock`](Self::lock), the calls of one task share its owner, so the branches of `join!`,
            /// `buffer_unordered` or `for_each_concurrent` re-enter the lock. With `run`, they exclude each other: each
            /// call acquires the lock for an owner of its own. Calls inside the future act for that owner, on this lock
            /// and on others. They can also acquire again what is held around the `run`.
            ///
            /// If this client already holds the lock for the current owner, as in a `run` within a `run`, the call acts
            /// for the current owner, and acquires the lock again if its kind is reentrant. A set does the same if the
            /// current owner holds one of its locks, and then acts for that owner on all of them. If the handle has an
            /// owner, the call acts for that owner, wherever that owner holds the lock.
            ///
            /// The future is dropped when the lock is lost. The lock is released when the future has ended.
            ///
            /// Three siblings limit the wait. Their future returns a [`Result`], and the call returns the same type of
            /// error, so one `?` handles both. `run` returns whatever the future returns.
            ///
            /// | | if the lock is busy |
            /// |---|---|
            /// | `run(future)` | waits |
            /// | [`run_for`](Self::run_for)`(wait, future)` | waits for at most `wait`; then it is an error |
            /// | [`try_run`](Self::try_run)`(future)` | returns `None` at once |
            /// | [`try_run_for`](Self::try_run_for)`(wait, future)` | waits for at most `wait`; then it returns `None` |
            ///
            /// # Errors
            ///
            /// Same as `lock`, and as `unlock` of the guard. If the future has ended and the release then fails, its
            /// output is dropped, since the work may have overlapped with another owner's.
            ///
            /// # Cancel safety
            ///
            /// If the call is dropped, the future is dropped, and then the lock is released in the background.
            ///
            /// # Examples
            ///
            /// ```
            /// # redlatch_testkit::doc(async |url| {
            /// # let client = redlatch::Client::builder().url(url).trust_fresh_servers(true).build().await?;
            /// # async fn count(_shelf: u32) -> u32 { 3 }
            #[doc = concat!("let lock = ", $made, ";")]
            /// // The branches are one task, and yet each has the lock by itself.
            /// let (left, right) = tokio::join!(lock.run(count(1)), lock.run(count(2)));
            /// assert_eq!(left? + right?, 6);
            /// # Ok::<(), redlatch::Error>(()) });
            /// ```
            pub async fn run<F: Future>(
                &self,
                future: F,
            ) -> Result<F::Output, $crate::error::Error> {
                $crate::lock::distributed::run(
                    std::pin::pin!(self.lock()),
                    std::pin::pin!(Some(future)),
                )
                .await
            }

            /// Runs a future under the lock, for an owner of its own, until it ends or the lock is lost. Waits for at
            /// most `wait` until the lock is available; a lock that is still busy then is an error.
            ///
            /// Use it where a busy lock is a failure like any other, for example in a handler that answers with an
            /// error code. Where a busy lock is a normal answer, use [`try_run_for`](Self::try_run_for). With
            /// [`Duration::MAX`](std::time::Duration::MAX), the call waits without a limit.
            ///
            /// Otherwise same as [`run`](Self::run). The error of the future can be any type that an
            /// [`Error`](crate::Error) converts into, such as `Box<dyn std::error::Error>` or `anyhow::Error`.
            ///
            /// # Errors
            ///
            /// The error that the future returned; the result of the release is then ignored. Otherwise same as
            /// `try_lock_for`, and as `unlock` of the guard; and [`Busy`](crate::ErrorKind::Busy) if the lock was busy
            /// until the wait ended.
            ///
            /// # Cancel safety
            ///
            /// Same as [`run`](Self::run).
            ///
            /// # Examples
            ///
            /// ```
            /// # redlatch_testkit::doc(async |url| {
            /// # let client = redlatch::Client::builder().url(url).trust_fresh_servers(true).build().await?;
            /// use std::time::Duration;
            /// use redlatch::{Error, ErrorKind};
            ///
            /// enum Failure {
            ///     Declined,
            ///     Lock(Error),
            /// }
            /// # impl From<Error> for Failure { fn from(error: Error) -> Self { Self::Lock(error) } }
            /// # async fn charge() -> Result<u32, Failure> { Ok(81) }
            ///
            #[doc = concat!("let lock = ", $made, ";")]
            /// let status = match lock.run_for(Duration::from_secs(2), charge()).await {
            ///     Ok(_receipt) => 200,
            ///     Err(Failure::Declined) => 402,
            ///     Err(Failure::Lock(error)) if error.kind() == ErrorKind::Busy => 409,
            ///     Err(Failure::Lock(_)) => 503,
            /// };
            /// assert_eq!(status, 200);
            /// # Ok::<(), redlatch::Error>(()) });
            /// ```
            pub async fn run_for<T, E: From<$crate::error::Error>>(
                &self,
                wait: std::time::Duration,
                future: impl Future<Output = Result<T, E>>,
            ) -> Result<T, E> {
                let acquire = std::pin::pin!(self.try_lock_for(wait));
                let future = std::pin::pin!(Some(future));
                let ran = $crate::lock::distributed::try_run(acquire, future).await?;
                let busy = || {
                    let ($this, $error) = (self, $crate::error::Error::busy(wait));
                    $named.into()
                };
                ran.ok_or_else(busy)
            }

            /// Runs a future under the lock, for an owner of its own, until it ends or the lock is lost. If the lock is
            /// busy, the call does not wait: it drops the future without polling it, and returns `None`.
            ///
            /// Use it if several processes go through the same pieces of work, and each piece is for one of them. A
            /// process that finds a piece busy goes on to the next. With [`run`](Self::run), it would wait behind the
            /// process ahead of it, for one piece after the other.
            ///
            /// Otherwise same as [`run`](Self::run). The error of the future can be any type that an
            /// [`Error`](crate::Error) converts into, such as `Box<dyn std::error::Error>` or `anyhow::Error`.
            ///
            /// # Errors
            ///
            /// The error that the future returned; the result of the release is then ignored. Otherwise same as
            /// `try_lock`, and as `unlock` of the guard.
            ///
            /// # Cancel safety
            ///
            /// Same as [`run`](Self::run).
            ///
            /// # Examples
            ///
            /// ```
            /// # redlatch_testkit::doc(async |url| {
            /// # let client = redlatch::Client::builder().url(url).trust_fresh_servers(true).build().await?;
            /// # async fn ship() -> Result<u32, redlatch::Error> { Ok(42) }
            #[doc = concat!("let lock = ", $made, ";")]
            /// match lock.try_run(ship()).await? {
            ///     Some(parcel) => println!("parcel {parcel} is on its way"),
            ///     None => println!("another process ships it"),
            /// }
            /// # Ok::<(), redlatch::Error>(()) });
            /// ```
            pub async fn try_run<T, E: From<$crate::error::Error>>(
                &self,
                future: impl Future<Output = Result<T, E>>,
            ) -> Result<Option<T>, E> {
                $crate::lock::distributed::try_run(
                    std::pin::pin!(self.try_lock()),
                    std::pin::pin!(Some(future)),
                )
                .await
            }

            /// Runs a future under the lock, for an owner of its own, until it ends or the lock is lost. Waits for at
            /// most `wait` until the lock is available. If it is still busy then, the call drops the future without
            /// polling it, and returns `None`.
            ///
            /// [`Duration::ZERO`](std::time::Duration::ZERO) makes a single attempt, as [`try_run`](Self::try_run)
            /// does.
            ///
            /// Otherwise same as [`run`](Self::run). The error of the future can be any type that an
            /// [`Error`](crate::Error) converts into, such as `Box<dyn std::error::Error>` or `anyhow::Error`.
            ///
            /// # Errors
            ///
            /// The error that the future returned; the result of the release is then ignored. Otherwise same as
            /// `try_lock_for`, and as `unlock` of the guard.
            ///
            /// # Cancel safety
            ///
            /// Same as [`run`](Self::run).
            ///
            /// # Examples
            ///
            /// ```
            /// # redlatch_testkit::doc(async |url| {
            /// # let client = redlatch::Client::builder().url(url).trust_fresh_servers(true).build().await?;
            /// # async fn check_out() -> Result<u32, redlatch::Error> { Ok(3) }
            /// use std::time::Duration;
            ///
            #[doc = concat!("let lock = ", $made, ";")]
            /// let Some(items) = lock.try_run_for(Duration::from_millis(500), check_out()).await? else {
            ///     println!("it is busy, please try again");
            ///     return Ok(());
            /// };
            /// assert_eq!(items, 3);
            /// # Ok::<(), redlatch::Error>(()) });
            /// ```
            pub async fn try_run_for<T, E: From<$crate::error::Error>>(
                &self,
                wait: std::time::Duration,
                future: impl Future<Output = Result<T, E>>,
            ) -> Result<Option<T>, E> {
                let acquire = std::pin::pin!(self.try_lock_for(wait));
                $crate::lock::distributed::try_run(acquire, std::pin::pin!(Some(future))).await
            }
        }
    };
}

pub(crate) use runs;
