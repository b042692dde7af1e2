//! Leaders and jobs of several processes: who leads, who runs, and what a kill, a pause or an outage does to that.
#![allow(
    clippy::expect_used,
    clippy::unwrap_used,
    reason = "a test fails by panicking"
)]
#![allow(unreachable_pub, reason = "shared with other test programs")]

mod items;
mod job;
mod leader;
#[path = "../support/mod.rs"]
mod support;
mod worker;
