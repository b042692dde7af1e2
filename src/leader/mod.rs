//! Leaders: one of several processes leads, and all of them can see which.

pub(crate) mod election;
pub(crate) mod term;
pub(crate) mod watch;

pub use election::Election;
pub use term::{Leader, Term};
pub use watch::LeaderWatch;
