//! Dropped futures, lost replies, broken connections and servers that go away.
#![allow(
    clippy::expect_used,
    clippy::unwrap_used,
    reason = "a test fails by panicking"
)]
#![allow(unreachable_pub, reason = "shared with other test programs")]

mod cancel;
mod connection;
#[path = "../support/family.rs"]
mod family;
mod first_contact;
mod network;
mod outage;
mod replies;
mod server_life;
mod spare;
#[path = "../support/mod.rs"]
mod support;
