//! A server with a proxy in front of it, a client that connects through the proxy, and one that connects directly.

use std::sync::Arc;
use std::time::{Duration, Instant};

use redlatch::{Client, ClientBuilder, LockGuard, ReentrantLock};
use redlatch_testkit::{Proxy, Server};
use tokio::time::timeout;

use super::{builder, eventually, eventually_idle};

pub struct Scene {
    pub server: Arc<Server>,
    pub proxy: Proxy,
    /// Connects through the proxy.
    pub client: Client,
    /// Connects directly to the server.
    pub other: Client,
}

impl Scene {
    /// Starts a scene with a server that has no data. The settings apply to both clients.
    pub async fn open(settings: impl Fn(ClientBuilder) -> ClientBuilder) -> Self {
        Self::around(Server::start(), settings).await
    }

    pub async fn around(server: Server, settings: impl Fn(ClientBuilder) -> ClientBuilder) -> Self {
        let proxy = Proxy::start(server.port()).await;
        let connect = async |url| {
            settings(builder(url))
                .build()
                .await
                .expect("the server is up")
        };
        let scene = Self {
            client: connect(proxy.url()).await,
            other: connect(server.url()).await,
            server: Arc::new(server),
            proxy,
        };
        scene.load_scripts().await;
        scene
    }

    /// Loads every script into the server, so that requests name the scripts by their hash.
    pub async fn load_scripts(&self) {
        let mut connection = self.server.connection();
        for script in redlatch_testkit::scripts() {
            connection.command(&["SCRIPT", "LOAD", script]);
        }
    }

    /// Returns how many levels the server counts for the lock, for all owners together.
    ///
    /// Each level must be recorded in the share of some client: otherwise no client could release it.
    pub fn levels(&self, name: &str) -> u64 {
        let (mut levels, mut shares) = (0, 0);
        for (field, value) in self.server.connection().hgetall(name) {
            match value.split(':').nth(1) {
                Some(share) if field.starts_with('|') => {
                    shares += share.parse::<u64>().expect("a share");
                }
                _ => levels += value.parse::<u64>().expect("a hold count"),
            }
        }
        assert_eq!(levels, shares, "levels and shares of {name}");
        levels
    }

    /// Returns the earliest time at which the server can expire the key of a lock.
    pub fn end_of_key(&self, name: &str) -> Instant {
        let mut connection = self.server.connection();
        let now = Instant::now();
        let left = connection
            .pttl(name)
            .try_into()
            .expect("the key has an end");
        now + Duration::from_millis(left) - Duration::from_millis(1)
    }

    /// Checks that the guard promises no more time than the key has on the server.
    pub fn keeps_promise(&self, name: &str, guard: &LockGuard) {
        // The key may be renewed in between, so its end is read before and after the guard's.
        let before = self.end_of_key(name);
        let promised = Instant::now() + guard.remaining();
        let end = before.max(self.end_of_key(name));
        assert!(promised <= end, "promises {:?} too much", promised - end);
    }

    /// Waits until no request that the client has sent so far is still on its way.
    pub async fn requests_have_run(&self) {
        // All requests travel on one connection, and are answered in order.
        let fence = self.client.lock("fence").is_locked().await;
        assert!(!fence.expect("the network is sound"));
    }

    /// Waits until the server counts this number of levels, with no request on its way that could raise it.
    pub async fn settles_at(&self, name: &str, levels: u64) {
        self.requests_have_run().await;
        eventually(&format!("{levels} levels of {name}"), async || {
            self.levels(name) == levels
        })
        .await;
    }

    /// Checks that the next owner acquires the lock long before a lease could end.
    pub async fn lets_the_next_in(&self, name: &str) {
        let lock = self.other.lock(name);
        let next = lock.try_lock_for(Duration::from_secs(10)).await;
        let guard = next
            .expect("the server is sound")
            .expect("the lock is free");
        guard.unlock().await.expect("held until now");
    }

    /// Checks that nothing is left on the server or in the clients.
    pub async fn ends_clean(&self) {
        eventually_idle(&self.client).await;
        eventually_idle(&self.other).await;
        let mut connection = self.server.connection();
        assert_eq!(connection.keys(), [""; 0]);
        eventually("no channel is left", async || {
            connection.channels().is_empty()
        })
        .await;
    }
}

pub async fn take(lock: &ReentrantLock) -> LockGuard {
    lock.lock().await.expect("the lock can be had")
}

pub async fn give_back(guard: LockGuard) {
    guard.unlock().await.expect("held until now");
}

/// Waits until a lease runs out. This must happen at its deadline, which must be before the key on the server ends.
pub async fn runs_out_in_time(guard: &LockGuard, end_of_key: Instant) {
    let deadline = Instant::now() + guard.remaining();
    assert!(
        deadline < end_of_key,
        "promises {:?} too much",
        deadline - end_of_key
    );
    let limit = guard.remaining() + Duration::from_secs(1);
    timeout(limit, guard.lost())
        .await
        .expect("lost by the deadline");
    assert!(
        Instant::now() + Duration::from_millis(5) >= deadline,
        "lost before the deadline"
    );
    assert!(guard.is_lost());
}

/// Sets leases and poll intervals of the clients that are so long that a test would notice if it waited for one.
pub fn patient(builder: ClientBuilder) -> ClientBuilder {
    builder
        .command_timeout(Duration::from_secs(5))
        .watchdog_lease(Duration::from_secs(60))
        .poll_cap(Duration::from_secs(60))
}
