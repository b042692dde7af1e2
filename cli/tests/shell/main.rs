//! The command `redlatch` as a shell sees it: real processes, on real servers.
#![allow(
    clippy::expect_used,
    clippy::unwrap_used,
    reason = "a test fails by panicking"
)]

mod command;
mod doctor;
mod family;
mod list;
mod loss;
mod run;
mod show;
mod signals;
mod terminal;
mod usage;
