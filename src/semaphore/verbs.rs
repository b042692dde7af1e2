//! The verbs that both semaphores have, with their manual.

/// Gives a semaphore that wraps a [`Pool`](super::pool::Pool) its verbs. The permit is made of what was taken.
macro_rules! verbs {
    ($semaphore:ty, $permit:ident) => {
        impl $semaphore {
            /// Sets the number of free permits, 2³¹ − 1 at the most, unless it was set before; false if so.
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
            pub async fn try_set_permits(
                &self,
                permits: u32,
            ) -> Result<bool, $crate::error::Error> {
                self.0.try_set_permits(permits).await
            }

            /// Takes a permit, for as long as it takes. Waits in line, and is woken when permits are given back.
            ///
            /// # Errors
            ///
            /// As [`try_set_permits`](Self::try_set_permits); but a server that does not answer, or is a replica, is an
            /// error only after one [`watchdog_lease`](crate::ClientBuilder::watchdog_lease) of that.
            ///
            /// # Cancel safety
            ///
            /// If the future is dropped, the place in line is given up. A request that is on its way may still take
            /// the permit; it is given back in the background then.
            pub async fn acquire(&self) -> Result<$permit, $crate::error::Error> {
                self.acquire_many(1).await
            }

            /// Takes so many permits at once, all or none, for as long as it takes. One that waits for many is not
            /// overtaken by those that come after it in this process.
            ///
            /// # Errors
            ///
            /// As [`acquire`](Self::acquire). More permits than there ever are is a wait without end, and no error.
            ///
            /// # Cancel safety
            ///
            /// As [`acquire`](Self::acquire).
            pub async fn acquire_many(
                &self,
                permits: u32,
            ) -> Result<$permit, $crate::error::Error> {
                let taken = self
                    .0
                    .acquire(permits, || $crate::options::Deadline::Never)
                    .await?;
                let undo = taken.ok_or_else($crate::error::Error::endless)?;
                Ok(self.permit(undo))
            }

            /// Takes a permit if one is free, and if nobody waits for some in this process. None if not.
            ///
            /// # Errors
            ///
            /// As [`try_set_permits`](Self::try_set_permits).
            ///
            /// # Cancel safety
            ///
            /// As [`acquire`](Self::acquire).
            pub async fn try_acquire(&self) -> Result<Option<$permit>, $crate::error::Error> {
                self.try_acquire_many(1).await
            }

            /// Takes so many permits at once if they are free, and if nobody waits for some in this process. None if
            /// not.
            ///
            /// # Errors
            ///
            /// As [`try_set_permits`](Self::try_set_permits).
            ///
            /// # Cancel safety
            ///
            /// As [`acquire`](Self::acquire).
            pub async fn try_acquire_many(
                &self,
                permits: u32,
            ) -> Result<Option<$permit>, $crate::error::Error> {
                let taken = self
                    .0
                    .acquire(permits, || $crate::options::Deadline::Once)
                    .await?;
                Ok(taken.map(|undo| self.permit(undo)))
            }

            /// Takes a permit, waiting at most so long. None if none was free until then.
            ///
            /// [`Duration::ZERO`](std::time::Duration::ZERO) is one attempt,
            /// [`Duration::MAX`](std::time::Duration::MAX) waits for ever. A request on its way at the end is waited
            /// for, so the call returns by its limit plus one
            /// [`command_timeout`](crate::ClientBuilder::command_timeout).
            ///
            /// # Errors
            ///
            /// As [`acquire`](Self::acquire), but a server that does not answer is an error when the limit is reached.
            ///
            /// # Cancel safety
            ///
            /// As [`acquire`](Self::acquire).
            pub async fn try_acquire_for(
                &self,
                wait: std::time::Duration,
            ) -> Result<Option<$permit>, $crate::error::Error> {
                self.try_acquire_many_for(1, wait).await
            }

            /// Takes so many permits at once, waiting at most so long; as
            /// [`try_acquire_for`](Self::try_acquire_for).
            ///
            /// # Errors
            ///
            /// As [`try_acquire_for`](Self::try_acquire_for).
            ///
            /// # Cancel safety
            ///
            /// As [`acquire`](Self::acquire).
            pub async fn try_acquire_many_for(
                &self,
                permits: u32,
                wait: std::time::Duration,
            ) -> Result<Option<$permit>, $crate::error::Error> {
                let deadline = || $crate::options::Deadline::within(wait);
                let taken = self.0.acquire(permits, deadline).await?;
                Ok(taken.map(|undo| self.permit(undo)))
            }

            /// How many permits are free; 0 if their number was never set. Below zero if more were taken away by
            /// [`add_permits`](Self::add_permits) than were free.
            ///
            /// Like every query, this tells of a moment that has passed when the answer arrives.
            ///
            /// # Errors
            ///
            /// As [`try_set_permits`](Self::try_set_permits).
            ///
            /// # Cancel safety
            ///
            /// No permit is taken, whenever the future is dropped.
            pub async fn available_permits(&self) -> Result<i32, $crate::error::Error> {
                self.0.available_permits().await
            }

            /// Adds so many permits to those that are free; a negative number takes some away, of those too that are
            /// not free yet.
            ///
            /// # Errors
            ///
            /// As [`try_set_permits`](Self::try_set_permits); and [`Refused`](crate::ErrorKind::Refused) if more than
            /// 2³¹ − 1 would be free, or less than −2³¹: nothing is changed then.
            ///
            /// # Cancel safety
            ///
            /// If the future is dropped, they may or may not have been added. They are added once at the most.
            pub async fn add_permits(&self, permits: i32) -> Result<(), $crate::error::Error> {
                self.0.add_permits(permits.into()).await
            }

            /// Takes every permit that is free, for good, and tells how many there were.
            ///
            /// # Errors
            ///
            /// As [`try_set_permits`](Self::try_set_permits).
            ///
            /// # Cancel safety
            ///
            /// If the future is dropped, they may or may not have been taken.
            pub async fn drain_permits(&self) -> Result<u32, $crate::error::Error> {
                self.0.drain_permits().await
            }
        }
    };
}

pub(crate) use verbs;
