//! What a whole program sees: runtimes that end, and log lines.
#![allow(
    clippy::expect_used,
    clippy::unwrap_used,
    reason = "a test fails by panicking"
)]
#![allow(unreachable_pub, reason = "shared with other test programs")]

mod runtimes;
#[path = "../support/mod.rs"]
mod support;
mod tracing;
