//! The scripts by themselves and the bytes on the wire, next to recorded ones of Redisson.
#![allow(
    clippy::expect_used,
    clippy::unwrap_used,
    reason = "a test fails by panicking"
)]
#![allow(unreachable_pub, reason = "shared with other test programs")]

mod fair;
mod lock;
mod read_write;
mod spare;
#[path = "../support/mod.rs"]
mod support;
mod wire;
