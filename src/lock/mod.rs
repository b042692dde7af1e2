//! The lock family and which one to choose.

pub(crate) mod reentrant;
