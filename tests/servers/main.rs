//! Clusters, replicas and sentinels.
#![allow(
    clippy::expect_used,
    clippy::unwrap_used,
    reason = "a test fails by panicking"
)]
#![allow(unreachable_pub, reason = "shared with other test programs")]

#[cfg(all(feature = "fred-10", feature = "redis-1"))]
mod clients;
mod cluster;
mod connector;
mod credentials;
mod deployments;
#[path = "../support/family.rs"]
mod family;
mod redirects;
mod replicas;
mod sentinel;
#[path = "../support/mod.rs"]
mod support;
