//! The methods that every lock with a single name has, with their documentation.

/// Implements the shared methods for a lock type that wraps a [`Handle`](super::handle::Handle). The guard type is made
/// from a [`LockGuard`](crate::LockGuard). `$constructor` is the name of the [`Client`](crate::Client)'s
/// method that makes the lock, and `$side` the call that selects a side of it. Both are for the examples.
macro_rules! methods {
    ($lock:ty, $guard:ty, $constructor:literal) => {
        methods!($lock, $guard, $constructor, "");
    };
    ($lock:ty, $guard:ty, $constructor:literal, $side:literal) => {
        impl From<$lock> for $crate::lock::member::Member {
            fn from(lock: $lock) -> Self {
                Self(lock.0)
            }
        }

        impl std::fmt::Debug for $lock {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                self.0.show(stringify!($lock), f)
            }
        }

        impl $lock {
            /// Returns the name of the lock, with the prefix of its client: the key under which the server stores it.
            /// Returns an empty name if the name cannot work. Every other method then returns
            /// [`InvalidInput`](crate::ErrorKind::InvalidInput).
            ///
            /// # Examples
            ///
            /// ```
            /// # redlatch_testkit::doc(async |url| {
            /// # let client = redlatch::Client::connect(url).await?;
            #[doc = concat!("let lock = client.scoped(\"billing:\").", $constructor, "(\"orders:42\")", $side, ";")]
            /// assert_eq!(lock.name(), "billing:orders:42");
            /// # Ok::<(), redlatch::Error>(()) });
            /// ```
            #[must_use]
            pub fn name(&self) -> &str {
                self.0.shown_name()
            }

            /// Sets a fixed lease: the lock is held for `lease` and is not renewed.
            ///
            /// The lease must be from 50 ms to 100 years; fractions of a millisecond are dropped. With any other lease,
            /// every call that acquires, unlocks or adopts returns [`InvalidInput`](crate::ErrorKind::InvalidInput).
            ///
            /// # Examples
            ///
            /// ```
            /// # redlatch_testkit::doc(async |url| {
            /// # let client = redlatch::Client::connect(url).await?;
            /// use std::time::Duration;
            ///
            #[doc = concat!("let lock = client.", $constructor, "(\"orders:42\")", $side)]
            ///     .lease(Duration::from_secs(10));
            /// let guard = lock.lock().await?; // if this task hangs, the lock is free after ten seconds
            /// assert!(guard.remaining() <= Duration::from_secs(10));
            /// guard.unlock().await?;
            /// # Ok::<(), redlatch::Error>(()) });
            /// ```
            #[must_use = "this makes a new handle and leaves the old one as it is"]
            pub fn lease(mut self, lease: std::time::Duration) -> Self {
                self.0 = self.0.lease(lease);
                self
            }

            /// Makes the calls on this handle act for `owner` instead of the current task.
            ///
            /// # Examples
            ///
            /// ```
            /// # redlatch_testkit::doc(async |url| {
            /// # let client = redlatch::Client::connect(url).await?;
            /// use redlatch::Owner;
            ///
            /// let order = Owner::unique();
            #[doc = concat!("let lock = client.", $constructor, "(\"orders:42\")", $side)]
            ///     .owned_by(&order);
            /// let guard = lock.lock().await?;
            /// // Another task acts for the same owner.
            /// let helper = tokio::spawn(async move { lock.is_held().await });
            /// assert!(helper.await.unwrap()?);
            /// guard.unlock().await?;
            /// # Ok::<(), redlatch::Error>(()) });
            /// ```
            #[must_use = "this makes a new handle and leaves the old one as it is"]
            pub fn owned_by(mut self, owner: &$crate::owner::Owner) -> Self {
                self.0 = self.0.owned_by(owner);
                self
            }

            /// Acquires the lock, waiting until it is available.
            ///
            /// While the lock is busy, the call waits for its turn. How it learns of a release depends on the kind.
            /// Most kinds wake a waiter by a message. If another process holds a [`SpinLock`](crate::SpinLock) or a
            /// [`PlainLock`](crate::PlainLock), the waiter polls, with pauses. If the kind is reentrant, an owner that
            /// already holds the lock acquires it again at once.
            ///
            /// # Errors
            ///
            /// - [`InvalidInput`](crate::ErrorKind::InvalidInput): a name, lease, owner or setting cannot work; nothing
            ///   was sent.
            /// - [`Backend`](crate::ErrorKind::Backend): the server refused the request, or for one watchdog lease it
            ///   could not be reached or was a replica.
            /// - [`Timeout`](crate::ErrorKind::Timeout): the server did not answer for one watchdog lease.
            /// - [`LeaseLost`](crate::ErrorKind::LeaseLost): the lock was granted so late that less than
            ///   [`min_validity`](crate::ClientBuilder::min_validity) was left of its lease; it was released again.
            /// - [`WrongKind`](crate::ErrorKind::WrongKind): the name is in use by something else.
            /// - [`Refused`](crate::ErrorKind::Refused): the owner already holds the lock as many times as can be
            ///   counted, 2³¹ − 1, or 1,000 for a side of a read-write lock; an owner that reads asked to write; or a
            ///   fenced lock has run out of tokens.
            /// - [`Closed`](crate::ErrorKind::Closed): the client was closed before or during the call.
            ///
            /// # Cancel safety
            ///
            /// If the future is dropped, the call gives up its place in the queue. A request that is already on its way
            /// may still acquire the lock. The lock is then released in the background; until that release arrives, for
            /// at most one lease, others see the lock as held.
            ///
            /// A future that is kept but not polled while it waits, as in a `select!` loop while another branch runs,
            /// delays the other waiters of its process by a few seconds at most. After that they go first, and whatever
            /// the server granted to the unpolled call is released. The call continues to wait when it is polled again.
            ///
            /// The exception is a [`PlainLock`](crate::PlainLock) with a named owner: a grant for which no guard was
            /// handed out is not released, and lasts until its lease ends.
            ///
            /// # Examples
            ///
            /// ```
            /// # redlatch_testkit::doc(async |url| {
            /// # let client = redlatch::Client::connect(url).await?;
            /// # async fn ship() {}
            #[doc = concat!("let lock = client.", $constructor, "(\"orders:42\")", $side, ";")]
            /// let guard = lock.lock().await?; // waits as long as another owner holds the lock
            /// ship().await;
            /// guard.unlock().await?; // an error if the lock was lost in the meantime
            /// # Ok::<(), redlatch::Error>(()) });
            /// ```
            pub async fn lock(&self) -> Result<$guard, $crate::error::Error> {
                self.0.lock().await.map(<$guard>::from)
            }

            /// Attempts to acquire the lock without waiting. Returns `None` if the lock is busy.
            ///
            /// The call makes a single attempt and takes no place in a queue. It succeeds if the lock is available or,
            /// if the kind is reentrant, already held by this owner. Depending on the kind, a free lock also counts as
            /// busy while it is reserved for a waiter that goes first.
            ///
            /// # Errors
            ///
            /// Same as [`lock`](Self::lock), except that a server that does not answer is an error after one
            /// [`command_timeout`](crate::ClientBuilder::command_timeout).
            ///
            /// # Cancel safety
            ///
            /// Same as [`lock`](Self::lock).
            ///
            /// # Examples
            ///
            /// ```
            /// # redlatch_testkit::doc(async |url| {
            /// # let client = redlatch::Client::connect(url).await?;
            /// # async fn send_report() {}
            #[doc = concat!("let lock = client.", $constructor, "(\"nightly-report\")", $side, ";")]
            /// let Some(guard) = lock.try_lock().await? else {
            ///     return Ok(()); // another process sends the report: nothing to do here
            /// };
            /// send_report().await;
            /// guard.unlock().await?;
            /// # Ok::<(), redlatch::Error>(()) });
            /// ```
            pub async fn try_lock(&self) -> Result<Option<$guard>, $crate::error::Error> {
                Ok(self.0.try_lock().await?.map(<$guard>::from))
            }

            /// Attempts to acquire the lock, waiting for at most `wait`. Returns `None` if the lock is still busy when
            /// the wait ends.
            ///
            /// [`Duration::ZERO`](std::time::Duration::ZERO) makes a single attempt;
            /// [`Duration::MAX`](std::time::Duration::MAX) waits without a limit. If a request is on its way when the
            /// limit is reached, the call waits for its answer, so it returns within `wait` plus one
            /// [`command_timeout`](crate::ClientBuilder::command_timeout).
            ///
            /// # Errors
            ///
            /// Same as [`lock`](Self::lock), except that a server that cannot be reached or does not answer is an error
            /// when the limit is reached.
            ///
            /// # Cancel safety
            ///
            /// Same as [`lock`](Self::lock).
            ///
            /// # Examples
            ///
            /// ```
            /// # redlatch_testkit::doc(async |url| {
            /// # let client = redlatch::Client::connect(url).await?;
            /// # async fn check_out() {}
            /// use std::time::Duration;
            ///
            #[doc = concat!("let lock = client.", $constructor, "(\"cart:7\")", $side, ";")]
            /// match lock.try_lock_for(Duration::from_millis(500)).await? {
            ///     Some(guard) => {
            ///         check_out().await;
            ///         guard.unlock().await?;
            ///     }
            ///     None => println!("the cart is busy, please try again"),
            /// }
            /// # Ok::<(), redlatch::Error>(()) });
            /// ```
            pub async fn try_lock_for(
                &self,
                wait: std::time::Duration,
            ) -> Result<Option<$guard>, $crate::error::Error> {
                Ok(self.0.try_lock_for(wait).await?.map(<$guard>::from))
            }

            /// Releases one level that this owner holds, without using its guard. For a named owner, the level may have
            /// been acquired in any process.
            ///
            /// A guard whose level was released this way is lost.
            ///
            /// # Errors
            ///
            /// [`NotHeld`](crate::ErrorKind::NotHeld) if this owner holds nothing; otherwise same as
            /// [`LockGuard::unlock`](crate::LockGuard::unlock).
            ///
            /// # Cancel safety
            ///
            /// Once the future has been polled, the release continues in the background if the future is dropped. For a
            /// level that another process holds, the release may not have started by then.
            ///
            /// # Examples
            ///
            /// ```
            /// # redlatch_testkit::doc(async |url| {
            /// # let client = redlatch::Client::connect(url).await?;
            /// use redlatch::{ErrorKind, Owner};
            ///
            /// let session = Owner::named("session-7");
            #[doc = concat!("let lock = client.", $constructor, "(\"cart:7\")", $side)]
            ///     .owned_by(&session);
            /// drop(lock.lock().await?.detach()); // one web request locks the cart
            /// lock.unlock().await?; // and a later one unlocks it
            /// let error = lock.unlock().await.unwrap_err();
            /// assert_eq!(error.kind(), ErrorKind::NotHeld);
            /// # Ok::<(), redlatch::Error>(()) });
            /// ```
            pub async fn unlock(&self) -> Result<(), $crate::error::Error> {
                self.0.unlock().await
            }

            /// Returns a guard for one level that this owner already holds, or `None` if the owner holds nothing.
            ///
            /// The level is one that was [detached](LockGuard::detach) or, for a named owner, one that another process
            /// holds, whether with this crate or with another client of the same format, such as a Java client.
            ///
            /// A level that another process held belongs to this process from now on, and its guard there is lost. Only
            /// the guard of a [`PlainLock`](crate::PlainLock) is not lost, since its value does not tell the two holds
            /// apart. If this process already has a guard for every level of the owner, the new guard is an additional
            /// one: the levels are released by the guards that go first, and the guards that are left are lost.
            ///
            /// # Errors
            ///
            /// Same as [`try_lock`](Self::try_lock).
            ///
            /// # Cancel safety
            ///
            /// If the future is dropped, a level that it took over from another process is released in the background,
            /// or left to its owner if nobody has polled the future for two seconds. A
            /// [`PlainLock`](crate::PlainLock) is not released.
            ///
            /// # Examples
            ///
            /// ```
            /// # redlatch_testkit::doc(async |url| {
            /// # let client = redlatch::Client::connect(url).await?;
            /// # let other = redlatch::Client::connect(url).await?;
            /// use redlatch::Owner;
            ///
            /// let job = Owner::named("import-7"); // the same owner in every process
            #[doc = concat!("let lock = client.", $constructor, "(\"import\")", $side)]
            ///     .owned_by(&job);
            /// drop(lock.lock().await?.detach());
            ///
            /// // The process that continues the job:
            #[doc = concat!("let lock = other.", $constructor, "(\"import\")", $side)]
            ///     .owned_by(&job);
            /// let guard = lock.adopt().await?.expect("the lease has not ended");
            /// assert_eq!(guard.owner(), &job);
            /// guard.unlock().await?;
            /// # Ok::<(), redlatch::Error>(()) });
            /// ```
            pub async fn adopt(&self) -> Result<Option<$guard>, $crate::error::Error> {
                Ok(self.0.adopt().await?.map(<$guard>::from))
            }
        }

        $crate::lock::queries::queries!($lock, $constructor, $side);

        $crate::lock::runs::runs!(
            $lock,
            concat!("client.", $constructor, "(\"orders:42\")", $side),
            |this, error| error.about(this.0.shown_name())
        );
    };
}

pub(crate) use methods;
