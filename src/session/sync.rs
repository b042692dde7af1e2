//! What a queue synchronises with. In unit tests it is shuttle's, which tries out the orders in which tasks may run.

#[cfg(test)]
pub(crate) use shuttle::sync::{Mutex, MutexGuard};
#[cfg(test)]
pub(crate) use shuttle_tokio::sync::{Notify, Semaphore, SemaphorePermit};
#[cfg(not(test))]
pub(crate) use std::sync::{Mutex, MutexGuard};
#[cfg(not(test))]
pub(crate) use tokio::sync::{Notify, Semaphore, SemaphorePermit};
