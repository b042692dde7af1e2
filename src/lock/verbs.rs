//! The verbs that all locks of one name have, with their manual.

/// Gives a lock that wraps a [`Handle`](super::handle::Handle) its verbs. The guard is made from a
/// [`LockGuard`](crate::LockGuard).
macro_rules! verbs {
    ($lock:ty, $guard:ty) => {
        impl From<$lock> for $crate::lock::member::Member {
            fn from(lock: $lock) -> Self {
                Self(lock.0)
            }
        }

        impl $lock {
            /// Holds the lock for so long, from 50 ms to 100 years, and does not renew it. Fractions of a
            /// millisecond are dropped. Another lease is answered with
            /// [`InvalidInput`](crate::ErrorKind::InvalidInput) by every verb.
            #[must_use = "this makes a new handle and leaves the old one as it is"]
            pub fn lease(mut self, lease: std::time::Duration) -> Self {
                self.0 = self.0.lease(lease);
                self
            }

            /// Acts for this owner instead of the current task.
            #[must_use = "this makes a new handle and leaves the old one as it is"]
            pub fn owned_by(mut self, owner: &$crate::owner::Owner) -> Self {
                self.0 = self.0.owned_by(owner);
                self
            }

            /// Takes the lock, for as long as it takes.
            ///
            /// Waits in line, and is woken by the unlock of whoever holds the lock. An owner that holds the lock
            /// already takes it again at once, if the kind is reentrant.
            ///
            /// # Errors
            ///
            /// - [`InvalidInput`](crate::ErrorKind::InvalidInput): name, lease or owner cannot work; nothing was
            ///   sent.
            /// - [`Backend`](crate::ErrorKind::Backend): the server refused; or for one watchdog lease it could not
            ///   be reached, or was a replica.
            /// - [`Timeout`](crate::ErrorKind::Timeout): it answered nothing for one watchdog lease.
            /// - [`LeaseLost`](crate::ErrorKind::LeaseLost): the grant came so late that less than
            ///   [`min_validity`](crate::ClientBuilder::min_validity) was left of its lease; it was given back.
            /// - [`WrongKind`](crate::ErrorKind::WrongKind): the name is in use by something else.
            /// - [`Refused`](crate::ErrorKind::Refused): the owner holds it 2³¹ − 1 times, a side of a read-write
            ///   lock 1,000 times.
            /// - [`Closed`](crate::ErrorKind::Closed): the client was closed, before or meanwhile.
            ///
            /// # Cancel safety
            ///
            /// If the future is dropped, the place in line is given up. A request that is on its way may still take
            /// the lock; it is released in the background then, and until that arrives, one lease at the most,
            /// others see the lock as held.
            ///
            /// A future that is kept and not polled, as that of a `select!` loop while another branch works, holds up
            /// others of its process for a few seconds at most: then they go first, and what it was granted meanwhile
            /// is given back. It goes on waiting when it is polled again.
            pub async fn lock(&self) -> Result<$guard, $crate::error::Error> {
                self.0.lock().await.map(<$guard>::from)
            }

            /// Takes the lock if it is free or, of a reentrant kind, this owner's: one attempt, which stands in no
            /// line.
            ///
            /// None if somebody else holds it.
            ///
            /// # Errors
            ///
            /// As [`lock`](Self::lock), but a server that does not answer is an error after one
            /// [`command_timeout`](crate::ClientBuilder::command_timeout).
            ///
            /// # Cancel safety
            ///
            /// As [`lock`](Self::lock).
            pub async fn try_lock(&self) -> Result<Option<$guard>, $crate::error::Error> {
                Ok(self.0.try_lock().await?.map(<$guard>::from))
            }

            /// Takes the lock, waiting at most so long. None if it was busy until then.
            ///
            /// [`Duration::ZERO`](std::time::Duration::ZERO) is one attempt,
            /// [`Duration::MAX`](std::time::Duration::MAX) waits for ever. A request on its way at the end is
            /// waited for, so the call returns by its limit plus one
            /// [`command_timeout`](crate::ClientBuilder::command_timeout).
            ///
            /// # Errors
            ///
            /// As [`lock`](Self::lock), but a server that cannot be reached or does not answer is an error when the
            /// limit is reached.
            ///
            /// # Cancel safety
            ///
            /// As [`lock`](Self::lock).
            pub async fn try_lock_for(
                &self,
                wait: std::time::Duration,
            ) -> Result<Option<$guard>, $crate::error::Error> {
                Ok(self.0.try_lock_for(wait).await?.map(<$guard>::from))
            }

            /// Gives back one level that this owner holds, without its guard; a named owner's, wherever it was taken.
            ///
            /// A guard whose level was given back this way is lost.
            ///
            /// # Errors
            ///
            /// [`NotHeld`](crate::ErrorKind::NotHeld) if this owner holds nothing; else as
            /// [`LockGuard::unlock`](crate::LockGuard::unlock).
            ///
            /// # Cancel safety
            ///
            /// Once polled, the release goes on in the background if the future is dropped. For a level that another
            /// process holds it may not have begun then.
            pub async fn unlock(&self) -> Result<(), $crate::error::Error> {
                self.0.unlock().await
            }

            /// A guard for one level that this owner holds already: one that was [detached](LockGuard::detach), or
            /// of a named owner one that another process, or a Java client, holds. None if the owner holds nothing.
            ///
            /// What another process held is this process's from now on, and a guard there is lost. If this process
            /// has a guard for every level of the owner, the new one stands beside them: the levels are given back
            /// by whichever guards go first, and those that are left are lost.
            ///
            /// # Errors
            ///
            /// As [`try_lock`](Self::try_lock).
            ///
            /// # Cancel safety
            ///
            /// If the future is dropped, a level that was taken over is released in the background.
            pub async fn adopt(&self) -> Result<Option<$guard>, $crate::error::Error> {
                Ok(self.0.adopt().await?.map(<$guard>::from))
            }

            /// Whether anybody holds the lock.
            ///
            /// Like every query, this tells of a moment that has passed when the answer arrives: good for people and
            /// metrics, never a reason to go ahead.
            ///
            /// # Errors
            ///
            /// [`WrongKind`](crate::ErrorKind::WrongKind) if the name is in use by something else;
            /// [`Timeout`](crate::ErrorKind::Timeout) and [`Backend`](crate::ErrorKind::Backend) if the server did
            /// not answer or refused.
            ///
            /// # Cancel safety
            ///
            /// Nothing is changed on the server, whenever the future is dropped.
            pub async fn is_locked(&self) -> Result<bool, $crate::error::Error> {
                self.0.is_locked().await
            }

            /// Whether this owner holds the lock, by the server's record.
            ///
            /// # Errors
            ///
            /// As [`is_locked`](Self::is_locked).
            ///
            /// # Cancel safety
            ///
            /// Nothing is changed on the server, whenever the future is dropped.
            pub async fn is_held(&self) -> Result<bool, $crate::error::Error> {
                self.0.is_held().await
            }

            /// How many levels this owner holds, in all processes together; 0 if it does not hold the lock.
            ///
            /// # Errors
            ///
            /// As [`is_locked`](Self::is_locked).
            ///
            /// # Cancel safety
            ///
            /// Nothing is changed on the server, whenever the future is dropped.
            pub async fn hold_count(&self) -> Result<u64, $crate::error::Error> {
                self.0.hold_count().await
            }

            /// How long the lock lasts if its holder, whoever that is, does not renew it. None if it is free, or held
            /// without end by something else than this crate.
            ///
            /// # Errors
            ///
            /// As [`is_locked`](Self::is_locked).
            ///
            /// # Cancel safety
            ///
            /// Nothing is changed on the server, whenever the future is dropped.
            pub async fn remaining_lease(
                &self,
            ) -> Result<Option<std::time::Duration>, $crate::error::Error> {
                self.0.remaining_lease().await
            }

            /// Who holds the lock, how often, and for how long. None if it is free. The owner is the one that took the lock
            /// from the server; tasks of its process may have passed it on since.
            ///
            /// # Errors
            ///
            /// As [`is_locked`](Self::is_locked).
            ///
            /// # Cancel safety
            ///
            /// Nothing is changed on the server, whenever the future is dropped.
            pub async fn holder(
                &self,
            ) -> Result<Option<$crate::lock::handle::Holder>, $crate::error::Error> {
                self.0.holder().await
            }

            /// Frees the lock **whoever holds it**, and wakes a waiter. False if it was free.
            ///
            /// For operators: a holder that is alive goes on with its work until it learns of the loss, at its next
            /// renewal at the latest, and overlaps with the next one until then. Guards in this process are lost at
            /// once.
            ///
            /// # Errors
            ///
            /// As [`is_locked`](Self::is_locked).
            ///
            /// # Cancel safety
            ///
            /// If the future is dropped, the lock may or may not have been freed; holds of this process are
            /// released in the background.
            pub async fn force_unlock(&self) -> Result<bool, $crate::error::Error> {
                self.0.force_unlock().await
            }
        }
    };
}

pub(crate) use verbs;
