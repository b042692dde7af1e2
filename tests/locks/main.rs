//! One lock on one server: its kinds, owners, leases and requests.
#![allow(
    clippy::expect_used,
    clippy::unwrap_used,
    reason = "a test fails by panicking"
)]
#![allow(unreachable_pub, reason = "shared with other test programs")]

mod cures;
mod deadlock;
mod dynamic;
mod fenced;
mod forced;
mod input;
mod kinds;
mod lease;
#[cfg(feature = "unstable-admin")]
mod listing;
mod loss;
mod names;
mod owners;
mod plain;
mod reentrant;
mod refusals;
mod requests;
mod rights;
mod rules;
mod runs;
mod scope;
mod scopes;
mod send_sync;
mod spin;
#[path = "../support/mod.rs"]
mod support;
mod untold;
