//! Semaphores, permits and latches.
#![allow(
    clippy::expect_used,
    clippy::unwrap_used,
    reason = "a test fails by panicking"
)]
#![allow(unreachable_pub, reason = "shared with other test programs")]

mod both;
mod expirable_semaphore;
mod latch;
mod permits;
mod semaphore;
#[path = "../support/mod.rs"]
mod support;
