//! Locks in a cluster of three real servers: slots that move, and servers that hang, die and are replaced.

use std::sync::LazyLock;
use std::time::{Duration, Instant};

use crate::support::probe::{
    is_before_7, kind, millis, own_channel, passes, scripts_run, secs, soon, subscribers_by,
};
use crate::support::scene::patient;
use crate::support::{builder, eventually};
use futures_util::future::join_all;
use redlatch::config::PubSub;
use redlatch::{Client, ErrorKind, LossReason, Owner};
use redlatch_testkit::{Cluster, Proxy, Reply, Server, skip};

/// The cluster of the tests that do not change it.
static SHARED: LazyLock<Cluster> = LazyLock::new(Cluster::start);

/// Returns a lock name whose slot is on this server.
fn name_on(cluster: &Cluster, node: usize) -> String {
    let port = cluster.nodes()[node].port();
    let mut names = (0..).map(|number| format!("job-{number}"));
    let name = names.find(|name| cluster.owner(name).0.port() == port);
    name.expect("names have all slots")
}

async fn patient_client(cluster: &Cluster, pubsub: PubSub) -> Client {
    let builder = patient(builder(cluster.url())).pubsub(pubsub);
    builder.build().await.unwrap()
}

/// Returns the number of subscribers to a channel on this server.
fn listeners(server: &Server, pubsub: PubSub, channel: &str) -> i64 {
    let words = match pubsub {
        PubSub::Plain => ["CHANNELS", "NUMSUB"],
        _ => ["SHARDCHANNELS", "SHARDNUMSUB"],
    };
    subscribers_by(&mut server.connection(), words, channel)
}

/// Returns the kinds of pub/sub that the servers support. Sharded pub/sub requires Redis 7.
fn ways(cluster: &Cluster) -> &'static [PubSub] {
    match is_before_7(&cluster.nodes()[0]) {
        true => &[PubSub::Plain],
        false => &[PubSub::Sharded, PubSub::Plain, PubSub::Auto],
    }
}

