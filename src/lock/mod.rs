//! The lock family: one module per kind, and what the kinds share.

pub(crate) mod distributed;
pub(crate) mod dynamic;
pub(crate) mod fair;
pub(crate) mod fenced;
pub(crate) mod handle;
pub(crate) mod holder;
mod kinds;
pub(crate) mod member;
mod methods;
pub(crate) mod multi;
pub(crate) mod multi_guard;
pub(crate) mod named;
pub(crate) mod plain;
mod queries;
pub(crate) mod read_write;
pub(crate) mod red;
pub(crate) mod red_guard;
pub(crate) mod reentrant;
mod runs;
pub(crate) mod spin;
