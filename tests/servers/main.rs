//! Clusters, replicas and sentinels.
#![allow(
    clippy::expect_used,
    clippy::unwrap_used,
    reason = "a test fails by panicking"
)]
#![allow(unreachable_pub, reason = "shared with other test programs")]

mod cluster;
mod connector;
mod credentials;
mod deployments;
#[path = "../support/family.rs"]
mod family;
mod sentinel;
#[path = "../support/mod.rs"]
mod support;
