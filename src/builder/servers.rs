//! The settings that say what the servers are like.

use crate::config::setters;
use std::time::Duration;

use super::ClientBuilder;
use crate::options::{MinReplicas, PubSub};

setters! { ClientBuilder:
    /// Sets how waiters in a cluster are notified of a release, by default with sharded messages if the cluster
    /// supports them. Outside a cluster this has no effect.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn f() -> Result<(), redlatch::Error> {
    /// use redlatch::config::PubSub;
    /// use redlatch::Client;
    ///
    /// let client = Client::builder()
    ///     .url("redis-cluster://10.0.0.1:7000?node=10.0.0.2:7000")
    ///     .pubsub(PubSub::Plain) // as the Java services, whose Redisson is older than 3.22
    ///     .build()
    ///     .await?;
    /// # Ok(()) }
    /// ```
    pubsub(pubsub: PubSub) => settings.pubsub = pubsub;

    /// Declares that this server never loses what it has answered, because it writes each command to disk before it
    /// answers (`appendfsync always`). This is a fact about the server, and so belongs to the client that talks to it
    /// rather than to a lock. The server then votes on a [`RedLock`](crate::RedLock) immediately after a
    /// restart if its data is still there. A replica that takes its place abstains regardless, unless it restarts
    /// before the first call there, since nothing then shows that it was promoted.
    ///
    /// If the declaration is wrong, two owners may hold a `RedLock` after a restart.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn f() -> Result<(), redlatch::Error> {
    /// use redlatch::{Client, RedLock};
    ///
    /// let mut members = Vec::new();
    /// for host in ["one.internal", "two.internal", "three.internal"] {
    ///     // Each has `appendonly yes` and `appendfsync always`.
    ///     let client = Client::builder().url(format!("redis://{host}")).durable().build().await?;
    ///     members.push(client.lock("orders:42"));
    /// }
    /// let guard = RedLock::new(members).lock().await?; // all vote, even one that was just restarted
    /// # guard.unlock().await }
    /// ```
    durable() => settings.durable = true;

    /// Sets how many replicas must have a lock, and within which time, before its acquisition succeeds. By default
    /// none: the server's own answer is enough.
    ///
    /// With this, a call returns once `replicas` replicas have acknowledged the lock. If fewer do `within` this time,
    /// the lock is released and the call fails with [`Backend`](crate::ErrorKind::Backend), which says how many did. It
    /// applies to every kind of lock, so also to leaders and jobs, to sets, and to each server of a
    /// [`RedLock`](crate::RedLock), but not to semaphores and latches. From 1 replica, and from 1 ms to a day.
    ///
    /// This setting makes it rarer that a failover loses a lock that was just acquired. **It does not prevent such a
    /// loss**, nor two holders at the same time: a replica that does not have the lock may be promoted, a replica may
    /// lose what it has acknowledged when it restarts, and the old primary may go on granting locks for a while. Only
    /// [fencing tokens](crate::FencedLock) or a `RedLock` protect the data in such a case.
    ///
    /// - **Once for each lock on the server.** There is no wait if a lock is passed on within this process, acquired
    ///   again, or [adopted](crate::ReentrantLock::adopt).
    /// - **Not for renewals.** If a failover loses some of them, the key on the new primary ends earlier than this
    ///   process believes, by no more than the replica was behind. The holder asks the new primary for its lock as soon
    ///   as it has connected there.
    /// - **Time.** The wait is in addition to the limit of the call. It costs a further round trip, and the time that
    ///   the replicas need. It delays no other call: the wait has a connection of its own, and calls that wait at the
    ///   same time share a request.
    /// - **Rights.** The user needs `+wait`, and the right to run scripts. A [`PlainLock`](crate::PlainLock) that goes
    ///   [by transaction](crate::config::ReleaseBy::Transaction) is [`InvalidInput`](crate::ErrorKind::InvalidInput). A
    ///   server in memory has no replicas, so nothing can be acquired there.
    ///
    /// The server's own setting `min-replicas-to-write` is another thing: it refuses writes while too few replicas are
    /// connected, and says nothing about what they have received. `redlatch doctor` shows its value.
    ///
    /// # Examples
    ///
    /// ```
    /// # redlatch_testkit::doc(async |_| {
    /// # let primary = redlatch_testkit::Server::start();
    /// # let replica = redlatch_testkit::Server::builder().replica_of(primary.port()).start();
    /// # let url = primary.url();
    /// use std::time::Duration;
    /// use redlatch::{Client, ErrorKind};
    ///
    /// let second = Duration::from_secs(1);
    /// let client = Client::builder().url(url).min_replicas(1, second).build().await?;
    /// let lock = client.lock("invoice:42");
    /// lock.lock().await?.unlock().await?; // the one replica had it
    ///
    /// # replica.freeze();
    /// // From here on, the replica hangs.
    /// let error = lock.try_lock().await.unwrap_err();
    /// assert_eq!(error.kind(), ErrorKind::Backend);
    /// assert!(!lock.is_locked().await?); // given back
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
    min_replicas(replicas: u32, within: Duration) => settings.min_replicas = Some(MinReplicas {
            least: replicas,
            within,
        });

    /// Sets whether a server votes on a [`RedLock`](crate::RedLock) although it was started only recently, `false` by
    /// default. For development and tests. This is a fact about the server, and so belongs to the client that talks to
    /// it rather than to a lock. With `false`, a server abstains until [`max_lease`](crate::RedLock::max_lease) has
    /// passed since its start, since a new server cannot be distinguished from one that was restarted and lost what it
    /// had granted.
    ///
    /// With `true`, a lock on servers that a test has just started is granted immediately; but if a majority of the
    /// servers restarts without its data, two owners may hold the lock. A server that was flushed or promoted abstains
    /// regardless. All clients of the fleet must have the same value.
    ///
    /// # Examples
    ///
    /// ```
    /// # redlatch_testkit::doc(async |_| {
    /// # let servers = [(); 3].map(|()| redlatch_testkit::Server::start());
    /// use redlatch::{Client, RedLock};
    ///
    /// let mut members = Vec::new();
    /// for server in &servers {
    ///     // The servers were started for this test, and have granted nothing before.
    ///     let builder = Client::builder().url(server.url()).trust_fresh_servers(true);
    ///     members.push(builder.build().await?.lock("orders:42"));
    /// }
    /// let guard = RedLock::new(members).try_lock().await?;
    /// assert!(guard.is_some()); // without waiting for one `max_lease`
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
    trust_fresh_servers(trust: bool) => settings.trusts_fresh = trust;

    /// Makes [`build`](Self::build) return without waiting for the server, for services that start before their server
    /// does.
    ///
    /// The client connects in the background, and tries until it succeeds. Until then it behaves as in an outage:
    /// waiting calls keep waiting, `lock()` for at most one watchdog lease, and other calls return
    /// [`Backend`](crate::ErrorKind::Backend) with the reason for the missing connection. A wrong password is reported
    /// in the same way. `build` still returns [`InvalidInput`](crate::ErrorKind::InvalidInput) for settings that cannot
    /// work with any server.
    ///
    /// # Examples
    ///
    /// ```
    /// # redlatch_testkit::doc(async |_| {
    /// use redlatch::{Client, ErrorKind};
    ///
    /// // Nothing listens on this port.
    /// let client = Client::builder().url("redis://127.0.0.1:1").connect_lazily().build().await?;
    /// assert!(!client.is_connected());
    /// let error = client.lock("invoice:42").try_lock().await.unwrap_err();
    /// assert_eq!(error.kind(), ErrorKind::Backend);
    /// # client.close().await;
    /// # Ok::<(), redlatch::Error>(()) });
    /// ```
    connect_lazily() => settings.connects_lazily = true;
}
