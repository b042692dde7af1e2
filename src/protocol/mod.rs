//! The requests to the server, its answers, and the decisions that follow from them. Has no I/O and no clock: time is
//! passed in.

pub(crate) mod acquired;
pub(crate) mod answer;
pub(crate) mod batch;
pub(crate) mod calls;
pub(crate) mod compare;
pub(crate) mod counted;
pub(crate) mod counter;
pub(crate) mod fair;
pub(crate) mod fenced;
pub(crate) mod hold_key;
pub(crate) mod key_kind;
pub(crate) mod latch;
pub(crate) mod leader;
pub(crate) mod lock;
#[cfg(test)]
pub(crate) mod model;
pub(crate) mod plain;
pub(crate) mod policy;
pub(crate) mod quorum;
#[cfg(test)]
mod quorum_model;
pub(crate) mod read_write;
pub(crate) mod red;
pub(crate) mod renewal;
pub(crate) mod reply;
pub(crate) mod script;
pub(crate) mod semaphore;
pub(crate) mod sent_over;
pub(crate) mod steps;
#[cfg(test)]
mod turns_model;
pub(crate) mod wait;
pub(crate) mod waiter;
#[cfg(test)]
mod waiter_model;
