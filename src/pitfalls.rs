//! How hand-made locks fail, and what this crate does instead.
//!
//! The example `pitfalls` shows each of these failures.
//!
//! # `SETNX`, then `EXPIRE`
//!
//! These are two commands: a process that dies between them leaves a lock that never expires. In this crate, the script
//! that acquires the lock also sets its lease.
//!
//! # A bare `DEL`
//!
//! A holder whose lease has ended deletes the lock of the next holder. In this crate, a release carries the acquisition
//! id of its hold, and an id that is no longer on the server changes nothing;
//! [`unlock`](crate::LockGuard::unlock) returns [`LeaseLost`](crate::ErrorKind::LeaseLost).
//!
//! # `GET`, compare, then `DEL`
//!
//! This is the same failure with a smaller window: between the `GET` and the `DEL` the lease may end and another client
//! may acquire the lock. In this crate, the server compares and deletes in one step.
//!
//! # A value that is not unique
//!
//! Compare-and-delete protects nothing if two holders write the same value, such as a host name, a constant, or a
//! thread number that exists in several processes. In this crate, each hold has a new acquisition id, and the client id
//! is a random UUID.
//!
//! # A lease shorter than the work
//!
//! The lease ends in the middle of the work, and two holders work at the same time. In this crate, the lease is renewed
//! as long as the guard lives. For work whose length is known, [`lease`](crate::ReentrantLock::lease) sets a fixed
//! lease: [`lost`](crate::Lease::lost) reports when it has ended, and [`run_until_lost`](crate::Lease::run_until_lost)
//! stops the work. None of this can stop a holder that was paused past its lease: see
//! [`FencedLock`](crate::FencedLock).
