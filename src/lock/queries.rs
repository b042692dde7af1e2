//! The methods by which every lock with a single name tells who holds it, and the one that ends any hold, with their
//! documentation.

/// Implements these methods for a lock type that wraps a [`Handle`](super::handle::Handle). The arguments are those of
/// [`methods`](super::methods).
macro_rules! queries {
    ($lock:ty, $constructor:literal, $side:literal) => {
        impl $lock {
            /// Returns `true` if any owner holds the lock. For a side of a read-write lock, only holds of that side
            /// count.
            ///
            /// As with every query, the answer describes a state that may have changed by the time the answer arrives.
            /// Use it for people and metrics, never to decide whether to proceed.
            ///
            /// # Errors
            ///
            /// [`WrongKind`](crate::ErrorKind::WrongKind) if the name is in use by something else;
            /// [`Timeout`](crate::ErrorKind::Timeout) and [`Backend`](crate::ErrorKind::Backend) if the server did not
            /// answer or refused the request.
            ///
            /// # Cancel safety
            ///
            /// This method is cancel safe: it changes nothing on the server.
            ///
            /// # Examples
            ///
            /// ```
            /// # redlatch_testkit::doc(async |url| {
            /// # let client = redlatch::Client::connect(url).await?;
            /// # let other = redlatch::Client::connect(url).await?;
            #[doc = concat!("let lock = client.", $constructor, "(\"nightly-report\")", $side, ";")]
            /// let guard = lock.lock().await?;
            /// // A status page, in another process:
            #[doc = concat!("let report = other.", $constructor, "(\"nightly-report\")", $side, ";")]
            /// assert!(report.is_locked().await?);
            /// guard.unlock().await?;
            /// assert!(!report.is_locked().await?);
            /// # Ok::<(), redlatch::Error>(()) });
            /// ```
            pub async fn is_locked(&self) -> Result<bool, $crate::error::Error> {
                self.0.is_locked().await
            }

            /// Returns `true` if this owner holds the lock, according to the server's record.
            ///
            /// # Errors
            ///
            /// Same as [`is_locked`](Self::is_locked).
            ///
            /// # Cancel safety
            ///
            /// This method is cancel safe: it changes nothing on the server.
            ///
            /// # Examples
            ///
            /// ```
            /// # redlatch_testkit::doc(async |url| {
            /// # let client = redlatch::Client::connect(url).await?;
            /// use redlatch::Owner;
            ///
            #[doc = concat!("let lock = client.", $constructor, "(\"orders:42\")", $side, ";")]
            /// let guard = lock.lock().await?;
            /// assert!(lock.is_held().await?);
            /// // Others see a lock that they do not hold.
            /// let others = lock.owned_by(&Owner::unique());
            /// assert!(others.is_locked().await? && !others.is_held().await?);
            /// guard.unlock().await?;
            /// # Ok::<(), redlatch::Error>(()) });
            /// ```
            pub async fn is_held(&self) -> Result<bool, $crate::error::Error> {
                self.0.is_held().await
            }

            /// Returns the hold count: the number of levels that this owner holds, in all processes together, or 0 if
            /// it does not hold the lock.
            ///
            /// # Errors
            ///
            /// Same as [`is_locked`](Self::is_locked).
            ///
            /// # Cancel safety
            ///
            /// This method is cancel safe: it changes nothing on the server.
            ///
            /// # Examples
            ///
            /// ```
            /// # redlatch_testkit::doc(async |url| {
            /// # let client = redlatch::Client::connect(url).await?;
            #[doc = concat!("let lock = client.", $constructor, "(\"orders:42\")", $side, ";")]
            /// let guard = lock.lock().await?;
            /// assert_eq!(lock.hold_count().await?, 1);
            /// guard.unlock().await?;
            /// assert_eq!(lock.hold_count().await?, 0); // no level was left behind
            /// # Ok::<(), redlatch::Error>(()) });
            /// ```
            pub async fn hold_count(&self) -> Result<u64, $crate::error::Error> {
                self.0.hold_count().await
            }

            /// Returns how long the lock remains held if no holder renews it. Returns `None` if the lock is free, or if
            /// another kind of client holds it without an expiry.
            ///
            /// # Errors
            ///
            /// Same as [`is_locked`](Self::is_locked).
            ///
            /// # Cancel safety
            ///
            /// This method is cancel safe: it changes nothing on the server.
            ///
            /// # Examples
            ///
            /// ```
            /// # redlatch_testkit::doc(async |url| {
            /// # let client = redlatch::Client::connect(url).await?;
            /// use std::time::Duration;
            ///
            #[doc = concat!("let lock = client.", $constructor, "(\"nightly-report\")", $side)]
            ///     .lease(Duration::from_secs(20));
            /// let guard = lock.lock().await?;
            /// // If the holder crashes now, this is how long the others still wait.
            /// let left = lock.remaining_lease().await?.expect("the lock is held");
            /// assert!(left <= Duration::from_secs(20));
            /// guard.unlock().await?;
            /// assert_eq!(lock.remaining_lease().await?, None);
            /// # Ok::<(), redlatch::Error>(()) });
            /// ```
            pub async fn remaining_lease(
                &self,
            ) -> Result<Option<std::time::Duration>, $crate::error::Error> {
                self.0.remaining_lease().await
            }

            /// Returns who holds the lock, how many times and for how long, or `None` if the lock is free.
            ///
            /// The owner is the one that acquired the lock from the server. If a lock of this kind can be passed on in
            /// memory, another task of the same process may hold it by now.
            ///
            /// # Errors
            ///
            /// Same as [`is_locked`](Self::is_locked).
            ///
            /// # Cancel safety
            ///
            /// This method is cancel safe: it changes nothing on the server.
            ///
            /// # Examples
            ///
            /// ```
            /// # redlatch_testkit::doc(async |url| {
            /// # let client = redlatch::Client::connect(url).await?;
            /// # let other = redlatch::Client::connect(url).await?;
            /// use redlatch::Owner;
            ///
            #[doc = concat!("let lock = client.", $constructor, "(\"deployment\")", $side)]
            ///     .owned_by(&Owner::named("release-1.2"));
            /// let guard = lock.lock().await?;
            /// // An operator asks what is going on.
            #[doc = concat!("let deployment = other.", $constructor, "(\"deployment\")", $side, ";")]
            /// let holder = deployment.holder().await?.expect("the lock is held");
            /// assert_eq!(holder.owner(), "release-1.2");
            /// guard.unlock().await?;
            /// # Ok::<(), redlatch::Error>(()) });
            /// ```
            pub async fn holder(
                &self,
            ) -> Result<Option<$crate::lock::holder::Holder>, $crate::error::Error> {
                self.0.holder().await
            }

            /// Frees the lock **no matter who holds it**. Returns `false` if the lock was already free.
            ///
            /// Waiters are woken as by a release.
            ///
            /// This is meant for operators. A live holder continues its work until it learns of the loss, and meanwhile
            /// its work overlaps with that of the next holder. Guards in this process are lost at once. A holder in
            /// another process is told by a message, within two round trips, but not before it has held the lock for
            /// 0.1 s. If no message reaches it, because the connection is broken or the right to the channel
            /// `redlatch:*` is missing, it learns of the loss at its next renewal or, with a fixed lease, when that
            /// lease ends. The same holds for a holder that does not use this crate, or uses an older version of it,
            /// and for the named owner of a [`PlainLock`](crate::PlainLock) or of a read-write lock, whose client the
            /// server does not know.
            ///
            /// # Errors
            ///
            /// Same as [`is_locked`](Self::is_locked). If the connection breaks before the answer, the request is not
            /// sent again, since the lock may have another holder by then. The call asks whether the lock is free, and
            /// returns an error of kind [`Timeout`](crate::ErrorKind::Timeout) if it is held.
            ///
            /// # Cancel safety
            ///
            /// If the future is dropped, the lock may or may not have been freed. Holds of this process are released in
            /// the background, except those of a [`PlainLock`](crate::PlainLock) with a named owner, which last until
            /// their lease ends.
            ///
            /// # Examples
            ///
            /// ```
            /// # redlatch_testkit::doc(async |url| {
            /// # let client = redlatch::Client::connect(url).await?;
            #[doc = concat!("let lock = client.", $constructor, "(\"nightly-report\")", $side, ";")]
            /// let stuck = lock.lock().await?;
            /// assert!(lock.force_unlock().await?);
            /// assert!(stuck.is_lost()); // at once, since it is a guard of this process
            /// assert!(!lock.force_unlock().await?); // the lock was free already
            /// # Ok::<(), redlatch::Error>(()) });
            /// ```
            pub async fn force_unlock(&self) -> Result<bool, $crate::error::Error> {
                self.0.force_unlock(&[]).await
            }
        }
    };
}

pub(crate) use queries;
