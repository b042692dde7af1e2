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
//!
//! # Branches of one task
//!
//! The owner of a lock is the task. The branches of `join!`, `select!`, `buffer_unordered` or `for_each_concurrent` are
//! one task, so each of them acquires again what another one holds, and all are in the critical section at once:
//!
//! ```
//! # redlatch_testkit::doc(async |url| {
//! # let client = redlatch::Client::connect(url).await?;
//! let stock = client.lock("stock:7");
//! let (left, right) = tokio::join!(stock.try_lock(), stock.try_lock());
//! assert!(left?.is_some() && right?.is_some()); // both!
//! # Ok::<(), redlatch::Error>(()) });
//! ```
//!
//! [`run`](crate::ReentrantLock::run) locks for an owner of its own, and so does any call in a
//! [`scope`](crate::Owner::scope) of [`Owner::unique`](crate::Owner::unique). A client with
//! [`Owners::Call`](crate::config::Owners::Call) does so for every call:
//!
//! ```
//! # redlatch_testkit::doc(async |url| {
//! # let client = redlatch::Client::connect(url).await?;
//! # async fn count(_shelf: u32) {}
//! let stock = client.lock("stock:7");
//! let (left, right) = tokio::join!(stock.run(count(1)), stock.run(count(2))); // one after the other
//! left?;
//! right?;
//! # Ok::<(), redlatch::Error>(()) });
//! ```
//!
//! # Many pieces of work, several processes
//!
//! If one of the processes is to do each piece, do not use [`run`](crate::ReentrantLock::run): a process would wait
//! behind the one ahead of it, piece by piece, only to find each piece done. With
//! [`try_run`](crate::ReentrantLock::try_run), it goes on to the next piece instead, and each process does its share:
//!
//! ```
//! # redlatch_testkit::doc(async |url| {
//! # let client = redlatch::Client::connect(url).await?;
//! # async fn ship(_order: u64) -> Result<(), redlatch::Error> { Ok(()) }
//! use futures_util::{StreamExt, stream::iter};
//!
//! iter(0..100u64)
//!     .for_each_concurrent(8, async |order| {
//!         let lock = client.lock(format!("order:{order}"));
//!         match lock.try_run(ship(order)).await {
//!             Ok(Some(()) | None) => {} // shipped here, or busy: another process ships it
//!             Err(error) => eprintln!("order {order}: {error}"),
//!         }
//!     })
//!     .await;
//! # Ok::<(), redlatch::Error>(()) });
//! ```
//!
//! # Requests on one connection
//!
//! A server handles the requests of an HTTP/1.1 keep-alive connection in one task. If a handler returns and its guard
//! lives on, for example in a map, the next request on that connection re-enters the lock. Over HTTP/2, where each
//! request is a task, the next request finds the lock busy. The layer `OwnerLayer` of the feature `tower` gives each
//! request an owner of its own.
//!
//! # A child that waits for its parent
//!
//! A spawned task is another owner. If it waits for a lock that its parent holds, and the parent waits for the task,
//! they deadlock. Give the child the owner of its parent:
//!
//! ```
//! # redlatch_testkit::doc(async |url| {
//! # let client = redlatch::Client::connect(url).await?;
//! use redlatch::Owner;
//!
//! let lock = client.lock("orders:42");
//! let guard = lock.lock().await?;
//! let child = async move { lock.lock().await?.unlock().await };
//! tokio::spawn(Owner::current().scope(child)).await.unwrap()?; // without the scope, it would wait without end
//! guard.unlock().await?;
//! # Ok::<(), redlatch::Error>(()) });
//! ```
//!
//! The client logs a warning of such a wait, with the lock and both owners, when a call has waited for as long as one
//! lease for another owner of the same client, whose hold was renewed meanwhile. The warning comes once for each hold,
//! and at most once a minute for each client. No executor tells which task waits for which. So the warning also comes
//! if a job simply holds a lock for longer than a lease while another task wants it. There is no warning if the call
//! waits for
//!
//! - a holder that uses another client, in this process or elsewhere,
//! - a hold with a fixed lease, which ends by itself,
//! - a [`RedLock`](crate::RedLock),
//! - permits or a latch, which have no owner.
//!
//! # Two locks in two orders
//!
//! A task holds `a` and waits for `b`, another one holds `b` and waits for `a`. Acquire them in the same order in all
//! tasks, or use a [`MultiLock`](crate::MultiLock), which does so. If both tasks use one client, the warning above
//! reports one of the two waits, with its lock and both owners. Across several processes, there is no warning: waits
//! with a limit end, others do not.
