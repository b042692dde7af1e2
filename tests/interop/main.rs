//! Locks shared with Redisson, which runs live in a JVM, and with redis-py. Skipped where there is no JDK, Maven or
//! Python.
#![allow(
    clippy::expect_used,
    clippy::unwrap_used,
    reason = "a test fails by panicking"
)]
#![allow(unreachable_pub, reason = "shared with other test programs")]

mod cluster;
mod fair;
#[path = "../support/family.rs"]
mod family;
mod jvm;
mod redis_py;
mod redisson;
#[path = "../support/mod.rs"]
mod support;
