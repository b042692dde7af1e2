//! The attribute `locked`: what it takes, what it generates, and what is said if it is used wrong.
#![allow(
    clippy::expect_used,
    clippy::unwrap_used,
    reason = "a test fails by panicking"
)]
#![allow(unreachable_pub, reason = "shared with other test programs")]

mod async_trait;
mod compiler;
#[allow(dead_code, reason = "compiling is the test")]
mod forms;
mod locked_fn;
mod messages;
#[path = "../support/mod.rs"]
mod support;
