//! Both kinds of semaphore behind one trait, for the test cases that they share.

use std::future::Future;
use std::time::Duration;

use redlatch::semaphore::{ExpirablePermit, ExpirableSemaphore, Semaphore, SemaphorePermit};
use redlatch::{Client, Error};

use crate::support::sha;

/// A semaphore of either kind. The methods correspond to those of the crate.
pub trait Permits: Clone + Send + Sync + 'static {
    type Permit: Permit;

    /// Returns a text that the request which acquires permits contains. `returning` returns that of the request which
    /// returns them.
    fn acquiring() -> String;
    fn returning() -> String;

    fn of(client: &Client, name: &str) -> Self;
    fn set(&self, permits: u32) -> impl Future<Output = Result<bool, Error>> + Send;
    fn acquire(&self) -> impl Future<Output = Result<Self::Permit, Error>> + Send {
        self.acquire_many(1)
    }
    fn acquire_many(
        &self,
        permits: u32,
    ) -> impl Future<Output = Result<Self::Permit, Error>> + Send;
    fn try_acquire(&self) -> impl Future<Output = Result<Option<Self::Permit>, Error>> + Send;
    fn try_acquire_for(
        &self,
        permits: u32,
        wait: Duration,
    ) -> impl Future<Output = Result<Option<Self::Permit>, Error>> + Send;
    fn available(&self) -> impl Future<Output = Result<i32, Error>> + Send;
    fn add(&self, permits: i32) -> impl Future<Output = Result<(), Error>> + Send;
    fn drain(&self) -> impl Future<Output = Result<u32, Error>> + Send;
}

pub trait Permit: Send + std::fmt::Debug + 'static {
    fn release(self) -> impl Future<Output = Result<(), Error>> + Send;
    fn permits(&self) -> u32;
    fn forget(self);
}

macro_rules! permits {
    ($semaphore:ty, $permit:ty, $acquiring:literal, $returning:literal, $of:expr) => {
        impl Permit for $permit {
            async fn release(self) -> Result<(), Error> {
                self.release().await
            }
            fn permits(&self) -> u32 {
                self.permits()
            }
            fn forget(self) {
                self.forget();
            }
        }

        impl Permits for $semaphore {
            type Permit = $permit;

            fn acquiring() -> String {
                sha($acquiring)
            }
            fn returning() -> String {
                sha($returning)
            }

            fn of(client: &Client, name: &str) -> Self {
                let of: fn(&Client, &str) -> Self = $of;
                of(client, name)
            }
            async fn set(&self, permits: u32) -> Result<bool, Error> {
                self.try_set_permits(permits).await
            }
            async fn acquire_many(&self, permits: u32) -> Result<$permit, Error> {
                self.acquire_many(permits).await
            }
            async fn try_acquire(&self) -> Result<Option<$permit>, Error> {
                self.try_acquire().await
            }
            async fn try_acquire_for(
                &self,
                permits: u32,
                wait: Duration,
            ) -> Result<Option<$permit>, Error> {
                self.try_acquire_many_for(permits, wait).await
            }
            async fn available(&self) -> Result<i32, Error> {
                self.available_permits().await
            }
            async fn add(&self, permits: i32) -> Result<(), Error> {
                self.add_permits(permits).await
            }
            async fn drain(&self) -> Result<u32, Error> {
                self.drain_permits().await
            }
        }
    };
}

permits!(
    Semaphore,
    SemaphorePermit,
    "semaphore_acquire",
    "semaphore_return",
    |client, name| client.semaphore(name)
);
permits!(
    ExpirableSemaphore,
    ExpirablePermit,
    "permit_acquire",
    "permit_return",
    |client, name| client
        .expirable_semaphore(name)
        .lease(Duration::from_secs(600))
);
