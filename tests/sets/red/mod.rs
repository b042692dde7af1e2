//! Locks over several servers: what a majority grants, and what no majority may grant.

mod faults;
mod majority;
mod votes;
mod waiters;

use std::sync::Arc;
use std::time::Duration;

use crate::support::probe::{channel, millis, scripts_run, secs, soon, subscribers};
use crate::support::{builder, eventually, eventually_idle};
use redlatch::{Client, ClientBuilder, Owner, RedGuard, RedLock, ReentrantLock};
use redlatch_testkit::Server;

const NAME: &str = "job";
const MARK: &str = "redlatch_redlock_mark";

/// Independent servers.
struct Fleet(Vec<Arc<Server>>);

/// One process's clients of a fleet, and the longest lease of the locks that are made from them.
struct Clients(Vec<Client>, Duration);

/// What a test sets of clients and locks.
struct Settings {
    builder: ClientBuilder,
    max_lease: Duration,
}

impl From<ClientBuilder> for Settings {
    fn from(builder: ClientBuilder) -> Self {
        Self {
            builder,
            max_lease: secs(60),
        }
    }
}

impl Fleet {
    fn start(servers: usize) -> Self {
        Self::of((0..servers).map(|_| Server::start()))
    }

    fn of(servers: impl IntoIterator<Item = Server>) -> Self {
        Self(servers.into_iter().map(Arc::new).collect())
    }

    async fn clients(&self) -> Clients {
        self.clients_with(|builder| builder).await
    }

    async fn clients_with<S: Into<Settings>>(
        &self,
        settings: impl Fn(ClientBuilder) -> S,
    ) -> Clients {
        Clients::of(self.0.iter().map(|server| server.url()), settings).await
    }

    /// Returns on how many of these servers the lock is held.
    fn held(&self, servers: impl IntoIterator<Item = usize>) -> usize {
        let held = |at: &usize| self.0[*at].connection().exists(NAME);
        servers.into_iter().filter(held).count()
    }

    async fn eventually_free(&self, servers: impl IntoIterator<Item = usize> + Clone) {
        eventually("no server has the lock", async || {
            self.held(servers.clone()) == 0
        })
        .await;
    }

    /// Waits until the waiters listen on these servers and send no requests.
    async fn eventually_quiet(&self, servers: &[usize]) {
        for at in servers {
            let mut probe = self.0[*at].connection();
            eventually("somebody listens", async || {
                subscribers(&mut probe, &channel(NAME)) > 0
            })
            .await;
            eventually("nobody asks", async || {
                let before = scripts_run(&mut probe);
                tokio::time::sleep(millis(50)).await;
                scripts_run(&mut probe) == before
            })
            .await;
        }
    }

    /// Waits until nothing is left on the servers but the marks.
    async fn nothing_left<const N: usize>(&self, all: [&Clients; N]) {
        for client in all.iter().flat_map(|clients| &clients.0) {
            eventually_idle(client).await;
        }
        for server in &self.0 {
            let mut probe = server.connection();
            eventually("only the mark is left", async || probe.keys() == [MARK]).await;
            eventually("no channel is left", async || probe.channels().is_empty()).await;
        }
    }
}

impl Clients {
    async fn of<S: Into<Settings>>(
        urls: impl IntoIterator<Item = String>,
        settings: impl Fn(ClientBuilder) -> S,
    ) -> Self {
        let (mut clients, mut longest) = (Vec::new(), secs(60));
        for url in urls {
            // The servers of a test have just been started.
            let builder = builder(url).trust_fresh_servers(true);
            let Settings { builder, max_lease } = settings(builder).into();
            clients.push(builder.build().await.unwrap());
            longest = max_lease;
        }
        Self(clients, longest)
    }

    fn members(&self) -> Vec<ReentrantLock> {
        self.0.iter().map(|client| client.lock(NAME)).collect()
    }

    /// Returns the lock for a new owner.
    fn lock(&self) -> RedLock {
        self.lock_of(self.members())
    }

    /// Returns the lock of these members for a new owner.
    fn lock_of(&self, members: impl IntoIterator<Item = ReentrantLock>) -> RedLock {
        let lock = RedLock::new(members).max_lease(self.1);
        lock.owned_by(&Owner::unique())
    }

    fn leased(&self, lease: Duration) -> RedLock {
        let members = self.members().into_iter();
        self.lock_of(members.map(|member| member.lease(lease)))
    }

    /// Waits until each of these clients has the lock: those that a guard did not wait for join it later.
    async fn eventually_hold(&self, clients: impl IntoIterator<Item = usize> + Clone) {
        let holds = |at: usize| format!("{:?}", self.0[at]).contains("holds: 1");
        eventually("they hold it", async || {
            clients.clone().into_iter().all(holds)
        })
        .await;
    }

    /// Makes the servers vote, and waits until they have nothing of the lock.
    async fn settle(&self) {
        self.lock().lock().await.unwrap().unlock().await.unwrap();
        for client in &self.0 {
            eventually_idle(client).await;
        }
    }
}

async fn taken(lock: &RedLock) -> RedGuard {
    soon(lock.try_lock()).await.unwrap().expect("nobody has it")
}
