//! The methods that both semaphores have, with their documentation.

/// Implements the common methods for a semaphore type that wraps a [`Pool`](super::pool::Pool). A `$permit` has the
/// `Undo` of the permits that were acquired, and the client. `$constructor` is the name of the
/// [`Client`](crate::Client)'s method that makes the semaphore, for the examples.
macro_rules! methods {
    ($semaphore:ty, $permit:ident, $constructor:literal) => {
        impl std::fmt::Debug for $semaphore {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                self.0.counter.show(stringify!($semaphore), f)
            }
        }

        impl std::fmt::Debug for $permit {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                let mut shown = f.debug_struct(stringify!($permit));
                shown.field("name", &self.name()).field("permits", &self.permits());
                shown.finish()
            }
        }

        impl $permit {
            /// Returns the name of the semaphore, with the prefix of its client.
            ///
            /// # Examples
            ///
            /// ```
            /// # redlatch_testkit::doc(async |url| {
            /// # let client = redlatch::Client::connect(url).await?;
            #[doc = concat!("let workers = client.", $constructor, "(\"workers\");")]
            /// # workers.try_set_permits(4).await?;
            /// let permit = workers.acquire().await?;
            /// assert_eq!(permit.name(), "workers");
            /// # Ok::<(), redlatch::Error>(()) });
            /// ```
            #[must_use]
            pub fn name(&self) -> &str {
                self.undo.key.name.key()
            }

            /// Returns how many permits this value holds.
            ///
            /// # Examples
            ///
            /// ```
            /// # redlatch_testkit::doc(async |url| {
            /// # let client = redlatch::Client::connect(url).await?;
            #[doc = concat!("# let cores = client.", $constructor, "(\"host-7:cores\");")]
            /// # cores.try_set_permits(8).await?;
            /// let permit = cores.acquire_many(4).await?;
            /// let threads = permit.permits(); // as many as this job may start
            /// assert_eq!(threads, 4);
            /// # Ok::<(), redlatch::Error>(()) });
            /// ```
            #[must_use]
            pub fn permits(&self) -> u32 {
                self.undo.key.count
            }
        }

        impl $semaphore {
            /// Returns the name of the semaphore, with the prefix of its client; see
            /// [`ReentrantLock::name`](crate::ReentrantLock::name).
            ///
            /// # Examples
            ///
            /// ```
            /// # redlatch_testkit::doc(async |url| {
            /// # let client = redlatch::Client::connect(url).await?;
            #[doc = concat!("let workers = client.", $constructor, "(\"workers\");")]
            /// assert_eq!(workers.name(), "workers");
            /// # Ok::<(), redlatch::Error>(()) });
            /// ```
            #[must_use]
            pub fn name(&self) -> &str {
                self.0.counter.shown_name()
            }

            /// Sets the number of permits, at most 2³¹ − 1, which are all free at first. Returns `false` and changes
            /// nothing if the number was set before.
            ///
            /// Until the number is set, there are no permits, and calls wait for them. With
            /// [`long_wait`](crate::ClientBuilder::long_wait), a warning says so.
            ///
            /// # Errors
            ///
            /// - [`InvalidInput`](crate::ErrorKind::InvalidInput): name or number cannot work; nothing was sent.
            /// - [`WrongKind`](crate::ErrorKind::WrongKind): the name is in use by something else.
            /// - [`Timeout`](crate::ErrorKind::Timeout), [`Backend`](crate::ErrorKind::Backend): the server did not
            ///   answer or refused.
            /// - [`Closed`](crate::ErrorKind::Closed): the client was closed.
            ///
            /// # Cancel safety
            ///
            /// If the future is dropped, the number may or may not have been set.
            ///
            /// # Examples
            ///
            /// ```
            /// # redlatch_testkit::doc(async |url| {
            /// # let client = redlatch::Client::connect(url).await?;
            #[doc = concat!("let workers = client.", $constructor, "(\"workers\");")]
            /// // Each process does this at its start. Only the first one sets the number.
            /// assert!(workers.try_set_permits(4).await?);
            /// assert!(!workers.try_set_permits(8).await?);
            /// assert_eq!(workers.available_permits().await?, 4);
            /// # Ok::<(), redlatch::Error>(()) });
            /// ```
            pub async fn try_set_permits(
                &self,
                permits: u32,
            ) -> Result<bool, $crate::error::Error> {
                self.0.try_set_permits(permits).await
            }

            /// Acquires a permit, waiting until one is free. Within this process, calls are served in order of arrival;
            /// a waiting call is woken when permits are released. Until the number of permits is
            /// [set](Self::try_set_permits), there are none, and the call waits.
            ///
            /// # Errors
            ///
            /// Same as [`try_set_permits`](Self::try_set_permits), except that a server that does not answer, or is a
            /// replica, is an error only after one [`watchdog_lease`](crate::ClientBuilder::watchdog_lease). If the
            /// permits have a [lease](crate::semaphore::ExpirableSemaphore::lease), also:
            ///
            /// - [`LeaseLost`](crate::ErrorKind::LeaseLost): the permits were granted so late that less than
            ///   [`min_validity`](crate::ClientBuilder::min_validity) was left of their lease; they were released.
            /// - [`InvalidInput`](crate::ErrorKind::InvalidInput): the lease is too short or too long, or can never
            ///   meet [`min_validity`](crate::ClientBuilder::min_validity); nothing was sent.
            ///
            /// # Cancel safety
            ///
            /// If the future is dropped, the call leaves the queue. A request that is on its way may still acquire the
            /// permit, which is then released in the background.
            ///
            /// # Examples
            ///
            /// ```
            /// # redlatch_testkit::doc(async |url| {
            /// # let client = redlatch::Client::connect(url).await?;
            /// # async fn download() {}
            #[doc = concat!("let downloads = client.", $constructor, "(\"downloads\");")]
            /// downloads.try_set_permits(2).await?;
            /// let permit = downloads.acquire().await?; // waits as long as two other downloads run
            /// download().await;
            /// permit.release().await?;
            /// # Ok::<(), redlatch::Error>(()) });
            /// ```
            pub async fn acquire(&self) -> Result<$permit, $crate::error::Error> {
                self.acquire_many(1).await
            }

            /// Acquires `permits` permits at once, all or none, waiting until they are free. Once its first request was
            /// refused, a call that waits for many permits is not overtaken by calls that come after it in this
            /// process.
            ///
            /// # Errors
            ///
            /// Same as [`acquire`](Self::acquire). Asking for more permits than the semaphore ever has is not an error:
            /// the call waits without end.
            ///
            /// # Cancel safety
            ///
            /// Same as [`acquire`](Self::acquire).
            ///
            /// # Examples
            ///
            /// ```
            /// # redlatch_testkit::doc(async |url| {
            /// # let client = redlatch::Client::connect(url).await?;
            #[doc = concat!("let gigabytes = client.", $constructor, "(\"host-7:gigabytes\");")]
            /// gigabytes.try_set_permits(64).await?;
            /// // All or none: two large jobs cannot block each other halfway.
            /// let large_job = gigabytes.acquire_many(48).await?;
            /// assert_eq!(gigabytes.available_permits().await?, 16);
            /// large_job.release().await?;
            /// # Ok::<(), redlatch::Error>(()) });
            /// ```
            pub async fn acquire_many(
                &self,
                permits: u32,
            ) -> Result<$permit, $crate::error::Error> {
                let taken = self.acquire_by(permits, std::time::Duration::MAX).await?;
                taken.ok_or_else($crate::error::Error::endless)
            }

            /// Attempts to acquire a permit without waiting. Returns `None` if none is free, or if another call in this
            /// process waits for permits of this semaphore.
            ///
            /// # Errors
            ///
            /// Same as [`acquire`](Self::acquire), except that a server that does not answer, or is a replica, is an
            /// error after at most one [`command_timeout`](crate::ClientBuilder::command_timeout).
            ///
            /// # Cancel safety
            ///
            /// Same as [`acquire`](Self::acquire).
            ///
            /// # Examples
            ///
            /// ```
            /// # redlatch_testkit::doc(async |url| {
            /// # let client = redlatch::Client::connect(url).await?;
            #[doc = concat!("let previews = client.", $constructor, "(\"previews\");")]
            /// previews.try_set_permits(1).await?;
            /// let rendering = previews.try_acquire().await?;
            /// assert!(rendering.is_some());
            /// // The second request shows an icon instead of waiting.
            /// assert!(previews.try_acquire().await?.is_none());
            /// # Ok::<(), redlatch::Error>(()) });
            /// ```
            pub async fn try_acquire(&self) -> Result<Option<$permit>, $crate::error::Error> {
                self.try_acquire_many(1).await
            }

            /// Attempts to acquire `permits` permits at once, all or none, without waiting. Returns `None` if they are
            /// not free, or if another call in this process waits for permits of this semaphore.
            ///
            /// # Errors
            ///
            /// Same as [`acquire`](Self::acquire), except that a server that does not answer, or is a replica, is an
            /// error after at most one [`command_timeout`](crate::ClientBuilder::command_timeout).
            ///
            /// # Cancel safety
            ///
            /// Same as [`acquire`](Self::acquire).
            ///
            /// # Examples
            ///
            /// ```
            /// # redlatch_testkit::doc(async |url| {
            /// # let client = redlatch::Client::connect(url).await?;
            #[doc = concat!("let seats = client.", $constructor, "(\"show:42:seats\");")]
            /// seats.try_set_permits(3).await?;
            /// let couple = seats.try_acquire_many(2).await?;
            /// assert!(couple.is_some());
            /// // One seat is left: not enough for a second couple, but for one visitor.
            /// assert!(seats.try_acquire_many(2).await?.is_none());
            /// assert!(seats.try_acquire().await?.is_some());
            /// # Ok::<(), redlatch::Error>(()) });
            /// ```
            pub async fn try_acquire_many(
                &self,
                permits: u32,
            ) -> Result<Option<$permit>, $crate::error::Error> {
                self.acquire_by(permits, std::time::Duration::ZERO).await
            }

            /// Attempts to acquire a permit, waiting for at most `wait`. Returns `None` if none is free by then.
            ///
            /// [`Duration::ZERO`](std::time::Duration::ZERO) makes a single attempt;
            /// [`Duration::MAX`](std::time::Duration::MAX) waits without a limit. If a request is on its way when the
            /// limit is reached, the call waits for its answer, so it returns within `wait` plus one
            /// [`command_timeout`](crate::ClientBuilder::command_timeout).
            ///
            /// # Errors
            ///
            /// Same as [`acquire`](Self::acquire), except that a server that does not answer is an error when the limit
            /// is reached.
            ///
            /// # Cancel safety
            ///
            /// Same as [`acquire`](Self::acquire).
            ///
            /// # Examples
            ///
            /// ```
            /// # redlatch_testkit::doc(async |url| {
            /// # let client = redlatch::Client::connect(url).await?;
            /// use std::time::Duration;
            ///
            #[doc = concat!("let gateway = client.", $constructor, "(\"payment-gateway\");")]
            /// gateway.try_set_permits(1).await?;
            /// let payment = gateway.acquire().await?;
            /// let next = gateway.try_acquire_for(Duration::from_millis(20)).await?;
            /// assert!(next.is_none()); // better to tell the customer than to let the page hang
            /// payment.release().await?;
            /// # Ok::<(), redlatch::Error>(()) });
            /// ```
            pub async fn try_acquire_for(
                &self,
                wait: std::time::Duration,
            ) -> Result<Option<$permit>, $crate::error::Error> {
                self.try_acquire_many_for(1, wait).await
            }

            /// Attempts to acquire `permits` permits at once, all or none, waiting for at most `wait`. Returns `None`
            /// if they are not free by then. The limits are those of [`try_acquire_for`](Self::try_acquire_for).
            ///
            /// # Errors
            ///
            /// Same as [`try_acquire_for`](Self::try_acquire_for).
            ///
            /// # Cancel safety
            ///
            /// Same as [`acquire`](Self::acquire).
            ///
            /// # Examples
            ///
            /// ```
            /// # redlatch_testkit::doc(async |url| {
            /// # let client = redlatch::Client::connect(url).await?;
            /// use std::time::Duration;
            ///
            #[doc = concat!("let cores = client.", $constructor, "(\"host-7:cores\");")]
            /// cores.try_set_permits(8).await?;
            /// let nightly = cores.acquire_many(6).await?;
            /// let render = cores.try_acquire_many_for(4, Duration::from_secs(10));
            /// // The end of the nightly job wakes the other one.
            /// let (render, ()) = tokio::try_join!(render, nightly.release())?;
            /// assert_eq!(render.map(|render| render.permits()), Some(4));
            /// # Ok::<(), redlatch::Error>(()) });
            /// ```
            pub async fn try_acquire_many_for(
                &self,
                permits: u32,
                wait: std::time::Duration,
            ) -> Result<Option<$permit>, $crate::error::Error> {
                self.acquire_by(permits, wait).await
            }

            async fn acquire_by(
                &self,
                permits: u32,
                wait: std::time::Duration,
            ) -> Result<Option<$permit>, $crate::error::Error> {
                let taken = self.0.acquire(permits, wait).await?;
                let client = self.0.counter.client.clone();
                Ok(taken.map(|undo| $permit { undo, client }))
            }

            /// Returns the number of free permits. This is 0 if the number of permits was never set, and less than 0 if
            /// [`add_permits`](Self::add_permits) removed more permits than were free.
            ///
            /// As with every query, the answer describes a state that may have changed by the time the answer arrives.
            ///
            /// # Errors
            ///
            /// Same as [`try_set_permits`](Self::try_set_permits).
            ///
            /// # Cancel safety
            ///
            /// This method is cancel safe: it takes no permit.
            ///
            /// # Examples
            ///
            /// ```
            /// # redlatch_testkit::doc(async |url| {
            /// # let client = redlatch::Client::connect(url).await?;
            #[doc = concat!("let connections = client.", $constructor, "(\"legacy-db:connections\");")]
            /// connections.try_set_permits(5).await?;
            /// let report = connections.acquire_many(2).await?;
            /// let in_use = 5 - connections.available_permits().await?; // for a dashboard
            /// assert_eq!(in_use, 2);
            /// # report.release().await?;
            /// # Ok::<(), redlatch::Error>(()) });
            /// ```
            pub async fn available_permits(&self) -> Result<i32, $crate::error::Error> {
                self.0.available_permits().await
            }

            /// Adds `permits` to the number of free permits. A negative number removes permits, even more than are
            /// free: permits that are released later make up for the difference. If the number of permits was never
            /// set, this sets it.
            ///
            /// # Errors
            ///
            /// Same as [`try_set_permits`](Self::try_set_permits), and [`Refused`](crate::ErrorKind::Refused) if more
            /// than 2³¹ − 1 or fewer than −2³¹ permits would be free. Nothing is changed in that case.
            ///
            /// # Cancel safety
            ///
            /// If the future is dropped, the permits may or may not have been added. They are added at most once.
            ///
            /// # Examples
            ///
            /// ```
            /// # redlatch_testkit::doc(async |url| {
            /// # let client = redlatch::Client::connect(url).await?;
            #[doc = concat!("let mailers = client.", $constructor, "(\"mailers\");")]
            /// mailers.add_permits(4).await?;
            /// let sending = mailers.acquire_many(3).await?;
            /// mailers.add_permits(-2).await?; // a relay is gone; mails that are being sent are not interrupted
            /// assert_eq!(mailers.available_permits().await?, -1);
            /// sending.release().await?;
            /// assert_eq!(mailers.available_permits().await?, 2);
            /// # Ok::<(), redlatch::Error>(()) });
            /// ```
            pub async fn add_permits(&self, permits: i32) -> Result<(), $crate::error::Error> {
                self.0.add_permits(permits.into()).await
            }

            /// Removes all free permits for good, and returns how many there were. Permits that are out come back when
            /// they are released.
            ///
            /// # Errors
            ///
            /// Same as [`try_set_permits`](Self::try_set_permits).
            ///
            /// # Cancel safety
            ///
            /// If the future is dropped, the permits may or may not have been removed.
            ///
            /// # Examples
            ///
            /// ```
            /// # redlatch_testkit::doc(async |url| {
            /// # let client = redlatch::Client::connect(url).await?;
            #[doc = concat!("let exports = client.", $constructor, "(\"exports\");")]
            /// exports.try_set_permits(6).await?;
            /// let drained = exports.drain_permits().await?; // maintenance: no export starts from here on
            /// assert_eq!(drained, 6);
            /// assert!(exports.try_acquire().await?.is_none());
            /// exports.add_permits(drained.cast_signed()).await?;
            /// assert_eq!(exports.available_permits().await?, 6);
            /// # Ok::<(), redlatch::Error>(()) });
            /// ```
            pub async fn drain_permits(&self) -> Result<u32, $crate::error::Error> {
                self.0.drain_permits().await
            }
        }
    };
}

pub(crate) use methods;
