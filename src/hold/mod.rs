//! Acquires, keeps and gives back holds.
//!
//! A call begins as an [`AcquireRequest`](request::AcquireRequest), which is checked as far as that can be done without
//! the server, and ends with a [`LockGuard`](guard::LockGuard), with `None` or with an error. In between, [`acquire`]
//! takes one of several ways; each of them that asks the server for a first level does so by an
//! [`Attempt`](attempt::Attempt). Sets ([`group`], [`batch`]) and locks over several servers ([`rounds`],
//! [`quorum_acquire`]) are made of the same parts.
//!
//! These files rely on the following, and none of them may break it:
//!
//! 1. Every future here may be dropped at any await. What must not be forgotten then is in a value that handles it on
//!    drop: an `Undo`, a place in a queue, the turn to ask, a guard.
//! 2. No mutex is locked across an await. Only the turn of a record, an asynchronous mutex, is kept during a request.
//!    If another call may wait for it, a task of the client keeps it, since the call itself may not be polled.
//! 3. Deadlines count from before a request was sent, so each answer is handled together with the instant at which its
//!    request was sent.

pub(crate) mod acquire;
pub(crate) mod attempt;
pub(crate) mod batch;
mod front;
pub(crate) mod group;
pub(crate) mod guard;
pub(crate) mod lease;
pub(crate) mod level;
mod long_wait;
mod place;
pub(crate) mod quorum_acquire;
pub(crate) mod quorum_hold;
mod readers;
mod replication;
pub(crate) mod request;
pub(crate) mod rounds;
mod server_queue;
