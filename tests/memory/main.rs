//! The server in memory: next to a real one, with faults, and by a clock that a test moves.
#![cfg(feature = "memory")]
#![allow(
    clippy::expect_used,
    clippy::unwrap_used,
    reason = "a test fails by panicking"
)]
#![allow(unreachable_pub, reason = "shared with other test programs")]

mod call;
mod faults;
mod same;
#[path = "../support/mod.rs"]
mod support;
mod time;
