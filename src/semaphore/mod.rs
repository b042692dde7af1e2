//! Semaphores: a number of permits that all processes share, with or without a lease.

pub(crate) mod counted;
pub(crate) mod expirable;
mod methods;
pub(crate) mod pool;

pub use crate::permit_id::PermitId;
pub use counted::{Semaphore, SemaphorePermit};
pub use expirable::{ExpirablePermit, ExpirableSemaphore};
