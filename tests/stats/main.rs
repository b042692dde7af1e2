//! What a client counts, and what it records through the facade of the crate `metrics`.
#![allow(
    clippy::expect_used,
    clippy::unwrap_used,
    reason = "a test fails by panicking"
)]
#![allow(unreachable_pub, reason = "shared with other test programs")]

#[cfg(feature = "metrics")]
mod dashboard;
#[path = "../support/family.rs"]
mod family;
mod levels;
#[cfg(feature = "metrics")]
mod metrics;
mod outcomes;
mod page;
#[path = "../support/mod.rs"]
mod support;
