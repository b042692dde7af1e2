//! Redisson and this crate in one cluster. Skipped where there is no JDK or Maven.

use std::time::Duration;

use crate::family::Lock;
use crate::jvm::{JavaLock, Jvm};
use crate::support::probe::{NEVER, secs, soon};
use crate::support::{builder, eventually};
use redlatch::config::PubSub;
use redlatch::{Client, DistributedGuard, FairLock, ReadLock, ReentrantLock, WriteLock};
use redlatch_testkit::{Cluster, Reply};

/// The watchdog lease of both sides in tests where no lease is meant to end.
const LONG: Duration = Duration::from_secs(60);

struct Both {
    cluster: Cluster,
    jvm: Jvm,
    client: Client,
    channels: &'static str,
}

impl Both {
    async fn start(pubsub: PubSub) -> Option<Self> {
        let cluster = Cluster::start();
        let sharded = if pubsub == PubSub::Plain {
            "OFF"
        } else {
            "AUTO"
        };
        let mut probe = cluster.nodes()[0].connection();
        let known = probe.command(&["PUBSUB", "SHARDCHANNELS"]);
        // Sharded channels exist from Redis 7 on.
        let channels = match known {
            Reply::Array(_) if pubsub != PubSub::Plain => "SHARDCHANNELS",
            _ => "CHANNELS",
        };
        let jvm = Jvm::start_in(&cluster, sharded, LONG).await?;
        if !jvm.has("setShardedSubscriptionMode").await {
            return None;
        }
        let client = builder(cluster.url())
            .command_timeout(secs(5))
            .watchdog_lease(LONG)
            .poll_cap(NEVER / 2)
            .pubsub(pubsub)
            .build()
            .await
            .unwrap();
        Some(Self {
            cluster,
            jvm,
            client,
            channels,
        })
    }

    /// Waits until some client listens for the release of a lock, on the server of its slot.
    async fn heard(&self, name: &str) {
        let mut probe = self.cluster.owner(name).0.connection();
        let tag = format!("{{{name}}}");
        eventually("somebody listens", async || {
            let channels = probe.command(&["PUBSUB", self.channels]).texts();
            channels.iter().any(|channel| channel.contains(&tag))
        })
        .await;
    }

    /// Checks that each side keeps the other out and wakes it, in slots of every server.
    async fn take_turns<L: Lock>(&self, java: impl Fn(&Jvm, &str, u32) -> JavaLock) {
        for number in 0..6 {
            let name = format!("java-first-{number}");
            let (ours, theirs) = (L::of(&self.client, &name), java(&self.jvm, &name, 1));
            assert!(theirs.lock().await);
            assert!(ours.try_lock().await.unwrap().is_none());
            let waiter = tokio::spawn(async move { ours.lock().await });
            self.heard(&name).await;
            assert!(theirs.unlock().await);
            let guard = soon(waiter).await.unwrap().unwrap();
            guard.unlock().await.unwrap();

            let name = format!("ours-first-{number}");
            let (ours, theirs) = (L::of(&self.client, &name), java(&self.jvm, &name, 1));
            let guard = ours.lock().await.unwrap();
            assert!(!theirs.try_lock().await);
            let waiter = theirs.lock();
            self.jvm.asleep(1).await;
            guard.unlock().await.unwrap();
            assert!(soon(waiter).await);
            assert!(theirs.unlock().await);
            assert!(!ours.is_locked().await.unwrap());
        }
        eventually("nobody listens any more", async || {
            let nodes = self.cluster.nodes().iter();
            let channels = nodes.map(|node| node.connection().command(&["PUBSUB", self.channels]));
            channels.into_iter().all(|channels| {
                channels
                    .texts()
                    .iter()
                    .all(|name| !name.contains("-first-"))
            })
        })
        .await;
    }

    async fn take_turns_with_every_kind(&self) {
        self.take_turns::<ReentrantLock>(Jvm::lock).await;
        self.take_turns::<FairLock>(Jvm::fair_lock).await;
        self.take_turns::<WriteLock>(Jvm::read_lock).await;
        self.take_turns::<ReadLock>(Jvm::write_lock).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sharded_messages_of_either_side_wake_the_other() {
    if let Some(both) = Both::start(PubSub::Auto).await {
        both.take_turns_with_every_kind().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn plain_messages_of_either_side_wake_the_other() {
    if let Some(both) = Both::start(PubSub::Plain).await {
        both.take_turns_with_every_kind().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_of_both_sides_are_woken_where_their_slot_has_gone() {
    let Some(both) = Both::start(PubSub::Auto).await else {
        return;
    };
    let (cluster, name) = (&both.cluster, "moves");
    let (from, to) = cluster.owner(name);
    let (ours, theirs) = (both.client.lock(name), both.jvm.lock(name, 1));
    assert!(theirs.lock().await);
    let waiter = tokio::spawn(async move { ours.lock().await });
    both.heard(name).await;
    cluster.move_slot(cluster.slot(name), from, to);
    both.heard(name).await;
    // Java refreshes its slot map every five seconds, and the map may have a gap right after a move.
    eventually("Java has found the slot", async || {
        theirs.unlock_where_it_is().await
    })
    .await;
    let guard = soon(waiter).await.unwrap().unwrap();
    guard.unlock().await.unwrap();
}
