//! Who gets a busy lock, and when: turns, hand-overs, fair queues, readers and writers.
#![allow(
    clippy::expect_used,
    clippy::unwrap_used,
    reason = "a test fails by panicking"
)]
#![allow(unreachable_pub, reason = "shared with other test programs")]

mod fair;
mod handover;
mod mixture;
mod read_write;
mod readers;
mod share;
#[path = "../support/mod.rs"]
mod support;
mod turns;
mod unheard;
mod unpolled;
mod unpolled_holders;
