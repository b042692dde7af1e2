//! How locks that are made by hand fail, and what this crate does instead.
//!
//! The example `pitfalls` shows each of them.
//!
//! # `SETNX`, then `EXPIRE`
//!
//! Two commands: a process that dies between them leaves a lock that nobody ends. Here the script that takes the lock
//! sets its lease too.
//!
//! # A bare `DEL`
//!
//! A holder whose lease ended deletes the lock of the next. Here a release carries the number of its hold, and a
//! number that is not there any more changes nothing; [`unlock`](crate::LockGuard::unlock) says
//! [`LeaseLost`](crate::ErrorKind::LeaseLost).
//!
//! # `GET`, compare, then `DEL`
//!
//! The same with a smaller window: between the two the lease may end, and somebody else get in. Here the server
//! compares and deletes in one step.
//!
//! # A value that is not unique
//!
//! Compare-and-delete protects nothing if two holders write the same value: a host name, a constant, a thread's
//! number in several processes. Here the number is drawn anew for each hold, and the client's id is a random UUID.
//!
//! # A lease shorter than the work
//!
//! It ends in the middle, and two work at once. Here the lease is renewed for as long as the guard lives; with
//! [`lease`](crate::ReentrantLock::lease), for work whose length is known, [`lost`](crate::Lease::lost) tells when
//! it is over, and [`run_until_lost`](crate::Lease::run_until_lost) stops the work. A holder that was paused past
//! its lease cannot be stopped by any of this: see [`FencedLock`](crate::FencedLock).