fn channel(name: &str) -> String {
    format!("redisson_lock__channel:{{{name}}}")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_are_woken_by_the_message_of_either_way() {
    if ways(&SHARED) == [PubSub::Plain] {
        let sharded = builder(SHARED.url()).pubsub(PubSub::Sharded).build();
        let error = sharded.await.unwrap_err();
        assert!(error.to_string().contains("Redis 7"), "{error}");
    }
    for &pubsub in ways(&SHARED) {
        let client = patient_client(&SHARED, pubsub).await;
        let other = patient_client(&SHARED, pubsub).await;
        for node in 0..3 {
            let name = format!("{pubsub:?}{}", name_on(&SHARED, node));
            let owner = SHARED.owner(&name).0;
            let guard = client.lock(&name).lock().await.unwrap();
            let lock = other.lock(&name);
            let waiter = tokio::spawn(async move { lock.lock().await });
            eventually("the waiter listens where Redisson publishes", async || {
                listeners(owner, pubsub, &channel(&name)) == 1
            })
            .await;
            guard.unlock().await.unwrap();
            soon(waiter).await.unwrap().unwrap().unlock().await.unwrap();
        }
        client.close().await;
        other.close().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn holder_is_told_of_a_release_by_force_on_any_server() {
    for &pubsub in ways(&SHARED) {
        let holder = patient_client(&SHARED, pubsub).await;
        let other = patient_client(&SHARED, pubsub).await;
        let held = holder.lock(format!("held{pubsub:?}")).lock().await.unwrap();
        let count = ["PUBSUB", "NUMSUB", &own_channel(&holder)];
        let listens = |server: &Server| server.connection().command(&count).array()[1].int() == 1;
        eventually("it listens on one of the servers", async || {
            SHARED.nodes().iter().any(listens)
        })
        .await;
        for node in 0..3 {
            let name = format!("{pubsub:?}{}", name_on(&SHARED, node));
            let guard = holder.lock(&name).lock().await.unwrap();
            assert!(other.lock(&name).force_unlock().await.unwrap());
            assert_eq!(soon(guard.lost()).await, LossReason::Forced);
        }
        held.unlock().await.unwrap();
        holder.close().await;
        other.close().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_listens_the_other_way_hears_nothing() {
    if ways(&SHARED) == [PubSub::Plain] {
        return skip("redis7", "there is no sharded pub/sub before Redis 7");
    }
    // A cluster of its own: on the shared one, the scripts of other tests would be counted too.
    let cluster = Cluster::start();
    let sharded = patient_client(&cluster, PubSub::Sharded).await;
    let plain = patient_client(&cluster, PubSub::Plain).await;
    let guard = sharded.lock("mixed").lock().await.unwrap();
    let mut probe = cluster.owner("mixed").0.connection();
    let before = scripts_run(&mut probe);
    let lock = plain.lock("mixed");
    let mut waiter = tokio::spawn(async move { lock.lock().await });
    eventually("the waiter listens", async || {
        listeners(cluster.owner("mixed").0, PubSub::Plain, &channel("mixed")) == 1
    })
    .await;
    // The waiter asks again as soon as it is subscribed.
    eventually("it has asked again", async || {
        scripts_run(&mut probe) >= before + 2
    })
    .await;
    guard.unlock().await.unwrap();
    let early = tokio::time::timeout(millis(300), &mut waiter).await;
    assert!(early.is_err(), "the setting has no effect");
    waiter.abort();
    sharded.close().await;
    plain.close().await;
}

// fault: S66
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn names_with_braces_that_part_a_lock_are_refused_and_tags_are_heeded() {
    let client = patient_client(&SHARED, PubSub::Auto).await;
    for name in ["a{b", "{}x", "x}y", "{", "}", "a}b{"] {
        let error = client.lock(name).try_lock().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{name}");
        for error in [
            kind(client.fair_lock(name).try_lock().await),
            kind(client.read_write_lock(name).try_read().await),
            kind(client.plain_lock(name).try_lock().await),
        ] {
            assert_eq!(error, ErrorKind::InvalidInput, "{name}");
        }
    }
    let (first, second) = ("{tag}:1", "{tag}:2");
    assert_eq!(SHARED.slot(first), SHARED.slot(second));
    for name in [first, second, "a{tag}b", "{tag}{other}", "x}y{tag}"] {
        let fair = client.fair_lock(name).lock().await.unwrap();
        fair.unlock().await.unwrap();
        let lock = client.fenced_lock(name);
        lock.lock().await.unwrap().unlock().await.unwrap();
        let lock = client.read_write_lock(name);
        lock.write().await.unwrap().unlock().await.unwrap();
        assert!(!client.lock(name).is_locked().await.unwrap());
    }
    client.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn servers_are_connected_to_when_they_are_needed_and_one_that_answers_suffices() {
    let cluster = Cluster::start();
    let [first, second, third] = cluster.nodes() else {
        panic!("three servers");
    };
    let connections = |server: &Server| {
        let list = server.connection().command(&["CLIENT", "LIST"]).text();
        // Without the connection of this probe.
        list.lines().count() - 1
    };
    let url = format!(
        "redis-cluster://127.0.0.1:1?node=127.0.0.1:{}",
        second.port()
    );
    let client = Client::connect(url).await.unwrap();
    assert_eq!([first, second, third].map(connections), [0, 1, 0]);
    let lock = client.lock(name_on(&cluster, 2));
    lock.lock().await.unwrap().unlock().await.unwrap();
    assert_eq!([first, second, third].map(connections), [0, 1, 1]);
    client.close().await;
}

// fault: S46
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hold_goes_with_its_slot() {
    let cluster = Cluster::start();
    let lease = secs(2);
    let client = builder(cluster.url())
        .watchdog_lease(lease)
        .build()
        .await
        .unwrap();
    let lock = client.fenced_lock("job");
    let guard = lock.lock().await.unwrap();
    let other = client.fair_lock("{job}:fair").lock().await.unwrap();
    let (from, to) = cluster.owner("job");
    cluster.move_slot(cluster.slot("job"), from, to);
    let end = Instant::now() + lease * 2;
    while Instant::now() < end {
        assert!(!guard.is_lost() && !other.is_lost());
        assert!(to.connection().exists("job"));
        tokio::time::sleep(millis(20)).await;
    }
    guard.verify().await.unwrap();
    guard.reenter().await.unwrap().unlock().await.unwrap();
    guard.unlock().await.unwrap();
    other.unlock().await.unwrap();
    lock.lock().await.unwrap().unlock().await.unwrap();
    assert!(!to.connection().exists("job"));
    client.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiter_whose_slot_moves_is_woken_by_the_message_there() {
    let cluster = Cluster::start();
    for &pubsub in ways(&cluster) {
        let holder = patient_client(&cluster, pubsub).await;
        let client = patient_client(&cluster, pubsub).await;
        // This lock is alone in its slot: waiters that ask now and then would notice the move without any message.
        let alone = holder.lock("alone").lock().await.unwrap();
        let (from, to) = cluster.owner("alone");
        let lock = client.lock("alone");
        let waiter = tokio::spawn(async move { lock.lock().await });
        eventually("the waiter listens", async || {
            listeners(from, pubsub, &channel("alone")) == 1
        })
        .await;
        cluster.move_slot(cluster.slot("alone"), from, to);
        if pubsub != PubSub::Plain {
            eventually("it listens where the slot is", async || {
                listeners(to, pubsub, &channel("alone")) == 1
            })
            .await;
        }
        alone.unlock().await.unwrap();
        soon(waiter).await.unwrap().unwrap().unlock().await.unwrap();

        let guard = holder.lock("job").lock().await.unwrap();
        let fair = holder.fair_lock("{job}:fair").lock().await.unwrap();
        let written = holder.read_write_lock("{job}:rw").write().await.unwrap();
        let (from, to) = cluster.owner("job");
        let lock = client.lock("job");
        let fair_lock = client.fair_lock("{job}:fair");
        let read_write = client.read_write_lock("{job}:rw");
        let waiter = tokio::spawn(async move { lock.lock().await });
        let in_queue = tokio::spawn(async move { fair_lock.lock().await });
        let reader = tokio::spawn(async move { read_write.read().await });
        eventually("the waiter listens", async || {
            listeners(from, pubsub, &channel("job")) == 1
        })
        .await;
        cluster.move_slot(cluster.slot("job"), from, to);
        eventually("it listens where the slot is", async || {
            listeners(to, pubsub, &channel("job")) == 1
        })
        .await;
        if pubsub != PubSub::Plain {
            assert_eq!(listeners(from, pubsub, &channel("job")), 0);
        }
        // Leases and parks are one minute long.
        guard.unlock().await.unwrap();
        soon(waiter).await.unwrap().unwrap().unlock().await.unwrap();
        fair.unlock().await.unwrap();
        let next = soon(in_queue).await.unwrap().unwrap();
        next.unlock().await.unwrap();
        written.unlock().await.unwrap();
        soon(reader).await.unwrap().unwrap().unlock().await.unwrap();
        eventually("the old server is left", async || {
            listeners(from, PubSub::Plain, &channel("job")) == 0
        })
        .await;
        holder.close().await;
        client.close().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slot_that_is_half_moved_is_followed() {
    let cluster = Cluster::start();
    let client = patient_client(&cluster, PubSub::Auto).await;
    let stays = client.lock("{job}:stays").lock().await.unwrap();
    let handed_on = client.lock("{job}:here").lock().await.unwrap();
    let (from, to) = cluster.owner("job");
    let begun = cluster.begin_move(cluster.slot("job"), from, to);

    // A key that is not on the old server is requested from the new one: an `ASK` redirection.
    let lock = client.lock("{job}:new");
    let new = soon(lock.lock()).await.unwrap();
    let other = lock.owned_by(&Owner::unique());
    assert!(other.try_lock().await.unwrap().is_none());
    new.verify().await.unwrap();
    stays.verify().await.unwrap();
    assert!(new.remaining() > secs(50));

    // Each release goes to the server that has the key.
    soon(new.unlock()).await.unwrap();
    assert_eq!(to.connection().keys(), [""; 0]);
    let here = client.lock("{job}:here").owned_by(&Owner::unique());
    let next = tokio::spawn(async move { here.lock().await });
    eventually("the waiter here listens", async || {
        format!("{client:?}").contains("channels: 1")
    })
    .await;
    let started = Instant::now();
    soon(handed_on.unlock()).await.unwrap();
    soon(next).await.unwrap().unwrap().unlock().await.unwrap();
    println!("handed on here after {:?}", started.elapsed());
    let elsewhere = patient_client(&cluster, PubSub::Auto).await;
    let waiting = elsewhere.lock("{job}:stays");
    let waiter = tokio::spawn(async move { waiting.lock().await });
    eventually("the waiter listens", async || {
        let channel = "redisson_lock__channel:{job}:stays";
        ways(&cluster)
            .iter()
            .any(|way| listeners(from, *way, channel) > 0)
    })
    .await;
    soon(stays.unlock()).await.unwrap();
    soon(waiter).await.unwrap().unwrap().unlock().await.unwrap();
    let again = soon(client.lock("{job}:stays").lock()).await.unwrap();
    assert!(client.lock("{job}:stays").force_unlock().await.unwrap());
    drop(again);
    elsewhere.close().await;
    assert_eq!(from.connection().keys(), [""; 0]);
    begun.keys(usize::MAX);
    begun.finish();
    assert_eq!(to.connection().keys(), [""; 0]);
    client.close().await;
}

// fault: S46
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn holds_of_a_slot_that_is_half_moved_are_renewed_where_they_are() {
    let cluster = Cluster::start();
    let lease = secs(1);
    let client = patient_of(&cluster, lease).await;
    let mut guards = Vec::new();
    for number in 0..20 {
        let lock = client.lock(format!("{{job}}:{number}"));
        guards.push(lock.lock().await.unwrap());
    }
    let (from, to) = cluster.owner("job");
    let begun = cluster.begin_move(cluster.slot("job"), from, to);
    begun.keys(10);
    assert_eq!(to.connection().keys().len(), 10);
    let end = Instant::now() + lease * 3;
    while Instant::now() < end {
        assert!(guards.iter().all(|guard| !guard.is_lost()));
        tokio::time::sleep(millis(10)).await;
    }
    begun.keys(usize::MAX);
    begun.finish();
    for guard in guards {
        guard.unlock().await.unwrap();
    }
    client.close().await;
}

/// Checks that one server that hangs or is dead for two leases costs only the holds and calls on that server.
async fn one_server_fails(fail: impl FnOnce(&Server)) {
    let cluster = Cluster::start();
    let lease = secs(4);
    // How long a call waits for the server that fails.
    let timeout = lease / 6;
    let client = patient_of(&cluster, lease).await;
    let other = patient_of(&cluster, lease).await;
    let names: Vec<String> = (0..3).map(|node| name_on(&cluster, node)).collect();
    let mut guards = Vec::new();
    for name in &names {
        guards.push(client.lock(name).lock().await.unwrap());
    }
    let mut many = Vec::new();
    for name in (0..90).map(|number| format!("many-{number}")) {
        if cluster.owner(&name).0.port() != cluster.nodes()[0].port() {
            many.push(client.lock(name).lock().await.unwrap());
        }
    }
    // A release to the server that fails delays nothing else.
    let dropped = client.lock(format!("{{{}}}:2", names[0]));
    let dropped = dropped.lock().await.unwrap();
    let waiting = |name: &str| {
        let lock = other.lock(name);
        tokio::spawn(async move { lock.try_lock_for(secs(30)).await })
    };
    let stuck = waiting(&names[0]);
    let waiter = waiting(&names[1]);
    eventually("the waiters listen", async || {
        format!("{other:?}").contains("channels: 2")
    })
    .await;

    fail(&cluster.nodes()[0]);
    drop(dropped);
    let failed = Instant::now();
    let mut worst = Duration::ZERO;
    let mut lost = None;
    while failed.elapsed() < lease * 2 {
        if guards[0].is_lost() {
            lost.get_or_insert_with(|| failed.elapsed());
        }
        let started = Instant::now();
        for guard in &guards[1..] {
            assert!(!guard.is_lost(), "a hold on a server that is well");
            guard.verify().await.unwrap();
        }
        assert!(many.iter().all(|guard| !guard.is_lost()));
        let free = client.lock(format!("{{{}}}:free", names[2]));
        free.lock().await.unwrap().unlock().await.unwrap();
        worst = worst.max(started.elapsed());
        tokio::time::sleep(millis(5)).await;
    }
    assert!(worst < timeout, "{worst:?} for four calls");
    assert!(lost.is_some_and(|after| after < lease), "{lost:?}");
    soon(guards[0].lost()).await;
    let released = Instant::now();
    guards.remove(1).unlock().await.unwrap();
    let next = soon(waiter).await.unwrap().unwrap();
    next.expect("woken").unlock().await.unwrap();
    assert!(released.elapsed() < timeout, "{:?}", released.elapsed());
    stuck.abort();
    for node in &cluster.nodes()[1..] {
        let refusals = node.connection().command(&["INFO", "errorstats"]).text();
        assert!(!refusals.contains("CROSSSLOT"), "{refusals}");
    }
    println!("worst of four calls: {worst:?}; lost after {lost:?}");
}

async fn patient_of(cluster: &Cluster, lease: Duration) -> Client {
    let builder = builder(cluster.url())
        .watchdog_lease(lease)
        .poll_cap(secs(60));
    builder.command_timeout(secs(1)).build().await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn too_much_owed_to_one_server_is_no_reason_to_ask_nothing_of_another() {
    let cluster = Cluster::start();
    let client = builder(cluster.url()).build().await.unwrap();
    let [name, other] = [0, 1].map(|node| name_on(&cluster, node));
    let [hung, well] = [&name, &other].map(|name| client.lock(name));
    for lock in [&hung, &well] {
        lock.lock().await.unwrap().unlock().await.unwrap();
    }
    cluster.nodes()[0].freeze();
    let tries = (0..10_000).map(|at| {
        let lock = client.lock(format!("{{{name}}}:{at}"));
        async move { lock.try_lock().await.is_err() }
    });
    assert!(join_all(tries).await.into_iter().all(|failed| failed));
    eventually("as much is owed as may be", async || {
        let refused = hung.try_lock().await.unwrap_err();
        refused.to_string().contains("owed to")
    })
    .await;
    soon(well.lock()).await.unwrap().unlock().await.unwrap();
    cluster.nodes()[0].thaw();
    eventually("it is asked again", async || hung.try_lock().await.is_ok()).await;
    client.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn server_that_hangs_delays_no_other() {
    one_server_fails(Server::freeze).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn server_that_is_killed_delays_no_other() {
    one_server_fails(Server::kill).await;
}

// fault: S43
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replica_that_takes_over_is_found() {
    let cluster = Cluster::start();
    let name = name_on(&cluster, 0);
    let primary = &cluster.nodes()[0];
    let replica = cluster.replica_of(primary);
    let client = patient_of(&cluster, secs(30)).await;
    let kept = client.lock(&name).lock().await.unwrap();
    let mut copy = replica.connection();
    eventually("the hold is replicated", async || copy.keys() == [&*name]).await;
    // From here on, the replica lags behind.
    let mut admin = primary.connection();
    admin.command(&["ACL", "SETUSER", "default", "-psync", "-sync"]);
    admin.command(&["CLIENT", "KILL", "TYPE", "replica"]);
    let gone = client.lock(format!("{{{name}}}:gone")).lease(secs(60));
    let gone = gone.lock().await.unwrap();
    let other = client.lock(&name).owned_by(&Owner::unique());
    let waiter = tokio::spawn(async move { other.try_lock_for(secs(60)).await });
    eventually("the waiter listens", async || {
        format!("{client:?}").contains("channels: 1")
    })
    .await;
    primary.kill();
    eventually("the replica is the primary", async || {
        copy.command(&["ROLE"]).array()[0].text() == "master"
    })
    .await;
    let promoted = Instant::now();
    soon(gone.lost()).await;
    assert!(promoted.elapsed() < secs(2), "{:?}", promoted.elapsed());
    kept.verify().await.unwrap();
    kept.unlock().await.unwrap();
    let next = soon(waiter).await.unwrap().unwrap().expect("served");
    next.unlock().await.unwrap();
    client.close().await;
}

/// It answers, and knows of no other server that has its slots.
// fault: S45
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn primary_that_is_cut_off_from_its_cluster_is_left() {
    let cluster = Cluster::start();
    let name = name_on(&cluster, 0);
    let primary = &cluster.nodes()[0];
    let replica = cluster.replica_of(primary);
    let client = patient_client(&cluster, PubSub::Auto).await;
    let lock = client.lock(&name);
    lock.lock().await.unwrap().unlock().await.unwrap();
    let mut cut_off = primary.connection();
    cut_off.command(&["CONFIG", "SET", "cluster-require-full-coverage", "yes"]);
    for other in cluster.nodes()[1..].iter().chain([&replica]) {
        let id = other.connection().command(&["CLUSTER", "MYID"]).text();
        cut_off.command(&["CLUSTER", "FORGET", &id]);
    }
    replica
        .connection()
        .command(&["CLUSTER", "FAILOVER", "TAKEOVER"]);
    eventually("it says that the cluster is down", async || {
        let error = lock.try_lock().await.err();
        error.is_none_or(|error| error.to_string().contains("CLUSTERDOWN"))
    })
    .await;
    soon(lock.lock()).await.unwrap().unlock().await.unwrap();
    client.close().await;
}

// fault: S47
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cluster_that_is_down_says_so_and_is_waited_for() {
    let cluster = Cluster::start();
    for node in cluster.nodes() {
        let setting = ["CONFIG", "SET", "cluster-require-full-coverage", "yes"];
        node.connection().command(&setting);
    }
    let client = patient_client(&cluster, PubSub::Auto).await;
    let name = name_on(&cluster, 1);
    let held = client.lock(&name).lock().await.unwrap();
    let taken = client.lock(&name).owned_by(&Owner::unique());
    let mut waiters = vec![tokio::spawn(async move { taken.lock().await })];
    eventually("the waiter listens", async || {
        format!("{client:?}").contains("channels: 1")
    })
    .await;
    cluster.nodes()[0].kill();
    let sound = &cluster.nodes()[1];
    let free = client.lock(format!("{{{name}}}:free"));
    let error = loop {
        match free.try_lock().await {
            Ok(guard) => drop(guard),
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind(), ErrorKind::Backend, "{error}");
    assert!(error.to_string().contains("CLUSTERDOWN"), "{error}");
    waiters.push(tokio::spawn(async move { free.lock().await }));

    let connections = || {
        let stats = sound.connection().command(&["INFO", "stats"]).text();
        let total = stats
            .lines()
            .find_map(|line| line.strip_prefix("total_connections_received:"));
        total.unwrap().parse::<u64>().unwrap()
    };
    let (before, started) = (connections(), Instant::now());
    while started.elapsed() < secs(3) {
        assert!(waiters.iter().all(|waiter| !waiter.is_finished()));
        tokio::time::sleep(millis(100)).await;
    }
    let after = connections();
    // The connection of this probe is counted too, and so are those between the servers.
    assert!(after - before < 12, "{} connections in 3 s", after - before);
    cluster.nodes()[0].restart();
    let last = soon(waiters.pop().unwrap()).await.unwrap().unwrap();
    last.unlock().await.unwrap();
    held.unlock().await.unwrap();
    passes(waiters.pop().unwrap()).await;
    client.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_answer_about_sharded_channels_is_asked_for_again() {
    if ways(&SHARED) == [PubSub::Plain] {
        return skip("redis7", "there is no sharded pub/sub before Redis 7");
    }
    let proxy = Proxy::start(SHARED.nodes()[0].port()).await;
    let url = format!("redis-cluster://127.0.0.1:{}", proxy.port());
    proxy.cut_reply_to("SHARDNUMSUB");
    let client = patient(builder(&url)).build().await.unwrap();
    assert!(!proxy.cut_reply_armed());
    let holder = patient_client(&SHARED, PubSub::Sharded).await;
    let name = name_on(&SHARED, 1);
    let guard = holder.lock(&name).lock().await.unwrap();
    let lock = client.lock(&name);
    let waiter = tokio::spawn(async move { lock.lock().await });
    eventually("the waiter listens where the slot is", async || {
        listeners(SHARED.owner(&name).0, PubSub::Sharded, &channel(&name)) == 1
    })
    .await;
    guard.unlock().await.unwrap();
    soon(waiter).await.unwrap().unwrap().unlock().await.unwrap();

    // If no answer ever arrives, the client makes no choice either, and building it fails.
    let mut gate = proxy.stop("SHARDNUMSUB");
    let (failed, ()) = tokio::join!(builder(&url).build(), gate.reached());
    let error = failed.unwrap_err();
    assert!(error.to_string().contains("published there"), "{error}");
    client.close().await;
    holder.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn user_that_may_not_ask_about_the_cluster_is_told_so() {
    if ways(&SHARED) == [PubSub::Plain] {
        return skip("redis7", "there is no sharded pub/sub before Redis 7");
    }
    let server = &SHARED.nodes()[0];
    let url = |user: &str, without: &str| {
        let rights = ["on", ">x", "~*", "&*", "+@all", without];
        let command = [&["ACL", "SETUSER", user], &rights[..]].concat();
        server.connection().command(&command);
        format!("redis-cluster://{user}:x@127.0.0.1:{}", server.port())
    };
    for (user, without) in [
        ("unsharded", "-pubsub|shardnumsub"),
        ("unmapped", "-cluster|slots"),
    ] {
        let error = builder(url(user, without)).build().await.unwrap_err();
        let text = error.to_string();
        assert!(
            text.contains(&without.replace('-', "+")) && text.contains("NOPERM"),
            "{text}"
        );
        server.connection().command(&["ACL", "DELUSER", user]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn server_that_left_the_cluster_is_left() {
    let cluster = Cluster::start();
    let client = patient_client(&cluster, PubSub::Auto).await;
    let name = name_on(&cluster, 2);
    client
        .lock(&name)
        .lock()
        .await
        .unwrap()
        .unlock()
        .await
        .unwrap();
    let [first, second, gone] = cluster.nodes() else {
        panic!("three servers");
    };
    let id = gone.connection().command(&["CLUSTER", "MYID"]).text();
    gone.connection().command(&["CLUSTER", "RESET"]);
    for server in [first, second] {
        server.connection().command(&["CLUSTER", "FORGET", &id]);
    }
    let lock = client.lock(&name);
    let waiter = tokio::spawn(async move { lock.lock().await });
    let error = loop {
        let tried = client.lock(format!("{{{name}}}:2")).try_lock().await;
        let error = tried.unwrap_err();
        if !error.to_string().contains(&gone.port().to_string()) {
            break error;
        }
    };
    assert!(error.to_string().contains("CLUSTERDOWN"), "{error}");
    // No server has the slots until they are assigned to another one.
    let slots: Vec<String> = (10_922..16_384).map(|slot: u16| slot.to_string()).collect();
    let words = ["CLUSTER", "ADDSLOTS"].map(str::to_owned);
    let added = second.connection().command(&[&words[..], &slots].concat());
    assert_eq!(added, Reply::Status("OK".to_owned()));
    soon(waiter).await.unwrap().unwrap().unlock().await.unwrap();
    let clients = || gone.connection().command(&["CLIENT", "LIST"]).text();
    eventually("nothing leads to the old one", async || {
        !clients().contains("name=redlatch:")
    })
    .await;
    client.close().await;
}

#[tokio::test]
async fn server_and_cluster_that_are_taken_for_each_other_say_so() {
    let server = Server::start();
    let url = format!("redis-cluster://127.0.0.1:{}", server.port());
    let error = Client::connect(url).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Backend);
    assert!(error.to_string().contains("is not in a cluster"), "{error}");

    // By any of its servers, without HELLO too, and as soon as there is a connection.
    let node = &SHARED.nodes()[0];
    let rights = ["on", ">x", "~*", "&*", "+@all", "-hello"];
    node.connection()
        .command(&[&["ACL", "SETUSER", "oldish"], &rights[..]].concat());
    let expected = format!("redis-cluster://127.0.0.1:{}", node.port());
    for url in [
        node.url(),
        node.url() + "?protocol=2",
        node.url().replace("//", "//oldish:x@"),
    ] {
        let error = Client::connect(&url).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Backend, "{url}");
        assert!(error.to_string().contains(&expected), "{url}: {error}");
        let client = builder(&url).connect_lazily().build().await.unwrap();
        // Of a slot that this server has, and yet refused.
        let error = soon(client.lock(name_on(&SHARED, 0)).try_lock()).await;
        let error = error.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Backend, "{url}");
        assert!(error.to_string().contains(&expected), "{url}: {error}");
        client.close().await;
    }
    node.connection().command(&["ACL", "DELUSER", "oldish"]);
}
