//! The kinds of lock and their guards, as what they have in common.

use std::future::Future;
use std::time::Duration;

use super::distributed::{DistributedGuard, DistributedLock};
use super::fair::FairLock;
use super::fenced::{FencedGuard, FencedLock};
use super::holder::Holder;
use super::multi::MultiLock;
use super::multi_guard::MultiGuard;
use super::named::NamedLock;
use super::plain::PlainLock;
use super::read_write::{ReadLock, WriteLock};
use super::red::RedLock;
use super::red_guard::RedGuard;
use super::reentrant::ReentrantLock;
use super::spin::SpinLock;
use crate::error::Error;
use crate::hold::guard::LockGuard;
use crate::hold::lease::Lease;
use crate::loss::LossReason;
use crate::owner::Owner;

macro_rules! lock {
    ($($lock:ty => $guard:ty),+ $(,)?) => {$(
        impl DistributedLock for $lock {
            type Guard = $guard;

            fn lock(&self) -> impl Future<Output = Result<$guard, Error>> + Send {
                self.lock()
            }

            fn try_lock(&self) -> impl Future<Output = Result<Option<$guard>, Error>> + Send {
                self.try_lock()
            }

            fn try_lock_for(
                &self,
                wait: Duration,
            ) -> impl Future<Output = Result<Option<$guard>, Error>> + Send {
                self.try_lock_for(wait)
            }

            fn run_for<T: Send, E: From<Error> + Send>(
                &self,
                wait: Duration,
                future: impl Future<Output = Result<T, E>> + Send,
            ) -> impl Future<Output = Result<T, E>> + Send {
                self.run_for(wait, future)
            }
        }
    )+};
}

macro_rules! guard {
    ($($guard:ty => $lease:ty),+ $(,)?) => {$(
        impl DistributedGuard for $guard {
            fn unlock(self) -> impl Future<Output = Result<(), Error>> + Send {
                self.unlock()
            }

            fn lost(&self) -> impl Future<Output = LossReason> + Send {
                <$lease>::lost(self)
            }

            fn is_lost(&self) -> bool {
                <$lease>::is_lost(self)
            }

            fn remaining(&self) -> Duration {
                <$lease>::remaining(self)
            }

            fn held_by(&self) -> Option<&Owner> {
                Some(<$lease>::owner(self))
            }

            fn lost_error(&self, reason: LossReason) -> Error {
                <$lease>::lost_for(self, reason)
            }
        }
    )+};
}

macro_rules! named {
    ($($lock:ty => $guard:ty),+ $(,)?) => {$(
        lock!($lock => $guard);

        impl NamedLock for $lock {
            fn name(&self) -> &str {
                self.name()
            }

            fn lease(self, lease: Duration) -> Self {
                self.lease(lease)
            }

            fn owned_by(self, owner: &Owner) -> Self {
                self.owned_by(owner)
            }

            fn unlock(&self) -> impl Future<Output = Result<(), Error>> + Send {
                self.unlock()
            }

            fn adopt(&self) -> impl Future<Output = Result<Option<$guard>, Error>> + Send {
                self.adopt()
            }

            fn is_locked(&self) -> impl Future<Output = Result<bool, Error>> + Send {
                self.is_locked()
            }

            fn is_held(&self) -> impl Future<Output = Result<bool, Error>> + Send {
                self.is_held()
            }

            fn hold_count(&self) -> impl Future<Output = Result<u64, Error>> + Send {
                self.hold_count()
            }

            fn remaining_lease(
                &self,
            ) -> impl Future<Output = Result<Option<Duration>, Error>> + Send {
                self.remaining_lease()
            }

            fn holder(&self) -> impl Future<Output = Result<Option<Holder>, Error>> + Send {
                self.holder()
            }

            fn force_unlock(&self) -> impl Future<Output = Result<bool, Error>> + Send {
                self.force_unlock()
            }
        }
    )+};
}

named! {
    ReentrantLock => LockGuard,
    FencedLock => FencedGuard,
    FairLock => LockGuard,
    SpinLock => LockGuard,
    PlainLock => LockGuard,
    ReadLock => LockGuard,
    WriteLock => LockGuard,
}

lock! {
    MultiLock => MultiGuard,
    RedLock => RedGuard,
}

guard! {
    LockGuard => Lease,
    FencedGuard => Lease,
    MultiGuard => MultiGuard,
    RedGuard => RedGuard,
}
