//! Several locks as one: all of them, or a majority.
#![allow(
    clippy::expect_used,
    clippy::unwrap_used,
    reason = "a test fails by panicking"
)]
#![allow(unreachable_pub, reason = "shared with other test programs")]

mod multi;
mod multi_faults;
mod red;
#[path = "../support/mod.rs"]
mod support;
