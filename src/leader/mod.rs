//! Leaders: one of several processes leads, and all of them can see which.
//!
//! A term is a hold of a fenced lock. Each campaign has an owner of its own, so two candidates never share a hold,
//! whatever they are called, and the owner that the server records names the term.
//!
//! A change is announced on a channel of its own, not on the lock's: a release takes whoever listens there for a
//! Redisson waiter, and would give it a turn.

pub(crate) mod election;
pub(crate) mod term;
pub(crate) mod watch;

pub use election::Election;
pub use term::{Leader, Term};
pub use watch::LeaderWatch;
