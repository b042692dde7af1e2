//! Semaphores: a number of permits that all processes share, with or without a lease.

pub(crate) mod counted;
pub(crate) mod expirable;
mod methods;
pub(crate) mod pool;
