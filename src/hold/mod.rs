//! Acquires, keeps and gives back holds.

pub(crate) mod acquire;
pub(crate) mod attempt;
pub(crate) mod batch;
mod front;
pub(crate) mod group;
pub(crate) mod guard;
pub(crate) mod lease;
pub(crate) mod level;
mod place;
pub(crate) mod quorum_acquire;
pub(crate) mod quorum_hold;
mod readers;
pub(crate) mod request;
pub(crate) mod rounds;
mod server_queue;
