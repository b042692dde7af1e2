//! The events and spans that this crate reports through `tracing`, and that a program may rely on.
//!
//! An `owner` is shown behind the [label](crate::ClientBuilder::label) of its client, as in `web-3/812 task 17`, except
//! by `adopted`, which has the label by itself. A `token` is that of a fenced lock; there is none for other locks.
//!
//! The events and spans in the tables have the target `redlatch`. The filter `redlatch=info` shows what an operator
//! wants to see, and `redlatch=debug` adds each acquisition and release. Names of locks and owners appear in them,
//! passwords never do. Durations are shown with their unit, as in `1.5s`. Except for the warnings below the table,
//! events under targets that begin with `redlatch::` are for those who work on this crate; their words may change.
//!
//! # Events
//!
//! | event | level | fields | when |
//! |---|---|---|---|
//! | `lost` | warn, debug | `lock`, `owner`, `reason`, `token` | A held lock was lost; `reason` is the name of a [`LossReason`](crate::LossReason). Of the locks that are lost within a second, or in one outage, the first is a warning and the others are debug events. A hold that ends because its client is closed is a debug event. |
//! | `lost more` | warn | `lost`, `locks` | Several locks were lost within a second and without an outage: how many, and the first names. |
//! | `outage` | warn | `server`, `held`, `locks`, `error` | A server did not answer a request within [`command_timeout`](crate::ClientBuilder::command_timeout), could not be reached for that long, or has become a replica. Logged once for each outage, with the number of locks that this client holds there and the first names. |
//! | `outage is over` | warn | `server`, `lasted`, `silences`, `lost`, `locks` | The server has answered again for a second. The fields say for how long and how often it did not answer, and which locks were lost. If outages follow each other within a minute, the server has to answer for twice as long each time, up to a minute, before the outage is over. |
//! | `renewal failed` | warn, debug | `holds`, `round`, `after`, `error`, `untold` | A server refuses to renew or to check leases; a warning at most once in five seconds. In an outage, a debug event. |
//! | `messages may not arrive` | warn, debug | `server`, `error`, `untold` | Waiters ask every second, since the connection for messages is broken; a warning at most once in five seconds. In an outage, a debug event. |
//! | `long wait` | warn | `lock`, `owner`, `waited`, `held_by` | A call waits for longer than [`long_wait`](crate::ClientBuilder::long_wait). `held_by` is the owner that has the lock in this process, if there is one. |
//! | `no permits were set, call try_set_permits` | warn | `semaphore`, `waited` | A call has waited for permits for longer than [`long_wait`](crate::ClientBuilder::long_wait), and nobody has set their number. Logged once for each call; of the calls that wait in one process, only for the first. |
//! | `login not renewed` | warn | `server`, `error`, `untold` | A connection is to log in again, since its [login](crate::config::Login::valid_for) ends, and that has failed: the connection is kept, and the client tries again. |
//! | `no answer that counts` | warn, debug | `key`, `error`, `pause` | A campaign, a watch or a job goes on through an outage. Of several such events in a row, the first is a warning; only the others have `pause`. |
//! | `reconnected` | info | `server`, `untold` | There is a new connection for commands to a server, at most once a second. |
//! | `resubscribing` | info, debug | `channels`, `untold` | Channels are subscribed to on a new connection. |
//! | `leads` | info | `lock`, `label`, `token` | A candidate of an [`Election`](crate::leader::Election) leads from now on. `token` is the fencing token of its term. |
//! | `deposed` | info | `lock`, `label`, `token`, `reason` | A leader lost its term; logged next to `lost`. A leader that steps down, or whose client is closed, is not deposed. |
//! | `follows` | info | `lock`, `label`, `leader` | A candidate waits, and `leader` leads: once for each leader. |
//! | `adopted` | info | `lock`, `owner`, `label`, `token` | A call of [`adopt`](crate::ReentrantLock::adopt) has a guard for a level of this owner, which may have been another process's. |
//! | `released by force` | info | `lock`, `label` | A call of this client released a lock, whoever held it. The client of the holder logs `lost`. |
//! | `acquired` | debug | `waited` | A call got its lock, in the span `acquire`; not for a re-entry, nor for a reader that joins others of its process. |
//! | `busy` | debug | `lock`, `owner`, `held_by` | The lock was busy until the limit of the call; the call returns `None`. |
//! | `unlocked` | debug | `lock`, `owner`, `held` | The last level of a lock was given back here, by `unlock` or by a drop: for how long it was held. |
//! | `connected` | debug | `client`, `backend`, `server` | A client was built, with the first two fields, or has its first connection to a server. |
//! | `subscribed` | debug | `channels` | Messages arrive. |
//! | `closed` | debug | `client`, `took` | A client was closed. |
//!
//! `untold` is how many events of this kind were left out since the last one; debug events do not have it.
//!
//! More warnings have targets below `redlatch::`, and texts of their own:
//!
//! - Once for each server: its user may not publish, or may not subscribe, and what to grant.
//! - A call has waited for a whole lease for another owner of its client, which may be waiting for that call. The
//!   fields are `lock`, `owner`, `holder` and `waited`. Logged once for each hold, and at most once a minute; see
//!   [`pitfalls`](crate::pitfalls).
//! - A [`Job`](crate::job::Job) has run, and the server could not be told.
//! - A client was closed while releases were unanswered; these locks end with their leases.
//!
//! # Spans
//!
//! | span | level | fields | time |
//! |---|---|---|---|
//! | `acquire` | debug | `lock`, `owner`, `servers` | A call that asks for a lock, until it returns. `servers` is how many a [`RedLock`](crate::RedLock) has. |
//! | `hold` | info | `lock`, `owner`, `lost` | A hold, from its grant until it was given back or lost; only with [`trace_holds`](crate::ClientBuilder::trace_holds). `lost` is the name of a [`LossReason`](crate::LossReason). Its parent is the span in which the lock was asked for. A set and a [`RedLock`](crate::RedLock) have one for each member. |
//!
//! # How many
//!
//! The number of lines at `info` and above does not depend on the number of locks: an outage in which a thousand locks
//! are lost takes a handful of lines. Each deliberate act has a line of its own: a term of an election, an adoption, a
//! release by force. A client that is closed, or whose runtime ends, logs no warning for that.
