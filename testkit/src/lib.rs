//! The servers that the tests and examples of `redlatch` run against, and tools for them: private [`Server`],
//! [`Cluster`] and [`Sentinel`] processes, a [`Proxy`] that breaks the network on command, and a plain [`Connection`]
//! that shares no code with the crate under test.
//!
//! Dropping a value cleans up after it: processes are killed, sockets are closed, and directories are removed. A
//! process also ends when the test process dies.

#![forbid(unsafe_code)]
#![warn(missing_docs, missing_debug_implementations, unreachable_pub)]

mod binary;
mod certificate;
mod cluster;
mod connection;
mod gate;
mod line;
mod link;
mod parcel;
mod playground;
mod port;
mod process;
mod proxy;
mod reply;
mod script;
mod sentinel;
mod sentinels;
mod server;
mod skip;
mod subscriber;
mod trap;

pub use cluster::{Cluster, Move};
pub use connection::Connection;
pub use gate::Gate;
pub use parcel::Parcel;
pub use playground::{Playground, doc};
pub use proxy::Proxy;
pub use reply::Reply;
pub use script::{script, script_names, scripts};
pub use sentinel::Sentinel;
pub use sentinels::Sentinels;
pub use server::{Server, ServerBuilder};
pub use skip::skip;
pub use subscriber::Subscriber;
