//! Semaphores: a number of permits that all processes share, with or without a lease.

pub(crate) mod counted;
pub(crate) mod expirable;
pub(crate) mod pool;
mod verbs;
